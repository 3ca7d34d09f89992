//! What a change of a Tailnet does to others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use tailnet_crds::{Kind, TailnetSpec};

use crate::evaluate::{verdict_by, verdict_of};
use crate::finding::{Class, Finding, Severity};
use crate::index::{IndexKey, canonical, index_keys, prefixes_of};
use crate::object::Object;
use crate::report::{Report, Shown, cut};
use crate::snapshot::Snapshot;
use crate::table::{self, Check, Layers, MEMBERS, Operations, RULES, Rule, WG};
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
    field: "spec.policy, spec.reservedNetworks, spec.tagGrants, spec.dns, spec.defaults.tls, spec.clusterName, spec.server",
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
        "TN006" | "TN302" => "spec.policy",
        "TN402" | "TN512" => "spec.reservedNetworks",
        "TN011" => "spec.tagGrants",
        "TN206" | "TN304" | "TN305" | "TN314" | "TN508" => "spec.dns",
        "TN309" | "TN318" => "spec.defaults.tls",
        _ => "spec",
    }
}

fn change_is_harmless(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let (Some(new), Some(old)) = (object.tailnet(), view.old().and_then(Object::tailnet)) else {
        return;
    };
    let readers = Readers::of(old, new);
    if readers.is_empty() {
        return;
    }
    // Names, default tags and host names follow the Tailnet, so the question is put to a copy in which it is changed already.
    let mut changed = view.snapshot.clone();
    changed.replace(object.clone());
    let harmed = harmed(&readers, &object.name, new, view.snapshot, &changed);
    for (member, first) in harmed.iter().take(NAMED) {
        let security = table::rule(first.rule).is_some_and(|rule| rule.security);
        let what = match security {
            true => "loses its grants and names",
            false => "stays as it is and takes no change",
        };
        let detail = format!(
            "by this {} breaks {} ({}) and {what}",
            cut(member, 120),
            first.rule,
            cut(&first.field, 60)
        );
        report.add(Class::Invalid, field_of(first.rule), Shown::NOTHING, detail);
    }
    if let more @ 1.. = harmed.len().saturating_sub(NAMED) {
        let detail = format!("by this {more} more objects break a rule");
        report.add(Class::Invalid, "spec", Shown::NOTHING, detail);
    }
}

/// What a change of the Tailnet breaks, by the member's name: the first finding that the member had not before. Only the
/// rules that read a changed field are asked, and of others whoever stands beside an object that gets effect by the change.
fn harmed(
    readers: &Readers,
    tailnet: &str,
    new: &TailnetSpec,
    before: &Snapshot,
    after: &Snapshot,
) -> BTreeMap<String, Finding> {
    let mut harmed = BTreeMap::new();
    let mut note = |member: &Object, found: Vec<Finding>, had: &[Finding]| {
        // TN005 speaks for itself where routeApprovers change.
        let first = found.into_iter().find(|finding| {
            finding.rule != "TN005"
                && !had
                    .iter()
                    .any(|had| had.rule == finding.rule && had.value == finding.value)
        });
        if let Some(first) = first {
            harmed.entry(member.to_string()).or_insert(first);
        }
    };
    let mut freed = Contested::default();
    let members = before.indexed(&IndexKey::Member(tailnet.to_owned()));
    for member in members.iter().filter(|member| !member.deleting) {
        if !readers.kinds.contains(&member.kind) {
            continue;
        }
        let ask = |snapshot: &Snapshot| verdict_by(member, snapshot, |rule| readers.has(rule));
        let (had, found) = (ask(before), ask(after));
        if had.iter().any(withdraws) && !found.iter().any(withdraws) {
            freed.add(member, new);
        }
        note(member, found, &had);
    }
    for member in freed.by_whom(tailnet, after) {
        if !member.deleting && member.tailnet_name() == Some(tailnet) {
            note(member, verdict_of(member, after), &verdict_of(member, before));
        }
    }
    harmed
}

/// Whether a finding leaves its object without effect, so that it stands in nobody's way.
fn withdraws(finding: &Finding) -> bool {
    finding.holder.is_none() && table::rule(finding.rule).is_some_and(|rule| rule.security)
}

