//! A remote network: real routers (tailscaled with a kernel interface) and the hosts behind them, in network namespaces inside the box.
//!
//! ```text
//!   box (172.31.N.2, Headscale) --- uplink 172.29.S.R*4/30 --- router R: tailscale0 --- bridge "lan" in the site's own namespace
//!                                                                                        192.0.2.10     PostgreSQL 5432
//!                                                                                        192.0.2.30     TCP echo 7000
//!                                                                                        198.51.100.20  HTTPS 443 (api.site.example.net)
//! ```
//!
//! The box has no route to the hosts: what reaches them came through the tailnet. A router hides its clients (tailscaled's default), so a host sees the router's address.

mod hosts;
mod node;
mod peer;
pub mod postgres;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use peer::{Peer, PeerSpec};

use crate::boxed::client::Finished;
use crate::cluster::Cluster;
use crate::headscale::Headscale;
use crate::{headscale, site::node::TailscaleNode};

/// Address and port of the site's PostgreSQL server.
pub const POSTGRES: &str = "192.0.2.10:5432";
/// Address and port of the site's TCP echo server.
pub const ECHO: &str = "192.0.2.30:7000";
/// Address and port of the site's HTTPS server.
pub const HTTPS: &str = "198.51.100.20:443";
/// Name in the certificate of the site's HTTPS server.
pub const HTTPS_NAME: &str = "api.site.example.net";
/// The site's networks: what its routers advertise unless told otherwise.
pub const ROUTES: [&str; 2] = ["192.0.2.0/24", "198.51.100.0/24"];

/// What a site has.
#[derive(Debug, Clone)]
pub struct SiteSpec {
    /// Name: of the routers in Headscale (`NAME`, `NAME-1`, ...) and of its logs. A DNS label.
    pub name: String,
    /// What the routers advertise.
    pub routes: Vec<String>,
    /// Tags of the routers; Headscale's policy has to know them as soon as it names them.
    pub tags: Vec<String>,
    /// How many routers; all advertise the same.
    pub routers: u8,
    /// A PostgreSQL server at [`POSTGRES`] with the table of [`postgres`].
    pub postgres: bool,
    /// An HTTPS server at [`HTTPS`].
    pub https: bool,
    /// An echo server at [`ECHO`].
    pub echo: bool,
}

impl SiteSpec {
    /// One router with `tag:router`, all hosts.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            routes: ROUTES.map(str::to_owned).to_vec(),
            tags: vec!["tag:router".to_owned()],
            routers: 1,
            postgres: true,
            https: true,
            echo: true,
        }
    }
}

/// A running site. Removed when dropped, unless [`Site::keep`]t; its nodes stay in Headscale.
#[derive(Debug)]
pub struct Site<'a> {
    cluster: &'a Cluster,
    headscale: Headscale,
    spec: SiteSpec,
    dir: PathBuf,
    number: u8,
    routers: Vec<TailscaleNode>,
    programs: Vec<String>,
    keep: bool,
}

/// Takes the lowest number that `prefix` has not used in this box: part of addresses and link names.
fn take_number(cluster: &Cluster, prefix: &str) -> Result<u8> {
    let folder = cluster.dir().join("numbers");
    std::fs::create_dir_all(&folder)?;
    for number in 1..=250 {
        if std::fs::OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(folder.join(format!("{prefix}{number}")))
            .is_ok()
        {
            return Ok(number);
        }
    }
    anyhow::bail!("no free number for {prefix}: 250 are in use")
}

fn give_number_back(cluster: &Cluster, prefix: &str, number: u8) {
    let _ = std::fs::remove_file(cluster.dir().join("numbers").join(format!("{prefix}{number}")));
}

