//! Tags: the authorization of a node.

use tailnet_crds::Kind;
use tailnet_crds::types::{FormatError, Tag, Text};

use crate::claims::ClaimKey;
use crate::facts::Facts;
use crate::finding::{Class, Severity};
use crate::index::{IndexKey, canonical};
use crate::names;
use crate::object::{Object, Spec};
use crate::report::{Report, Unchecked, cut, list, quoted};
use crate::table::{ALL, CWGV, Check, Operations, Rule, WGV};
use crate::view::View;

/// Tags are written as Headscale takes them.
pub static TN004: Rule = Rule {
    id: "TN004",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.tag, spec.tags, spec.advertisedBy, spec.tagGrants[*].tags, spec.policy.routeApprovers",
    message: "a tag is `tag:` and a name of lower-case letters, digits and dashes that begins with a letter",
    why: "Headscale mints a key for `tag:1x`, but no policy can name that tag: the node would join and have no rights, without any error.",
    example: "kind: TailnetEgress\nspec:\n  tag: tag:1db",
    fix: "Write a tag such as `tag:db-1`, or leave `spec.tag` out.",
    check: Check::Object(tag_format),
};

/// A tag of an egress or ingress is its own.
pub static TN005: Rule = Rule {
    id: "TN005",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.tag, spec.tags, spec.advertisedBy, spec.policy.routeApprovers",
    message: "the tag of an egress or ingress is nobody else's",
    why: "The tag is the authorization: what the policy grants to a tag, every node with it may do. Two objects with one tag share all their \
          grants, and an egress with a router's tag may have routes approved, be the router this cluster's or one that only Headscale \
          knows (a tag in `autoApprovers` of the live policy, or of a node that advertises a route). Gateways may share their tags with each \
          other and with sites.",
    example: "kind: TailnetEgress\nmetadata: { name: b, namespace: tailnet-system }\nspec:\n  tag: tag:egress-a   # the tag of TailnetEgress a",
    fix: "Leave `spec.tag` out: the default is unique. For a rename, see the annotation `tsunaro.io/takes-over`.",
    check: Check::Cross(tag_is_exclusive),
};

/// Tenants take their own tag or one that is granted to them.
pub static TN011: Rule = Rule {
    id: "TN011",
    kinds: &[Kind::TailnetEgress, Kind::TailnetIngress],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.tag",
    message: "outside the operator namespace a tag is the default one or one that the Tailnet's tagGrants give",
    why: "Whoever may write a TailnetIngress in a namespace would otherwise take any tag of the tailnet, and with it whatever the policy \
          grants to that tag.",
    example: "kind: TailnetIngress\nmetadata: { name: portal, namespace: team-a }\nspec:\n  tag: tag:router",
    fix: "Leave `spec.tag` out, or have an administrator add the namespace and the tag to `spec.tagGrants` of the Tailnet.",
    check: Check::Cross(tag_is_granted),
};

fn tag_format(object: &Object, report: &mut Report<'_>) {
    let mut check = |tag: &Text<Tag>, path: String| {
        if let Err(FormatError::Unreadable(problem)) = tag.parse() {
            report.invalid(path, tag.as_str(), problem);
        }
    };
    match &object.spec {
        Ok(Spec::Egress(spec)) => spec.tag.iter().for_each(|tag| check(tag, "spec.tag".into())),
        Ok(Spec::Ingress(spec)) => spec.tag.iter().for_each(|tag| check(tag, "spec.tag".into())),
        Ok(Spec::Gateway(spec)) => {
            spec.tags
                .iter()
                .enumerate()
                .for_each(|(at, tag)| check(tag, format!("spec.tags[{at}]")));
        }
        // What is no tag at all is the place's own error (TN104, TN405).
        Ok(Spec::Site(spec)) => {
            let tags = spec
                .advertised_by
                .iter()
                .enumerate()
                .filter(|(_, tag)| looks_like_tag(tag));
            tags.for_each(|(at, tag)| check(tag, format!("spec.advertisedBy[{at}]")));
        }
        Ok(Spec::Tailnet(spec)) => {
            for (at, grant) in spec.tag_grants.iter().enumerate() {
                for (of, tag) in grant.tags.iter().enumerate() {
                    check(tag, format!("spec.tagGrants[{at}].tags[{of}]"));
                }
            }
            let approvers = spec
                .policy
                .iter()
                .flat_map(|policy| &policy.route_approvers)
                .enumerate();
            approvers.for_each(|(at, tag)| check(tag, format!("spec.policy.routeApprovers[{at}]")));
        }
        Err(_) => {}
    }
}

/// Whether a text is meant as a tag.
pub(crate) fn looks_like_tag(text: &Text<Tag>) -> bool {
    let text = text.as_str().trim();
    text.get(..4).is_some_and(|prefix| prefix.eq_ignore_ascii_case("tag:"))
}

