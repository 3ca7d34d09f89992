use std::fmt;

/// An error of the tailnet client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node was closed, by [`crate::Node::close`] or because it was dropped.
    #[error("the tailnet node is closed")]
    Closed,
    /// The call did not end within its deadline.
    #[error("{0}")]
    Deadline(String),
    /// The client refused, in its own or the control server's words.
    #[error("{0}")]
    Client(String),
    /// A panic in the client, caught at the border.
    #[error("the tailnet client failed: {0}")]
    Panic(String),
    /// The client's answer could not be read.
    #[error("the tailnet client's answer is not as expected: {0}")]
    Answer(#[from] serde_json::Error),
    /// A socket or pipe could not be made.
    #[error("making the node's sockets: {0}")]
    Socket(#[source] std::io::Error),
}

/// Why a dial or a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorClass {
    /// No peer serves the address, or it is one that is never on a tailnet.
    NoRoute,
    /// No answer within the deadline, or bytes stayed unacknowledged.
    Timeout,
    /// The target refused the connection.
    Refused,
    /// One side reset the connection.
    Reset,
    /// The name could not be resolved.
    Resolve,
    /// Anything else.
    Other,
    /// This node is closing.
    Shutdown,
    /// This side ended it by [`crate::Aborter::abort`].
    Aborted,
}

impl ErrorClass {
    /// Every class.
    pub const ALL: [ErrorClass; 8] = [
        ErrorClass::NoRoute,
        ErrorClass::Timeout,
        ErrorClass::Refused,
        ErrorClass::Reset,
        ErrorClass::Resolve,
        ErrorClass::Other,
        ErrorClass::Shutdown,
        ErrorClass::Aborted,
    ];

    /// The number that the Go side uses; 0 is no error, an unknown number is [`ErrorClass::Other`].
    pub(crate) fn from_code(code: u32) -> Option<ErrorClass> {
        match code {
            0 => None,
            1 => Some(ErrorClass::NoRoute),
            2 => Some(ErrorClass::Timeout),
            3 => Some(ErrorClass::Refused),
            4 => Some(ErrorClass::Reset),
            5 => Some(ErrorClass::Resolve),
            7 => Some(ErrorClass::Shutdown),
            8 => Some(ErrorClass::Aborted),
            _ => Some(ErrorClass::Other),
        }
    }

    /// The word for it in metrics, logs and statuses.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorClass::NoRoute => "no-route",
            ErrorClass::Timeout => "timeout",
            ErrorClass::Refused => "refused",
            ErrorClass::Reset => "reset",
            ErrorClass::Resolve => "resolve",
            ErrorClass::Other => "other",
            ErrorClass::Shutdown => "shutdown",
            ErrorClass::Aborted => "aborted",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A dial that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DialError {
    /// What kind of failure.
    pub class: ErrorClass,
    /// What was tried and what came back; bounded.
    pub message: String,
}

impl DialError {
    pub(crate) fn closed() -> DialError {
        DialError {
            class: ErrorClass::Shutdown,
            message: "the tailnet node is closed".into(),
        }
    }
}
