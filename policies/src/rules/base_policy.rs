//! The people's part of the policy, and what the rendered policy would do, as far as that can be told without Headscale.

use std::collections::BTreeSet;

use serde_json::Value;
use tailnet_crds::names::label::{POLICY, POLICY_BASE};
use tailnet_crds::{Kind, TailnetSpec};
use tailnet_headscale::document::Posture as RenderedPosture;

use crate::base::{BaseDocument, Fault, KEY};
use crate::facts::Posture;
use crate::finding::{Class, Outcome, Severity};
use crate::index::{IndexKey, canonical, read};
use crate::names;
use crate::object::{Object, Spec};
use crate::organisation;
use crate::policy_tests::{self, Rule as Allowed};
use crate::report::{Draft, Notes, Report, Shown, Unchecked, cut, quoted};
use crate::request::Layer;
use crate::snapshot::Snapshot;
use crate::table::{Check, Operations, Rule, WGV};
use crate::view::View;

/// Most faults of one document that are told.
const MOST: usize = 20;
/// Most characters of one fault.
const MAX_FAULT: usize = 200;

/// The base document is one that Headscale takes.
pub static TN106: Rule = Rule {
    id: "TN106",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.policy.baseConfigMap; data[policy.hujson] of a ConfigMap labelled tsunaro.io/policy: base",
    message: "the base document is HuJSON with keys that Headscale knows, each once, and names only groups, tags and hosts that are defined",
    why: "Headscale refuses a whole policy for one such fault, so that nobody's change would take effect any more. On the Tailnet it is a warning, \
          since the document may come later; on the ConfigMap itself it is a denial where the ConfigMap carries the label \
          `tsunaro.io/policy: base`. A tag without an owner is only warned about: the operator writes owners for tags that objects use.",
    example: "kind: ConfigMap\nmetadata: { name: tailnet-policy, namespace: tailnet-system, labels: { tsunaro.io/policy: base } }\ndata:\n  policy.hujson: |\n    { \"grants\": [{ \"src\": [\"group:opps\"], \"dst\": [\"*\"], \"ip\": [\"*\"] }] }   // the group is called group:ops",
    fix: "Put right what the message names, with its place; `headscale policy check` says the rest.",
    check: Check::Cross(base_is_readable),
};

/// The posture stays.
pub static TN110: Rule = Rule {
    id: "TN110",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.policy",
    message: "the rendered policy does not turn a tailnet that allows all into one that denies, or back",
    why: "A policy without `acls` and `grants` allows everything. The first rule in it turns that round: what nobody has written a rule for stops \
          working, everywhere, at once.",
    example: "kind: Tailnet\nspec:\n  policy: { baseConfigMap: tailnet-policy, mode: Apply }   # the policy in Headscale has no rules yet",
    fix: "Write rules for what shall go on working into the base document first, then set `policy.acknowledgePosture`.",
    check: Check::Cross(posture_stays),
};

/// The base's tests hold.
pub static TN111: Rule = Rule {
    id: "TN111",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.policy.baseConfigMap",
    message: "the tests in the base document hold for the rendered policy, as far as that can be told without Headscale",
    why: "Headscale runs a policy's `tests` on every write and refuses it when one fails. A test that names a tag which no node has would \
          fail too; the operator sets it aside until such a node is there, so that it does not keep everybody's changes out, and tests nothing.",
    example: "kind: ConfigMap\nmetadata: { name: tailnet-policy }\ndata:\n  policy.hujson: |\n    { \"grants\": [], \"tests\": [{ \"src\": \"tag:ci\", \"accept\": [\"db:5432\"] }] }",
    fix: "Add the rule that the test asks for, or take the test out until its node is there.",
    check: Check::Cross(tests_hold),
};

/// Tags that have an owner in the rendered policy although the base does not say so.
fn owned_tags(tailnet: &str, spec: &TailnetSpec, snapshot: &Snapshot) -> BTreeSet<String> {
    let mut tags: BTreeSet<String> = BTreeSet::new();
    tags.extend(
        spec.policy
            .iter()
            .flat_map(|policy| &policy.route_approvers)
            .map(canonical),
    );
    tags.extend(spec.tag_grants.iter().flat_map(|grant| &grant.tags).map(canonical));
    for member in snapshot.indexed(&IndexKey::Member(tailnet.to_owned())) {
        match &member.spec {
            Ok(Spec::Gateway(gateway)) => tags.extend(gateway.tags.iter().map(canonical)),
            Ok(Spec::Site(site)) => tags.extend(site.advertised_by.iter().map(canonical)),
            _ => tags.extend(names::tag_of(member, Some(spec))),
        }
    }
    tags
}

