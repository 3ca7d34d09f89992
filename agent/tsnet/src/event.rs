//! The messages on a node's event socket; the other end is `go/events.go`.

use std::time::Duration;

use crate::error::ErrorClass;

const HEADER: usize = 40;
/// Longest message: header, and the text with its ellipsis.
pub(crate) const MAX_MESSAGE: usize = HEADER + 1024 + 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Dialed {
        token: u64,
        conn: u64,
        hedges: u32,
        took: Duration,
        address: String,
        peer: String,
    },
    DialFailed {
        token: u64,
        class: ErrorClass,
        took: Duration,
        message: String,
    },
    Spliced {
        token: u64,
        error: Option<ErrorClass>,
        up: u64,
        down: u64,
        took: Duration,
        message: String,
    },
    Accepted {
        conn: u64,
        port: u16,
        source: String,
        destination: String,
    },
    Progress {
        token: u64,
        up: u64,
        down: u64,
    },
    State(String),
    ControlError(String),
}

/// Reads one message; `None` for one that is too short or of an unknown kind.
pub(crate) fn decode(message: &[u8]) -> Option<Event> {
    let (header, text) = message.split_at_checked(HEADER)?;
    let u32_at = |at: usize| {
        header
            .get(at..at + 4)
            .and_then(|b| b.try_into().ok())
            .map(u32::from_le_bytes)
    };
    let u64_at = |at: usize| {
        header
            .get(at..at + 8)
            .and_then(|b| b.try_into().ok())
            .map(u64::from_le_bytes)
    };
    let (class, token, a, b) = (u32_at(4)?, u64_at(8)?, u64_at(16)?, u64_at(24)?);
    let took = Duration::from_micros(u64_at(32)?);
    let text = String::from_utf8_lossy(text).into_owned();
    let pair = |text: &str| {
        let (first, second) = text.split_once(' ').unwrap_or((text, ""));
        (first.to_owned(), second.to_owned())
    };
    Some(match u32_at(0)? {
        1 => {
            let (address, peer) = pair(&text);
            Event::Dialed {
                token,
                conn: a,
                hedges: class,
                took,
                address,
                peer,
            }
        }
        2 => Event::DialFailed {
            token,
            class: ErrorClass::from_code(class).unwrap_or(ErrorClass::Other),
            took,
            message: text,
        },
        3 => Event::Spliced {
            token,
            error: ErrorClass::from_code(class),
            up: a,
            down: b,
            took,
            message: text,
        },
        4 => {
            let (source, destination) = pair(&text);
            Event::Accepted {
                conn: a,
                port: u16::try_from(b).ok()?,
                source,
                destination,
            }
        }
        5 => Event::State(text),
        6 => Event::ControlError(text),
        7 => Event::Progress { token, up: a, down: b },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, class: u32, numbers: [u64; 4], text: &str) -> Vec<u8> {
        let mut m = Vec::new();
        m.extend(kind.to_le_bytes());
        m.extend(class.to_le_bytes());
        for n in numbers {
            m.extend(n.to_le_bytes());
        }
        m.extend(text.as_bytes());
        m
    }

    #[test]
    fn reads_a_splice_end() {
        let event = decode(&message(3, 4, [7, 10, 20, 1500], "client: connection reset by peer"));
        let expected = Event::Spliced {
            token: 7,
            error: Some(ErrorClass::Reset),
            up: 10,
            down: 20,
            took: Duration::from_micros(1500),
            message: "client: connection reset by peer".into(),
        };
        assert_eq!(event, Some(expected));
    }

    #[test]
    fn reads_a_dial() {
        let event = decode(&message(1, 2, [7, 0, 0, 9], "192.0.2.10 router-1"));
        let expected = Event::Dialed {
            token: 7,
            conn: 0,
            hedges: 2,
            took: Duration::from_micros(9),
            address: "192.0.2.10".into(),
            peer: "router-1".into(),
        };
        assert_eq!(event, Some(expected));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        assert_eq!(decode(&[0; 39]), None);
        assert_eq!(decode(&message(99, 0, [0; 4], "")), None);
        assert_eq!(
            decode(&message(4, 0, [0, 1, 70_000, 0], "a b")),
            None,
            "a port that is none"
        );
    }

    #[test]
    fn an_unknown_class_is_other() {
        let event = decode(&message(2, 77, [1, 0, 0, 0], "x"));
        assert!(
            matches!(
                event,
                Some(Event::DialFailed {
                    class: ErrorClass::Other,
                    ..
                })
            ),
            "{event:?}"
        );
    }
}
