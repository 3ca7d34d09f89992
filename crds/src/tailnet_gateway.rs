//! `TailnetGateway`: subnet router and split-DNS resolver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Sysctl, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{Cidr, Dns1035Label, DnsLabel, DnsName, ImageRef, IpAddress, LocalRef, Tag, TailnetRef, Text};

/// A subnet router and split-DNS resolver in one Pod with a persistent identity.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tsunaro.io",
    version = "v1alpha1",
    kind = "TailnetGateway",
    plural = "tailnetgateways",
    shortname = "tngw",
    category = "tsunaro",
    status = "TailnetGatewayStatus",
    derive = "PartialEq",
    doc = "A subnet router and split-DNS resolver: one kernel-mode Tailscale Pod with a persistent identity, and CoreDNS.",
    printcolumn(name = "Hostname", type_ = "string", json_path = ".spec.hostname"),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    ),
    printcolumn(
        name = "Routes",
        type_ = "string",
        json_path = ".status.advertisedRoutes",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetGatewaySpec {
    /// While true, nothing is created or changed; a gateway that runs goes on.
    #[serde(default = "yes")]
    pub suspend: bool,
    /// `Retain`: deleting the CR deletes nothing else. `Delete`: the operator tears down what it made for this gateway.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// The Tailnet. Immutable.
    pub tailnet_ref: TailnetRef,
    /// Name of the node in Headscale, a DNS label. Immutable after activation.
    pub hostname: Text<DnsLabel>,
    /// Tags of the node. Immutable after activation.
    #[serde(default = "fabric_tag")]
    #[schemars(length(min = 1, max = 16))]
    pub tags: Vec<Text<Tag>>,
    /// Secret in the operator namespace that holds the node's identity. The operator makes it, empty. Immutable after activation.
    pub state_secret_ref: LocalRef,
    /// Secret with an external bootstrap key. Declared but not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_key_secret_ref: Option<LocalRef>,
    /// Image of kernel-mode Tailscale, with a full version tag or a digest.
    pub image: Text<ImageRef>,
    /// What the gateway advertises.
    pub routes: GatewayRoutes,
    /// The LoadBalancer Service through which peers reach the resolver.
    pub service: GatewayService,
    /// The resolver.
    pub dns: GatewayDns,
    /// Number of Pods. Only 1 is supported: a gateway is one node.
    #[serde(default = "one_replica")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: i32,
    /// TCP forwards. Declared but not supported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub forwards: Vec<GatewayForward>,
    /// Image of the TCP forwards. Declared but not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_image: Option<Text<ImageRef>>,
    /// An existing gateway to take over. Declared but not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption: Option<GatewayAdoption>,
    /// CPU and memory of the Tailscale container. Fixed at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Taints that the Pod tolerates. Fixed at creation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Sysctls of the Pod, such as net.ipv4.ip_forward where the node does not forward. Fixed at creation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub sysctls: Vec<Sysctl>,
}

impl Default for TailnetGatewaySpec {
    fn default() -> Self {
        Self {
            suspend: true,
            deletion_policy: DeletionPolicy::Retain,
            tailnet_ref: TailnetRef::default(),
            hostname: Text::default(),
            tags: fabric_tag(),
            state_secret_ref: LocalRef::default(),
            auth_key_secret_ref: None,
            image: Text::default(),
            routes: GatewayRoutes::default(),
            service: GatewayService::default(),
            dns: GatewayDns::default(),
            replicas: 1,
            forwards: Vec::new(),
            forward_image: None,
            adoption: None,
            resources: None,
            tolerations: Vec::new(),
            sysctls: Vec::new(),
        }
    }
}

fn yes() -> bool {
    true
}

fn one_replica() -> i32 {
    1
}

fn fabric_tag() -> Vec<Text<Tag>> {
    vec![Text::new("tag:fabric")]
}

/// What becomes of a gateway's objects when its CR is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They stay.
    #[default]
    Retain,
    /// The operator deletes what it made.
    Delete,
}

/// What a gateway advertises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayRoutes {
    /// The LAN: IPv4 prefixes.
    #[schemars(length(min = 1, max = 128))]
    pub lan: Vec<Text<Cidr>>,
    /// Whether the IPv4 targets of all TailnetEgress objects of the Tailnet are advertised too, as host routes.
    #[serde(default = "yes")]
    pub advertise_egress_targets: bool,
}

impl Default for GatewayRoutes {
    fn default() -> Self {
        Self {
            lan: Vec::new(),
            advertise_egress_targets: true,
        }
    }
}

