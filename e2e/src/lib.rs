//! The end-to-end harness: a real one-node Kubernetes cluster, a real Headscale and real tailnet sites in one temporary folder.
//!
//! Everything runs in a *box*: one network, mount and PID namespace. When the box goes, everything in it goes, and nothing is left on the machine.
//! Needs root and Debian. The servers are pinned in `e2e/tools` and built once into the cache.
//!
//! # In a test
//!
//! ```no_run
//! use std::time::Duration;
//! use tailnet_e2e::{Cluster, wait_for};
//!
//! # fn main() -> anyhow::Result<()> {
//! let cluster = Cluster::shared(); // whole node + Headscale; Cluster::shared_api() is the faster API-only one
//! let namespace = cluster.namespace("refuses_a_wrong_port")?; // deleted at the end; objects and Pod logs are kept when the test fails
//! cluster.apply(&format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a, namespace: {namespace}}}, data: {{a: b}}}}"))?;
//! let text = cluster.apply_refused("{apiVersion: v1, kind: ConfigMap, metadata: {name: A_}}")?; // kubectl's standard error
//! assert!(text.contains("RFC 1123"));
//! wait_for("the ConfigMap is there", Duration::from_secs(10), || cluster.kubectl(&["get", "configmap", "a", "-n", namespace.name()])?.success().map(drop))?;
//! # Ok(()) }
//! ```
//!
//! | want | have |
//! |---|---|
//! | a client | [`Cluster::client`] (admin), [`Cluster::client_of`] ([`Cluster::user_kubeconfig`], [`Cluster::service_account_kubeconfig`]) |
//! | kubectl, helm | [`Cluster::kubectl`], [`Cluster::apply`], [`Cluster::apply_refused`], [`Cluster::helm`] |
//! | what the API server saw | [`Cluster::audit_log`] |
//! | a program of the workspace | [`binaries::workspace`] builds it |
//! | … running beside the cluster | [`Cluster::spawn`] (inside the box), [`Cluster::spawn_on_host`]; a [`Process`] can be signalled, awaited, read |
//! | where a webhook on the host is reached | [`Cluster::host_address`]; one inside the box: [`Cluster::node_address`] |
//! | faults | [`Cluster::restart_apiserver`], [`Cluster::daemons`] (stop, kill, start again), [`Headscale::stop`], [`Headscale::kill`], [`Site::kill_router`] |
//! | Pods | image [`images::TESTBOX`]; [`Cluster::pod_exec`], [`Cluster::load_image`] |
//! | Headscale | [`Cluster::headscale`] |
//! | a program whose clock is wrong | the environment of [`clock::shifted`] |
//! | cert-manager | [`CertManager::start`], [`CertManager::ca_issuer`] |
//! | a remote network | [`Cluster::site`], [`Cluster::peer`] |
//! | our CRDs, our processes' rights | [`Cluster::install_crds`], [`Cluster::install_account`], [`Cluster::shared_api_prepared`] |
//! | tests that take turns | [`one_at_a_time`] |
//! | waiting | [`wait_for`], [`wait_for_async`] |
//!
//! Names: the box of number N has the node address `172.31.N.2`; this machine is `172.31.N.1` from there. Headscale is `https://control.example.net`
//! in the box and for Pods, `https://172.31.N.2` for programs on the host. Pods 10.244.0.0/16, Services 10.96.0.0/16.

pub mod binaries;
pub mod boxed;
pub mod cert_manager;
pub mod clock;
pub mod cluster;
pub mod command;
pub mod headscale;
pub mod health;
pub mod images;
pub mod kept_logs;
pub mod lan_servers;
pub mod nested_cargo;
pub mod oci;
pub mod paths;
pub mod pki;
pub mod prerequisites;
pub mod progress;
mod runtime;
pub mod site;
pub mod tls;
pub mod tools;
pub mod turns;
pub mod wait;

pub use boxed::client::{Finished, Process, Starter};
pub use boxed::protocol::{Exit, Spawn};
pub use boxed::slot::BoxState;
pub use cert_manager::CertManager;
pub use cluster::namespace::TestNamespace;
pub use cluster::product::Account;
pub use cluster::{Cluster, Options, Tier};
pub use command::Output;
pub use headscale::Headscale;
pub use site::{Peer, Site, SiteSpec};
pub use turns::one_at_a_time;
pub use wait::{wait_for, wait_for_async};
