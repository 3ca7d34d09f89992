//! One controller per kind: read, guard, desired, apply, status.

pub mod accepted_only;
pub mod agent_nodes;
pub mod claims;
pub mod headscale_changes;
mod key_ready;
pub mod runner;
pub mod tailnet;
pub mod tailnet_departed;
pub mod tailnet_egress;
pub mod tailnet_ingress;
pub mod tailnet_names;
pub mod tailnet_policy;
pub mod tailnet_site;