/// The LoadBalancer Service of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(non_snake_case)]
pub struct GatewayService {
    /// The address that peers use as resolver, inside tailnetLBCIDR. Immutable after activation.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Text<IpAddress>,
    /// The whole LoadBalancer pool; it is advertised. IPv4.
    #[serde(rename = "tailnetLBCIDR")]
    pub tailnet_lb_cidr: Text<Cidr>,
    /// loadBalancerClass of the Service, where several implementations run. Immutable after activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,
    /// Labels by which the LoadBalancer implementation picks the pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub pool_labels: BTreeMap<String, String>,
}

/// The resolver of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayDns {
    /// The zone that is served with authority. Immutable after activation.
    pub zone: Text<DnsName>,
    /// Name of the in-cluster DNS Service. Immutable after activation.
    pub service_name: Text<Dns1035Label>,
    /// ClusterIP of the in-cluster DNS Service. Immutable after activation.
    #[serde(rename = "serviceClusterIP")]
    pub service_cluster_ip: Text<IpAddress>,
    /// Image of CoreDNS, with a full version tag or a digest.
    pub image: Text<ImageRef>,
    /// Records of the zone besides the published names. Published names win.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub static_records: Vec<StaticRecord>,
    /// Address of every name of the zone that is not known otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wildcard_address: Option<Text<IpAddress>>,
    /// Further zones, whose unknown names are forwarded. Immutable after activation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub extra_zones: Vec<ExtraZone>,
}

/// A record of a gateway's zone: exactly one of address and target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticRecord {
    /// Name, relative to the zone.
    pub name: Text<DnsName>,
    /// Address of the name: an A or AAAA record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Text<IpAddress>>,
    /// Name that the name stands for: a CNAME record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Text<DnsName>>,
}

/// A zone whose published names are answered and whose other names are forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtraZone {
    /// The zone.
    pub zone: Text<DnsName>,
    /// Addresses of the resolvers of the zone.
    #[schemars(length(min = 1, max = 8))]
    pub upstreams: Vec<Text<IpAddress>>,
}

/// A TCP forward. Declared but not supported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayForward {
    /// Name of the forward.
    pub name: Text<Dns1035Label>,
    /// Port on which the gateway listens.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Address to which it forwards.
    pub address: Text<IpAddress>,
    /// Port to which it forwards. The same as `port` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub target_port: Option<i32>,
}

impl GatewayForward {
    /// Port to which it forwards.
    pub fn target_port(&self) -> i32 {
        self.target_port.unwrap_or(self.port)
    }
}

/// An existing gateway to take over. Declared but not supported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayAdoption {
    /// Headscale's id of the existing node, decimal.
    #[schemars(length(min = 1, max = 20), regex(pattern = r"^[1-9][0-9]*$"))]
    pub node_id: String,
    /// The existing objects.
    #[schemars(length(min = 1, max = 32))]
    pub objects: Vec<AdoptedObject>,
}

/// An object of an existing gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedObject {
    /// API version, such as `apps/v1`.
    #[schemars(length(min = 1, max = 64))]
    pub api_version: String,
    /// Kind, such as `StatefulSet`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name, in the operator namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UID.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// What the operator observes of a TailnetGateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetGatewayStatus {
    /// Accepted, Registered, RoutesInSync, DNSReady, ServiceReady, WorkloadCurrent, StaleNodes, ClusterDNSForward, Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When the gateway first was not suspended. From then on its identity is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_at: Option<Time>,
    /// Headscale's node id, decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub node_id: Option<String>,
    /// Tailnet IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub ipv4: Option<String>,
    /// Address that the platform gave to the LoadBalancer Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "serviceIP")]
    #[schemars(length(max = 45))]
    pub service_ip: Option<String>,
    /// Routes that the node advertises.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096), inner(length(max = 49)))]
    pub advertised_routes: Vec<String>,
    /// Routes that Headscale has approved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096), inner(length(max = 49)))]
    pub approved_routes: Vec<String>,
    /// Headscale's ids of nodes with this hostname that are not this gateway's. They are reported, not deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "staleNodeIDs")]
    #[schemars(length(max = 64), inner(length(max = 20)))]
    pub stale_node_ids: Vec<String>,
    /// The route planner's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_plan: Option<RoutePlanStatus>,
}

/// The route planner's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoutePlanStatus {
    /// sha256 (hex) of the wanted routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub desired_hash: Option<String>,
    /// sha256 (hex) of the routes that the Pod started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub observed_hash: Option<String>,
    /// When the wanted routes last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Time>,
}
