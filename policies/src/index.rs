//! Under which keys an object is found, and what it claims.

use std::net::IpAddr;

use ipnet::IpNet;
use tailnet_crds::types::{Cidr, Format, ServerUrl, Text};
use tailnet_crds::{Kind, TailnetGatewaySpec, TailnetSpec};

use crate::claims::ClaimKey;
use crate::names::{self, Published};
use crate::object::{Object, Spec};

/// A question that the snapshot answers in constant time. Names are canonical.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum IndexKey {
    /// Everything that refers to a Tailnet, and the Tailnet itself.
    Member(String),
    /// Egress and ingress objects by (Tailnet, tag).
    Tag(String, String),
    /// Gateways, sites and the Tailnet by (Tailnet, tag that a router has).
    RouterTag(String, String),
    /// Egress and ingress objects by (Tailnet, published DNS name).
    Name(String, String),
    /// Gateways by (Tailnet, apex of a zone).
    Apex(String, String),
    /// Gateways by (Tailnet, static record with an address).
    StaticAddress(String, String),
    /// Gateways by (Tailnet, static record with a target).
    StaticTarget(String, String),
    /// Egress objects and gateways by the name of a Service that they make in the operator namespace.
    Service(String),
    /// Egress objects, ingress objects and gateways by (Tailnet, node name).
    Hostname(String, String),
    /// Tailnets by host and port of server or API endpoint.
    Server(String),
    /// Tailnets by host of server or API endpoint.
    ServerHost(String),
    /// Tailnets by hosts ConfigMap.
    HostsConfigMap(String),
    /// Tailnets by a ConfigMap that they only read: base document, CA bundle.
    ReadConfigMap(String),
    /// Tailnets by the Secret of their API key.
    ApiSecret(String),
    /// Gateways by their state Secret.
    StateSecret(String),
    /// Gateways by load balancer address.
    LoadBalancer(IpAddr),
    /// Gateways by cluster address.
    ClusterIp(IpAddr),
}

/// The value of a text in its canonical form, also when it is spelled otherwise; None when nobody can read it.
/// Comparisons use this: a spelling trick neither hides a conflict nor makes one.
pub(crate) fn read<T: Format>(text: &Text<T>) -> Option<T> {
    match text.parse() {
        Ok(value) => Some(value),
        Err(error) => error.canonical()?.parse().ok(),
    }
}

/// [`read`] as text; an unreadable text stands for itself.
pub(crate) fn canonical<T: Format>(text: &Text<T>) -> String {
    read(text).map_or_else(|| text.as_str().to_owned(), |value| value.to_string())
}

/// [`read`] of a prefix.
pub(crate) fn network(text: &Text<Cidr>) -> Option<IpNet> {
    read(text).map(|cidr| cidr.net())
}

/// Host of a URL as it is compared.
pub(crate) fn server_host(url: &Text<ServerUrl>) -> Option<String> {
    read(url).map(|url| url.host())
}

/// Host and port of a URL as they are compared.
pub(crate) fn server_endpoint(url: &Text<ServerUrl>) -> Option<String> {
    read(url).map(|url| url.endpoint())
}

/// Keys of an object. `tailnet` is the spec of the Tailnet that it refers to, when that exists.
pub(crate) fn index_keys(object: &Object, tailnet: Option<&TailnetSpec>) -> Vec<IndexKey> {
    let Some(member_of) = object.tailnet_name() else {
        return Vec::new();
    };
    let of = || member_of.to_owned();
    let mut keys = vec![IndexKey::Member(of())];
    for key in claim_keys(object, tailnet) {
        match key {
            ClaimKey::Prefix(_) | ClaimKey::Router { .. } => {}
            ClaimKey::Name(name) if object.kind == Kind::TailnetGateway => keys.push(IndexKey::Apex(of(), name)),
            ClaimKey::Name(name) => keys.push(IndexKey::Name(of(), name)),
            ClaimKey::Tag(tag) => keys.push(IndexKey::Tag(of(), tag)),
            ClaimKey::Service(service) => keys.push(IndexKey::Service(service)),
            ClaimKey::Hostname(hostname) => keys.push(IndexKey::Hostname(of(), hostname)),
        }
    }
    match &object.spec {
        Ok(Spec::Tailnet(spec)) => {
            let approvers = spec.policy.iter().flat_map(|policy| &policy.route_approvers);
            keys.extend(approvers.map(|tag| IndexKey::RouterTag(of(), canonical(tag))));
            keys.extend(server_endpoint(&spec.server).map(IndexKey::Server));
            keys.extend(server_endpoint(spec.api_endpoint()).map(IndexKey::Server));
            keys.extend(server_host(&spec.server).map(IndexKey::ServerHost));
            keys.extend(server_host(spec.api_endpoint()).map(IndexKey::ServerHost));
            let hosts = spec.dns.as_ref().and_then(|dns| dns.hosts_config_map.clone());
            keys.extend(hosts.map(IndexKey::HostsConfigMap));
            let base = spec.policy.as_ref().map(|policy| policy.base_config_map.clone());
            let bundle = spec.ca_config_map_ref().map(|bundle| bundle.name.clone());
            keys.extend(base.into_iter().chain(bundle).map(IndexKey::ReadConfigMap));
            keys.push(IndexKey::ApiSecret(spec.api_secret_ref.name.clone()));
        }
        Ok(Spec::Site(spec)) => {
            keys.extend(
                spec.advertised_by
                    .iter()
                    .map(|tag| IndexKey::RouterTag(of(), canonical(tag))),
            );
        }
        Ok(Spec::Gateway(spec)) => {
            keys.extend(spec.tags.iter().map(|tag| IndexKey::RouterTag(of(), canonical(tag))));
            keys.push(IndexKey::StateSecret(spec.state_secret_ref.name.clone()));
            keys.extend(read(&spec.service.load_balancer_ip).map(|ip| IndexKey::LoadBalancer(ip.addr())));
            keys.extend(read(&spec.dns.service_cluster_ip).map(|ip| IndexKey::ClusterIp(ip.addr())));
            for record in &spec.dns.static_records {
                let name = static_name(spec, canonical(&record.name).as_str());
                keys.push(if record.target.is_some() {
                    IndexKey::StaticTarget(of(), name)
                } else {
                    IndexKey::StaticAddress(of(), name)
                });
            }
        }
        Ok(Spec::Egress(_) | Spec::Ingress(_)) | Err(_) => {}
    }
    keys.sort();
    keys.dedup();
    keys
}

