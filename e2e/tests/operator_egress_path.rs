//! An egress on a whole node: real agents, a router, a host behind it. What the status says at every step of the way, and
//! that changes reach running agents without a restart.

mod operating;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::{Kube, NAMESPACE, Operator, apply, condition, egress, prepare, start_over};
use serde_json::{Value, json};
use tailnet_crds::{TailnetEgress, TargetState};
use tailnet_e2e::{Cluster, SiteSpec, images, site, wait_for};

const SOON: Duration = Duration::from_secs(60);
const TAG: &str = "tag:egress-team-a";

fn policy(grants: &Value) -> String {
    json!({"tagOwners": {TAG: [], "tag:router": []}, "grants": grants}).to_string()
}

fn grant_all() -> Value {
    json!([{"src": [TAG], "dst": ["198.51.100.0/24"], "ip": ["*"]}])
}

/// A grant that has nothing to do with the egress, since a policy without any would let everybody through.
fn grant_nothing() -> Value {
    json!([{"src": ["tag:router"], "dst": ["tag:router"], "ip": ["*"]}])
}

/// The message of target `name`, which must be in `state`.
fn state_of(kube: &Kube, name: &str, state: TargetState) -> Result<String> {
    let egress: TailnetEgress = kube.get("team-a")?;
    let status = egress.status.context("no status")?;
    let target = status
        .targets
        .iter()
        .find(|target| target.name == name)
        .context("no such target")?;
    ensure!(target.state == state, "{target:?}");
    Ok(target.message.clone().unwrap_or_default())
}

/// Waits until target `name` is in `state`; gives its message.
fn wait_state(kube: &Kube, name: &str, state: TargetState) -> Result<String> {
    wait_for(&format!("target {name} is {}", state.as_str()), SOON, || {
        state_of(kube, name, state)
    })
}

