//! The names that a gateway serves.

use std::collections::BTreeSet;

use tailnet_crds::Kind;
use tailnet_crds::types::DnsName;

use crate::claims::ClaimKey;
use crate::finding::{Class, Severity};
use crate::index::{IndexKey, claim_keys, read};
use crate::object::Object;
use crate::report::{Report, Shown, list, quoted};
use crate::table::{Check, Operations, Rule, WGV};
use crate::view::View;

/// Published names are in a zone.
pub static TN517: Rule = Rule {
    id: "TN517",
    kinds: &[Kind::TailnetGateway],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.dns.zone, spec.dns.extraZones[*].zone",
    message: "the names that the Tailnet publishes are in the zones of the gateway",
    why: "The gateway answers for its zones only. A name of the hosts file outside of them is not served to peers that ask this gateway.",
    example: "kind: TailnetGateway\nspec:\n  dns: { zone: prod-1.example.internal }   # Tailnet corp publishes portal.team-a.lab.example.net",
    fix: "Add an extra zone for the names, change the Tailnet's name template, or leave it when other resolvers serve them.",
    check: Check::Cross(names_are_served),
};

fn names_are_served(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    // Without a hosts file there is nothing to serve.
    if tailnet.dns.as_ref().is_none_or(|dns| dns.hosts_config_map.is_none()) {
        return;
    }
    view.need(&[Kind::TailnetEgress, Kind::TailnetIngress], report);
    let zones: Vec<DnsName> = std::iter::once(&spec.dns.zone)
        .chain(spec.dns.extra_zones.iter().map(|extra| &extra.zone))
        .filter_map(read)
        .collect();
    let members = view.snapshot.indexed(&IndexKey::Member(name.to_owned()));
    let members = members
        .iter()
        .filter(|member| !member.deleting && matches!(member.kind, Kind::TailnetEgress | Kind::TailnetIngress));
    let mut outside: BTreeSet<String> = BTreeSet::new();
    for member in members {
        for key in claim_keys(member, Some(tailnet)) {
            if let ClaimKey::Name(name) = key
                && let Ok(parsed) = name.parse::<DnsName>()
                && !zones.iter().any(|zone| parsed.is_within(zone))
            {
                outside.insert(name);
            }
        }
    }
    if outside.is_empty() {
        return;
    }
    let shown: Vec<String> = outside.into_iter().collect();
    let detail = format!(
        "these names of Tailnet {} are in no zone of this gateway, which does not serve them: {}",
        quoted(name),
        list(&shown)
    );
    report.add(Class::Invalid, "spec.dns", Shown::NOTHING, detail);
}
