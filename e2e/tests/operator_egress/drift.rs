//! What others made or changed: foreign objects are left alone, ours are put right, and without a change nothing is written.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use serde_json::json;
use tailnet_crds::TailnetEgress;
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};

use crate::checks::{SOON, live_keys, wait_complete, wait_condition};
use crate::operating::{NAMESPACE, Operator, USER, apply, cluster, condition, egress, start_over};

#[test]
fn a_foreign_service_is_never_adopted() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let foreign: Service = kube.create(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "remote-db", "namespace": NAMESPACE},
        "spec": {"selector": {"app": "mine"}, "ports": [{"port": 1}]},
    }))?;
    let operator = Operator::start(cluster, "operator-foreign")?;
    apply(cluster, &[egress("team-a", &[("remote-db", "192.0.2.10", 5432)])])?;
    let refused = wait_condition(&kube, "team-a", "Accepted", "False", "HeldByOther")?;
    let (_, _, message) = condition(&refused, "Accepted").context("Accepted")?;
    assert!(
        message.contains("[TN202]") && message.contains("nothing is made for it"),
        "{message}"
    );
    assert_eq!(
        condition(&refused, "Ready").map(|(status, reason, _)| (status, reason)),
        Some(("False".into(), "NotAccepted".into()))
    );
    std::thread::sleep(Duration::from_secs(3));
    let still: Service = kube.get("remote-db")?;
    assert_eq!(
        (still.uid(), still.resource_version()),
        (foreign.uid(), foreign.resource_version())
    );
    assert!(kube.find::<Deployment>("tailnet-egress-team-a")?.is_none());
    assert_eq!(
        live_keys(&kube, cluster, "tag:egress-team-a")?.len(),
        0,
        "a refused object gets no key"
    );

    // When the name is free, everything comes by itself.
    kube.delete::<Service>("remote-db")?;
    wait_complete(&kube, "team-a")?;
    wait_condition(&kube, "team-a", "Accepted", "True", "Valid")?;

    // Somebody else's Deployment in the place of ours is left alone as well.
    cluster
        .kubectl(&["delete", "tailnetegress", "team-a", "-n", NAMESPACE])?
        .success()?;
    wait_for("the Deployment is collected", SOON, || {
        ensure!(
            kube.find::<Deployment>("tailnet-egress-team-a")?.is_none(),
            "it is there"
        );
        Ok(())
    })?;
    kube.create::<Deployment>(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "tailnet-egress-team-a", "namespace": NAMESPACE},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    }))?;
    apply(cluster, &[egress("team-a", &[("remote-db", "192.0.2.10", 5432)])])?;
    let taken = wait_condition(&kube, "team-a", "WorkloadReady", "False", "ChildNotOurs")?;
    assert!(
        condition(&taken, "WorkloadReady")
            .is_some_and(|(_, _, text)| text.contains("Deployment tailnet-egress-team-a"))
    );
    let foreign: Deployment = kube.get("tailnet-egress-team-a")?;
    assert_eq!(foreign.spec.and_then(|spec| spec.replicas), Some(0));
    kube.delete::<Deployment>("tailnet-egress-team-a")?;
    wait_complete(&kube, "team-a")?;
    operator.stop()
}

/// Writes of the operator in the audit log after `since` lines, Leases aside: they are the heartbeat.
fn writes(cluster: &Cluster, since: usize) -> Result<Vec<String>> {
    Ok(cluster
        .audit_log()?
        .iter()
        .skip(since)
        .filter(|event| event["user"]["username"] == USER && event["objectRef"]["resource"] != "leases")
        .map(|event| format!("{} {}", event["verb"], event["objectRef"]))
        .collect())
}

#[test]
fn nothing_is_written_when_nothing_changes() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start_with(
        cluster,
        "operator-quiet",
        19403,
        &[
            "--leader-election",
            "false",
            "--resync-seconds",
            "10",
            "--agent-poll-seconds",
            "1",
        ],
    )?;
    operator.wait_ready()?;
    let mut wanted = egress(
        "team-a",
        &[("remote-db", "192.0.2.10", 5432), ("other", "db.corp.example", 1)],
    );
    wanted["spec"]["targets"][0]["aliases"] = json!(["db.site.example.net"]);
    // Quantities that the API server rewrites must not look like a difference for ever.
    wanted["spec"]["agent"] = json!({"resources": {"limits": {"memory": "0.5Gi", "cpu": "0.5"}}});
    apply(cluster, &[wanted])?;
    wait_complete(&kube, "team-a")?;
    wait_condition(&kube, "team-a", "RoutesReady", "False", "NotAdvertised")?;
    std::thread::sleep(Duration::from_secs(25)); // past the time in which a new process holds observations back
    let version = kube.get::<TailnetEgress>("team-a")?.resource_version();
    assert!(
        writes(cluster, 0)?.len() > 5,
        "the audit log does not show what the operator wrote before"
    );
    let since = cluster.audit_log()?.len();
    std::thread::sleep(Duration::from_secs(30));
    let writes = writes(cluster, since)?;
    assert!(writes.is_empty(), "{writes:#?}");
    assert_eq!(kube.get::<TailnetEgress>("team-a")?.resource_version(), version);
    operator.stop()
}

