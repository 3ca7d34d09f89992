//! The hosts ConfigMap of a Tailnet: what goes in, and whether it is published.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::names::tailnet::HOSTS_KEY;
use tailnet_crds::types::{DnsName, Text};
use tailnet_crds::{Kind, Tailnet, TailnetEgress};
use tailnet_policies::claims::ClaimKey;

use crate::context::Context;
use crate::desired::hosts::{HostsEntry, publishes};
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
    entries
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
    let holder =
        tailnet_policies::ObjectRef::ours(Kind::TailnetEgress, egress.namespace().as_deref(), &egress.name_any());
    context.guard.with(|snapshot| {
        snapshot
            .claims(tailnet)
            .and_then(|claims| claims.holder(key))
            .is_some_and(|claim| claim.is_of(&holder, egress.uid().as_deref()))
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
