//! One Headscale client per Tailnet and what was last read with it, shared by all controllers.
//!
//! The Tailnet controller writes, everybody else reads: [`HeadscaleHub::client`] gives a client whose key was seen to
//! work, [`HeadscaleHub::facts`] the last node list and policy.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use parking_lot::RwLock;
use tailnet_headscale::document::{Document, Policy, Problem};
use tailnet_headscale::{Client, Endpoint, Error, Id, Limits, Node, PolicyText};
use tokio::sync::watch;

/// Shorter than the client's defaults: a reconcile makes several calls and must end within two minutes.
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    total: Duration::from_secs(15),
    reply: 64 * 1024 * 1024,
};

/// Ids of vanished nodes that are remembered: an agent notices within a minute that it is one.
const MOST_VANISHED: usize = 4096;

/// Flags about Headscale and its keys.
#[derive(Clone, Debug, Args)]
pub struct HeadscaleSettings {
    /// Seconds between two reads of a Headscale server
    #[arg(long, env = "FACTS_INTERVAL_SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub facts_interval_seconds: u64,

    /// Seconds for which a working API key is valid; it is replaced at half of that
    #[arg(long, env = "API_KEY_LIFETIME_SECONDS", default_value_t = 90 * 86_400, value_parser = clap::value_parser!(u64).range(10..=31_536_000))]
    pub api_key_lifetime_seconds: u64,

    /// Seconds for which a pre-auth key is valid; it is replaced at half of that
    #[arg(long, env = "PREAUTH_KEY_LIFETIME_SECONDS", default_value_t = 7 * 86_400, value_parser = clap::value_parser!(u64).range(10..=7_776_000))]
    pub preauth_key_lifetime_seconds: u64,

    /// Most keys that are made for one object within an hour
    #[arg(long, env = "KEY_MINTS_PER_HOUR", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub key_mints_per_hour: u16,
}

impl HeadscaleSettings {
    /// `--api-key-lifetime-seconds`.
    pub fn api_key_lifetime(&self) -> SignedDuration {
        SignedDuration::from_secs(i64::try_from(self.api_key_lifetime_seconds).unwrap_or(i64::MAX))
    }

    /// `--preauth-key-lifetime-seconds`.
    pub fn preauth_key_lifetime(&self) -> SignedDuration {
        SignedDuration::from_secs(i64::try_from(self.preauth_key_lifetime_seconds).unwrap_or(i64::MAX))
    }
}

/// What one read of a server gave.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Version of the server, e.g. `v0.29.3`.
    pub server_version: String,
    /// All nodes, by id.
    pub nodes: Vec<Node>,
    /// The policy text; None when the server never got one.
    pub policy_text: Option<PolicyText>,
    /// The policy, read. Without a text, or when the text cannot be read, it is empty.
    pub policy: Policy,
    /// Why the text is not a policy: the syntax error's words.
    pub policy_error: Option<String>,
    /// Faults of form in the text.
    pub policy_problems: Vec<Problem>,
    /// When the reading began: a change that was made later may be missing.
    pub read_at: Timestamp,
}

impl Observed {
    /// Puts together what one read gave.
    pub fn new(server_version: String, nodes: Vec<Node>, policy_text: Option<PolicyText>, read_at: Timestamp) -> Self {
        let (mut policy, mut policy_error, mut policy_problems) = (Policy::default(), None, Vec::new());
        if let Some(text) = &policy_text {
            match Document::parse(&text.text) {
                Ok(document) => {
                    policy = document.policy().clone();
                    policy_problems = document.problems().to_vec();
                }
                Err(error) => policy_error = Some(error.to_string()),
            }
        }
        Self {
            server_version,
            nodes,
            policy_text,
            policy,
            policy_error,
            policy_problems,
            read_at,
        }
    }

    /// Whether both say the same, the time of reading aside.
    pub fn same_content(&self, other: &Self) -> bool {
        self.server_version == other.server_version
            && self.policy_text == other.policy_text
            && self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(|(a, b)| {
                // lastSeen moves without meaning anything.
                let a = Node {
                    last_seen: b.last_seen,
                    ..a.clone()
                };
                a == *b
            })
    }
}

/// A client without a key, with what it was built from.
struct Base {
    endpoint: Endpoint,
    bundles: Vec<(String, String)>,
    client: Client,
}

