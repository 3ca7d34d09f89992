//! What should exist, as pure functions of specs and facts. Nothing here reads a clock, a network or a store.

pub mod access_policy;
pub mod agent_pod;
pub mod hosts;
pub mod listen_ports;
pub mod memory_limit;
pub mod node_names;
pub mod tailnet;
pub mod tailnet_egress;
pub mod tailnet_ingress;
pub mod tailnet_site;
