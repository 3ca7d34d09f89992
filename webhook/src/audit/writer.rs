//! The thread that writes, and what it shares with those who hand it lines.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use prometheus_client::metrics::counter::Counter;
use tailnet_crds::audit::Line;

/// What waits, and what got lost.
#[derive(Debug)]
pub struct Backlog {
    bytes: AtomicUsize,
    /// Lost since the last line that was written.
    gap: AtomicU64,
    lost: Counter,
}

impl Backlog {
    pub fn new(lost: Counter) -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            gap: AtomicU64::new(0),
            lost,
        }
    }

    /// Takes room for a line; false when there is none.
    pub fn enter(&self, weight: usize, limit: usize) -> bool {
        let room = |bytes: usize| Some(bytes + weight).filter(|sum| *sum <= limit);
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .is_ok()
    }

    /// Gives the room back.
    pub fn leave(&self, weight: usize) {
        self.bytes.fetch_sub(weight, Ordering::Relaxed);
    }

    /// Notes a decision that gets no line.
    pub fn lose(&self) {
        self.gap.fetch_add(1, Ordering::Relaxed);
        self.lost.inc();
    }
}

/// Writes lines one by one.
pub struct Writer {
    sink: Box<dyn Write + Send>,
    backlog: Arc<Backlog>,
    /// Whether the last write may have left half a line.
    torn: bool,
    failing: bool,
}

impl Writer {
    pub fn new(sink: Box<dyn Write + Send>, backlog: Arc<Backlog>) -> Self {
        Self {
            sink,
            backlog,
            torn: false,
            failing: false,
        }
    }

    /// Until nobody can hand over lines any more.
    pub fn run(mut self, lines: &Receiver<Line>) {
        while let Ok(line) = lines.recv() {
            self.backlog.leave(line.weight());
            self.write(line);
        }
        let gap = self.backlog.gap.load(Ordering::Relaxed);
        if gap > 0 {
            tracing::error!(lines = gap, "the audit stream ends with lines missing");
        }
    }

    fn write(&mut self, mut line: Line) {
        let gap = self.backlog.gap.swap(0, Ordering::Relaxed);
        line.lost_before = gap;
        let written = line
            .to_json()
            .map_err(std::io::Error::from)
            .and_then(|text| self.put(&text));
        match written {
            Ok(()) => {
                if gap > 0 {
                    tracing::warn!(lines = gap, "audit lines were lost; the stream goes on");
                }
                self.failing = false;
            }
            Err(error) => {
                // The gap is still to be told, and this line belongs to it.
                self.backlog.gap.fetch_add(gap, Ordering::Relaxed);
                self.backlog.lose();
                if !self.failing {
                    tracing::error!(%error, "audit lines are lost: cannot write");
                }
                self.failing = true;
            }
        }
    }

    /// One write per line: O_APPEND and pipes keep such lines whole.
    fn put(&mut self, text: &str) -> std::io::Result<()> {
        let start = if self.torn { "\n" } else { "" };
        let line = format!("{start}{text}\n");
        self.torn = true;
        self.sink.write_all(line.as_bytes())?;
        self.sink.flush()?;
        self.torn = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Backlog, Writer};
    use prometheus_client::metrics::counter::Counter;
    use std::io::{self, Write};
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, Mutex};
    use tailnet_crds::audit::{Decision, Endpoint, Line};

    /// A disk that is full in the middle of the second line, and has room again at the fourth.
    struct Disk {
        writes: usize,
        text: Arc<Mutex<String>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            let text = std::str::from_utf8(bytes).expect("text");
            match self.writes {
                2 => {
                    self.text.lock().unwrap().push_str(&text[..20]);
                    Ok(20)
                }
                3 | 4 => Err(io::ErrorKind::StorageFull.into()),
                _ => {
                    self.text.lock().unwrap().push_str(text);
                    Ok(bytes.len())
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn half_a_line_spoils_no_other_and_the_gap_is_told() {
        let text = Arc::new(Mutex::new(String::new()));
        let lost = Counter::default();
        let backlog = Arc::new(Backlog::new(lost.clone()));
        let disk = Disk {
            writes: 0,
            text: Arc::clone(&text),
        };
        let (queue, lines) = sync_channel(8);
        for uid in ["one", "two", "three", "four"] {
            let mut line = Line::new("t".to_owned(), Endpoint::Validate, Decision::Allow);
            line.uid = uid.to_owned();
            assert!(backlog.enter(line.weight(), usize::MAX));
            queue.send(line).unwrap();
        }
        drop(queue);
        Writer::new(Box::new(disk), backlog).run(&lines);
        let text = text.lock().unwrap();
        let read: Vec<_> = text.lines().map(serde_json::from_str::<Line>).collect();
        assert_eq!(read.len(), 3, "{text}");
        assert_eq!(read[0].as_ref().unwrap().uid, "one");
        assert!(read[1].is_err(), "the torn line stands alone");
        let last = read[2].as_ref().unwrap();
        assert_eq!((last.uid.as_str(), last.lost_before), ("four", 2));
        assert_eq!(lost.get(), 2);
    }

    #[test]
    fn room_is_limited_and_given_back() {
        let backlog = Backlog::new(Counter::default());
        assert!(backlog.enter(60, 100));
        assert!(!backlog.enter(41, 100));
        assert!(backlog.enter(40, 100));
        backlog.leave(60);
        assert!(backlog.enter(60, 100));
    }
}