/// The base document of a Tailnet with a policy; notes when ConfigMaps are not known.
fn base_of<'v>(object: &Object, view: &'v View<'_>, report: &mut Report<'_>) -> Option<&'v BaseDocument> {
    let policy = object.tailnet()?.policy.as_ref()?;
    if !view.snapshot.base_documents_known() {
        report.unchecked(Unchecked::ConfigMaps);
        return None;
    }
    view.snapshot.base_document(&policy.base_config_map).map(AsRef::as_ref)
}

fn base_is_readable(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    const FIELD: &str = "spec.policy.baseConfigMap";
    let Some(spec) = object.tailnet() else { return };
    let Some(policy) = &spec.policy else { return };
    let Some(base) = base_of(object, view, report) else {
        if view.layer() == Layer::Lint {
            // What is not among the files may be elsewhere.
            report.unchecked(Unchecked::ConfigMaps);
        } else if view.snapshot.base_documents_known() {
            let detail = format!(
                "there is no ConfigMap of this name with the key {KEY} in namespace {} yet: nothing is rendered until there is",
                quoted(&view.snapshot.config().operator_namespace)
            );
            report
                .add(Class::NotFound, FIELD, &policy.base_config_map, detail)
                .warn();
        }
        return;
    };
    let faults = base.faults(&owned_tags(&object.name, spec, view.snapshot));
    tell(faults, report, |fault, report| {
        let text = match &fault.value {
            Some(value) => format!("{}: {}", cut(value, 60), fault.detail),
            None => fault.detail.clone(),
        };
        report
            .invalid(FIELD, &policy.base_config_map, cut(&text, MAX_FAULT))
            .warn()
    });
}

/// The first faults, and how many more there are.
fn tell<'r>(
    faults: Vec<Fault>,
    report: &mut Report<'r>,
    mut one: impl for<'d> FnMut(&Fault, &'d mut Report<'r>) -> &'d mut Draft,
) {
    let more = faults.len().saturating_sub(MOST);
    for (at, fault) in faults.iter().take(MOST).enumerate() {
        let draft = one(fault, report);
        if more > 0 && at + 1 == MOST {
            draft.detail.push_str(&format!("; and {more} more faults"));
        }
    }
}

/// The verdict on a ConfigMap that is a Tailnet's base document, or one of the organisation's policies, by its label. Anything
/// else is let through: this is for the webhook's entries for such ConfigMaps, and for lint. `old` is the stored ConfigMap of an update: what was wrong with it before is only
/// warned about.
pub fn evaluate_config_map(new: &Value, old: Option<&Value>, snapshot: &Snapshot) -> Outcome {
    let labelled = new.pointer("/metadata/labels").and_then(|labels| labels.get(POLICY));
    let namespace = new.pointer("/metadata/namespace").and_then(Value::as_str);
    if labelled.and_then(Value::as_str) != Some(POLICY_BASE)
        || namespace != Some(snapshot.config().operator_namespace.as_str())
    {
        return organisation::evaluate_config_map(new, old, snapshot);
    }
    let before: BTreeSet<String> = old
        .into_iter()
        .flat_map(|old| faults_in(old, snapshot))
        .map(|fault| fault.identity)
        .collect();
    let mut drafts = Vec::new();
    let mut report = Report {
        rule: &TN106,
        drafts: &mut drafts,
        notes: &mut Notes::new(),
    };
    tell(faults_in(new, snapshot), &mut report, |fault, report| {
        let value = fault.value.as_ref().map_or(Shown::NOTHING, Shown::from);
        let draft = report.add(
            Class::Invalid,
            "data[policy.hujson]",
            value,
            cut(&fault.detail, MAX_FAULT),
        );
        if fault.severity == Severity::Warn || before.contains(&fault.identity) {
            draft.warn();
        }
        draft
    });
    let mut findings: Vec<_> = drafts.into_iter().map(Draft::finish).collect();
    // One ConfigMap may be both.
    findings.extend(organisation::evaluate_config_map(new, old, snapshot).findings);
    findings.sort_by_key(|finding| finding.severity);
    Outcome {
        findings,
        ..Outcome::default()
    }
}

