//! The agent's configuration file and status document: the only interface between operator and agent.
//!
//! The operator writes [`AgentConfig`] as `config.json` into the agent's ConfigMap; the agent serves [`AgentStatus`] on
//! `GET /status` of its health port. Both carry [`FORMAT_VERSION`]; an agent that meets another version keeps what it has
//! and says so in `config_error`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of both formats.
pub const FORMAT_VERSION: u32 = 1;

/// `config.json` of an agent. Written whole by the operator, read whole by the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentConfig {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Host name that the node asks for, a DNS label.
    pub hostname: String,
    /// Login server (`Tailnet.spec.server`), an absolute URL without a trailing slash.
    pub control_url: String,
    /// Targets of an egress agent, in the CR's order; empty for an ingress agent.
    #[serde(default)]
    pub targets: Vec<EgressTarget>,
    /// Exposes of an ingress agent, in the CR's order; empty for an egress agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposes: Vec<IngressExpose>,
    /// The operator's own memory: the next listen port of an egress to hand out. The agent ignores it.
    pub next_port: u16,
}

/// One ingress expose: what peers send to `port` of the node is carried to `backend`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressExpose {
    /// The expose's name in the CR.
    pub name: String,
    /// TCP port on the tailnet. Several http exposes may share one, a tcp expose has its own.
    pub port: u16,
    /// Where the Service is; absent while it has no cluster address, and connections are then refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendAddress>,
    /// Present: TLS is ended on the agent and requests are routed by server name. Absent: bytes are carried unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpExpose>,
}

/// Where a backend is. The agent connects to exactly this and resolves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendAddress {
    /// IP address, the ClusterIP that the operator read.
    pub address: String,
    /// TCP port of the Service.
    pub port: u16,
}

/// What an http expose needs besides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpExpose {
    /// DNS names of the expose, canonical: lower case, no trailing dot.
    pub names: Vec<String>,
    /// From the first byte of a request to the last of its response, milliseconds; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_timeout_ms: Option<u64>,
    /// From the end of a request to the head of its response, milliseconds.
    pub backend_request_timeout_ms: u64,
    /// The backend speaks HTTP/2 without TLS (`appProtocol: kubernetes.io/h2c`). gRPC requests go by HTTP/2 in any case.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub h2c: bool,
    /// Verified HTTPS to the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<BackendTlsFiles>,
}

/// How a backend's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendTlsFiles {
    /// Name that the certificate must carry.
    pub server_name: String,
    /// File with the CA bundle (PEM), read again when it changes.
    pub ca_file: String,
}

/// One egress target: what is accepted on `listen_port` is carried to `address:port` over the tailnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressTarget {
    /// The target's name in the CR.
    pub name: String,
    /// Port on which the agent listens, stable for the life of the target.
    pub listen_port: u16,
    /// IP literal or DNS name.
    pub address: String,
    /// Remote TCP port.
    pub port: u16,
}

/// `GET /status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// `egress` or `ingress`.
    pub mode: String,
    /// The tailnet node; absent until it has joined once.
    pub node: Option<AgentNode>,
    /// sha256 (hex) of the `config.json` text that is in force.
    pub config_sha256: String,
    /// Why the newest `config.json` was not taken, if it was not.
    pub config_error: Option<String>,
    /// Why the node is not online, in the client's or Headscale's words.
    pub login_error: Option<String>,
    /// One entry per target in force.
    pub targets: Vec<AgentTarget>,
    /// One entry per expose in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposes: Vec<AgentExpose>,
    /// The certificate of http exposes; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<AgentCertificate>,
}

/// One expose as the agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentExpose {
    /// The expose's name.
    pub name: String,
    /// Whether peers can connect: the port is open, and the certificate covers all names of an http expose.
    pub listening: bool,
    /// Why not, when it is not. At most 512 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last connection to the backend, if any.
    pub last_dial: Option<DialResult>,
    /// Connections open now.
    pub open_connections: u64,
    /// Connections carried since start.
    pub total_connections: u64,
}

/// The certificate of an ingress agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentCertificate {
    /// End of validity of the certificate in use, RFC 3339; absent when none is.
    pub not_after: Option<String>,
    /// DNS names of the certificate in use.
    pub dns_names: Vec<String>,
    /// sha256 (hex) of `tls.crt` in use.
    pub sha256: Option<String>,
    /// What is wrong with the newest files; an older certificate may be in use all the same.
    pub problem: Option<CertificateProblem>,
}

/// Why a certificate is not used, or not for every name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateProblem {
    /// The cause.
    pub cause: CertificateCause,
    /// For people. At most 512 characters.
    pub message: String,
}

/// What can be wrong with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CertificateCause {
    /// There is none.
    NotIssued,
    /// Certificate or key cannot be read.
    Invalid,
    /// The private key is of another certificate.
    KeyMismatch,
    /// Its validity is over, or has not begun.
    Expired,
    /// It does not carry every name.
    SANMismatch,
}

impl CertificateCause {
    /// The word in conditions and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            CertificateCause::NotIssued => "NotIssued",
            CertificateCause::Invalid => "Invalid",
            CertificateCause::KeyMismatch => "KeyMismatch",
            CertificateCause::Expired => "Expired",
            CertificateCause::SANMismatch => "SANMismatch",
        }
    }
}

/// The agent's own tailnet node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentNode {
    /// Headscale's node id (decimal).
    pub id: String,
    /// MagicDNS label without the base domain; differs from the wished hostname when that was taken (`name-1`).
    pub name: String,
    /// Tailnet IPv4 address.
    pub ipv4: Option<String>,
    /// Tailnet IPv6 address.
    pub ipv6: Option<String>,
    /// Whether the control connection is up.
    pub online: bool,
}

/// One target as the agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentTarget {
    /// The target's name.
    pub name: String,
    /// Whether the listener is bound.
    pub listening: bool,
    /// Whether the netmap has a route for the (resolved) address.
    pub routed: bool,
    /// Name of the peer that serves the route.
    pub router: Option<String>,
    /// Why the route could not be looked up: the name does not resolve. At most 512 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_error: Option<String>,
    /// The last dial, if any.
    pub last_dial: Option<DialResult>,
    /// Connections open now.
    pub open_connections: u64,
    /// Connections accepted since start.
    pub total_connections: u64,
}

/// Outcome of a dial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DialResult {
    /// RFC 3339, UTC.
    pub at: String,
    /// Whether the connection was made.
    pub ok: bool,
    /// `no-route`, `timeout`, `refused`, `reset`, `resolve`, `other`; absent when `ok`.
    pub error_class: Option<String>,
    /// Bounded text for people; absent when `ok`.
    pub message: Option<String>,
}
