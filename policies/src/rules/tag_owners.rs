//! Owners of tags in a policy that others write.

use std::time::Duration;

use tailnet_crds::types::{Tag, Text};
use tailnet_crds::{Kind, PolicyMode};

use crate::facts::Posture;
use crate::finding::Severity;
use crate::index::canonical;
use crate::names;
use crate::object::{Object, Spec};
use crate::report::{Report, Unchecked};
use crate::table::{Check, Operations, Rule, WG};
use crate::view::View;

/// Facts that are older only warn.
const FRESH: Duration = Duration::from_secs(60);

/// Tags can be named by the policy.
pub static TN006: Rule = Rule {
    id: "TN006",
    kinds: &[Kind::TailnetEgress, Kind::TailnetIngress, Kind::TailnetGateway],
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Deny,
    security: false,
    field: "spec.tag, spec.tags",
    message: "the tag has an owner in the live policy, where this installation does not write that policy",
    why: "Headscale registers a node with any tag, but no rule can name a tag without an entry in `tagOwners`: the node would join and reach \
          nothing. In mode Apply of the Tailnet's `spec.policy` the operator adds the owners itself; in mode DryRun it writes nothing, so that a missing owner \
          is said (and not refused: DryRun is how a policy is prepared). What was read of the policy a minute ago or longer only warns, and nothing is \
          said while the policy has no rules at all.",
    example: "kind: TailnetEgress\nmetadata: { name: team-a }\nspec:\n  tag: tag:egress-team-a   # tagOwners of the policy in Headscale does not have it",
    fix: "Add the tag to `tagOwners` in Headscale's policy (an empty list of owners is enough) and wait for the next read, or set `spec.policy` of the Tailnet with mode Apply.",
    check: Check::Cross(tag_is_owned),
};

fn tag_is_owned(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    // What is only rendered gives no owner either.
    let dry_run = match &tailnet.policy {
        Some(policy) if policy.mode == PolicyMode::Apply => return,
        policy => policy.is_some(),
    };
    let Some(known) = view.snapshot.facts(name) else {
        report.unchecked(Unchecked::Facts(name.to_owned()));
        return;
    };
    let policy = &known.facts.policy;
    // Without rules everybody reaches everybody, whatever the tags.
    if !policy.present || policy.default_posture == Posture::AllowAll {
        return;
    }
    let mut tags: Vec<(String, String)> = Vec::new();
    match &object.spec {
        Ok(Spec::Gateway(spec)) => {
            let canonical = |tag: &Text<Tag>| canonical(tag);
            tags.extend(
                spec.tags
                    .iter()
                    .enumerate()
                    .map(|(at, tag)| (format!("spec.tags[{at}]"), canonical(tag))),
            );
        }
        _ => tags.extend(names::tag_of(object, Some(tailnet)).map(|tag| ("spec.tag".to_owned(), tag))),
    }
    for (field, tag) in tags {
        if policy.tag_owners.contains_key(&tag) {
            continue;
        }
        let remedy = match dry_run {
            true => "and mode DryRun writes none: set spec.policy.mode to Apply, or add it to tagOwners in Headscale",
            false => "no rule can name it, add it to tagOwners in Headscale",
        };
        let separator = if dry_run { "," } else { ":" };
        let detail = format!(
            "has no owner in the live policy ({}){separator} {remedy}",
            read_when(known.age)
        );
        let draft = report.invalid(field, tag.as_str(), detail);
        if dry_run || known.age >= FRESH {
            draft.warn();
        }
    }
}

/// How old what is known is, and when it is read again. In steps, so that the same question a second later gets the same answer.
fn read_when(age: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    match age.as_secs() {
        0..15 => "read less than 15 s ago, read again within about 15 s".to_owned(),
        15..MINUTE => "read less than a minute ago, the next read is due".to_owned(),
        seconds @ MINUTE..HOUR => format!(
            "not read for {} min, see condition Reachable of the Tailnet",
            seconds / MINUTE
        ),
        seconds if age != Duration::MAX => format!(
            "not read for {} h, see condition Reachable of the Tailnet",
            seconds / HOUR
        ),
        _ => "read at an unknown time".to_owned(),
    }
}
