//! `TailnetEgress`: Pods reach things on, or routed through, the tailnet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{AgentSettings, Dns1035Label, DnsName, NodeStatus, Tag, TailnetRef, TargetAddress, Text};

/// Targets on the tailnet that Pods of some namespaces reach as ordinary Services.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tsunaro.io",
    version = "v1alpha1",
    kind = "TailnetEgress",
    plural = "tailnetegresses",
    namespaced,
    shortname = "tneg",
    category = "tsunaro",
    status = "TailnetEgressStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Targets on, or routed through, a tailnet that Pods of some namespaces reach as ordinary Services.",
    printcolumn(name = "Tailnet", type_ = "string", json_path = ".spec.tailnetRef.name"),
    printcolumn(name = "Tag", type_ = "string", json_path = ".spec.tag"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Targets",
        type_ = "string",
        json_path = ".status.targets[*].state",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetEgressSpec {
    /// The Tailnet. Immutable.
    pub tailnet_ref: TailnetRef,
    /// Tag of the nodes, and thereby what they may reach. `tag:egress-<name>` when absent (dots become dashes and five characters of a hash follow);
    /// with clusterName of the Tailnet `tag:<clusterName>-egress-<name>`.
    /// The webhook writes it here, unless the Tailnet does not exist yet: the field then stays empty, and that tag is used all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Text<Tag>>,
    /// Namespaces whose Pods may connect.
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub consumer_namespaces: Vec<String>,
    /// What can be reached: one Service in the operator namespace per target.
    #[schemars(length(min = 1, max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub targets: Vec<Target>,
    /// Number of agents. Each is a tailnet node of its own with the same tag; the Services balance over them.
    #[serde(default = "one_replica")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: i32,
    /// Settings of the agent Pods, over those of the Tailnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSettings>,
}

fn one_replica() -> i32 {
    1
}

/// One thing that Pods can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Name of the Service in the operator namespace: lower-case letters, digits and dashes, beginning with a letter.
    pub name: Text<Dns1035Label>,
    /// IPv4 or IPv6 address, or DNS name. A name is looked up by the agents for every connection: first as a node of the tailnet, then in the cluster's DNS.
    /// A DNS name gets no generated grant: the base policy must carry it, for the addresses behind the name.
    pub address: Text<TargetAddress>,
    /// Port of the Service and of the target.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Transport. TCP when absent. UDP is reserved and refused until it is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// DNS names that the hosts file points at the Service, so that SNI and Host stay right.
    /// They are answered in the whole cluster, though only consumers may connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub aliases: Vec<Text<DnsName>>,
}

impl Target {
    /// The transport, TCP when absent.
    pub fn protocol(&self) -> Protocol {
        self.protocol.unwrap_or_default()
    }
}

/// Transport protocol of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// TCP.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// UDP, reserved.
    #[serde(rename = "UDP")]
    Udp,
}

/// What the operator observes of a TailnetEgress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetEgressStatus {
    /// Accepted, KeyReady, WorkloadReady, PolicyReady, RoutesReady, DNSReady, Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The agents' tailnet nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub nodes: Vec<NodeStatus>,
    /// Every target and how far the way to it goes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub targets: Vec<TargetStatus>,
}

/// One target and how far the way to it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The target's name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// DNS name of the Service, `<name>.<operator namespace>.svc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service: Option<String>,
    /// Port of the Service.
    pub port: i32,
    /// How far the way to the target goes.
    pub state: TargetState,
    /// The node that routes to the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub router: Option<String>,
    /// What is wrong and whose turn it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// When the state last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// How far the way to a target goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TargetState {
    /// A router serves the address, or it is a node of the tailnet.
    Routed,
    /// No router advertises a prefix that covers the address.
    NotAdvertised,
    /// A router advertises it, but the route is not approved.
    NotApproved,
    /// Routed, but no grant lets this tag reach the port.
    NoGrant,
    /// Approved, but no live primary router serves it.
    NotServing,
    /// The agent's last dial failed; the message has its error class.
    DialFailed,
    /// Not known (yet).
    #[default]
    Unknown,
}

impl TargetState {
    /// As written in a status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Routed => "Routed",
            Self::NotAdvertised => "NotAdvertised",
            Self::NotApproved => "NotApproved",
            Self::NoGrant => "NoGrant",
            Self::NotServing => "NotServing",
            Self::DialFailed => "DialFailed",
            Self::Unknown => "Unknown",
        }
    }
}
