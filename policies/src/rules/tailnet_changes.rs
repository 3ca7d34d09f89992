//! What a change of a Tailnet does to others.

use tailnet_crds::{Kind, TailnetSpec};

use crate::evaluate::verdict_of;
use crate::finding::{Class, Severity};
use crate::index::{IndexKey, canonical};
use crate::object::Object;
use crate::report::{Report, Shown, cut};
use crate::table::{self, Check, Layers, Operations, Rule, WG};
use crate::view::View;

const TAILNET: &[Kind] = &[Kind::Tailnet];
/// Most objects that are named.
const NAMED: usize = 20;

/// Changes that make objects illegal are said.
pub static TN107: Rule = Rule {
    id: "TN107",
    kinds: TAILNET,
    operations: Operations::UPDATE,
    layers: Layers::WEBHOOK,
    severity: Severity::Warn,
    security: false,
    field: "spec.policy.ingressSourceAllowlist, spec.reservedNetworks, spec.tagGrants, spec.dns, spec.defaults.tls",
    message: "the change leaves the objects of the Tailnet legal",
    why: "The administrator decides, so the change is let in. Objects that break a security rule by it lose their grants and names at once; any other \
          stays as it is and cannot be changed until it is put right. Up to 20 are named.",
    example: "kind: Tailnet\nspec:\n  reservedNetworks: [10.0.0.0/8]   # TailnetSite lab has 10.1.0.0/16",
    fix: "Nothing, when that is meant; else put the old value back.",
    check: Check::Cross(change_is_harmless),
};

/// One writer per policy.
pub static TN108: Rule = Rule {
    id: "TN108",
    kinds: TAILNET,
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Deny,
    security: false,
    field: "spec.policy",
    message: "nobody else writes the policy of the same server: no other Tailnet, and no other installation",
    why: "Headscale has one policy document, and the last writer wins: two Tailnets would undo each other's grants for ever. The server counts, \
          whether it is named in `spec.server` or in `spec.api.endpoint`. Another installation is known by the first line of the live policy, which \
          the writer puts there.",
    example: "kind: Tailnet\nmetadata: { name: corp-2 }\nspec:\n  server: https://login.example.net\n  api: { endpoint: https://control.example.net }   # Tailnet corp has this endpoint and a spec.policy\n  policy: { baseConfigMap: tailnet-policy }",
    fix: "Leave `spec.policy` out here, or take it out of the other Tailnet first: its mark then goes from the live policy.",
    check: Check::Cross(policy_has_one_writer),
};

/// The field of the Tailnet on which a member's rule rests.
fn field_of(rule: &str) -> &'static str {
    match rule {
        "TN301" | "TN315" => "spec.policy.ingressSourceAllowlist",
        "TN402" | "TN512" => "spec.reservedNetworks",
        "TN011" => "spec.tagGrants",
        "TN206" | "TN304" | "TN305" | "TN314" => "spec.dns",
        "TN309" | "TN318" => "spec.defaults.tls",
        _ => "spec",
    }
}

fn change_is_harmless(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let (Some(new), Some(old)) = (object.tailnet(), view.old().and_then(Object::tailnet)) else {
        return;
    };
    if !concerns_members(old, new) {
        return;
    }
    // Names, default tags and host names follow the Tailnet, so the question is put to a copy in which it is changed already.
    let mut changed = view.snapshot.clone();
    changed.replace(object.clone());
    let (mut named, mut more) = (0, 0);
    let members = view.snapshot.indexed(&IndexKey::Member(object.name.clone()));
    let mut members: Vec<_> = members
        .iter()
        .filter(|member| member.kind != Kind::Tailnet && !member.deleting)
        .collect();
    members.sort_by_cached_key(|member| member.to_string());
    for member in members {
        // TN005 speaks for itself where routeApprovers change.
        let after: Vec<_> = verdict_of(member, &changed)
            .into_iter()
            .filter(|finding| finding.rule != "TN005")
            .collect();
        if after.is_empty() {
            continue;
        }
        let before = verdict_of(member, view.snapshot);
        let known =
            |rule: &str, value: &Option<String>| before.iter().any(|was| was.rule == rule && was.value == *value);
        let Some(first) = after.iter().find(|finding| !known(finding.rule, &finding.value)) else {
            continue;
        };
        if named == NAMED {
            more += 1;
            continue;
        }
        named += 1;
        let security = table::rule(first.rule).is_some_and(|rule| rule.security);
        let what = match security {
            true => "loses its grants and names",
            false => "stays as it is and takes no change",
        };
        let detail = format!(
            "by this {} breaks {} ({}) and {what}",
            cut(&member.to_string(), 120),
            first.rule,
            cut(&first.field, 60)
        );
        report.add(Class::Invalid, field_of(first.rule), Shown::NOTHING, detail);
    }
    if more > 0 {
        let detail = format!("by this {more} more objects break a rule");
        report.add(Class::Invalid, "spec", Shown::NOTHING, detail);
    }
}

/// Whether anything differs that a rule about members reads. Most changes of a Tailnet do not concern them.
fn concerns_members(old: &TailnetSpec, new: &TailnetSpec) -> bool {
    let policy = |spec: &TailnetSpec| {
        spec.policy
            .as_ref()
            .map(|policy| (policy.ingress_source_allowlist.clone(), policy.route_approvers.clone()))
    };
    let tls = |spec: &TailnetSpec| spec.defaults.as_ref().and_then(|defaults| defaults.tls.clone());
    policy(old) != policy(new)
        || tls(old) != tls(new)
        || old.reserved_networks != new.reserved_networks
        || old.tag_grants != new.tag_grants
        || old.dns != new.dns
        || old.cluster_name != new.cluster_name
        || old.server != new.server
        || old.api_endpoint() != new.api_endpoint()
}

fn policy_has_one_writer(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    if spec.policy.is_none() {
        return;
    }
    view.need(TAILNET, report);
    let servers = |spec: &TailnetSpec| [canonical(&spec.server), canonical(spec.api_endpoint())];
    let own = servers(spec);
    let had = view
        .old()
        .and_then(Object::tailnet)
        .is_some_and(|old| old.policy.is_some() && servers(old) == own);
    let writer = view.snapshot.list(Kind::Tailnet).find(|other| {
        let same = other
            .tailnet()
            .is_some_and(|other| other.policy.is_some() && servers(other).iter().any(|server| own.contains(server)));
        same && !other.deleting
            && !other.same_as(object)
            && !view.is_ignored(&other.reference())
            && view.comes_after(had, other)
    });
    if let Some(writer) = writer {
        let detail = format!(
            "{writer} writes the policy of this server: leave spec.policy out here, or take it out there first"
        );
        report
            .add(Class::Forbidden, "spec.policy", Shown::NOTHING, detail)
            .held_by(writer.reference());
    }
    let foreign = view
        .snapshot
        .facts(&object.name)
        .and_then(|known| known.facts.policy.foreign_owner.as_ref());
    if let Some(owner) = foreign {
        let detail = format!(
            "the live policy is written by {}, as its first line says: leave spec.policy out here or there, or take that line out of the live policy if that installation is gone",
            cut(owner, 200)
        );
        report.add(Class::Forbidden, "spec.policy", Shown::NOTHING, detail);
    }
}
