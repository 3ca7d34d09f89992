//! The agent against a real Headscale and a real second node, each test in a network namespace of its own, so that nothing
//! of the machine is reachable and nothing is left behind.
//!
//! Needs root and iproute2, and the Headscale that the harness builds (`cargo xtask cluster up` does, or set TAILNET_HEADSCALE). With
//! TAILNET_LONG_TESTS=1 the numbers are the large ones.

// The lint's exception for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod carrying;
mod draining;
mod ingress;
mod load;
mod rejoining;
mod reloading;
mod restricted;
mod starting;
mod support;
