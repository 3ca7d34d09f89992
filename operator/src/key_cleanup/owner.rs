//! The CR that a key was made for, as it is now: whether it exists, its Secret, its Pods.
//!
//! Nothing is done for want of an object in a watch's cache alone: the API server is asked first.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tailnet_crds::names;
use tailnet_crds::{Tailnet, TailnetEgress, TailnetGateway, TailnetIngress};

use super::CleanupError;
use crate::context::Context;
use crate::keys::{KeyState, secrets, secrets_of};
use crate::ledger::KeyOwner;
use crate::ownership::{OWNER_KIND, OWNER_NAME, OWNER_NAMESPACE, is_owned_by, managed_selector};

/// The key in a CR's Secret.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub id: String,
    pub prefix: String,
    pub tags: Vec<String>,
}

impl From<KeyState> for Current {
    fn from(state: KeyState) -> Self {
        Self {
            id: state.id,
            prefix: state.prefix,
            tags: state.tags,
        }
    }
}

/// Whether the CR exists (with this UID) as far as the watches know; when they do not, [`exists`] has the last word. Kinds
/// that this version does not make keys for are left alone.
pub(super) fn is_cached(context: &Context, owner: &KeyOwner) -> bool {
    fn has_uid<K: Resource>(object: Option<std::sync::Arc<K>>, uid: &str) -> bool {
        object.is_some_and(|object| object.meta().uid.as_deref() == Some(uid))
    }
    let (stores, name, namespace) = (&context.stores, owner.name.as_str(), owner.namespace.as_str());
    match owner.kind.as_str() {
        "Tailnet" => has_uid(stores.tailnets.get(&ObjectRef::new(name)), &owner.uid),
        "TailnetEgress" => has_uid(stores.egresses.get(&ObjectRef::new(name).within(namespace)), &owner.uid),
        "TailnetIngress" => has_uid(
            stores.ingresses.get(&ObjectRef::new(name).within(namespace)),
            &owner.uid,
        ),
        "TailnetGateway" => has_uid(stores.gateways.get(&ObjectRef::new(name)), &owner.uid),
        _ => true,
    }
}

/// Whether the CR exists, with this UID: asked of the API server.
pub(super) async fn exists(context: &Context, owner: &KeyOwner) -> Result<bool, CleanupError> {
    async fn found<K: Clone + DeserializeOwned + std::fmt::Debug>(api: Api<K>, owner: &KeyOwner) -> kube::Result<bool> {
        let found = api.get_metadata_opt(&owner.name).await?;
        Ok(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(owner.uid.as_str())))
    }
    let (client, namespace) = (context.client.clone(), owner.namespace.as_str());
    let found = match owner.kind.as_str() {
        "Tailnet" => found(Api::<Tailnet>::all(client), owner).await,
        "TailnetEgress" => found(Api::<TailnetEgress>::namespaced(client, namespace), owner).await,
        "TailnetIngress" => found(Api::<TailnetIngress>::namespaced(client, namespace), owner).await,
        "TailnetGateway" => found(Api::<TailnetGateway>::all(client), owner).await,
        _ => Ok(true),
    };
    found.map_err(|source| CleanupError::Owner {
        owner: owner.to_string(),
        source: Box::new(source),
    })
}

