//! Who reaches the ports of our own Pods, under a CNI that enforces NetworkPolicy.

use anyhow::{Context, Result, ensure};
use tailnet_e2e::{Output, wait_for};

use crate::bed::{Bed, OPERATOR, SOON, STRANGER, TEAM, text};

/// Component, port of metrics, and a word that only its metrics have.
const METRICS: [(&str, u16, &str); 3] = [
    ("operator", 9403, "tailnet_operator_build_info"),
    ("webhook", 9401, "tailnet_webhook_build_info"),
    ("resolver", 9153, "coredns_build_info"),
];
/// Ports of the resolver that only kubelet asks.
const PROBES: [u16; 2] = [8080, 8181];

fn address(bed: &Bed, component: &str) -> Result<String> {
    let selector = format!("app.kubernetes.io/name=tailnet-operator,app.kubernetes.io/component={component}");
    let pods = bed.list(&["-n", OPERATOR, "pods", "-l", &selector])?;
    let address = text(&pods.first().with_context(|| format!("no Pod of {component}"))?["status"]["podIP"]);
    ensure!(!address.is_empty(), "the Pod of {component} has no address");
    Ok(address)
}

fn curl(bed: &Bed, namespace: &str, url: &str) -> Result<Output> {
    // The reason is on standard error: 7 is a refused connection, 28 none within the time.
    let argv = ["curl", "-sSk", "--connect-timeout", "4", "--max-time", "15", url];
    bed.cluster.pod_exec_output(namespace, "client", &argv)
}

/// A CNI enforces a policy a moment after its Pods are there.
fn closed_to(bed: &Bed, namespace: &str, url: &str) -> Result<()> {
    wait_for(&format!("{url} is closed to {namespace}"), SOON, || {
        let done = curl(bed, namespace, url)?;
        let said = done.failure()?;
        ensure!(
            said.contains("(7)") || said.contains("(28)"),
            "failed for another reason than a closed port: {said}"
        );
        Ok::<_, anyhow::Error>(())
    })
}

/// The monitoring namespace reads metrics, nobody else does; everybody reaches admission and DNS.
pub fn closed(bed: &Bed) -> Result<()> {
    for (component, port, word) in METRICS {
        let url = format!("http://{}:{port}/metrics", address(bed, component)?);
        wait_for(&format!("{component}'s metrics from {TEAM}"), SOON, || {
            let done = curl(bed, TEAM, &url)?;
            let said = done.success()?;
            ensure!(said.contains(word), "{said}");
            Ok::<_, anyhow::Error>(())
        })?;
        closed_to(bed, STRANGER, &url)?;
    }
    let resolver = address(bed, "resolver")?;
    for port in PROBES {
        for namespace in [TEAM, STRANGER] {
            closed_to(bed, namespace, &format!("http://{resolver}:{port}/"))?;
        }
    }
    // API servers come from anywhere. What this caller is told does not matter: it is told something.
    let admission = format!("https://{}:9443/validate", address(bed, "webhook")?);
    let done = curl(bed, STRANGER, &admission)?;
    done.success().context("admission from anywhere")?;
    Ok(())
}
