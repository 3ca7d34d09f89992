//! What is said over the sockets of the supervisor and of the box's PID 1: one JSON line to ask, one to answer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A program to start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Spawn {
    /// Name for people; also the name of its log.
    pub name: String,
    /// Program and arguments; the program is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Environment variables beside `PATH` and `HOME`; nothing else is inherited.
    pub env: Vec<(String, String)>,
    /// Working directory; `/` when absent.
    pub cwd: Option<PathBuf>,
    /// Name of a network namespace made with `ip netns add` inside the box; the box's own when absent.
    pub netns: Option<String>,
    /// User and group id; root when absent.
    pub user: Option<(u32, u32)>,
    /// File that gets standard output.
    pub stdout: PathBuf,
    /// File that gets standard error; may be the same.
    pub stderr: PathBuf,
    /// File that is standard input; `/dev/null` when absent.
    pub stdin: Option<PathBuf>,
}

/// A question.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Starts a program; answered by [`Reply::Started`].
    Spawn(Box<Spawn>),
    /// Sends a signal number; answered by [`Reply::Done`], also when the process has ended.
    Signal {
        /// Process, as its starter numbers it.
        pid: i32,
        /// Signal number.
        signal: i32,
    },
    /// Waits for the end of a process; answered by [`Reply::Ended`] or [`Reply::Running`].
    Wait {
        /// Process.
        pid: i32,
        /// Longest wait in milliseconds.
        milliseconds: u64,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The process runs.
    Started {
        /// Its id in the PID namespace of its starter.
        pid: i32,
    },
    /// The signal was sent.
    Done,
    /// The process still runs.
    Running,
    /// The process has ended.
    Ended(Exit),
    /// The question could not be answered.
    Failed {
        /// Why.
        error: String,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// Exit code.
    Code(i32),
    /// Killed by this signal number.
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}
