//! The audit stream: one JSON object per decision ([`Line`]), on standard output or in a file, apart from the log.
//!
//! A thread makes and writes the lines, so that a slow disk or a full pipe never delays an admission, let alone refuses one.
//! What does not fit into the bounded queue is counted in a metric and in the next line that is written; the API server's
//! own audit log has the decision in any case.

mod sink;
mod writer;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
pub use tailnet_crds::audit::Line;

use sink::RotatedFile;
use writer::{Backlog, Writer};

/// Lines that may wait for the writer.
const QUEUE: usize = 4096;
/// Bytes that may wait for the writer: a flood of long lines must not eat the memory of the admission.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;
/// How long the end of the process waits for lines that are not written yet.
const FLUSH: Duration = Duration::from_secs(2);
/// How often it looks.
const FLUSH_CHECK: Duration = Duration::from_millis(10);

/// Where the lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Nowhere.
    None,
    /// Standard output.
    Stdout,
    /// Appended to a file. A log rotation may move it away (it is then opened anew) or copy and truncate it.
    File(PathBuf),
}

impl FromStr for Target {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "none" | "off" => Self::None,
            "-" => Self::Stdout,
            path => Self::File(PathBuf::from(path)),
        })
    }
}

/// The stream cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file cannot be opened for appending.
    #[error("cannot append to the audit file {path:?}: {source}; give a writable path, - or none with --audit-log")]
    Open {
        /// The path.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The writer thread cannot be started.
    #[error("cannot start the audit writer: {0}")]
    Thread(io::Error),
}

/// Handle for writing; cheap to use from any task.
#[derive(Debug)]
pub struct Audit {
    queue: Option<SyncSender<Line>>,
    writer: Option<JoinHandle<()>>,
    backlog: Arc<Backlog>,
}

impl Audit {
    /// Opens the stream; `lost` counts the decisions that have no line.
    ///
    /// # Errors
    /// When the file cannot be opened or no thread can be started.
    pub fn open(target: &Target, lost: Counter) -> Result<Self, AuditError> {
        match target {
            Target::None => Ok(Self {
                queue: None,
                writer: None,
                backlog: Arc::new(Backlog::new(lost)),
            }),
            Target::Stdout => Self::start(Box::new(io::stdout()), lost),
            Target::File(path) => {
                let file = OpenOptions::new().append(true).create(true).open(path);
                let file = file.and_then(|file| RotatedFile::new(path.clone(), file));
                let file = file.map_err(|source| AuditError::Open {
                    path: path.clone(),
                    source,
                })?;
                Self::start(Box::new(file), lost)
            }
        }
    }

    /// A stream into anything that can be written to; each line comes as one write.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(sink: Box<dyn Write + Send>, lost: Counter) -> Result<Self, AuditError> {
        let backlog = Arc::new(Backlog::new(lost));
        let (queue, lines) = sync_channel(QUEUE);
        let writer = Writer::new(sink, Arc::clone(&backlog));
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let writer = thread.spawn(move || writer.run(&lines)).map_err(AuditError::Thread)?;
        Ok(Self {
            queue: Some(queue),
            writer: Some(writer),
            backlog,
        })
    }

    /// Whether anything is written at all; where not, no line need be made.
    pub fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Hands a line to the writer. Never waits, and logs nothing: where this stream is stuck, the log may be too.
    pub fn write(&self, line: Line) {
        let Some(queue) = &self.queue else { return };
        let line = line.bounded();
        let weight = line.weight();
        if !self.backlog.enter(weight, QUEUE_BYTES) {
            self.backlog.lose();
            return;
        }
        if queue.try_send(line).is_err() {
            self.backlog.leave(weight);
            self.backlog.lose();
        }
    }
}

impl Drop for Audit {
    /// Writes what waits, for a short while.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let started = Instant::now();
            while started.elapsed() < FLUSH {
                if writer.is_finished() {
                    return;
                }
                std::thread::sleep(FLUSH_CHECK);
            }
            tracing::error!("the audit writer did not finish in time; the last lines may be missing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Audit, AuditError, Line, QUEUE, Target};
    use prometheus_client::metrics::counter::Counter;
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};
    use tailnet_crds::audit::{Decision, Endpoint};

