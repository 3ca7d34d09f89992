//! The Tailnet itself: its server and the networks that it reserves.

use ipnet::IpNet;
use tailnet_crds::types::{AddressScope, FormatError, IpAddress, ServerUrl, Text, Transport};
use tailnet_crds::{Kind, TailnetSpec};

use crate::finding::{Class, Severity};
use crate::index::{IndexKey, canonical, network, read, server_endpoint};
use crate::object::Object;
use crate::prefixes::overlap;
use crate::report::{Report, cut};
use crate::rules::shared_objects;
use crate::rules::spelling::host_bits;
use crate::table::{CWV, Check, Operations, Rule, WGV};
use crate::view::View;

/// URLs of the server.
pub static TN101: Rule = Rule {
    id: "TN101",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.server, spec.api.endpoint",
    message: "a server URL is https, a host and at most a port",
    why: "Nodes join what stands in front of the path, so user info, query and path would be lost or leak. Without TLS everybody on the way \
          can read the API key and pose as the server; http is taken for loopback, private and in-cluster hosts only, with a warning.",
    example: "kind: Tailnet\nspec:\n  server: http://control.example.net/headscale",
    fix: "Write `https://control.example.net`; an own CA goes to `spec.api.caConfigMapRef`.",
    check: Check::Object(server_urls),
};

/// One Tailnet per server.
pub static TN102: Rule = Rule {
    id: "TN102",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.server, spec.api.endpoint, spec.dns.hostsConfigMap, spec.policy.baseConfigMap, spec.api.caConfigMapRef, spec.apiSecretRef",
    message: "no two Tailnets have one server, and a ConfigMap or Secret has one use",
    why: "Names, tags and prefixes are unique within a Tailnet. Two Tailnets for one server, named by its login URL or by its API endpoint and however \
          spelled, would hand out the same ones twice, and would take turns in writing one policy. Host and port count. The operator writes the hosts \
          ConfigMap: another Tailnet's, a base document or a CA bundle would be lost, and what the operator keeps for itself is nobody's.",
    example: "kind: Tailnet\nmetadata: { name: corp-2 }\nspec:\n  server: https://CONTROL.example.net:443   # the server of Tailnet corp",
    fix: "Use the Tailnet that exists, or another ConfigMap or Secret.",
    check: Check::Cross(one_use),
};

/// Reserved networks are networks.
pub static TN105: Rule = Rule {
    id: "TN105",
    kinds: &[Kind::Tailnet],
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.reservedNetworks",
    message: "a reserved network is a CIDR without bits behind its prefix, and not the tailnet's own range",
    why: "A reserved network keeps sites away from address space. With bits set behind the prefix it is unclear what is meant, and a network \
          that nobody can read protects nothing. The tailnet's own ranges are never a site's anyway (TN404).",
    example: "kind: Tailnet\nspec:\n  reservedNetworks: [10.96.0.1/12]",
    fix: "Write the network that the message names: `10.96.0.0/12`.",
    check: Check::Object(reserved_networks),
};

/// Address ranges that Headscale gives to nodes.
pub(crate) fn tailnet_ranges() -> [IpNet; 2] {
    const V4: ipnet::Ipv4Net = ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(100, 64, 0, 0), 10);
    const V6: ipnet::Ipv6Net =
        ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, 0), 48);
    [IpNet::V4(V4), IpNet::V6(V6)]
}

fn server_urls(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    server_url("spec.server", &spec.server, report);
    if let Some(endpoint) = spec.api.as_ref().and_then(|api| api.endpoint.as_ref()) {
        server_url("spec.api.endpoint", endpoint, report);
    }
}

fn server_url(path: &str, text: &Text<ServerUrl>, report: &mut Report<'_>) {
    let shown = without_user_info(text.as_str());
    if let Err(FormatError::Unreadable(problem)) = text.parse() {
        let said = report.said(Kind::Tailnet, path, 0);
        let detail = format!("{said}: it {}", cut(&problem, 80));
        report.invalid(path, &shown, detail);
        return;
    }
    if let Some(problem) = read(text).and_then(|url| no_server(&url)) {
        report.invalid(path, &shown, problem);
        return;
    }
    match read(text).map(|url| url.transport()) {
        Some(Transport::PlainPublic) => {
            let said = report.said(Kind::Tailnet, path, 1);
            report.invalid(path, &shown, said);
        }
        Some(Transport::PlainNearby) => {
            report
                .invalid(
                    path,
                    &shown,
                    "is http: whoever is on the way can read the API key and pose as the server",
                )
                .warn();
        }
        Some(Transport::Tls) | None => {}
    }
}

/// Why nothing can answer at a URL.
fn no_server(url: &ServerUrl) -> Option<&'static str> {
    let scope = url.host().parse::<IpAddress>().ok().map(IpAddress::scope);
    match scope {
        Some(AddressScope::Unicast | AddressScope::Loopback) | None if url.url().port() == Some(0) => {
            Some("has port 0, on which nothing listens")
        }
        Some(AddressScope::Unicast | AddressScope::Loopback) | None => None,
        Some(_) => Some("is not the address of one host: it is unspecified, link-local, multicast or broadcast"),
    }
}

/// The text with what stands before `@` hidden: it may be a password.
fn without_user_info(text: &str) -> String {
    match text.rsplit_once('@') {
        None => text.to_owned(),
        Some((before, after)) => match before.split_once("//") {
            Some((scheme, _)) => format!("{}//***@{after}", cut(scheme, 16)),
            None => format!("***@{after}"),
        },
    }
}

fn one_use(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    server_is_exclusive(object, view, report);
    shared_objects::of_tailnet(object, view, report);
}

fn server_is_exclusive(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    view.need(&[Kind::Tailnet], report);
    let old = view.old().and_then(|old| old.tailnet());
    let endpoints = |spec: &TailnetSpec| [server_endpoint(&spec.server), server_endpoint(spec.api_endpoint())];
    let had = old.map(endpoints);
    let endpoint = spec.api.as_ref().and_then(|api| api.endpoint.as_ref());
    let mut named: Vec<String> = Vec::new();
    for (field, url) in [("spec.server", Some(&spec.server)), ("spec.api.endpoint", endpoint)] {
        let Some((url, server)) = url.and_then(|url| Some((url, server_endpoint(url)?))) else {
            continue;
        };
        if named.contains(&server) {
            continue;
        }
        named.push(server.clone());
        let had = had.as_ref().is_some_and(|had| had.contains(&Some(server.clone())));
        let other = view
            .others(&IndexKey::Server(server))
            .find(|other| view.comes_after(had, other));
        if let Some(other) = other {
            let detail =
                format!("is the server of {other}: names, tags and prefixes are unique per Tailnet; use that one");
            report
                .add(
                    Class::Duplicate,
                    field,
                    without_user_info(&canonical(url)).as_str(),
                    detail,
                )
                .held_by(other.reference());
        }
    }
}

fn reserved_networks(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.tailnet() else { return };
    for (at, text) in spec.reserved_networks.iter().enumerate() {
        let path = format!("spec.reservedNetworks[{at}]");
        if let Err(FormatError::Unreadable(problem)) = text.parse() {
            report.invalid(path, text.as_str(), problem);
            continue;
        }
        if let Some(problem) = host_bits(text) {
            report.invalid(&path, text.as_str(), problem);
        }
        let Some(reserved) = network(text) else { continue };
        if let Some(range) = tailnet_ranges().iter().find(|range| overlap(range, &reserved)) {
            let detail = format!("overlaps {range}, the tailnet's own range, which no site may have anyway");
            report.invalid(path, text.as_str(), detail).warn();
        }
    }
}
