//! The key ledger: what we made in Headscale, for whom, so that nothing is orphaned by a crash or by a CR that goes while
//! the operator is down.
//!
//! An entry is written *before* a key is made, as an intention with the exact end of validity that the key will get. No two
//! keys end at the same microsecond, so a key whose answer was lost is found again by it; and the microseconds carry a mark
//! ([`crate::key_mark`]), by which keys are found that a lost ledger knew. The key itself is never here.
//!
//! Stored as `ledger.json` in the Secret [`tailnet_crds::names::tailnet::KEY_LEDGER`] of the operator namespace.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use tailnet_crds::names::label;
use tailnet_crds::names::tailnet::KEY_LEDGER;
use tokio::sync::Mutex;

use crate::key_mark::Maker;
use crate::server_identity;
use crate::settings::FIELD_MANAGER;

/// Key of the ledger in its Secret.
pub const DATA_KEY: &str = "ledger.json";
/// Version of the format.
const FORMAT_VERSION: u32 = 1;
/// Most entries: a Secret holds 1 MiB, an entry takes about 500 bytes.
const MAX_ENTRIES: usize = 1800;
/// Tries of one write when somebody else wrote in between.
const ATTEMPTS: usize = 5;

/// Whom a key was made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyOwner {
    /// `apiVersion` of the CR.
    pub api_version: String,
    /// Kind of the CR.
    pub kind: String,
    /// Namespace; empty for cluster-scoped kinds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID: a namesake created later is somebody else.
    pub uid: String,
}

impl KeyOwner {
    /// The owner that `object` is; None for an object that is not stored (it has no UID).
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Option<Self> {
        Some(Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid()?,
        })
    }
}

impl std::fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// What a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyKind {
    /// Headscale's API: a Tailnet's working key.
    Api,
    /// The tailnet, for the nodes of one CR.
    PreAuth,
}

/// How far a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyStage {
    /// About to be made; whether it exists is not known. A pre-auth key that does is in its Secret, or nobody has it.
    Intended,
    /// Made; in use or about to be.
    Active,
    /// Replaced or its CR is gone: on its way out.
    Retired,
    /// Retired and expired in Headscale: opens nothing any more, still there because a node refers to it.
    Expired,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Number of the entry in this ledger; never used twice.
    pub number: u64,
    /// What it opens.
    pub kind: KeyKind,
    /// How far it is.
    pub stage: KeyStage,
    /// Headscale's id of a pre-auth key, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Public prefix, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// For whom.
    pub owner: KeyOwner,
    /// Name of the Tailnet.
    pub tailnet: String,
    /// URL of the API of the server that it is on, in the canonical spelling.
    pub server: String,
    /// Tags of a pre-auth key, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// When the entry was written.
    pub created_at: Timestamp,
    /// End of validity, exact to the microsecond.
    pub expires_at: Timestamp,
    /// When it was retired; None for a key that nobody ever had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Timestamp>,
}

/// The entry that is to be written for a key that does not exist yet.
#[derive(Clone, Debug)]
pub struct Intention {
    /// See [`Entry::kind`].
    pub kind: KeyKind,
    /// See [`Entry::owner`].
    pub owner: KeyOwner,
    /// See [`Entry::tailnet`].
    pub tailnet: String,
    /// See [`Entry::server`].
    pub server: String,
    /// See [`Entry::tags`].
    pub tags: Vec<String>,
    /// How long the key is to be valid.
    pub lifetime: SignedDuration,
    /// See [`Maker::installation`].
    pub installation: String,
}

/// A key that was found in a Secret or in Headscale, for [`Document::adopt`]. The fields are those of [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// See [`Entry::kind`].
    pub kind: KeyKind,
    /// See [`Entry::id`].
    pub id: Option<String>,
    /// See [`Entry::prefix`].
    pub prefix: String,
    /// See [`Entry::owner`].
    pub owner: KeyOwner,
    /// See [`Entry::tailnet`].
    pub tailnet: String,
    /// See [`Entry::server`].
    pub server: String,
    /// See [`Entry::tags`].
    pub tags: Vec<String>,
    /// When the key was made, as far as that is known.
    pub created_at: Timestamp,
    /// See [`Entry::expires_at`].
    pub expires_at: Timestamp,
}

