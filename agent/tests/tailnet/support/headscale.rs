use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::process::{Kept, signal};
use super::wait_for;

/// A Headscale with its own CA, an embedded relay and a database in a folder.
pub struct Headscale {
    dir: PathBuf,
    process: Option<Kept>,
}

impl Headscale {
    pub const URL: &'static str = "https://10.99.0.1:8443";

    pub async fn start(dir: &Path) -> Headscale {
        let dir = dir.join("headscale");
        fs::create_dir(&dir).unwrap();
        write_certificates(&dir);
        fs::write(dir.join("config.yaml"), config(&dir)).unwrap();
        let mut headscale = Headscale { dir, process: None };
        headscale.resume().await;
        headscale.set_policy();
        headscale
    }

    /// Starts the server, again after [`Headscale::kill`].
    pub async fn resume(&mut self) {
        let mut command = Command::new(binary());
        command.arg("-c").arg(self.dir.join("config.yaml")).arg("serve");
        self.process = Some(Kept::spawn("headscale", &self.dir, command));
        wait_for("Headscale listens", Duration::from_secs(20), async || {
            tokio::net::TcpStream::connect("10.99.0.1:8443").await.ok()
        })
        .await;
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops answering, without closing anything.
    pub fn freeze(&self) {
        signal(self.process.as_ref().unwrap().pid(), Signal::SIGSTOP);
    }

    /// What a client needs in its environment.
    pub fn env(&self) -> [(&'static str, PathBuf); 1] {
        [("SSL_CERT_FILE", self.dir.join("ca.pem"))]
    }

    /// A reusable key for ephemeral nodes with `tag`.
    pub fn key(&self, tag: &str) -> String {
        let key = self.cli(&[
            "preauthkeys",
            "create",
            "--reusable",
            "--ephemeral",
            "-e",
            "24h",
            "--tags",
            tag,
        ]);
        key["key"]
            .as_str()
            .unwrap_or_else(|| panic!("no key in {key}"))
            .to_owned()
    }

    /// A reusable key for ephemeral nodes of a new user.
    pub fn key_of_user(&self, login: &str, display_name: &str) -> String {
        let user = self.cli(&["users", "create", login, "--display-name", display_name]);
        let id = user["id"].to_string();
        let id = id.trim_matches('"');
        let key = self.cli(&[
            "preauthkeys",
            "create",
            "--reusable",
            "--ephemeral",
            "-e",
            "24h",
            "-u",
            id,
        ]);
        key["key"]
            .as_str()
            .unwrap_or_else(|| panic!("no key in {key}"))
            .to_owned()
    }

    pub fn nodes(&self) -> Vec<Value> {
        self.cli(&["nodes", "list"]).as_array().cloned().unwrap_or_default()
    }

    /// Ids of the nodes with this host name.
    pub fn ids(&self, name: &str) -> Vec<String> {
        let named = |n: &Value| n["name"].as_str() == Some(name);
        self.nodes()
            .into_iter()
            .filter(named)
            .map(|n| n["id"].to_string())
            .collect()
    }

    pub fn delete_node(&self, id: &str) {
        self.cli(&["nodes", "delete", "--force", "-i", id]);
    }

    pub fn expire_node(&self, id: &str) {
        self.cli(&["nodes", "expire", "-i", id]);
    }

    fn set_policy(&self) {
        let path = self.dir.join("policy.json");
        let policy = r#"{"tagOwners":{"tag:egress":[],"tag:router":[],"tag:ingress":[]},
            "grants":[{"src":["tag:egress"],"dst":["tag:router","10.200.0.0/24"],"ip":["*"]},
                {"src":["*"],"dst":["tag:ingress"],"ip":["*"]},
                {"src":["tag:router"],"dst":["10.201.0.0/24"],"ip":["*"]}],
            "autoApprovers":{"routes":{"10.200.0.0/24":["tag:router"],"10.201.0.0/24":["tag:router"]}}}"#;
        fs::write(&path, policy).unwrap();
        self.cli(&["policy", "set", "-f", path.to_str().unwrap()]);
    }

    fn cli(&self, args: &[&str]) -> Value {
        let config = self.dir.join("config.yaml");
        let out = Command::new(binary())
            .arg("-c")
            .arg(config)
            .args(args)
            .args(["-o", "json"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success(),
            "headscale {args:?}: {text}{}",
            String::from_utf8_lossy(&out.stderr)
        );
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }
}

fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TAILNET_HEADSCALE") {
        return path.into();
    }
    let module = include_str!("../../../../e2e/tools/headscale/go.mod");
    let version = module.lines().find_map(|l| {
        l.trim_start_matches("require ")
            .strip_prefix("github.com/juanfont/headscale ")
    });
    let home = std::env::var_os("HOME").expect("HOME");
    let path = Path::new(&home)
        .join(".cache/tailnet-operator/tools")
        .join(format!("headscale-{}", version.unwrap().trim()))
        .join("headscale");
    assert!(
        path.exists(),
        "{} is missing: `cargo xtask cluster up` builds it, or set TAILNET_HEADSCALE",
        path.display()
    );
    path
}

fn write_certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["10.99.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    fs::write(dir.join("ca.pem"), ca_cert.pem()).unwrap();
    fs::write(dir.join("tls.crt"), cert.pem()).unwrap();
    fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
}

fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"
server_url: {url}
listen_addr: 10.99.0.1:8443
tls_cert_path: {dir}/tls.crt
tls_key_path: {dir}/tls.key
metrics_listen_addr: ""
grpc_listen_addr: 127.0.0.1:50443
noise: {{ private_key_path: {dir}/noise.key }}
prefixes: {{ v4: 100.64.0.0/10, v6: "fd7a:115c:a1e0::/48", allocation: sequential }}
derp:
  server:
    enabled: true
    region_id: 999
    region_code: test
    region_name: test
    verify_clients: true
    stun_listen_addr: "10.99.0.1:3478"
    private_key_path: {dir}/derp.key
    automatically_add_embedded_derp_region: true
    ipv4: 10.99.0.1
    ipv6: none
  urls: []
  paths: []
  auto_update_enabled: false
disable_check_updates: true
node: {{ ephemeral: {{ inactivity_timeout: 70s }} }}
database: {{ type: sqlite, sqlite: {{ path: {dir}/db.sqlite }} }}
policy: {{ mode: database }}
dns: {{ magic_dns: true, base_domain: ts.test.internal, override_local_dns: false, nameservers: {{ global: [] }} }}
logtail: {{ enabled: false }}
unix_socket: {dir}/hs.sock
unix_socket_permission: "0700"
tuning: {{ batch_change_delay: 50ms, node_store_batch_timeout: 10ms }}
"#,
        url = Headscale::URL,
    )
}
