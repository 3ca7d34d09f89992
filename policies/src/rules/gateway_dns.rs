//! Zones and records of a gateway.

use std::collections::BTreeMap;

use tailnet_crds::Kind;
use tailnet_crds::types::{AddressScope, DnsName, FormatError, Text};

use crate::finding::{Class, Severity};
use crate::index::{IndexKey, canonical, read, static_name};
use crate::object::Object;
use crate::report::{Report, Shown, cut, quoted};
use crate::table::{CWGV, CWV, Check, Operations, Rule};
use crate::view::View;

const GATEWAY: &[Kind] = &[Kind::TailnetGateway];

/// Zones are distinct and have resolvers.
pub static TN507: Rule = Rule {
    id: "TN507",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.dns.zone, spec.dns.extraZones",
    message: "zones are DNS names that do not overlap; an upstream is one unicast address, not the gateway's own, each once",
    why: "A name inside two zones would be answered by the one or the other. An upstream that is the gateway's own address asks itself for ever.",
    example: "kind: TailnetGateway\nspec:\n  service: { loadBalancerIP: 198.51.100.17 }\n  dns:\n    zone: prod.example.net\n    extraZones:\n      - { zone: corp.prod.example.net, upstreams: [198.51.100.17] }",
    fix: "Choose zones beside each other and the resolvers that serve them today.",
    check: Check::Cross(zones),
};

/// Static records make a zone.
pub static TN508: Rule = Rule {
    id: "TN508",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.dns.staticRecords[*]",
    message: "a static record is an address or a target below the zone; a target stands alone and leads to an end",
    why: "A name with a target (CNAME) can have nothing else, the zone's own name is the gateway's, and a loop has no answer. Resolvers refuse the \
          whole zone for one such record. Names are relative to the zone: with the zone written behind them they would have it twice.",
    example: "kind: TailnetGateway\nspec:\n  dns:\n    zone: prod.example.net\n    staticRecords:\n      - { name: api, target: api.prod.example.net }",
    fix: "Give a name addresses or one target outside the loop; write `api`, not `api.prod.example.net`.",
    check: Check::Cross(static_records),
};

fn zones(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let domain = &view.snapshot.config().cluster_domain;
    let mut zone = |path: String, place: &str, text: &Text<DnsName>| -> Option<DnsName> {
        if let Err(FormatError::Unreadable(problem)) = text.parse() {
            let said = report.said(Kind::TailnetGateway, place, 0);
            report.invalid(path, text.as_str(), format!("{said}: it {}", cut(&problem, 80)));
        } else if let Some(name) = read(text) {
            let name = name.to_string();
            let inside = name.strip_suffix(domain.as_str());
            if inside.is_some_and(|rest| rest.is_empty() || rest.ends_with('.')) {
                let detail = format!("is in the cluster's own domain {domain:?}, which the cluster's DNS answers");
                report.forbidden(path, text.as_str(), detail);
            }
        }
        read(text)
    };
    let primary = zone("spec.dns.zone".into(), "spec.dns.zone", &spec.dns.zone);
    let extra: Vec<Option<DnsName>> = spec
        .dns
        .extra_zones
        .iter()
        .enumerate()
        .map(|(at, extra)| {
            zone(
                format!("spec.dns.extraZones[{at}].zone"),
                "spec.dns.extraZones[].zone",
                &extra.zone,
            )
        })
        .collect();
    let overlap = |a: &DnsName, b: &DnsName| a.is_within(b) || b.is_within(a);
    let own_addresses = [read(&spec.service.load_balancer_ip), read(&spec.dns.service_cluster_ip)];
    for (at, entry) in spec.dns.extra_zones.iter().enumerate() {
        let path = format!("spec.dns.extraZones[{at}].zone");
        if let Some(own) = &extra[at] {
            if primary.as_ref().is_some_and(|primary| overlap(own, primary)) {
                let said = report.said(object.kind, "spec.dns", 0);
                report.invalid(
                    &path,
                    entry.zone.as_str(),
                    format!("{said} ({})", cut(spec.dns.zone.as_str(), 100)),
                );
            }
            let clash = extra[..at]
                .iter()
                .position(|other| other.as_ref().is_some_and(|other| overlap(own, other)));
            if let Some(of) = clash {
                let said = report.said(object.kind, "spec.dns.extraZones", 0);
                report.invalid(
                    &path,
                    entry.zone.as_str(),
                    format!("{said}: see spec.dns.extraZones[{of}]"),
                );
            }
        }
        for (of, upstream) in entry.upstreams.iter().enumerate() {
            let path = format!("spec.dns.extraZones[{at}].upstreams[{of}]");
            let place = "spec.dns.extraZones[].upstreams[]";
            if let Err(FormatError::Unreadable(_)) = upstream.parse() {
                let said = report.said(object.kind, place, 0);
                report.invalid(path, upstream.as_str(), said);
                continue;
            }
            let Some(address) = read(upstream) else { continue };
            if address.scope() != AddressScope::Unicast {
                let said = report.said(object.kind, place, 1);
                report.invalid(&path, upstream.as_str(), said);
            }
            if own_addresses.contains(&Some(address)) {
                let said = report.said(object.kind, "spec", 0);
                report.invalid(&path, upstream.as_str(), said);
            }
            if entry.upstreams[..of]
                .iter()
                .any(|earlier| read(earlier) == Some(address))
            {
                let said = report.said(object.kind, "spec.dns.extraZones[].upstreams", 0);
                report.duplicate(&path, upstream.as_str(), said);
            }
        }
    }
}

