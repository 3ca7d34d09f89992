//! An ingress on a whole node: a real agent in the tenant's namespace, Services behind it, and a peer of the tailnet outside the
//! cluster that reaches them. What the status says on the way, and that nothing is left behind.

mod operating;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use operating::{HOSTS, Kube, Operator, TAILNET, apply, condition, grant, prepare, start_over, tailnet};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tailnet_crds::{ExposeState, TailnetIngress};
use tailnet_e2e::site::{Peer, PeerSpec};
use tailnet_e2e::{CertManager, Cluster, binaries, command, images, paths, wait_for};

const SOON: Duration = Duration::from_secs(90);
const TEAM: &str = "shop";
const TAG: &str = "tag:ingress-shop-portal";
/// Tag of the ingress whose certificate cert-manager issues.
const ISSUED_TAG: &str = "tag:ingress-shop-issued";
const NAME: &str = "portal.shop.lab.example.net";

fn load_agents(cluster: &Cluster) -> Result<()> {
    let archive = match std::env::var_os("TAILNET_IMAGE_ARCHIVE") {
        Some(archive) => PathBuf::from(archive),
        None => {
            let program = std::env::current_exe()?;
            let target = program.ancestors().nth(3).context("the target folder")?;
            target.join("oci/tailnet-operator.oci.tar")
        }
    };
    ensure!(
        archive.is_file(),
        "there is no image archive {}: run this test by `cargo xtask test`, or run `cargo xtask image --dev` first",
        archive.display()
    );
    cluster.load_image(&archive)
}

fn backend() -> Vec<Value> {
    let pod = |name: &str, command: [&str; 3]| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TEAM, "labels": {"app": name}}, "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": images::TESTBOX, "imagePullPolicy": "Never", "command": command}],
        }})
    };
    let service = |name: &str, port: u16| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": TEAM}, "spec": {
            "selector": {"app": name}, "ports": [{"name": "main", "port": port, "targetPort": port}],
        }})
    };
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}),
        pod("web", ["/testbox", "http", "8080"]),
        pod("echo", ["/testbox", "echo", "7000"]),
        service("web", 8080),
        service("echo", 7000),
    ]
}

fn ingress(exposes: &Value) -> Value {
    json!({
        "apiVersion": tailnet_crds::API_VERSION,
        "kind": "TailnetIngress",
        "metadata": {"name": "portal", "namespace": TEAM},
        "spec": {
            "tailnetRef": {"name": TAILNET},
            "allowFrom": ["group:shop"],
            "exposes": exposes,
            "tls": {"secretRef": {"name": "portal-cert"}},
        },
    })
}

/// The manifest of docs/ingress.md.
fn of_the_page() -> Result<String> {
    let page = std::fs::read_to_string(paths::repository().join("docs/ingress.md"))?;
    let mut blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let found = blocks.find(|block| block.contains("kind: TailnetIngress\n"));
    found
        .map(str::to_owned)
        .context("docs/ingress.md has no TailnetIngress")
}

fn exposes() -> Value {
    json!([
        {"name": "web", "mode": "http", "port": 443, "backend": {"service": "web", "port": "main"}},
        {"name": "echo", "port": 7000, "backend": {"service": "echo", "port": 7000}},
    ])
}

/// A certificate for `name` as a TLS Secret, and its authority's certificate.
fn certificate(name: &str) -> Result<(Value, String)> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "authority of the test");
    let authority = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(vec![name.to_owned()])?;
    leaf.distinguished_name = DistinguishedName::new();
    let chain = leaf.signed_by(&key, &issuer)?.pem();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "portal-cert", "namespace": TEAM},
        "stringData": {"tls.crt": chain, "tls.key": key.serialize_pem()},
    });
    Ok((secret, authority))
}

fn get(kube: &Kube) -> Result<TailnetIngress> {
    get_named(kube, "portal")
}

