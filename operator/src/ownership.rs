//! Whose child an object is: labels for finding it again, the controller reference's UID for the right to touch it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
pub use tailnet_crds::names::label::{MANAGED_BY, MANAGED_BY_VALUE, OWNER_KIND, OWNER_NAME, OWNER_NAMESPACE, TAILNET};
use tailnet_crds::{Kind, Tailnet, TailnetEgress, TailnetIngress};

/// Label selector of all our children.
pub fn managed_selector() -> String {
    format!("{MANAGED_BY}={MANAGED_BY_VALUE}")
}

/// The labels that select the Pods of one owner; the immutable part of a Deployment's labels.
pub fn selector_labels(kind: Kind, namespace: &str, name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (MANAGED_BY.to_owned(), MANAGED_BY_VALUE.to_owned()),
        (OWNER_KIND.to_owned(), kind.as_str().to_owned()),
        (OWNER_NAMESPACE.to_owned(), namespace.to_owned()),
        (OWNER_NAME.to_owned(), name.to_owned()),
    ])
}

/// The labels of a child of an egress.
pub fn egress_labels(egress: &TailnetEgress) -> BTreeMap<String, String> {
    let namespace = egress.namespace().unwrap_or_default();
    let mut labels = selector_labels(Kind::TailnetEgress, &namespace, &egress.name_any());
    labels.insert(TAILNET.to_owned(), egress.spec.tailnet_ref.name.clone());
    labels
}

/// The labels of a child of an ingress.
pub fn ingress_labels(ingress: &TailnetIngress) -> BTreeMap<String, String> {
    let namespace = ingress.namespace().unwrap_or_default();
    let mut labels = selector_labels(Kind::TailnetIngress, &namespace, &ingress.name_any());
    labels.insert(TAILNET.to_owned(), ingress.spec.tailnet_ref.name.clone());
    labels
}

/// The labels of a child of a Tailnet.
pub fn tailnet_labels(tailnet: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (MANAGED_BY.to_owned(), MANAGED_BY_VALUE.to_owned()),
        (OWNER_KIND.to_owned(), Kind::Tailnet.as_str().to_owned()),
        (OWNER_NAME.to_owned(), tailnet.to_owned()),
        (TAILNET.to_owned(), tailnet.to_owned()),
    ])
}

/// The egress that `object`'s labels name. Whether it really is its child: [`is_owned_by`].
pub fn labelled_egress(object: &impl Resource) -> Option<ObjectRef<TailnetEgress>> {
    let (name, namespace) = labelled(object, Kind::TailnetEgress)?;
    Some(ObjectRef::new(name).within(namespace))
}

/// The ingress that `object`'s labels name, as in [`labelled_egress`].
pub fn labelled_ingress(object: &impl Resource) -> Option<ObjectRef<TailnetIngress>> {
    let (name, namespace) = labelled(object, Kind::TailnetIngress)?;
    Some(ObjectRef::new(name).within(namespace))
}

fn labelled(object: &impl Resource, kind: Kind) -> Option<(&str, &str)> {
    let labels = object.meta().labels.as_ref()?;
    if labels.get(OWNER_KIND).map(String::as_str) != Some(kind.as_str()) {
        return None;
    }
    Some((labels.get(OWNER_NAME)?, labels.get(OWNER_NAMESPACE)?))
}

/// Whether the controller reference of `meta` has this UID.
pub fn is_owned_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller(meta).is_some_and(|owner| owner.uid == uid)
}

/// The controller reference.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

/// Whether `meta` is a child of an earlier object of the same kind and name as `owner`: the garbage collector is about to
/// remove it.
pub fn is_left_by_namesake<K: Resource<DynamicType = ()>>(meta: &ObjectMeta, owner: &K) -> bool {
    controller(meta).is_some_and(|found| {
        found.kind == K::kind(&())
            && found.api_version == K::api_version(&())
            && found.name == owner.name_any()
            && Some(&found.uid) != owner.meta().uid.as_ref()
    })
}

/// The controller reference to `tailnet`; None without a UID (an object that is not stored).
pub fn owned_by_tailnet(tailnet: &Tailnet) -> Option<OwnerReference> {
    tailnet.controller_owner_ref(&())
}
