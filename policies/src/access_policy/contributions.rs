//! What one object needs in the access policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::json;
use tailnet_crds::types::{Tag, Text};
use tailnet_crds::{Kind, Protocol, TailnetSpec};
use tailnet_headscale::document::{Grant, Policy};

use super::in_force::InForce;
use crate::guard_verdict::{Verdict, guard_verdict};
use crate::index::{canonical, network, read};
use crate::names;
use crate::object::{Object, Spec};
use crate::rules::server::tailnet_ranges;
use crate::snapshot::Snapshot;

/// What one object needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Contribution {
    /// Tags that must have an owner.
    pub(super) tags: BTreeSet<String>,
    /// Routes that are to be approved, with the tags of their routers.
    pub(super) routes: BTreeMap<IpNet, BTreeSet<String>>,
    /// Rules.
    pub(super) grants: Vec<Grant>,
    /// Addresses of an egress that gateways may advertise.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Whom the spec lets in: names that must be defined.
    pub(super) sources: BTreeSet<String>,
    /// Whether it is what is in force, whatever the spec says.
    pub(super) frozen: bool,
}

/// A tag in its canonical form; None for what is none.
fn tag(text: &Text<Tag>) -> Option<String> {
    read(text).map(|tag| tag.to_string())
}

/// `policy.routeApprovers`.
pub(super) fn approvers(spec: &TailnetSpec) -> BTreeSet<String> {
    let policy = spec.policy.iter();
    policy
        .flat_map(|policy| &policy.route_approvers)
        .filter_map(tag)
        .collect()
}

/// Tags of `spec.tagGrants`.
pub(super) fn granted_tags(spec: &TailnetSpec) -> BTreeSet<String> {
    spec.tag_grants
        .iter()
        .flat_map(|grant| &grant.tags)
        .filter_map(tag)
        .collect()
}

/// What `object` needs in the policy of a Tailnet with this `spec`; `approvers` may have routes approved, and gateways may
/// advertise the addresses `of_egresses`.
pub(super) fn contribution(
    object: &Object,
    spec: &TailnetSpec,
    approvers: &BTreeSet<String>,
    of_egresses: &BTreeSet<IpAddr>,
) -> Contribution {
    let mut needs = Contribution::default();
    match &object.spec {
        Ok(Spec::Egress(egress)) => {
            let Some(own) = own_tag(object, spec) else { return needs };
            let mut ports: BTreeMap<IpAddr, BTreeSet<i32>> = BTreeMap::new();
            for target in &egress.targets {
                let address = read(&target.address).and_then(|address| address.ip());
                if let Some(address) = address.filter(|_| target.protocol() == Protocol::Tcp) {
                    ports.entry(address.addr()).or_default().insert(target.port);
                }
            }
            for address in ports.keys() {
                if is_route(address) && !approvers.is_empty() {
                    needs.routes.insert(IpNet::from(*address), approvers.clone());
                }
            }
            needs.addresses = ports.keys().copied().filter(is_route).collect();
            needs.grants = egress_grants(&own, ports);
            needs.tags.insert(own);
        }
        Ok(Spec::Ingress(ingress)) => {
            let Some(own) = own_tag(object, spec) else { return needs };
            let ports: BTreeSet<i32> = ingress.exposes.iter().map(|expose| expose.port).collect();
            needs.sources = ingress.allow_from.iter().map(canonical).collect();
            let from = needs.sources.iter().cloned();
            needs.grants = ingress_grants(&own, from.map(|from| (from, ports.clone())).collect());
            needs.tags.insert(own);
        }
        Ok(Spec::Site(site)) => {
            let own: BTreeSet<String> = site.advertised_by.iter().filter_map(tag).collect();
            needs.tags.extend(own.iter().cloned());
            let routers = routers_of(&own, approvers);
            for prefix in site.prefixes.iter().filter_map(network) {
                if !routers.is_empty() {
                    needs.routes.insert(prefix.trunc(), routers.clone());
                }
            }
        }
        Ok(Spec::Gateway(gateway)) => {
            let own: BTreeSet<String> = gateway.tags.iter().filter_map(tag).collect();
            needs.tags.extend(own.iter().cloned());
            let routers: BTreeSet<String> = own.intersection(approvers).cloned().collect();
            // A draft does nothing yet.
            if !gateway.suspend && !routers.is_empty() {
                let lan = gateway.routes.lan.iter().chain([&gateway.service.tailnet_lb_cidr]);
                for prefix in lan.filter_map(network) {
                    needs.routes.insert(prefix.trunc(), routers.clone());
                }
                if gateway.routes.advertise_egress_targets {
                    for address in of_egresses.iter().filter(|address| address.is_ipv4()) {
                        needs.routes.insert(IpNet::from(*address), routers.clone());
                    }
                }
            }
        }
        Ok(Spec::Tailnet(_)) | Err(_) => {}
    }
    needs
}

