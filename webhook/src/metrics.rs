//! The metrics, each declared once: in [`METRICS`] for the reference, in [`Metrics`] for the code. A test holds both equal.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Prefix of every metric.
pub const PREFIX: &str = "tailnet_webhook";

/// A metric as the reference page shows it.
#[derive(Debug, Clone, Copy)]
pub struct MetricDoc {
    /// Name without [`PREFIX`] and without the `_total` of counters.
    pub name: &'static str,
    /// counter, gauge or histogram.
    pub kind: &'static str,
    /// Label names.
    pub labels: &'static [&'static str],
    /// What it counts.
    pub help: &'static str,
}

const REQUESTS: MetricDoc = MetricDoc {
    name: "requests",
    kind: "counter",
    labels: &["endpoint", "kind", "operation", "decision"],
    help: "Admission reviews by decision (allow, warn, deny, bypass, patch, error)",
};
const DENIALS: MetricDoc = MetricDoc {
    name: "denials",
    kind: "counter",
    labels: &["rule", "kind", "operation"],
    help: "Denying findings by rule",
};
const WARNINGS: MetricDoc = MetricDoc {
    name: "warnings",
    kind: "counter",
    labels: &["rule", "kind", "operation"],
    help: "Warning findings by rule",
};
const BYPASSES: MetricDoc = MetricDoc {
    name: "bypasses",
    kind: "counter",
    labels: &["rule", "kind", "operation"],
    help: "Denying findings that did not count, because the requester may skip their rules, by rule",
};
const DURATION: MetricDoc = MetricDoc {
    name: "request_duration_seconds",
    kind: "histogram",
    labels: &["endpoint"],
    help: "Time in the handler, body included",
};
const IN_FLIGHT: MetricDoc = MetricDoc {
    name: "requests_in_flight",
    kind: "gauge",
    labels: &[],
    help: "Admission reviews being decided",
};
const UNDECIDABLE: MetricDoc = MetricDoc {
    name: "undecidable",
    kind: "counter",
    labels: &["reason"],
    help: "Calls that were not decided by rules (panic, deadline, too-large, unreadable, version)",
};
const HOLDER_READS: MetricDoc = MetricDoc {
    name: "holder_reads",
    kind: "counter",
    labels: &["result"],
    help: "Live reads before a denial that rests on a watched object (present, gone, failed)",
};
const BYPASS_REQUESTS: MetricDoc = MetricDoc {
    name: "bypass_requests",
    kind: "counter",
    labels: &["result"],
    help: "Requests that ask to skip rules (TN008), by whether the requester may (allowed, refused, unknown)",
};
const WATCH_ERRORS: MetricDoc = MetricDoc {
    name: "watch_errors",
    kind: "counter",
    labels: &["resource"],
    help: "Broken or refused watches; each is started again",
};
const CERTIFICATE_EXPIRY: MetricDoc = MetricDoc {
    name: "certificate_expiry_seconds",
    kind: "gauge",
    labels: &[],
    help: "Seconds until the serving certificate ends",
};
const CERTIFICATE_REJECTED: MetricDoc = MetricDoc {
    name: "certificate_rejected",
    kind: "gauge",
    labels: &[],
    help: "1 while the Secret that brings the certificate is gone or holds one that cannot serve: the one before goes on until it ends",
};
const CLOCK_DIFFERENCE: MetricDoc = MetricDoc {
    name: "clock_difference_seconds",
    kind: "gauge",
    labels: &[],
    help: "The API server's clock minus this machine's, by its last answer; certificates go by the API server's",
};
const ADMISSION_OPEN: MetricDoc = MetricDoc {
    name: "admission_open",
    kind: "gauge",
    labels: &[],
    help: "1 while the checking entry has failurePolicy Ignore: what is written while the API server does not reach a webhook is stored unchecked",
};
const CONNECTIONS_REFUSED: MetricDoc = MetricDoc {
    name: "connections_refused",
    kind: "counter",
    labels: &["limit"],
    help: "Connections that were closed at once because there were too many, from all addresses together (all) or from one (source)",
};
const AUDIT_LOST: MetricDoc = MetricDoc {
    name: "audit_lines_lost",
    kind: "counter",
    labels: &[],
    help: "Decisions without a line in the audit stream: the writer was too slow or could not write",
};

