//! A real Headscale in the box: policy in its database, embedded DERP over its own https, STUN, a CA of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::boxed::slot::BoxState;
use crate::cluster::daemons::Daemons;
use crate::command::{self, Output};
use crate::pki::{Authority, Subject};
use crate::tools::Tool;
use crate::{runtime, wait};

/// Host name of Headscale, for everything in the box (by its hosts file) and for Pods (by the cluster's DNS).
pub const HOST: &str = "control.example.net";
/// Domain of the tailnet's own names: `NODE.tailnet.example.net`. Headscale refuses one that contains [`HOST`].
pub const BASE_DOMAIN: &str = "tailnet.example.net";
/// Name of the daemon and of its log.
pub const DAEMON: &str = "headscale";

const AUTHORITY: &str = "headscale-ca";

/// Headscale of a cluster.
#[derive(Debug, Clone)]
pub struct Headscale {
    dir: PathBuf,
    address: String,
    daemons: Daemons,
}

impl Headscale {
    pub(crate) fn attach(state: &BoxState, daemons: &Daemons) -> Result<Self> {
        Ok(Self {
            dir: state.dir.join("headscale"),
            address: state.node_address(),
            daemons: daemons.clone(),
        })
    }

    /// Writes its files and starts it; [`Headscale::finish`] waits for it.
    pub(crate) fn begin(state: &BoxState, daemons: &Daemons) -> Result<Self> {
        let this = Self::attach(state, daemons)?;
        fs::create_dir_all(&this.dir)?;
        fs::set_permissions(&this.dir, fs::Permissions::from_mode(0o700))?;
        let authority = Authority::create(&this.dir, AUTHORITY)?;
        let address = this.address.parse()?;
        authority.issue(
            "tls",
            &Subject {
                common_name: HOST,
                names: vec![HOST.to_owned()],
                addresses: vec![address],
                ..Subject::default()
            },
        )?;
        // JSON is YAML.
        fs::write(this.config_file(), serde_json::to_string_pretty(&this.config())?)?;
        let argv = [
            Tool::Headscale.built()?.display().to_string(),
            "--config".into(),
            this.config_file().display().to_string(),
            "serve".into(),
        ];
        daemons.start(DAEMON, argv.to_vec(), &[])?;
        Ok(this)
    }

    /// Waits until it answers and makes the bootstrap API key.
    pub(crate) fn finish(&self) -> Result<()> {
        self.wait_ready(Duration::from_secs(30))?;
        let key = self.new_api_key("24h")?;
        fs::write(self.key_file(), &key)?;
        fs::set_permissions(self.key_file(), fs::Permissions::from_mode(0o600))?;
        Ok(())
    }

    fn config_file(&self) -> PathBuf {
        self.dir.join("config.yaml")
    }

    fn key_file(&self) -> PathBuf {
        self.dir.join("admin.key")
    }

    fn config(&self) -> serde_json::Value {
        let (dir, address) = (self.dir.display(), &self.address);
        json!({
            "server_url": self.url(),
            "listen_addr": format!("{address}:443"),
            "tls_cert_path": format!("{dir}/tls.crt"),
            "tls_key_path": format!("{dir}/tls.key"),
            // Metrics and debug pages have no authentication, and gRPC is used over the socket only.
            "metrics_listen_addr": "",
            "grpc_listen_addr": "127.0.0.1:50443",
            "noise": {"private_key_path": format!("{dir}/noise.key")},
            "prefixes": {"v4": "100.64.0.0/10", "v6": "fd7a:115c:a1e0::/48", "allocation": "sequential"},
            "derp": {
                "server": {
                    "enabled": true,
                    "region_id": 999,
                    "region_code": "box",
                    "region_name": "box",
                    "verify_clients": true,
                    "stun_listen_addr": format!("{address}:3478"),
                    "private_key_path": format!("{dir}/derp.key"),
                    "automatically_add_embedded_derp_region": true,
                    "ipv4": address,
                    // Without "none" a client waits 3 s at every start for an IPv6 answer that cannot come.
                    "ipv6": "none",
                },
                "urls": [],
                "paths": [],
                "auto_update_enabled": false,
            },
            "disable_check_updates": true,
            // The least that Headscale accepts is above 65 s.
            "node": {"ephemeral": {"inactivity_timeout": "70s"}},
            "database": {"type": "sqlite", "sqlite": {"path": format!("{dir}/db.sqlite")}},
            "policy": {"mode": "database"},
            "dns": {"magic_dns": true, "base_domain": BASE_DOMAIN, "override_local_dns": false, "nameservers": {"global": []}},
            "logtail": {"enabled": false},
            "unix_socket": format!("{dir}/headscale.sock"),
            "unix_socket_permission": "0700",
            "tuning": {"batch_change_delay": "50ms", "node_store_batch_timeout": "10ms"},
        })
    }

    /// `https://control.example.net`: for programs in the box, and for Pods.
    pub fn url(&self) -> String {
        format!("https://{HOST}")
    }

