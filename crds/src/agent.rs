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
    /// The operator's own memory: the next listen port to hand out. The agent ignores it.
    pub next_port: u16,
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
