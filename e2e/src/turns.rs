//! Tests of one binary that must not run beside each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of this binary holds what this returns: there is one operator namespace, one set of CRDs, one
/// webhook configuration per cluster.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
