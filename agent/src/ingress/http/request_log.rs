//! One log line and one count per request, when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::connection::millis;
use crate::ingress::carrier::Peer;
use crate::metrics::{AnswerLabel, ByteLabel, Metrics, TargetLabel};

/// Kinds of answer, as the metric tells them.
pub(crate) const ANSWERS: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "aborted"];

/// A request that is being answered. Logged and counted when it is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) metrics: Metrics,
    pub(crate) expose: String,
    pub(crate) peer: Arc<Peer>,
    pub(crate) method: String,
    pub(crate) host: String,
    /// Without the query.
    pub(crate) path: String,
    pub(crate) version: &'static str,
    pub(crate) started: Instant,
    /// Status of the answer; None until there is one.
    pub(crate) status: Option<u16>,
    /// Why the answer is our own, or why it broke off.
    pub(crate) reason: Option<&'static str>,
    /// For people, with the reason.
    pub(crate) detail: Option<String>,
    pub(crate) received: Arc<AtomicU64>,
    pub(crate) sent: u64,
    pub(crate) complete: bool,
    /// Time that the connection was another protocol's.
    pub(crate) upgraded: Option<Duration>,
}

impl Entry {
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    pub(crate) fn failed(&mut self, reason: &'static str) {
        self.reason = Some(reason);
    }

    fn answer(&self) -> &'static str {
        match self.status {
            Some(100..=199) => "1xx",
            Some(200..=299) => "2xx",
            Some(300..=399) => "3xx",
            Some(400..=499) => "4xx",
            Some(_) => "5xx",
            None => "aborted",
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let target = self.expose.clone();
        let label = AnswerLabel {
            target: target.clone(),
            code: self.answer(),
        };
        self.metrics.requests.get_or_create(&label).inc();
        if self.upgraded.is_none() {
            let label = TargetLabel { target: target.clone() };
            let seconds = self.started.elapsed().as_secs_f64();
            self.metrics.request_seconds.get_or_create(&label).observe(seconds);
        }
        let received = self.received.load(Ordering::Relaxed);
        for (direction, bytes) in [("to_tailnet", self.sent), ("from_tailnet", received)] {
            let target = target.clone();
            self.metrics
                .bytes
                .get_or_create(&ByteLabel { target, direction })
                .inc_by(bytes);
        }
        if self.reason.is_none() && !self.complete && self.upgraded.is_none() {
            self.reason = Some("client-gone");
        }
        tracing::info!(
            target_name = self.expose,
            peer = self.peer.source,
            node = self.peer.node,
            login = self.peer.login,
            method = self.method,
            host = self.host,
            path = self.path,
            version = self.version,
            status = self.status,
            reason = self.reason,
            detail = self.detail,
            bytes_from_tailnet = received,
            bytes_to_tailnet = self.sent,
            duration_ms = millis(self.started.elapsed()),
            upgraded_ms = self.upgraded.map(millis),
            "request"
        );
    }
}
