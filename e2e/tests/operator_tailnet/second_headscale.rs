//! Another Headscale in the box, with the first one's certificate and nothing else of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use tailnet_e2e::tools::Tool;
use tailnet_e2e::{Process, wait_for};
use tailnet_headscale::preauth_key::PreAuthKeyInfo;
use tailnet_headscale::{ApiKey, Client, Endpoint, Limits};

use crate::bed::Bed;

const PORT: u16 = 8443;

/// A running one; it ends when dropped.
pub struct SecondHeadscale {
    /// Its URL, for the box and for the host.
    pub url: String,
    /// An API key of it.
    pub key: String,
    /// A client with that key.
    pub admin: Client,
    _process: Process,
}

impl SecondHeadscale {
    /// Starts one and makes an API key.
    pub fn start(bed: &Bed) -> Result<Self> {
        let (first, second) = (bed.headscale.dir(), bed.cluster.dir().join("headscale-2"));
        std::fs::create_dir_all(&second)?;
        for file in ["tls.crt", "tls.key"] {
            std::fs::copy(first.join(file), second.join(file))?;
        }
        let text = std::fs::read_to_string(first.join("config.yaml"))?;
        let text = text.replace(&first.display().to_string(), &second.display().to_string());
        let mut config: Value = serde_json::from_str(&text).context("the first one's configuration is JSON")?;
        let address = bed.cluster.node_address();
        let url = format!("https://{address}:{PORT}");
        config["server_url"] = json!(url);
        config["listen_addr"] = json!(format!("{address}:{PORT}"));
        config["grpc_listen_addr"] = json!("127.0.0.1:50444");
        config["derp"]["server"]["stun_listen_addr"] = json!(format!("{address}:3479"));
        let file = second.join("config.yaml").display().to_string();
        std::fs::write(&file, config.to_string())?;
        let binary = Tool::Headscale.built()?;
        let process = bed
            .cluster
            .spawn("headscale-2", &binary, &["--config", &file, "serve"], &[])?;

        let headscale = binary.display().to_string();
        let create = [
            headscale.as_str(),
            "--config",
            &file,
            "apikeys",
            "create",
            "--expiration",
            "2h",
        ];
        let key = wait_for("the second Headscale makes an API key", Duration::from_secs(30), || {
            let done = bed.cluster.inside().run(&create)?;
            let line = done.success()?.lines().last().unwrap_or_default().trim().to_owned();
            ensure!(line.starts_with("hskey-api-"), "no key; log: {}", process.log_tail(5));
            Ok(line)
        })?;
        let bundles = [("Headscale's CA".to_owned(), bed.headscale.ca_pem()?)];
        let admin = Client::new(
            Endpoint::parse(&url)?,
            &bundles,
            Some(ApiKey::parse(&key)?),
            Limits::default(),
        )?;
        Ok(Self {
            url,
            key,
            admin,
            _process: process,
        })
    }

    /// Its pre-auth keys with the tag of egress `name` that open anything.
    pub fn live_keys(&self, bed: &Bed, name: &str) -> Result<Vec<PreAuthKeyInfo>> {
        let tag = format!("tag:egress-{name}");
        let keys = bed.block(self.admin.preauth_keys())?;
        let now = Timestamp::now();
        Ok(keys
            .into_iter()
            .filter(|key| key.acl_tags.contains(&tag) && !key.expired(now))
            .collect())
    }
}