fn static_records(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    view.need(&[Kind::TailnetEgress, Kind::TailnetIngress], report);
    let zone = canonical(&spec.dns.zone);
    // Names with a target, and where they lead; names with addresses.
    let mut targets: BTreeMap<String, String> = BTreeMap::new();
    let mut first_at: BTreeMap<String, (usize, bool)> = BTreeMap::new();
    for (at, record) in spec.dns.static_records.iter().enumerate() {
        let path = format!("spec.dns.staticRecords[{at}]");
        let is_target = record.target.is_some();
        if is_target == record.address.is_some() {
            let said = report.said(object.kind, "spec.dns.staticRecords[]", 0);
            report.invalid(&path, Shown::NOTHING, said);
            continue;
        }
        if !relative_name(&format!("{path}.name"), &record.name, &zone, report) {
            continue;
        }
        let name = static_name(spec, &canonical(&record.name));
        if let Some(target) = &record.target {
            if let Err(FormatError::Unreadable(problem)) = target.parse() {
                report.invalid(
                    format!("{path}.target"),
                    target.as_str(),
                    format!("is not a DNS name: it {}", cut(&problem, 80)),
                );
                continue;
            }
            targets.insert(name.clone(), canonical(target));
            if let Some(tailnet) = object.tailnet_name()
                && let Some(holder) = view.others(&IndexKey::Name(tailnet.to_owned(), name.clone())).next()
            {
                let detail = format!("has a target (CNAME), but {holder} publishes an address for it");
                report
                    .add(Class::Duplicate, format!("{path}.name"), record.name.as_str(), detail)
                    .held_by(holder.reference());
            }
        }
        match first_at.get(&name) {
            Some((of, other_is_target)) if is_target || *other_is_target => {
                let detail =
                    format!("is the name of spec.dns.staticRecords[{of}] too: a name with a target stands alone");
                report.duplicate(format!("{path}.name"), record.name.as_str(), detail);
            }
            Some((of, _)) if spec.dns.static_records[*of].address == record.address => {
                let detail = format!("repeats spec.dns.staticRecords[{of}]");
                report.duplicate(&path, record.name.as_str(), detail);
            }
            Some(_) => {}
            None => {
                first_at.insert(name, (at, is_target));
            }
        }
    }
    for (at, record) in spec.dns.static_records.iter().enumerate() {
        let (Some(target), Some(_)) = (&record.target, read(&record.name)) else {
            continue;
        };
        let start = static_name(spec, &canonical(&record.name));
        let mut seen = vec![start.clone()];
        let mut next = targets.get(&start);
        while let Some(name) = next {
            if *name == start {
                let detail = format!(
                    "leads back to itself by way of {} names: a loop has no answer",
                    seen.len()
                );
                report.invalid(format!("spec.dns.staticRecords[{at}].target"), target.as_str(), detail);
                break;
            }
            if seen.contains(name) {
                break;
            }
            seen.push(name.clone());
            next = targets.get(name);
        }
    }
}

/// Whether a record's name is one below the zone.
fn relative_name(path: &str, text: &Text<DnsName>, zone: &str, report: &mut Report<'_>) -> bool {
    if let Err(FormatError::Unreadable(problem)) = text.parse() {
        let detail = match text.as_str().trim() {
            "@" | "" => "is the zone's own name, which is the gateway itself".to_owned(),
            _ => format!("is not a DNS name: it {}", cut(&problem, 80)),
        };
        report.invalid(path, text.as_str(), detail);
        return false;
    }
    let name = canonical(text);
    if name == zone {
        report.invalid(
            path,
            text.as_str(),
            "is the zone's own name, which is the gateway itself",
        );
        return false;
    }
    if let Some(relative) = name.strip_suffix(zone).and_then(|rest| rest.strip_suffix('.')) {
        let detail = format!("ends in the zone, to which it is relative: write {}", quoted(relative));
        report.invalid(path, text.as_str(), detail);
        return false;
    }
    if name.len() + 1 + zone.len() > 253 {
        report.invalid(
            path,
            text.as_str(),
            "is too long together with the zone: a DNS name has at most 253 characters",
        );
        return false;
    }
    true
}
