//! What follows from a snapshot and is asked for again and again: which objects have no effect, and who is left under a key.
//!
//! Without it every verdict on one of many rivals asks for the effect of all the others, which ask for each other's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::index::IndexKey;
use crate::object::Object;

/// The answers. A clone begins without any.
#[derive(Default)]
pub(crate) struct Memo(Mutex<Found>);

#[derive(Default)]
struct Found {
    /// Whether a security rule leaves an object of the snapshot without effect, by its address.
    withdrawn: HashMap<usize, bool>,
    /// The objects under a key that have effect, the one with precedence first.
    effective: HashMap<IndexKey, Arc<[Arc<Object>]>>,
}

impl Memo {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has changed.
    pub fn forget(&mut self) {
        let found = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        found.withdrawn.clear();
        found.effective.clear();
    }

    /// Whether `object`, which the snapshot holds, is without effect; `decide` says it the first time.
    pub fn is_withdrawn(&self, object: &Arc<Object>, decide: impl FnOnce() -> bool) -> bool {
        let address = Arc::as_ptr(object).addr();
        let known = self.found().withdrawn.get(&address).copied();
        // Not under the lock: to decide takes a while, and others ask meanwhile.
        known.unwrap_or_else(|| {
            let withdrawn = decide();
            self.found().withdrawn.insert(address, withdrawn);
            withdrawn
        })
    }

    /// The objects with effect under `key`; `find` says it the first time.
    pub fn effective(&self, key: &IndexKey, find: impl FnOnce() -> Arc<[Arc<Object>]>) -> Arc<[Arc<Object>]> {
        let known = self.found().effective.get(key).cloned();
        known.unwrap_or_else(|| {
            let effective = find();
            self.found().effective.insert(key.clone(), Arc::clone(&effective));
            effective
        })
    }
}

impl Clone for Memo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for Memo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memo")
    }
}
