//! What the agent counts. Names carry the prefix `tailnet_agent_`.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Prefix of every name.
pub const PREFIX: &str = "tailnet_agent";

/// Label of a target of an egress, or of an expose of an ingress.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TargetLabel {
    /// The target's or expose's name in the CR.
    pub target: String,
}

/// Target and direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByteLabel {
    /// The target's name in the CR.
    pub target: String,
    /// `to_tailnet` or `from_tailnet`.
    pub direction: &'static str,
}

/// Target and kind of failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ErrorLabel {
    /// The target's name in the CR.
    pub target: String,
    /// Class of the error.
    pub class: &'static str,
}

/// Expose and kind of answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AnswerLabel {
    /// The expose's name in the CR.
    pub target: String,
    /// `1xx` to `5xx`, or `aborted` when the client got no answer.
    pub code: &'static str,
}

/// Result of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabel {
    /// `ok` or `refused`.
    pub result: &'static str,
}

type Float = Gauge<f64, AtomicU64>;

/// All metrics of the agent. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Connections open now.
    pub open: Family<TargetLabel, Gauge>,
    /// Connections accepted.
    pub accepted: Family<TargetLabel, Counter>,
    /// Connections reset because too many were open, or because the agent had not joined.
    pub rejected: Family<ErrorLabel, Counter>,
    /// Bytes carried.
    pub bytes: Family<ByteLabel, Counter>,
    /// Dials that failed.
    pub dial_errors: Family<ErrorLabel, Counter>,
    /// Connections that ended with an error after they had been made.
    pub connection_errors: Family<ErrorLabel, Counter>,
    /// Time of dials that succeeded.
    pub dial_seconds: Family<TargetLabel, Histogram>,
    /// HTTP requests.
    pub requests: Family<AnswerLabel, Counter>,
    /// Time from the first byte of a request to the last of its response.
    pub request_seconds: Family<TargetLabel, Histogram>,
    /// TLS connections that never came to a request; the target is empty while it is not known.
    pub handshake_errors: Family<ErrorLabel, Counter>,
    /// End of validity of the certificate in use.
    pub certificate_not_after: Gauge,
    /// SYNs sent beside an unanswered first one.
    pub hedges: Counter,
    /// 1 while the agent is a node of the tailnet.
    pub node_joined: Gauge,
    /// 1 while the control connection is up.
    pub node_online: Gauge,
    /// Seconds since the netmap last changed.
    pub netmap_age: Float,
    /// Logins tried and done.
    pub logins: Family<ResultLabel, Counter>,
    /// Nodes that the login server no longer had.
    pub nodes_lost: Counter,
    /// Configurations taken and refused.
    pub configs: Family<ResultLabel, Gauge>,
    /// Resident memory.
    pub resident: Gauge,
    /// What the tailnet client holds.
    pub client_heap: Gauge,
    /// Soft limit of it.
    pub client_limit: Gauge,
}

fn request_histogram() -> Histogram {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    ])
}

fn dial_histogram() -> Histogram {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    ])
}

impl Metrics {
    /// Makes them and registers them in `registry`.
    pub fn new(registry: &mut Registry) -> Metrics {
        let m = Metrics {
            open: Family::default(),
            accepted: Family::default(),
            rejected: Family::default(),
            bytes: Family::default(),
            dial_errors: Family::default(),
            connection_errors: Family::default(),
            dial_seconds: Family::new_with_constructor(dial_histogram),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(request_histogram),
            handshake_errors: Family::default(),
            certificate_not_after: Gauge::default(),
            hedges: Counter::default(),
            node_joined: Gauge::default(),
            node_online: Gauge::default(),
            netmap_age: Float::default(),
            logins: Family::default(),
            nodes_lost: Counter::default(),
            configs: Family::default(),
            resident: Gauge::default(),
            client_heap: Gauge::default(),
            client_limit: Gauge::default(),
        };
        registry.register("connections_open", "Connections open now", m.open.clone());
        registry.register("connections", "Connections accepted", m.accepted.clone());
        registry.register(
            "connections_rejected",
            "Connections reset before a dial, by reason",
            m.rejected.clone(),
        );
        registry.register("bytes", "Bytes carried, by direction", m.bytes.clone());
        registry.register("dial_errors", "Dials that failed, by class", m.dial_errors.clone());
        registry.register(
            "connection_errors",
            "Connections that ended with an error, by class",
            m.connection_errors.clone(),
        );
        registry.register(
            "dial_duration_seconds",
            "Time until the target or backend has answered",
            m.dial_seconds.clone(),
        );
        registry.register(
            "http_requests",
            "HTTP requests of http exposes, by kind of answer",
            m.requests.clone(),
        );
        registry.register(
            "http_request_duration_seconds",
            "Time from the first byte of a request to the last of its response; upgraded connections are not counted",
            m.request_seconds.clone(),
        );
        registry.register(
            "handshake_errors",
            "TLS connections that ended before a request, by reason",
            m.handshake_errors.clone(),
        );
        registry.register(
            "certificate_not_after_seconds",
            "End of validity of the certificate in use, Unix time; 0 while there is none",
            m.certificate_not_after.clone(),
        );
        registry.register(
            "dial_hedges",
            "SYNs sent beside an unanswered first one",
            m.hedges.clone(),
        );
        registry.register(
            "node_joined",
            "1 while the agent is a node of the tailnet",
            m.node_joined.clone(),
        );
        registry.register(
            "node_online",
            "1 while the connection to the login server is up",
            m.node_online.clone(),
        );
        registry.register(
            "netmap_age_seconds",
            "Seconds since the netmap last changed",
            m.netmap_age.clone(),
        );
        registry.register("logins", "Logins, by result", m.logins.clone());
        registry.register(
            "nodes_lost",
            "Nodes that the login server no longer had",
            m.nodes_lost.clone(),
        );
        registry.register(
            "configurations",
            "Configuration files read since start, by result",
            m.configs.clone(),
        );
        registry.register(
            "resident_memory_bytes",
            "Resident memory of the process",
            m.resident.clone(),
        );
        registry.register(
            "client_memory_bytes",
            "Memory that the tailnet client holds",
            m.client_heap.clone(),
        );
        registry.register(
            "client_memory_limit_bytes",
            "Soft limit of the tailnet client's memory",
            m.client_limit.clone(),
        );
        m
    }

    /// Forgets a target that is no longer configured and has no connections.
    pub fn forget(&self, target: &str) {
        let label = TargetLabel {
            target: target.to_owned(),
        };
        self.open.remove(&label);
        self.accepted.remove(&label);
        self.dial_seconds.remove(&label);
        self.request_seconds.remove(&label);
        for code in crate::ingress::ANSWERS {
            self.requests.remove(&AnswerLabel {
                target: target.to_owned(),
                code,
            });
        }
        for class in crate::ingress::HANDSHAKE_ERRORS {
            self.handshake_errors.remove(&ErrorLabel {
                target: target.to_owned(),
                class,
            });
        }
        for direction in ["to_tailnet", "from_tailnet"] {
            self.bytes.remove(&ByteLabel {
                target: target.to_owned(),
                direction,
            });
        }
        for class in tsnet::ErrorClass::ALL {
            let label = ErrorLabel {
                target: target.to_owned(),
                class: class.as_str(),
            };
            self.dial_errors.remove(&label);
            self.connection_errors.remove(&label);
        }
        for class in crate::connection::REJECTIONS {
            self.rejected.remove(&ErrorLabel {
                target: target.to_owned(),
                class,
            });
        }
    }
}

/// A size as a gauge takes it.
pub(crate) fn gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