/// The tags whose nodes count as routers of a site: its own that the administrator lets approve, or all of those.
pub(super) fn routers_of(own: &BTreeSet<String>, approvers: &BTreeSet<String>) -> BTreeSet<String> {
    match own.is_empty() {
        true => approvers.clone(),
        false => own.intersection(approvers).cloned().collect(),
    }
}

/// The tag of an egress or ingress, if it is one that Headscale takes.
fn own_tag(object: &Object, spec: &TailnetSpec) -> Option<String> {
    names::tag_of(object, Some(spec)).filter(|tag| tag.parse::<Tag>().is_ok())
}

/// Whether an address is reached by a route: a node's own address is none.
pub(super) fn is_route(address: &IpAddr) -> bool {
    !tailnet_ranges().iter().any(|range| range.contains(address))
}

/// Rules from `tag` to addresses. Those with the same ports share a rule; never an address with another one's port.
pub(super) fn egress_grants(tag: &str, to: BTreeMap<IpAddr, BTreeSet<i32>>) -> Vec<Grant> {
    by_ports(to)
        .into_iter()
        .map(|(ports, dst)| grant(vec![tag.to_owned()], dst, &ports))
        .collect()
}

/// Rules from names to `tag`.
pub(super) fn ingress_grants(tag: &str, from: BTreeMap<String, BTreeSet<i32>>) -> Vec<Grant> {
    by_ports(from)
        .into_iter()
        .filter(|(ports, _)| !ports.is_empty())
        .map(|(ports, src)| grant(src, vec![tag.to_owned()], &ports))
        .collect()
}

fn by_ports<P: ToString>(peers: BTreeMap<P, BTreeSet<i32>>) -> BTreeMap<BTreeSet<i32>, Vec<String>> {
    let mut found: BTreeMap<BTreeSet<i32>, Vec<String>> = BTreeMap::new();
    for (peer, ports) in peers {
        found.entry(ports).or_default().push(peer.to_string());
    }
    found
}

fn grant(src: Vec<String>, dst: Vec<String>, ports: &BTreeSet<i32>) -> Grant {
    Grant {
        src,
        dst,
        ip: ports.iter().map(|port| format!("tcp:{port}")).collect(),
        ..Grant::default()
    }
}

/// `{ "src": ["tag:a"], "dst": ["192.0.2.10"], "ip": ["tcp:5432"] }`
pub(super) fn grant_text(grant: &Grant) -> String {
    format!(
        "{{ \"src\": {}, \"dst\": {}, \"ip\": {} }}",
        list(&grant.src),
        list(&grant.dst),
        list(&grant.ip)
    )
}

/// `["a", "b"]`
pub(super) fn list<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| json!(text.as_ref()).to_string()).collect();
    format!("[{}]", texts.join(", "))
}

/// Entries that somebody has to add to a policy that this installation does not write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paste {
    /// For `tagOwners`.
    pub tag_owners: Vec<String>,
    /// For `autoApprovers.routes`.
    pub routes: Vec<String>,
    /// For `grants`.
    pub grants: Vec<String>,
}

impl Paste {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.tag_owners.is_empty() && self.routes.is_empty() && self.grants.is_empty()
    }
}

