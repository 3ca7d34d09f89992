//! A node of the tailnet that is nobody's router: the client of tests that look from outside.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::node::{self, SOCKS, TailscaleNode, Uplink};
use super::{give_number_back, take_number};
use crate::boxed::client::Finished;
use crate::cluster::Cluster;

/// What a peer is.
#[derive(Debug, Clone)]
pub struct PeerSpec {
    /// Host name in the tailnet. A DNS label.
    pub name: String,
    /// Tags.
    pub tags: Vec<String>,
    /// A kernel interface: every program in its namespace uses the tailnet. Otherwise a userspace network behind SOCKS5 ([`Peer::socks`]).
    pub kernel: bool,
    /// Uses routes of subnet routers.
    pub accept_routes: bool,
}

impl PeerSpec {
    /// A kernel peer that accepts routes, with `tag:peer`.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            tags: vec!["tag:peer".to_owned()],
            kernel: true,
            accept_routes: true,
        }
    }
}

/// A running peer in a network namespace of its own. Removed when dropped; it is ephemeral in Headscale.
#[derive(Debug)]
pub struct Peer<'a> {
    cluster: &'a Cluster,
    node: TailscaleNode,
    spec: PeerSpec,
    number: u8,
}

impl Cluster {
    /// Makes a peer and waits until it is in the tailnet.
    ///
    /// # Errors
    /// When a step fails.
    pub fn peer(&self, spec: PeerSpec) -> Result<Peer<'_>> {
        crate::tools::ensure(&[crate::tools::Tool::Tailscaled, crate::tools::Tool::Tailscale])?;
        let number = take_number(self, "p")?;
        let netns = format!("p{number}");
        let link = format!("p{number}u");
        let uplink = Uplink {
            link,
            box_address: format!("172.28.{number}.1"),
            own_address: format!("172.28.{number}.2"),
        };
        let folder = self.dir().join("peers").join(number.to_string());
        let node = TailscaleNode::new(
            self,
            &folder,
            &spec.name,
            &format!("peer-{}", spec.name),
            &netns,
            spec.kernel,
        );
        let peer = Peer {
            cluster: self,
            node,
            spec,
            number,
        };
        node::make_namespace(&self.inside(), &netns, &uplink)?;
        let tags: Vec<&str> = peer.spec.tags.iter().map(String::as_str).collect();
        let key = self.headscale()?.preauth_key(&tags, false, true)?;
        peer.node.start()?;
        peer.node.up(
            &key,
            if peer.spec.accept_routes {
                &["--accept-routes"]
            } else {
                &[]
            },
        )?;
        Ok(peer)
    }
}

impl Peer<'_> {
    /// Runs a command in the peer's network namespace.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn run(&self, argv: &[&str]) -> Result<Finished> {
        self.cluster.inside().run_in(Some(&self.node.netns), argv)
    }

    /// Runs the tailscale command line against it.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn tailscale(&self, args: &[&str]) -> Result<Finished> {
        self.node.tailscale(args)
    }

    /// `tailscale status --json`.
    ///
    /// # Errors
    /// When tailscaled does not answer.
    pub fn status(&self) -> Result<Value> {
        self.node.status()
    }

    /// Its tailnet address (IPv4).
    ///
    /// # Errors
    /// When it is not in the tailnet.
    pub fn address(&self) -> Result<String> {
        self.node.address()
    }

    /// The proxy that a userspace peer's programs use (`curl --proxy`); absent with a kernel interface.
    pub fn socks(&self) -> Option<String> {
        (!self.spec.kernel).then(|| format!("socks5h://{SOCKS}"))
    }

    /// Its network namespace.
    pub fn netns(&self) -> &str {
        &self.node.netns
    }

    /// Ends it with SIGKILL and starts it again with its old identity.
    ///
    /// # Errors
    /// When it is not in the tailnet within 60 seconds.
    pub fn kill_and_start(&self) -> Result<()> {
        self.node.kill()?;
        self.node.start_again()?;
        self.node.wait_running(Duration::from_secs(60))
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        // A clean stop logs an ephemeral node out, so that Headscale forgets it at once.
        let _ = self.node.tailscale(&["logout"]);
        let _ = self.node.remove();
        let inside = self.cluster.inside();
        let _ = inside.run(&["ip", "link", "del", &format!("p{}u", self.number)]);
        let _ = inside.run(&["ip", "netns", "del", &self.node.netns]);
        let _ = std::fs::remove_dir_all(self.cluster.dir().join("peers").join(self.number.to_string()));
        give_number_back(self.cluster, "p", self.number);
    }
}
