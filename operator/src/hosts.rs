//! The hosts ConfigMap of a Tailnet: what goes in, and whether it is published.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::names::tailnet::HOSTS_KEY;
use tailnet_crds::types::{DnsName, Text};
use tailnet_crds::{Kind, Tailnet, TailnetEgress, TailnetIngress};
use tailnet_headscale::Node;
use tailnet_policies::Object;
use tailnet_policies::claims::ClaimKey;
use tailnet_policies::names::{self, tag_of};

use crate::context::Context;
use crate::controllers::tailnet_ingress::workload;
use crate::desired::hosts::{HostsEntry, publishes};
use crate::guard::Verdict;
use crate::ownership::{controller, is_owned_by};

/// The hosts ConfigMap as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// The Tailnet names none.
    NotConfigured,
    /// It does not exist yet.
    Missing {
        /// Its name.
        name: String,
    },
    /// Somebody else's ConfigMap has the name.
    Foreign {
        /// Its name.
        name: String,
        /// Its controller, or "nobody".
        holder: String,
    },
    /// It is ours.
    Ours {
        /// Its name.
        name: String,
        /// The hosts file.
        text: String,
    },
}

/// `spec.dns.hostsConfigMap`.
pub fn config_map_name(tailnet: &Tailnet) -> Option<&str> {
    tailnet.spec.dns.as_ref()?.hosts_config_map.as_deref()
}

/// Whether the hosts file of `tailnet` is published, as far as the watch has seen.
pub fn published(context: &Context, tailnet: &Tailnet) -> Published {
    let Some(name) = config_map_name(tailnet) else {
        return Published::NotConfigured;
    };
    let name = name.to_owned();
    let Some(config_map) = context
        .stores
        .config_maps
        .get(&ObjectRef::new(&name).within(context.namespace()))
    else {
        return Published::Missing { name };
    };
    if !tailnet.uid().is_some_and(|uid| is_owned_by(&config_map.metadata, &uid)) {
        let holder = controller(&config_map.metadata);
        return Published::Foreign {
            name,
            holder: holder.map_or_else(|| "nobody".to_owned(), |by| format!("{} {}", by.kind, by.name)),
        };
    }
    let text = config_map
        .data
        .as_ref()
        .and_then(|data| data.get(HOSTS_KEY))
        .cloned()
        .unwrap_or_default();
    Published::Ours { name, text }
}

/// The entries of `tailnet`: every alias whose claim its egress holds and whose Service is that egress's and has an
/// address. An alias without a claim belongs to nobody yet, whatever a spec says.
pub fn entries(context: &Context, tailnet: &str) -> Vec<HostsEntry> {
    let mut entries = Vec::new();
    for egress in context.stores.egresses.state() {
        if egress.spec.tailnet_ref.name != tailnet {
            continue;
        }
        for target in &egress.spec.targets {
            let addresses = service_addresses(context, &egress, target.name.as_str());
            if addresses.is_empty() {
                continue;
            }
            for alias in &target.aliases {
                let Some(name) = canonical(alias) else { continue };
                if holds(context, tailnet, &egress, &ClaimKey::Name(name.clone())) {
                    entries.push(HostsEntry {
                        name,
                        addresses: addresses.clone(),
                    });
                }
            }
        }
    }
    entries.extend(ingress_entries(context, tailnet));
    entries
}

/// The names of ingress objects: those that their specs and the claims give them, at the addresses that Headscale says. While
/// Headscale has not been read, what is published stays.
fn ingress_entries(context: &Context, name: &str) -> Vec<HostsEntry> {
    let Some(tailnet) = context.stores.tailnets.get(&ObjectRef::<Tailnet>::new(name)) else {
        return Vec::new();
    };
    let before = match published(context, &tailnet) {
        Published::Ours { text, .. } => text,
        Published::NotConfigured | Published::Missing { .. } | Published::Foreign { .. } => String::new(),
    };
    let mut entries = Vec::new();
    for ingress in context.stores.ingresses.state() {
        if ingress.spec.tailnet_ref.name != name || ingress.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let verdict = context.guard.verdict(Kind::TailnetIngress, ingress.as_ref());
        if !verdict.is_ok_and(|(verdict, _)| !matches!(verdict, Verdict::Withdraw(_))) {
            continue;
        }
        let Some(tag) = tag_of_ingress(&ingress, &tailnet) else {
            continue;
        };
        let addresses = node_addresses(context, &ingress, &tag);
        let names: BTreeSet<String> = names_of_exposes(context, &ingress, &tailnet)
            .into_iter()
            .flatten()
            .collect();
        for name in names {
            let addresses = addresses.clone().unwrap_or_else(|| addresses_in(&before, &name));
            if !addresses.is_empty() {
                entries.push(HostsEntry { name, addresses });
            }
        }
    }
    entries
}