impl std::fmt::Display for Paste {
    /// `"tagOwners": { "tag:a": [] }; "grants": [ { … } ]`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        if !self.tag_owners.is_empty() {
            parts.push(format!("\"tagOwners\": {{ {} }}", self.tag_owners.join(", ")));
        }
        if !self.routes.is_empty() {
            parts.push(format!(
                "\"autoApprovers\": {{ \"routes\": {{ {} }} }}",
                self.routes.join(", ")
            ));
        }
        if !self.grants.is_empty() {
            parts.push(format!("\"grants\": [ {} ]", self.grants.join(", ")));
        }
        f.write_str(&parts.join("; "))
    }
}

/// The addresses that a gateway may advertise for the egresses of its Tailnet: of those that are frozen what `live` has, of
/// those without effect none.
fn egress_addresses(
    gateway: &Object,
    spec: &TailnetSpec,
    approvers: &BTreeSet<String>,
    snapshot: &Snapshot,
    live: &InForce<'_>,
) -> BTreeSet<IpAddr> {
    let members = gateway
        .tailnet_name()
        .into_iter()
        .flat_map(|name| snapshot.members(name));
    members
        .filter(|member| member.kind == Kind::TailnetEgress)
        .filter_map(|egress| effective(egress, spec, approvers, &BTreeSet::new(), snapshot, Some(live)))
        .flat_map(|needs| needs.addresses)
        .collect()
}

/// What `object` needs as far as the rules let it have effect: all, what is in force when it is frozen, None when it has none.
pub(super) fn effective(
    object: &Object,
    spec: &TailnetSpec,
    approvers: &BTreeSet<String>,
    of_egresses: &BTreeSet<IpAddr>,
    snapshot: &Snapshot,
    live: Option<&InForce<'_>>,
) -> Option<Contribution> {
    if object.deleting {
        return None;
    }
    let wants = contribution(object, spec, approvers, of_egresses);
    let in_force = || match live {
        Some(live) => live.of(object, &wants, snapshot),
        None => Contribution {
            tags: wants.tags.clone(),
            sources: wants.sources.clone(),
            ..Contribution::default()
        },
    };
    match guard_verdict(object, snapshot, |_| true, || in_force() != wants) {
        Verdict::Withdraw(_) => None,
        Verdict::Freeze(_) => Some(Contribution {
            frozen: true,
            ..in_force()
        }),
        Verdict::Valid => Some(wants),
    }
}

/// What `object` needs and the live `policy` does not have word for word: for Tailnets whose policy others write. A rule or
/// an approver that is wider than needed is not recognized as such here.
pub fn missing_entries(object: &Object, spec: &TailnetSpec, snapshot: &Snapshot, live: &Policy) -> Paste {
    let own: BTreeSet<String> = match &object.spec {
        Ok(Spec::Site(site)) => site.advertised_by.iter().filter_map(tag).collect(),
        Ok(Spec::Gateway(gateway)) => gateway.tags.iter().filter_map(tag).collect(),
        _ => BTreeSet::new(),
    };
    let approvers: BTreeSet<String> = approvers(spec).union(&own).cloned().collect();
    let of_egresses = match &object.spec {
        // Others write the document, so no comment of it says where entries come from.
        Ok(Spec::Gateway(_)) => egress_addresses(object, spec, &approvers, snapshot, &InForce::new("", live)),
        _ => BTreeSet::new(),
    };
    let needs = contribution(object, spec, &approvers, &of_egresses);
    let covered = |prefix: &IpNet, tags: &BTreeSet<String>| {
        live.auto_approvers.routes.iter().any(|(known, by)| {
            known.parse::<IpNet>().is_ok_and(|known| known.contains(prefix)) && tags.iter().all(|tag| by.contains(tag))
        })
    };
    Paste {
        tag_owners: needs
            .tags
            .iter()
            .filter(|tag| !live.tag_owners.contains_key(*tag))
            .map(|tag| format!("{}: []", json!(tag)))
            .collect(),
        routes: needs
            .routes
            .iter()
            .filter(|(prefix, tags)| !covered(prefix, tags))
            .map(|(prefix, tags)| format!("\"{prefix}\": {}", list(tags)))
            .collect(),
        grants: needs
            .grants
            .iter()
            .filter(|grant| !live.grants.iter().flatten().any(|known| known == *grant))
            .map(grant_text)
            .collect(),
    }
}
