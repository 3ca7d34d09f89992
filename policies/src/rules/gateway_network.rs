//! The gateway's networks and addresses.

use ipnet::IpNet;
use tailnet_crds::names::label::RESERVED_PREFIXES;
use tailnet_crds::types::{AddressScope, Cidr, FormatError, IpAddress, Text};
use tailnet_crds::{Kind, TailnetGatewaySpec};

use crate::finding::Severity;
use crate::index::{network, read};
use crate::object::Object;
use crate::prefixes::overlap;
use crate::report::Report;
use crate::rules::site::{cluster_range, special_ranges};
use crate::rules::spelling::host_bits;
use crate::table::{CWGV, CWV, Check, Operations, Rule};
use crate::view::View;

const GATEWAY: &[Kind] = &[Kind::TailnetGateway];

/// Networks and addresses are usable.
pub static TN503: Rule = Rule {
    id: "TN503",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.routes.lan[*], spec.service, spec.dns",
    message: "the gateway's networks are canonical IPv4 CIDRs that a host can have, its addresses those of one host",
    why: "The networks become routes of the whole tailnet: everything and its halves, unspecified, loopback, link-local and multicast ranges and the \
          tailnet's own would take traffic from every node, as with a site (TN404). Routes are approved by exact text, so bits behind the prefix would \
          never be approved. A range of this cluster's Services or Pods would shadow them, so that is said.",
    example: "kind: TailnetGateway\nspec:\n  routes: { lan: [192.0.2.1/24, 0.0.0.0/0] }",
    fix: "Write the networks of the LAN, `192.0.2.0/24`, and single unicast addresses.",
    check: Check::Cross(usable_networks),
};

/// The resolver's address is in the pool.
pub static TN504: Rule = Rule {
    id: "TN504",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.service.loadBalancerIP",
    message: "loadBalancerIP is inside tailnetLBCIDR",
    why: "Peers reach the resolver through the advertised pool; an address outside it is not routed to them.",
    example: "kind: TailnetGateway\nspec:\n  service: { loadBalancerIP: 198.51.101.17, tailnetLBCIDR: 198.51.100.0/24 }",
    fix: "Choose an address of the pool.",
    check: Check::Object(address_in_pool),
};

/// Pool labels are the platform's.
pub static TN511: Rule = Rule {
    id: "TN511",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.service.poolLabels",
    message: "a pool label is not one of the operator's own",
    why: "By its own labels the operator finds the Service again; a pool label of that name would overwrite them.",
    example: "kind: TailnetGateway\nspec:\n  service:\n    poolLabels: { tsunaro.io/owner-name: other }",
    fix: "Use the label that the LoadBalancer implementation selects by, such as `io.cilium/lb-pool`.",
    check: Check::Object(pool_labels),
};

fn usable_networks(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    for (at, lan) in spec.routes.lan.iter().enumerate() {
        distinct(spec, at, lan, report);
        usable_network(format!("spec.routes.lan[{at}]"), "spec.routes.lan[]", lan, view, report);
    }
    usable_network(
        "spec.service.tailnetLBCIDR".into(),
        "spec.service.tailnetLBCIDR",
        &spec.service.tailnet_lb_cidr,
        view,
        report,
    );
    unicast(
        "spec.service.loadBalancerIP",
        "spec.service.loadBalancerIP",
        &spec.service.load_balancer_ip,
        report,
    );
    unicast(
        "spec.dns.serviceClusterIP",
        "spec.dns.serviceClusterIP",
        &spec.dns.service_cluster_ip,
        report,
    );
    if let Some(address) = &spec.dns.wildcard_address {
        unicast("spec.dns.wildcardAddress", "spec.dns.wildcardAddress", address, report);
    }
    for (at, record) in spec.dns.static_records.iter().enumerate() {
        if let Some(address) = &record.address {
            unicast(
                &format!("spec.dns.staticRecords[{at}].address"),
                "spec.dns.staticRecords[].address",
                address,
                report,
            );
        }
    }
}