/// Every metric of this process, besides `build_info`.
pub const METRICS: &[MetricDoc] = &[
    REQUESTS,
    DENIALS,
    WARNINGS,
    BYPASSES,
    DURATION,
    IN_FLIGHT,
    UNDECIDABLE,
    HOLDER_READS,
    BYPASS_REQUESTS,
    WATCH_ERRORS,
    CERTIFICATE_EXPIRY,
    CERTIFICATE_REJECTED,
    CLOCK_DIFFERENCE,
    ADMISSION_OPEN,
    CONNECTIONS_REFUSED,
    AUDIT_LOST,
];

/// Labels of `requests`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// validate or mutate.
    pub endpoint: &'static str,
    /// One of our kinds, or `other`.
    pub kind: &'static str,
    /// CREATE, UPDATE, DELETE or `other`.
    pub operation: &'static str,
    /// The decision.
    pub decision: &'static str,
}

/// Labels of `denials`, `warnings` and `bypasses`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RuleLabels {
    /// Rule id.
    pub rule: &'static str,
    /// One of our kinds.
    pub kind: &'static str,
    /// CREATE, UPDATE or DELETE.
    pub operation: &'static str,
}

/// The label `endpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndpointLabels {
    /// validate or mutate.
    pub endpoint: &'static str,
}

/// The label `reason`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabels {
    /// Why rules did not decide.
    pub reason: &'static str,
}

/// The label `result`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabels {
    /// Result of the read.
    pub result: &'static str,
}

/// The label `resource`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResourceLabels {
    /// What is watched.
    pub resource: &'static str,
}

/// The label `limit`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LimitLabels {
    /// What there were too many of.
    pub limit: &'static str,
}

/// The live metrics.
#[derive(Debug)]
pub struct Metrics {
    /// [`METRICS`] `requests`
    pub requests: Family<RequestLabels, Counter>,
    /// [`METRICS`] `denials`
    pub denials: Family<RuleLabels, Counter>,
    /// [`METRICS`] `warnings`
    pub warnings: Family<RuleLabels, Counter>,
    /// [`METRICS`] `bypasses`
    pub bypasses: Family<RuleLabels, Counter>,
    /// [`METRICS`] `request_duration_seconds`
    pub duration: Family<EndpointLabels, Histogram>,
    /// [`METRICS`] `requests_in_flight`
    pub in_flight: Gauge,
    /// [`METRICS`] `undecidable`
    pub undecidable: Family<ReasonLabels, Counter>,
    /// [`METRICS`] `holder_reads`
    pub holder_reads: Family<ResultLabels, Counter>,
    /// [`METRICS`] `bypass_requests`
    pub bypass_requests: Family<ResultLabels, Counter>,
    /// [`METRICS`] `watch_errors`
    pub watch_errors: Family<ResourceLabels, Counter>,
    /// [`METRICS`] `certificate_expiry_seconds`
    pub certificate_expiry: Gauge,
    /// [`METRICS`] `certificate_rejected`
    pub certificate_rejected: Gauge,
    /// [`METRICS`] `clock_difference_seconds`
    pub clock_difference: Gauge,
    /// [`METRICS`] `admission_open`
    pub admission_open: Gauge,
    /// [`METRICS`] `connections_refused`
    pub connections_refused: Family<LimitLabels, Counter>,
    /// [`METRICS`] `audit_lines_lost`
    pub audit_lost: Counter,
}

fn histogram() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0,
    ])
}

