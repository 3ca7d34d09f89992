//! Delay before the next try of an object that failed: doubling per object, with jitter, forgotten after a success.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use rand::RngExt;

/// First delay.
const FIRST: Duration = Duration::from_millis(500);
/// Longest delay, before jitter.
const LONGEST: Duration = Duration::from_secs(120);

/// Failures in a row, by object key.
#[derive(Default)]
pub struct Backoff {
    failures: Mutex<HashMap<String, u32>>,
}

impl Backoff {
    /// Counts a failure of `key` and gives the delay before the next try: 0.5 s doubling to 120 s, ±25 %.
    pub fn failed(&self, key: &str) -> Duration {
        let failures = {
            let mut map = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let entry = map.entry(key.to_owned()).or_insert(0);
            *entry = entry.saturating_add(1);
            *entry
        };
        let exponent = (failures - 1).min(10);
        let delay = FIRST.saturating_mul(1 << exponent).min(LONGEST);
        delay.mul_f64(rand::rng().random_range(0.75..1.25))
    }

    /// Forgets the failures of `key`.
    pub fn succeeded(&self, key: &str) {
        self.failures
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit_and_starts_over_after_a_success() {
        let backoff = Backoff::default();
        let mut last = Duration::ZERO;
        for n in 0..20 {
            let delay = backoff.failed("a");
            assert!(delay <= LONGEST.mul_f64(1.25), "{delay:?}");
            if n < 7 {
                assert!(delay > last, "try {n}: {delay:?} after {last:?}");
            }
            last = delay;
        }
        assert!(last >= LONGEST.mul_f64(0.75));
        backoff.succeeded("a");
        assert!(backoff.failed("a") <= FIRST.mul_f64(1.25));
    }

    #[test]
    fn objects_do_not_slow_each_other() {
        let backoff = Backoff::default();
        for _ in 0..10 {
            backoff.failed("a");
        }
        assert!(backoff.failed("b") <= FIRST.mul_f64(1.25));
    }
}
