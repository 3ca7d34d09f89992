//! Writing and removing child objects: create first, change only what is ours, remove only what is ours.
//!
//! A child is ours when its controller reference has the UID of the CR. Creation is a real CREATE, so an object that
//! somebody else made is never adopted; changes are server-side applies bound to the UID that was looked at.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::drift::{self, Difference};
use crate::ownership::{controller, is_left_by_namesake, is_owned_by};
use crate::settings::FIELD_MANAGER;
use crate::writes::{delete_params, is_gone_or_replaced, patch_params, post_params};

/// Annotation with the sha256 of what was wanted: tells that something is not wanted any more, which a comparison of
/// values cannot see.
pub const DESIRED_SHA256: &str = "tsunaro.io/desired-sha256";

/// How many objects of an unwatched kind count as alive: what the API server changes in them is remembered for so many.
const UNWATCHED: usize = 10_000;

/// What a kind must be to be a child.
pub trait Child:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Child for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// What [`apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It did not exist.
    Created,
    /// It existed and differed.
    Changed,
    /// Nothing was written.
    Unchanged,
}

/// Why a child is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// Somebody else's object has the name.
    #[error(
        "{kind} {name} exists and is not ours (it belongs to {owner}); it is left alone: rename the target, or remove that {kind}"
    )]
    Foreign {
        /// Kind of the child.
        kind: String,
        /// Its name.
        name: String,
        /// Its controller, or "nobody".
        owner: String,
    },
    /// An earlier child of the name is still being removed.
    #[error("{kind} {name} of an earlier object is still being removed")]
    StillThere {
        /// Kind of the child.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The API server refused or did not answer.
    #[error("cannot {verb} {kind} {name}: {source}")]
    Api {
        /// `create`, `read`, `change`, `annotate` or `delete`.
        verb: &'static str,
        /// Kind of the child.
        kind: String,
        /// Its name.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The object cannot be written as JSON.
    #[error("cannot write {kind} {name} as JSON: {source}")]
    Json {
        /// Kind of the child.
        kind: String,
        /// Its name.
        name: String,
        /// The serializer's error.
        source: serde_json::Error,
    },
}

/// Makes `desired` exist in its namespace as a child of `owner`. Writes nothing when the stored object already is so.
///
/// # Errors
/// [`ChildError::Foreign`] when the name is taken; the others are worth a retry.
pub async fn apply<K: Child, O: Resource<DynamicType = ()>>(
    context: &Context,
    store: &Store<K>,
    owner: &O,
    desired: K,
) -> Result<Applied, ChildError> {
    let namespace = desired.namespace().unwrap_or_default();
    let stored = store.get(&ObjectRef::new(&desired.name_any()).within(&namespace));
    let stored = stored.map(|stored| stored.as_ref().clone());
    apply_over(context, Some(store), stored, owner, desired).await
}

/// [`apply`] where the caller has looked: for kinds that are not watched.
///
/// # Errors
/// As [`apply`].
pub async fn apply_to<K: Child, O: Resource<DynamicType = ()>>(
    context: &Context,
    stored: Option<K>,
    owner: &O,
    desired: K,
) -> Result<Applied, ChildError> {
    apply_over(context, None, stored, owner, desired).await
}

/// `store`: what tells which objects of the kind there are, where it is watched.
async fn apply_over<K: Child, O: Resource<DynamicType = ()>>(
    context: &Context,
    store: Option<&Store<K>>,
    stored: Option<K>,
    owner: &O,
    mut desired: K,
) -> Result<Applied, ChildError> {
    let kind = K::kind(&()).into_owned();
    let name = desired.name_any();
    let namespace = desired.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    let failed = |verb: &'static str| {
        let (kind, name) = (kind.clone(), name.clone());
        move |source: kube::Error| ChildError::Api {
            verb,
            kind,
            name,
            source: Box::new(source),
        }
    };
    let json = |value: &K| {
        serde_json::to_value(value).map_err(|source| ChildError::Json {
            kind: kind.clone(),
            name: name.clone(),
            source,
        })
    };
    let sha = sha256_hex(&json(&desired)?.to_string());
    desired.annotations_mut().insert(DESIRED_SHA256.to_owned(), sha);

    let stored: K = match stored {
        Some(stored) => stored,
        None => {
            let params = post_params();
            match api.create(&params, &desired).await {
                Ok(_) => {
                    context.metrics.wrote(&kind);
                    tracing::info!(%kind, %namespace, %name, "created");
                    return Ok(Applied::Created);
                }
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                    match api.get_opt(&name).await.map_err(failed("read"))? {
                        Some(found) => found,
                        None => return Err(ChildError::StillThere { kind, name }),
                    }
                }
                Err(error) => return Err(failed("create")(error)),
            }
        }
    };
    check_ownership(&stored, owner)?;
    let wanted = json(&desired)?;
    let differences = |found: &K| -> Result<Vec<Difference>, ChildError> {
        let all = drift::between(&kind, &json(found)?, &wanted);
        Ok(context.put_back.worth_a_write(&kind, found.meta().uid.as_deref(), all))
    };
    if differences(&stored)?.is_empty() {
        return Ok(Applied::Unchanged);
    }
    // The store has no managed fields and may be behind; the decision to write rests on the stored object itself.
    let Some(live) = api.get_opt(&name).await.map_err(failed("read"))? else {
        return Err(ChildError::StillThere { kind, name });
    };
    check_ownership(&live, owner)?;
    if differences(&live)?.is_empty() {
        return Ok(Applied::Unchanged);
    }
    if let Some(patch) = release_created_fields(live.meta().managed_fields.as_deref(), live.resource_version()) {
        let patch = json_patch(patch, &kind, &name)?;
        api.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch))
            .await
            .map_err(failed("change"))?;
    }
    // With the UID in the body, an object that took the place of the one we looked at is a conflict, not a victim.
    desired.meta_mut().uid = live.uid();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let mut changed = api
        .patch(&name, &params, &Patch::Apply(&desired))
        .await
        .map_err(failed("change"))?;
    // An apply does not take away what somebody else added.
    let left = drift::between(&kind, &json(&changed)?, &wanted);
    if !left.is_empty() {
        let patch = json_patch(drift::patch(&left, changed.meta().uid.as_deref()), &kind, &name)?;
        let params = patch_params();
        changed = api
            .patch(&name, &params, &Patch::<()>::Json(patch))
            .await
            .map_err(failed("change"))?;
    }
    let put_back = drift::between(&kind, &json(&changed)?, &wanted);
    for difference in &put_back {
        tracing::warn!(
            %kind, %namespace, %name, field = difference.path,
            "the API server changes this field again (an admission webhook?); it is left so"
        );
    }
    let children = || store.map(Store::state).unwrap_or_default();
    let uids = || children().iter().filter_map(|child| child.uid()).collect();
    let uid = changed.meta().uid.as_deref();
    context
        .put_back
        .remember(&kind, uid, put_back, store.map_or(UNWATCHED, Store::len), uids);
    context.metrics.wrote(&kind);
    tracing::info!(%kind, %namespace, %name, "changed");
    Ok(Applied::Changed)
}

