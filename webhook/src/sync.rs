//! Which watches have their first list: the readiness condition `caches`.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tailnet_process::Condition;

/// Watches that still wait for their first list.
#[derive(Debug)]
pub struct Sync {
    waiting: Mutex<BTreeSet<&'static str>>,
    condition: Condition,
}

impl Sync {
    /// Waits for all `resources`; `condition` is met when the last one has come.
    pub fn new(resources: impl IntoIterator<Item = &'static str>, condition: Condition) -> Self {
        let sync = Self {
            waiting: Mutex::new(resources.into_iter().collect()),
            condition,
        };
        sync.tell();
        sync
    }

    /// `resource` has its first list.
    pub fn synced(&self, resource: &'static str) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(resource);
        self.tell();
    }

    fn tell(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            self.condition.met();
        } else {
            let names: Vec<_> = waiting.iter().copied().collect();
            self.condition.missing(format!("not listed yet: {}", names.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Sync;
    use tailnet_process::Readiness;

    #[test]
    fn names_what_is_missing_until_all_is_there() {
        let readiness = Readiness::new();
        let sync = Sync::new(["tailnets", "namespaces"], readiness.condition("caches", ""));
        assert_eq!(readiness.missing()[0].reason, "not listed yet: namespaces, tailnets");
        sync.synced("namespaces");
        assert_eq!(readiness.missing()[0].reason, "not listed yet: tailnets");
        sync.synced("tailnets");
        assert!(readiness.is_ready());
    }
}
