//! Sites: prefixes and who advertises them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use tailnet_crds::Kind;
use tailnet_crds::types::FormatError;

use crate::finding::Severity;
use crate::index::network;
use crate::object::Object;
use crate::prefixes::overlap;
use crate::report::{Report, quoted};
use crate::rules::server::tailnet_ranges;
use crate::rules::spelling::host_bits;
use crate::rules::tags::looks_like_tag;
use crate::table::{CWGV, Check, Operations, Rule, WGV};
use crate::view::View;

const SITE: &[Kind] = &[Kind::TailnetSite];
/// Most other sites that are named for one prefix.
const MAX_NAMED: usize = 5;

/// Prefixes are CIDRs.
pub static TN400: Rule = Rule {
    id: "TN400",
    kinds: SITE,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.prefixes[*]",
    message: "a prefix is a CIDR; a single host is a /32 or /128",
    why: "Routes are approved by exact prefix: text that is no CIDR would never match what a router advertises.",
    example: "kind: TailnetSite\nspec:\n  prefixes: [10.20.0.0]",
    fix: "Write address and prefix length: `10.20.0.0/16`, or `10.20.0.7/32` for one host.",
    check: Check::Object(readable_prefixes),
};

/// Prefixes are canonical and do not overlap within the site.
pub static TN401: Rule = Rule {
    id: "TN401",
    kinds: SITE,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.prefixes[*]",
    message: "a site's prefixes have no bits behind the prefix, are not repeated, and do not contain each other",
    why: "Headscale approves `10.0.10.7/24` as that very text, which no router advertises. A prefix inside a sibling says the same twice, and \
          it would be unclear whose state is whose.",
    example: "kind: TailnetSite\nspec:\n  prefixes: [10.20.0.1/16, 10.20.30.0/24]",
    fix: "Write the network that the message names, and only the outer one of nested prefixes.",
    check: Check::Object(distinct_prefixes),
};

/// Sites keep off reserved networks.
pub static TN402: Rule = Rule {
    id: "TN402",
    kinds: SITE,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.prefixes[*]",
    message: "a site does not overlap the Tailnet's reservedNetworks",
    why: "Reserved networks are the administrator's: whoever routes them for the whole tailnet can draw traffic to itself.",
    example: "kind: Tailnet\nspec: { reservedNetworks: [10.96.0.0/12] }\n---\nkind: TailnetSite\nspec:\n  prefixes: [10.100.0.0/16]",
    fix: "Declare a prefix outside the reserved networks, or have the administrator change `spec.reservedNetworks` of the Tailnet.",
    check: Check::Cross(not_reserved),
};

/// Sites keep off each other.
pub static TN403: Rule = Rule {
    id: "TN403",
    kinds: SITE,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.prefixes[*]",
    message: "a site does not overlap another site of its Tailnet",
    why: "An address belongs to one site. With two, the more specific route wins silently, and traffic for one network ends in another. The \
          site that was there first keeps the prefix; between two that were created at once the operator's record decides.",
    example: "kind: TailnetSite\nmetadata: { name: branch }\nspec:\n  prefixes: [10.20.30.0/24]   # TailnetSite lab has 10.20.0.0/16",
    fix: "Declare a prefix that is free, or take it out of the other site first. A second router of the same network needs no second site: \
          any router with an `advertisedBy` tag counts.",
    check: Check::Cross(not_another_site),
};

/// Prefixes are of real networks.
pub static TN404: Rule = Rule {
    id: "TN404",
    kinds: SITE,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.prefixes[*]",
    message: "a prefix is a network of its own: not everything, not loopback, link-local or multicast, not the tailnet's or the cluster's range",
    why: "Everything (/0 and its halves) is an exit node, which is not a site. Loopback, link-local and multicast ranges mean something else on \
          every node, and the tailnet's own ranges are its nodes. A range of this cluster's Services or Pods would shadow them, so that is said.",
    example: "kind: TailnetSite\nspec:\n  prefixes: [0.0.0.0/1, 100.64.1.0/24]",
    fix: "Declare the networks that lie behind the router.",
    check: Check::Cross(real_networks),
};

