//! The Tailnet that is not there, and the Headscale that does not answer.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt;
use serde_json::json;
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::checks::{SOON, config, live_keys, wait_complete, wait_condition};
use crate::operating::{Operator, TAILNET, apply, cluster, condition, egress, start_over, tailnet};

#[test]
fn without_a_tailnet_it_waits_and_says_so() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-tailnet")?;
    let mut orphan = egress("team-a", &[("remote-db", "192.0.2.10", 5432)]);
    orphan["spec"]["tailnetRef"]["name"] = json!("later");
    apply(cluster, &[orphan])?;
    let waiting = wait_condition(&kube, "team-a", "Accepted", "False", "TailnetNotFound")?;
    assert!(condition(&waiting, "Accepted").is_some_and(|(_, _, text)| text.contains("[TN001]")));
    assert!(kube.find::<Deployment>("tailnet-egress-team-a")?.is_none());

    cluster.kubectl(&["delete", "tailnet", TAILNET])?.success()?;
    apply(cluster, &[tailnet(cluster, "later")?])?;
    wait_complete(&kube, "team-a")?;

    // Gone again: what runs is frozen, not removed.
    let before: Deployment = kube.get("tailnet-egress-team-a")?;
    cluster.kubectl(&["delete", "tailnet", "later"])?.success()?;
    let frozen = wait_condition(&kube, "team-a", "Accepted", "False", "TailnetNotFound")?;
    assert!(condition(&frozen, "Accepted").is_some_and(|(_, _, text)| text.starts_with("frozen")));
    std::thread::sleep(Duration::from_secs(2));
    let after: Deployment = kube.get("tailnet-egress-team-a")?;
    assert_eq!(
        (before.uid(), before.metadata.generation),
        (after.uid(), after.metadata.generation)
    );
    operator.stop()
}

/// Agents go on as who they are until there is a key for who they shall be.
#[test]
fn a_new_tag_waits_for_its_key() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-retag")?;
    apply(cluster, &[egress("team-a", &[("remote-db", "192.0.2.10", 5432)])])?;
    wait_complete(&kube, "team-a")?;
    wait_condition(&kube, "team-a", "KeyReady", "True", "KeyReady")?;
    let deployment: Deployment = kube.get("tailnet-egress-team-a")?;
    let secret: Secret = kube.get("tailnet-egress-team-a-authkey")?;
    let identity = |kube| -> Result<_> {
        let config = config(kube, "team-a")?;
        Ok((config["controlUrl"].clone(), config["hostname"].clone()))
    };
    let before = identity(&kube)?;
    assert!(before.0.is_string() && before.1.is_string(), "{before:?}");

    let headscale = cluster.headscale()?;
    headscale.kill()?;
    let while_down = (|| -> Result<Operator> {
        let mut tagged = egress(
            "team-a",
            &[("remote-db", "192.0.2.10", 5432), ("new-db", "192.0.2.11", 5432)],
        );
        tagged["spec"]["tag"] = json!("tag:egress-other");
        apply(cluster, &[tagged])?;
        // What needs no key goes on: the new target has its Service, and the agents are told.
        wait_for("the new target has its Service", SOON, || kube.get::<Service>("new-db"))?;
        let unchanged = || -> Result<()> {
            wait_condition(&kube, "team-a", "KeyReady", "False", "ControlPlaneUnreachable")?;
            ensure!(identity(&kube)? == before, "{:?} was {before:?}", identity(&kube)?);
            let targets = config(&kube, "team-a")?["targets"].as_array().map(Vec::len);
            ensure!(targets == Some(2), "{targets:?} targets");
            let now: Deployment = kube.get("tailnet-egress-team-a")?;
            ensure!(
                now.metadata.generation == deployment.metadata.generation,
                "the agents were rolled without a key"
            );
            let now: Secret = kube.get("tailnet-egress-team-a-authkey")?;
            ensure!(
                now.resource_version() == secret.resource_version(),
                "the Secret was changed"
            );
            Ok(())
        };
        unchanged()?;
        // A process that has just started knows no better.
        operator.kill()?;
        let operator = Operator::start(cluster, "operator-retag-again")?;
        std::thread::sleep(Duration::from_secs(3));
        unchanged()?;
        Ok(operator)
    })();
    headscale.start()?;
    let operator = while_down?;
    wait_for("the agents roll with a key for the new tag", SOON * 2, || {
        let now: Deployment = kube.get("tailnet-egress-team-a")?;
        ensure!(now.metadata.generation > deployment.metadata.generation, "not rolled");
        let secret: Secret = kube.get("tailnet-egress-team-a-authkey")?;
        let tags = secret.annotations().get("tsunaro.io/key-tags").cloned();
        ensure!(tags.as_deref() == Some("tag:egress-other"), "{tags:?}");
        Ok(())
    })?;
    wait_condition(&kube, "team-a", "KeyReady", "True", "KeyReady")?;
    wait_for("the key for the old tag opens nothing any more", SOON, || {
        let old = live_keys(&kube, cluster, "tag:egress-team-a")?;
        ensure!(old.is_empty(), "{old:?}");
        Ok(())
    })?;
    assert_eq!(live_keys(&kube, cluster, "tag:egress-other")?.len(), 1);
    wait_complete(&kube, "team-a")?;
    operator.stop()
}
