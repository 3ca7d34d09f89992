//! Where a test runs: its operator namespace and rights, its Tailnet, its operators, and what it may ask.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde_json::{Value, json};
use tailnet_e2e::tools::{self, Tool};
use tailnet_e2e::{Account, Cluster, Headscale, Process, TestNamespace, binaries, one_at_a_time, wait_for};
use tailnet_headscale::preauth_key::PreAuthKeyInfo;
use tailnet_headscale::{ApiKeyInfo, Client, Node};
use tailnet_operator::rbac;
use tailnet_policies::facts::{Chunk, Facts};

pub const ACCOUNT: &str = "tailnet-operator";
pub const SERVER: &str = "https://control.example.net";
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The shared API server with our CRDs.
pub fn cluster() -> &'static Cluster {
    Cluster::shared_api_prepared(Cluster::install_crds)
}

/// One test's surroundings. Dropping it deletes the Tailnet.
pub struct Bed {
    pub cluster: &'static Cluster,
    pub headscale: Headscale,
    pub namespace: TestNamespace<'static>,
    pub tailnet: String,
    pub kubeconfig: String,
    pub admin: Client,
    pub runtime: tokio::runtime::Runtime,
    /// Prefixes of the API keys that were there before.
    pub keys_before: BTreeSet<String>,
    pub logs: Mutex<Vec<std::path::PathBuf>>,
    pub started: Mutex<usize>,
    _turn: MutexGuard<'static, ()>,
}

