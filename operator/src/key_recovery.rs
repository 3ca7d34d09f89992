//! What the ledger does not know although it should: somebody deleted its Secret, or put an old one back.
//!
//! Three sources, in this order: the memory of the process that wrote it last, with which nothing is lost; the Secrets that
//! hold our keys, whose annotations say all that an entry needs; and Headscale, where keys that are in no Secret any more
//! (replaced ones, those of CRs that went) are known by their mark ([`crate::key_mark`]). A mark may be somebody else's by
//! chance, so Headscale is searched only after a loss: when there was no ledger at the start, or one without a key that is
//! in a Secret. What was found is an entry like any other, and the clean-up deals with it.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tailnet_crds::names::tailnet::{KEY_LEDGER, api_key_secret};
use tailnet_crds::{API_VERSION, Kind, Tailnet};
use tailnet_headscale::{ApiKeyInfo, Client};
use tailnet_policies::Object;
use tailnet_policies::names::tag_of;

use crate::context::Context;
use crate::key_cleanup::CleanupError;
use crate::key_mark::{is_own_api, is_own_preauth};
use crate::keys::{KEY_EXPIRES_AT, KEY_PREFIX, KEY_SERVER, KeyState};
use crate::ledger::{Document, Existing, KeyKind, KeyOwner, LedgerError};
use crate::ownership::{MANAGED_BY, MANAGED_BY_VALUE, OWNER_NAMESPACE, TAILNET, controller};
use crate::server_identity;
use crate::working_key::{self, KEY_CREATED_AT};

/// How long a Tailnet's status tells of it.
const TOLD_FOR: SignedDuration = SignedDuration::from_hours(1);
/// Name of the owner of a key whose CR is not known any more: it counts as gone.
const UNKNOWN: &str = "unknown";

/// What was found, for the status: by Tailnet.
#[derive(Default)]
pub struct Recovered(Mutex<HashMap<String, Account>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    at: Timestamp,
    in_secrets: usize,
    in_headscale: usize,
}

impl Recovered {
    fn add(&self, tailnet: &str, in_secrets: usize, in_headscale: usize, now: Timestamp) {
        let mut accounts = self.0.lock();
        let account = accounts.entry(tailnet.to_owned()).or_insert(Account {
            at: now,
            in_secrets: 0,
            in_headscale: 0,
        });
        account.at = now;
        account.in_secrets += in_secrets;
        account.in_headscale += in_headscale;
    }

    /// A sentence about what was found of `tailnet` a short while ago.
    pub fn told(&self, tailnet: &str, now: Timestamp) -> Option<String> {
        let accounts = self.0.lock();
        let account = accounts
            .get(tailnet)
            .filter(|account| now.duration_since(account.at) < TOLD_FOR)?;
        Some(format!(
            "the key ledger (Secret {KEY_LEDGER}) did not know {} of this Tailnet at {}: it was deleted or an old one was put back; entered again: {} found in Secrets, {} found in Headscale by their end of validity",
            keys(account.in_secrets.saturating_add(account.in_headscale)),
            account.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            account.in_secrets,
            account.in_headscale,
        ))
    }
}

fn keys(count: usize) -> String {
    if count == 1 {
        "1 key".to_owned()
    } else {
        format!("{count} keys")
    }
}

/// Whether the Secret of the ledger is there, as far as the watch knows.
pub fn ledger_is_there(context: &Context) -> bool {
    let reference = ObjectRef::new(KEY_LEDGER).within(context.namespace());
    context.stores.secrets.get(&reference).is_some()
}

/// Writes a deleted ledger again, as far as this process knows it, and enters the keys of all own Secrets that it does not
/// have.
///
/// # Errors
/// See [`LedgerError`].
pub async fn from_secrets(context: &Context) -> Result<(), LedgerError> {
    if let Some(count) = context.ledger.restore().await? {
        tracing::warn!(
            keys = count,
            "Secret {KEY_LEDGER} was deleted; it is written again from memory, and nothing is lost"
        );
    }
    let found: Vec<Existing> = context
        .stores
        .secrets
        .state()
        .iter()
        .filter_map(|secret| in_secret(&secret.metadata, context))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let adopted = context
        .ledger
        .update(|ledger| {
            let new = adopt(ledger, &found);
            if !new.is_empty() {
                // What else it does not know is in no Secret.
                ledger.lost(Timestamp::now());
            }
            new
        })
        .await?;
    for key in adopted {
        tracing::warn!(owner = %key.owner, tailnet = key.tailnet, prefix = key.prefix, expires_at = %key.expires_at, "a key that is in a Secret was not in the key ledger (Secret {KEY_LEDGER} was deleted, or an old one was put back); it is entered again");
        context.recovered.add(&key.tailnet, 1, 0, Timestamp::now());
    }
    Ok(())
}

