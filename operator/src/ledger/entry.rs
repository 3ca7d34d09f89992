//! One key in the ledger: for whom it is, what it opens, how far it is.

use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

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
    /// See [`Maker::installation`](crate::key_mark::Maker::installation).
    pub installation: String,
}

/// A key that was found in a Secret or in Headscale, for [`Document::adopt`](super::Document::adopt). The fields are those of [`Entry`].
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
