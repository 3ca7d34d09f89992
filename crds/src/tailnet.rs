//! `Tailnet`: one per Headscale server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{
    AgentSettings, Cidr, ConfigMapKeyRef, DnsLabel, DnsName, IssuerRef, NameTemplate, Principal, SecretKeyRef,
    ServerUrl, Tag, Text,
};

/// One Headscale server, and what this cluster may do there.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tsunaro.io",
    version = "v1alpha1",
    kind = "Tailnet",
    plural = "tailnets",
    shortname = "tn",
    category = "tsunaro",
    status = "TailnetStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A Headscale server: its login URL, its API, and what this cluster may do there.",
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.server"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policy.mode"),
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
        name = "Version",
        type_ = "string",
        json_path = ".status.serverVersion",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetSpec {
    /// Login URL that nodes use: https, no path. http is taken for loopback, private and in-cluster hosts only.
    pub server: Text<ServerUrl>,
    /// Prefix of default tags and hostnames, for several clusters that share one Headscale. A DNS label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<Text<DnsLabel>>,
    /// How the operator reaches Headscale's REST API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<TailnetApi>,
    /// The bootstrap API key, in the operator namespace. It is only read: the operator mints its working key from it.
    pub api_secret_ref: SecretKeyRef,
    /// Names that are published for this tailnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<TailnetDns>,
    /// What CRs get when they do not say otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<TailnetDefaults>,
    /// Tags that CRs of some namespaces may take instead of their default one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tag_grants: Vec<TagGrant>,
    /// Present: this installation owns Headscale's policy document. Absent: the operator only reads it and reports what is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<TailnetPolicy>,
    /// Address space that no site and no gateway LAN may overlap. CIDRs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub reserved_networks: Vec<Text<Cidr>>,
}

impl TailnetSpec {
    /// URL of the REST API: `api.endpoint`, else `server`.
    pub fn api_endpoint(&self) -> &Text<ServerUrl> {
        self.api
            .as_ref()
            .and_then(|api| api.endpoint.as_ref())
            .unwrap_or(&self.server)
    }

    /// The CA bundle for this Headscale, if one is named.
    pub fn ca_config_map_ref(&self) -> Option<&ConfigMapKeyRef> {
        self.api.as_ref()?.ca_config_map_ref.as_ref()
    }

    /// Settings that every agent Pod of this tailnet gets.
    pub fn agent_defaults(&self) -> AgentSettings {
        self.defaults
            .as_ref()
            .and_then(|defaults| defaults.agent.clone())
            .unwrap_or_default()
    }

    /// Issuer of ingress certificates that do not name one.
    pub fn default_issuer(&self) -> Option<&IssuerRef> {
        self.defaults.as_ref()?.tls.as_ref()?.issuer_ref.as_ref()
    }

    /// Names that no ingress and no egress alias may take.
    pub fn reserved_names(&self) -> &[Text<DnsName>] {
        self.dns.as_ref().map_or(&[], |dns| dns.reserved_names.as_slice())
    }
}

/// How the operator reaches Headscale's REST API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetApi {
    /// URL of the REST API as the operator reaches it. `spec.server` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Text<ServerUrl>>,
    /// CA bundle (PEM) for this Headscale, in the operator namespace. Agents get it too, for login and DERP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_config_map_ref: Option<ConfigMapKeyRef>,
}

/// Names that are published for a tailnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetDns {
    /// ConfigMap in the operator namespace that gets the hosts file (key `hosts`). The operator owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub hosts_config_map: Option<String>,
    /// Name of an ingress: text with the placeholders `{name}` (the expose's dnsLabel), `{namespace}` and `{tailnet}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_name_template: Option<Text<NameTemplate>>,
    /// Short name of an expose with `alias: true`; placeholders as in ingressNameTemplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_alias_template: Option<Text<NameTemplate>>,
    /// Namespaces whose exposes may ask for a short name. All when absent, none when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63)))]
    pub alias_namespaces: Option<Vec<String>>,
    /// DNS names that no ingress and no egress alias may take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub reserved_names: Vec<Text<DnsName>>,
}

/// What CRs get when they do not say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetDefaults {
    /// Certificates of http exposes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TailnetTls>,
    /// Settings of every agent Pod of this tailnet. A CR's own `spec.agent` overrides them field by field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSettings>,
}