/// The tag of the nodes of `ingress`.
fn tag_of_ingress(ingress: &TailnetIngress, tailnet: &Tailnet) -> Option<String> {
    let value = serde_json::to_value(ingress).ok()?;
    tag_of(&Object::parse(Kind::TailnetIngress, &value), Some(&tailnet.spec))
}

/// The names that the Tailnet's templates give to each expose, in the CR's order, as far as the ingress holds them.
pub fn names_of_exposes(context: &Context, ingress: &TailnetIngress, tailnet: &Tailnet) -> Vec<Vec<String>> {
    let mut names = vec![Vec::new(); ingress.spec.exposes.len()];
    for published in rendered(ingress, tailnet) {
        let key = ClaimKey::Name(published.name.clone());
        let held = holds_claim(context, &tailnet.name_any(), Kind::TailnetIngress, ingress, &key);
        if let Some(of_expose) = names.get_mut(published.expose).filter(|_| held) {
            of_expose.push(published.name);
        }
    }
    names
}

/// Every name that `ingress` asks for, whoever holds it.
pub fn asked_names(ingress: &TailnetIngress, tailnet: &Tailnet) -> BTreeSet<String> {
    rendered(ingress, tailnet)
        .into_iter()
        .map(|published| published.name)
        .collect()
}

fn rendered(ingress: &TailnetIngress, tailnet: &Tailnet) -> Vec<names::Published> {
    let Ok(value) = serde_json::to_value(ingress) else {
        return Vec::new();
    };
    names::published(&Object::parse(Kind::TailnetIngress, &value), &tailnet.spec)
}

/// The addresses of the nodes of `ingress`, which have `tag`, that serve it; None before Headscale was read.
pub fn node_addresses(context: &Context, ingress: &TailnetIngress, tag: &str) -> Option<Vec<IpAddr>> {
    let observed = context.hub.facts(&ingress.spec.tailnet_ref.name)?;
    Some(serving(&observed.nodes, tag, &workload::ready_nodes(context, ingress)))
}

/// The addresses of the nodes with `tag`: of those whose Pod is ready where any is, else of those that are online, else of all.
/// A Pod that went without a word leaves a node behind that Headscale calls online for a while; and agents may well serve
/// while Headscale, which has just started, has not heard of them yet. Which nodes there are is Headscale's word alone.
fn serving(nodes: &[Node], tag: &str, ready: &BTreeSet<String>) -> Vec<IpAddr> {
    let of_tag: Vec<&Node> = nodes
        .iter()
        .filter(|node| node.tags.iter().any(|found| found == tag))
        .collect();
    let is_ready = |node: &&&Node| ready.contains(node.id.as_str());
    let is_online = |node: &&&Node| node.online;
    let mut chosen: Vec<&Node> = of_tag.iter().filter(is_ready).copied().collect();
    if chosen.is_empty() {
        chosen = of_tag.iter().filter(is_online).copied().collect();
    }
    if chosen.is_empty() {
        chosen = of_tag;
    }
    let mut addresses: Vec<IpAddr> = chosen
        .into_iter()
        .flat_map(|node| &node.ip_addresses)
        .filter_map(|address| address.parse().ok())
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Whether the hosts file `text` points `name` at every one of `addresses`.
pub fn is_published(text: &str, name: &str, addresses: &[IpAddr]) -> bool {
    publishes(text, name, addresses)
}

fn addresses_in(text: &str, name: &str) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, found)| *found == name)
        .filter_map(|(address, _)| address.parse().ok())
        .collect()
}

/// The aliases of `egress` that `text` does not publish.
pub fn unpublished(context: &Context, egress: &TailnetEgress, text: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for target in &egress.spec.targets {
        let addresses = service_addresses(context, egress, target.name.as_str());
        for alias in &target.aliases {
            if !canonical(alias).is_some_and(|name| publishes(text, &name, &addresses)) {
                missing.push(alias.as_str().to_owned());
            }
        }
    }
    missing
}