impl Bed {
    pub fn new(test: &str) -> Result<Self> {
        let turn = one_at_a_time();
        let cluster = cluster();
        let namespace = cluster.namespace(test)?;
        let ns = namespace.name().to_owned();
        let headscale = cluster.headscale()?;
        cluster.install_account(&Account {
            namespace: &ns,
            name: ACCOUNT,
            cluster_role: &format!("{ACCOUNT}-{ns}"),
            cluster_rules: rbac::cluster_rules(),
            namespace_rules: rbac::namespace_rules(),
        })?;
        cluster.apply_all(&[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "headscale-ca", "namespace": ns},
                "data": {"ca.crt": headscale.ca_pem()?}}),
        ])?;
        let kubeconfig = cluster
            .service_account_kubeconfig(&ns, ACCOUNT)?
            .to_str()
            .context("UTF-8")?
            .to_owned();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let admin = headscale.client()?;
        let keys_before = runtime
            .block_on(admin.api_keys())?
            .iter()
            .map(|k| k.short_prefix().to_owned())
            .collect();
        Ok(Self {
            cluster,
            headscale,
            tailnet: format!("t-{}", ns.replace('.', "-"))
                .chars()
                .take(40)
                .collect::<String>()
                .trim_end_matches('-')
                .to_owned(),
            namespace,
            kubeconfig,
            admin,
            runtime,
            keys_before,
            logs: Mutex::default(),
            started: Mutex::default(),
            _turn: turn,
        })
    }

    pub fn ns(&self) -> &str {
        self.namespace.name()
    }

    pub fn block<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn apply(&self, document: &Value) -> Result<()> {
        self.cluster.apply(&document.to_string()).map(drop)
    }

    pub fn bootstrap(&self, key: &str) -> Result<()> {
        self.apply(
            &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "headscale-api", "namespace": self.ns()},
            "stringData": {"apiKey": key}}),
        )
    }

    /// A bootstrap key of this test alone.
    pub fn own_key(&self) -> Result<String> {
        let end = Timestamp::now() + SignedDuration::from_hours(2);
        Ok(self.block(self.admin.create_api_key(end))?.secret().expose().to_owned())
    }

    pub fn tailnet(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut document = json!({"apiVersion": "tsunaro.io/v1alpha1", "kind": "Tailnet", "metadata": {"name": self.tailnet},
            "spec": {"server": SERVER, "api": {"caConfigMapRef": {"name": "headscale-ca"}}, "apiSecretRef": {"name": "headscale-api"}}});
        change(&mut document["spec"]);
        self.apply(&document)
    }

    pub fn egress(&self, name: &str) -> Result<()> {
        self.apply(&json!({"apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetEgress",
            "metadata": {"name": name, "namespace": self.ns()},
            "spec": {"tailnetRef": {"name": self.tailnet}, "tag": format!("tag:egress-{name}"), "consumerNamespaces": ["team-a"],
                "targets": [{"name": format!("{name}-db"), "address": "192.0.2.10", "port": 5432}]}}))
    }

    /// An operator that looks every second.
    pub fn operator(&self, more: &[&str]) -> Result<Process> {
        let binary = binaries::workspace("tailnet-operator", "tailnet-operator")?;
        let number = {
            let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
            *started += 1;
            *started
        };
        let mut args = vec![
            "--operator-namespace",
            self.ns(),
            "--agent-image",
            "docker.io/tsunaro/tailnet-operator:dev",
            "--leader-election",
            "false",
            "--health-listen",
            "127.0.0.1:0",
            "--facts-interval-seconds",
            "1",
            "--key-mints-per-hour",
            "1000",
            "--log-level",
            "info,tailnet_operator=debug",
        ];
        // A later value of the same option is an error for clap, so a test's own values replace these.
        for pair in more.chunks(2) {
            match args.iter().position(|a| *a == pair[0]) {
                Some(at) => args[at + 1] = pair[1],
                None => args.extend(pair),
            }
        }
        let name = format!("operator-{}-{number}", self.ns());
        let process = self
            .cluster
            .spawn(&name, &binary, &args, &[("KUBECONFIG", &self.kubeconfig)])?;
        self.logs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(process.log_path().to_owned());
        Ok(process)
    }

    pub fn get(&self, what: &[&str]) -> Result<Value> {
        let mut args = vec!["get", "-o", "json", "-n", self.ns(), "--ignore-not-found"];
        args.extend(what);
        let output = self.cluster.kubectl(&args)?;
        let text = output.success()?;
        if text.trim().is_empty() {
            Ok(Value::Null)
        } else {
            Ok(serde_json::from_str(text)?)
        }
    }

    pub fn delete(&self, what: &[&str]) -> Result<()> {
        let mut args = vec!["delete", "-n", self.ns(), "--wait=true", "--timeout=30s"];
        args.extend(what);
        self.cluster.kubectl(&args)?.success().map(drop)
    }

    /// `status/reason/message` of a condition of an object; the generation must be the current one.
    pub fn condition(&self, what: &[&str], r#type: &str) -> Result<(String, String, String)> {
        let object = self.get(what)?;
        let list = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = list
            .iter()
            .find(|c| c["type"] == r#type)
            .with_context(|| format!("no {type}: {}", object["status"]))?;
        ensure!(
            found["observedGeneration"] == object["metadata"]["generation"],
            "stale: {found}"
        );
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Ok((text("status"), text("reason"), text("message")))
    }

    /// Waits for `type` of the Tailnet to have this status and reason; gives the message.
    pub fn expect(&self, r#type: &str, status: &str, reason: &str) -> Result<String> {
        wait_for(&format!("{type} is {status}/{reason}"), PATIENCE, || {
            let seen = self.condition(&["tailnet", &self.tailnet], r#type)?;
            ensure!(seen.0 == status && seen.1 == reason, "{seen:?}");
            Ok::<_, anyhow::Error>(seen.2)
        })
    }

    pub fn ready(&self) -> Result<()> {
        self.expect("Ready", "True", "Ready").map(drop)
    }

    /// The working key as its Secret has it: prefix, key.
    pub fn working_key(&self) -> Result<(String, String)> {
        let secret = self.get(&["secret", &format!("tailnet-{}-apikey", self.tailnet)])?;
        let text = secret["data"]["apiKey"].as_str().context("no working key")?;
        let key = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text)?)?;
        let prefix = secret["metadata"]["annotations"]["tsunaro.io/key-prefix"]
            .as_str()
            .context("no prefix")?;
        Ok((prefix.to_owned(), key))
    }

    /// API keys that were made since the test began, expired ones too.
    pub fn new_api_keys(&self) -> Result<Vec<ApiKeyInfo>> {
        let keys = self.block(self.admin.api_keys())?;
        Ok(keys
            .into_iter()
            .filter(|k| !self.keys_before.contains(k.short_prefix()))
            .collect())
    }

    /// Pre-auth keys with the tag of egress `name`.
    pub fn preauth_keys(&self, name: &str) -> Result<Vec<PreAuthKeyInfo>> {
        let tag = format!("tag:egress-{name}");
        let keys = self.block(self.admin.preauth_keys())?;
        Ok(keys.into_iter().filter(|k| k.acl_tags.contains(&tag)).collect())
    }

    pub fn nodes(&self, name: &str) -> Result<Vec<Node>> {
        let tag = format!("tag:egress-{name}");
        Ok(self
            .block(self.admin.nodes())?
            .into_iter()
            .filter(|n| n.tags.contains(&tag))
            .collect())
    }

    pub fn ledger(&self) -> Result<Value> {
        let secret = self.get(&["secret", "tailnet-key-ledger"])?;
        let Some(text) = secret["data"]["ledger.json"].as_str() else {
            return Ok(json!({"entries": []}));
        };
        Ok(serde_json::from_slice(
            &base64::engine::general_purpose::STANDARD.decode(text)?,
        )?)
    }

    pub fn entries(&self) -> Result<Vec<Value>> {
        Ok(self.ledger()?["entries"].as_array().cloned().unwrap_or_default())
    }

    pub fn authkey(&self, egress: &str) -> Result<(String, String)> {
        let secret = self.get(&["secret", &format!("tailnet-egress-{egress}-authkey")])?;
        let text = secret["data"]["authkey"].as_str().context("no pre-auth key")?;
        let key = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text)?)?;
        let id = secret["metadata"]["annotations"]["tsunaro.io/key-id"]
            .as_str()
            .context("no id")?;
        Ok((id.to_owned(), key))
    }

    pub fn facts(&self) -> Result<Facts> {
        let list = self.get(&["configmap", "-l", &format!("tsunaro.io/facts={}", self.tailnet)])?;
        let chunks: Vec<Chunk> = list["items"]
            .as_array()
            .context("no list")?
            .iter()
            .map(|item| {
                let config_map: ConfigMap = serde_json::from_value(item.clone())?;
                let (labels, annotations) = (config_map.labels(), config_map.annotations());
                let name = config_map.name_any();
                let chunk = Chunk::of_config_map(&name, labels, annotations, config_map.data.as_ref())?;
                Ok(chunk.context("a strange name")?.1)
            })
            .collect::<Result<_>>()?;
        Ok(Facts::from_chunks(&chunks)?)
    }

    /// No key in the operator's logs, in the status, in events, in any ConfigMap. `extra`: texts that must not be there.
    pub fn no_key_is_told(&self, extra: &[&str]) -> Result<()> {
        let mut texts = Vec::new();
        for path in self.logs.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            texts.push((path.display().to_string(), std::fs::read_to_string(path)?));
        }
        for kinds in ["tailnets,tailnetegresses", "configmaps,events,deployments,services"] {
            texts.push((kinds.to_owned(), self.get(&[kinds])?.to_string()));
        }
        for (place, text) in texts {
            for key in extra {
                // The end of the secret part; prefix and secret may have dashes themselves.
                let secret = &key[key.len().saturating_sub(16)..];
                ensure!(!text.contains(secret), "a key is in {place}");
            }
            for (at, _) in text.match_indices("hskey-") {
                let shown: String = text[at..].chars().take(60).collect();
                let rest = shown
                    .trim_start_matches("hskey-")
                    .trim_start_matches("api-")
                    .trim_start_matches("auth-");
                let after: String = rest.chars().skip(12).take(2).collect();
                ensure!(
                    matches!(after.as_str(), "-*" | "-["),
                    "in {place}: {}",
                    &shown[..30.min(shown.len())]
                );
            }
        }
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self
            .cluster
            .kubectl(&["delete", "tailnet", &self.tailnet, "--ignore-not-found", "--wait=false"]);
        for kind in ["clusterrole", "clusterrolebinding"] {
            let name = format!("{ACCOUNT}-{}", self.ns());
            let _ = self
                .cluster
                .kubectl(&["delete", kind, &name, "--ignore-not-found", "--wait=false"]);
        }
        let _ = self
            .headscale
            .wait_ready(Duration::from_secs(1))
            .or_else(|_| self.headscale.start());
    }
}

