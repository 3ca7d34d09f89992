//! How many connections may be open, in total and per target.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bound on open connections. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Limit(Arc<Semaphore>);

/// The right to have one connection open; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _total: OwnedSemaphorePermit,
    _target: OwnedSemaphorePermit,
}

/// Which limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    Total,
    Target,
}

impl Reached {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reached::Total => "total-limit",
            Reached::Target => "target-limit",
        }
    }
}

impl Limit {
    pub(crate) fn new(most: u32) -> Limit {
        Limit(Arc::new(Semaphore::new(
            usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS),
        )))
    }

    /// One permit, or none when all are used up.
    pub(crate) fn one(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }

    /// A permit of both, or which is used up.
    pub(crate) fn permit(total: &Limit, target: &Limit) -> Result<Permit, Reached> {
        let of_target = target.0.clone().try_acquire_owned().map_err(|_| Reached::Target)?;
        let of_total = total.0.clone().try_acquire_owned().map_err(|_| Reached::Total)?;
        Ok(Permit {
            _total: of_total,
            _target: of_target,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Limit, Reached};

    #[test]
    fn counts_both_and_gives_back() {
        let (total, a, b) = (Limit::new(2), Limit::new(1), Limit::new(5));
        let first = Limit::permit(&total, &a).unwrap();
        assert_eq!(Limit::permit(&total, &a).unwrap_err(), Reached::Target);
        let _second = Limit::permit(&total, &b).unwrap();
        assert_eq!(Limit::permit(&total, &b).unwrap_err(), Reached::Total);
        drop(first);
        assert!(
            Limit::permit(&total, &a).is_ok(),
            "a refused total gives the target's permit back"
        );
    }
}
