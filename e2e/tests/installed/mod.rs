//! A cluster with our CRDs, and webhooks beside it that have exactly the rights that their role gives them.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod balancer;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tailnet_crds::{API_VERSION, Kind, Scope};
use tailnet_e2e::{Account, Cluster, Process, binaries, health, wait_for};
use tailnet_webhook::configuration::{Parameters, mutating, validating};
use tailnet_webhook::rbac;

pub const NAMESPACE: &str = "tailnet-system";
const ACCOUNT: &str = "tailnet-webhook";

/// The shared API server with our CRDs, the operator namespace, and the webhook's ServiceAccount with its roles.
pub fn cluster() -> &'static Cluster {
    Cluster::shared_api_prepared(prepare)
}

/// Our CRDs, the operator namespace, and the webhook's ServiceAccount with its roles.
pub fn prepare(cluster: &Cluster) -> Result<()> {
    cluster.install_crds()?;
    cluster.install_account(&Account {
        namespace: NAMESPACE,
        name: ACCOUNT,
        cluster_role: ACCOUNT,
        cluster_rules: rbac::cluster_rules(),
        namespace_rules: rbac::namespace_rules(),
    })
}

/// The webhook's kubeconfig, written once: a process that starts must not read a file that is being rewritten.
pub fn kubeconfig(cluster: &Cluster) -> Result<&'static str> {
    static PATH: OnceLock<Result<String, String>> = OnceLock::new();
    let made = PATH.get_or_init(|| {
        let path = cluster
            .service_account_kubeconfig(NAMESPACE, ACCOUNT)
            .map_err(|error| format!("{error:#}"))?;
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| "a path that is not UTF-8".to_owned())
    });
    made.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// A webhook process in the box.
pub struct Webhook {
    pub process: Process,
    pub port: u16,
    health: String,
    pub audit: PathBuf,
}

impl Webhook {
    /// Starts one on `port` (its health endpoint on `port + 1000`), without waiting for anything.
    pub fn start(cluster: &Cluster, name: &str, port: u16) -> Result<Self> {
        Self::start_with(
            cluster,
            name,
            port,
            &[
                "--service-cidr=10.96.0.0/16".to_owned(),
                "--pod-cidr=10.244.0.0/16".to_owned(),
            ],
        )
    }

    /// [`Webhook::start`] with other flags about the cluster, or about the audit stream.
    pub fn start_with(cluster: &Cluster, name: &str, port: u16, about: &[String]) -> Result<Self> {
        Self::start_as(cluster, name, port, about, &[], kubeconfig(cluster)?)
    }

    /// [`Webhook::start_with`] with more in its environment, and as the user of another kubeconfig.
    pub fn start_as(
        cluster: &Cluster,
        name: &str,
        port: u16,
        about: &[String],
        env: &[(&str, String)],
        kubeconfig: &str,
    ) -> Result<Self> {
        let binary = binaries::workspace("tailnet-webhook", "tailnet-webhook")?;
        let health = format!("{}:{}", cluster.node_address(), port + 1000);
        let audit = cluster.dir().join(format!("{name}-audit.jsonl"));
        let mut args = vec![
            format!("--listen=127.0.0.1:{port}"),
            format!("--health-listen={health}"),
            "--serving-name=127.0.0.1".to_owned(),
            "--shutdown-delay=1s".to_owned(),
            "--log-level=info,tailnet_webhook=debug".to_owned(),
        ];
        if !about.iter().any(|flag| flag.starts_with("--audit-log=")) {
            args.push(format!("--audit-log={}", audit.display()));
        }
        args.extend(about.iter().cloned());
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut variables = vec![("KUBECONFIG", kubeconfig)];
        variables.extend(env.iter().map(|(name, value)| (*name, value.as_str())));
        let process = cluster.spawn(name, &binary, &args, &variables)?;
        Ok(Self {
            process,
            port,
            health,
            audit,
        })
    }

    /// Starts one, installs both configurations for it, and waits until it is ready and the API server calls it.
    pub fn installed(cluster: &Cluster, name: &str, port: u16) -> Result<Self> {
        let webhook = Self::start(cluster, name, port)?;
        webhook.install(cluster, |_| {})?;
        webhook.wait_ready()?;
        webhook.wait_called(cluster)?;
        Ok(webhook)
    }

