//! What platform teams do to the webhook on an ordinary day. Under load no write may fail or be refused for it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tailnet_e2e::cluster::control_plane;
use tailnet_e2e::wait_for;

use crate::bed::{Bed, OPERATOR, SOON};
use crate::install;
use crate::load::{Allowed, Load};

pub const WEBHOOK: &str = "tailnet-webhook";
pub const WEBHOOK_PODS: &str = "app.kubernetes.io/name=tailnet-operator,app.kubernetes.io/component=webhook";

/// Runs `act` under load; every call must get its answer, also while the last Pods are on their way out.
fn under_load(bed: &Bed, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let load = Load::start(bed.cluster, Allowed::None);
    let acted = act().and_then(|()| wait_settled(bed, 2));
    let loaded = load.stop();
    acted.and(loaded)
}

/// Waits until the webhook has `wanted` ready Pods, and none is on its way out.
pub fn wait_settled(bed: &Bed, wanted: usize) -> Result<()> {
    wait_for(&format!("the webhook has {wanted} Pods, all ready"), SOON, || {
        let pods = all(bed)?;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        ensure!(
            pods.len() == wanted && ready == wanted,
            "{} Pods, {ready} ready",
            pods.len()
        );
        Ok::<_, anyhow::Error>(())
    })
}

/// All webhook Pods, also those that end.
fn all(bed: &Bed) -> Result<Vec<Value>> {
    bed.list(&["-n", OPERATOR, "pods", "-l", WEBHOOK_PODS])
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|list| {
        list.iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    })
}

fn replaced(bed: &Bed, before: &[String]) -> Result<()> {
    let now = bed.pods(WEBHOOK_PODS)?;
    ensure!(
        now.iter().all(|pod| !before.contains(pod)),
        "before: {before:?}, now: {now:?}"
    );
    Ok(())
}

/// `helm upgrade` with another annotation of the Pods.
pub fn rolled(bed: &Bed) -> Result<()> {
    let before = bed.pods(WEBHOOK_PODS)?;
    under_load(bed, || {
        let note = format!(
            "webhook.podAnnotations.rolled=at-{}",
            jiff::Timestamp::now().as_second()
        );
        let done = install::helm(bed, "upgrade", &["--set-string", &note])?;
        done.success().context("helm upgrade").map(drop)
    })?;
    replaced(bed, &before)
}

/// 2, 1, 2.
pub fn scaled(bed: &Bed) -> Result<()> {
    under_load(bed, || {
        scale(bed, 1)?;
        wait_settled(bed, 1)?;
        scale(bed, 2)
    })
}

pub fn scale(bed: &Bed, replicas: usize) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    bed.kubectl(&["-n", OPERATOR, "scale", "deployment", WEBHOOK, &replicas])
        .map(drop)
}

/// `kubectl drain` of the node, for the webhook's Pods. The node is the only one, so that the first Pod's replacement has nowhere
/// to run and the budget has to keep the second; then a node comes back, which is the same one.
pub fn drained(bed: &Bed) -> Result<()> {
    let before = bed.pods(WEBHOOK_PODS)?;
    let cluster = bed.cluster;
    let done = under_load(bed, || {
        let drain = std::thread::spawn(move || {
            cluster.kubectl(&[
                "drain",
                control_plane::NODE,
                "--pod-selector",
                WEBHOOK_PODS,
                "--timeout=150s",
            ])
        });
        let kept = one_is_kept(bed, &before);
        // Whatever was seen: nothing else in this story runs on a closed node.
        bed.kubectl(&["uncordon", control_plane::NODE])?;
        let drained = drain.join().map_err(|_| anyhow::anyhow!("kubectl drain panicked"))??;
        kept?;
        let said = format!("{}{}", drained.stdout, drained.stderr);
        drained.success().context("kubectl drain")?;
        ensure!(
            said.contains("disruption budget"),
            "the budget refused no eviction: {said}"
        );
        Ok(())
    });
    done?;
    replaced(bed, &before)
}

/// One Pod is evicted, its replacement waits for a node, and the other Pod stays for as long as it does.
fn one_is_kept(bed: &Bed, before: &[String]) -> Result<()> {
    let look = || {
        let pods = all(bed)?;
        let ready: Vec<_> = pods.iter().filter(|pod| is_ready(pod)).collect();
        let waiting = pods.iter().filter(|pod| pod["status"]["phase"] == "Pending").count();
        let kept = ready
            .iter()
            .filter(|pod| before.iter().any(|name| pod["metadata"]["name"] == **name))
            .count();
        anyhow::Ok((pods.len(), ready.len(), waiting, kept))
    };
    wait_for("one Pod is evicted and its replacement waits", SOON, || {
        let seen = look()?;
        ensure!(
            seen == (2, 1, 1, 1),
            "Pods, ready, waiting for a node, ready since before: {seen:?}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    // kubectl tries again every 5 s: twice at the least.
    for _ in 0..12 {
        std::thread::sleep(Duration::from_secs(1));
        let seen = look()?;
        ensure!(seen == (2, 1, 1, 1), "the budget did not hold: {seen:?}");
    }
    Ok(())
}
