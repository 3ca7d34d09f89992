//! One target: where its connections go, and what became of them. Lives on while connections of it are open.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tailnet_crds::agent::EgressTarget;
use tsnet::DialError;

use crate::destinations::Destination;
use crate::limits::Limit;
use crate::usage::Usage;

#[derive(Debug)]
pub(crate) struct Target {
    /// The name never changes; address and ports may, and the rest is kept.
    pub(crate) name: String,
    spec: Mutex<EgressTarget>,
    pub(crate) listening: AtomicBool,
    pub(crate) usage: Arc<Usage>,
}

impl Target {
    pub(crate) fn new(spec: EgressTarget, limit: Limit) -> Target {
        Target {
            name: spec.name.clone(),
            usage: Arc::new(Usage::new(spec.name.clone(), limit)),
            spec: Mutex::new(spec),
            listening: AtomicBool::new(false),
        }
    }

    pub(crate) fn spec(&self) -> EgressTarget {
        self.spec.lock().clone()
    }

    /// Another address or port has not been dialled yet, whatever became of the last dial.
    pub(crate) fn set_spec(&self, spec: EgressTarget) {
        let mut current = self.spec.lock();
        if Destination::from(&*current) != Destination::from(&spec) {
            self.usage.forget_dial();
        }
        *current = spec;
    }

    /// Where a connection that is accepted now goes.
    pub(crate) fn destination(&self) -> Destination {
        Destination::from(&*self.spec.lock())
    }

    /// What became of a dial to `destination`; news only while the target still is there.
    pub(crate) fn dialed(&self, destination: &Destination, result: Result<(), &DialError>) {
        let spec = self.spec.lock();
        if Destination::from(&*spec) != *destination {
            return;
        }
        self.usage.dialed(result);
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
        let dial = target.usage.last_dial().unwrap();
        assert_eq!(dial.error_class.as_deref(), Some("other"));
        assert_eq!(dial.message.unwrap().len(), 512);
        assert!(dial.at.ends_with('Z') && dial.at.starts_with("20"), "{}", dial.at);
        target.dialed(&destination, Ok(()));
        assert!(target.usage.last_dial().unwrap().message.is_none());

        // Of another address nothing is known, and a dial that began before says nothing about it.
        target.set_spec(EgressTarget {
            address: "192.0.2.11".into(),
            ..target.spec()
        });
        assert_eq!(target.usage.last_dial(), None);
        target.dialed(&destination, Err(&shutdown));
        assert_eq!(target.usage.last_dial(), None);
    }
}
