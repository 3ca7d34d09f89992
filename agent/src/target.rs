//! One target: where its connections go, and what became of them. Lives on while connections of it are open.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tailnet_crds::agent::{DialResult, EgressTarget};
use tsnet::{DialError, ErrorClass};

use crate::destinations::Destination;
use crate::limits::Limit;

/// Longest message of a dial in the status.
pub(crate) const MESSAGE_MAX: usize = 512;

#[derive(Debug)]
pub(crate) struct Target {
    /// The name never changes; address and ports may, and the rest is kept.
    pub(crate) name: String,
    spec: Mutex<EgressTarget>,
    pub(crate) listening: AtomicBool,
    open: AtomicU64,
    total: AtomicU64,
    last_dial: Mutex<Option<DialResult>>,
    pub(crate) limit: Limit,
}

impl Target {
    pub(crate) fn new(spec: EgressTarget, limit: Limit) -> Target {
        Target {
            name: spec.name.clone(),
            spec: Mutex::new(spec),
            listening: AtomicBool::new(false),
            open: AtomicU64::new(0),
            total: AtomicU64::new(0),
            last_dial: Mutex::new(None),
            limit,
        }
    }

    pub(crate) fn spec(&self) -> EgressTarget {
        self.spec.lock().clone()
    }

    /// Another address or port has not been dialled yet, whatever became of the last dial.
    pub(crate) fn set_spec(&self, spec: EgressTarget) {
        let mut current = self.spec.lock();
        if Destination::from(&*current) != Destination::from(&spec) {
            *self.last_dial.lock() = None;
        }
        *current = spec;
    }

    /// Where a connection that is accepted now goes.
    pub(crate) fn destination(&self) -> Destination {
        Destination::from(&*self.spec.lock())
    }

    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(crate) fn last_dial(&self) -> Option<DialResult> {
        self.last_dial.lock().clone()
    }

    /// What became of a dial to `destination`; news only while the target still is there.
    pub(crate) fn dialed(&self, destination: &Destination, result: Result<(), &DialError>) {
        let spec = self.spec.lock();
        if Destination::from(&*spec) != *destination {
            return;
        }
        *self.last_dial.lock() = Some(dial_result(result));
    }
}

/// The outcome of a dial that ends now, as the status tells it.
pub(crate) fn dial_result(result: Result<(), &DialError>) -> DialResult {
    DialResult {
        at: jiff::Timestamp::now()
            .round(jiff::Unit::Millisecond)
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
            .to_string(),
        ok: result.is_ok(),
        error_class: result.err().map(|e| status_class(e.class).to_owned()),
        message: result.err().map(|e| e.message.chars().take(MESSAGE_MAX).collect()),
    }
}

/// The classes that the status format knows.
fn status_class(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::Shutdown | ErrorClass::Aborted => ErrorClass::Other.as_str(),
        class => class.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Limit, Target};
    use tailnet_crds::agent::EgressTarget;
    use tsnet::{DialError, ErrorClass};

    fn target(address: &str) -> Target {
        let spec = EgressTarget {
            name: "db".into(),
            listen_port: 10000,
            address: address.into(),
            port: 5432,
        };
        Target::new(spec, Limit::new(1))
    }

    #[test]
    fn the_last_dial_is_of_the_status_format() {
        let target = target("192.0.2.10");
        let destination = target.destination();
        let shutdown = DialError {
            class: ErrorClass::Shutdown,
            message: "x".repeat(2000),
        };
        target.dialed(&destination, Err(&shutdown));
        let dial = target.last_dial().unwrap();
        assert_eq!(dial.error_class.as_deref(), Some("other"));
        assert_eq!(dial.message.unwrap().len(), 512);
        assert!(dial.at.ends_with('Z') && dial.at.starts_with("20"), "{}", dial.at);
        target.dialed(&destination, Ok(()));
        assert!(target.last_dial().unwrap().message.is_none());

        // Of another address nothing is known, and a dial that began before says nothing about it.
        target.set_spec(EgressTarget {
            address: "192.0.2.11".into(),
            ..target.spec()
        });
        assert_eq!(target.last_dial(), None);
        target.dialed(&destination, Err(&shutdown));
        assert_eq!(target.last_dial(), None);
    }
}