/// Removes a child of `owner`; anything else is left alone. A child that is gone or was replaced is no error.
///
/// # Errors
/// The API server's.
pub async fn delete<K: Child, O: Resource<DynamicType = ()>>(
    context: &Context,
    owner: &O,
    child: &K,
) -> Result<bool, ChildError> {
    let Some(owner_uid) = owner.meta().uid.as_deref() else {
        return Ok(false);
    };
    // A reference to an owner in another namespace is none: what carries one is somebody's invention.
    if owner.meta().namespace.is_some() && owner.meta().namespace != child.meta().namespace {
        return Ok(false);
    }
    if child.uid().is_none() || !is_owned_by(child.meta(), owner_uid) || child.meta().deletion_timestamp.is_some() {
        return Ok(false);
    }
    let kind = K::kind(&()).into_owned();
    let name = child.name_any();
    let namespace = child.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    match api.delete(&name, &delete_params(child, false)).await {
        Ok(_) => {
            context.metrics.wrote(&kind);
            tracing::info!(%kind, %namespace, %name, "deleted: not wanted any more");
            Ok(true)
        }
        Err(error) if is_gone_or_replaced(&error) => Ok(false),
        Err(source) => Err(ChildError::Api {
            verb: "delete",
            kind,
            name,
            source: Box::new(source),
        }),
    }
}

