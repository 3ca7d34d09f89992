//! What a rule found: one finding per fault, in the one message shape that all layers use.

use std::fmt;
use std::sync::Arc;

use tailnet_crds::Kind;

/// Most characters of an offending value that a message shows.
pub const MAX_VALUE_CHARS: usize = 100;

/// An object that a finding talks about besides its own: the holder of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// What it is.
    pub kind: RefKind,
    /// Namespace of namespaced kinds.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

/// Kinds that can hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefKind {
    /// One of our own kinds.
    Ours(Kind),
    /// A core Service.
    Service,
}

impl ObjectRef {
    /// A reference to an object of ours.
    pub fn ours(kind: Kind, namespace: Option<&str>, name: &str) -> Self {
        Self {
            kind: RefKind::Ours(kind),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        }
    }

    /// A reference to a Service.
    pub fn service(namespace: &str, name: &str) -> Self {
        Self {
            kind: RefKind::Service,
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for ObjectRef {
    /// `TailnetEgress tailnet-system/team-a`, `TailnetSite lab`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RefKind::Ours(kind) => write!(f, "{} ", kind.as_str())?,
            RefKind::Service => f.write_str("Service ")?,
        }
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Denies or warns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The request is refused.
    Deny,
    /// The request passes; the user is told.
    Warn,
}

/// The class words of the Kubernetes field errors; they open the message after the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// `Required value`
    Required,
    /// `Invalid value`
    Invalid,
    /// `Duplicate value`
    Duplicate,
    /// `Forbidden`
    Forbidden,
    /// `Unsupported value`
    NotSupported,
    /// `Not found`
    NotFound,
}

impl Class {
    /// The words in front of the value, as apimachinery writes them.
    pub fn words(self) -> &'static str {
        match self {
            Class::Required => "Required value",
            Class::Invalid => "Invalid value",
            Class::Duplicate => "Duplicate value",
            Class::Forbidden => "Forbidden",
            Class::NotSupported => "Unsupported value",
            Class::NotFound => "Not found",
        }
    }

    /// The `reason` of a `metav1.StatusCause`.
    pub fn cause_reason(self) -> &'static str {
        match self {
            Class::Required => "FieldValueRequired",
            Class::Invalid => "FieldValueInvalid",
            Class::Duplicate => "FieldValueDuplicate",
            Class::Forbidden => "FieldValueForbidden",
            Class::NotSupported => "FieldValueNotSupported",
            Class::NotFound => "FieldValueNotFound",
        }
    }
}

/// One fault of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Rule id, e.g. `TN203`.
    pub rule: &'static str,
    /// Whether it denies.
    pub severity: Severity,
    /// YAML path, e.g. `spec.targets[2].address`.
    pub field: String,
    /// Class of the fault.
    pub class: Class,
    /// The offending value as JSON text, cut at 100 characters; never a secret.
    pub value: Option<String>,
    /// What is wrong and what to do, lower case, no full stop.
    pub detail: String,
    /// The object that holds what was asked for. Such a denial rests on the snapshot: read the holder live once and, when
    /// it is gone or holds it no longer, ask again with [`crate::evaluate_ignoring`].
    pub holder: Option<ObjectRef>,
    /// Where an organisation's policy speaks: its id, `ORG/<policy>/<number of the validation>`. The rule is TN009 then.
    pub policy: Option<Arc<str>>,
}

impl Finding {
    /// The id to show: that of the organisation's policy where one speaks, else the rule's.
    pub fn id(&self) -> &str {
        self.policy.as_deref().unwrap_or(self.rule)
    }

    /// `Invalid value: "10.0.0.300": is not an IPv4 or IPv6 address or a DNS name [TN203]`: the message of a cause.
    pub fn message(&self) -> String {
        match &self.value {
            Some(v) => format!("{}: {}: {} [{}]", self.class.words(), v, self.detail, self.id()),
            None => format!("{}: {} [{}]", self.class.words(), self.detail, self.id()),
        }
    }
}

impl fmt::Display for Finding {
    /// `spec.targets[2].address: Invalid value: "10.0.0.300": is not … [TN203]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}

/// The verdict on one request: all findings, never the first only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// All findings, denials first, then by field, then by rule.
    pub findings: Vec<Finding>,
    /// What could not be checked and why, one sentence each (shown as warnings).
    pub notes: Vec<String>,
    /// Denials that do not count, because the requester may skip their rules and asked for that: never in `findings` too.
    /// Empty when nothing was skipped.
    pub bypassed: Vec<Finding>,
}

impl Outcome {
    /// Whether any finding denies.
    pub fn denied(&self) -> bool {
        self.findings.iter().any(|f| f.severity == Severity::Deny)
    }

    /// The denials.
    pub fn denials(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Deny)
    }

    /// The warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Warn)
    }

    /// The objects on which denials rest (see [`Finding::holder`]), each once.
    pub fn holders(&self) -> Vec<ObjectRef> {
        let mut holders: Vec<_> = self.denials().filter_map(|f| f.holder.clone()).collect();
        holders.sort();
        holders.dedup();
        holders
    }

    /// Ids of the rules and policies that found something, each once, in order.
    pub fn rules(&self) -> Vec<&str> {
        let mut rules: Vec<_> = self.findings.iter().map(Finding::id).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}
