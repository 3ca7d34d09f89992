//! What a cross rule sees: the snapshot without the object itself, without what is being deleted, and without the objects
//! that the caller knows to be gone or that a security rule leaves without effect.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailnet_crds::{Kind, TailnetSpec};

use crate::claims::ClaimKey;
use crate::evaluate::is_withdrawn;
use crate::finding::{Class, ObjectRef};
use crate::index::{IndexKey, claim_keys};
use crate::object::Object;
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
    fn counts(&self, other: &Object) -> bool {
        !other.deleting
            && !other.same_as(self.object)
            && !self.is_ignored(&other.reference())
            && (self.judging || !is_withdrawn(other, self.snapshot))
    }

    /// Other objects under a key, the one with precedence first.
    pub(crate) fn others(&self, key: &IndexKey) -> Vec<&'a Arc<Object>> {
        let mut others: Vec<_> = self
            .snapshot
            .indexed(key)
            .iter()
            .filter(|other| self.counts(other))
            .collect();
        others.sort_by(|a, b| precedence(a).cmp(&precedence(b)));
        others
    }

    /// The first other object under `index` that wins `key` against this one.
    pub(crate) fn winner(&self, index: &IndexKey, key: &ClaimKey) -> Option<&'a Arc<Object>> {
        self.others(index).into_iter().find(|other| self.loses(key, other, key))
    }

    /// Other sites of the Tailnet that overlap a prefix and win, with their prefixes.
    pub(crate) fn winning_sites(&self, tailnet: &str, prefix: ipnet::IpNet) -> Vec<(ipnet::IpNet, &'a Arc<Object>)> {
        let key = ClaimKey::Prefix(prefix);
        let mut found: Vec<_> = self
            .snapshot
            .sites_overlapping(tailnet, prefix)
            .into_iter()
            .filter(|(theirs, other)| self.loses(&key, other, &ClaimKey::Prefix(*theirs)) && self.counts(other))
            .collect();
        found.sort_by(|(a_net, a), (b_net, b)| (precedence(a), a_net).cmp(&(precedence(b), b_net)));
        found
    }

    /// Other sites of a Tailnet that overlap a prefix, with their prefixes, by name.
    pub(crate) fn sites(&self, tailnet: &str, prefix: ipnet::IpNet) -> Vec<(ipnet::IpNet, &'a Arc<Object>)> {
        let all = self.snapshot.sites_overlapping(tailnet, prefix);
        let mut found: Vec<_> = all.into_iter().filter(|(_, other)| self.counts(other)).collect();
        found.sort_by(|(a_net, a), (b_net, b)| (&a.name, a_net).cmp(&(&b.name, b_net)));
        found
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
        precedence(other) < precedence(self.object)
    }

    /// Whether this object comes after another that excludes it, where one of the two claims nothing: routers and the tags of
    /// others. Whoever has a claim counts from when that was recorded, so that an old object which takes a router's tag late
    /// is late; a router counts from its creation.
    pub(crate) fn yields(&self, key: &ClaimKey, other: &Object) -> bool {
        !self.has_already(key) || self.holds_since(key, other) < self.holds_since(key, self.object)
    }

    /// [`precedence`] with the time of the claim on `key` where there is a record: who is not in it, though his kind claims such
    /// keys, asks for it only now. To the second, as creationTimestamps are.
    fn holds_since<'o>(
        &'o self,
        key: &ClaimKey,
        object: &'o Object,
    ) -> (bool, Option<&'o str>, Option<&'o str>, &'o str, Kind) {
        let (not_stored, created, namespace, name, kind) = precedence(object);
        let record = object.tailnet_name().and_then(|tailnet| self.snapshot.claims(tailnet));
        let (late, time) = match record {
            Some(record) if matches!(kind, Kind::TailnetEgress | Kind::TailnetIngress) => {
                let claim = record.holder(key);
                let own = claim.filter(|claim| claim.is_of(&object.reference(), object.uid.as_deref()));
                (own.is_none(), own.map(|claim| claim.since.as_str()))
            }
            _ => (not_stored, created),
        };
        let seconds = time.map(|time| time.get(.."2026-01-01T00:00:00".len()).unwrap_or(time));
        (late, seconds, namespace, name, kind)
    }

    /// Whether this object comes after another with the same value, which it `had` already before this request.
    pub(crate) fn comes_after(&self, had: bool, other: &Object) -> bool {
        !(self.existing || had) || precedence(other) < precedence(self.object)
    }

    fn has_already(&self, key: &ClaimKey) -> bool {
        self.existing || self.settled.as_ref().is_some_and(|keys| keys.contains(key))
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

/// Who comes first where no claim is recorded: the older object, then namespace, name, kind. An object that is not
/// stored yet is youngest.
fn precedence(object: &Object) -> (bool, Option<&str>, Option<&str>, &str, Kind) {
    (
        object.created.is_none(),
        object.created.as_deref(),
        object.namespace.as_deref(),
        &object.name,
        object.kind,
    )
}