fn get_named(kube: &Kube, name: &str) -> Result<TailnetIngress> {
    let api: Api<TailnetIngress> = Api::namespaced(kube.client(), TEAM);
    Ok(kube.block_on(api.get(name))?)
}

fn wait_condition(kube: &Kube, r#type: &str, status: &str, reason: &str) -> Result<TailnetIngress> {
    wait_condition_of(kube, "portal", r#type, status, reason)
}

fn wait_condition_of(kube: &Kube, name: &str, r#type: &str, status: &str, reason: &str) -> Result<TailnetIngress> {
    wait_for(&format!("{type}={status}/{reason} of {name}"), SOON, || {
        let ingress = get_named(kube, name)?;
        let found = condition(&ingress, r#type);
        let all = ingress.status.as_ref().map(|status| &status.conditions);
        ensure!(
            found.as_ref().is_some_and(|(is, why, _)| is == status && why == reason),
            "{found:?} of {all:?}"
        );
        Ok(ingress)
    })
}

fn wait_expose(kube: &Kube, name: &str, state: ExposeState) -> Result<String> {
    wait_for(&format!("expose {name} is {state:?}"), SOON, || {
        let status = get(kube)?.status.context("status")?;
        let expose = status.exposes.iter().find(|expose| expose.name == name);
        let expose = expose.with_context(|| format!("no expose {name}"))?;
        ensure!(expose.state == state, "{expose:?}");
        Ok(expose.message.clone().unwrap_or_default())
    })
}

/// The addresses to which the hosts file points [`NAME`].
fn led_to(kube: &Kube) -> Result<Vec<String>> {
    let hosts: ConfigMap = kube.get(HOSTS)?;
    let text = hosts.data.context("data")?.remove("hosts").context("hosts")?;
    let of_name = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, name)| *name == NAME);
    Ok(of_name.map(|(address, _)| address.to_owned()).collect())
}

/// Asks `kubectl tailnet why` until its answer has `words`.
fn why(cluster: &Cluster, words: &str) -> Result<()> {
    let plugin = binaries::workspace("kubectl-tailnet", "kubectl-tailnet")?;
    wait_for(&format!("why says {words:?}"), SOON, || {
        let mut command = Command::new(&plugin);
        command
            .args(["why", "tailnetingress/portal", "-n", TEAM, "--kubeconfig"])
            .arg(cluster.kubeconfig())
            .args(["--operator-namespace", operating::NAMESPACE]);
        let answer = command::output(&mut command, "", Duration::from_secs(60))?;
        ensure!(answer.stdout.contains(words), "{}{}", answer.stdout, answer.stderr);
        Ok(())
    })
}

/// An http expose without a Secret of its own: no cert-manager, then one that issues; the peer sees its certificate.
fn issued_by_cert_manager(cluster: &Cluster, kube: &Kube, peer: &Peer<'_>) -> Result<()> {
    let mut issued = ingress(&json!([
        {"name": "web", "mode": "http", "port": 443, "backend": {"service": "web", "port": 8080}},
    ]));
    issued["metadata"]["name"] = json!("issued");
    issued["spec"].as_object_mut().context("a spec")?.remove("tls");
    apply(cluster, &[issued.clone()])?;
    let wait = |r#type, status, reason| wait_condition_of(kube, "issued", r#type, status, reason);
    wait("CertificateReady", "False", "IssuerAPIMissing")?;
    let cert_manager = CertManager::start(cluster)?;
    cert_manager.ca_issuer(cluster, "ingress-ca")?;
    wait("CertificateReady", "True", "CertificateReady")?;
    let ready = wait("Ready", "True", "Ready")?;
    let status = ready.status.context("status")?;
    let certificate = status.certificate.context("certificate")?;
    assert_eq!(certificate.secret_name, "tailnet-ingress-issued-tls");
    let name = "issued.shop.lab.example.net";
    assert_eq!(certificate.dns_names, [name]);
    let address = status.nodes[0].ipv4.clone().context("an address")?;
    let secrets: Api<Secret> = Api::namespaced(kube.client(), TEAM);
    let secret = kube.block_on(secrets.get(&certificate.secret_name))?;
    let authority = secret.data.context("data")?.remove("ca.crt").context("ca.crt")?;
    let ca = std::env::temp_dir().join(format!("ingress-path-{}-issued.pem", std::process::id()));
    std::fs::write(&ca, authority.0)?;
    let (path, resolve, url) = (
        ca.display().to_string(),
        format!("{name}:443:{address}"),
        format!("https://{name}/hello"),
    );
    wait_for("the peer trusts cert-manager's certificate", SOON, || {
        let fetched = peer.run(&[
            "curl",
            "-sS",
            "--max-time",
            "10",
            "--cacert",
            &path,
            "--resolve",
            &resolve,
            &url,
        ])?;
        ensure!(fetched.success()?.contains("GET /hello"));
        Ok(())
    })?;
    let _ = std::fs::remove_file(&ca);
    cluster
        .kubectl(&["delete", "tailnetingress", "issued", "-n", TEAM])?
        .success()
        .map(drop)
}