    /// Installs both configurations, pointing at this process; `change` may alter each before.
    pub fn install(&self, cluster: &Cluster, change: impl Fn(&mut Value)) -> Result<()> {
        let parameters = Parameters::url(&format!("https://127.0.0.1:{}", self.port));
        let mut validating = serde_json::to_value(validating(&parameters))?;
        let mut mutating = serde_json::to_value(mutating(&parameters))?;
        change(&mut validating);
        change(&mut mutating);
        cluster.apply_all(&[validating, mutating])
    }

    /// `GET /readyz` or another path of the health endpoint: code and text.
    pub fn health(&self, path: &str) -> Result<(u16, String)> {
        health::get(&self.health, path)
    }

    pub fn wait_ready(&self) -> Result<()> {
        health::wait_ready(&self.process, &self.health)
    }

    /// Waits until the API server sends creates here: a configuration takes a moment to be followed.
    pub fn wait_called(&self, cluster: &Cluster) -> Result<()> {
        let wrong = site("called-yet", &["192.0.2.0/24"], "no-such-tailnet");
        let caller = Caller::new(cluster)?;
        wait_for("the API server calls the webhook", Duration::from_secs(20), || {
            let answer = caller.create(&wrong, true)?;
            ensure!(
                answer.warnings.iter().any(|text| text.contains("[TN001]")),
                "{answer:?}"
            );
            Ok(())
        })
    }

    /// The lines of the audit stream so far.
    pub fn audit_lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }
}

/// A change of the configurations that lets one user pass: for what came in while nobody asked the webhook.
pub fn except(user: &str) -> impl Fn(&mut Value) {
    let condition = json!({"name": "not-this-user", "expression": format!("request.userInfo.username != '{user}'")});
    move |configuration| {
        for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
            match webhook["matchConditions"].as_array_mut() {
                Some(conditions) => conditions.push(condition.clone()),
                None => webhook["matchConditions"] = json!([condition]),
            }
        }
    }
}

/// Removes both configurations, and waits until the API server no longer calls anybody.
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        cluster
            .kubectl(&["delete", kind, "tailnet-webhook", "--ignore-not-found"])?
            .success()?;
    }
    let caller = Caller::new(cluster)?;
    wait_for("the API server calls no webhook", Duration::from_secs(20), || {
        let answer = caller.create(&site("called-still", &["192.0.2.0/24"], "no-such-tailnet"), true)?;
        ensure!(answer.status.is_success() && answer.warnings.is_empty(), "{answer:?}");
        Ok(())
    })
}

/// Removes all objects of our kinds.
pub fn clear(cluster: &Cluster) -> Result<()> {
    for kind in Kind::ALL {
        cluster
            .kubectl(&["delete", kind.plural(), "--all", "--all-namespaces", "--timeout=20s"])?
            .success()?;
    }
    Ok(())
}

/// What the API server said.
#[derive(Debug, Clone)]
pub struct Said {
    pub status: StatusCode,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Said {
    /// `field: message` of every cause.
    pub fn causes(&self) -> Vec<String> {
        let causes = self
            .body
            .pointer("/details/causes")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let text = |cause: &Value, key: &str| cause.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        causes
            .iter()
            .map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message")))
            .collect()
    }

    pub fn message(&self) -> &str {
        self.body.get("message").and_then(Value::as_str).unwrap_or_default()
    }
}

/// Asks the API server and keeps what kube's typed calls drop: warnings.
pub struct Caller {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Caller {
    pub fn new(cluster: &Cluster) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let kubeconfig = kube::config::Kubeconfig::read_from(cluster.kubeconfig())?;
        let client = runtime.block_on(async {
            let mut config =
                kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
            config.proxy_url = None;
            anyhow::Ok(Client::try_from(config)?)
        })?;
        Ok(Self { client, runtime })
    }

    /// The same API server as another user (impersonation).
    pub fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        user: Option<(&str, &[String])>,
    ) -> Result<Said> {
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("accept", "application/json");
        let patch = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        request = request.header("content-type", patch);
        if let Some((user, groups)) = user {
            request = request.header("impersonate-user", user);
            for group in groups {
                request = request.header("impersonate-group", group);
            }
        }
        let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = request.body(Body::from(bytes))?;
        self.runtime.block_on(async {
            let response = tokio::time::timeout(Duration::from_secs(30), self.client.send(request)).await??;
            let warnings = response
                .headers()
                .get_all("warning")
                .iter()
                // Not to_str: it takes ASCII only, and warnings are UTF-8.
                .filter_map(|value| warning(std::str::from_utf8(value.as_bytes()).ok()?))
                .collect();
            let status = response.status();
            let bytes = response.into_body().collect().await?.to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
            Ok(Said { status, body, warnings })
        })
    }

