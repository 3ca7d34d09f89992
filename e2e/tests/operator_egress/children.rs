//! What an accepted egress gets, and what happens to it when its spec changes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use serde_json::{Value, json};
use tailnet_crds::TailnetEgress;
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::checks::{SOON, listen_ports, live_keys, wait_complete, wait_condition};
use crate::operating::{HOSTS, NAMESPACE, Operator, apply, cluster, egress, start_over};

#[test]
fn children_are_made_owned_and_told() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-children")?;
    let mut wanted = egress(
        "team-a",
        &[("remote-db", "192.0.2.10", 5432), ("remote-api", "198.51.100.20", 443)],
    );
    wanted["spec"]["targets"][1]["aliases"] = json!(["api.site.example.net"]);
    wanted["spec"]["replicas"] = json!(2);
    apply(cluster, &[wanted])?;
    wait_complete(&kube, "team-a")?;

    let egress = wait_condition(&kube, "team-a", "Accepted", "True", "Valid")?;
    wait_condition(&kube, "team-a", "KeyReady", "True", "KeyReady")?;
    wait_condition(&kube, "team-a", "WorkloadReady", "False", "Unavailable")?;
    let egress_ready = wait_condition(&kube, "team-a", "RoutesReady", "False", "NotAdvertised")?;
    let states = egress_ready.status.context("status")?.targets;
    assert_eq!(states.len(), 2);
    assert_eq!(states[0].service.as_deref(), Some("remote-db.tailnet-system.svc"));
    assert!(
        states[0]
            .message
            .as_deref()
            .unwrap_or_default()
            .contains("--advertise-routes=192.0.2.10/32"),
        "{states:?}"
    );
    assert!(kube.find::<PodDisruptionBudget>("tailnet-egress-team-a")?.is_some());

    // The key is Headscale's, bound to the tag; the Secret's text is not in any status or log.
    let keys = live_keys(&kube, cluster, "tag:egress-team-a")?;
    assert_eq!(keys.len(), 1, "{keys:?}");
    let secret: Secret = kube.get("tailnet-egress-team-a-authkey")?;
    let key = String::from_utf8(secret.data.context("data")?.remove("authkey").context("authkey")?.0)?;
    assert!(key.starts_with("hskey-auth-"));
    // Its end: a dash may be part of the secret, so what follows the last one may be a single letter.
    let secret_part = key.get(key.len() - 32..).context("secret part")?;
    assert!(!operator.process.log().contains(secret_part));
    assert!(!serde_json::to_string(&kube.get::<TailnetEgress>("team-a")?)?.contains(secret_part));

    // The alias points at the Service.
    wait_condition(&kube, "team-a", "DNSReady", "True", "Published")?;
    let address = kube
        .get::<Service>("remote-api")?
        .spec
        .and_then(|spec| spec.cluster_ip)
        .context("cluster IP")?;
    let hosts: ConfigMap = kube.get(HOSTS)?;
    let text = hosts.data.context("data")?.remove("hosts").context("hosts")?;
    assert!(
        text.lines()
            .any(|line| line == format!("{address} api.site.example.net")),
        "{text}"
    );

    // The record says who holds what.
    let claims: ConfigMap = kube.get("tailnet-claims-demo")?;
    let claims: Value = serde_json::from_str(&claims.data.context("data")?["claims"])?;
    for key in [
        "tag:tag:egress-team-a",
        "service:remote-db",
        "name:api.site.example.net",
    ] {
        assert_eq!(claims["claims"][key]["uid"], json!(egress.uid()), "{key}");
    }
    let (_, metrics) = operator.health("/metrics")?;
    assert!(
        metrics.contains(r#"tailnet_resource_condition{kind="TailnetEgress",namespace="tailnet-system",name="team-a",type="Accepted",status="True"} 1"#),
        "{metrics}"
    );
    operator.stop()
}