fn tag_is_exclusive(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(tailnet) = object.tailnet_name() else { return };
    view.need(
        &[
            Kind::TailnetEgress,
            Kind::TailnetIngress,
            Kind::TailnetSite,
            Kind::TailnetGateway,
        ],
        report,
    );
    let held = |tag: &str| IndexKey::Tag(tailnet.to_owned(), tag.to_owned());
    let routers = |tag: &str| IndexKey::RouterTag(tailnet.to_owned(), tag.to_owned());
    match &object.spec {
        Ok(Spec::Egress(_) | Spec::Ingress(_)) => {
            let Some(tag) = names::tag_of(object, view.tailnet_spec()) else {
                return;
            };
            let key = ClaimKey::Tag(tag.clone());
            if let Some(holder) = view.winner(&held(&tag), &key) {
                let detail = format!("is the tag of {holder}: a tag is an identity, sharing it shares its grants");
                view.held(report, "spec.tag", tag.as_str(), &holder, detail);
            } else if let Some(router) = view.others(&routers(&tag)).find(|router| {
                // A Tailnet's approvers count whoever came first; else since when each has the tag decides.
                router.kind == Kind::Tailnet || view.yields(&tag, router)
            }) {
                let role = match router.kind {
                    Kind::Tailnet => "approves routes on",
                    Kind::TailnetSite => "is the router's of",
                    _ => "is the tag of",
                };
                let detail = format!("{role} {router}: with a router's tag this node could have routes approved");
                report
                    .add(Class::Duplicate, "spec.tag", tag.as_str(), detail)
                    .held_by(router.reference());
            } else if let Some(role) = view
                .snapshot
                .facts(tailnet)
                .and_then(|known| role_of_router(&known.facts, &tag))
            {
                let detail = format!("{role}: with a router's tag this node could have routes approved");
                report.add(Class::Duplicate, "spec.tag", tag.as_str(), detail);
            }
        }
        Ok(Spec::Gateway(spec)) => {
            for (at, tag) in spec.tags.iter().enumerate() {
                router_takes(object, view, report, &format!("spec.tags[{at}]"), tag, &held);
            }
        }
        Ok(Spec::Site(spec)) => {
            for (at, tag) in spec.advertised_by.iter().enumerate() {
                router_takes(object, view, report, &format!("spec.advertisedBy[{at}]"), tag, &held);
            }
        }
        Ok(Spec::Tailnet(spec)) => {
            // The Tailnet's owner decides; the objects lose their effect (fail closed) and are named.
            let approvers = spec
                .policy
                .iter()
                .flat_map(|policy| &policy.route_approvers)
                .enumerate();
            for (at, tag) in approvers {
                let tag = canonical(tag);
                let losers: Vec<String> = view.others(&held(&tag)).map(|other| other.to_string()).collect();
                if !losers.is_empty() {
                    let detail = format!("is the tag of {}, which thereby loses effect", list(&losers));
                    report
                        .add(
                            Class::Duplicate,
                            format!("spec.policy.routeApprovers[{at}]"),
                            tag.as_str(),
                            detail,
                        )
                        .warn();
                }
            }
        }
        Err(_) => {}
    }
}

/// How `tag` is a router's by what Headscale says, whoever administers those routers: nodes of egresses and ingresses never
/// advertise a route.
fn role_of_router(facts: &Facts, tag: &str) -> Option<String> {
    let policy = &facts.policy;
    if let Some((prefix, _)) = policy
        .auto_approver_routes
        .iter()
        .find(|(_, approvers)| approvers.iter().any(|approver| approver == tag))
    {
        return Some(format!(
            "approves {prefix} in autoApprovers of the tailnet's live policy"
        ));
    }
    if policy.auto_approver_exit_nodes.iter().any(|approver| approver == tag) {
        return Some("approves exit nodes in autoApprovers of the tailnet's live policy".to_owned());
    }
    let tagged = facts.nodes.iter().filter(|node| node.tags.contains(tag));
    tagged
        .flat_map(|node| {
            facts
                .routes
                .iter()
                .filter(move |route| route.node_id == node.id)
                .map(move |route| (node, route))
        })
        .next()
        .map(|(node, route)| format!("is the tag of node {}, a router of {}", node.given_name, route.prefix))
}

/// A gateway or a site names a tag that an egress or ingress has.
fn router_takes(
    object: &Object,
    view: &View<'_>,
    report: &mut Report<'_>,
    path: &str,
    tag: &Text<Tag>,
    held: &impl Fn(&str) -> IndexKey,
) {
    let tag = canonical(tag);
    if let Some(holder) = view.others(&held(&tag)).find(|holder| view.yields(&tag, holder)) {
        let what = if object.kind == Kind::TailnetSite {
            "its routers"
        } else {
            "this gateway"
        };
        let detail = format!("is the tag of {holder}: {what} would have its grants, and it could have routes approved");
        view.held(report, path, tag.as_str(), &holder, detail);
    }
}

fn tag_is_granted(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    if view.in_operator_namespace() {
        return;
    }
    let own = match &object.spec {
        Ok(Spec::Egress(spec)) => spec.tag.as_ref(),
        Ok(Spec::Ingress(spec)) => spec.tag.as_ref(),
        _ => None,
    };
    let Some(tag) = own.map(canonical) else { return };
    let Some(spec) = view.tailnet_spec() else {
        // The default tag of a Tailnet without cluster name is never wrong; any other may be.
        if names::default_tag_of(object, None).as_ref() != Some(&tag)
            && let Some(name) = object.tailnet_name()
        {
            report.unchecked(Unchecked::NoTailnet(name.to_owned()));
        }
        return;
    };
    let default = names::default_tag_of(object, Some(spec));
    if default.as_ref() == Some(&tag) {
        return;
    }
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let granted: Vec<String> = spec
        .tag_grants
        .iter()
        .filter(|grant| grant.namespaces.iter().any(|granted| granted == namespace))
        .flat_map(|grant| grant.tags.iter().map(canonical))
        .collect();
    if granted.contains(&tag) {
        return;
    }
    let own = default.map_or_else(
        || "the default one".to_owned(),
        |default| format!("its own {}", cut(&default, 128)),
    );
    let detail = format!(
        "namespace {} may use {own} or what spec.tagGrants of the Tailnet gives it ({})",
        quoted(namespace),
        list(&granted)
    );
    report.forbidden("spec.tag", tag.as_str(), detail);
}