/// A key that was asked for, for the limit of [`Document::intend`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mint {
    owner_uid: String,
    kind: KeyKind,
    at: Timestamp,
}

/// The ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    version: u32,
    next_number: u64,
    /// All keys that may exist.
    pub entries: Vec<Entry>,
    #[serde(default)]
    recent_mints: Vec<Mint>,
}

/// Why an intention is not written down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntentionError {
    /// The hourly limit of keys for one CR.
    #[error("{limit} keys were already made for {owner} within an hour; the next one may be made at {next}")]
    TooMany {
        /// For whom.
        owner: String,
        /// The limit.
        limit: usize,
        /// When the next one may be made.
        next: Timestamp,
    },
    /// The ledger is full.
    #[error("the key ledger holds {MAX_ENTRIES} keys and takes no more; delete Tailnets or CRs that are not used")]
    Full,
}

impl Document {
    /// Writes the intention down and gives the entry; `now` is the present.
    pub fn intend(&mut self, intention: Intention, limit: usize, now: Timestamp) -> Result<Entry, IntentionError> {
        let hour_ago = now - SignedDuration::from_hours(1);
        self.recent_mints.retain(|mint| mint.at > hour_ago);
        let own: Vec<Timestamp> = self
            .recent_mints
            .iter()
            .filter(|mint| mint.owner_uid == intention.owner.uid && mint.kind == intention.kind)
            .map(|mint| mint.at)
            .collect();
        if own.len() >= limit
            && let Some(oldest) = own.iter().min()
        {
            let next = *oldest + SignedDuration::from_hours(1);
            return Err(IntentionError::TooMany {
                owner: intention.owner.to_string(),
                limit,
                next,
            });
        }
        if self.entries.len() >= MAX_ENTRIES {
            return Err(IntentionError::Full);
        }
        self.recent_mints.push(Mint {
            owner_uid: intention.owner.uid.clone(),
            kind: intention.kind,
            at: now,
        });
        let maker = Maker {
            installation: &intention.installation,
            tailnet: &intention.tailnet,
            kind: intention.kind,
            tags: &intention.tags,
        };
        let taken: HashSet<Timestamp> = self.entries.iter().map(|entry| entry.expires_at).collect();
        let expires_at = maker.end(now + intention.lifetime, |end| taken.contains(&end));
        let entry = Entry {
            number: self.next_number,
            kind: intention.kind,
            stage: KeyStage::Intended,
            id: None,
            prefix: None,
            owner: intention.owner,
            tailnet: intention.tailnet,
            server: intention.server,
            tags: intention.tags,
            created_at: now,
            expires_at,
            retired_at: None,
        };
        self.next_number += 1;
        self.entries.push(entry.clone());
        Ok(entry)
    }