pub fn kube_ca(cluster: &Cluster) -> Result<String> {
    let config = cluster.kubectl(&["config", "view", "--raw", "-o", "json"])?;
    let config: Value = serde_json::from_str(config.success()?)?;
    let data = config["clusters"][0]["cluster"]["certificate-authority-data"]
        .as_str()
        .context("no CA in the kubeconfig")?;
    Ok(String::from_utf8(
        base64::engine::general_purpose::STANDARD.decode(data)?,
    )?)
}

/// A node in user space, in the box.
pub fn join(bed: &Bed, name: &str, key: &str) -> Result<Process> {
    tools::ensure(&[Tool::Tailscaled, Tool::Tailscale])?;
    let dir = bed.cluster.dir().join(name);
    std::fs::create_dir_all(&dir)?;
    let socket = dir.join("sock").display().to_string();
    let ca = bed.headscale.ca_file().display().to_string();
    let state = dir.display().to_string();
    let args = [
        "--tun=userspace-networking",
        "--no-logs-no-support",
        "--port=0",
        "--socket",
        &socket,
        "--statedir",
        &state,
    ];
    let env = [("TS_NO_LOGS_NO_SUPPORT", "true"), ("SSL_CERT_FILE", ca.as_str())];
    let node = bed.cluster.spawn(name, &Tool::Tailscaled.built()?, &args, &env)?;
    wait_for("tailscaled has its socket", Duration::from_secs(20), || {
        std::fs::metadata(&socket).map(drop)
    })?;
    let up = Tool::Tailscale.built()?.display().to_string();
    let argv = [
        &up,
        "--socket",
        &socket,
        "up",
        "--timeout=30s",
        "--hostname",
        name,
        "--login-server",
        SERVER,
        "--authkey",
        key,
    ];
    bed.cluster.inside().run(&argv)?.success()?;
    Ok(node)
}
