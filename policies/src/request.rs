//! One question to the rules: the wire form, a linted file and the operator's guard all become this.

use serde_json::Value;
use tailnet_crds::Kind;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change of an existing object.
    Update,
    /// A removal.
    Delete,
}

/// Who asks whom; decides which rules run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The admission webhook: all rules.
    Webhook,
    /// The operator before it acts: object and cross rules.
    Guard,
    /// `kubectl tailnet lint`: object and cross rules; transition rules when an old object is given.
    Lint,
}

/// The user behind an admission request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requester {
    /// User name.
    pub username: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Answer of the SubjectAccessReview on `admissionbypasses.tsunaro.io`; None when it was not asked, or without an answer.
    pub may_bypass: Option<bool>,
}

/// One request. `new` is None for DELETE, `old` is None for CREATE.
#[derive(Clone, Debug)]
pub struct Request {
    /// Kind of the object.
    pub kind: Kind,
    /// Operation.
    pub operation: Operation,
    /// Object name; may be empty with generateName.
    pub name: String,
    /// Namespace of namespaced kinds.
    pub namespace: Option<String>,
    /// The stored object.
    pub old: Option<Value>,
    /// The object as it would be stored.
    pub new: Option<Value>,
    /// Who asks; None in guard and lint.
    pub requester: Option<Requester>,
    /// Whether nothing will be stored. Decides nothing; carried for the audit stream.
    pub dry_run: bool,
    /// Who runs the rules.
    pub layer: Layer,
}

impl Request {
    /// The question of the guard and of lint: may this object exist?
    pub fn for_object(kind: Kind, object: Value, layer: Layer) -> Self {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Self {
            kind,
            operation: Operation::Create,
            name: text("/metadata/name").unwrap_or_default(),
            namespace: text("/metadata/namespace"),
            old: None,
            new: Some(object),
            requester: None,
            dry_run: false,
            layer,
        }
    }

    /// What the operator asks before it acts on an object.
    pub fn guard(kind: Kind, object: Value) -> Self {
        Self::for_object(kind, object, Layer::Guard)
    }

    /// What lint asks about a manifest.
    pub fn lint(kind: Kind, object: Value) -> Self {
        Self::for_object(kind, object, Layer::Lint)
    }
}