/// Certificates of http exposes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetTls {
    /// Issuer of certificates whose CR names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerRef>,
    /// Further issuers that a CR may name. An Issuer of the CR's own namespace is always allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub allowed_issuers: Vec<IssuerRef>,
}

/// Tags that CRs of some namespaces may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TagGrant {
    /// Namespaces that may take the tags.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    pub namespaces: Vec<String>,
    /// The tags, `tag:…`.
    #[schemars(length(min = 1, max = 64))]
    pub tags: Vec<Text<Tag>>,
}

/// Ownership of Headscale's policy document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetPolicy {
    /// ConfigMap in the operator namespace with the people's part of the policy (key `policy.hujson`).
    #[schemars(length(min = 1, max = 253))]
    pub base_config_map: String,
    /// `DryRun` publishes the rendered policy and the difference; `Apply` writes it when the live document differs.
    #[serde(default)]
    pub mode: PolicyMode,
    /// Owners written for tags that CRs use and the base does not define.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tag_owners: Vec<Text<Principal>>,
    /// Tags of the routers that may have routes approved for egress targets and sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub route_approvers: Vec<Text<Tag>>,
    /// The only sources that a TailnetIngress may name. Absent or empty: none. `["*"]`: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub ingress_source_allowlist: Vec<Text<Principal>>,
    /// sha256 (hex) of a rendered policy that is held back because it turns allow-all into deny or back: releases it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64), regex(pattern = r"^[0-9a-f]{64}$"))]
    pub acknowledge_posture: Option<String>,
}

/// What the operator does with the rendered policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyMode {
    /// Publish it.
    #[default]
    DryRun,
    /// Write it to Headscale.
    Apply,
}

/// What the operator observes of a Tailnet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetStatus {
    /// Accepted, Reachable, APIKeyReady, PolicyReady, DNSReady, SplitDNS, Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The operator's working API key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKeyStatus>,
    /// The rendered policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyStatus>,
    /// What was seen in Headscale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedStatus>,
    /// Objects that refer to this Tailnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<ObjectCounts>,
    /// Headscale's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub server_version: Option<String>,
}

/// The operator's working API key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyStatus {
    /// Public prefix of the key.
    #[schemars(length(max = 64))]
    pub prefix: String,
    /// When the key ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When the key was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<Time>,
}

/// The rendered policy and the live one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// ConfigMap in the operator namespace that holds the rendered policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub rendered_config_map: Option<String>,
    /// sha256 (hex) of the rendered policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "renderedSHA256")]
    #[schemars(length(max = 64))]
    pub rendered_sha256: Option<String>,
    /// sha256 (hex) of the live policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "liveSHA256")]
    #[schemars(length(max = 64))]
    pub live_sha256: Option<String>,
    /// When the live policy was last written by this installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Time>,
    /// Why Headscale refused the rendered policy, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub rejection: Option<String>,
    /// What happens to traffic that no rule of the live policy names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_posture: Option<DefaultPosture>,
    /// Size of the difference between the live and the rendered policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<PolicyDiff>,
}

/// What happens to traffic that no rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DefaultPosture {
    /// The document has no rules at all: everything is allowed.
    AllowAll,
    /// What no rule allows is denied.
    Deny,
}

/// Size of a difference between two policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDiff {
    /// Entries that the rendered policy has and the live one has not.
    pub added: i32,
    /// Entries that the live policy has and the rendered one has not.
    pub removed: i32,
}

/// What was seen in Headscale; the facts themselves are in the named ConfigMaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedStatus {
    /// Number of nodes.
    pub nodes: i32,
    /// Number of advertised routes.
    pub routes: i32,
    /// Number of tags that have an owner.
    pub tags: i32,
    /// ConfigMaps in the operator namespace that hold the facts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub facts_config_maps: Vec<String>,
}

/// Number of objects that refer to a Tailnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectCounts {
    /// TailnetEgress objects.
    pub egress: i32,
    /// TailnetIngress objects.
    pub ingress: i32,
    /// TailnetSite objects.
    pub site: i32,
    /// TailnetGateway objects.
    pub gateway: i32,
}