    /// `https://172.31.N.2`: the same server for programs on the host, which does not know its name.
    pub fn host_url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// PEM of the CA that signed its certificate.
    ///
    /// # Errors
    /// When the file is gone.
    pub fn ca_pem(&self) -> Result<String> {
        let path = self.ca_file();
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// File with [`Headscale::ca_pem`]: `SSL_CERT_FILE` of a tailscaled.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join(format!("{AUTHORITY}.crt"))
    }

    /// The bootstrap API key, valid for a day.
    ///
    /// # Errors
    /// When the file is gone.
    pub fn admin_key(&self) -> Result<String> {
        fs::read_to_string(self.key_file()).context("cannot read Headscale's bootstrap key")
    }

    /// Makes another API key; `lifetime` is a Go duration such as `24h` or `1s`.
    ///
    /// # Errors
    /// When the command fails.
    pub fn new_api_key(&self, lifetime: &str) -> Result<String> {
        self.cli(&["apikeys", "create", "--expiration", lifetime])?
            .success()
            .map(str::to_owned)
            .context("headscale apikeys create")
    }

    /// A client with the bootstrap key, over the host's link.
    ///
    /// # Errors
    /// When key or CA cannot be read.
    pub fn client(&self) -> Result<tailnet_headscale::Client> {
        self.client_with_key(&self.admin_key()?)
    }

    /// A client with any API key.
    ///
    /// # Errors
    /// When the CA cannot be read.
    pub fn client_with_key(&self, key: &str) -> Result<tailnet_headscale::Client> {
        let endpoint = tailnet_headscale::Endpoint::parse(&self.host_url())?;
        let bundles = [("Headscale's CA".to_owned(), self.ca_pem()?)];
        let key = tailnet_headscale::ApiKey::parse(key)?;
        Ok(tailnet_headscale::Client::new(
            endpoint,
            &bundles,
            Some(key),
            tailnet_headscale::Limits::default(),
        )?)
    }

    /// Runs Headscale's own command line against the running server.
    ///
    /// # Errors
    /// When it cannot be run. A non-zero exit is in the [`Output`].
    pub fn cli(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(Tool::Headscale.built()?);
        command.arg("--config").arg(self.config_file()).args(args);
        command::output(&mut command, "", Duration::from_secs(60))
    }

    /// A pre-auth key for nodes with `tags` (`tag:router`, ...), valid for a day.
    ///
    /// # Errors
    /// When the command fails.
    pub fn preauth_key(&self, tags: &[&str], reusable: bool, ephemeral: bool) -> Result<String> {
        let tags = tags.join(",");
        let mut args = vec!["preauthkeys", "create", "--expiration", "24h", "--tags", &tags];
        if reusable {
            args.push("--reusable");
        }
        if ephemeral {
            args.push("--ephemeral");
        }
        let printed = self
            .cli(&args)?
            .success()
            .map(str::to_owned)
            .context("headscale preauthkeys create")?;
        printed
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("hskey-auth-"))
            .map(str::to_owned)
            .context("headscale printed no key")
    }

    /// Stores an access policy (HuJSON).
    ///
    /// # Errors
    /// When Headscale refuses it, with its text.
    pub fn set_policy(&self, text: &str) -> Result<()> {
        let file = self.dir.join("policy.hujson");
        fs::write(&file, text)?;
        self.cli(&["policy", "set", "--file", &file.display().to_string()])?
            .success()
            .map(drop)
            .context("headscale policy set")
    }

    /// Waits until its health page answers.
    ///
    /// # Errors
    /// When it does not within `deadline`, with the end of its log.
    pub fn wait_ready(&self, deadline: Duration) -> Result<()> {
        let client = self.https_client()?;
        let url = format!("{}/health", self.host_url());
        let waited = runtime::block_on(async move {
            wait::wait_for_async("Headscale answers", deadline, || async {
                client
                    .get(&url)
                    .timeout(Duration::from_secs(5))
                    .send()
                    .await
                    .and_then(reqwest::Response::error_for_status)
                    .map(drop)
            })
            .await
        })?;
        waited.with_context(|| {
            self.daemons
                .process(DAEMON)
                .map(|process| process.log_tail(20))
                .unwrap_or_default()
        })
    }

    fn https_client(&self) -> Result<reqwest::Client> {
        crate::tls::install_provider();
        let certificate = reqwest::Certificate::from_pem(self.ca_pem()?.as_bytes())?;
        Ok(reqwest::Client::builder()
            .tls_certs_only([certificate])
            .no_proxy()
            .build()?)
    }

    /// Ends it with SIGTERM (SIGKILL after 15 s: it hangs when a connected node was deleted).
    ///
    /// # Errors
    /// When it survives.
    pub fn stop(&self) -> Result<()> {
        self.daemons.stop(DAEMON)
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// When it survives.
    pub fn kill(&self) -> Result<()> {
        self.daemons.kill(DAEMON)
    }

    /// Starts it again and waits until it answers.
    ///
    /// # Errors
    /// When it does not within 30 seconds.
    pub fn start(&self) -> Result<()> {
        self.daemons.start_again(DAEMON)?;
        self.wait_ready(Duration::from_secs(30))
    }

    /// [`Headscale::stop`] and [`Headscale::start`].
    ///
    /// # Errors
    /// See both.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    /// Folder with its files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}