/// Routers are tags.
pub static TN405: Rule = Rule {
    id: "TN405",
    kinds: SITE,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.advertisedBy[*]",
    message: "advertisedBy holds tags, each once; when it is empty the Tailnet's policy has routeApprovers",
    why: "Routers are found by tag: a host name or a user cannot be an approver of a tagged router. With neither advertisedBy nor \
          routeApprovers no router can ever qualify.",
    example: "kind: TailnetSite\nspec:\n  advertisedBy: [router-1, group:platform]",
    fix: "Write the routers' tag, such as `tag:router`.",
    check: Check::Cross(routers_are_tags),
};

fn readable_prefixes(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.site() else { return };
    for (at, text) in spec.prefixes.iter().enumerate() {
        if let Err(FormatError::Unreadable(problem)) = text.parse() {
            report.invalid(format!("spec.prefixes[{at}]"), text.as_str(), problem);
        }
    }
}

fn distinct_prefixes(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.site() else { return };
    let networks: Vec<Option<IpNet>> = spec
        .prefixes
        .iter()
        .map(|text| network(text).map(|net| net.trunc()))
        .collect();
    for (at, text) in spec.prefixes.iter().enumerate() {
        let path = format!("spec.prefixes[{at}]");
        if let Some(problem) = host_bits(text) {
            report.invalid(&path, text.as_str(), problem);
        }
        let Some(own) = networks[at] else { continue };
        // Each pair is reported once: equal ones at the later place, nested ones at the inner prefix.
        let clash = networks.iter().enumerate().find_map(|(of, other)| {
            let other = (*other)?;
            match own == other {
                true => (of < at).then_some((of, true)),
                false => other.contains(&own).then_some((of, false)),
            }
        });
        match clash {
            Some((of, true)) => {
                report.duplicate(
                    path,
                    text.as_str(),
                    format!(
                        "{}: it is spec.prefixes[{of}] too",
                        report.said(object.kind, "spec.prefixes", 0)
                    ),
                );
            }
            Some((of, false)) => {
                let outer = &spec.prefixes[of];
                let said = report.said(object.kind, "spec.prefixes", 1);
                let detail = format!(
                    "{said}: it is inside spec.prefixes[{of}] ({})",
                    crate::report::cut(outer.as_str(), 64)
                );
                report.duplicate(path, text.as_str(), detail);
            }
            None => {}
        }
    }
}

fn not_reserved(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.site() else { return };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let reserved: Vec<IpNet> = tailnet.reserved_networks.iter().filter_map(network).collect();
    for (at, text) in spec.prefixes.iter().enumerate() {
        let Some(own) = network(text) else { continue };
        if let Some(range) = reserved.iter().find(|range| overlap(range, &own)) {
            let detail = format!(
                "overlaps {range}, which Tailnet {} reserves: declare a prefix outside it",
                quoted(name)
            );
            report.forbidden(format!("spec.prefixes[{at}]"), text.as_str(), detail);
        }
    }
}

fn not_another_site(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.site() else { return };
    view.need(SITE, report);
    let tailnet = &spec.tailnet_ref.name;
    for (at, text) in spec.prefixes.iter().enumerate() {
        let Some(own) = network(text).map(|net| net.trunc()) else {
            continue;
        };
        let mut named: Vec<&Object> = Vec::new();
        for (theirs, other) in view.winning_sites(tailnet, own) {
            if named.iter().any(|named| named.same_as(other)) {
                continue;
            }
            if named.len() == MAX_NAMED {
                break;
            }
            named.push(other);
            let detail = format!("overlaps {theirs} of {other}: an address belongs to one site");
            view.held(report, format!("spec.prefixes[{at}]"), text.as_str(), other, detail);
        }
    }
}