    /// The entry with this number.
    pub fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.number == number)
    }

    /// The key of entry `number` exists.
    pub fn made(&mut self, number: u64, id: Option<String>, prefix: Option<String>) {
        if let Some(entry) = self.entry_mut(number) {
            entry.stage = KeyStage::Active;
            entry.id = id;
            entry.prefix = prefix;
        }
    }

    /// The key of entry `number` exists and was never handed to anybody: it may be expired without waiting.
    pub fn made_in_vain(&mut self, number: u64, id: String, prefix: String) {
        if let Some(entry) = self.entry_mut(number) {
            entry.stage = KeyStage::Retired;
            entry.id = Some(id);
            entry.prefix = Some(prefix);
            entry.retired_at = None;
        }
    }

    /// The key of `owner` with this id, prefix and end was found in its Secret. An intention with that end is the entry of
    /// this key, whose second writing was cut off: it is completed. False when the entry of the key says that it is on its
    /// way out: then it may be dead already, and must not be used any longer.
    pub fn found_in_secret(&mut self, owner: &KeyOwner, id: &str, prefix: &str, expires_at: Timestamp) -> bool {
        let of_owner = |entry: &&mut Entry| entry.kind == KeyKind::PreAuth && entry.owner.uid == owner.uid;
        for entry in self.entries.iter_mut().filter(of_owner) {
            if entry.stage == KeyStage::Intended && entry.expires_at == expires_at {
                entry.stage = KeyStage::Active;
                (entry.id, entry.prefix) = (Some(id.to_owned()), Some(prefix.to_owned()));
            }
            if entry.id.as_deref() == Some(id) && entry.prefix.as_deref() == Some(prefix) {
                return entry.stage == KeyStage::Active;
            }
        }
        // A ledger that was lost says nothing against a key.
        true
    }

    /// Whether `owner` has a pre-auth key in use.
    pub fn has_key_in_use(&self, owner: &KeyOwner) -> bool {
        self.entries.iter().any(|entry| {
            entry.kind == KeyKind::PreAuth && entry.stage == KeyStage::Active && entry.owner.uid == owner.uid
        })
    }

    /// Retires entry `number`. One that is on its way out already stays as it is, and so does an intention: whether its key
    /// exists has to be found out first.
    pub fn retire(&mut self, number: u64, now: Timestamp) {
        if let Some(entry) = self.entry_mut(number)
            && entry.stage == KeyStage::Active
        {
            entry.stage = KeyStage::Retired;
            entry.retired_at = Some(now);
        }
    }

    /// The key of entry `number` was certainly not made: the entry goes, and the try does not count for the limit of
    /// [`Document::intend`].
    pub fn not_made(&mut self, number: u64) {
        let Some(position) = self.entries.iter().position(|entry| entry.number == number) else {
            return;
        };
        let entry = self.entries.remove(position);
        let its_mint =
            |mint: &Mint| mint.owner_uid == entry.owner.uid && mint.kind == entry.kind && mint.at == entry.created_at;
        if let Some(position) = self.recent_mints.iter().position(its_mint) {
            self.recent_mints.remove(position);
        }
    }

    /// The server of `tailnet` that was known as `from` is reached as `to` from now on: it is the same one.
    pub fn readdress(&mut self, tailnet: &str, from: &str, to: &str) {
        for entry in &mut self.entries {
            if entry.tailnet == tailnet && server_identity::same(&entry.server, from) {
                entry.server = to.to_owned();
            }
        }
    }

    /// Enters a key that exists and of which the ledger knows nothing, as one in use. False when it does know it: by its
    /// prefix, or as an intention with this end.
    pub fn adopt(&mut self, key: Existing) -> bool {
        let known = self.entries.iter().any(|entry| {
            entry.kind == key.kind
                && (entry.prefix.as_ref() == Some(&key.prefix)
                    || (entry.stage == KeyStage::Intended && entry.expires_at == key.expires_at))
        });
        if known || self.entries.len() >= MAX_ENTRIES {
            return false;
        }
        self.entries.push(Entry {
            number: self.next_number,
            kind: key.kind,
            stage: KeyStage::Active,
            id: key.id,
            prefix: Some(key.prefix),
            owner: key.owner,
            tailnet: key.tailnet,
            server: key.server,
            tags: key.tags,
            created_at: key.created_at,
            expires_at: key.expires_at,
            retired_at: None,
        });
        self.next_number += 1;
        true
    }

    /// Drops entry `number`: the key does not exist any more.
    pub fn drop_entry(&mut self, number: u64) {
        self.entries.retain(|entry| entry.number != number);
    }

    /// The entries of a Tailnet's keys of one kind on one server, in whichever spelling of its URL.
    pub fn on_server<'a>(
        &'a self,
        tailnet: &'a str,
        server: &'a str,
        kind: KeyKind,
    ) -> impl Iterator<Item = &'a Entry> {
        self.of_tailnet(tailnet, kind)
            .filter(move |entry| server_identity::same(&entry.server, server))
    }

    /// The entries of a Tailnet's keys of one kind.
    pub fn of_tailnet<'a>(&'a self, tailnet: &'a str, kind: KeyKind) -> impl Iterator<Item = &'a Entry> {
        self.entries
            .iter()
            .filter(move |entry| entry.tailnet == tailnet && entry.kind == kind)
    }
}