/// The faults of the base document in a ConfigMap.
fn faults_in(config_map: &Value, snapshot: &Snapshot) -> Vec<Fault> {
    let text = config_map.pointer("/data").and_then(|data| data.get(KEY));
    let Some(text) = text.and_then(Value::as_str) else {
        let detail = format!("a base document has its text under the key {KEY}");
        return vec![Fault {
            severity: Severity::Deny,
            value: None,
            identity: detail.clone(),
            detail,
        }];
    };
    let name = config_map
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut tags = BTreeSet::new();
    for tailnet in snapshot.list(Kind::Tailnet) {
        if let Some(spec) = tailnet.tailnet()
            && spec
                .policy
                .as_ref()
                .is_some_and(|policy| policy.base_config_map == name)
        {
            tags.extend(owned_tags(&tailnet.name, spec, snapshot));
        }
    }
    BaseDocument::read(text).faults(&tags)
}

/// The rules that the operator adds for the objects of a Tailnet.
fn generated(tailnet: &str, spec: &TailnetSpec, snapshot: &Snapshot) -> Vec<Allowed> {
    let mut rules = Vec::new();
    for member in snapshot.indexed(&IndexKey::Member(tailnet.to_owned())) {
        let Some(tag) = names::tag_of(member, Some(spec)).filter(|_| !member.deleting) else {
            continue;
        };
        match &member.spec {
            Ok(Spec::Egress(egress)) => {
                for target in &egress.targets {
                    if let Some(address) = read(&target.address).and_then(|address| address.ip()) {
                        let to = address.addr().to_string();
                        rules.push(Allowed::tcp(vec![tag.clone()], vec![to], i64::from(target.port)));
                    }
                }
            }
            Ok(Spec::Ingress(ingress)) if !ingress.allow_from.is_empty() => {
                let from: Vec<String> = ingress.allow_from.iter().map(canonical).collect();
                for expose in &ingress.exposes {
                    rules.push(Allowed::tcp(from.clone(), vec![tag.clone()], i64::from(expose.port)));
                }
            }
            _ => {}
        }
    }
    rules
}

fn posture_stays(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    let Some(policy) = spec
        .policy
        .as_ref()
        .filter(|policy| policy.acknowledge_posture.is_none())
    else {
        return;
    };
    let Some(known) = view.snapshot.facts(&object.name) else {
        report.unchecked(Unchecked::Facts(object.name.clone()));
        return;
    };
    let base = base_of(object, view, report).and_then(BaseDocument::policy);
    let has_rules = base.is_some_and(|base| base.posture() == RenderedPosture::Deny)
        || !generated(&object.name, spec, view.snapshot).is_empty();
    let live = match known.facts.policy.present {
        true => known.facts.policy.default_posture,
        false => Posture::AllowAll,
    };
    let detail = match (live, has_rules) {
        (Posture::AllowAll, true) => {
            "allow-all → deny: the live policy has no rules, the rendered one has some; whatever no rule allows would stop working"
        }
        (Posture::Deny, false) if base.is_some() => {
            "deny → allow-all: the live policy has rules, the rendered one would have none; everybody would reach everything"
        }
        _ => return,
    };
    report.invalid("spec.policy", &policy.base_config_map, detail);
}

fn tests_hold(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    let Some(base) = base_of(object, view, report).and_then(BaseDocument::policy) else {
        return;
    };
    let Some(policy) = spec.policy.as_ref().filter(|_| !base.tests.is_empty()) else {
        return;
    };
    let generated = generated(&object.name, spec, view.snapshot);
    let facts = view.snapshot.facts(&object.name).map(|known| known.facts.as_ref());
    for problem in policy_tests::failures(base, &generated, facts).into_iter().take(MOST) {
        report.invalid(
            "spec.policy.baseConfigMap",
            &policy.base_config_map,
            cut(&problem, MAX_FAULT),
        );
    }
}
