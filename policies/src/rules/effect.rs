//! Whether a list of sources has the effect that it seems to have.

use tailnet_crds::Kind;
use tailnet_crds::types::Principal;

use crate::facts::Posture;
use crate::finding::{Class, Severity};
use crate::index::{canonical, read};
use crate::names;
use crate::object::Object;
use crate::policy_tests::{Answer, rules_of, within};
use crate::report::{Report, Shown, cut, quoted};
use crate::table::{Check, Operations, Rule, WGV};
use crate::view::View;

/// allowFrom decides.
pub static TN317: Rule = Rule {
    id: "TN317",
    kinds: &[Kind::TailnetIngress],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.allowFrom",
    message: "allowFrom decides who may connect",
    why: "allowFrom becomes a grant in the policy that this installation writes. Where it does not write one, nobody is let in by it (in mode DryRun neither, which \
          `PolicyReady` says). Where the live policy has no rules, or the base document has a wider one, others are let in as well.",
    example: "kind: Tailnet\nmetadata: { name: corp }\nspec:\n  server: https://control.example.net   # and no policy\n---\nkind: TailnetIngress\nspec:\n  allowFrom: [\"group:team-a\"]",
    fix: "Have the administrator set `spec.policy` with mode Apply, or narrow the rule of the base document that the message names.",
    check: Check::Cross(allow_from_decides),
};

fn allow_from_decides(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let asks = !spec.allow_from.is_empty();
    let mut add = |detail: String| {
        report.add(Class::Invalid, "spec.allowFrom", Shown::NOTHING, detail);
    };
    match &tailnet.policy {
        None if asks => add(format!(
            "makes no grant, since this installation does not write the policy of Tailnet {}: grant it in Headscale's policy",
            quoted(name)
        )),
        // In mode DryRun the administrator prepares the policy, and `PolicyReady` of every object says so: a warning at each ingress
        // helps nobody. Where the tag has no owner yet, TN006 warns.
        _ => {}
    }
    let live = view.snapshot.facts(name).map(|known| &known.facts.policy);
    if live.is_some_and(|live| !live.present || live.default_posture == Posture::AllowAll) {
        add("keeps nobody out: the live policy has no rules, so everybody in the tailnet reaches this".to_owned());
        return;
    }
    let Some(policy) = &tailnet.policy else { return };
    let base = view.snapshot.base_document(&policy.base_config_map);
    let (Some(base), Some(tag)) = (
        base.and_then(|base| base.policy()),
        names::tag_of(object, Some(tailnet)),
    ) else {
        return;
    };
    let allowed: Vec<String> = spec.allow_from.iter().map(canonical).collect();
    let everybody = spec
        .allow_from
        .iter()
        .any(|source| read(source) == Some(Principal::Any));
    for rule in rules_of(base).iter().filter(|_| !everybody) {
        if !rule.dst.iter().any(|dst| *dst == "*" || *dst == tag) {
            continue;
        }
        let wider = rule.src.iter().find(|source| {
            allowed
                .iter()
                .all(|allowed| within(source, allowed, base) == Answer::No)
                || **source == "*"
        });
        if let Some(wider) = wider {
            add(format!(
                "is not all: {} of the base document lets {} reach this too",
                rule.place,
                cut(wider, 63)
            ));
            return;
        }
    }
}