/// The key that a Secret of ours holds.
fn in_secret(meta: &ObjectMeta, context: &Context) -> Option<Existing> {
    let uid_of = |tailnet: &str| {
        let stored = context.stores.tailnets.get(&ObjectRef::<Tailnet>::new(tailnet));
        stored.and_then(|stored| stored.uid()).unwrap_or_default()
    };
    described(meta, context.namespace(), uid_of, Timestamp::now())
}

/// What labels, annotations and owner of a Secret say of the key in it; None when it is none of ours. `uid_of` gives the UID
/// of a Tailnet, empty when there is none.
fn described(
    meta: &ObjectMeta,
    operator_namespace: &str,
    uid_of: impl Fn(&str) -> String,
    now: Timestamp,
) -> Option<Existing> {
    let label = |name: &str| meta.labels.as_ref()?.get(name).cloned();
    let annotation = |name: &str| meta.annotations.as_ref()?.get(name).cloned();
    if label(MANAGED_BY).as_deref() != Some(MANAGED_BY_VALUE) {
        return None;
    }
    let tailnet = label(TAILNET)?;
    if meta.name.as_deref() == Some(api_key_secret(&tailnet).as_str()) {
        return Some(Existing {
            kind: KeyKind::Api,
            id: None,
            prefix: annotation(KEY_PREFIX)?,
            owner: tailnet_owner(&tailnet, uid_of(&tailnet)),
            server: server_identity::canonical(&annotation(KEY_SERVER)?),
            tags: Vec::new(),
            created_at: annotation(KEY_CREATED_AT)?.parse().ok()?,
            expires_at: annotation(KEY_EXPIRES_AT)?.parse().ok()?,
            tailnet,
        });
    }
    let state = KeyState::of(meta)?;
    let owner = controller(meta)?;
    Some(Existing {
        kind: KeyKind::PreAuth,
        id: Some(state.id),
        prefix: state.prefix,
        owner: KeyOwner {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            namespace: label(OWNER_NAMESPACE).unwrap_or_else(|| operator_namespace.to_owned()),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        },
        tailnet,
        server: server_identity::canonical(&state.server),
        tags: state.tags,
        created_at: meta.creation_timestamp.as_ref().map_or(now, |at| at.0),
        expires_at: state.expires_at,
    })
}

fn tailnet_owner(name: &str, uid: String) -> KeyOwner {
    KeyOwner {
        api_version: API_VERSION.to_owned(),
        kind: Kind::Tailnet.as_str().to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
        uid,
    }
}

/// Enters all of `found` that the ledger does not have; gives them.
fn adopt(ledger: &mut Document, found: &[Existing]) -> Vec<Existing> {
    let new = found.iter().filter(|key| ledger.adopt((*key).clone()));
    new.cloned().collect()
}