#[derive(Default)]
struct Entry {
    base: Option<Base>,
    client: Option<Arc<Client>>,
    observed: Option<Arc<Observed>>,
    /// Ids of nodes that an earlier read had and a later one had not, oldest first. A Headscale whose database was put back
    /// brings nodes back and uses ids again: what a read has is not gone.
    vanished: VecDeque<Id>,
    /// Node ids that agents named, with the first time, oldest first: a read begun later must show such a node, or it is gone.
    named: VecDeque<(String, Timestamp)>,
    /// When the keys in use were last looked for in Headscale.
    audited_at: Option<Timestamp>,
}

/// Clients and observations by Tailnet name.
pub struct HeadscaleHub {
    entries: RwLock<HashMap<String, Entry>>,
    changes: watch::Sender<u64>,
}

impl Default for HeadscaleHub {
    fn default() -> Self {
        Self {
            entries: RwLock::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl HeadscaleHub {
    /// A client of `tailnet` with its working key; None while the server cannot be reached or refuses the key.
    pub fn client(&self, tailnet: &str) -> Option<Arc<Client>> {
        self.entries.read().get(tailnet)?.client.clone()
    }

    /// What was last read of `tailnet`, also while it cannot be reached now: look at [`Observed::read_at`].
    pub fn facts(&self, tailnet: &str) -> Option<Arc<Observed>> {
        self.entries.read().get(tailnet)?.observed.clone()
    }

    /// The client without a key for `tailnet`; built anew only when server or CA bundles changed, so that connections live.
    ///
    /// # Errors
    /// A broken CA bundle.
    pub fn base(&self, tailnet: &str, endpoint: &Endpoint, bundles: &[(String, String)]) -> Result<Client, Error> {
        let mut entries = self.entries.write();
        let entry = entries.entry(tailnet.to_owned()).or_default();
        let before = entry.base.as_ref().filter(|base| base.endpoint == *endpoint);
        if before.is_none() {
            // What was seen on another server says nothing about this one.
            (entry.client, entry.observed) = (None, None);
            entry.vanished.clear();
            entry.named.clear();
        }
        if let Some(base) = before.filter(|base| base.bundles == bundles) {
            return Ok(base.client.clone());
        }
        let client = Client::new(endpoint.clone(), bundles, None, LIMITS)?;
        entry.base = Some(Base {
            endpoint: endpoint.clone(),
            bundles: bundles.to_vec(),
            client: client.clone(),
        });
        Ok(client)
    }

    /// True at most once per `every`: whether the keys in use are to be looked for in Headscale now.
    pub fn audit_due(&self, tailnet: &str, every: SignedDuration, now: Timestamp) -> bool {
        let mut entries = self.entries.write();
        let entry = entries.entry(tailnet.to_owned()).or_default();
        let due = entry.audited_at.is_none_or(|at| now.duration_since(at) >= every);
        if due {
            entry.audited_at = Some(now);
        }
        due
    }

    /// Names of the Tailnets that it knows.
    pub fn names(&self) -> Vec<String> {
        self.entries.read().keys().cloned().collect()
    }

    /// Wakes after every change of any Tailnet's client or observation; the value is a counter.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The client to be used for `tailnet` from now on.
    pub fn set_client(&self, tailnet: &str, client: Option<Arc<Client>>) {
        let mut entries = self.entries.write();
        let entry = entries.entry(tailnet.to_owned()).or_default();
        let changed = entry.client.is_some() != client.is_some();
        entry.client = client;
        drop(entries);
        if changed {
            self.changes.send_modify(|n| *n += 1);
        }
    }

    /// A new observation; true when it says something else than the last one.
    pub fn observe(&self, tailnet: &str, observed: Arc<Observed>) -> bool {
        let mut entries = self.entries.write();
        let entry = entries.entry(tailnet.to_owned()).or_default();
        let changed = entry
            .observed
            .as_ref()
            .is_none_or(|before| !before.same_content(&observed));
        if let Some(before) = &entry.observed {
            let is_there = |id: &Id| observed.nodes.iter().any(|node| node.id == *id);
            let gone = before.nodes.iter().map(|node| &node.id).filter(|id| !is_there(id));
            entry.vanished.retain(|id| !is_there(id));
            entry.vanished.extend(gone.cloned());
            let superfluous = entry.vanished.len().saturating_sub(MOST_VANISHED);
            entry.vanished.drain(..superfluous);
        }
        entry.observed = Some(observed);
        drop(entries);
        if changed {
            self.changes.send_modify(|n| *n += 1);
        }
        changed
    }

    /// Whether the node `id` of `tailnet`, which its agent names as its own at `now`, is gone from Headscale: an earlier read had it and
    /// a later one has not, or a read that began after the agent first named it has it not.
    pub fn has_vanished(&self, tailnet: &str, id: &str, now: Timestamp) -> bool {
        let mut entries = self.entries.write();
        let Some(entry) = entries.get_mut(tailnet) else {
            return false;
        };
        if entry.vanished.iter().any(|vanished| vanished.as_str() == id) {
            return true;
        }
        let named = entry
            .named
            .iter()
            .find(|(named, _)| named == id)
            .map(|(_, since)| *since);
        let since = named.unwrap_or_else(|| {
            if entry.named.len() >= MOST_VANISHED {
                entry.named.pop_front();
            }
            entry.named.push_back((id.to_owned(), now));
            now
        });
        entry
            .observed
            .as_ref()
            .is_some_and(|read| read.read_at > since && !read.nodes.iter().any(|node| node.id.as_str() == id))
    }

    /// Forgets a Tailnet that is gone or points to another server now.
    pub fn forget(&self, tailnet: &str) {
        if self.entries.write().remove(tailnet).is_some() {
            self.changes.send_modify(|n| *n += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(policy: &str, last_seen: &str) -> Arc<Observed> {
        let node: Node =
            serde_json::from_str(&format!(r#"{{"id":"1","givenName":"rt1","lastSeen":"{last_seen}"}}"#)).unwrap();
        let text = PolicyText {
            text: policy.into(),
            updated_at: None,
        };
        Arc::new(Observed::new(
            "v0.29.3".into(),
            vec![node],
            Some(text),
            Timestamp::now(),
        ))
    }

    #[test]
    fn subscribers_hear_of_changes_only() {
        let hub = HeadscaleHub::default();
        let mut changes = hub.subscribe();
        assert!(hub.observe("corp", observed("{}", "2026-11-30T10:00:00Z")));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(!hub.observe("corp", observed("{}", "2026-11-30T10:00:15Z")));
        assert!(!changes.has_changed().unwrap());
        assert!(hub.observe("corp", observed("{\"grants\":[]}", "2026-11-30T10:00:15Z")));
        assert!(changes.has_changed().unwrap());
        hub.forget("corp");
        assert!(hub.facts("corp").is_none() && hub.client("corp").is_none());
    }

    #[test]
    fn a_node_vanishes_only_after_it_was_there() {
        let hub = HeadscaleHub::default();
        hub.observe("corp", observed("{}", "2026-11-30T10:00:00Z"));
        let start = Timestamp::now();
        let later = Timestamp::from_second(start.as_second() + 5).unwrap();
        assert!(!hub.has_vanished("corp", "1", start), "it is there");
        assert!(
            !hub.has_vanished("corp", "2", start),
            "it may have joined after the read"
        );
        // Named after the last read, deleted before the next one: no read ever had it.
        let none = Observed::new("v0.29.3".into(), Vec::new(), None, later);
        hub.observe("corp", Arc::new(none.clone()));
        assert!(hub.has_vanished("corp", "1", start));
        hub.observe("corp", Arc::new(none));
        assert!(hub.has_vanished("corp", "1", start), "another read changes nothing");
        assert!(!hub.has_vanished("other", "1", start));
        assert!(
            hub.has_vanished("corp", "2", start),
            "the read began after the agent named it"
        );
        assert!(
            !hub.has_vanished("corp", "3", Timestamp::MAX),
            "it may have joined after the read"
        );
        hub.observe("corp", observed("{}", "2026-11-30T10:00:30Z"));
        assert!(
            !hub.has_vanished("corp", "1", start),
            "the database was put back, and the node with it"
        );
        hub.observe(
            "corp",
            Arc::new(Observed::new("v0.29.3".into(), Vec::new(), None, later)),
        );
        assert!(hub.has_vanished("corp", "1", start), "and gone once more");
        hub.forget("corp");
        assert!(!hub.has_vanished("corp", "1", start));
    }

    #[test]
    fn an_unreadable_policy_is_told_and_not_guessed() {
        let bad = observed("{broken", "2026-11-30T10:00:00Z");
        assert!(bad.policy_error.as_deref().unwrap().starts_with("line 1, column 2"));
        assert_eq!(bad.policy, Policy::default());
    }
}
