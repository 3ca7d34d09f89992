//! Waiting longer after every failure, with jitter, so that many agents do not come back in step.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The next wait of a series of failures.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Backoff {
        Backoff {
            first,
            most,
            next: first,
        }
    }

    /// Between a half and the whole of a time that doubles with every call.
    pub(crate) fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        jittered(whole)
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Between a half and the whole of `whole`.
pub(crate) fn jittered(whole: Duration) -> Duration {
    // The hasher of the standard library is seeded at random; that is random enough to spread agents.
    let percent = u32::try_from(RandomState::new().build_hasher().finish() % 51).unwrap_or(0);
    whole * (50 + percent) / 100
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use std::time::Duration;

    #[test]
    fn grows_to_the_most_and_starts_again() {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(4));
        let mut backoff = Backoff::new(first, most);
        for whole in [1, 2, 4, 4] {
            let whole = Duration::from_secs(whole);
            let wait = backoff.wait();
            assert!(wait >= whole / 2 && wait <= whole, "{wait:?} of {whole:?}");
        }
        backoff.reset();
        assert!(backoff.wait() <= first);
    }
}