/// The key in the Secret of a CR, read live. A Secret that the watch does not know yet is looked for by its labels.
pub(super) async fn current_key(context: &Context, owner: &KeyOwner) -> Result<Option<Current>, CleanupError> {
    if owner.kind == "TailnetIngress" && owner.namespace != context.namespace() {
        // Secrets of other namespaces are neither watched nor listed: this one has a name.
        return named_key(context, owner, names::ingress::auth_key_secret(&owner.name)).await;
    }
    let own: Vec<String> = context
        .stores
        .secrets
        .state()
        .into_iter()
        .filter(|secret| is_owned_by(&secret.metadata, &owner.uid) && KeyState::of(&secret.metadata).is_some())
        .map(|secret| secret.name_any())
        .collect();
    if own.is_empty() {
        return listed_key(context, owner).await;
    }
    for name in own {
        if let Some(found) = named_key(context, owner, name).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The key in Secret `name` of the CR's namespace, if that is the CR's own.
async fn named_key(context: &Context, owner: &KeyOwner, name: String) -> Result<Option<Current>, CleanupError> {
    let api = if owner.kind == "Tailnet" {
        secrets(context)
    } else {
        secrets_of(context, owner)
    };
    let live = api
        .get_metadata_opt(&name)
        .await
        .map_err(|source| CleanupError::Secret {
            name,
            source: Box::new(source),
        })?;
    Ok(live
        .filter(|l| is_owned_by(&l.metadata, &owner.uid))
        .and_then(|l| KeyState::of(&l.metadata))
        .map(Current::from))
}

/// [`current_key`] by a list from the API server: right after a Secret was made, only that knows it.
async fn listed_key(context: &Context, owner: &KeyOwner) -> Result<Option<Current>, CleanupError> {
    let selector = format!(
        "{},{OWNER_KIND}={},{OWNER_NAME}={}",
        managed_selector(),
        owner.kind,
        owner.name
    );
    let listed = secrets(context)
        .list_metadata(&ListParams::default().labels(&selector))
        .await
        .map_err(|source| CleanupError::Secrets {
            owner: owner.to_string(),
            source: Box::new(source),
        })?;
    let own = listed.items.iter().filter(|l| is_owned_by(&l.metadata, &owner.uid));
    Ok(own.filter_map(|l| KeyState::of(&l.metadata)).next().map(Current::from))
}

/// Whether no Pod of the CR is left: the watch's cache, and when that has none the API server.
pub(super) async fn pods_gone(context: &Context, owner: &KeyOwner) -> Result<bool, CleanupError> {
    if context
        .stores
        .pods
        .state()
        .iter()
        .any(|pod| is_pod_of(pod.labels(), owner))
    {
        return Ok(false);
    }
    let selector = format!("{OWNER_KIND}={},{OWNER_NAME}={}", owner.kind, owner.name);
    let namespace = if owner.namespace.is_empty() {
        context.namespace()
    } else {
        &owner.namespace
    };
    let listed = Api::<Pod>::namespaced(context.client.clone(), namespace)
        .list_metadata(&ListParams::default().labels(&selector))
        .await
        .map_err(|source| CleanupError::Pods {
            owner: owner.to_string(),
            source: Box::new(source),
        })?;
    Ok(!listed.items.iter().any(|pod| is_pod_of(pod.labels(), owner)))
}

fn is_pod_of(labels: &BTreeMap<String, String>, owner: &KeyOwner) -> bool {
    let has = |key: &str, value: &str| labels.get(key).map(String::as_str).unwrap_or_default() == value;
    has(OWNER_KIND, &owner.kind) && has(OWNER_NAMESPACE, &owner.namespace) && has(OWNER_NAME, &owner.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::KeyStage;
    use crate::ledger::testing::entry;

    #[test]
    fn pods_are_known_by_all_three_labels() {
        let owner = entry(KeyStage::Expired).owner;
        let labels = |namespace: &str, name: &str| {
            BTreeMap::from([
                (OWNER_KIND.to_owned(), "TailnetEgress".to_owned()),
                (OWNER_NAMESPACE.to_owned(), namespace.to_owned()),
                (OWNER_NAME.to_owned(), name.to_owned()),
            ])
        };
        assert!(is_pod_of(&labels("tailnet-system", "a"), &owner));
        assert!(!is_pod_of(&labels("elsewhere", "a"), &owner));
        assert!(!is_pod_of(&labels("tailnet-system", "b"), &owner));
        assert!(!is_pod_of(&BTreeMap::new(), &owner));
    }
}