/// As with the prefixes of a site (TN401): each once, and none inside another.
fn distinct(spec: &TailnetGatewaySpec, at: usize, lan: &Text<Cidr>, report: &mut Report<'_>) {
    let Some(own) = network(lan).map(|net| net.trunc()) else {
        return;
    };
    let others = spec.routes.lan.iter().enumerate().filter(|(of, _)| *of != at);
    for (of, other) in others {
        let Some(theirs) = network(other).map(|net| net.trunc()) else {
            continue;
        };
        let path = format!("spec.routes.lan[{at}]");
        if own == theirs && of < at {
            let said = report.said(Kind::TailnetGateway, "spec.routes.lan", 0);
            report.duplicate(path, lan.as_str(), format!("{said}: it is spec.routes.lan[{of}] too"));
            return;
        }
        if own != theirs && theirs.contains(&own) {
            let detail = format!("is inside spec.routes.lan[{of}] ({theirs}): leave out the smaller one");
            report.duplicate(path, lan.as_str(), detail);
            return;
        }
    }
}

fn usable_network(path: String, place: &str, text: &Text<Cidr>, view: &View<'_>, report: &mut Report<'_>) {
    if let Err(FormatError::Unreadable(_)) = text.parse() {
        let said = report.said(Kind::TailnetGateway, place, 0);
        report.invalid(path, text.as_str(), said);
        return;
    }
    if let Some(problem) = host_bits(text) {
        report.invalid(&path, text.as_str(), problem);
    }
    match network(text) {
        Some(IpNet::V6(_)) => {
            let said = report.said(Kind::TailnetGateway, place, 0);
            report.invalid(path, text.as_str(), said);
        }
        Some(own @ IpNet::V4(v4)) => {
            let said = report.said(Kind::TailnetGateway, place, 1);
            if v4.prefix_len() <= 1 {
                report.invalid(path, text.as_str(), said);
            } else if let Some((range, what)) = special_ranges().into_iter().find(|(range, _)| overlap(range, &own)) {
                report.invalid(path, text.as_str(), format!("{said} ({range} is {what})"));
            } else if let Some((what, range)) = cluster_range(&own, view) {
                let detail = format!("overlaps {range}, this cluster's {what} range: it would shadow it");
                report.invalid(path, text.as_str(), detail).warn();
            }
        }
        None => {}
    }
}

/// An address of one host; `place` is the schema's path.
pub(crate) fn unicast(path: &str, place: &str, text: &Text<IpAddress>, report: &mut Report<'_>) {
    if let Err(FormatError::Unreadable(problem)) = text.parse() {
        report.invalid(path, text.as_str(), problem);
        return;
    }
    if read(text).is_some_and(|address| address.scope() != AddressScope::Unicast) {
        // The schema says it for some places only; the words are the same everywhere.
        let said = match tailnet_crds::cel::rules()
            .filter(|row| row.id == report.rule.id && row.path == place)
            .nth(1)
        {
            Some(row) => row.message,
            None => "is not the address of one host: it is unspecified, loopback, link-local, multicast or broadcast",
        };
        report.invalid(path, text.as_str(), said);
    }
}

fn address_in_pool(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let service = &spec.service;
    let (Some(address), Some(pool)) = (read(&service.load_balancer_ip), network(&service.tailnet_lb_cidr)) else {
        return;
    };
    if !pool.contains(&address.addr()) {
        let said = report.said(object.kind, "spec.service", 0);
        report.invalid(
            "spec.service.loadBalancerIP",
            service.load_balancer_ip.as_str(),
            format!("{said} {pool}"),
        );
    }
}

fn pool_labels(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    for key in spec.service.pool_labels.keys() {
        if RESERVED_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
            let said = report.said(object.kind, "spec.service.poolLabels", 0);
            report.forbidden("spec.service.poolLabels", key, said);
        }
    }
}