#[test]
fn the_agents_pass_the_restricted_pod_security_standard() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let label = "pod-security.kubernetes.io/enforce";
    cluster
        .kubectl(&[
            "label",
            "namespace",
            NAMESPACE,
            &format!("{label}=restricted"),
            "--overwrite",
        ])?
        .success()?;
    let operator = Operator::start(cluster, "operator-restricted")?;
    apply(cluster, &[egress("team-a", &[("remote-db", "192.0.2.10", 5432)])])?;
    let pods = wait_for("the agent's Pod is let in", SOON, || {
        let pods = kube.list::<k8s_openapi::api::core::v1::Pod>()?;
        ensure!(
            !pods.is_empty(),
            "no Pod; {:?}",
            kube.get::<Deployment>("tailnet-egress-team-a")?.status
        );
        Ok::<_, anyhow::Error>(pods)
    });
    cluster
        .kubectl(&["label", "namespace", NAMESPACE, &format!("{label}-")])?
        .success()?;
    let spec = pods?.remove(0).spec.context("spec")?;
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert!(
        spec.volumes
            .unwrap_or_default()
            .iter()
            .all(|volume| volume.projected.is_none()),
        "a token was mounted"
    );
    operator.stop()
}

#[test]
fn a_change_of_targets_restarts_nothing_and_keeps_ports() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-targets")?;
    apply(
        cluster,
        &[egress("team-a", &[("one", "192.0.2.1", 80), ("two", "192.0.2.2", 80)])],
    )?;
    wait_complete(&kube, "team-a")?;
    let deployment: Deployment = kube.get("tailnet-egress-team-a")?;
    let first = listen_ports(&kube, "team-a")?;
    assert_eq!(first, BTreeMap::from([("one".into(), 10_000), ("two".into(), 10_001)]));

    // One goes, one comes, one changes its port.
    apply(
        cluster,
        &[egress(
            "team-a",
            &[("two", "192.0.2.2", 8080), ("three", "192.0.2.3", 80)],
        )],
    )?;
    wait_for("the Service of the removed target is gone", SOON, || {
        ensure!(kube.find::<Service>("one")?.is_none(), "it is there");
        Ok(())
    })?;
    wait_complete(&kube, "team-a")?;
    let second = listen_ports(&kube, "team-a")?;
    assert_eq!(
        second,
        BTreeMap::from([("two".into(), 10_001), ("three".into(), 10_002)])
    );
    let ports = kube
        .get::<Service>("two")?
        .spec
        .and_then(|spec| spec.ports)
        .context("ports")?;
    assert_eq!(ports.len(), 1, "the old port must go: {ports:?}");

    // A target that comes back does not get its old port: an old configuration may still be in force somewhere.
    apply(
        cluster,
        &[egress(
            "team-a",
            &[
                ("two", "192.0.2.2", 8080),
                ("three", "192.0.2.3", 80),
                ("one", "192.0.2.1", 80),
            ],
        )],
    )?;
    wait_complete(&kube, "team-a")?;
    assert_eq!(listen_ports(&kube, "team-a")?["one"], 10_003);

    let after: Deployment = kube.get("tailnet-egress-team-a")?;
    assert_eq!(
        after.metadata.generation, deployment.metadata.generation,
        "the Deployment was changed"
    );

    // Pods are told by an annotation, so that their volumes follow at once.
    let config = kube
        .get::<ConfigMap>("tailnet-egress-team-a-config")?
        .data
        .context("data")?;
    wait_for("the Pod carries the hash of the newest configuration", SOON, || {
        use sha2::Digest;
        let sha: String = sha2::Sha256::digest(&config["config.json"])
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        for pod in kube.list::<k8s_openapi::api::core::v1::Pod>()? {
            let found = pod.annotations().get("tsunaro.io/config-sha256").cloned();
            ensure!(found.as_ref() == Some(&sha), "{found:?} is not {sha}");
        }
        Ok(())
    })?;

    // Another tag is another node: that does roll, with a key of its own.
    let mut tagged = egress("team-a", &[("two", "192.0.2.2", 8080)]);
    tagged["spec"]["tag"] = json!("tag:egress-other");
    apply(cluster, &[tagged])?;
    wait_for("the Deployment rolls for the new tag", SOON, || {
        let now: Deployment = kube.get("tailnet-egress-team-a")?;
        ensure!(
            now.metadata.generation > after.metadata.generation,
            "generation {:?}",
            now.metadata.generation
        );
        Ok(())
    })?;
    let secret: Secret = kube.get("tailnet-egress-team-a-authkey")?;
    assert_eq!(
        secret.annotations().get("tsunaro.io/key-tags").map(String::as_str),
        Some("tag:egress-other")
    );
    operator.stop()
}
