//! What a cross rule sees: the snapshot without the object itself, without what is being deleted, and without the objects
//! that the caller knows to be gone or that a security rule leaves without effect.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailnet_crds::{Kind, TailnetSpec};

use crate::claims::{Claim, ClaimKey};
use crate::evaluate::is_withdrawn;
use crate::finding::{Class, ObjectRef};
use crate::index::{IndexKey, claim_keys, tag_claim};
use crate::object::Object;
use crate::prefixes::overlap;
use crate::report::{Report, Shown, Unchecked};
use crate::request::Layer;
use crate::snapshot::Snapshot;

/// The cluster around one object.
pub struct View<'a> {
    /// The whole snapshot.
    pub snapshot: &'a Snapshot,
    object: &'a Object,
    old: Option<&'a Object>,
    layer: Layer,
    ignored: &'a [ObjectRef],
    tailnet: Option<Arc<Object>>,
    /// What the object has already; None when it has nothing yet and therefore loses against everybody who exists.
    settled: Option<BTreeSet<ClaimKey>>,
    /// Whether precedence decides about every key, as between two objects that exist.
    existing: bool,
    /// Whether objects without effect count too: while another object's effect is judged, so that no judgement asks for
    /// another one.
    judging: bool,
}

impl<'a> View<'a> {
    /// The surroundings of `object`. `old` is the stored object of an update.
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        object: &'a Object,
        old: Option<&'a Object>,
        layer: Layer,
        ignored: &'a [ObjectRef],
    ) -> Self {
        let tailnet = match object.kind {
            Kind::Tailnet => Some(Arc::new(object.clone())),
            _ => object
                .tailnet_name()
                .and_then(|name| snapshot.get(Kind::Tailnet, None, name))
                .cloned(),
        };
        let settled = old.map(|old| {
            claim_keys(old, tailnet.as_ref().and_then(|t| t.tailnet()))
                .into_iter()
                .collect()
        });
        Self {
            snapshot,
            object,
            old,
            layer,
            ignored,
            tailnet,
            settled,
            existing: layer != Layer::Webhook,
            judging: false,
        }
    }

    /// The surroundings in which the effect of a stored object is judged.
    pub(crate) fn judging(snapshot: &'a Snapshot, object: &'a Object) -> Self {
        Self {
            judging: true,
            ..Self::new(snapshot, object, None, Layer::Guard, &[])
        }
    }

    /// Who runs the rules.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// The stored object of an update.
    pub fn old(&self) -> Option<&Object> {
        self.old
    }

    /// The spec of the object's Tailnet, without a note when there is none.
    pub fn tailnet_spec(&self) -> Option<&TailnetSpec> {
        self.tailnet.as_ref().and_then(|tailnet| tailnet.tailnet())
    }

    /// Name and spec of the object's Tailnet; notes that the rule did not look when there is none.
    pub fn tailnet(&self, report: &mut Report<'_>) -> Option<(&str, &TailnetSpec)> {
        let name = self.object.tailnet_name()?;
        match self.tailnet_spec() {
            Some(spec) => Some((name, spec)),
            None => {
                report.unchecked(Unchecked::NoTailnet(name.to_owned()));
                None
            }
        }
    }

    /// Notes the kinds of which not all objects are known; what is known is looked at all the same.
    pub fn need(&self, kinds: &[Kind], report: &mut Report<'_>) {
        for kind in kinds {
            if !self.snapshot.is_complete(*kind) {
                report.unchecked(Unchecked::Incomplete(*kind));
            }
        }
    }

    /// Whether the object lies in the operator namespace.
    pub fn in_operator_namespace(&self) -> bool {
        self.object.namespace.as_deref() == Some(self.snapshot.config().operator_namespace.as_str())
    }

    /// Whether the caller knows that an object is gone.
    pub fn is_ignored(&self, reference: &ObjectRef) -> bool {
        self.ignored.contains(reference)
    }

    /// Whether another object counts: it is not this one, not being deleted, not known to be gone, and not left without
    /// effect by a security rule. Else whoever is refused a tag or name could keep everybody else from it.
    fn counts(&self, other: &Arc<Object>) -> bool {
        self.is_another(other) && (self.judging || has_effect(other, self.snapshot))
    }

    fn is_another(&self, other: &Object) -> bool {
        !other.deleting && !other.same_as(self.object) && !self.is_ignored(&other.reference())
    }

    /// Other objects under a key, the one with precedence first. Lazy: of many rivals mostly the first is enough.
    pub(crate) fn others<'v>(&'v self, key: &IndexKey) -> impl Iterator<Item = Arc<Object>> + use<'v, 'a> {
        let under = self.snapshot.indexed(key);
        let all: Rivals<'a> = match under {
            [] => Rivals::Stored(&[]),
            // Nobody asks for its own effect, which is a question of its own.
            [only] if only.same_as(self.object) => Rivals::Stored(&[]),
            under if self.judging => Rivals::Stored(under),
            under => Rivals::Effective(self.snapshot.memo().effective(key, || {
                let effective = under.iter().filter(|one| has_effect(one, self.snapshot));
                effective.cloned().collect()
            })),
        };
        (0..all.as_slice().len())
            .filter_map(move |at| all.as_slice().get(at).cloned())
            .filter(|other| self.is_another(other))
    }

    /// The first other object under `index` that wins `key` against this one.
    pub(crate) fn winner(&self, index: &IndexKey, key: &ClaimKey) -> Option<Arc<Object>> {
        // Whoever holds it loses to nobody, and need not look at everybody for that.
        if self.has_already(key) && self.holds(key) {
            return None;
        }
        self.others(index).find(|other| self.loses(key, other, key))
    }

    /// Other sites of the Tailnet that overlap a prefix and win, with their prefixes. Lazy, since a few are named.
    pub(crate) fn winning_sites(
        &self,
        tailnet: &str,
        prefix: ipnet::IpNet,
    ) -> impl Iterator<Item = (ipnet::IpNet, &'a Arc<Object>)> {
        let key = ClaimKey::Prefix(prefix);
        let mut found = match self.has_already(&key) && self.holds(&key) {
            true => Vec::new(),
            false => self.snapshot.sites_overlapping(tailnet, prefix),
        };
        found.sort_by(|(a_net, a), (b_net, b)| (a.precedence(), a_net).cmp(&(b.precedence(), b_net)));
        found.into_iter().filter(move |(theirs, other)| {
            self.is_another(other) && self.loses(&key, other, &ClaimKey::Prefix(*theirs)) && self.counts(other)
        })
    }

    /// Other sites of a Tailnet that overlap a prefix, with their prefixes, by name.
    pub(crate) fn sites(&self, tailnet: &str, prefix: ipnet::IpNet) -> Vec<(ipnet::IpNet, &'a Arc<Object>)> {
        let all = self.snapshot.sites_overlapping(tailnet, prefix);
        let mut found: Vec<_> = all.into_iter().filter(|(_, other)| self.counts(other)).collect();
        found.sort_by(|(a_net, a), (b_net, b)| (&a.name, a_net).cmp(&(&b.name, b_net)));
        found
    }

    /// Whether the record says that this object holds `key`.
    pub(crate) fn holds(&self, key: &ClaimKey) -> bool {
        let records = self.snapshot.all_claims();
        records
            .filter(|(tailnet, _)| self.shares(key, tailnet))
            .any(|(_, claims)| {
                claims
                    .holder(key)
                    .is_some_and(|claim| claim.is_of(&self.object.reference(), self.object.uid.as_deref()))
            })
    }

    /// Whether this object asks for `key` only now: it is not stored with it.
    pub(crate) fn is_new(&self, key: &ClaimKey) -> bool {
        !self.has_already(key)
    }

    /// Whether this object loses `key` against another that has `theirs`, which excludes it.
    pub(crate) fn loses(&self, key: &ClaimKey, other: &Object, theirs: &ClaimKey) -> bool {
        if !self.has_already(key) {
            return true;
        }
        for (_, claims) in self
            .snapshot
            .all_claims()
            .filter(|(tailnet, _)| self.shares(key, tailnet))
        {
            if claims
                .holder(key)
                .is_some_and(|claim| claim.is_of(&self.object.reference(), self.object.uid.as_deref()))
            {
                return false;
            }
            if claims
                .holder(theirs)
                .is_some_and(|claim| claim.is_of(&other.reference(), other.uid.as_deref()))
            {
                return true;
            }
        }
        other.precedence() < self.object.precedence()
    }

    /// Whether this object comes after another of which one is a router and the other is not, so that they cannot share `tag`.
    /// Each counts from when its claim on the tag was recorded, so that an old object which takes a tag late is late.
    pub(crate) fn yields(&self, tag: &str, other: &Object) -> bool {
        !self.has_already(&tag_claim(self.object, tag))
            || self.tagged_since(tag, other) < self.tagged_since(tag, self.object)
    }

    /// [`Object::precedence`] with the time of the claim on `tag` where there is a record: who is not in it asks for it only
    /// now. To the second, as creationTimestamps are.
    fn tagged_since<'o>(
        &'o self,
        tag: &str,
        object: &'o Object,
    ) -> (bool, Option<&'o str>, Option<&'o str>, &'o str, Kind) {
        let (not_stored, created, namespace, name, kind) = object.precedence();
        let record = object.tailnet_name().and_then(|tailnet| self.snapshot.claims(tailnet));
        let (late, time) = match record {
            Some(record) => {
                let claim = record.holder(&tag_claim(object, tag));
                let own = claim.filter(|claim| claim.is_of(&object.reference(), object.uid.as_deref()));
                (own.is_none(), own.map(|claim| claim.since.as_str()))
            }
            None => (not_stored, created),
        };
        let seconds = time.map(|time| time.get(.."2026-01-01T00:00:00".len()).unwrap_or(time));
        (late, seconds, namespace, name, kind)
    }

    /// Whether this object comes after another with the same value, which it `had` already before this request.
    pub(crate) fn comes_after(&self, had: bool, other: &Object) -> bool {
        !(self.existing || had) || other.precedence() < self.object.precedence()
    }

    fn has_already(&self, key: &ClaimKey) -> bool {
        self.existing || self.settled.as_ref().is_some_and(|keys| keys.contains(key)) || self.is_reserved_for_it(key)
    }

    /// Whether a restored record keeps `key` for this object: it is not new then, although it is created.
    fn is_reserved_for_it(&self, key: &ClaimKey) -> bool {
        self.snapshot
            .reserved()
            .any(|(tailnet, kept, claim)| kept == key && self.shares(key, tailnet) && self.is_its(claim))
    }

    fn is_its(&self, claim: &Claim) -> bool {
        claim.is_of(&self.object.reference(), self.object.uid.as_deref())
    }

    /// For whom a restored record keeps what stands against `key`, while that object is not back.
    pub(crate) fn reserved_against(&self, key: &ClaimKey) -> Option<(ObjectRef, &Claim)> {
        self.snapshot.reserved().find_map(|(tailnet, kept, claim)| {
            let against = match (key, kept) {
                (ClaimKey::Prefix(a), ClaimKey::Prefix(b)) => overlap(a, b),
                (ClaimKey::Tag(a), ClaimKey::Router { tag: b, .. })
                | (ClaimKey::Router { tag: a, .. }, ClaimKey::Tag(b)) => a == b,
                (ClaimKey::Router { .. }, _) => false,
                (a, b) => a == b,
            };
            if !against || !self.shares(key, tailnet) || self.is_its(claim) {
                return None;
            }
            let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == claim.kind)?;
            let namespace = claim.namespace.as_deref();
            let back = self.snapshot.get(kind, namespace, &claim.name).is_some();
            (!back).then(|| (ObjectRef::ours(kind, namespace, &claim.name), claim))
        })
    }

    /// Services share one namespace; everything else is held within a Tailnet.
    fn shares(&self, key: &ClaimKey, tailnet: &str) -> bool {
        matches!(key, ClaimKey::Service(_)) || self.object.tailnet_name() == Some(tailnet)
    }

    /// Whether an announced rename is honoured. The operator namespace and cluster-scoped objects are the administrator's;
    /// a tenant takes over within its own namespace only, else it could wait for the name of another one.
    pub(crate) fn may_take_over(&self, namespace: Option<&str>) -> bool {
        let own = self.object.namespace.as_deref();
        own.is_none() || self.in_operator_namespace() || own == namespace
    }

    /// Reports that another object holds what this one asks for. An announced rename is let in with a warning; the guard
    /// makes it wait.
    pub(crate) fn held(
        &self,
        report: &mut Report<'_>,
        field: impl Into<String>,
        value: impl Into<Shown>,
        holder: &Object,
        detail: String,
    ) {
        let announced = self.may_take_over(holder.namespace.as_deref())
            && self.object.takes_over.as_deref() == Some(holder.takes_over_name().as_str());
        let detail = match announced {
            true => format!("{detail}; takes over when {holder} is gone"),
            false => detail,
        };
        let draft = report
            .add(Class::Duplicate, field, value, detail)
            .held_by(holder.reference());
        if announced && self.layer != Layer::Guard {
            draft.warn();
        }
    }
}

/// Objects under a key.
enum Rivals<'a> {
    /// All that are stored.
    Stored(&'a [Arc<Object>]),
    /// Those with effect.
    Effective(Arc<[Arc<Object>]>),
}

impl Rivals<'_> {
    fn as_slice(&self) -> &[Arc<Object>] {
        match self {
            Self::Stored(all) => all,
            Self::Effective(all) => all,
        }
    }
}

/// Whether no security rule leaves an object of the snapshot without effect.
fn has_effect(object: &Arc<Object>, snapshot: &Snapshot) -> bool {
    !snapshot.memo().is_withdrawn(object, || is_withdrawn(object, snapshot))
}
