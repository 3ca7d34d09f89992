//! `TailnetIngress`: tailnet peers reach Services.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::{
    AgentSettings, ConfigMapKeyRef, Dns1035Label, DnsLabel, DnsName, GoDuration, IssuerRef, LocalRef, NodeStatus,
    Principal, Tag, TailnetRef, Text,
};

/// Services that peers of a tailnet reach as one node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tsunaro.io",
    version = "v1alpha1",
    kind = "TailnetIngress",
    plural = "tailnetingresses",
    namespaced,
    shortname = "tning",
    category = "tsunaro",
    status = "TailnetIngressStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Services that peers of a tailnet reach as one node with one tag.",
    printcolumn(name = "Tailnet", type_ = "string", json_path = ".spec.tailnetRef.name"),
    printcolumn(name = "Hostname", type_ = "string", json_path = ".spec.hostname"),
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
    printcolumn(name = "URLs", type_ = "string", json_path = ".status.exposes[*].url", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetIngressSpec {
    /// The Tailnet. Immutable.
    pub tailnet_ref: TailnetRef,
    /// Tag of the node. `tag:ingress-<namespace>-<name>` when absent; where namespace or name has a dash or a dot, five characters of a hash of both follow
    /// (`tag:ingress-team-a-portal-7t2dx`), so that no two objects meet. With clusterName of the Tailnet `tag:<clusterName>-ingress-…`.
    /// The webhook writes it here, unless the Tailnet does not exist yet: the field then stays empty, and that tag is used all the same.
    /// Outside the operator namespace only that one, or one that the Tailnet's tagGrants give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Text<Tag>>,
    /// Name of the node in Headscale, a DNS label. When absent `<name>-<namespace>`, with a hash as for the tag
    /// (`portal-team-a-7t2dx`); with clusterName of the Tailnet `<clusterName>-<name>-<namespace>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Text<DnsLabel>>,
    /// Who may connect: users, groups, tags, hosts, addresses. Each must be in the Tailnet's ingressSourceAllowlist. Empty: nobody.
    #[schemars(length(max = 64))]
    pub allow_from: Vec<Text<Principal>>,
    /// What can be reached. All share one node, one tag and allowFrom.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub exposes: Vec<Expose>,
    /// The certificate of http exposes. The Tailnet's default issuer when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<IngressTls>,
    /// Settings of the agent Pods, over those of the Tailnet. Tenants may set resources and logLevel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSettings>,
    /// Number of agents. The addresses of all are published.
    #[serde(default = "one_replica")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: i32,
}

fn one_replica() -> i32 {
    1
}

impl TailnetIngressSpec {
    /// The label that stands for `{name}` in the name templates: the expose's dnsLabel; else the CR's name for a tcp
    /// expose and for a lone http expose; else the expose's name. It is one label: dots of a CR's name become dashes, so that
    /// nobody gets a name in the place of another namespace (`portal.team-a` where `{name}.{namespace}` is meant).
    pub fn dns_label<'a>(&'a self, cr_name: &'a str, expose: &'a Expose) -> Cow<'a, str> {
        if let Some(label) = &expose.dns_label {
            return Cow::Borrowed(label.as_str());
        }
        let http_exposes = self
            .exposes
            .iter()
            .filter(|other| other.mode() == ExposeMode::Http)
            .count();
        match expose.mode() {
            ExposeMode::Http if http_exposes != 1 => Cow::Borrowed(expose.name.as_str()),
            _ if cr_name.contains('.') => Cow::Owned(cr_name.replace('.', "-")),
            _ => Cow::Borrowed(cr_name),
        }
    }
}

/// One thing that peers can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expose {
    /// Name of the expose: lower-case letters, digits and dashes, beginning with a letter.
    pub name: Text<Dns1035Label>,
    /// `tcp` forwards bytes; `http` terminates TLS on the agent and routes by server name. tcp when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ExposeMode>,
    /// Port on the tailnet. Several http exposes may share one; a tcp expose has its own.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// What stands for `{name}` in the Tailnet's name templates, a DNS label.
    /// When absent: the CR's name for a tcp expose and for a lone http expose (its dots become dashes), else the expose's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_label: Option<Text<DnsLabel>>,
    /// Whether the short name is published too. false when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<bool>,
    /// The Service behind.
    pub backend: Backend,
    /// Time limits of an http expose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<ExposeTimeouts>,
}

impl Expose {
    /// The mode, tcp when absent.
    pub fn mode(&self) -> ExposeMode {
        self.mode.unwrap_or_default()
    }

    /// Whether the short name is published, false when absent.
    pub fn alias(&self) -> bool {
        self.alias.unwrap_or_default()
    }
}

/// How bytes are carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExposeMode {
    /// Unchanged.
    #[default]
    Tcp,
    /// As HTTP requests, with TLS ended on the agent.
    Http,
}

/// The Service behind an expose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// Name of the Service.
    #[schemars(length(min = 1, max = 63))]
    pub service: String,
    /// Number or name of the Service's port.
    #[schemars(extend(
        "maxLength" = 63,
        "minimum" = 1,
        "maximum" = 65535,
        "pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
    ))]
    pub port: IntOrString,
    /// Namespace of the Service. The CR's own when absent; another one only where the CR is in the operator namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Verified HTTPS to the Service, http exposes only. There is no way to skip the verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<BackendTls>,
}

impl Default for Backend {
    fn default() -> Self {
        Self {
            service: String::new(),
            port: IntOrString::Int(0),
            namespace: None,
            tls: None,
        }
    }
}

/// Verified HTTPS to a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendTls {
    /// Name that the backend's certificate must carry.
    pub server_name: Text<DnsName>,
    /// CA bundle (PEM) that the backend's certificate must chain to, in the namespace of the agent.
    pub ca_config_map_ref: ConfigMapKeyRef,
}

/// Time limits of an http expose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExposeTimeouts {
    /// From the first byte of the request to the last of the response, such as `600s`. None when absent. Never after an upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Text<GoDuration>>,
    /// From the end of the request to the head of the response, such as `60s`. 60s when absent, at most `request`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<Text<GoDuration>>,
}

/// The certificate of http exposes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressTls {
    /// An existing TLS Secret in the CR's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
    /// Issuer of one Certificate for all http names and aliases of the CR. Not together with secretRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerRef>,
}

/// What the operator observes of a TailnetIngress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetIngressStatus {
    /// Accepted, KeyReady, CertificateReady, WorkloadReady, PolicyReady, DNSReady, Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The agents' tailnet nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub nodes: Vec<NodeStatus>,
    /// Every expose and whether it is served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub exposes: Vec<ExposeStatus>,
    /// The certificate in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateStatus>,
}

/// One expose and whether it is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExposeStatus {
    /// The expose's name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Where peers reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub url: Option<String>,
    /// DNS names that are published for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 253)))]
    pub names: Vec<String>,
    /// Whether it is served.
    pub state: ExposeState,
    /// What is wrong and whose turn it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Whether an expose is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ExposeState {
    /// The listener is open and the backend exists.
    Serving,
    /// No listener, because the certificate is missing or does not fit.
    NoCertificate,
    /// The backend Service or its port does not exist.
    NoBackend,
    /// The agent's last dial of the backend failed; the message has its error class.
    DialFailed,
    /// No listener yet.
    NotListening,
    /// Not known (yet).
    #[default]
    Unknown,
}

/// The certificate in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Secret that holds it.
    #[schemars(length(max = 253))]
    pub secret_name: String,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// Names that it is valid for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 253)))]
    pub dns_names: Vec<String>,
}
