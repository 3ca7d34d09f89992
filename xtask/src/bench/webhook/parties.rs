//! The two webhooks that are compared, on one API server: ours, and one in Go that does nothing. Which is asked follows from
//! the namespace that an object is created in.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_e2e::pki::{Authority, Subject};
use tailnet_e2e::{Cluster, Process, binaries, paths, wait_for};
use tailnet_webhook::configuration::{Parameters, mutating, validating};

/// Label of a namespace that says who is asked about its objects.
const ASKED: &str = "bench-asked";
const NOOP_PORT: u16 = 9700;
const OUR_PORT: u16 = 9701;
/// Port of a second webhook of ours, which is only started.
const SECOND_PORT: u16 = 9703;
const START: Duration = Duration::from_secs(60);

/// Who is asked about the objects of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// No webhook.
    Nobody,
    /// The Go pair.
    Noop,
    /// Ours.
    Ours,
}

impl Asked {
    /// The namespace.
    pub fn namespace(self) -> &'static str {
        match self {
            Asked::Nobody => "bench-nobody",
            Asked::Noop => "bench-noop",
            Asked::Ours => "bench-ours",
        }
    }
}

/// Both webhooks; they run until this is dropped.
pub struct Parties {
    _noop: Process,
    _ours: Process,
}

/// CRDs, namespaces, a Tailnet, both webhooks and their configurations.
pub fn install(cluster: &Cluster) -> Result<Parties> {
    prepare(cluster)?;
    let noop = start_noop(cluster)?;
    let ours = start_ours(cluster, "webhook", OUR_PORT)?.0;
    let parameters = Parameters::url(&format!("https://127.0.0.1:{OUR_PORT}"));
    configure(
        cluster,
        Asked::Ours,
        [
            serde_json::to_value(validating(&parameters))?,
            serde_json::to_value(mutating(&parameters))?,
        ],
    )?;
    // Ours puts its CA into the configurations, and is ready once that is done.
    wait_for("the webhook is ready", START, || ready(cluster, OUR_PORT))?;
    Ok(Parties {
        _noop: noop,
        _ours: ours,
    })
}

fn prepare(cluster: &Cluster) -> Result<()> {
    let mut documents: Vec<Value> = Kind::ALL
        .into_iter()
        .map(|kind| tailnet_crds::crd::crd_value(kind).clone())
        .collect();
    documents.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tailnet-system"}}));
    for asked in [Asked::Nobody, Asked::Noop, Asked::Ours] {
        let name = asked.namespace();
        documents.push(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {ASKED: name}}}),
        );
    }
    apply(cluster, &documents)?;
    cluster
        .kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"])?
        .success()?;
    apply(cluster, &[tailnet()])
}

/// The Tailnet that all objects refer to.
pub fn tailnet() -> Value {
    json!({"apiVersion": "tsunaro.io/v1alpha1", "kind": "Tailnet", "metadata": {"name": "demo"},
        "spec": {"server": "https://control.example.net", "apiSecretRef": {"name": "headscale-bootstrap", "key": "apiKey"}}})
}

fn apply(cluster: &Cluster, documents: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": documents}).to_string();
    cluster
        .kubectl_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list)?
        .success()?;
    Ok(())
}

/// Applies webhook configurations so that they are followed for the namespace of `asked` alone.
fn configure(cluster: &Cluster, asked: Asked, configurations: [Value; 2]) -> Result<()> {
    let mut configurations = configurations.to_vec();
    for configuration in &mut configurations {
        let webhooks = configuration["webhooks"].as_array_mut();
        for webhook in webhooks.into_iter().flatten() {
            webhook["namespaceSelector"] = json!({"matchLabels": {ASKED: asked.namespace()}});
        }
    }
    apply(cluster, &configurations)
}

fn start_noop(cluster: &Cluster) -> Result<Process> {
    let folder = cluster.dir().join("noop");
    let authority = Authority::create(&folder, "ca")?;
    let pair = authority.issue(
        "noop",
        &Subject {
            common_name: "noop",
            organisation: None,
            names: Vec::new(),
            addresses: vec!["127.0.0.1".parse()?],
        },
    )?;
    let binary = folder.join("noop-webhook");
    let built = Command::new("go")
        .args(["build", "-trimpath", "-o"])
        .arg(&binary)
        .arg(".")
        .current_dir(paths::repository().join("xtask/src/bench/webhook/noop"))
        .env("GOWORK", "off")
        .output()
        .context("is Go installed?")?;
    ensure!(
        built.status.success(),
        "the reference does not build: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
    let (certificate, key) = (text(&pair.certificate)?, text(&pair.key)?);
    let listen = format!("127.0.0.1:{NOOP_PORT}");
    let process = cluster.spawn("noop-webhook", &binary, &[&listen, &certificate, &key], &[])?;
    let rules = json!([{"apiGroups": ["tsunaro.io"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"], "resources": ["*"], "scope": "*"}]);
    let configuration = |kind: &str, path: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "noop"}, "webhooks": [{
            "name": "noop.example.net", "rules": rules, "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 10,
            "clientConfig": {"url": format!("https://127.0.0.1:{NOOP_PORT}{path}"), "caBundle": base64(authority.pem())},
        }]})
    };
    configure(
        cluster,
        Asked::Noop,
        [
            configuration("ValidatingWebhookConfiguration", "/validate"),
            configuration("MutatingWebhookConfiguration", "/mutate"),
        ],
    )?;
    Ok(process)
}

fn base64(text: &str) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec())).unwrap_or_default()
}

/// Starts one more webhook of ours and takes it down again; gives the time until it was ready.
pub fn time_to_ready(cluster: &Cluster) -> Result<Duration> {
    let (process, started) = start_ours(cluster, "second-webhook", SECOND_PORT)?;
    wait_for("the second webhook is ready", START, || ready(cluster, SECOND_PORT))?;
    let took = started.elapsed();
    process.kill()?;
    Ok(took)
}

fn start_ours(cluster: &Cluster, name: &str, port: u16) -> Result<(Process, Instant)> {
    let binary = binaries::workspace("tailnet-webhook", "tailnet-webhook")?;
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().context("a path that is not UTF-8")?;
    let args = [
        format!("--listen=127.0.0.1:{port}"),
        format!("--health-listen={}:{}", cluster.node_address(), port + 1),
        "--serving-name=127.0.0.1".to_owned(),
        format!(
            "--audit-log={}",
            cluster.dir().join(format!("{name}-audit.jsonl")).display()
        ),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let started = Instant::now();
    Ok((
        cluster.spawn(name, &binary, &args, &[("KUBECONFIG", kubeconfig)])?,
        started,
    ))
}

fn ready(cluster: &Cluster, port: u16) -> Result<()> {
    use std::io::{Read, Write};
    let address = format!("{}:{}", cluster.node_address(), port + 1).parse()?;
    let mut stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "not ready: {answer}");
    Ok(())
}

/// Resident memory of ours and of the reference, in MiB.
pub fn resident(cluster: &Cluster) -> Result<(f64, f64)> {
    let programs = cluster.memory()?;
    let of = |program: &str| -> Result<f64> {
        let usage = programs.iter().find(|usage| usage.program == program);
        let usage = usage.with_context(|| format!("{program} does not run"))?;
        Ok(usage.resident as f64 / 1024.0)
    };
    Ok((of("tailnet-webhook")?, of("noop-webhook")?))
}
