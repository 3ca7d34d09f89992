//! The chart's first installation is open until the API server has reached the webhook, and closed from there on, whoever
//! applies the chart again.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};
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

/// failurePolicy of the entry that checks.
pub fn policy(cluster: &Cluster) -> Result<String> {
    let live = live(cluster)?;
    let mut entries = live["webhooks"].as_array().context("entries")?.iter();
    let entry = entries.find(|entry| entry["name"] == VALIDATE).context("the entry")?;
    Ok(entry["failurePolicy"].as_str().unwrap_or_default().to_owned())
}

fn wait_closed(cluster: &Cluster) -> Result<()> {
    wait_for("the entry that checks is closed", PATIENCE, || {
        let policy = policy(cluster)?;
        ensure!(policy == "Fail", "{policy}");
        Ok::<_, anyhow::Error>(())
    })
}

/// Fails when the entry closes within `time`.
fn stays_open(cluster: &Cluster, time: Duration) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        ensure!(policy(cluster)? == "Ignore", "closed after {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Lets writes through by hand, as docs/admission.md says for emergencies.
pub fn open_by_hand(cluster: &Cluster) -> Result<()> {
    let open = json!({"webhooks": [{"name": VALIDATE, "failurePolicy": "Ignore"}]}).to_string();
    let patch = [
        "patch",
        "validatingwebhookconfiguration",
        "tailnet-webhook",
        "--type=strategic",
        "-p",
        &open,
    ];
    cluster.kubectl(&patch)?.success().map(drop)
}

/// Points every entry of the checking configuration at `port`.
fn point_at(cluster: &Cluster, port: u16) -> Result<()> {
    let live = live(cluster)?;
    let entries = live["webhooks"].as_array().context("entries")?;
    let url = format!("https://127.0.0.1:{port}/validate");
    let entries: Vec<_> = entries
        .iter()
        .map(|entry| json!({"name": entry["name"], "clientConfig": {"url": url}}))
        .collect();
    let patch = json!({"webhooks": entries}).to_string();
    let args = [
        "patch",
        "validatingwebhookconfiguration",
        "tailnet-webhook",
        "--type=strategic",
        "-p",
        &patch,
    ];
    cluster.kubectl(&args)?.success().map(drop)
}

/// Sends reviews to the webhook's port past the API server, as any Pod can.
fn forge(cluster: &Cluster, port: u16) -> Result<()> {
    let namespace = File::open(format!("/proc/{}/ns/net", cluster.state().init)).context("network of the box")?;
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "CREATE", "name": "forged",
            "kind": {"group": "tsunaro.io", "version": "v1alpha1", "kind": "TailnetSite"},
            "userInfo": {"username": "system:masters"},
            "object": site("forged", &["192.0.2.0/24"], "corp"),
        },
    });
    std::thread::spawn(move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        tailnet_e2e::tls::install_provider();
        runtime.block_on(async {
            let client = reqwest::Client::builder()
                .tls_danger_accept_invalid_certs(true)
                .build()?;
            for _ in 0..5 {
                let url = format!("https://127.0.0.1:{port}/validate");
                let answer = client.post(url).body(review.to_string()).send().await?;
                ensure!(answer.status().is_success(), "{answer:?}");
                let text = answer.text().await?;
                ensure!(text.contains("auditAnnotations"), "{text}");
            }
            Ok(())
        })
    })
    .join()
    .map_err(|_| anyhow::anyhow!("the forger panicked"))?
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

    cluster
        .kubectl(&["delete", "tailnetsite", "early", "-n", NAMESPACE])?
        .success()
        .map(drop)
}

#[test]
fn what_is_opened_by_hand_stays_open_until_the_api_server_comes_through() -> Result<()> {
    const NOBODY: u16 = 9449;
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-emergency", 9443)?;
    wait_for("the entry says that it has been closed", PATIENCE, || {
        let live = live(cluster)?;
        let mark = &live["metadata"]["annotations"]["tsunaro.io/failed-closed"];
        ensure!(mark == "true", "{mark}");
        Ok::<_, anyhow::Error>(())
    })?;

    // The webhook runs, is ready and has been called: only its way from the API server is broken.
    point_at(cluster, NOBODY)?;
    let late = site("late", &["198.51.100.0/24"], "corp");
    wait_for("writes are refused", PATIENCE, || {
        let refused = caller.create(&late, true)?;
        ensure!(refused.message().contains("failed calling webhook"), "{refused:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    open_by_hand(cluster)?;
    stays_open(cluster, Duration::from_secs(10))?;
    wait_for("a write gets through", PATIENCE, || {
        let stored = caller.create(&late, true)?;
        ensure!(stored.status.is_success(), "{stored:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    // What others send to the port says nothing about the API server.
    forge(cluster, 9443)?;
    stays_open(cluster, Duration::from_secs(10))?;
    let (_, metrics) = webhook.health("/metrics")?;
    ensure!(metrics.contains("tailnet_webhook_admission_open 1"), "{metrics}");
    // A restart, and half a minute of readiness after it, do not either: this is no first installation.
    webhook.process.kill()?;
    let webhook = Webhook::start(cluster, "webhook-emergency-again", 9443)?;
    webhook.wait_ready()?;
    stays_open(cluster, Duration::from_secs(40))?;

    point_at(cluster, 9443)?;
    wait_closed(cluster)?;
    let (_, metrics) = webhook.health("/metrics")?;
    ensure!(metrics.contains("tailnet_webhook_admission_open"), "{metrics}");
    Ok(())
}

#[test]
fn a_first_installation_is_not_closed_by_strangers() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    start_over(cluster)?;
    helm_applies(cluster, "Ignore")?;
    point_at(cluster, 9449)?;
    let webhook = Webhook::start(cluster, "webhook-strangers", 9443)?;
    webhook.wait_ready()?;
    let ready = Instant::now();
    forge(cluster, 9443)?;
    stays_open(cluster, Duration::from_secs(20))?;
    // Whatever keeps the API server away, it is closed after half a minute of readiness.
    wait_closed(cluster)?;
    ensure!(ready.elapsed() < Duration::from_secs(60), "{:?}", ready.elapsed());
    Ok(())
}
