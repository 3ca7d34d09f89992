//! A tailnet node in a status.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One tailnet node of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Headscale's node id, decimal.
    #[schemars(length(max = 20))]
    pub id: String,
    /// MagicDNS label of the node.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Tailnet IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub ipv4: Option<String>,
    /// Tailnet IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub ipv6: Option<String>,
    /// Whether Headscale sees the node.
    pub online: bool,
}