/// Why the ledger cannot be used. Without it no key is made.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The API server refused or did not answer.
    #[error("cannot {verb} Secret {KEY_LEDGER}: {source}")]
    Api {
        /// `read`, `create` or `change`.
        verb: &'static str,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// Somebody edited it, or another program has the name.
    #[error(
        "Secret {KEY_LEDGER} is not a key ledger ({problem}); restore it, or delete it (the keys in Secrets are then entered again, and others of this installation are looked for in Headscale)"
    )]
    Malformed {
        /// What is wrong.
        problem: String,
    },
    /// Others keep writing it.
    #[error(
        "Secret {KEY_LEDGER} was changed by somebody else {ATTEMPTS} times in a row; only one operator may write it"
    )]
    Contended,
    /// The document cannot be written as JSON.
    #[error("cannot write the key ledger as JSON: {0}")]
    Json(#[source] serde_json::Error),
}

/// What is known of the stored Secret.
struct Loaded {
    /// None: not created yet.
    resource_version: Option<String>,
    document: Document,
}

/// The stored ledger. Only the acting operator writes it.
pub struct Ledger {
    api: Api<Secret>,
    namespace: String,
    loaded: Mutex<Option<Loaded>>,
}

impl Ledger {
    /// The ledger in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            loaded: Mutex::new(None),
        }
    }

    /// A copy of the ledger as last read or written.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn read(&self) -> Result<Document, LedgerError> {
        let mut guard = self.loaded.lock().await;
        let loaded = match guard.take() {
            Some(loaded) => loaded,
            None => self.load().await?,
        };
        Ok(guard.insert(loaded).document.clone())
    }

    /// Changes the ledger by `change` and stores it; when somebody else wrote meanwhile, `change` runs again on the new
    /// state. Nothing is stored when `change` changes nothing or fails.
    ///
    /// # Errors
    /// See [`LedgerError`]; `change`'s own error is inside the Ok.
    pub async fn update<T>(&self, mut change: impl FnMut(&mut Document) -> T) -> Result<T, LedgerError> {
        let mut guard = self.loaded.lock().await;
        for _ in 0..ATTEMPTS {
            let loaded = match guard.take() {
                Some(loaded) => loaded,
                None => self.load().await?,
            };
            let mut document = loaded.document.clone();
            let result = change(&mut document);
            if document == loaded.document {
                *guard = Some(loaded);
                return Ok(result);
            }
            match self.store(&document, loaded.resource_version).await {
                Ok(resource_version) => {
                    *guard = Some(Loaded {
                        resource_version,
                        document,
                    });
                    return Ok(result);
                }
                // Somebody deleted it. What was in it is known: nobody else writes it.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    *guard = Some(Loaded {
                        resource_version: None,
                        document: loaded.document,
                    });
                }
                // Somebody else created or changed it: read it and change that.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(source) => {
                    return Err(LedgerError::Api {
                        verb: "change",
                        source: Box::new(source),
                    });
                }
            }
        }
        Err(LedgerError::Contended)
    }

    /// Writes the ledger as it was last known when somebody deleted its Secret; how many keys it has then. None when the
    /// Secret is there, or never was, or when there is nothing to write.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn restore(&self) -> Result<Option<usize>, LedgerError> {
        let mut guard = self.loaded.lock().await;
        let Some(loaded) = guard.as_mut().filter(|loaded| !loaded.document.entries.is_empty()) else {
            return Ok(None);
        };
        let failed = |verb| {
            move |source| LedgerError::Api {
                verb,
                source: Box::new(source),
            }
        };
        // The watch that missed it may be late.
        if self.api.get_opt(KEY_LEDGER).await.map_err(failed("read"))?.is_some() {
            return Ok(None);
        }
        loaded.resource_version = self.store(&loaded.document, None).await.map_err(failed("create"))?;
        Ok(Some(loaded.document.entries.len()))
    }

    async fn load(&self) -> Result<Loaded, LedgerError> {
        let secret = self.api.get_opt(KEY_LEDGER).await.map_err(|source| LedgerError::Api {
            verb: "read",
            source: Box::new(source),
        })?;
        let Some(secret) = secret else {
            let document = Document {
                version: FORMAT_VERSION,
                ..Document::default()
            };
            return Ok(Loaded {
                resource_version: None,
                document,
            });
        };
        let resource_version = secret.resource_version();
        Ok(Loaded {
            resource_version,
            document: read_secret(&secret)?,
        })
    }

    async fn store(&self, document: &Document, resource_version: Option<String>) -> kube::Result<Option<String>> {
        let text = serde_json::to_vec(document).map_err(kube::Error::SerdeError)?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(KEY_LEDGER.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some(BTreeMap::from([(
                    label::MANAGED_BY.to_owned(),
                    label::MANAGED_BY_VALUE.to_owned(),
                )])),
                resource_version: resource_version.clone(),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(DATA_KEY.to_owned(), ByteString(text))])),
            ..Secret::default()
        };
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let stored = match resource_version {
            None => self.api.create(&params, &secret).await?,
            Some(_) => self.api.replace(KEY_LEDGER, &params, &secret).await?,
        };
        Ok(stored.resource_version())
    }
}