impl Cluster {
    /// Makes a site and waits until its routers are in the tailnet and its hosts answer. Routes still need approval (Headscale's policy or API).
    ///
    /// # Errors
    /// When a step fails, with the end of the log concerned.
    pub fn site(&self, spec: SiteSpec) -> Result<Site<'_>> {
        crate::prerequisites::ensure_present(&[crate::prerequisites::Need::Site])?;
        crate::tools::ensure(&[crate::tools::Tool::Tailscaled, crate::tools::Tool::Tailscale])?;
        ensure!(spec.routers >= 1, "a site needs a router");
        let dir = self.dir().join("sites").join(&spec.name);
        ensure!(!dir.exists(), "there is a site {} already", spec.name);
        std::fs::create_dir_all(&dir)?;
        let number = take_number(self, "s")?;
        let headscale = self.headscale()?;
        let mut site = Site {
            cluster: self,
            headscale,
            spec,
            dir,
            number,
            routers: Vec::new(),
            programs: Vec::new(),
            keep: false,
        };
        site.make_lan()?;
        let hosts = site.start_hosts()?;
        for _ in 0..site.spec.routers {
            site.add_router()?;
        }
        site.wait_hosts(&hosts)?;
        Ok(site)
    }
}

impl Site<'_> {
    /// Name of the network namespace of the hosts, for [`crate::Starter::run_in`].
    pub fn lan(&self) -> String {
        format!("s{}-lan", self.number)
    }

    /// Name of the network namespace of router `index`.
    ///
    /// # Errors
    /// When there is no such router.
    pub fn router_netns(&self, index: usize) -> Result<String> {
        Ok(self.router(index)?.netns.clone())
    }

    fn router(&self, index: usize) -> Result<&TailscaleNode> {
        self.routers.get(index).with_context(|| {
            format!(
                "site {} has {} routers, no number {index}",
                self.spec.name,
                self.routers.len()
            )
        })
    }

    /// Lets the site live on when this handle is dropped.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// PEM of the CA of the site's HTTPS server.
    ///
    /// # Errors
    /// When the site has none.
    pub fn ca_pem(&self) -> Result<String> {
        std::fs::read_to_string(self.dir.join("site-ca.crt")).context("the site has no HTTPS server")
    }

    fn make_lan(&self) -> Result<()> {
        let (inside, lan) = (self.cluster.inside(), self.lan());
        inside.check(None, &["ip", "netns", "add", &lan])?;
        let ip = |args: &[&str]| inside.check(Some(&lan), &[&["ip"], args].concat()).map(drop);
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "add", "lan", "type", "bridge"])?;
        for address in ["192.0.2.10/24", "192.0.2.30/24", "198.51.100.20/24"] {
            ip(&["addr", "add", address, "dev", "lan"])?;
        }
        ip(&["link", "set", "lan", "up"])
    }

    /// Adds one more router (a standby when the first is up) and waits until it is in the tailnet. Returns its index.
    ///
    /// # Errors
    /// When a step fails.
    pub fn add_router(&mut self) -> Result<usize> {
        let index = self.routers.len();
        ensure!(index < 60, "a site has room for 60 routers");
        let name = if index == 0 {
            self.spec.name.clone()
        } else {
            format!("{}-{index}", self.spec.name)
        };
        let netns = format!("s{}-r{index}", self.number);
        let base = u8::try_from(index)? * 4;
        let uplink = node::Uplink {
            link: format!("s{}r{index}", self.number),
            box_address: format!("172.29.{}.{}", self.number, base + 1),
            own_address: format!("172.29.{}.{}", self.number, base + 2),
        };
        let inside = self.cluster.inside();
        node::make_namespace(&inside, &netns, &uplink)?;
        // The LAN side: a pair between the router and the bridge.
        let port = format!("r{index}");
        inside.check(
            Some(&netns),
            &["ip", "link", "add", "lan0", "type", "veth", "peer", "name", &port],
        )?;
        inside.check(None, &["ip", "-n", &netns, "link", "set", &port, "netns", &self.lan()])?;
        let own = index + 1;
        for (where_, args) in [
            (
                self.lan(),
                vec![
                    "ip".to_owned(),
                    "link".into(),
                    "set".into(),
                    port.clone(),
                    "master".into(),
                    "lan".into(),
                    "up".into(),
                ],
            ),
            (
                netns.clone(),
                vec![
                    "ip".to_owned(),
                    "addr".into(),
                    "add".into(),
                    format!("192.0.2.{own}/24"),
                    "dev".into(),
                    "lan0".into(),
                ],
            ),
            (
                netns.clone(),
                vec![
                    "ip".to_owned(),
                    "addr".into(),
                    "add".into(),
                    format!("198.51.100.{own}/24"),
                    "dev".into(),
                    "lan0".into(),
                ],
            ),
            (
                netns.clone(),
                vec!["ip".to_owned(), "link".into(), "set".into(), "lan0".into(), "up".into()],
            ),
            (
                netns.clone(),
                vec![
                    "sysctl".to_owned(),
                    "-q".into(),
                    "-w".into(),
                    "net.ipv4.ip_forward=1".into(),
                ],
            ),
        ] {
            inside.check(Some(&where_), &args)?;
        }
        let tags: Vec<&str> = self.spec.tags.iter().map(String::as_str).collect();
        let key = self.headscale.preauth_key(&tags, false, false)?;
        let node = TailscaleNode::new(self.cluster, &self.dir, &name, &format!("site-{name}"), &netns, true);
        node.start()?;
        node.up(&key, &[&format!("--advertise-routes={}", self.spec.routes.join(","))])?;
        self.routers.push(node);
        Ok(index)
    }

    /// Ends router `index` with SIGKILL: Headscale notices after about 10 seconds.
    ///
    /// # Errors
    /// When there is no such router, or it survives.
    pub fn kill_router(&self, index: usize) -> Result<()> {
        self.router(index)?.kill()
    }

    /// Starts router `index` again with its old identity, unless it runs, and waits until it is in the tailnet.
    ///
    /// # Errors
    /// When it is not within 60 seconds.
    pub fn start_router(&self, index: usize) -> Result<()> {
        let node = self.router(index)?;
        node.start_again()?;
        node.wait_running(Duration::from_secs(60))
    }

    /// Ends router `index` with SIGTERM and starts it again.
    ///
    /// # Errors
    /// See [`Site::start_router`].
    pub fn restart_router(&self, index: usize) -> Result<()> {
        self.router(index)?.stop()?;
        self.start_router(index)
    }

    /// Changes what router `index` advertises.
    ///
    /// # Errors
    /// When tailscale refuses a route.
    pub fn advertise(&self, index: usize, routes: &[&str]) -> Result<()> {
        self.tailscale(index, &["set", &format!("--advertise-routes={}", routes.join(","))])?
            .success()
            .map(drop)
    }

    /// Runs the tailscale command line against router `index`.
    ///
    /// # Errors
    /// When there is no such router, or the command cannot be run.
    pub fn tailscale(&self, index: usize, args: &[&str]) -> Result<Finished> {
        self.router(index)?.tailscale(args)
    }

    /// The router's tailnet address (IPv4).
    ///
    /// # Errors
    /// When it is not in the tailnet.
    pub fn router_address(&self, index: usize) -> Result<String> {
        self.router(index)?.address()
    }

    /// Name of the router's daemon and log.
    ///
    /// # Errors
    /// When there is no such router.
    pub fn router_daemon(&self, index: usize) -> Result<&str> {
        Ok(&self.router(index)?.daemon)
    }

    /// Runs a command among the hosts.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn run_on_host(&self, argv: &[&str]) -> Result<Finished> {
        self.cluster.inside().run_in(Some(&self.lan()), argv)
    }

    /// The site's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let inside = self.cluster.inside();
        for program in &self.programs {
            let _ = self.cluster.daemons().remove(program);
        }
        for (index, router) in self.routers.iter().enumerate() {
            let _ = router.remove();
            let _ = inside.run(&["ip", "link", "del", &format!("s{}r{index}", self.number)]);
            let _ = inside.run(&["ip", "netns", "del", &router.netns]);
        }
        let _ = inside.run(&["ip", "netns", "del", &self.lan()]);
        let _ = std::fs::remove_dir_all(&self.dir);
        give_number_back(self.cluster, "s", self.number);
    }
}

/// The login server that nodes in the box use.
fn login_server() -> String {
    format!("--login-server=https://{}", headscale::HOST)
}