/// Gives a running Pod (not its template) an annotation, so that kubelet refreshes its volumes at once and not at its next
/// round. A Pod that has it already, is on its way out or is gone is left alone.
///
/// # Errors
/// The API server's.
pub async fn annotate_pod(context: &Context, pod: &Pod, key: &str, value: &str) -> Result<(), ChildError> {
    let current = pod.annotations().get(key);
    if pod.metadata.deletion_timestamp.is_some() || current.is_some_and(|current| current == value) {
        return Ok(());
    }
    let name = pod.name_any();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    // The UID makes the patch a conflict for a Pod that took the name.
    let patch = json!({
        "metadata": { "uid": pod.uid(), "annotations": BTreeMap::from([(key, value)]) },
    });
    let params = patch_params();
    match api.patch(&name, &params, &Patch::Merge(patch)).await {
        Ok(_) => {
            context.metrics.wrote("Pod");
            Ok(())
        }
        Err(error) if is_gone_or_replaced(&error) => Ok(()),
        Err(source) => Err(ChildError::Api {
            verb: "annotate",
            kind: "Pod".to_owned(),
            name,
            source: Box::new(source),
        }),
    }
}

fn check_ownership<K: Child, O: Resource<DynamicType = ()>>(found: &K, owner: &O) -> Result<(), ChildError> {
    let (kind, name) = (K::kind(&()).into_owned(), found.name_any());
    let ours = owner
        .meta()
        .uid
        .as_deref()
        .is_some_and(|uid| is_owned_by(found.meta(), uid));
    if ours && found.meta().deletion_timestamp.is_none() {
        return Ok(());
    }
    if ours || is_left_by_namesake(found.meta(), owner) {
        return Err(ChildError::StillThere { kind, name });
    }
    let holder = controller(found.meta()).map_or_else(|| "nobody".to_owned(), |by| format!("{} {}", by.kind, by.name));
    Err(ChildError::Foreign {
        kind,
        name,
        owner: holder,
    })
}

fn json_patch(patch: Value, kind: &str, name: &str) -> Result<json_patch::Patch, ChildError> {
    serde_json::from_value(patch).map_err(|source| ChildError::Json {
        kind: kind.to_owned(),
        name: name.to_owned(),
        source,
    })
}

/// A JSON patch that hands the fields of our CREATE over to our applies, as client-go's csaupgrade does; None when there
/// is nothing to hand over. Without it a later apply could not remove a field, since the CREATE would still own it.
fn release_created_fields(managed: Option<&[ManagedFieldsEntry]>, resource_version: Option<String>) -> Option<Value> {
    let managed = managed?;
    let created = |entry: &ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER)
            && entry.operation.as_deref() == Some("Update")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    if !managed.iter().any(created) {
        return None;
    }
    let applied = managed
        .iter()
        .any(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER) && entry.operation.as_deref() == Some("Apply"));
    let kept: Vec<ManagedFieldsEntry> = managed
        .iter()
        .filter(|entry| !(applied && created(entry)))
        .cloned()
        .map(|mut entry| {
            if created(&entry) {
                entry.operation = Some("Apply".to_owned());
            }
            entry
        })
        .collect();
    Some(json!([
        { "op": "replace", "path": "/metadata/managedFields", "value": kept },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": resource_version },
    ]))
}

/// sha256 of a text as lower-case hex.
pub fn sha256_hex(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_fields_are_handed_to_apply_once() {
        let entry = |manager: &str, operation: &str, subresource: Option<&str>| ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            operation: Some(operation.to_owned()),
            subresource: subresource.map(str::to_owned),
            ..ManagedFieldsEntry::default()
        };
        let managed = [
            entry(FIELD_MANAGER, "Update", None),
            entry("kube-controller-manager", "Update", Some("status")),
        ];
        let patch = release_created_fields(Some(&managed), Some("7".to_owned())).unwrap();
        assert_eq!(patch[0]["value"][0]["operation"], "Apply");
        assert_eq!(patch[0]["value"][1]["operation"], "Update");
        assert_eq!(patch[1]["value"], "7");
        assert_eq!(release_created_fields(Some(&managed[1..]), None), None);
        let both = [
            entry(FIELD_MANAGER, "Update", None),
            entry(FIELD_MANAGER, "Apply", None),
        ];
        let patch = release_created_fields(Some(&both), None).unwrap();
        assert_eq!(patch[0]["value"].as_array().unwrap().len(), 1);
    }
}
