//! How much a target or an expose is used, and what became of its last dial.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tailnet_crds::agent::DialResult;
use tsnet::{DialError, ErrorClass};

use crate::limits::Limit;
use crate::metrics::{ErrorLabel, Metrics, TargetLabel};

/// Longest message in the status.
pub(crate) const MESSAGE_MAX: usize = 512;

/// Lives on while connections are open, also when the target or expose is gone.
#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) name: String,
    pub(crate) limit: Limit,
    open: AtomicU64,
    total: AtomicU64,
    last_dial: Mutex<Option<DialResult>>,
}

impl Usage {
    pub(crate) fn new(name: String, limit: Limit) -> Usage {
        Usage {
            name,
            limit,
            open: AtomicU64::new(0),
            total: AtomicU64::new(0),
            last_dial: Mutex::new(None),
        }
    }

    pub(crate) fn label(&self) -> TargetLabel {
        TargetLabel {
            target: self.name.clone(),
        }
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

    pub(crate) fn dialed(&self, result: Result<(), &DialError>) {
        *self.last_dial.lock() = Some(dial_result(result));
    }

    /// What is dialled from now on has not been dialled yet.
    pub(crate) fn forget_dial(&self) {
        *self.last_dial.lock() = None;
    }

    pub(crate) fn count_rejection(&self, metrics: &Metrics, reason: &'static str) {
        metrics.rejected.get_or_create(&self.error_label(reason)).inc();
    }

    pub(crate) fn count_dial_error(&self, metrics: &Metrics, class: ErrorClass) {
        metrics
            .dial_errors
            .get_or_create(&self.error_label(class.as_str()))
            .inc();
    }

    pub(crate) fn count_connection_error(&self, metrics: &Metrics, class: ErrorClass) {
        metrics
            .connection_errors
            .get_or_create(&self.error_label(class.as_str()))
            .inc();
    }

    fn error_label(&self, class: &'static str) -> ErrorLabel {
        ErrorLabel {
            target: self.name.clone(),
            class,
        }
    }
}

/// Counts one connection as open until it is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    usage: Arc<Usage>,
    metrics: Metrics,
}

impl Open {
    pub(crate) fn new(usage: &Arc<Usage>, metrics: &Metrics) -> Open {
        usage.open.fetch_add(1, Ordering::Relaxed);
        usage.total.fetch_add(1, Ordering::Relaxed);
        metrics.open.get_or_create(&usage.label()).inc();
        Open {
            usage: usage.clone(),
            metrics: metrics.clone(),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // The metrics of a removed name are forgotten once nothing of it is open: a gauge touched after that would come back.
        self.metrics.open.get_or_create(&self.usage.label()).dec();
        self.usage.open.fetch_sub(1, Ordering::Release);
    }
}

/// The outcome of a dial that ends now, as the status tells it.
fn dial_result(result: Result<(), &DialError>) -> DialResult {
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
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn what_is_open_is_counted_until_it_ends() {
        let metrics = Metrics::new(&mut Registry::default());
        let usage = Arc::new(Usage::new("db".into(), Limit::new(1)));
        let (first, second) = (Open::new(&usage, &metrics), Open::new(&usage, &metrics));
        drop(first);
        assert_eq!((usage.open(), usage.total()), (1, 2));
        assert_eq!(metrics.open.get_or_create(&usage.label()).get(), 1);
        drop(second);
        assert_eq!((usage.open(), usage.total()), (0, 2));
        assert_eq!(metrics.open.get_or_create(&usage.label()).get(), 0);
    }
}
