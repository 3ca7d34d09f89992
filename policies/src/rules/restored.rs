//! What a restored claims record keeps for objects that are not back yet.

use tailnet_crds::Kind;

use crate::claims::ClaimKey;
use crate::finding::{Class, Severity};
use crate::index::claim_keys;
use crate::object::Object;
use crate::report::{Report, cut};
use crate::request::Layer;
use crate::table::{Check, MEMBERS, Operations, Rule, WG};
use crate::view::View;

/// Holders that a backup names come back to what they had.
pub static TN018: Rule = Rule {
    id: "TN018",
    kinds: MEMBERS,
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Warn,
    security: false,
    field: "spec",
    message: "what a restored record of claims keeps for an object that is not back yet is not asked for",
    why: "A backup brings objects back in any order. One that was refused for another's sake would win if it came first. So the record of claims \
          (ConfigMaps `tailnet-claims-…`), when it comes from a backup too, keeps everything for the kind, namespace and name that had it, for ten minutes \
          from when the operator finds it. Meanwhile another object that asks for it is let in and is not accepted (reason `HeldByOther`).",
    example: "kind: TailnetSite\nmetadata: { name: branch }\nspec:\n  prefixes: [10.20.30.0/24]   # the restored record has 10.20.0.0/16 for TailnetSite lab, which is not there yet",
    fix: "Restore the named object, or wait: when the time is over, or the named object comes back and asks for something else, this one gets it.",
    check: Check::Cross(kept_for_others),
};

fn kept_for_others(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    if view.snapshot.reserved().next().is_none() {
        return;
    }
    for key in claim_keys(object, view.tailnet_spec()) {
        let Some((holder, claim)) = view.reserved_against(&key) else {
            continue;
        };
        let (field, value) = asked_for(object.kind, &key);
        let until = claim.reserved_until.as_deref().unwrap_or_default();
        let detail = format!(
            "is kept for {holder} until {}, as a restored record says: restore that object, or wait",
            cut(until, 40)
        );
        let draft = report.add(Class::Duplicate, field, &value, detail).held_by(holder);
        if view.layer() == Layer::Guard {
            draft.severity = Severity::Deny;
        }
    }
}

/// The field by which an object asks for something, and the value as people write it.
fn asked_for(kind: Kind, key: &ClaimKey) -> (&'static str, String) {
    match key {
        ClaimKey::Prefix(prefix) => ("spec.prefixes", prefix.to_string()),
        ClaimKey::Tag(tag) => ("spec.tag", tag.clone()),
        ClaimKey::Router { tag, .. } if kind == Kind::TailnetSite => ("spec.advertisedBy", tag.clone()),
        ClaimKey::Router { tag, .. } => ("spec.tags", tag.clone()),
        ClaimKey::Hostname(name) if kind == Kind::TailnetEgress => ("metadata.name", name.clone()),
        ClaimKey::Hostname(name) => ("spec.hostname", name.clone()),
        ClaimKey::Service(name) | ClaimKey::Name(name) if kind == Kind::TailnetGateway => ("spec.dns", name.clone()),
        ClaimKey::Service(name) | ClaimKey::Name(name) if kind == Kind::TailnetEgress => ("spec.targets", name.clone()),
        ClaimKey::Service(name) | ClaimKey::Name(name) => ("spec.exposes", name.clone()),
    }
}
