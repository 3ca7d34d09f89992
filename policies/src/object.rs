//! An object as the rules read it: metadata that decides, and the typed spec or why it has none.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tailnet_crds::names::annotation::{TAKES_OVER, VALIDATION, VALIDATION_DISABLED};
use tailnet_crds::{Kind, TailnetEgressSpec, TailnetGatewaySpec, TailnetIngressSpec, TailnetSiteSpec, TailnetSpec};

use crate::finding::ObjectRef;

/// The typed spec of one of the five kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// Of a Tailnet.
    Tailnet(Box<TailnetSpec>),
    /// Of a TailnetEgress.
    Egress(Box<TailnetEgressSpec>),
    /// Of a TailnetIngress.
    Ingress(Box<TailnetIngressSpec>),
    /// Of a TailnetSite.
    Site(Box<TailnetSiteSpec>),
    /// Of a TailnetGateway.
    Gateway(Box<TailnetGatewaySpec>),
}

/// Why an object has no typed spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ShapeError {
    /// YAML path of what does not fit.
    pub field: String,
    /// The parser's words, without a value that could be secret.
    pub problem: String,
}

/// One object of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Kind.
    pub kind: Kind,
    /// Namespace of namespaced kinds.
    pub namespace: Option<String>,
    /// Name; empty while only generateName is set.
    pub name: String,
    /// UID; absent until the object is stored.
    pub uid: Option<String>,
    /// creationTimestamp, RFC 3339 UTC; absent until the object is stored.
    pub created: Option<String>,
    /// Whether it has a deletionTimestamp. Such an object holds nothing any more.
    pub deleting: bool,
    /// Whether it is a gateway that was active once (`status.activatedAt`). Decides about warnings and mistakes only, since
    /// a status may be anybody's.
    pub activated: bool,
    /// Value of the annotation [`TAKES_OVER`]: `<Kind>/<namespace>/<name>`, without the namespace for cluster-scoped kinds.
    pub takes_over: Option<String>,
    /// Whether the annotation [`VALIDATION`] asks to skip rules.
    pub asks_for_bypass: bool,
    /// Its annotations, but for kubectl's copy of the whole object: the organisation's policies may read them.
    pub annotations: Arc<BTreeMap<String, String>>,
    /// Its labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// The spec.
    pub spec: Result<Spec, ShapeError>,
}

/// Order of objects, see [`Object::precedence`].
pub(crate) type Precedence<'o> = (bool, Option<&'o str>, Option<&'o str>, &'o str, Kind);

impl Object {
    /// Reads an object. Never fails: what does not fit is in [`Object::spec`].
    pub fn parse(kind: Kind, value: &Value) -> Self {
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let annotation = |key: &str| value.pointer("/metadata/annotations")?.get(key)?.as_str();
        Self {
            kind,
            namespace: text("/metadata/namespace").filter(|namespace| !namespace.is_empty()),
            name: text("/metadata/name").unwrap_or_default(),
            uid: text("/metadata/uid"),
            created: text("/metadata/creationTimestamp"),
            deleting: value
                .pointer("/metadata/deletionTimestamp")
                .is_some_and(|at| !at.is_null()),
            activated: value.pointer("/status/activatedAt").is_some_and(|at| !at.is_null()),
            takes_over: annotation(TAKES_OVER).map(str::to_owned),
            asks_for_bypass: annotation(VALIDATION) == Some(VALIDATION_DISABLED),
            annotations: Arc::new(texts(value, "/metadata/annotations")),
            labels: Arc::new(texts(value, "/metadata/labels")),
            spec: parse_spec(kind, value),
        }
    }

    /// A reference to this object.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef::ours(self.kind, self.namespace.as_deref(), &self.name)
    }

    /// Whether both are the same object, possibly at different times.
    pub fn same_as(&self, other: &Self) -> bool {
        self.kind == other.kind && self.namespace == other.namespace && self.name == other.name
    }

    /// Who comes first where no claim is recorded: the older object, then namespace, name, kind. An object that is not
    /// stored yet is youngest.
    pub(crate) fn precedence(&self) -> Precedence<'_> {
        (
            self.created.is_none(),
            self.created.as_deref(),
            self.namespace.as_deref(),
            &self.name,
            self.kind,
        )
    }

    /// What the annotation [`TAKES_OVER`] must say to name this object.
    pub fn takes_over_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}/{namespace}/{}", self.kind.as_str(), self.name),
            None => format!("{}/{}", self.kind.as_str(), self.name),
        }
    }

    /// Name of the Tailnet that it belongs to; a Tailnet belongs to itself.
    pub fn tailnet_name(&self) -> Option<&str> {
        match self.spec.as_ref().ok()? {
            Spec::Tailnet(_) => Some(&self.name),
            Spec::Egress(spec) => Some(&spec.tailnet_ref.name),
            Spec::Ingress(spec) => Some(&spec.tailnet_ref.name),
            Spec::Site(spec) => Some(&spec.tailnet_ref.name),
            Spec::Gateway(spec) => Some(&spec.tailnet_ref.name),
        }
    }

    /// The spec of a Tailnet.
    pub fn tailnet(&self) -> Option<&TailnetSpec> {
        match &self.spec {
            Ok(Spec::Tailnet(spec)) => Some(spec),
            _ => None,
        }
    }

    /// The spec of a TailnetEgress.
    pub fn egress(&self) -> Option<&TailnetEgressSpec> {
        match &self.spec {
            Ok(Spec::Egress(spec)) => Some(spec),
            _ => None,
        }
    }

    /// The spec of a TailnetIngress.
    pub fn ingress(&self) -> Option<&TailnetIngressSpec> {
        match &self.spec {
            Ok(Spec::Ingress(spec)) => Some(spec),
            _ => None,
        }
    }

    /// The spec of a TailnetSite.
    pub fn site(&self) -> Option<&TailnetSiteSpec> {
        match &self.spec {
            Ok(Spec::Site(spec)) => Some(spec),
            _ => None,
        }
    }

    /// The spec of a TailnetGateway.
    pub fn gateway(&self) -> Option<&TailnetGatewaySpec> {
        match &self.spec {
            Ok(Spec::Gateway(spec)) => Some(spec),
            _ => None,
        }
    }
}

