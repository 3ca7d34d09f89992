//! The chart's first installation is open until the API server has reached the webhook, and closed from there on, whoever
//! applies the chart again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};
use tailnet_webhook::configuration::{Parameters, VALIDATE, mutating, validating};

use super::installed::{NAMESPACE, Webhook, cluster, site};
use super::start_over;

const PATIENCE: Duration = Duration::from_secs(60);

/// Applies both configurations as Helm 4 does: server-side, by a manager of its own, and a conflict is an error.
fn helm_applies(cluster: &Cluster, policy: &str) -> Result<()> {
    let parameters = Parameters::url("https://127.0.0.1:9443");
    let mut checks = serde_json::to_value(validating(&parameters))?;
    for entry in checks["webhooks"].as_array_mut().context("entries")? {
        if entry["name"] == VALIDATE {
            entry["failurePolicy"] = json!(policy);
        }
    }
    let list =
        json!({"apiVersion": "v1", "kind": "List", "items": [checks, serde_json::to_value(mutating(&parameters))?]});
    let apply = ["apply", "--server-side", "--field-manager=helm", "-f", "-"];
    let done = cluster.kubectl_with_input(&apply, &list.to_string())?;
    done.success()
        .map(drop)
        .with_context(|| format!("helm applies {policy}"))
}

fn live(cluster: &Cluster) -> Result<Value> {
    let args = [
        "get",
        "validatingwebhookconfigurations",
        "tailnet-webhook",
        "-o",
        "json",
        "--show-managed-fields",
    ];
    Ok(serde_json::from_str(cluster.kubectl(&args)?.success()?)?)
}

fn wait_closed(cluster: &Cluster) -> Result<()> {
    wait_for("the entry that checks is closed", PATIENCE, || {
        let live = live(cluster)?;
        let mut entries = live["webhooks"].as_array().context("entries")?.iter();
        let entry = entries.find(|entry| entry["name"] == VALIDATE).context("the entry")?;
        ensure!(entry["failurePolicy"] == "Fail", "{}", entry["failurePolicy"]);
        Ok::<_, anyhow::Error>(())
    })
}

/// Managers that own the failurePolicy of the entry that checks.
fn owners(cluster: &Cluster) -> Result<Vec<String>> {
    let live = live(cluster)?;
    let managers = live["metadata"]["managedFields"].as_array().context("managedFields")?;
    let key = format!("k:{{\"name\":\"{VALIDATE}\"}}");
    Ok(managers
        .iter()
        .filter(|manager| !manager["fieldsV1"]["f:webhooks"][&key]["f:failurePolicy"].is_null())
        .map(|manager| manager["manager"].as_str().unwrap_or_default().to_owned())
        .collect())
}

#[test]
fn the_first_installation_is_open_until_the_webhook_is_reached() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    helm_applies(cluster, "Ignore")?;
    ensure!(owners(cluster)? == ["helm"], "{:?}", owners(cluster)?);
    // In the same release: nobody answers yet, and it is stored.
    let early = site("early", &["192.0.2.0/24"], "corp");
    let stored = caller.create(&early, false)?;
    ensure!(stored.status.is_success(), "{stored:?}");

    let webhook = Webhook::start(cluster, "webhook-arming", 9443)?;
    webhook.wait_ready()?;
    webhook.wait_called(cluster)?;
    wait_closed(cluster)?;
    let late = site("late", &["198.51.100.0/24"], "corp");
    webhook.process.kill()?;
    wait_for("nothing is stored unchecked", PATIENCE, || {
        let refused = caller.create(&late, true)?;
        ensure!(
            refused.message().contains("failed calling webhook") && refused.message().contains(VALIDATE),
            "{refused:?}"
        );
        Ok::<_, anyhow::Error>(())
    })?;

    // The first revision again, as `helm rollback` applies it: no conflict, and closed again.
    let webhook = Webhook::start(cluster, "webhook-arming-again", 9443)?;
    webhook.wait_ready()?;
    helm_applies(cluster, "Ignore")?;
    webhook.wait_called(cluster)?;
    wait_closed(cluster)?;
    wait_for("nobody owns the field", PATIENCE, || {
        let owners = owners(cluster)?;
        ensure!(owners.is_empty(), "{owners:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    helm_applies(cluster, "Fail")?;
    ensure!(owners(cluster)? == ["helm"], "{:?}", owners(cluster)?);

    // By hand, as docs/admission.md says for emergencies.
    let open = json!({"webhooks": [{"name": VALIDATE, "failurePolicy": "Ignore"}]}).to_string();
    let patch = [
        "patch",
        "validatingwebhookconfiguration",
        "tailnet-webhook",
        "--type=strategic",
        "-p",
        &open,
    ];
    cluster.kubectl(&patch)?.success()?;
    wait_closed(cluster)?;
    cluster
        .kubectl(&["delete", "tailnetsite", "early", "-n", NAMESPACE])?
        .success()
        .map(drop)
}
