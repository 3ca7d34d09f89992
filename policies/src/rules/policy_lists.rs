//! Principals in the Tailnet's own lists.

use tailnet_crds::Kind;
use tailnet_crds::types::{FormatError, Principal, Text};
use tailnet_headscale::document::Policy;

use crate::facts::PolicyFacts;
use crate::finding::Severity;
use crate::index::{canonical, read};
use crate::object::Object;
use crate::report::{Report, cut};
use crate::rules::sources::{NO_SOURCE, base_of, is_source, undefined, undefined_in_base};
use crate::table::{Check, Operations, Rule, WGV};
use crate::view::View;

/// Lists hold what Headscale takes there.
pub static TN104: Rule = Rule {
    id: "TN104",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.policy.tagOwners[*], spec.policy.ingressSourceAllowlist[*], spec.tagGrants[*].tags",
    message: "owners of tags are users, groups or tags; allowed sources are such as Headscale takes in a grant",
    why: "Headscale refuses the whole policy for one entry that it does not take in its place, so that nothing of it would take effect. How tags in \
          `routeApprovers` and `tagGrants` are written is TN004's; a router's tag is not to be granted. A group or host that the base document does not define is refused where that \
          document is known; else one that the live policy does not define is warned about.",
    example: "kind: Tailnet\nspec:\n  policy: { baseConfigMap: tailnet-policy, tagOwners: [alice, autogroup:admin, 10.0.0.0/8] }",
    fix: "Write `alice@`, `group:platform` or `tag:operator` as owners.",
    check: Check::Cross(policy_lists),
};

/// A router's tag is nobody's to take: TN005 would refuse every object that does.
fn grants_of_router_tags(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    let approvers: Vec<String> = spec
        .policy
        .iter()
        .flat_map(|policy| &policy.route_approvers)
        .map(canonical)
        .collect();
    for (at, grant) in spec.tag_grants.iter().enumerate() {
        for (of, tag) in grant.tags.iter().enumerate() {
            if approvers.contains(&canonical(tag)) {
                let detail =
                    "is in policy.routeApprovers: a node with it could have routes approved, so no object may take it";
                report.forbidden(format!("spec.tagGrants[{at}].tags[{of}]"), tag.as_str(), detail);
            }
        }
    }
}

fn policy_lists(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    grants_of_router_tags(object, report);
    let Some(policy) = object.tailnet().and_then(|spec| spec.policy.as_ref()) else {
        return;
    };
    let facts = view
        .snapshot
        .facts(&object.name)
        .map(|aged| &aged.facts.policy)
        .filter(|policy| policy.present);
    let base = object.tailnet().and_then(|spec| base_of(spec, view.snapshot));
    let defined = Defined { base, facts };
    for (at, text) in policy.tag_owners.iter().enumerate() {
        let path = format!("spec.policy.tagOwners[{at}]");
        check(
            path,
            text,
            is_owner,
            "is no owner of a tag: Headscale takes users (alice@), groups and tags",
            &defined,
            report,
        );
    }
    for (at, text) in policy.ingress_source_allowlist.iter().enumerate() {
        let path = format!("spec.policy.ingressSourceAllowlist[{at}]");
        check(path, text, is_source, NO_SOURCE, &defined, report);
    }
}

/// Where groups and hosts are defined.
struct Defined<'a> {
    base: Option<&'a Policy>,
    facts: Option<&'a PolicyFacts>,
}

fn is_owner(principal: &Principal) -> bool {
    matches!(principal, Principal::User(_) | Principal::Group(_) | Principal::Tag(_))
}

fn check(
    path: String,
    text: &Text<Principal>,
    fits: fn(&Principal) -> bool,
    detail: &str,
    defined: &Defined<'_>,
    report: &mut Report<'_>,
) {
    if let Err(FormatError::Unreadable(problem)) = text.parse() {
        report.invalid(path, text.as_str(), cut(&problem, 160));
        return;
    }
    let Some(principal) = read(text) else { return };
    if !fits(&principal) {
        report.invalid(path, text.as_str(), detail);
    } else if let Some(base) = defined.base {
        // The base document alone defines groups and hosts.
        if let Some(problem) = undefined_in_base(&principal, base) {
            report.invalid(path, text.as_str(), problem);
        }
    } else if let Some(problem) = defined.facts.and_then(|facts| undefined(&principal, facts)) {
        report.invalid(path, text.as_str(), problem).warn();
    }
}