#[test]
fn a_peer_outside_reaches_services_inside() -> Result<()> {
    let cluster = Cluster::shared();
    let told = story(cluster);
    if told.is_err() {
        cluster.keep_namespace(TEAM, "operator-ingress-path")?;
    }
    told
}

fn story(cluster: &'static Cluster) -> Result<()> {
    prepare(cluster)?;
    load_agents(cluster)?;
    let kube = start_over(cluster)?;
    let headscale = cluster.headscale()?;
    let grant_to = |tag: &str| json!({"src": ["tag:peer"], "dst": [tag], "ip": ["*"]});
    headscale.set_policy(
        &json!({
            "tagOwners": {TAG: [], ISSUED_TAG: [], "tag:peer": []},
            "grants": [grant_to(TAG), grant_to(ISSUED_TAG)],
        })
        .to_string(),
    )?;
    let mut net = tailnet(cluster, TAILNET)?;
    net["spec"]["defaults"] = json!({"tls": {"issuerRef": {"name": "ingress-ca"}}});
    net["spec"]["dns"]["ingressNameTemplate"] = json!("{name}.{namespace}.lab.example.net");
    apply(cluster, &[net.clone()])?;
    apply(cluster, &backend())?;
    let operator = Operator::start(cluster, "operator-ingress-path")?;
    cluster
        .kubectl_with_input(&["apply", "--server-side", "-f", "-"], &of_the_page()?)?
        .success()?;
    assert_eq!(
        serde_json::to_value(&get(&kube)?.spec.exposes)?,
        serde_json::to_value(
            serde_json::from_value::<TailnetIngress>(ingress(&exposes()))?
                .spec
                .exposes
        )?,
        "the page's manifest is what this test goes on with"
    );

    // Nobody let the operator into this namespace: it says so, and has made nothing, in Headscale neither.
    let refused = wait_condition(&kube, "KeyReady", "False", "NamespaceNotGranted")?;
    let (_, _, message) = condition(&refused, "KeyReady").context("KeyReady")?;
    assert!(message.contains("ingressNamespaces"), "{message}");
    let client = headscale.client()?;
    let of_tag = |keys: &[tailnet_headscale::PreAuthKeyInfo]| {
        keys.iter()
            .filter(|key| key.acl_tags.iter().any(|tag| tag == TAG))
            .count()
    };
    assert_eq!(of_tag(&kube.block_on(client.preauth_keys())?), 0);
    why(cluster, "BROKEN  key")?;
    grant(cluster, TEAM, None)?;

    // No certificate yet: the tcp expose serves, the http expose says why it does not.
    wait_condition(&kube, "Accepted", "True", "Valid")?;
    wait_condition(&kube, "KeyReady", "True", "KeyReady")?;
    wait_expose(&kube, "echo", ExposeState::Serving)?;
    let message = wait_expose(&kube, "web", ExposeState::NoCertificate)?;
    assert!(message.contains("NotIssued"), "{message}");
    wait_condition(&kube, "CertificateReady", "False", "NotIssued")?;

    // One of another name, then the right one: each is seen within seconds of the Secret.
    let (wrong, _) = certificate("elsewhere.example.net")?;
    apply(cluster, &[wrong])?;
    wait_condition(&kube, "CertificateReady", "False", "SANMismatch")?;
    let (secret, authority) = certificate(NAME)?;
    apply(cluster, &[secret])?;
    wait_condition(&kube, "CertificateReady", "True", "CertificateReady")?;
    wait_condition(&kube, "WorkloadReady", "True", "Available")?;
    wait_condition(&kube, "PolicyReady", "True", "Granted")?;
    wait_condition(&kube, "DNSReady", "True", "Published")?;
    let ready = wait_condition(&kube, "Ready", "True", "Ready")?;
    let status = ready.status.context("status")?;
    let urls: Vec<Option<&str>> = status.exposes.iter().map(|expose| expose.url.as_deref()).collect();
    let (web, echo) = (format!("https://{NAME}/"), format!("tcp://{NAME}:7000"));
    assert_eq!(urls, [Some(web.as_str()), Some(echo.as_str())]);
    assert_eq!(status.nodes.len(), 1, "{:?}", status.nodes);
    assert_eq!(status.nodes[0].name, "portal-shop");
    assert_eq!(status.certificate.context("certificate")?.dns_names, [NAME]);

    // The name is published at the node's address, and there is no Service for it.
    let address = status.nodes[0].ipv4.clone().context("an address")?;
    let hosts: ConfigMap = kube.get(HOSTS)?;
    let text = hosts.data.context("data")?.remove("hosts").context("hosts")?;
    assert!(text.lines().any(|line| line == format!("{address} {NAME}")), "{text}");
    let services: Api<Service> = Api::namespaced(kube.client(), TEAM);
    let services = kube.block_on(services.list(&ListParams::default()))?;
    assert_eq!(services.items.len(), 2, "the two backends alone");

    // From outside.
    let peer = cluster.peer(PeerSpec::new("outside"))?;
    let ca = std::env::temp_dir().join(format!("ingress-path-{}.pem", std::process::id()));
    std::fs::write(&ca, &authority)?;
    let ca_path = ca.display().to_string();
    let fetch = |more: &[&str]| -> Result<String> {
        let resolve = format!("{NAME}:443:{address}");
        let mut curl = vec![
            "curl",
            "-sS",
            "--max-time",
            "10",
            "--cacert",
            &ca_path,
            "--resolve",
            &resolve,
        ];
        curl.extend(more);
        let url = format!("https://{NAME}/hello");
        curl.push(&url);
        Ok(peer.run(&curl)?.success()?.to_owned())
    };
    let answer = wait_for("the peer is answered over HTTPS", SOON, || fetch(&["--http2"]))?;
    assert!(answer.contains(&format!("GET /hello {NAME}")), "{answer}");
    assert!(fetch(&["--http1.1"])?.contains("GET /hello"), "HTTP/1.1");
    let echoed = wait_for("the peer is answered by tcp", SOON, || {
        let script = format!("exec 3<>/dev/tcp/{address}/7000; echo hello >&3; head -n 1 <&3");
        Ok::<_, anyhow::Error>(
            peer.run(&["timeout", "10", "bash", "-c", &script])?
                .success()?
                .to_owned(),
        )
    })?;
    assert_eq!(echoed.trim(), "hello");

    // A backend that does not exist concerns its own expose alone, and reaches the running agent: no other Pod.
    let pods: Api<Pod> = Api::namespaced(kube.client(), TEAM);
    let agents = || -> Result<Vec<Option<String>>> {
        let params = ListParams::default().labels("tsunaro.io/owner-name=portal");
        Ok(kube
            .block_on(pods.list(&params))?
            .items
            .iter()
            .map(ResourceExt::uid)
            .collect())
    };
    let before = agents()?;
    let mut more = exposes();
    let list = more.as_array_mut().context("a list")?;
    list.push(json!({"name": "none", "port": 7001, "backend": {"service": "none", "port": 1}}));
    apply(cluster, &[ingress(&more)])?;
    let message = wait_expose(&kube, "none", ExposeState::NoBackend)?;
    assert!(message.contains("Service shop/none does not exist"), "{message}");
    wait_condition(&kube, "Ready", "False", "NoBackend")?;
    assert!(fetch(&[])?.contains("GET /hello"));
    assert_eq!(agents()?, before);
    why(cluster, "BROKEN  backend of expose none")?;
    apply(cluster, &[ingress(&exposes())])?;
    wait_condition(&kube, "Ready", "True", "Ready")?;
    why(cluster, "works: every link holds")?;

    // A Pod that goes without a word leaves its node behind: names lead to the node of the Pod that took its place.
    cluster
        .kubectl(&[
            "delete",
            "pod",
            "-n",
            TEAM,
            "-l",
            "tsunaro.io/owner-name=portal",
            "--force",
            "--grace-period=0",
        ])?
        .success()?;
    let address = wait_for("the names lead to the new node", SOON, || {
        let ingress = get(&kube)?;
        let status = ingress.status.context("status")?;
        let node = status.nodes.first().context("a node")?;
        let now = node.ipv4.clone().context("an address")?;
        ensure!(now != address, "still the old node");
        let led = led_to(&kube)?;
        ensure!(
            led.iter()
                .all(|found| Some(found) == node.ipv4.as_ref() || Some(found) == node.ipv6.as_ref()),
            "{led:?}"
        );
        ensure!(led.contains(&now), "{led:?} without {now}");
        Ok(now)
    })?;
    wait_condition(&kube, "Ready", "True", "Ready")?;
    let script = format!("exec 3<>/dev/tcp/{address}/7000; echo hello >&3; head -n 1 <&3");
    let connect = || peer.run(&["timeout", "10", "bash", "-c", &script]);
    wait_for("the new node serves", SOON, || {
        let echoed = connect()?;
        ensure!(echoed.success()?.trim() == "hello");
        Ok(())
    })?;

    // A security rule takes everything away: service ends although the operator cannot even stop the Pods.
    let uids = agents()?;
    grant(cluster, TEAM, Some(("apps", "deployments", "delete")))?;
    let open = std::env::temp_dir().join(format!("ingress-path-{}.open", std::process::id()));
    let file = open.display();
    let held = format!(
        "(exec 3<>/dev/tcp/{address}/7000; echo held >&3; head -n 1 <&3 >{file}; cat <&3; echo ended >>{file}) </dev/null >/dev/null 2>&1 &"
    );
    peer.run(&["bash", "-c", &held])?.success()?;
    let said = || std::fs::read_to_string(&open).unwrap_or_default();
    wait_for("the open connection is carried", SOON, || {
        ensure!(said() == "held\n", "{:?}", said());
        Ok(())
    })?;
    let mut reserved = net.clone();
    reserved["spec"]["dns"]["reservedNames"] = json!([NAME]);
    apply(cluster, &[reserved])?;
    let refused = wait_condition(&kube, "Accepted", "False", "Invalid")?;
    let (_, _, message) = condition(&refused, "Accepted").context("Accepted")?;
    assert!(
        message.contains("without effect") && message.contains("TN304"),
        "{message}"
    );
    wait_for("the open connection ends", SOON, || {
        ensure!(said() == "held\nended\n", "{:?}", said());
        Ok(())
    })?;
    wait_for("new connections fail", SOON, || {
        ensure!(connect()?.success().is_err(), "a new connection is answered");
        Ok(())
    })?;
    wait_for("no node and no live key is left", SOON, || {
        let known = kube.block_on(client.nodes())?;
        ensure!(
            !known.iter().any(|node| node.tags.iter().any(|tag| tag == TAG)),
            "a node"
        );
        let now = jiff::Timestamp::now();
        let keys = kube.block_on(client.preauth_keys())?;
        ensure!(
            !keys
                .iter()
                .any(|key| key.acl_tags.iter().any(|tag| tag == TAG) && key.expiration.is_some_and(|end| end > now)),
            "a key"
        );
        ensure!(led_to(&kube)?.is_empty(), "a name");
        Ok(())
    })?;
    assert_eq!(agents()?, uids, "the Pods are what could not be stopped");
    let configs: Api<ConfigMap> = Api::namespaced(kube.client(), TEAM);
    let config = kube.block_on(configs.get("tailnet-ingress-portal-config"))?;
    let text = config
        .data
        .context("data")?
        .remove("config.json")
        .context("config.json")?;
    assert!(!text.contains("exposes"), "{text}");
    grant(cluster, TEAM, None)?;
    wait_for("the agents are stopped", Duration::from_secs(120), || {
        ensure!(agents()?.is_empty(), "a Pod");
        Ok(())
    })?;
    let stopped = get(&kube)?.status.context("status")?;
    assert!(stopped.nodes.is_empty() && stopped.exposes.is_empty(), "{stopped:?}");

    // Given back, it is served again.
    apply(cluster, &[net])?;
    wait_condition(&kube, "Ready", "True", "Ready")?;
    let address = get(&kube)?.status.context("status")?.nodes[0]
        .ipv4
        .clone()
        .context("an address")?;
    wait_for("it is served again", SOON, || {
        let resolve = format!("{NAME}:443:{address}");
        let url = format!("https://{NAME}/hello");
        let fetched = peer.run(&[
            "curl",
            "-sS",
            "--max-time",
            "10",
            "--cacert",
            &ca_path,
            "--resolve",
            &resolve,
            &url,
        ])?;
        ensure!(fetched.success()?.contains("GET /hello"));
        Ok(())
    })?;

    issued_by_cert_manager(cluster, &kube, &peer)?;

    // Gone without a trace.
    cluster
        .kubectl(&["delete", "tailnetingress", "portal", "-n", TEAM])?
        .success()?;
    wait_for(
        "no node, no live key, no child is left",
        Duration::from_secs(180),
        || {
            let known = kube.block_on(client.nodes())?;
            ensure!(
                !known.iter().any(|node| node.tags.iter().any(|tag| tag == TAG)),
                "a node"
            );
            let now = jiff::Timestamp::now();
            let keys = kube.block_on(client.preauth_keys())?;
            let live = |key: &&tailnet_headscale::PreAuthKeyInfo| {
                key.acl_tags.iter().any(|tag| tag == TAG) && key.expiration.is_some_and(|end| end > now)
            };
            ensure!(!keys.iter().any(|key| live(&key)), "a key");
            let ours = ListParams::default().labels("tsunaro.io/owner-name=portal");
            let deployments: Api<Deployment> = Api::namespaced(kube.client(), TEAM);
            ensure!(kube.block_on(deployments.list(&ours))?.items.is_empty(), "a Deployment");
            let policies: Api<NetworkPolicy> = Api::namespaced(kube.client(), TEAM);
            ensure!(kube.block_on(policies.list(&ours))?.items.is_empty(), "a NetworkPolicy");
            let secrets: Api<Secret> = Api::namespaced(kube.client(), TEAM);
            ensure!(kube.block_on(secrets.list(&ours))?.items.is_empty(), "a Secret");
            let hosts: ConfigMap = kube.get(HOSTS)?;
            let text = hosts.data.context("data")?.remove("hosts").context("hosts")?;
            ensure!(!text.contains(NAME), "{text}");
            Ok(())
        },
    )?;
    drop(peer);
    let _ = std::fs::remove_file(&ca);
    let _ = std::fs::remove_file(&open);
    cluster
        .kubectl(&["delete", "namespace", TEAM, "--wait=false"])?
        .success()?;
    operator.stop()
}
