//! The webhook's own CA and certificates: one CA for all replicas, in both configurations, rotated and lost without a failed
//! call.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};
use tailnet_webhook::tls::authority::{Authority, SECRET_NAME, Step};

use super::installed::{Caller, NAMESPACE, Webhook, cluster, site};
use super::start_over;

fn entries(cluster: &Cluster, kind: &str) -> Result<Vec<(String, String)>> {
    let text = cluster.kubectl(&["get", kind, "tailnet-webhook", "-o", "json"])?;
    let live: Value = serde_json::from_str(text.success()?)?;
    let entries = live["webhooks"].as_array().context("entries")?;
    let read = |entry: &Value| {
        let bundle = STANDARD.decode(entry["clientConfig"]["caBundle"].as_str().unwrap_or_default())?;
        Ok((
            entry["name"].as_str().context("name")?.to_owned(),
            String::from_utf8(bundle)?,
        ))
    };
    entries.iter().map(read).collect()
}

/// The bundles of all entries of both configurations.
fn bundles(cluster: &Cluster) -> Result<Vec<String>> {
    let mut all = entries(cluster, "validatingwebhookconfigurations")?;
    all.extend(entries(cluster, "mutatingwebhookconfigurations")?);
    Ok(all.into_iter().map(|(_, bundle)| bundle).collect())
}

#[test]
fn two_replicas_that_start_at_once_agree_on_one_ca() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    for round in 0..3 {
        start_over(cluster)?;
        let one = Webhook::start(cluster, &format!("webhook-race-{round}-a"), 9443)?;
        let two = Webhook::start(cluster, &format!("webhook-race-{round}-b"), 9444)?;
        one.install(cluster, |_| {})?;
        one.wait_ready()?;
        two.wait_ready()?;
        let made = [&one, &two]
            .iter()
            .filter(|webhook| webhook.process.log().contains("made a new CA"))
            .count();
        assert_eq!(made, 1, "one made it, the other used it");
        let bundle = bundles(cluster)?;
        assert!(
            bundle
                .iter()
                .all(|other| *other == bundle[0] && other.matches("BEGIN CERTIFICATE").count() == 1),
            "{bundle:?}"
        );
        // Both serve leaves of that one CA: the API server trusts either.
        one.wait_called(cluster)?;
        two.install(cluster, |_| {})?;
        one.process.kill()?;
        two.wait_called(cluster)?;
    }
    Ok(())
}

#[test]
fn configurations_may_come_late_and_lose_the_ca() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    start_over(cluster)?;
    let webhook = Webhook::start(cluster, "webhook-late", 9443)?;
    wait_for("all but the CA is there", Duration::from_secs(20), || {
        let (code, text) = webhook.health("/readyz")?;
        ensure!(
            code == 503 && text.lines().count() == 2 && text.contains("- caBundle: "),
            "{text}"
        );
        ensure!(
            text.contains("WebhookConfiguration tailnet-webhook does not exist yet"),
            "{text}"
        );
        Ok(())
    })?;
    assert_eq!(webhook.health("/healthz")?.0, 200, "waiting is no reason for a restart");
    webhook.install(cluster, |_| {})?;
    webhook.wait_ready()?;
    let before = bundles(cluster)?;
    // Somebody writes another CA, and somebody removes it.
    for change in [
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": STANDARD.encode(other_ca())}]),
        json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]),
    ] {
        let patch = change.to_string();
        cluster
            .kubectl(&[
                "patch",
                "validatingwebhookconfigurations",
                "tailnet-webhook",
                "--type=json",
                "-p",
                &patch,
            ])?
            .success()?;
        wait_for("the CA is back", Duration::from_secs(5), || {
            ensure!(bundles(cluster)? == before, "not yet");
            Ok(())
        })?;
    }
    let text = cluster.kubectl(&[
        "get",
        "validatingwebhookconfigurations",
        "tailnet-webhook",
        "-o",
        "json",
        "--show-managed-fields",
    ])?;
    let live: Value = serde_json::from_str(text.success()?)?;
    let managers = live["metadata"]["managedFields"].as_array().context("managers")?;
    let ours = managers
        .iter()
        .find(|entry| entry["manager"] == "tailnet-webhook" && entry["operation"] == "Apply")
        .context("ours")?;
    let entry = &ours["fieldsV1"]["f:webhooks"]["k:{\"name\":\"validate.tsunaro.io\"}"];
    let fields: Vec<_> = entry.as_object().context("fields")?.keys().cloned().collect();
    assert_eq!(fields, [".", "f:clientConfig", "f:name"], "{ours}");
    assert_eq!(
        entry["f:clientConfig"],
        json!({"f:caBundle": {}}),
        "only the CA is ours"
    );
    Ok(())
}