#[test]
fn a_change_by_hand_is_undone_and_foreign_labels_are_not() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-drift")?;
    apply(cluster, &[egress("team-a", &[("remote-db", "192.0.2.10", 5432)])])?;
    wait_complete(&kube, "team-a")?;
    cluster
        .kubectl(&["label", "service", "remote-db", "-n", NAMESPACE, "team=net"])?
        .success()?;
    cluster
        .kubectl(&[
            "scale",
            "deployment",
            "tailnet-egress-team-a",
            "-n",
            NAMESPACE,
            "--replicas=0",
        ])?
        .success()?;
    cluster
        .kubectl(&["delete", "networkpolicy", "tailnet-egress-team-a", "-n", NAMESPACE])?
        .success()?;
    wait_for("replicas and NetworkPolicy are back", SOON, || {
        let deployment: Deployment = kube.get("tailnet-egress-team-a")?;
        ensure!(
            deployment.spec.as_ref().and_then(|spec| spec.replicas) == Some(1),
            "replicas"
        );
        ensure!(
            kube.find::<NetworkPolicy>("tailnet-egress-team-a")?.is_some(),
            "no NetworkPolicy"
        );
        Ok(())
    })?;
    // What is added where only we have a say is taken away again: it opens what was closed.
    let policy = kube.get::<NetworkPolicy>("tailnet-egress-team-a")?.spec;
    let service = kube.get::<Service>("remote-db")?.spec;
    let template = kube
        .get::<Deployment>("tailnet-egress-team-a")?
        .spec
        .context("spec")?
        .template;
    let patch = |kind: &str, name: &str, how: &str, patch: serde_json::Value| -> Result<()> {
        let (how, patch) = (format!("--type={how}"), patch.to_string());
        cluster
            .kubectl(&["patch", kind, name, "-n", NAMESPACE, &how, "-p", &patch])?
            .success()?;
        Ok(())
    };
    let selector = json!({"spec": {"podSelector": {"matchLabels": {"nope": "x"}}}});
    let ports = json!([{"op": "add", "path": "/spec/ingress/0/ports/0/endPort", "value": 65_535}]);
    let added = json!({"spec": {"selector": {"nope": "x"}, "externalIPs": ["203.0.113.7"], "publishNotReadyAddresses": true, "ports": [
        {"name": "more", "port": 81, "protocol": "TCP", "targetPort": 9402},
    ]}});
    let pod = json!({"spec": {"paused": true, "template": {"metadata": {"labels": {"nope": "x"}}, "spec": {
        "hostNetwork": true, "containers": [{"name": "more", "image": "more", "command": ["more"]}],
    }}}});
    let base = "tailnet-egress-team-a";
    for (kind, name, how, change) in [
        ("networkpolicy", base, "merge", selector),
        ("networkpolicy", base, "json", ports),
        ("service", "remote-db", "strategic", added),
        ("deployment", base, "strategic", pod),
    ] {
        patch(kind, name, how, change.clone())?;
        wait_for(&format!("undone: {change}"), SOON, || {
            let policy_now = kube.get::<NetworkPolicy>(base)?.spec;
            ensure!(policy_now == policy, "NetworkPolicy: {policy_now:?}");
            let service_now = kube.get::<Service>("remote-db")?.spec;
            ensure!(service_now == service, "Service: {service_now:?}");
            let deployment_now = kube.get::<Deployment>(base)?.spec.context("spec")?;
            ensure!(deployment_now.paused.is_none(), "paused");
            let template_now = deployment_now.template;
            ensure!(template_now == template, "Deployment: {template_now:?}");
            Ok(())
        })?;
    }
    // `kubectl rollout restart` is nobody's drift, and nothing is written again and again.
    cluster
        .kubectl(&["rollout", "restart", &format!("deployment/{base}"), "-n", NAMESPACE])?
        .success()?;
    std::thread::sleep(Duration::from_secs(15));
    let since = cluster.audit_log()?.len();
    std::thread::sleep(Duration::from_secs(8));
    let writes: Vec<String> = writes(cluster, since)?;
    assert!(writes.is_empty(), "{writes:#?}");
    let annotations = kube.get::<Deployment>(base)?.spec.context("spec")?.template.metadata;
    let annotations = annotations
        .and_then(|metadata| metadata.annotations)
        .unwrap_or_default();
    assert!(
        annotations.contains_key("kubectl.kubernetes.io/restartedAt"),
        "{annotations:?}"
    );
    assert_eq!(
        kube.get::<Service>("remote-db")?
            .labels()
            .get("team")
            .map(String::as_str),
        Some("net")
    );
    let log = operator.process.log();
    assert!(!log.contains("changes this field again"), "{log}");
    operator.stop()
}