    fn line(uid: usize) -> Line {
        let mut line = Line::new("2026-11-30T12:00:00Z".to_owned(), Endpoint::Validate, Decision::Deny);
        line.uid = format!("u{uid}");
        line.user = "alice".to_owned();
        line.groups = vec!["team-a".to_owned()];
        line.name = "a\nb".to_owned();
        line.dry_run = true;
        line.latency_ms = 0.25;
        line
    }

    fn read(text: &str) -> Vec<Line> {
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    /// A sink that waits for a word before each write.
    struct Stuck {
        go: Receiver<()>,
        text: Arc<Mutex<Vec<u8>>>,
    }

    impl Stuck {
        fn new() -> (Self, Sender<()>, Arc<Mutex<Vec<u8>>>) {
            let (sender, go) = channel();
            let text = Arc::new(Mutex::default());
            let stuck = Self {
                go,
                text: Arc::clone(&text),
            };
            (stuck, sender, text)
        }
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Once the sender is gone, nothing is stuck any more.
            let _ = self.go.recv();
            self.text.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_whole_json_and_all_written_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::open(&Target::File(path.clone()), Counter::default()).unwrap();
        for uid in 0..100 {
            audit.write(line(uid));
        }
        drop(audit);
        let lines = read(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(lines.len(), 100);
        assert_eq!(lines[99], line(99));
    }

    #[test]
    fn a_full_disk_is_counted() {
        let lost = Counter::default();
        let audit = Audit::open(&Target::File("/dev/full".into()), lost.clone()).unwrap();
        audit.write(line(1));
        drop(audit);
        assert_eq!(lost.get(), 1);
    }

    #[test]
    fn a_stuck_sink_holds_nobody_up_and_the_gap_is_told() {
        let lost = Counter::default();
        let (stuck, go, text) = Stuck::new();
        let audit = Audit::start(Box::new(stuck), lost.clone()).unwrap();
        let many = QUEUE * 2;
        let started = Instant::now();
        for uid in 0..many {
            audit.write(line(uid));
        }
        // All came back although not one byte was taken. One line is with the writer, QUEUE at most wait.
        let gone = usize::try_from(lost.get()).unwrap();
        assert!(gone >= many - QUEUE - 1 && gone < many, "{gone}");
        assert!(text.lock().unwrap().is_empty());
        drop(go);
        // One more, after the writer has emptied the queue: it tells how many are missing.
        while text.lock().unwrap().iter().filter(|byte| **byte == b'\n').count() < many - gone {
            assert!(started.elapsed() < Duration::from_secs(60), "the queue is not emptied");
            std::thread::sleep(Duration::from_millis(5));
        }
        audit.write(line(many));
        drop(audit);
        let lines = read(std::str::from_utf8(&text.lock().unwrap()).unwrap());
        assert_eq!(lines.len(), many - gone + 1);
        let told: u64 = lines.iter().map(|line| line.lost_before).sum();
        assert_eq!(told, lost.get(), "every gap is in the stream too");
    }

    #[test]
    fn long_lines_do_not_eat_the_memory() {
        let lost = Counter::default();
        let (stuck, go, _) = Stuck::new();
        let audit = Audit::start(Box::new(stuck), lost.clone()).unwrap();
        let mut long = line(0);
        long.groups = vec!["g".repeat(250); 64];
        for _ in 0..1000 {
            audit.write(long.clone());
        }
        // 1,000 lines of 17 KiB are far less than QUEUE and far more than QUEUE_BYTES.
        assert!(lost.get() > 500, "{}", lost.get());
        drop(go);
    }

    #[test]
    fn a_path_that_cannot_be_opened_is_named() {
        let error = Audit::open(&Target::File("/nonexistent/audit".into()), Counter::default()).expect_err("no folder");
        assert!(matches!(error, AuditError::Open { .. }));
        assert!(error.to_string().contains("/nonexistent/audit"), "{error}");
    }

    #[test]
    fn targets_are_parsed() {
        assert_eq!("-".parse(), Ok(Target::Stdout));
        assert_eq!("none".parse(), Ok(Target::None));
        assert_eq!("off".parse(), Ok(Target::None));
        assert_eq!("/a".parse(), Ok(Target::File("/a".into())));
    }
}