fn other_ca() -> String {
    Authority::generate(Timestamp::now())
        .map(|authority| authority.bundle())
        .unwrap_or_default()
}

#[test]
fn a_ca_rotation_fails_no_call() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    // A CA of which too little is left, and a next one that was announced two days ago: due for promotion.
    let now = Timestamp::now();
    let old = Authority::generate(now - SignedDuration::from_hours(24 * 300))?;
    let announced = old.after(Step::Announce, now - SignedDuration::from_hours(48))?;
    let data: serde_json::Map<String, Value> = announced
        .to_data()
        .into_iter()
        .map(|(key, value)| (key, json!(STANDARD.encode(value.0))))
        .collect();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET_NAME, "namespace": NAMESPACE}, "data": data});
    cluster.apply(&secret.to_string())?;
    let webhook = Webhook::installed(cluster, "webhook-rotation", 9443)?;
    wait_for("the next CA signs", Duration::from_secs(20), || {
        ensure!(
            webhook.process.log().contains("Promote"),
            "{}",
            webhook.process.log_tail(5)
        );
        Ok(())
    })?;
    let secret = cluster.kubectl(&["get", "secret", SECRET_NAME, "-n", NAMESPACE, "-o", "json"])?;
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_str(secret.success()?)?;
    let promoted = Authority::from_data(&secret.data.context("data")?)?;
    assert_eq!(Some(&promoted.current), announced.next.as_ref());
    assert_eq!(
        promoted.old.as_ref().map(|(certificate, _)| certificate.pem()),
        Some(old.current.certificate.pem())
    );
    for bundle in bundles(cluster)? {
        assert_eq!(
            bundle,
            promoted.bundle(),
            "both are trusted while leaves of the old one may live"
        );
    }
    // Long enough to see the leaf of the new CA.
    let calls = call_for(&caller, Duration::from_secs(8))?;
    assert!(calls > 50, "{calls}");
    assert!(
        webhook.process.log().contains("leaf certificate of the new CA"),
        "{}",
        webhook.process.log_tail(5)
    );
    Ok(())
}

/// Asks again and again, each time answered by the webhook.
fn call_for(caller: &Caller, time: Duration) -> Result<usize> {
    let deadline = Instant::now() + time;
    let mut calls = 0;
    while Instant::now() < deadline {
        let answer = caller.create(&site("called", &["192.0.2.0/24"], "not-yet"), true)?;
        assert!(answer.status.is_success(), "{answer:?}");
        assert!(
            answer.warnings.iter().any(|text| text.contains("[TN001]")),
            "{answer:?}"
        );
        calls += 1;
    }
    Ok(calls)
}

#[test]
fn a_ca_whose_secret_is_deleted_is_made_anew_and_fails_no_call() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-lost-ca", 9443)?;
    let before = bundles(cluster)?;
    cluster
        .kubectl(&["delete", "secret", SECRET_NAME, "-n", NAMESPACE])?
        .success()?;
    let calls = call_for(&caller, Duration::from_secs(9))?;
    assert!(calls > 50, "{calls}");
    assert!(
        webhook.process.log().contains("leaf certificate of the new CA"),
        "{}",
        webhook.process.log_tail(5)
    );
    for (bundle, old) in bundles(cluster)?.iter().zip(&before) {
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(
            bundle.contains(old.trim_end()) && !bundle.starts_with(old.trim_end()),
            "the old one is the second"
        );
    }
    assert_eq!(webhook.health("/readyz")?.0, 200);
    Ok(())
}
