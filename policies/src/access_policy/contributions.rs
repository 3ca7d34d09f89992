//! What one object needs in the access policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::json;
use tailnet_crds::types::{Tag, Text};
use tailnet_crds::{Protocol, TailnetSpec};
use tailnet_headscale::document::{Grant, Policy};

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

/// What `object` needs in the policy of a Tailnet with this `spec`; `approvers` may have routes approved.
pub(super) fn contribution(
    object: &Object,
    spec: &TailnetSpec,
    approvers: &BTreeSet<String>,
    snapshot: &Snapshot,
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
                // A node's own address is no route.
                if !tailnet_ranges().iter().any(|range| range.contains(address)) && !approvers.is_empty() {
                    needs.routes.insert(IpNet::from(*address), approvers.clone());
                }
            }
            // Addresses with the same ports share a rule; never an address with another one's port.
            let mut addresses: BTreeMap<BTreeSet<i32>, Vec<String>> = BTreeMap::new();
            for (address, ports) in ports {
                addresses.entry(ports).or_default().push(address.to_string());
            }
            needs.grants = addresses
                .into_iter()
                .map(|(ports, dst)| grant(vec![own.clone()], dst, &ports))
                .collect();
            needs.tags.insert(own);
        }
        Ok(Spec::Ingress(ingress)) => {
            let Some(own) = own_tag(object, spec) else { return needs };
            let ports: BTreeSet<i32> = ingress.exposes.iter().map(|expose| expose.port).collect();
            let mut from: Vec<String> = ingress.allow_from.iter().map(canonical).collect();
            from.sort();
            from.dedup();
            if !from.is_empty() && !ports.is_empty() {
                needs.grants = vec![grant(from, vec![own.clone()], &ports)];
            }
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
                    for address in egress_addresses(object, snapshot) {
                        needs.routes.insert(IpNet::from(address), routers.clone());
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

/// The IPv4 addresses of the egress targets of a gateway's Tailnet.
fn egress_addresses(gateway: &Object, snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::new();
    for member in gateway
        .tailnet_name()
        .into_iter()
        .flat_map(|name| snapshot.members(name))
    {
        if let Ok(Spec::Egress(egress)) = &member.spec
            && !member.deleting
        {
            let read = egress.targets.iter().filter_map(|target| read(&target.address)?.ip());
            addresses.extend(read.map(|address| address.addr()).filter(IpAddr::is_ipv4));
        }
    }
    addresses
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

/// What `object` needs and the live `policy` does not have word for word: for Tailnets whose policy others write. A rule or
/// an approver that is wider than needed is not recognized as such here.
pub fn missing_entries(object: &Object, spec: &TailnetSpec, snapshot: &Snapshot, live: &Policy) -> Paste {
    let own: BTreeSet<String> = match &object.spec {
        Ok(Spec::Site(site)) => site.advertised_by.iter().filter_map(tag).collect(),
        Ok(Spec::Gateway(gateway)) => gateway.tags.iter().filter_map(tag).collect(),
        _ => BTreeSet::new(),
    };
    let approvers: BTreeSet<String> = approvers(spec).union(&own).cloned().collect();
    let needs = contribution(object, spec, &approvers, snapshot);
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