fn wait_condition(kube: &Kube, r#type: &str, status: &str, reason: &str) -> Result<()> {
    wait_for(&format!("{type}={status}/{reason}"), SOON, || {
        let found = condition(&kube.get::<TailnetEgress>("team-a")?, r#type);
        ensure!(
            found.as_ref().is_some_and(|(is, why, _)| is == status && why == reason),
            "{found:?}"
        );
        Ok(())
    })
}

fn agents(kube: &Kube) -> Result<Vec<Pod>> {
    let pods = kube.list::<Pod>()?;
    let ours = |pod: &Pod| {
        pod.labels()
            .get("tsunaro.io/owner-name")
            .is_some_and(|name| name == "team-a")
    };
    Ok(pods
        .into_iter()
        .filter(|pod| ours(pod) && pod.metadata.deletion_timestamp.is_none())
        .collect())
}

/// What the Pod `client` in `namespace` gets from the site's web server through `service`: an HTTP code.
fn ask(cluster: &Cluster, namespace: &str, service: &str, port: u16) -> Result<String> {
    let host = site::HTTPS_NAME;
    let through = format!("{host}:{port}:{service}.{NAMESPACE}.svc.cluster.local:{port}");
    let url = format!("https://{host}:{port}/");
    // What is asked is whether bytes come through; the certificate is another test's.
    let curl = [
        "curl",
        "-sSk",
        "--max-time",
        "5",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--connect-to",
    ];
    cluster.pod_exec(namespace, "client", &[curl.as_slice(), &[&through, &url]].concat())
}

#[test]
fn the_status_follows_the_way_and_agents_follow_the_spec() -> Result<()> {
    let cluster = Cluster::shared();
    prepare(cluster)?;
    cluster.load_image(&images::ours()?)?;
    let kube = start_over(cluster)?;
    let headscale = cluster.headscale()?;
    headscale.set_policy(&policy(&grant_all()))?;
    for namespace in ["team-a", "team-b"] {
        apply(
            cluster,
            &[
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client", "namespace": namespace}, "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "c", "image": images::TESTBOX, "imagePullPolicy": "Never", "command": ["sleep", "3600"]}],
                }}),
            ],
        )?;
    }
    let operator = Operator::start(cluster, "operator-path")?;
    apply(cluster, &[egress("team-a", &[("web", "198.51.100.20", 443)])])?;

    // No router yet, then one whose route nobody approved, then the approval.
    wait_state(&kube, "web", TargetState::NotAdvertised)?;
    wait_condition(&kube, "WorkloadReady", "True", "Available")?;
    let depot = cluster.site(SiteSpec {
        postgres: false,
        echo: false,
        ..SiteSpec::new("depot")
    })?;
    let message = wait_state(&kube, "web", TargetState::NotApproved)?;
    assert!(message.contains("198.51.100.0/24"), "{message}");
    let client = headscale.client()?;
    let nodes = kube.block_on(client.nodes())?;
    let router = nodes.iter().find(|node| node.given_name == "depot").context("router")?;
    kube.block_on(client.approve_routes(&router.id, &router.available_routes))?;
    wait_state(&kube, "web", TargetState::Routed)?;
    wait_condition(&kube, "Ready", "True", "Ready")?;

    // It works for the consumers, and for nobody else.
    wait_for("a Pod of team-a is answered", SOON, || {
        let answer = ask(cluster, "team-a", "web", 443)?;
        ensure!(answer == "200", "{answer}");
        Ok(())
    })?;
    assert!(
        ask(cluster, "team-b", "web", 443).is_err(),
        "the NetworkPolicy lets everybody in"
    );

    // A new target reaches the running agent within seconds: no other Pod, no restart.
    let before = agents(&kube)?;
    let asked = std::time::Instant::now();
    apply(
        cluster,
        &[egress(
            "team-a",
            &[("web", "198.51.100.20", 443), ("closed", "198.51.100.20", 444)],
        )],
    )?;
    wait_state(&kube, "closed", TargetState::Routed)?;
    let took = asked.elapsed();
    println!("a new target was in force after {:.1} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(30), "kubelet was not told: {took:?}");
    let after = agents(&kube)?;
    assert_eq!(
        before.iter().map(ResourceExt::uid).collect::<Vec<_>>(),
        after.iter().map(ResourceExt::uid).collect::<Vec<_>>()
    );
    let restarts = |pods: &[Pod]| -> i32 {
        pods.iter()
            .filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref())
            .flatten()
            .map(|c| c.restart_count)
            .sum()
    };
    assert_eq!(restarts(&after), 0);

    // A port on which nothing listens is known by the first try.
    // Asked again and again, since kube-proxy may not know the new Service yet: then no agent has dialled.
    let message = wait_for("a try of the closed port is in the status", SOON, || {
        let _ = ask(cluster, "team-a", "closed", 444);
        state_of(&kube, "closed", TargetState::DialFailed)
    })?;
    assert!(
        message.contains("refused") || message.contains("timeout") || message.contains("reset"),
        "{message}"
    );
    apply(cluster, &[egress("team-a", &[("web", "198.51.100.20", 443)])])?;

    // The policy's turn.
    headscale.set_policy(&policy(&grant_nothing()))?;
    let message = wait_state(&kube, "web", TargetState::NoGrant)?;
    assert!(message.contains(TAG), "{message}");
    wait_condition(&kube, "PolicyReady", "False", "NoGrant")?;
    headscale.set_policy(&policy(&grant_all()))?;
    wait_state(&kube, "web", TargetState::Routed)?;

    // The router's turn.
    depot.kill_router(0)?;
    let message = wait_state(&kube, "web", TargetState::NotServing)?;
    assert!(message.contains("depot"), "{message}");
    depot.start_router(0)?;
    wait_state(&kube, "web", TargetState::Routed)?;

    // Headscale away: what runs goes on, the status says that it does not know, and all heals by itself.
    headscale.kill()?;
    wait_condition(&kube, "RoutesReady", "Unknown", "ControlPlaneUnreachable")?;
    wait_for("connections go on without Headscale", SOON, || {
        let answer = ask(cluster, "team-a", "web", 443)?;
        ensure!(answer == "200", "{answer}");
        Ok(())
    })?;
    headscale.start()?;
    wait_condition(&kube, "Ready", "True", "Ready")?;

    // A killed agent comes back, as the only node and under its name.
    let pod = agents(&kube)?.remove(0);
    cluster
        .kubectl(&[
            "delete",
            "pod",
            &pod.name_any(),
            "-n",
            NAMESPACE,
            "--grace-period=0",
            "--force",
        ])?
        .success()?;
    wait_for("one node is left, called team-a", Duration::from_secs(180), || {
        let egress: TailnetEgress = kube.get("team-a")?;
        let names: Vec<String> = egress
            .status
            .context("status")?
            .nodes
            .into_iter()
            .filter(|node| node.online)
            .map(|node| node.name)
            .collect();
        ensure!(names == ["team-a"], "{names:?}");
        let tagged = |node: &&tailnet_headscale::Node| node.tags.iter().any(|tag| tag == TAG);
        let known = kube.block_on(client.nodes())?;
        ensure!(
            known.iter().filter(tagged).count() == 1,
            "{} nodes",
            known.iter().filter(tagged).count()
        );
        Ok(())
    })?;
    wait_condition(&kube, "Ready", "True", "Ready")?;

    // Gone without a trace.
    cluster
        .kubectl(&["delete", "tailnetegress", "team-a", "-n", NAMESPACE])?
        .success()?;
    wait_for("no node and no live key is left", Duration::from_secs(120), || {
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
        Ok(())
    })?;
    operator.stop()
}
