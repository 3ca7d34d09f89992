//! Whether what is asked for can work, as far as Headscale's state tells.

use std::time::Duration;

use ipnet::IpNet;
use tailnet_crds::Kind;

use crate::finding::{Class, Severity};
use crate::index::{canonical, network, read};
use crate::names;
use crate::object::Object;
use crate::report::{Report, Shown, Unchecked, list, quoted};
use crate::rules::server::tailnet_ranges;
use crate::snapshot::AgedFacts;
use crate::table::{Check, Operations, Rule, WG, WGV};
use crate::view::View;

/// Facts that are older say nothing of what is advertised now.
const FRESH: Duration = Duration::from_secs(60);

const EGRESS: &[Kind] = &[Kind::TailnetEgress];

/// Tailnet addresses belong to nodes.
pub static TN205: Rule = Rule {
    id: "TN205",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Warn,
    security: false,
    field: "spec.targets[*].address",
    message: "an address of the tailnet's own range is a node's",
    why: "Such an address is given to one node and to another after that one is gone; a node's MagicDNS name stays.",
    example: "kind: TailnetEgress\nspec:\n  targets: [{ name: nas, address: 100.64.0.99, port: 445 }]",
    fix: "Use the node's MagicDNS name, or the address that `headscale nodes list` shows.",
    check: Check::Cross(tailnet_address_is_a_node),
};

/// Targets are routed.
pub static TN207: Rule = Rule {
    id: "TN207",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Warn,
    security: false,
    field: "spec.targets[*].address",
    message: "a site, a gateway, a route or a node covers the address",
    why: "Nobody on the tailnet says that he leads to this address, so the target would be `NotAdvertised`.",
    example: "kind: TailnetEgress\nspec:\n  targets: [{ name: db, address: 203.0.113.5, port: 5432 }]   # no router advertises it",
    fix: "Let a router advertise the network, and declare it as a TailnetSite.",
    check: Check::Cross(target_is_covered),
};

/// Names need a grant in the base.
pub static TN208: Rule = Rule {
    id: "TN208",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.targets[*].address",
    message: "a target with a DNS name has its grant in the base policy",
    why: "Grants name addresses. What a DNS name resolves to changes, so no grant is generated for it.",
    example: "kind: TailnetEgress\nspec:\n  targets: [{ name: db, address: db.site.example.net, port: 5432 }]",
    fix: "Add a grant from the egress's tag to the target's network to the base policy, or write the address.",
    check: Check::Cross(name_needs_grant),
};

/// Sites are approved by somebody.
pub static TN406: Rule = Rule {
    id: "TN406",
    kinds: &[Kind::TailnetSite],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.advertisedBy",
    message: "the routers of a site are in routeApprovers of a Tailnet whose policy this installation owns",
    why: "The routes of a site are approved by the rendered policy for the tags in `policy.routeApprovers`. Without that the site is only \
          observed: somebody has to approve its routes in Headscale.",
    example: "kind: Tailnet\nspec:\n  policy: { baseConfigMap: tailnet-policy, routeApprovers: [\"tag:router\"] }\n---\nkind: TailnetSite\nspec:\n  advertisedBy: [\"tag:branch\"]",
    fix: "Add the tag to `spec.policy.routeApprovers` of the Tailnet.",
    check: Check::Cross(site_is_approved),
};

/// What is known of the object's server; notes that nothing is.
fn facts<'v>(object: &Object, view: &'v View<'_>, report: &mut Report<'_>) -> Option<&'v AgedFacts> {
    let name = object.tailnet_name()?;
    // Without the Tailnet there is no server; that is said once, by TN001.
    view.tailnet_spec()?;
    let facts = view.snapshot.facts(name);
    if facts.is_none() {
        report.unchecked(Unchecked::Facts(name.to_owned()));
    }
    facts
}

fn tailnet_address_is_a_node(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    for (at, target) in spec.targets.iter().enumerate() {
        let Some(address) = read(&target.address).and_then(|address| address.ip()) else {
            continue;
        };
        if !tailnet_ranges().iter().any(|range| range.contains(&address.addr())) {
            continue;
        }
        let Some(known) = facts(object, view, report) else {
            return;
        };
        if !known.has_address(address.addr()) {
            let detail = "is in the tailnet's own range, but no known node has it: use the node's MagicDNS name";
            report.add(
                Class::NotFound,
                format!("spec.targets[{at}].address"),
                target.address.as_str(),
                detail,
            );
        }
    }
}

fn target_is_covered(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    let Some(tailnet) = object.tailnet_name() else { return };
    let gateways: Vec<IpNet> = view
        .snapshot
        .list(Kind::TailnetGateway)
        .filter(|gateway| !gateway.deleting && gateway.tailnet_name() == Some(tailnet))
        .filter_map(|gateway| gateway.gateway())
        .flat_map(|gateway| {
            gateway
                .routes
                .lan
                .iter()
                .chain([&gateway.service.tailnet_lb_cidr])
                .filter_map(network)
        })
        .collect();
    for (at, target) in spec.targets.iter().enumerate() {
        let Some(address) = read(&target.address).and_then(|address| address.ip()) else {
            continue;
        };
        if tailnet_ranges().iter().any(|range| range.contains(&address.addr())) {
            continue;
        }
        let Some(known) = facts(object, view, report) else {
            return;
        };
        if known.age >= FRESH {
            return;
        }
        let host = IpNet::from(address.addr());
        let covered = gateways.iter().any(|range| range.contains(&host))
            || view.sites(tailnet, host).iter().any(|(range, _)| range.contains(&host))
            || known.is_advertised(address.addr());
        if !covered {
            let detail = "is covered by no site, gateway or known route of the tailnet: it would be NotAdvertised";
            report.add(
                Class::NotFound,
                format!("spec.targets[{at}].address"),
                target.address.as_str(),
                detail,
            );
        }
    }
}

fn name_needs_grant(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    let tag = names::tag_of(object, view.tailnet_spec()).unwrap_or_else(|| "the egress's tag".to_owned());
    for (at, target) in spec.targets.iter().enumerate() {
        if read(&target.address).is_some_and(|address| address.name().is_some()) {
            let detail =
                format!("is a DNS name, for which no grant is generated: the base policy must have one from {tag}");
            report.invalid(format!("spec.targets[{at}].address"), target.address.as_str(), detail);
        }
    }
}

fn site_is_approved(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.site() else { return };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let Some(policy) = &tailnet.policy else {
        let detail = format!(
            "this installation does not own the policy of Tailnet {}: the site is only observed",
            quoted(name)
        );
        report.add(Class::Invalid, "spec.advertisedBy", Shown::NOTHING, detail);
        return;
    };
    let approvers: Vec<String> = policy.route_approvers.iter().map(canonical).collect();
    for (at, tag) in spec.advertised_by.iter().enumerate() {
        let tag = canonical(tag);
        if !approvers.contains(&tag) {
            let detail = format!(
                "is not in policy.routeApprovers of Tailnet {} ({}): its routes are not approved",
                quoted(name),
                list(&approvers)
            );
            report.invalid(format!("spec.advertisedBy[{at}]"), tag.as_str(), detail);
        }
    }
}
