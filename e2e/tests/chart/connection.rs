//! The connection as Pods use it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::site::{self, postgres};
use tailnet_e2e::{Output, images, wait_for};

use crate::bed::{Bed, OPERATOR, SOON, STRANGER, TEAM, objects, text};

/// Name of the database's Service, as Pods write it.
pub const DATABASE: &str = "remote-db.tailnet-system.svc";
/// The Pod that connects, in both namespaces.
const CLIENT: &str = "client";
/// Address of the router in the site's network: what its hosts see.
const ROUTER: &str = "192.0.2.1";

/// A Pod of [`images::TESTBOX`] that the restricted standard admits. Without a command it waits to be used.
pub fn pod(namespace: &str, name: &str, command: Option<Value>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": name,
                "image": images::TESTBOX,
                "imagePullPolicy": "Never",
                "command": command,
                "env": [{"name": "PGPASSWORD", "value": postgres::PASSWORD}, {"name": "PGCONNECT_TIMEOUT", "value": "10"}],
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "site-ca", "mountPath": "/etc/site-ca", "readOnly": true}],
            }],
            "volumes": [{"name": "site-ca", "configMap": {"name": "site-ca"}}],
        },
    })
}

/// Starts a client Pod in both namespaces.
pub fn clients(bed: &Bed) -> Result<()> {
    let pem = bed.site.ca_pem()?;
    let mut items = Vec::new();
    for namespace in [TEAM, STRANGER] {
        items.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site-ca", "namespace": namespace}, "data": {"ca.crt": pem}}));
        items.push(pod(namespace, CLIENT, None));
    }
    bed.cluster.apply(&objects(&items))?;
    for namespace in [TEAM, STRANGER] {
        let pod = format!("pod/{CLIENT}");
        bed.kubectl(&["-n", namespace, "wait", &pod, "--for=condition=Ready", "--timeout=120s"])?;
    }
    Ok(())
}

/// One query through the Service `service`.
pub fn psql(bed: &Bed, namespace: &str, service: &str, sql: &str) -> Result<Output> {
    let argv = [
        "psql",
        "-h",
        service,
        "-U",
        postgres::USER,
        "-d",
        postgres::DATABASE,
        "-At",
        "-c",
        sql,
    ];
    bed.cluster.pod_exec_output(namespace, CLIENT, &argv)
}

/// A new connection from team-a answers, and the site sees its router as the client.
pub fn query(bed: &Bed) -> Result<()> {
    through(bed, DATABASE)
}

/// [`query`] through another Service.
pub fn through(bed: &Bed, service: &str) -> Result<()> {
    let sql = format!(
        "SELECT (SELECT inet_client_addr()), * FROM ({}) AS q",
        postgres::QUERY.0
    );
    let done = psql(bed, TEAM, service, &sql)?;
    let answer = done
        .success()
        .with_context(|| format!("a new connection from {TEAM} through {service}"))?;
    // The client's own address or the node's would mean that something else than the tailnet carried the query.
    let wanted = format!("{ROUTER}|{}", postgres::QUERY.1);
    ensure!(
        answer == wanted,
        "the database answered {answer:?} instead of {wanted:?}"
    );
    Ok(())
}

/// Waits until [`query`] works: after a fault somebody may have to find the way again.
pub fn wait_query(bed: &Bed) -> Result<()> {
    wait_for("a new connection is answered", SOON, || query(bed))
}

/// A namespace that is not in consumerNamespaces gets nothing.
pub fn stranger_is_refused(bed: &Bed) -> Result<()> {
    let done = psql(bed, STRANGER, DATABASE, postgres::QUERY.0)?;
    let said = done
        .failure()
        .with_context(|| format!("{STRANGER} is not in consumerNamespaces"))?;
    ensure!(
        said.contains("remote-db") && said.contains("failed"),
        "psql failed for another reason than a refused connection: {said}"
    );
    Ok(())
}

/// Puts the stanza of the chart's notes into the cluster's Corefile.
pub fn forward_alias(bed: &Bed, stanza: &str) -> Result<()> {
    let map = bed.get(&["-n", "kube-system", "configmap", "coredns"])?;
    let old = text(&map["data"]["Corefile"]);
    ensure!(!old.is_empty(), "ConfigMap kube-system/coredns has no Corefile");
    let patch = json!({"data": {"Corefile": format!("{stanza}\n{old}")}}).to_string();
    bed.kubectl(&[
        "-n",
        "kube-system",
        "patch",
        "configmap",
        "coredns",
        "--type=merge",
        "-p",
        &patch,
    ])?;
    look_now(bed, "kube-system", "k8s-app=kube-dns")
}

/// A changed ConfigMap reaches a Pod within a minute or so; a change of the Pod makes kubelet look at once.
fn look_now(bed: &Bed, namespace: &str, selector: &str) -> Result<()> {
    let note = format!("e2e/look-now={}", jiff::Timestamp::now().as_millisecond());
    bed.kubectl(&["-n", namespace, "annotate", "pod", "-l", selector, "--overwrite", &note])
        .map(drop)
}

/// The alias leads to the API behind the router, with its own name in SNI, certificate and Host header.
pub fn https(bed: &Bed) -> Result<()> {
    let service = bed.get(&["-n", OPERATOR, "service", "remote-api"])?;
    let address = text(&service["spec"]["clusterIP"]);
    look_now(bed, OPERATOR, "app.kubernetes.io/component=resolver")?;
    wait_for("a Pod of team-a resolves the alias to the Service", SOON, || {
        let found = bed
            .cluster
            .pod_exec(TEAM, CLIENT, &["getent", "ahostsv4", site::HTTPS_NAME])?;
        ensure!(found.split_whitespace().next() == Some(address.as_str()), "{found}");
        Ok::<_, anyhow::Error>(())
    })?;
    let url = format!("https://{}/orders", site::HTTPS_NAME);
    let argv = [
        "curl",
        "-sS",
        "--max-time",
        "20",
        "--cacert",
        "/etc/site-ca/ca.crt",
        &url,
    ];
    let answer = bed.cluster.pod_exec(TEAM, CLIENT, &argv)?;
    let seen: Value = serde_json::from_str(&answer).context("the API answers JSON")?;
    ensure!(
        seen["host"] == site::HTTPS_NAME && seen["sni"] == site::HTTPS_NAME && seen["path"] == "/orders",
        "the API saw {seen}"
    );
    let from = text(&seen["peer"]);
    ensure!(
        from.starts_with("198.51.100.1:") || from.starts_with(&format!("{ROUTER}:")),
        "the API saw the client {from}, which is not the site's router"
    );
    Ok(())
}