/// After a loss of the ledger: enters the keys of `tailnet` on `server` that carry our mark and that it does not have; how
/// many those are.
///
/// # Errors
/// See [`CleanupError`].
pub async fn from_headscale(
    context: &Context,
    tailnet: &str,
    server: &str,
    client: &Client,
) -> Result<usize, CleanupError> {
    let began = Timestamp::now();
    if !context.ledger.read().await?.search_due(tailnet, began) {
        return Ok(0);
    }
    let installation = context.installation();
    // A key that is just being made is an intention of the ledger before Headscale has it.
    let _making = context.keys.lock(tailnet).await;
    let (joining, api) = tokio::try_join!(client.preauth_keys(), client.api_keys())?;
    let now = Timestamp::now();
    let (server, owners) = (server_identity::canonical(server), owners_by_tag(context, tailnet));
    let mut found = Vec::new();
    for key in joining.iter().filter(|key| is_own_preauth(&installation, tailnet, key)) {
        let Some(expires_at) = key.expiration else { continue };
        let owner = key.acl_tags.first().and_then(|tag| owners.get(tag)).cloned();
        found.push(Existing {
            kind: KeyKind::PreAuth,
            id: Some(key.id.to_string()),
            prefix: key.prefix().to_owned(),
            owner: owner.unwrap_or_else(|| KeyOwner {
                api_version: API_VERSION.to_owned(),
                kind: Kind::TailnetEgress.as_str().to_owned(),
                namespace: context.namespace().to_owned(),
                name: UNKNOWN.to_owned(),
                uid: String::new(),
            }),
            tailnet: tailnet.to_owned(),
            server: server.clone(),
            tags: key.acl_tags.clone(),
            created_at: key.created_at.unwrap_or(now),
            expires_at,
        });
    }
    let uid = context.stores.tailnets.get(&ObjectRef::<Tailnet>::new(tailnet));
    let uid = uid.and_then(|stored| stored.uid()).unwrap_or_default();
    // Whatever its end of validity happens to be: the bootstrap key is the administrator's.
    let bootstrap = match context.stores.tailnets.get(&ObjectRef::<Tailnet>::new(tailnet)) {
        Some(stored) => working_key::bootstrap(context, &stored).await.ok(),
        None => None,
    };
    let bootstrap = bootstrap.as_ref().and_then(|key| key.prefix());
    let own = |key: &&ApiKeyInfo| is_own_api(&installation, tailnet, key) && Some(key.short_prefix()) != bootstrap;
    for key in api.iter().filter(own) {
        let Some(expires_at) = key.expiration else { continue };
        found.push(Existing {
            kind: KeyKind::Api,
            id: None,
            prefix: key.short_prefix().to_owned(),
            owner: tailnet_owner(tailnet, uid.clone()),
            tailnet: tailnet.to_owned(),
            server: server.clone(),
            tags: Vec::new(),
            created_at: key.created_at.unwrap_or(now),
            expires_at,
        });
    }
    let adopted = context
        .ledger
        .update(|ledger| {
            let new = adopt(ledger, &found);
            // A full ledger takes the others later.
            if found.iter().all(|key| ledger.knows(key)) {
                ledger.searched(tailnet, began);
            }
            new
        })
        .await?;
    for key in &adopted {
        tracing::warn!(owner = %key.owner, tailnet, prefix = key.prefix, expires_at = %key.expires_at, "Headscale has a key of this installation that the key ledger did not know (Secret {KEY_LEDGER} was deleted, or an old one was put back); it is entered again");
    }
    if !adopted.is_empty() {
        context.recovered.add(tailnet, 0, adopted.len(), now);
    }
    Ok(adopted.len())
}