fn real_networks(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.site() else { return };
    for (at, text) in spec.prefixes.iter().enumerate() {
        let Some(own) = network(text) else { continue };
        let path = format!("spec.prefixes[{at}]");
        if own.prefix_len() <= 1 {
            let said = report.said(object.kind, "spec.prefixes[]", 0);
            report.invalid(
                path,
                text.as_str(),
                format!("{said}, which is an exit node and not a site"),
            );
            continue;
        }
        if let Some((range, what)) = special_ranges().into_iter().find(|(range, _)| overlap(range, &own)) {
            let said = report.said(object.kind, "spec.prefixes[]", 1);
            report.invalid(path, text.as_str(), format!("{said} ({range} is {what})"));
            continue;
        }
        if let Some((what, range)) = cluster_range(&own, view) {
            let detail = format!("overlaps {range}, this cluster's {what} range: it would shadow it");
            report.invalid(path, text.as_str(), detail).warn();
        }
    }
}

/// The range of this cluster that a network overlaps, and what it is for.
pub(crate) fn cluster_range(own: &IpNet, view: &View<'_>) -> Option<(&'static str, IpNet)> {
    let config = view.snapshot.config();
    [("Service", &config.service_cidrs), ("Pod", &config.pod_cidrs)]
        .into_iter()
        .find_map(|(what, ranges)| Some((what, *ranges.iter().find(|range| overlap(range, own))?)))
}

/// Ranges that are no network behind a router.
pub(crate) fn special_ranges() -> Vec<(IpNet, &'static str)> {
    let v4 = |a, b, len| IpNet::new(IpAddr::V4(Ipv4Addr::new(a, b, 0, 0)), len).ok();
    let v6 = |a, len| IpNet::new(IpAddr::V6(Ipv6Addr::new(a, 0, 0, 0, 0, 0, 0, 0)), len).ok();
    let broadcast = IpNet::new(IpAddr::V4(Ipv4Addr::BROADCAST), 32).ok();
    let loopback_v6 = IpNet::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 128).ok();
    let unspecified_v6 = IpNet::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 128).ok();
    let [tailnet_v4, tailnet_v6] = tailnet_ranges().map(Some);
    [
        (v4(0, 0, 8), "the unspecified range"),
        (v4(127, 0, 8), "the loopback range"),
        (v4(169, 254, 16), "the link-local range"),
        (v4(224, 0, 4), "the multicast range"),
        (broadcast, "the broadcast address"),
        (tailnet_v4, "the tailnet's own range"),
        (unspecified_v6, "the unspecified address"),
        (loopback_v6, "the loopback address"),
        (v6(0xfe80, 10), "the link-local range"),
        (v6(0xff00, 8), "the multicast range"),
        (tailnet_v6, "the tailnet's own range"),
    ]
    .into_iter()
    .filter_map(|(range, what)| Some((range?, what)))
    .collect()
}

fn routers_are_tags(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.site() else { return };
    for (at, tag) in spec.advertised_by.iter().enumerate() {
        if !looks_like_tag(tag) {
            let said = report.said(object.kind, "spec.advertisedBy[]", 0);
            let detail = format!("{said}; routers are found by tag, such as tag:router");
            report.invalid(format!("spec.advertisedBy[{at}]"), tag.as_str(), detail);
        } else if let Some(first) = spec.advertised_by[..at].iter().position(|earlier| earlier == tag) {
            let said = report.said(object.kind, "spec.advertisedBy", 0);
            report.duplicate(
                format!("spec.advertisedBy[{at}]"),
                tag.as_str(),
                format!("{said}: it is spec.advertisedBy[{first}] too"),
            );
        }
    }
    if spec.advertised_by.is_empty()
        && let Some((name, tailnet)) = view.tailnet(report)
        && tailnet
            .policy
            .as_ref()
            .is_none_or(|policy| policy.route_approvers.is_empty())
    {
        let detail = format!(
            "names no router, and Tailnet {} has no policy.routeApprovers to take instead",
            quoted(name)
        );
        report.required("spec.advertisedBy", detail).warn();
    }
}