/// Whether the claims record gives `key` to `egress`.
pub fn holds(context: &Context, tailnet: &str, egress: &TailnetEgress, key: &ClaimKey) -> bool {
    holds_claim(context, tailnet, Kind::TailnetEgress, egress, key)
}

fn holds_claim(context: &Context, tailnet: &str, kind: Kind, object: &impl kube::Resource, key: &ClaimKey) -> bool {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default();
    let holder = tailnet_policies::ObjectRef::ours(kind, meta.namespace.as_deref(), name);
    context.guard.with(|snapshot| {
        snapshot
            .claims(tailnet)
            .and_then(|claims| claims.holder(key))
            .is_some_and(|claim| claim.is_of(&holder, meta.uid.as_deref()))
    })
}

/// The name in its one canonical form; None for what is no name.
fn canonical(alias: &Text<DnsName>) -> Option<String> {
    match alias.parse() {
        Ok(name) => Some(name.to_string()),
        Err(error) => error.canonical().map(str::to_owned),
    }
}

/// Cluster addresses of the Service of a target, if it is the egress's own.
fn service_addresses(context: &Context, egress: &TailnetEgress, target: &str) -> Vec<IpAddr> {
    let service = context
        .stores
        .services
        .get(&ObjectRef::<Service>::new(target).within(context.namespace()));
    let Some(service) = service else { return Vec::new() };
    if !egress.uid().is_some_and(|uid| is_owned_by(&service.metadata, &uid)) {
        return Vec::new();
    }
    let Some(spec) = &service.spec else { return Vec::new() };
    let mut addresses: Vec<IpAddr> = spec
        .cluster_ips
        .iter()
        .flatten()
        .chain(&spec.cluster_ip)
        .filter_map(|address| address.parse().ok())
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The hosts ConfigMaps that `tailnet` owns and does not name any more.
pub fn superfluous(context: &Context, tailnet: &Tailnet) -> Vec<std::sync::Arc<ConfigMap>> {
    let Some(uid) = tailnet.uid() else { return Vec::new() };
    let wanted = config_map_name(tailnet);
    context
        .stores
        .config_maps
        .state()
        .into_iter()
        .filter(|config_map| {
            is_owned_by(&config_map.metadata, &uid)
                && config_map.labels().get(COMPONENT).map(String::as_str) == Some(HOSTS_COMPONENT)
                && Some(config_map.name_any().as_str()) != wanted
        })
        .collect()
}

/// Label that tells a hosts ConfigMap from the Tailnet's other ones.
pub const COMPONENT: &str = tailnet_crds::names::label::COMPONENT;
/// Its value.
pub const HOSTS_COMPONENT: &str = "hosts";

#[cfg(test)]
mod tests {
    use super::*;
    use tailnet_headscale::Id;

    const TAG: &str = "tag:ingress-team-portal";

    fn node(id: &str, tag: &str, online: bool) -> Node {
        Node {
            id: Id::new(id),
            tags: vec![tag.to_owned()],
            online,
            ip_addresses: vec![format!("100.64.0.{id}")],
            ..Node::default()
        }
    }

    fn chosen(nodes: &[Node], ready: &[&str]) -> Vec<String> {
        let ready = ready.iter().map(|id| (*id).to_owned()).collect();
        serving(nodes, TAG, &ready).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_lead_to_nodes_with_a_ready_pod_then_to_those_online() {
        let lingering = [node("1", TAG, true), node("2", TAG, true)];
        assert_eq!(chosen(&lingering, &["2"]), ["100.64.0.2"], "1 has no Pod any more");
        let headscale_just_started = [node("1", TAG, false), node("2", TAG, true)];
        assert_eq!(chosen(&headscale_just_started, &["1"]), ["100.64.0.1"]);
        assert_eq!(
            chosen(&headscale_just_started, &[]),
            ["100.64.0.2"],
            "none ready: the one online"
        );
        assert_eq!(
            chosen(&[node("1", TAG, false)], &[]),
            ["100.64.0.1"],
            "none online: whatever there is"
        );
        assert_eq!(
            chosen(&lingering, &["1", "2"]),
            ["100.64.0.1", "100.64.0.2"],
            "replicas"
        );
    }

    #[test]
    fn a_node_with_another_tag_is_never_chosen_whatever_a_pod_says() {
        let nodes = [node("1", "tag:router", true), node("2", TAG, false)];
        assert_eq!(chosen(&nodes, &["1"]), ["100.64.0.2"]);
        assert!(chosen(&nodes[..1], &["1"]).is_empty());
    }
}
