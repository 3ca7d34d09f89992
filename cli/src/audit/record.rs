//! One decision, whichever log it was read from.

use jiff::Timestamp;
use serde::Serialize;
use tailnet_crds::audit::{Decision, Endpoint};

/// Who decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The webhook's rules.
    Webhook,
    /// The CRD's schema and CEL rules, before the webhook was asked.
    Schema,
    /// A ValidatingAdmissionPolicy.
    Policy,
    /// The API server, because it could not reach the webhook.
    Server,
}

impl Layer {
    /// As the table shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Schema => "schema",
            Self::Policy => "policy",
            Self::Server => "server",
        }
    }
}

/// The object of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Its kind.
    pub kind: String,
    /// Its namespace; null for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Its name; empty where the log does not have it (generateName).
    pub name: String,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = if self.name.is_empty() {
            "(no name yet)"
        } else {
            &self.name
        };
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{name}", self.kind),
            None => write!(f, "{} {name}", self.kind),
        }
    }
}

/// One decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// When.
    pub time: Timestamp,
    /// Uid of the admission review; empty where no webhook was asked.
    pub review: String,
    /// The rules, or the defaults.
    pub endpoint: Endpoint,
    /// Who decided.
    pub layer: Layer,
    /// What was decided.
    pub decision: Decision,
    /// Why no rule decided, or which policy did.
    pub reason: Option<String>,
    /// Who asked.
    pub user: String,
    /// The requester's groups.
    pub groups: Vec<String>,
    /// CREATE, UPDATE or DELETE.
    pub verb: String,
    /// What it was about.
    pub target: Target,
    /// Whether the requester only tried.
    pub dry_run: bool,
    /// Rules that refused.
    pub rules: Vec<String>,
    /// Rules that warned.
    pub warned: Vec<String>,
    /// Rules that were skipped.
    pub bypassed: Vec<String>,
    /// Paths of the fields.
    pub fields: Vec<String>,
    /// Time in the webhook; the API server's log does not have it.
    pub latency_ms: Option<f64>,
    /// Decisions before this one that the webhook could not write.
    pub lost_before: u64,
}
