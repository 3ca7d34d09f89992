//! Headscale, an ingress agent and a peer.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::*;

const HEALTH: &str = "127.0.0.1:9403";
/// Port of http exposes, here and on the tailnet.
pub const HTTPS: u16 = 9443;
pub const TCP: u16 = 9444;
pub const OTHER_TCP: u16 = 9445;

/// The ports of the ingress that the peer leads to, under the same numbers.
const PEER: [Target; 3] = [
    to_ingress("https", HTTPS),
    to_ingress("tcp", TCP),
    to_ingress("other", OTHER_TCP),
];

const fn to_ingress(name: &'static str, port: u16) -> Target {
    Target {
        name,
        listen_port: port,
        address: "ingress",
        port,
    }
}

/// Everything; drops in order.
pub struct Bed {
    pub peer: Option<Agent>,
    pub ingress: Kept,
    pub authority: Authority,
    pub world: World,
}

impl Bed {
    /// The ingress alone, with these exposes; it need not be ready.
    pub async fn alone(exposes: Value, env: &[(&str, &str)]) -> Bed {
        let world = World::without_router().await;
        let authority = Authority::new(world.dir.path());
        let dir = world.dir.path().join("ingress");
        std::fs::create_dir_all(dir.join("tls")).unwrap();
        std::fs::write(dir.join("authkey"), world.headscale.key("tag:ingress")).unwrap();
        configure(&dir, &exposes);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailnet-agent"));
        command
            .env_clear()
            .env("AGENT_MODE", "ingress")
            .env("AGENT_CONFIG", dir.join("config.json"))
            .env("AGENT_AUTHKEY_FILE", dir.join("authkey"))
            .env("AGENT_TLS_DIR", dir.join("tls"))
            .env("AGENT_HEALTH_LISTEN", HEALTH)
            .env("AGENT_PROBE_SECONDS", "2")
            .env("AGENT_ACCEPT_GRACE_SECONDS", "1")
            .env("AGENT_DIAL_TIMEOUT_SECONDS", "10")
            .env("LOG_FORMAT", "json")
            .env(
                "LOG_LEVEL",
                std::env::var("LOG_LEVEL").unwrap_or_else(|_| "info".into()),
            )
            .envs(env.iter().copied())
            .envs(world.headscale.env());
        let ingress = Kept::spawn("ingress", world.dir.path(), command);
        Bed {
            peer: None,
            ingress,
            authority,
            world,
        }
    }

    /// The ingress with a good certificate for `names`, and the peer.
    pub async fn new(exposes: Value, names: &[&str], env: &[(&str, &str)]) -> Bed {
        let mut bed = Bed::alone(exposes, env).await;
        if !names.is_empty() {
            bed.issue(names);
        }
        bed.ready().await;
        bed.join().await;
        bed
    }

    /// Starts the peer.
    pub async fn join(&mut self) {
        self.peer = Some(Agent::start(&self.world, &PEER).await);
    }

    /// Starts the peer as a node of a user.
    pub async fn join_as(&mut self, login: &str, name: &str) {
        let key = self.world.headscale.key_of_user(login, name);
        self.peer = Some(Agent::start_as(&self.world, &PEER, &key, &[]).await);
    }

    pub async fn ready(&self) {
        wait_for("the ingress is ready", Duration::from_secs(40), async || {
            get("/readyz").await.filter(|(status, _)| *status == 200)
        })
        .await;
    }

    pub fn dir(&self) -> PathBuf {
        self.world.dir.path().join("ingress")
    }

    pub fn configure(&self, exposes: &Value) {
        configure(&self.dir(), exposes);
    }

    /// Puts a good certificate in place.
    pub fn issue(&self, names: &[&str]) {
        let (chain, key) = self.authority.issue(names, 2040);
        self.put(&chain, &key);
    }

