//! What the status says while the agents that run are not yet, or not any more, those that the object asks for.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use tailnet_crds::TailnetEgress;
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};

use crate::checks::{SOON, wait_complete, wait_condition};
use crate::operating::{Kube, NAMESPACE, Operator, apply, cluster, condition, egress, start_over};

/// The Pods that are not in `known`, once there is one.
fn new_pod(kube: &Kube, known: &[String]) -> Result<String> {
    wait_for("a new Pod", SOON, || {
        let names = kube.list::<Pod>()?.into_iter().map(|pod| pod.name_any());
        names.into_iter().find(|name| !known.contains(name)).context("no Pod")
    })
}

/// Plays kubelet.
fn set_status(cluster: &Cluster, pod: &str, status: &Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    cluster
        .kubectl(&[
            "patch",
            "pod",
            pod,
            "-n",
            NAMESPACE,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])?
        .success()?;
    Ok(())
}

#[test]
fn a_rollout_that_does_not_get_there_is_not_ready() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-rollout")?;
    apply(cluster, &[egress("team-a", &[("remote-db", "192.0.2.10", 5432)])])?;
    wait_complete(&kube, "team-a")?;
    let old = new_pod(&kube, &[])?;
    let container = |ready: bool, state: Value| {
        json!([{
            "name": "agent", "image": "i", "imageID": "i", "ready": ready, "restartCount": 1, "state": state,
        }])
    };
    set_status(
        cluster,
        &old,
        &json!({
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": container(true, json!({"running": {}})),
        }),
    )?;
    wait_condition(&kube, "team-a", "WorkloadReady", "True", "Available")?;

    // Another number of replicas replaces no Pod.
    let template = |kube: &Kube| -> Result<_> {
        let deployment: Deployment = kube.get("tailnet-egress-team-a")?;
        let spec = deployment.spec.context("spec")?;
        Ok((spec.replicas, spec.template))
    };
    let before = template(&kube)?.1;
    let mut wanted = egress("team-a", &[("remote-db", "192.0.2.10", 5432)]);
    for replicas in [2, 1] {
        wanted["spec"]["replicas"] = json!(replicas);
        apply(cluster, &[wanted.clone()])?;
        wait_for("the Deployment has the replicas", SOON, || {
            let (now, template) = template(&kube)?;
            ensure!(now == Some(replicas), "{now:?}");
            assert_eq!(template, before, "every Pod would be replaced");
            Ok(())
        })?;
    }
    wait_for("the first Pod is the only one again", SOON, || {
        let names: Vec<String> = kube.list::<Pod>()?.iter().map(ResourceExt::name_any).collect();
        ensure!(names == [old.clone()], "{names:?}");
        Ok(())
    })?;
    wait_condition(&kube, "team-a", "WorkloadReady", "True", "Available")?;

    // Another tag is another node; the one that runs is not it.
    wanted["spec"]["tag"] = json!("tag:egress-other");
    apply(cluster, &[wanted])?;
    let new = new_pod(&kube, &[old])?;
    let rolling = wait_condition(&kube, "team-a", "WorkloadReady", "False", "RollingOut")?;
    let (_, _, message) = condition(&rolling, "WorkloadReady").context("WorkloadReady")?;
    assert!(message.contains("former tag"), "{message}");
    set_status(
        cluster,
        &new,
        &json!({
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": container(
                false,
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}),
            ),
        }),
    )?;
    wait_for("the trouble of the new Pod is told", SOON, || {
        let egress: TailnetEgress = kube.get("team-a")?;
        let (status, reason, message) = condition(&egress, "WorkloadReady").context("WorkloadReady")?;
        ensure!(
            status == "False" && reason == "RollingOut" && message.contains(&format!("Pod {new}: CrashLoopBackOff")),
            "{status} {reason} {message}"
        );
        ensure!(
            condition(&egress, "Ready").is_some_and(|(status, _, _)| status == "False"),
            "Ready"
        );
        Ok(())
    })?;
    operator.stop()
}

#[test]
fn an_object_that_is_being_deleted_says_so() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-deleting")?;
    let mut held = egress("team-a", &[("remote-db", "192.0.2.10", 5432)]);
    held["metadata"]["finalizers"] = json!(["example.com/theirs"]);
    apply(cluster, &[held])?;
    wait_complete(&kube, "team-a")?;
    wait_condition(&kube, "team-a", "Accepted", "True", "Valid")?;
    kube.delete::<TailnetEgress>("team-a")?;
    let told = wait_condition(&kube, "team-a", "Accepted", "False", "Deleting");
    let gone = wait_for("nothing runs for it", SOON, || {
        ensure!(kube.find::<Deployment>("tailnet-egress-team-a")?.is_none(), "it runs");
        Ok(())
    });
    let end = wait_condition(&kube, "team-a", "WorkloadReady", "Unknown", "NotAccepted");
    cluster
        .kubectl(&[
            "patch",
            "tailnetegress",
            "team-a",
            "-n",
            NAMESPACE,
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])?
        .success()?;
    gone?;
    end?;
    let (_, _, message) = condition(&told?, "Accepted").context("Accepted")?;
    assert!(message.contains("example.com/theirs"), "{message}");
    wait_for("it is gone", SOON, || {
        ensure!(kube.find::<TailnetEgress>("team-a")?.is_none(), "it is there");
        Ok(())
    })?;
    operator.stop()
}
