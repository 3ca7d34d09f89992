//! The chart's resolver is told of a new hosts file. That kubelet then refreshes the volume is `chart`'s to show.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use serde_json::json;
use sha2::Digest;
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};

use crate::checks::SOON;
use crate::operating::{HOSTS, Kube, NAMESPACE, Operator, apply, cluster, egress, start_over};

const TOLD: &str = "tsunaro.io/config-sha256";

fn pod(kube: &Kube, name: &str, component: &str) -> Result<()> {
    kube.create::<Pod>(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/component": component}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }))
    .map(drop)
}

/// Publishes `alias` and waits until the resolver's Pod carries the hash of the file that has it; gives the hash.
fn publish(cluster: &Cluster, kube: &Kube, alias: &str) -> Result<String> {
    let mut wanted = egress("team-a", &[("remote-api", "198.51.100.20", 443)]);
    wanted["spec"]["targets"][0]["aliases"] = json!([alias]);
    apply(cluster, &[wanted])?;
    wait_for(&format!("the resolver is told of {alias}"), SOON, || {
        let hosts = kube.get::<ConfigMap>(HOSTS)?.data.context("data")?;
        ensure!(hosts["hosts"].contains(alias), "{}", hosts["hosts"]);
        let digest = sha2::Sha256::digest(&hosts["hosts"]);
        let sha: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let pod: Pod = kube.get("resolver")?;
        ensure!(pod.annotations().get(TOLD) == Some(&sha), "{:?}", pod.annotations());
        Ok(sha)
    })
}

#[test]
fn the_resolver_is_told_of_every_hosts_file() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-resolver")?;
    pod(&kube, "resolver", "resolver")?;
    pod(&kube, "bystander", "something-else")?;
    let told = (|| {
        let first = publish(cluster, &kube, "api.site.example.net")?;
        let second = publish(cluster, &kube, "new.site.example.net")?;
        ensure!(first != second, "the hosts file did not change");
        let bystander: Pod = kube.get("bystander")?;
        ensure!(
            bystander.annotations().get(TOLD).is_none(),
            "{:?}",
            bystander.annotations()
        );
        Ok(())
    })();
    // The next test starts without Pods.
    kube.delete::<Pod>("resolver")?;
    kube.delete::<Pod>("bystander")?;
    told?;
    operator.stop()
}
