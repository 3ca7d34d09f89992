//! The ledger as a document: what may happen to an entry, and how many keys one CR may ask for.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Existing, Intention, KeyKind, KeyOwner, KeyStage};
use crate::key_mark::Maker;
use crate::server_identity;

/// Version of the format.
pub(super) const FORMAT_VERSION: u32 = 1;
/// How long a key may be on its way although the answer was lost: Headscale gives up on a request after 30 s.
pub(crate) const LOST_ANSWER: SignedDuration = SignedDuration::from_secs(120);
/// Most entries: a Secret holds 1 MiB, an entry takes about 500 bytes.
const MAX_ENTRIES: usize = 1800;

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
    pub(super) version: u32,
    pub(super) next_number: u64,
    /// All keys that may exist.
    pub entries: Vec<Entry>,
    #[serde(default)]
    recent_mints: Vec<Mint>,
    /// When it was lost last: keys that were in it before may not be in it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lost_at: Option<Timestamp>,
    /// When Headscale was last searched for such keys, by name of the Tailnet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    searched: BTreeMap<String, Timestamp>,
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
    /// One in the place of a Secret that is not there: whether it never was or was lost cannot be told.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            version: FORMAT_VERSION,
            lost_at: Some(now),
            ..Self::default()
        }
    }

    /// Whether this is what `other` was later: it has given out numbers that `other` has not.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        self.next_number > other.next_number
    }

    /// Keys that were in it are not in it any more.
    pub fn lost(&mut self, now: Timestamp) {
        self.lost_at = Some(now);
    }

    /// Whether Headscale must be searched for keys of `tailnet` that this ledger should know: after a loss, at once and once
    /// more when no key that was being made meanwhile can come any more.
    pub fn search_due(&self, tailnet: &str, now: Timestamp) -> bool {
        let Some(lost_at) = self.lost_at else { return false };
        let settled = lost_at + LOST_ANSWER;
        match self.searched.get(tailnet) {
            Some(at) if *at >= lost_at => *at < settled && now >= settled,
            _ => true,
        }
    }

    /// The search for keys of `tailnet` that began at `began` entered all that it found.
    pub fn searched(&mut self, tailnet: &str, began: Timestamp) {
        if self.lost_at.is_some() {
            self.searched.insert(tailnet.to_owned(), began);
        }
    }

    /// Forgets what it has of `tailnet` on `server`: nothing of it is there any more.
    pub fn forget(&mut self, tailnet: &str, server: &str) {
        self.entries
            .retain(|entry| !(entry.tailnet == tailnet && server_identity::same(&entry.server, server)));
        self.searched.remove(tailnet);
    }

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

    /// Enters a key that exists and of which the ledger knows nothing, as one in use. False when it does know it (by its
    /// prefix, or as an intention with this end), and when it is full.
    pub fn adopt(&mut self, key: Existing) -> bool {
        if self.knows(&key) || self.entries.len() >= MAX_ENTRIES {
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

    /// Whether it has an entry for this key.
    pub fn knows(&self, key: &Existing) -> bool {
        self.entries.iter().any(|entry| {
            entry.kind == key.kind
                && (entry.prefix.as_ref() == Some(&key.prefix)
                    || (entry.stage == KeyStage::Intended && entry.expires_at == key.expires_at))
        })
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

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
