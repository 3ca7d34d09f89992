//! The egress controller as a process with its own rights, against a real API server and a real Headscale. No node runs
//! here: agents stay pending, which is a state like any other.

#[path = "../operating/mod.rs"]
mod operating;

mod checks;
mod children;
mod claims_record;
mod contention;
mod crashes;
mod drift;
mod key_windows;
mod leadership;
mod resolver;
mod rollout;
mod scripted_proxy;
mod tailnet;