/// The ledger in `secret`.
fn read_secret(secret: &Secret) -> Result<Document, LedgerError> {
    let malformed = |problem: String| LedgerError::Malformed { problem };
    if secret.labels().get(label::MANAGED_BY).map(String::as_str) != Some(label::MANAGED_BY_VALUE) {
        return Err(malformed(format!(
            "it has no label {}={}",
            label::MANAGED_BY,
            label::MANAGED_BY_VALUE
        )));
    }
    let data = secret.data.as_ref().and_then(|data| data.get(DATA_KEY));
    let Some(ByteString(text)) = data else {
        return Err(malformed(format!("it has no key {DATA_KEY}")));
    };
    let document: Document =
        serde_json::from_slice(text).map_err(|e| malformed(format!("line {}, column {}", e.line(), e.column())))?;
    if document.version != FORMAT_VERSION {
        return Err(malformed(format!(
            "its version is {}, this program reads {FORMAT_VERSION}",
            document.version
        )));
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-30T12:00:00Z".parse().unwrap()
    }

    fn intention(name: &str) -> Intention {
        Intention {
            kind: KeyKind::PreAuth,
            owner: KeyOwner {
                api_version: "tsunaro.io/v1alpha1".into(),
                kind: "TailnetEgress".into(),
                namespace: "tailnet-system".into(),
                name: name.into(),
                uid: format!("uid-{name}"),
            },
            tailnet: "corp".into(),
            server: "https://control.example.net".into(),
            // Each egress has its own tag.
            tags: vec![format!("tag:egress-{name}")],
            lifetime: SignedDuration::from_hours(168),
            installation: "uid-of-namespace".into(),
        }
    }

    fn existing(prefix: &str, expires_at: &str) -> Existing {
        Existing {
            kind: KeyKind::PreAuth,
            id: Some("7".into()),
            prefix: prefix.into(),
            owner: intention("a").owner,
            tailnet: "corp".into(),
            server: "https://control.example.net".into(),
            tags: vec!["tag:egress-a".into()],
            created_at: now(),
            expires_at: expires_at.parse().unwrap(),
        }
    }

    #[test]
    fn a_key_that_exists_is_entered_once() {
        let mut ledger = Document::default();
        let found = existing("abcdefghijkl", "2026-12-07T12:00:00.123456Z");
        assert!(ledger.adopt(found.clone()));
        let entry = ledger.entries[0].clone();
        assert_eq!(
            (entry.stage, entry.id.as_deref(), entry.retired_at),
            (KeyStage::Active, Some("7"), None)
        );
        assert!(!ledger.adopt(found), "known by its prefix");
        let intended = ledger.intend(intention("b"), 6, now()).unwrap();
        assert_ne!(intended.number, entry.number, "numbers are not used twice");
        let of_intention = existing("bcdefghijklm", &intended.expires_at.to_string());
        assert!(
            !ledger.adopt(of_intention.clone()),
            "an intention finds its key by itself"
        );
        let api = Existing {
            kind: KeyKind::Api,
            ..of_intention
        };
        assert!(ledger.adopt(api), "a key of another kind is another key");
        assert_eq!(ledger.entries.len(), 3);
    }

    #[test]
    fn an_intention_is_recognizable_by_its_end() {
        let mut ledger = Document::default();
        let ends: std::collections::BTreeSet<_> = (0..50)
            .map(|i| ledger.intend(intention(&i.to_string()), 6, now()).unwrap().expires_at)
            .collect();
        assert_eq!(
            ends.len(),
            50,
            "no two of 50 keys made in one instant end at the same time"
        );
        for end in ends {
            assert_eq!(end.subsec_nanosecond() % 1000, 0, "databases keep microseconds");
            assert!(end.subsec_nanosecond() > 0);
            assert_eq!(end.as_second(), now().as_second() + 168 * 3600);
        }
    }

    #[test]
    fn the_hourly_limit_is_per_owner() {
        let mut ledger = Document::default();
        for minute in 0..3 {
            ledger
                .intend(intention("a"), 3, now() + SignedDuration::from_mins(minute))
                .unwrap();
        }
        let refused = ledger
            .intend(intention("a"), 3, now() + SignedDuration::from_mins(30))
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "3 keys were already made for TailnetEgress tailnet-system/a within an hour; the next one may be made at 2026-11-30T13:00:00Z"
        );
        ledger.intend(intention("b"), 3, now()).unwrap();
        ledger
            .intend(intention("a"), 3, now() + SignedDuration::from_mins(61))
            .unwrap();
        assert_eq!(ledger.entries.len(), 5);
    }

    #[test]
    fn a_try_that_made_no_key_does_not_count() {
        let mut ledger = Document::default();
        for minute in 0..10 {
            let entry = ledger
                .intend(intention("a"), 2, now() + SignedDuration::from_mins(minute))
                .unwrap();
            ledger.not_made(entry.number);
        }
        assert_eq!((ledger.entries.len(), ledger.recent_mints.len()), (0, 0));
        // One that may have been made counts, also when it never shows up.
        for _ in 0..2 {
            let entry = ledger.intend(intention("a"), 2, now()).unwrap();
            ledger.drop_entry(entry.number);
        }
        assert!(ledger.intend(intention("a"), 2, now()).is_err());
        ledger.not_made(999);
        assert_eq!(ledger.recent_mints.len(), 2, "an unknown entry takes nothing back");
    }

    #[test]
    fn a_server_by_another_url_keeps_its_entries() {
        let mut ledger = Document::default();
        for name in ["a", "b"] {
            ledger.intend(intention(name), 6, now()).unwrap();
        }
        ledger.entries[1].tailnet = "other".into();
        let slashed = "https://control.example.net:443/";
        assert_eq!(ledger.on_server("corp", slashed, KeyKind::PreAuth).count(), 1);
        ledger.readdress("corp", slashed, "https://headscale.svc");
        assert_eq!(
            ledger
                .on_server("corp", "https://headscale.svc", KeyKind::PreAuth)
                .count(),
            1
        );
        assert_eq!(ledger.on_server("corp", slashed, KeyKind::PreAuth).count(), 0);
        assert_eq!(ledger.entries[1].server, "https://control.example.net");
    }

    #[test]
    fn a_full_ledger_takes_no_more() {
        let mut ledger = Document::default();
        for i in 0..MAX_ENTRIES {
            ledger.intend(intention(&i.to_string()), 6, now()).unwrap();
        }
        assert_eq!(
            ledger.intend(intention("one-more"), 6, now()),
            Err(IntentionError::Full)
        );
        for entry in &mut ledger.entries {
            (entry.id, entry.prefix, entry.retired_at) =
                (Some("4294967296".into()), Some("abcdefghijkl".into()), Some(now()));
        }
        let size = serde_json::to_vec(&ledger).unwrap().len();
        assert!(size < 1_000_000, "{size} bytes do not fit into a Secret");
    }

    #[test]
    fn stages() {
        let mut ledger = Document::default();
        let number = ledger.intend(intention("a"), 6, now()).unwrap().number;
        ledger.retire(number, now());
        assert_eq!(
            ledger.entries[0].stage,
            KeyStage::Intended,
            "a retired entry without an id would be taken for a key that is gone"
        );
        ledger.made(number, Some("7".into()), Some("abcdefghijkl".into()));
        ledger.retire(number, now());
        let retired = ledger.entries[0].clone();
        assert_eq!((retired.stage, retired.retired_at), (KeyStage::Retired, Some(now())));
        ledger.retire(number, now() + SignedDuration::from_hours(1));
        assert_eq!(ledger.entries[0], retired, "retiring twice keeps the first time");
        ledger.drop_entry(number);
        assert_eq!(ledger.entries, []);
        let vain = ledger.intend(intention("a"), 6, now()).unwrap().number;
        ledger.made_in_vain(vain, "8".into(), "bcdefghijklm".into());
        let found = ledger.entries.remove(0);
        assert_eq!((found.stage, found.retired_at), (KeyStage::Retired, None));
        assert_eq!(
            (found.id.as_deref(), found.prefix.as_deref()),
            (Some("8"), Some("bcdefghijklm"))
        );
        assert_ne!(
            ledger.intend(intention("a"), 6, now()).unwrap().number,
            number,
            "numbers are not used twice"
        );
    }

    #[test]
    fn a_key_in_its_secret_completes_its_intention() {
        let mut ledger = Document::default();
        let other = ledger.intend(intention("b"), 6, now()).unwrap();
        let entry = ledger.intend(intention("a"), 6, now()).unwrap();
        let owner = entry.owner.clone();
        assert!(!ledger.has_key_in_use(&owner));
        assert!(ledger.found_in_secret(&owner, "7", "abcdefghijkl", other.expires_at));
        assert_eq!(
            (ledger.entries[0].stage, ledger.entries[1].stage),
            (KeyStage::Intended, KeyStage::Intended),
            "a key with another end is another key"
        );
        assert!(ledger.found_in_secret(&owner, "7", "abcdefghijkl", entry.expires_at));
        let completed = ledger.entries[1].clone();
        assert_eq!(
            (completed.stage, completed.id.as_deref(), completed.prefix.as_deref()),
            (KeyStage::Active, Some("7"), Some("abcdefghijkl"))
        );
        assert!(ledger.has_key_in_use(&owner) && !ledger.has_key_in_use(&other.owner));
        assert!(ledger.found_in_secret(&owner, "7", "abcdefghijkl", entry.expires_at));
        assert_eq!(ledger.entries[1], completed);
    }

    #[test]
    fn a_key_on_its_way_out_that_is_in_a_secret_again_is_not_used() {
        let mut ledger = Document::default();
        let entry = ledger.intend(intention("a"), 6, now()).unwrap();
        ledger.made(entry.number, Some("7".into()), Some("abcdefghijkl".into()));
        ledger.retire(entry.number, now());
        let found = |ledger: &mut Document, prefix| ledger.found_in_secret(&entry.owner, "7", prefix, entry.expires_at);
        assert!(!found(&mut ledger, "abcdefghijkl"));
        ledger.entries[0].stage = KeyStage::Expired;
        assert!(!found(&mut ledger, "abcdefghijkl"));
        assert_eq!(ledger.entries[0].stage, KeyStage::Expired);
        assert!(found(&mut ledger, "zzzzzzzzzzzz"), "the ledger knows no such key");
    }

    #[test]
    fn a_foreign_or_broken_secret_is_refused_without_telling_its_content() {
        let secret = |labels: &[(&str, &str)], text: &str| Secret {
            metadata: ObjectMeta {
                labels: Some(labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(
                DATA_KEY.to_owned(),
                ByteString(text.as_bytes().to_vec()),
            )])),
            ..Secret::default()
        };
        let ours = [(label::MANAGED_BY, label::MANAGED_BY_VALUE)];
        assert!(
            read_secret(&secret(&[], "{}"))
                .unwrap_err()
                .to_string()
                .contains("no label")
        );
        let broken = read_secret(&secret(&ours, "{\"version\":\"hskey-api-secret\"}"))
            .unwrap_err()
            .to_string();
        assert!(broken.contains("line 1") && !broken.contains("hskey"), "{broken}");
        let newer = r#"{"version":9,"nextNumber":0,"entries":[]}"#;
        assert!(
            read_secret(&secret(&ours, newer))
                .unwrap_err()
                .to_string()
                .contains("version is 9")
        );
        let good = r#"{"version":1,"nextNumber":3,"entries":[]}"#;
        assert_eq!(read_secret(&secret(&ours, good)).unwrap().next_number, 3);
    }
}