    pub fn create(&self, object: &Value, dry_run: bool) -> Result<Said> {
        self.create_as(object, dry_run, None)
    }

    pub fn create_as(&self, object: &Value, dry_run: bool, user: Option<(&str, &[String])>) -> Result<Said> {
        self.ask(
            Method::POST,
            &format!("{}{}", collection(object)?, dry(dry_run)),
            Some(object),
            user,
        )
    }

    /// PUT with the stored resourceVersion.
    pub fn update_as(&self, object: &Value, dry_run: bool, user: Option<(&str, &[String])>) -> Result<Said> {
        let path = item(object)?;
        let live = self.ask(Method::GET, &path, None, None)?;
        ensure!(live.status.is_success(), "{path}: {live:?}");
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = live.body["metadata"]["resourceVersion"].clone();
        self.ask(Method::PUT, &format!("{path}{}", dry(dry_run)), Some(&object), user)
    }

    pub fn get(&self, object: &Value) -> Result<Said> {
        self.ask(Method::GET, &item(object)?, None, None)
    }

    pub fn delete(&self, object: &Value) -> Result<Said> {
        self.delete_as(object, false, None)
    }

    pub fn delete_as(&self, object: &Value, dry_run: bool, user: Option<(&str, &[String])>) -> Result<Said> {
        self.ask(
            Method::DELETE,
            &format!("{}{}", item(object)?, dry(dry_run)),
            None,
            user,
        )
    }
}

fn dry(dry_run: bool) -> &'static str {
    if dry_run { "?dryRun=All" } else { "" }
}

/// `299 - "text"` without the frame.
fn warning(header: &str) -> Option<String> {
    let quoted = header.split_once('"')?.1.strip_suffix('"')?;
    Some(quoted.replace("\\\"", "\"").replace("\\\\", "\\"))
}

fn collection(object: &Value) -> Result<String> {
    let version = object["apiVersion"].as_str().context("apiVersion")?;
    let kind = object["kind"].as_str().context("kind")?;
    let root = if version.contains('/') {
        format!("/apis/{version}")
    } else {
        format!("/api/{version}")
    };
    let namespace = object["metadata"]["namespace"].as_str();
    let (plural, scope) = match (kind.parse::<Kind>(), kind) {
        (Ok(kind), _) => (kind.plural(), kind.scope()),
        (_, "Namespace") => ("namespaces", Scope::Cluster),
        (_, "Service") => ("services", Scope::Namespaced),
        (_, "ClusterRole") => ("clusterroles", Scope::Cluster),
        (_, "ClusterRoleBinding") => ("clusterrolebindings", Scope::Cluster),
        (_, "ValidatingAdmissionPolicy") => ("validatingadmissionpolicies", Scope::Cluster),
        (_, "ValidatingAdmissionPolicyBinding") => ("validatingadmissionpolicybindings", Scope::Cluster),
        (_, "ConfigMap") => ("configmaps", Scope::Namespaced),
        (_, "Lease") => ("leases", Scope::Namespaced),
        (_, "Secret") => ("secrets", Scope::Namespaced),
        _ => bail!("a test asked for {kind}"),
    };
    Ok(match (scope, namespace) {
        (Scope::Cluster, _) => format!("{root}/{plural}"),
        (Scope::Namespaced, Some(namespace)) => format!("{root}/namespaces/{namespace}/{plural}"),
        (Scope::Namespaced, None) => bail!("{kind} without a namespace"),
    })
}

pub fn item(object: &Value) -> Result<String> {
    Ok(format!(
        "{}/{}",
        collection(object)?,
        object["metadata"]["name"].as_str().context("name")?
    ))
}

pub fn tailnet(name: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "Tailnet", "metadata": {"name": name},
        "spec": {"server": format!("https://{name}.example.net"), "apiSecretRef": {"name": format!("{name}-api")}, "reservedNetworks": ["10.96.0.0/12"]},
    })
}

pub fn site(name: &str, prefixes: &[&str], tailnet: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "TailnetSite", "metadata": {"name": name},
        "spec": {"tailnetRef": {"name": tailnet}, "prefixes": prefixes},
    })
}

pub fn egress(name: &str, tailnet: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "TailnetEgress", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "tailnetRef": {"name": tailnet}, "tag": format!("tag:egress-{name}"), "consumerNamespaces": ["default"],
            "targets": [{"name": format!("{name}-db"), "address": "192.0.2.10", "port": 5432, "aliases": [format!("{name}.db.example.net")]}],
        },
    })
}
