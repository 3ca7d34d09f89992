//! One real tailscaled in a network namespace of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::boxed::client::{Finished, Starter};
use crate::boxed::protocol::Spawn;
use crate::cluster::Cluster;
use crate::cluster::daemons::Daemons;
use crate::tools::Tool;
use crate::wait;

/// Where a userspace node listens for SOCKS5 in its namespace.
pub const SOCKS: &str = "127.0.0.1:1055";

/// The link between the box and a namespace.
pub struct Uplink {
    /// Name of the box's end.
    pub link: String,
    /// Address of the box's end, in a /30.
    pub box_address: String,
    /// Address of the namespace's end.
    pub own_address: String,
}

/// Makes a network namespace with a default route to the box.
///
/// # Errors
/// When a command fails.
pub fn make_namespace(inside: &Starter, netns: &str, uplink: &Uplink) -> Result<()> {
    let outside = |args: &[&str]| inside.check(None, &[&["ip"], args].concat()).map(drop);
    outside(&["netns", "add", netns])?;
    outside(&[
        "link",
        "add",
        &uplink.link,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        netns,
    ])?;
    outside(&[
        "addr",
        "add",
        &format!("{}/30", uplink.box_address),
        "dev",
        &uplink.link,
    ])?;
    outside(&["link", "set", &uplink.link, "up"])?;
    let within = |args: &[&str]| inside.check(Some(netns), &[&["ip"], args].concat()).map(drop);
    within(&["link", "set", "lo", "up"])?;
    within(&["addr", "add", &format!("{}/30", uplink.own_address), "dev", "eth0"])?;
    within(&["link", "set", "eth0", "up"])?;
    within(&["route", "add", "default", "via", &uplink.box_address])
}

/// A tailscaled.
#[derive(Debug)]
pub struct TailscaleNode {
    /// Network namespace.
    pub netns: String,
    /// Name of the daemon and of its log.
    pub daemon: String,
    name: String,
    /// With a kernel interface; otherwise a userspace network behind SOCKS5.
    kernel: bool,
    dir: PathBuf,
    ca: PathBuf,
    inside: Starter,
    daemons: Daemons,
}

impl TailscaleNode {
    /// Nothing is started yet. `name` is its host name in the tailnet, `folder` where its own folder is made.
    pub fn new(cluster: &Cluster, folder: &Path, name: &str, daemon: &str, netns: &str, kernel: bool) -> Self {
        Self {
            netns: netns.to_owned(),
            daemon: daemon.to_owned(),
            name: name.to_owned(),
            kernel,
            dir: folder.join(name),
            ca: cluster.dir().join("headscale/headscale-ca.crt"),
            inside: cluster.inside(),
            daemons: cluster.daemons().clone(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("tailscaled.sock")
    }

    /// Starts tailscaled.
    ///
    /// # Errors
    /// When it is not built or does not start.
    pub fn start(&self) -> Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        let mut argv = vec![
            Tool::Tailscaled.built()?.display().to_string(),
            format!("--statedir={}", self.dir.display()),
            format!("--socket={}", self.socket().display()),
            "--no-logs-no-support".to_owned(),
        ];
        if self.kernel {
            argv.push("--tun=tailscale0".to_owned());
        } else {
            argv.push("--tun=userspace-networking".to_owned());
            argv.push(format!("--socks5-server={SOCKS}"));
        }
        let env = [
            ("SSL_CERT_FILE", self.ca.display().to_string()),
            ("TS_NO_LOGS_NO_SUPPORT", "true".to_owned()),
            ("TS_DEBUG_FIREWALL_MODE", "nftables".to_owned()),
        ];
        self.daemons.start_with(Spawn {
            name: self.daemon.clone(),
            argv,
            env: env.map(|(key, value)| (key.to_owned(), value)).to_vec(),
            netns: Some(self.netns.clone()),
            ..Spawn::default()
        })
    }

    /// Joins the tailnet with a pre-auth key and waits until it is in.
    ///
    /// # Errors
    /// When it is not within 60 seconds, with the end of its log.
    pub fn up(&self, key: &str, more: &[&str]) -> Result<()> {
        let socket = self.socket();
        wait::wait_for("tailscaled listens", Duration::from_secs(15), || {
            std::os::unix::net::UnixStream::connect(&socket).map(drop)
        })
        .with_context(|| self.log_tail())?;
        // The key goes through a file: arguments are for everybody to read.
        let file = self.dir.join("authkey");
        std::fs::write(&file, key)?;
        let (server, host, key) = (
            super::login_server(),
            format!("--hostname={}", self.name),
            format!("--auth-key=file:{}", file.display()),
        );
        let mut args = vec!["up", &server, &host, &key, "--accept-dns=false", "--timeout=60s"];
        args.extend(more);
        let done = self.tailscale(&args);
        let _ = std::fs::remove_file(&file);
        done?
            .success()
            .with_context(|| format!("tailscale up of {}; end of its log:\n{}", self.name, self.log_tail()))?;
        Ok(())
    }

    fn log_tail(&self) -> String {
        self.daemons
            .process(&self.daemon)
            .map(|process| process.log_tail(15))
            .unwrap_or_default()
    }

    /// Runs the tailscale command line against it.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn tailscale(&self, args: &[&str]) -> Result<Finished> {
        let mut argv = vec![
            Tool::Tailscale.built()?.display().to_string(),
            format!("--socket={}", self.socket().display()),
        ];
        argv.extend(args.iter().map(|arg| (*arg).to_owned()));
        let spawn = Spawn {
            name: format!("{}-cli", self.daemon),
            argv,
            netns: Some(self.netns.clone()),
            ..Spawn::default()
        };
        self.inside.run_with(spawn, Duration::from_secs(90))
    }

    /// `tailscale status --json`.
    ///
    /// # Errors
    /// When tailscaled does not answer.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(self.tailscale(&["status", "--json"])?.success()?)?)
    }

    /// Its tailnet address (IPv4).
    ///
    /// # Errors
    /// When it has none.
    pub fn address(&self) -> Result<String> {
        Ok(self.tailscale(&["ip", "-4"])?.success()?.to_owned())
    }

    /// Waits until it is in the tailnet.
    ///
    /// # Errors
    /// When it is not within `deadline`, with the end of its log.
    pub fn wait_running(&self, deadline: Duration) -> Result<()> {
        wait::wait_for(&format!("{} is in the tailnet", self.name), deadline, || {
            let status = self.status()?;
            match (status["BackendState"].as_str(), status["Self"]["Online"].as_bool()) {
                (Some("Running"), Some(true)) => Ok(()),
                (state, online) => bail!("state {state:?}, online {online:?}"),
            }
        })
        .with_context(|| self.log_tail())
    }

    /// SIGTERM.
    ///
    /// # Errors
    /// When it survives.
    pub fn stop(&self) -> Result<()> {
        self.daemons.stop(&self.daemon)
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When it survives.
    pub fn kill(&self) -> Result<()> {
        self.daemons.kill(&self.daemon)
    }

    /// Starts it with its old state; does nothing when it runs.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_again(&self) -> Result<()> {
        if self.daemons.process(&self.daemon)?.is_running() {
            return Ok(());
        }
        // A killed tailscaled leaves its interface's routing rules; a new one cleans them up itself, but not the socket.
        let _ = std::fs::remove_file(self.socket());
        self.daemons.start_again(&self.daemon)
    }

    /// Kills and forgets it.
    ///
    /// # Errors
    /// When it survives.
    pub fn remove(&self) -> Result<()> {
        self.daemons.remove(&self.daemon)
    }
}