impl Metrics {
    /// Registers all metrics; `registry` carries [`PREFIX`].
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            denials: Family::default(),
            warnings: Family::default(),
            bypasses: Family::default(),
            duration: Family::new_with_constructor(histogram as fn() -> Histogram),
            in_flight: Gauge::default(),
            undecidable: Family::default(),
            holder_reads: Family::default(),
            bypass_requests: Family::default(),
            watch_errors: Family::default(),
            certificate_expiry: Gauge::default(),
            certificate_rejected: Gauge::default(),
            clock_difference: Gauge::default(),
            admission_open: Gauge::default(),
            connections_refused: Family::default(),
            audit_lost: Counter::default(),
        };
        registry.register(REQUESTS.name, REQUESTS.help, metrics.requests.clone());
        registry.register(DENIALS.name, DENIALS.help, metrics.denials.clone());
        registry.register(WARNINGS.name, WARNINGS.help, metrics.warnings.clone());
        registry.register(BYPASSES.name, BYPASSES.help, metrics.bypasses.clone());
        registry.register(DURATION.name, DURATION.help, metrics.duration.clone());
        registry.register(IN_FLIGHT.name, IN_FLIGHT.help, metrics.in_flight.clone());
        registry.register(UNDECIDABLE.name, UNDECIDABLE.help, metrics.undecidable.clone());
        registry.register(HOLDER_READS.name, HOLDER_READS.help, metrics.holder_reads.clone());
        registry.register(
            BYPASS_REQUESTS.name,
            BYPASS_REQUESTS.help,
            metrics.bypass_requests.clone(),
        );
        registry.register(WATCH_ERRORS.name, WATCH_ERRORS.help, metrics.watch_errors.clone());
        registry.register(
            CERTIFICATE_EXPIRY.name,
            CERTIFICATE_EXPIRY.help,
            metrics.certificate_expiry.clone(),
        );
        registry.register(
            CERTIFICATE_REJECTED.name,
            CERTIFICATE_REJECTED.help,
            metrics.certificate_rejected.clone(),
        );
        registry.register(
            CLOCK_DIFFERENCE.name,
            CLOCK_DIFFERENCE.help,
            metrics.clock_difference.clone(),
        );
        registry.register(ADMISSION_OPEN.name, ADMISSION_OPEN.help, metrics.admission_open.clone());
        registry.register(
            CONNECTIONS_REFUSED.name,
            CONNECTIONS_REFUSED.help,
            metrics.connections_refused.clone(),
        );
        registry.register(AUDIT_LOST.name, AUDIT_LOST.help, metrics.audit_lost.clone());
        metrics
    }

    /// Counts a request that asks to skip rules, by the answer that its requester may.
    pub fn asked_for_bypass(&self, answer: Option<bool>) {
        let result = match answer {
            Some(true) => "allowed",
            Some(false) => "refused",
            None => "unknown",
        };
        self.bypass_requests.get_or_create(&ResultLabels { result }).inc();
    }

    /// Counts a call that rules did not decide.
    pub fn undecided(&self, reason: &'static str) {
        self.undecidable.get_or_create(&ReasonLabels { reason }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::{
        EndpointLabels, LimitLabels, METRICS, Metrics, PREFIX, RequestLabels, ResourceLabels, ResultLabels, RuleLabels,
    };
    use prometheus_client::registry::Registry;

    #[test]
    fn the_list_is_what_the_endpoint_shows() {
        let mut registry = Registry::with_prefix(PREFIX);
        let metrics = Metrics::register(&mut registry);
        metrics
            .requests
            .get_or_create(&RequestLabels {
                endpoint: "validate",
                kind: "Tailnet",
                operation: "CREATE",
                decision: "deny",
            })
            .inc();
        let labels = RuleLabels {
            rule: "TN101",
            kind: "Tailnet",
            operation: "CREATE",
        };
        for by_rule in [&metrics.denials, &metrics.warnings, &metrics.bypasses] {
            by_rule.get_or_create(&labels).inc();
        }
        metrics
            .duration
            .get_or_create(&EndpointLabels { endpoint: "validate" })
            .observe(0.1);
        metrics
            .holder_reads
            .get_or_create(&ResultLabels { result: "gone" })
            .inc();
        metrics
            .watch_errors
            .get_or_create(&ResourceLabels { resource: "tailnets" })
            .inc();
        metrics
            .connections_refused
            .get_or_create(&LimitLabels { limit: "all" })
            .inc();
        metrics.asked_for_bypass(Some(true));
        metrics.undecided("panic");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        let shown: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let listed: Vec<_> = METRICS
            .iter()
            .map(|metric| format!("{PREFIX}_{} {}", metric.name, metric.kind))
            .collect();
        assert_eq!(shown, listed);
        for metric in METRICS {
            for label in metric.labels {
                let carried = text.lines().any(|line| {
                    line.starts_with(&format!("{PREFIX}_{}", metric.name)) && line.contains(&format!("{label}=\""))
                });
                assert!(carried, "{} does not carry the label {label}", metric.name);
            }
        }
    }
}