/// Full name of a static record of a gateway, from its canonical name inside the zone.
pub(crate) fn static_name(spec: &TailnetGatewaySpec, name: &str) -> String {
    format!("{name}.{}", canonical(&spec.dns.zone))
}

/// Prefixes of a site.
pub(crate) fn prefixes_of(object: &Object) -> Vec<IpNet> {
    let Some(spec) = object.site() else { return Vec::new() };
    let mut prefixes: Vec<IpNet> = spec
        .prefixes
        .iter()
        .filter_map(network)
        .map(|prefix| prefix.trunc())
        .collect();
    prefixes.sort();
    prefixes.dedup();
    prefixes
}

/// How an object claims a tag: egress and ingress for themselves alone, sites and gateways with other routers.
pub(crate) fn tag_claim(object: &Object, tag: &str) -> ClaimKey {
    match object.kind {
        Kind::TailnetSite | Kind::TailnetGateway => ClaimKey::Router {
            of: object.takes_over_name(),
            tag: tag.to_owned(),
        },
        _ => ClaimKey::Tag(tag.to_owned()),
    }
}

/// What an object claims (see [`crate::claims`]). `tailnet` is the spec of the Tailnet that it refers to.
pub(crate) fn claim_keys(object: &Object, tailnet: Option<&TailnetSpec>) -> Vec<ClaimKey> {
    let mut keys = Vec::new();
    match &object.spec {
        Ok(Spec::Egress(spec)) => {
            keys.extend(names::tag_of(object, tailnet).map(ClaimKey::Tag));
            keys.extend(names::hostnames_of(object, tailnet).into_iter().map(ClaimKey::Hostname));
            for target in &spec.targets {
                keys.push(ClaimKey::Service(canonical(&target.name)));
                keys.extend(target.aliases.iter().map(|alias| ClaimKey::Name(canonical(alias))));
            }
        }
        Ok(Spec::Ingress(_)) => {
            keys.extend(names::tag_of(object, tailnet).map(ClaimKey::Tag));
            keys.extend(names::hostnames_of(object, tailnet).into_iter().map(ClaimKey::Hostname));
            if let Some(tailnet) = tailnet {
                let published = names::published(object, tailnet);
                keys.extend(published.into_iter().map(|Published { name, .. }| ClaimKey::Name(name)));
            }
        }
        Ok(Spec::Site(spec)) => {
            keys.extend(prefixes_of(object).into_iter().map(ClaimKey::Prefix));
            keys.extend(spec.advertised_by.iter().map(|tag| tag_claim(object, &canonical(tag))));
        }
        Ok(Spec::Gateway(spec)) => {
            keys.extend(spec.tags.iter().map(|tag| tag_claim(object, &canonical(tag))));
            keys.push(ClaimKey::Hostname(canonical(&spec.hostname)));
            keys.push(ClaimKey::Service(object.name.clone()));
            keys.push(ClaimKey::Service(format!("{}-headless", object.name)));
            keys.push(ClaimKey::Service(canonical(&spec.dns.service_name)));
            let zones = std::iter::once(&spec.dns.zone).chain(spec.dns.extra_zones.iter().map(|extra| &extra.zone));
            keys.extend(zones.map(|zone| ClaimKey::Name(canonical(zone))));
        }
        Ok(Spec::Tailnet(_)) | Err(_) => {}
    }
    keys.sort();
    keys.dedup();
    keys
}
