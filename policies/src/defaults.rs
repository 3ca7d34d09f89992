//! Defaults that the schema cannot say, on the raw JSON: a typed round trip would drop fields that this version does not
//! know.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;
use tailnet_crds::{Kind, TailnetSpec};

use crate::names;
use crate::snapshot::Snapshot;

/// What to add to an object: only fields that are absent, so that a second run adds nothing. `namespace` is the request's.
///
/// * TailnetEgress: `spec.tag`.
/// * TailnetIngress: `spec.tag`, `spec.hostname`.
///
/// Nothing is added to an object that is being deleted (its spec is frozen), that has no name yet (generateName: the
/// consumers then compute the same defaults), whose spec is no object, or whose Tailnet does not exist while the Tailnet
/// could have a cluster name.
pub fn defaults(kind: Kind, namespace: Option<&str>, object: &Value, snapshot: &Snapshot) -> Vec<PatchOperation> {
    if object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|at| !at.is_null())
    {
        return Vec::new();
    }
    additions(kind, namespace, object, snapshot)
}

/// [`defaults`], also for an object that is being deleted.
fn additions(kind: Kind, namespace: Option<&str>, object: &Value, snapshot: &Snapshot) -> Vec<PatchOperation> {
    let mut patch = Vec::new();
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let Some(name) = text("/metadata/name").filter(|name| !name.is_empty()) else {
        return patch;
    };
    let Some(spec) = object.get("spec").filter(|spec| spec.is_object()) else {
        return patch;
    };
    let tailnet = text("/spec/tailnetRef/name")
        .and_then(|name| snapshot.get(Kind::Tailnet, None, name))
        .cloned();
    let Some(tailnet) = tailnet.as_ref().and_then(|tailnet| tailnet.tailnet()) else {
        return patch;
    };
    let cluster = names::cluster_name(Some(tailnet as &TailnetSpec));
    let cluster = cluster.as_deref();
    let namespace = text("/metadata/namespace").or(namespace).unwrap_or_default();
    let mut add = |field: &str, value: String| {
        if spec.get(field).is_none() {
            patch.push(PatchOperation::Add(AddOperation {
                path: PointerBuf::from_tokens(["spec", field]),
                value: Value::from(value),
            }));
        }
    };
    match kind {
        Kind::TailnetEgress => add("tag", names::default_egress_tag(cluster, name)),
        Kind::TailnetIngress => {
            add("tag", names::default_ingress_tag(cluster, namespace, name));
            add("hostname", names::default_ingress_hostname(cluster, namespace, name));
        }
        Kind::Tailnet | Kind::TailnetSite | Kind::TailnetGateway => {}
    }
    patch
}

/// The object with its defaults.
pub fn applied(kind: Kind, namespace: Option<&str>, object: &Value, snapshot: &Snapshot) -> Value {
    with(defaults(kind, namespace, object, snapshot), object)
}

/// The object with its defaults, also when it is being deleted: what an update of it could have added.
pub(crate) fn applied_to_any(kind: Kind, namespace: Option<&str>, object: &Value, snapshot: &Snapshot) -> Value {
    with(additions(kind, namespace, object, snapshot), object)
}

/// The object with additions to its spec.
fn with(patch: Vec<PatchOperation>, object: &Value) -> Value {
    let mut object = object.clone();
    for operation in patch {
        if let PatchOperation::Add(add) = operation
            && let (Some(field), Some(spec)) = (add.path.last(), object.get_mut("spec").and_then(Value::as_object_mut))
        {
            spec.insert(field.decoded().into_owned(), add.value.clone());
        }
    }
    object
}
