//! `TailnetSite`: a remote network behind a router.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{Cidr, Tag, TailnetRef, Text};

/// A remote network behind a router of the tailnet.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tsunaro.io",
    version = "v1alpha1",
    kind = "TailnetSite",
    plural = "tailnetsites",
    shortname = "tnsite",
    category = "tsunaro",
    status = "TailnetSiteStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A remote network behind a router of a tailnet.",
    printcolumn(name = "Tailnet", type_ = "string", json_path = ".spec.tailnetRef.name"),
    printcolumn(name = "Prefixes", type_ = "string", json_path = ".spec.prefixes"),
    printcolumn(name = "Owner", type_ = "string", json_path = ".spec.owner"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetSiteSpec {
    /// The Tailnet. Immutable.
    pub tailnet_ref: TailnetRef,
    /// The networks, as CIDRs; a host is a /32 or /128. No two sites of a Tailnet may overlap.
    #[schemars(length(min = 1, max = 128))]
    pub prefixes: Vec<Text<Cidr>>,
    /// Who answers for the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub owner: Option<String>,
    /// What the network is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
    /// Tags of the routers that advertise it. The Tailnet's policy.routeApprovers when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub advertised_by: Vec<Text<Tag>>,
}

/// What the operator observes of a TailnetSite.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetSiteStatus {
    /// Accepted, Advertised, Approved, Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Every prefix and who routes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["prefix"]))]
    pub prefixes: Vec<SitePrefixStatus>,
}

/// One prefix of a site and who routes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SitePrefixStatus {
    /// The prefix.
    #[schemars(length(max = 49))]
    pub prefix: String,
    /// Whether a router advertises it.
    pub advertised: bool,
    /// Whether the route is approved.
    pub approved: bool,
    /// Whether a live primary router serves it.
    pub serving: bool,
    /// Nodes that advertise it, the primary first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 253)))]
    pub routers: Vec<String>,
}