impl fmt::Display for Object {
    /// As [`ObjectRef`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reference().fmt(f)
    }
}

/// kubectl's copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn texts(value: &Value, pointer: &str) -> BTreeMap<String, String> {
    let texts = value.pointer(pointer).and_then(Value::as_object);
    texts
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != LAST_APPLIED)
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn parse_spec(kind: Kind, value: &Value) -> Result<Spec, ShapeError> {
    let Some(spec) = value.get("spec") else {
        return Err(ShapeError {
            field: "spec".into(),
            problem: "is required".into(),
        });
    };
    Ok(match kind {
        Kind::Tailnet => Spec::Tailnet(typed(spec)?),
        Kind::TailnetEgress => Spec::Egress(typed(spec)?),
        Kind::TailnetIngress => Spec::Ingress(typed(spec)?),
        Kind::TailnetSite => Spec::Site(typed(spec)?),
        Kind::TailnetGateway => Spec::Gateway(typed(spec)?),
    })
}

fn typed<T: DeserializeOwned>(spec: &Value) -> Result<Box<T>, ShapeError> {
    serde_path_to_error::deserialize(spec).map(Box::new).map_err(|error| {
        let path = error.path().to_string();
        ShapeError {
            // serde_path_to_error writes `.` for the root.
            field: if path == "." {
                "spec".into()
            } else {
                format!("spec.{path}")
            },
            problem: without_value(&error.into_inner().to_string()).to_lowercase(),
        }
    })
}

/// The parser's words without the text that it found: where an object is expected, somebody may have written a secret.
fn without_value(problem: &str) -> String {
    match (problem.find("string \""), problem.rfind("\", expected")) {
        // A number in quotes is no secret, and seen it is understood.
        (Some(_), Some(to)) if problem[to..].starts_with("\", expected i32") => problem.to_owned(),
        (Some(from), Some(to)) if from + "string".len() < to => {
            format!("{}{}", &problem[..from + "string".len()], &problem[to + 1..])
        }
        _ => problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_does_not_fit_is_named_by_its_path() {
        let at = |spec: Value| {
            Object::parse(Kind::TailnetSite, &json!({ "spec": spec }))
                .spec
                .unwrap_err()
                .field
        };
        assert_eq!(
            at(json!({ "tailnetRef": { "name": "t" }, "prefixes": ["10.0.0.0/8", 7] })),
            "spec.prefixes[1]"
        );
        assert_eq!(at(json!({ "tailnetRef": { "name": "t" } })), "spec");
        assert_eq!(at(json!([])), "spec");
        assert_eq!(
            Object::parse(Kind::TailnetSite, &json!(null)).spec.unwrap_err().field,
            "spec"
        );
    }

    #[test]
    fn a_text_where_an_object_belongs_is_not_shown() {
        let key = "hskey-api-abc\", expected \"secret";
        let spec = json!({ "server": "https://c.example", "apiSecretRef": key });
        let error = Object::parse(Kind::Tailnet, &json!({ "spec": spec })).spec.unwrap_err();
        assert_eq!(error.field, "spec.apiSecretRef");
        assert!(error.problem.starts_with("invalid type: string, expected"), "{error}");
        assert!(!error.problem.contains("hskey"), "{error}");
    }

    #[test]
    fn metadata_that_decides_is_read() {
        let object = Object::parse(
            Kind::TailnetSite,
            &json!({
                "metadata": { "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": { TAKES_OVER: "TailnetSite/b" } },
                "spec": { "tailnetRef": { "name": "corp" }, "prefixes": ["10.0.0.0/8"] },
            }),
        );
        assert!(object.deleting);
        assert_eq!(object.takes_over.as_deref(), Some("TailnetSite/b"));
        assert_eq!(object.tailnet_name(), Some("corp"));
        assert_eq!(object.to_string(), "TailnetSite a");
        assert_eq!(object.takes_over_name(), "TailnetSite/a");
    }
}