/// What objects hold that get effect.
#[derive(Default)]
struct Contested {
    keys: BTreeSet<IndexKey>,
    prefixes: BTreeSet<IpNet>,
}

impl Contested {
    fn add(&mut self, object: &Object, tailnet: &TailnetSpec) {
        for key in index_keys(object, Some(tailnet)) {
            match key {
                IndexKey::Member(_) => continue,
                IndexKey::Name(ref of, ref name) => {
                    self.keys.insert(IndexKey::Apex(of.clone(), name.clone()));
                    self.keys.insert(IndexKey::StaticTarget(of.clone(), name.clone()));
                }
                IndexKey::Tag(ref of, ref tag) => {
                    self.keys.insert(IndexKey::RouterTag(of.clone(), tag.clone()));
                }
                IndexKey::RouterTag(ref of, ref tag) => {
                    self.keys.insert(IndexKey::Tag(of.clone(), tag.clone()));
                }
                _ => {}
            }
            self.keys.insert(key);
        }
        self.prefixes.extend(prefixes_of(object));
    }

    /// Who asks for any of it, once each.
    fn by_whom<'s>(&self, tailnet: &str, snapshot: &'s Snapshot) -> impl Iterator<Item = &'s Object> + use<'s> {
        let of_keys = self.keys.iter().flat_map(|key| snapshot.indexed(key));
        let of_prefixes = self.prefixes.iter().flat_map(|prefix| {
            let sites = snapshot.sites_overlapping(tailnet, *prefix);
            sites.into_iter().map(|(_, site)| site)
        });
        let asking: BTreeMap<usize, &Object> = of_keys
            .chain(of_prefixes)
            .filter(|asking| asking.kind != Kind::Tailnet)
            .map(|asking| (Arc::as_ptr(asking).addr(), asking.as_ref()))
            .collect();
        asking.into_values()
    }
}

/// The rules about members that read something which differs between two states of their Tailnet.
struct Readers {
    rules: Vec<&'static str>,
    /// Tags and host names are others, on which most rules rest.
    all: bool,
    /// The kinds that the rules are about.
    kinds: Vec<Kind>,
}

impl Readers {
    fn of(old: &TailnetSpec, new: &TailnetSpec) -> Self {
        let mut rules: Vec<&'static str> = Vec::new();
        let mut read = |differs: bool, by: &[&'static str]| {
            if differs {
                rules.extend(by);
            }
        };
        let allowlist = |spec: &TailnetSpec| Some(spec.policy.as_ref()?.ingress_source_allowlist.clone());
        read(allowlist(old) != allowlist(new), &["TN301", "TN315"]);
        let base = |spec: &TailnetSpec| Some(spec.policy.as_ref()?.base_config_map.clone());
        read(base(old) != base(new), &["TN302"]);
        let mode = |spec: &TailnetSpec| spec.policy.as_ref().map(|policy| policy.mode);
        read(mode(old) != mode(new), &["TN006"]);
        let tls = |spec: &TailnetSpec| spec.defaults.as_ref().and_then(|defaults| defaults.tls.clone());
        read(tls(old) != tls(new), &["TN309", "TN318"]);
        read(old.reserved_networks != new.reserved_networks, &["TN402", "TN512"]);
        read(old.tag_grants != new.tag_grants, &["TN011"]);
        read(old.dns != new.dns, &["TN206", "TN304", "TN305", "TN314", "TN508"]);
        read(
            old.server != new.server || old.api_endpoint() != new.api_endpoint(),
            &["TN206", "TN304"],
        );
        let mut readers = Self {
            rules,
            all: old.cluster_name != new.cluster_name,
            kinds: Vec::new(),
        };
        let about = |kind: &Kind| RULES.iter().any(|rule| rule.kinds.contains(kind) && readers.has(rule));
        readers.kinds = MEMBERS.iter().copied().filter(about).collect();
        readers
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty() && !self.all
    }

    fn has(&self, rule: &Rule) -> bool {
        self.all || self.rules.contains(&rule.id)
    }
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