    pub fn put(&self, chain: &str, key: &str) {
        for (name, text) in [("tls.key", key), ("tls.crt", chain)] {
            replace(&self.dir().join("tls").join(name), text);
        }
    }

    pub async fn status(&self) -> Value {
        let (code, text) = get("/status").await.expect("the ingress answers");
        assert_eq!(code, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub async fn expose(&self, name: &str) -> Value {
        let status = self.status().await;
        let mut exposes = status["exposes"].as_array().unwrap().iter();
        exposes
            .find(|expose| expose["name"] == name)
            .cloned()
            .unwrap_or_else(|| panic!("no expose {name} in {status}"))
    }

    /// Waits until the status satisfies `test`.
    pub async fn until(&self, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, Duration::from_secs(20), async || {
            let (_, text) = get("/status").await?;
            serde_json::from_str(&text).ok().filter(|status| test(status))
        })
        .await
    }

    pub async fn metric(&self, line_start: &str) -> f64 {
        let (_, text) = get("/metrics").await.expect("the ingress answers");
        let line = text.lines().find(|line| line.starts_with(line_start));
        line.and_then(|line| line.rsplit(' ').next())
            .map_or(0.0, |value| value.parse().unwrap())
    }

    /// The first log line that satisfies `test`.
    pub async fn line(&self, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, Duration::from_secs(10), async || {
            self.ingress.log_json().into_iter().find(|line| test(line))
        })
        .await
    }

    /// TLS to the https port, with `name` as server name and these protocols.
    pub async fn tls(&self, name: &str, alpn: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = connect(HTTPS).await;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        within(self.authority.connector(alpn).connect(name, socket)).await
    }

    /// curl against the https port: what it prints, and whether it succeeded. `{name}` in the URL is also the host.
    pub async fn curl(&self, name: &str, path: &str, args: &[&str]) -> (bool, String) {
        let mut command = tokio::process::Command::new("curl");
        command
            .args([
                "--silent",
                "--show-error",
                "--max-time",
                "30",
                "--noproxy",
                "*",
                "--cacert",
            ])
            .arg(self.authority.dir.join("authority.pem"))
            .args(["--resolve", &format!("{name}:{HTTPS}:127.0.0.1")])
            .args(args)
            .arg(format!("https://{name}:{HTTPS}{path}"))
            .kill_on_drop(true);
        let output = within(command.output()).await.expect("curl is installed");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    }
}

async fn get(path: &str) -> Option<(u16, String)> {
    http_get_from(HEALTH, path).await
}

fn configure(dir: &Path, exposes: &Value) {
    let config =
        json!({"version": 1, "hostname": "ingress", "controlUrl": Headscale::URL, "exposes": exposes, "nextPort": 0});
    replace(&dir.join("config.json"), &config.to_string());
}

/// As kubelet does: a whole new file takes the old one's place.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// A tcp expose in `config.json`.
pub fn tcp(name: &str, port: u16, backend: u16) -> Value {
    json!({"name": name, "port": port, "backend": {"address": "127.0.0.1", "port": backend}})
}

/// An http expose.
pub fn http(name: &str, host: &str, backend: u16) -> Value {
    json!({"name": name, "port": HTTPS, "backend": {"address": "127.0.0.1", "port": backend},
        "http": {"names": [host], "backendRequestTimeoutMs": 60000}})
}

/// A certificate authority.
pub struct Authority {
    pub dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new(dir: &Path) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority of the test");
        let pem = params.self_signed(&key).unwrap().pem();
        std::fs::write(dir.join("authority.pem"), &pem).unwrap();
        Authority {
            dir: dir.to_owned(),
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A chain and its key, valid to the first day of a year.
    pub fn issue(&self, names: &[&str], to: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "leaf of the test");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let leaf = params.signed_by(&key, &self.issuer).unwrap().pem();
        (format!("{leaf}{}", self.pem), key.serialize_pem())
    }

    pub fn connector(&self, alpn: &[&str]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}
