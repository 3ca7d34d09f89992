//! Progress of long steps, on standard error: what is being done and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One long step. Prints `what ...` at the start, a line every 15 seconds, and the total at [`Progress::done`].
#[derive(Debug)]
pub struct Progress {
    what: String,
    start: Instant,
    finished: Arc<AtomicBool>,
}

impl Progress {
    /// Starts a step and prints its name.
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        eprintln!("{what} ...");
        let finished = Arc::new(AtomicBool::new(false));
        let (flag, text, start) = (Arc::clone(&finished), what.clone(), Instant::now());
        std::thread::spawn(move || {
            let mut next = Duration::from_secs(15);
            while !flag.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                if start.elapsed() >= next && !flag.load(Ordering::Relaxed) {
                    eprintln!("{text}: {} s", start.elapsed().as_secs());
                    next += Duration::from_secs(15);
                }
            }
        });
        Self { what, start, finished }
    }

    /// Ends the step and prints how long it took.
    pub fn done(self) {
        eprintln!("{}: done in {:.1} s", self.what, self.start.elapsed().as_secs_f64());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finished.store(true, Ordering::Relaxed);
    }
}
