//! The access policy of a Tailnet that this installation writes: what was rendered, what became of it, and what is
//! remembered in between. The work is done in `controllers::tailnet_policy`.

pub mod approvals;
pub mod events;
pub mod published;
pub mod removals;

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tailnet_crds::{PolicyStatus, Tailnet};
use tailnet_policies::access_policy::{Owner, owner_of, sha256_hex};

use crate::context::Context;
use crate::desired::access_policy::Told;
use crate::headscale_clients::Observed;

/// What became of the policy of one Tailnet.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `PolicyReady` of the Tailnet.
    pub told: Told,
    /// `status.policy`.
    pub status: PolicyStatus,
    /// Why an object (as in its reference's text) has no entries of its own.
    pub left_out: BTreeMap<String, String>,
}

/// What is remembered of one Tailnet between two looks; a new process begins without it.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The document that was last read or written here.
    pub live: Option<Seen>,
    /// The document that is to be written.
    pub pending: Option<Pending>,
    /// The document that was sent to Headscale and was not seen there yet. Whether the write succeeded does not show in its
    /// answer alone, which may get lost; what follows a write is done when the document is seen.
    pub sent: Option<Sent>,
    /// When it was last written.
    pub written_at: Option<Instant>,
    /// A document that Headscale refused.
    pub rejected: Option<Rejection>,
    /// Approvals to look at once Headscale was read after a write.
    pub replay: Option<approvals::Before>,
    /// When it was last rendered.
    pub rendered_at: Option<Instant>,
    /// What was written here; newer than what the ConfigMap in the store may have.
    pub applied: Option<Applied>,
    /// What was overwritten here although this installation had not written it.
    pub overwritten: Option<String>,
}

/// What was seen in Headscale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The document; None when Headscale has none.
    pub text: Option<String>,
    /// When it was seen: it is newer than an observation that began before.
    pub at: Timestamp,
}

/// A document that waits to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its sha256.
    pub sha256: String,
    /// Since when it has been this one.
    pub since: Instant,
    /// Since when there has been any.
    pub first: Instant,
}

/// A document that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its sha256.
    pub sha256: String,
    /// What was not approved before although the policy of then had an approver.
    pub before: approvals::Before,
    /// Note of the Event about somebody else's document that this one takes the place of.
    pub overwrites: Option<String>,
}

impl Sent {
    /// Whether this document is the one in Headscale.
    pub fn is(&self, live: Option<&str>) -> bool {
        live.is_some_and(|text| sha256_hex(text) == self.sha256)
    }
}

/// A document that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its sha256.
    pub sha256: String,
    /// When, RFC 3339.
    pub at: String,
}

/// A document that Headscale refused.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Its sha256.
    pub sha256: String,
    /// Headscale's words, bounded, with the objects that they are about.
    pub message: String,
    /// When it is offered again.
    pub retry_at: Instant,
}

/// Outcomes and memories by Tailnet.
#[derive(Default)]
pub struct AccessPolicies {
    outcomes: Mutex<HashMap<String, Outcome>>,
    memories: Mutex<HashMap<String, Memory>>,
}

impl AccessPolicies {
    /// What became of the policy of `tailnet`; None before the first look and for Tailnets whose policy others write.
    pub fn outcome(&self, tailnet: &str) -> Option<Outcome> {
        self.outcomes.lock().get(tailnet).cloned()
    }

    /// Why `object` (as in its reference's text) has no entries in the policy of `tailnet`; None when it has.
    pub fn left_out(&self, tailnet: &str, object: &str) -> Option<String> {
        self.outcomes.lock().get(tailnet)?.left_out.get(object).cloned()
    }

    /// Takes over an outcome; true when it is another one.
    pub fn tell(&self, tailnet: &str, outcome: Option<Outcome>) -> bool {
        let mut outcomes = self.outcomes.lock();
        let before = outcomes.get(tailnet);
        if before == outcome.as_ref() {
            return false;
        }
        match outcome {
            Some(outcome) => outcomes.insert(tailnet.to_owned(), outcome),
            None => outcomes.remove(tailnet),
        };
        true
    }

    /// The memory of a Tailnet.
    pub fn memory(&self, tailnet: &str) -> Memory {
        self.memories.lock().get(tailnet).cloned().unwrap_or_default()
    }

    /// Keeps a memory.
    pub fn remember(&self, tailnet: &str, change: impl FnOnce(&mut Memory)) {
        change(self.memories.lock().entry(tailnet.to_owned()).or_default());
    }

    /// Forgets a Tailnet.
    pub fn forget(&self, tailnet: &str) {
        self.memories.lock().remove(tailnet);
        self.outcomes.lock().remove(tailnet);
    }
}

/// The live document: what was written or read here since the observation, else what the observation has.
pub fn live_text(memory: &Memory, observed: &Observed) -> Option<String> {
    match &memory.live {
        Some(seen) if seen.at > observed.read_at => seen.text.clone(),
        _ => observed.policy_text.as_ref().map(|policy| policy.text.clone()),
    }
}

/// The owner that this installation writes into the policy of `tailnet`; None while its UID is not known.
pub fn own(context: &Context, tailnet: &str) -> Option<Owner> {
    let installation = context.installation();
    (!installation.is_empty()).then(|| Owner {
        installation,
        tailnet: tailnet.to_owned(),
    })
}

/// Who else writes the policy of the server of `tailnet`, as the live document says: another installation, or another
/// Tailnet of this one. A Tailnet that is gone, or has given the policy up, is nobody.
pub fn foreign_owner(context: &Context, tailnet: &str, live: Option<&str>) -> Option<Owner> {
    let found = owner_of(live?)?;
    let own = own(context, tailnet)?;
    if found == own {
        return None;
    }
    if found.installation != own.installation {
        return Some(found);
    }
    let other = context.stores.tailnets.get(&ObjectRef::<Tailnet>::new(&found.tailnet));
    other
        .is_some_and(|other| other.spec.policy.is_some() && other.metadata.deletion_timestamp.is_none())
        .then_some(found)
}
