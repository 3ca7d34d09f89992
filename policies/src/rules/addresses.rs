//! Addresses of egress targets.

use ipnet::IpNet;
use tailnet_crds::Kind;
use tailnet_crds::types::{AddressScope, FormatError, IpAddress, TargetAddress};

use crate::finding::Severity;
use crate::index::{network, read};
use crate::object::Object;
use crate::report::{Report, quoted};
use crate::table::{CWGV, Check, Operations, Rule, WGV};
use crate::view::View;

const EGRESS: &[Kind] = &[Kind::TailnetEgress];

/// Addresses are of one host somewhere else.
pub static TN203: Rule = Rule {
    id: "TN203",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.targets[*].address",
    message: "a target's address is an IP address of a host elsewhere, or a DNS name",
    why: "A name whose last label is a number is a mistyped address. Unspecified, loopback, link-local, multicast and broadcast addresses mean \
          something else on every node: dialled by an agent they would reach the agent itself or the cloud's metadata service. An address of \
          this cluster's Services or Pods is reached without a tailnet, so that is said.",
    example: "kind: TailnetEgress\nspec:\n  targets:\n    - { name: db, address: 10.0.0.300, port: 5432 }\n    - { name: meta, address: 169.254.169.254, port: 80 }",
    fix: "Write the address or the DNS name of the remote host.",
    check: Check::Cross(target_addresses),
};

/// Addresses in reserved space are suspicious.
pub static TN204: Rule = Rule {
    id: "TN204",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.targets[*].address",
    message: "a target's address lies outside the Tailnet's reservedNetworks",
    why: "Reserved networks are space that no site may have, so it is unlikely that a router of the tailnet serves the address.",
    example: "kind: Tailnet\nspec: { reservedNetworks: [10.96.0.0/12] }\n---\nkind: TailnetEgress\nspec:\n  targets: [{ name: db, address: 10.96.0.10, port: 5432 }]",
    fix: "Check the address; where it is right, take its network out of `spec.reservedNetworks`.",
    check: Check::Cross(reserved_addresses),
};

fn target_addresses(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    let config = view.snapshot.config();
    for (at, target) in spec.targets.iter().enumerate() {
        let path = || format!("spec.targets[{at}].address");
        let text = target.address.as_str();
        if let Err(FormatError::Unreadable(problem)) = target.address.parse() {
            report.invalid(path(), text, problem);
            continue;
        }
        match read(&target.address) {
            Some(TargetAddress::Ip(address)) => {
                if let Some(problem) = unreachable_scope(address) {
                    let said = report.said(object.kind, "spec.targets[].address", 1);
                    report.invalid(path(), text, format!("{said} ({problem})"));
                    continue;
                }
                let own = [("Service", &config.service_cidrs), ("Pod", &config.pod_cidrs)];
                for (what, ranges) in own {
                    if let Some(range) = ranges.iter().find(|range| range.contains(&address.addr())) {
                        let detail = format!(
                            "is in this cluster's own {what} range {range}, which is reached without a tailnet"
                        );
                        report.invalid(path(), text, detail).warn();
                    }
                }
            }
            Some(TargetAddress::Name(name)) => {
                let last = name.labels().next_back().unwrap_or_default();
                if last == "localhost" {
                    let said = report.said(object.kind, "spec.targets[].address", 2);
                    report.invalid(path(), text, said);
                } else if last == "svc" {
                    report
                        .invalid(
                            path(),
                            text,
                            "is a Service of this cluster, which is reached without a tailnet",
                        )
                        .warn();
                } else if config.in_cluster_domain(name.as_str()) {
                    let detail = format!(
                        "is in this cluster's own domain {}, which is reached without a tailnet",
                        config.cluster_domain
                    );
                    report.invalid(path(), text, detail).warn();
                }
            }
            None => {}
        }
    }
}

/// Why an address cannot be a target, if so.
fn unreachable_scope(address: IpAddress) -> Option<&'static str> {
    Some(match address.scope() {
        AddressScope::Unspecified => "unspecified",
        AddressScope::Loopback => "loopback would reach the agent itself",
        AddressScope::LinkLocal => "link-local, where metadata services answer",
        AddressScope::Multicast => "multicast",
        AddressScope::Broadcast => "broadcast",
        AddressScope::Unicast => return None,
    })
}

fn reserved_addresses(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let reserved: Vec<IpNet> = tailnet.reserved_networks.iter().filter_map(network).collect();
    for (at, target) in spec.targets.iter().enumerate() {
        let Some(address) = read(&target.address).and_then(|address| address.ip()) else {
            continue;
        };
        if let Some(range) = reserved.iter().find(|range| range.contains(&address.addr())) {
            let detail = format!(
                "is in {range}, which Tailnet {} reserves: no site may serve it",
                quoted(name)
            );
            report.invalid(format!("spec.targets[{at}].address"), target.address.as_str(), detail);
        }
    }
}