/// The egresses and ingresses of `tailnet` by their tag.
fn owners_by_tag(context: &Context, tailnet: &str) -> HashMap<String, KeyOwner> {
    let stored = context.stores.tailnets.get(&ObjectRef::<Tailnet>::new(tailnet));
    let mut owners = HashMap::new();
    for egress in context.stores.egresses.state() {
        if egress.spec.tailnet_ref.name != tailnet {
            continue;
        }
        let Ok(value) = serde_json::to_value(egress.as_ref()) else {
            continue;
        };
        let object = Object::parse(Kind::TailnetEgress, &value);
        let tag = tag_of(&object, stored.as_ref().map(|stored| &stored.spec));
        if let (Some(tag), Some(owner)) = (tag, KeyOwner::of(egress.as_ref())) {
            owners.insert(tag, owner);
        }
    }
    for ingress in context.stores.ingresses.state() {
        if ingress.spec.tailnet_ref.name != tailnet {
            continue;
        }
        let Ok(value) = serde_json::to_value(ingress.as_ref()) else {
            continue;
        };
        let object = Object::parse(Kind::TailnetIngress, &value);
        let tag = tag_of(&object, stored.as_ref().map(|stored| &stored.spec));
        if let (Some(tag), Some(owner)) = (tag, KeyOwner::of(ingress.as_ref())) {
            owners.insert(tag, owner);
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-30T12:00:00Z".parse().unwrap()
    }

    fn meta(name: &str, annotations: &[(&str, &str)]) -> ObjectMeta {
        let map = |pairs: &[(&str, &str)]| -> Option<BTreeMap<String, String>> {
            Some(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
        };
        ObjectMeta {
            name: Some(name.to_owned()),
            labels: map(&[(MANAGED_BY, MANAGED_BY_VALUE), (TAILNET, "corp")]),
            annotations: map(annotations),
            ..ObjectMeta::default()
        }
    }

    fn of_tailnet() -> ObjectMeta {
        meta(
            &api_key_secret("corp"),
            &[
                (KEY_PREFIX, "abcdefghijkl"),
                (KEY_SERVER, "https://control.example.net:443/"),
                (KEY_CREATED_AT, "2026-11-30T00:00:00Z"),
                (KEY_EXPIRES_AT, "2027-02-28T00:00:00.123456Z"),
            ],
        )
    }

    fn of_egress() -> ObjectMeta {
        ObjectMeta {
            owner_references: Some(vec![OwnerReference {
                api_version: API_VERSION.to_owned(),
                kind: "TailnetEgress".into(),
                name: "a".into(),
                uid: "u".into(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..meta(
                "tailnet-egress-a-authkey",
                &[
                    ("tsunaro.io/key-id", "7"),
                    (KEY_PREFIX, "bcdefghijklm"),
                    (KEY_SERVER, "https://control.example.net"),
                    ("tsunaro.io/key-tags", "tag:egress-a"),
                    (KEY_EXPIRES_AT, "2026-12-07T00:00:00.123456Z"),
                ],
            )
        }
    }

    #[test]
    fn secrets_say_all_that_an_entry_needs() {
        let uid_of = |tailnet: &str| format!("uid-{tailnet}");
        let api = described(&of_tailnet(), "tailnet-system", uid_of, now()).unwrap();
        assert_eq!((api.kind, api.prefix.as_str()), (KeyKind::Api, "abcdefghijkl"));
        assert_eq!(api.owner.to_string(), "Tailnet corp");
        assert_eq!(
            (api.owner.uid.as_str(), api.server.as_str()),
            ("uid-corp", "https://control.example.net")
        );
        let joining = described(&of_egress(), "tailnet-system", uid_of, now()).unwrap();
        assert_eq!(joining.kind, KeyKind::PreAuth);
        assert_eq!(
            (joining.id.as_deref(), joining.prefix.as_str()),
            (Some("7"), "bcdefghijklm")
        );
        assert_eq!(joining.owner.to_string(), "TailnetEgress tailnet-system/a");
        assert_eq!(joining.tags, ["tag:egress-a"]);
        assert_eq!(joining.expires_at.to_string(), "2026-12-07T00:00:00.123456Z");
    }

    #[test]
    fn what_is_not_ours_or_says_too_little_is_no_key() {
        let none = |meta: &ObjectMeta| described(meta, "tailnet-system", |_| String::new(), now());
        let mut foreign = of_egress();
        foreign.labels.as_mut().unwrap().remove(MANAGED_BY);
        assert_eq!(none(&foreign), None);
        let mut orphan = of_egress();
        orphan.owner_references = None;
        assert_eq!(none(&orphan), None, "whose key it is is not known");
        let mut damaged = of_tailnet();
        damaged.annotations.as_mut().unwrap().remove(KEY_EXPIRES_AT);
        assert_eq!(none(&damaged), None);
        assert_eq!(none(&meta("tailnet-key-ledger", &[])), None);
    }

    #[test]
    fn the_status_tells_of_it_for_a_while() {
        let recovered = Recovered::default();
        assert_eq!(recovered.told("corp", now()), None);
        recovered.add("corp", 1, 0, now());
        recovered.add("corp", 1, 3, now());
        let told = recovered.told("corp", now()).unwrap();
        assert!(
            told.contains("did not know 5 keys") && told.contains("2 found in Secrets, 3 found in Headscale"),
            "{told}"
        );
        assert_eq!(recovered.told("other", now()), None);
        assert_eq!(recovered.told("corp", now() + TOLD_FOR), None);
    }
}
