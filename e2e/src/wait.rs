//! Waiting for something to become true, with a deadline and a failure text that says what was seen last.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// First pause between two looks; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Looks until `look` returns `Ok`. Blocks the thread: inside async tests use [`wait_for_async`].
///
/// ```no_run
/// # fn node() -> Result<(), String> { Ok(()) }
/// tailnet_e2e::wait_for("node1 is Ready", std::time::Duration::from_secs(30), node)?;
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// After `deadline`, with `what`, the time, and the last `Err` of `look`.
pub fn wait_for<T, E: Display>(what: &str, deadline: Duration, mut look: impl FnMut() -> Result<T, E>) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(seen) if start.elapsed() >= deadline => bail!(
                "waited {:.1} s in vain until {what}; seen last: {seen:#}",
                start.elapsed().as_secs_f64()
            ),
            Err(_) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// [`wait_for`] for async looks.
///
/// # Errors
/// See [`wait_for`]. A look that itself takes longer than `deadline` is cut off.
pub async fn wait_for_async<T, E: Display, F: Future<Output = Result<T, E>>>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> F,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut last = String::from("nothing: the first look has not ended");
    loop {
        let left = deadline.saturating_sub(start.elapsed()).max(Duration::from_millis(100));
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = format!("{seen:#}"),
            Err(_) => {}
        }
        if start.elapsed() >= deadline {
            bail!(
                "waited {:.1} s in vain until {what}; seen last: {last}",
                start.elapsed().as_secs_f64()
            );
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
