//! The webhook's own CA and certificates: one CA for all replicas, in both configurations, rotated and lost without a failed
//! call.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};
use tailnet_webhook::tls::authority::{Authority, CA_LIFE, SECRET_NAME, Step};
use tailnet_webhook::tls::trusted::certificates;

use super::installed::{NAMESPACE, Webhook, cluster};
use super::load::{Load, REPLICAS, install_balanced};
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

/// Writes the Secret as it is, whatever it held.
fn put(cluster: &Cluster, authority: &Authority, verb: &str) -> Result<()> {
    let data: serde_json::Map<String, Value> = authority
        .to_data()
        .into_iter()
        .map(|(key, value)| (key, json!(STANDARD.encode(value.0))))
        .collect();
    let metadata = json!({"name": SECRET_NAME, "namespace": NAMESPACE});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data});
    let done = cluster.kubectl_with_input(&[verb, "-f", "-"], &secret.to_string())?;
    done.success().map(drop)
}

fn stored(cluster: &Cluster) -> Result<Authority> {
    let text = cluster.kubectl(&["get", "secret", SECRET_NAME, "-n", NAMESPACE, "-o", "json"])?;
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_str(text.success()?)?;
    Ok(Authority::from_data(&secret.data.context("data")?)?)
}

/// Two replicas that the API server calls in turn.
fn two_replicas(cluster: &'static Cluster, name: &str) -> Result<[Webhook; 2]> {
    let mut one = Webhook::start(cluster, &format!("{name}-a"), REPLICAS[0])?;
    let mut two = Webhook::start(cluster, &format!("{name}-b"), REPLICAS[1])?;
    install_balanced(cluster, [&mut one, &mut two])?;
    Ok([one, two])
}

fn wait_logged(webhooks: &[Webhook; 2], text: &str, all: bool) -> Result<()> {
    wait_for(&format!("{text:?} is in the log"), Duration::from_secs(60), || {
        let found = webhooks.iter().filter(|one| one.process.log().contains(text)).count();
        let tails = || webhooks.iter().map(|one| one.process.log_tail(3)).collect::<String>();
        ensure!(found >= if all { 2 } else { 1 }, "{}", tails());
        Ok(())
    })
}

#[test]
fn a_leaf_renewal_fails_no_write() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    start_over(cluster)?;
    // So little is left of the CA, and so of any leaf, that every look at it makes a new leaf. Its successor was announced
    // an hour ago and may not sign yet.
    let now = Timestamp::now();
    let old = Authority::generate(now - CA_LIFE + SignedDuration::from_hours(48))?;
    let announced = old.after(Step::Announce, now - SignedDuration::from_hours(1))?;
    put(cluster, &announced, "create")?;
    let webhooks = two_replicas(cluster, "webhook-renewal")?;
    let load = Load::start(cluster)?;
    load.wait_for_more(50)?;
    for round in 0..5 {
        let before = load.leaves();
        let label = format!("round={round}");
        cluster
            .kubectl(&["label", "--overwrite", "secret", SECRET_NAME, "-n", NAMESPACE, &label])?
            .success()?;
        wait_for("both replicas show a new leaf", Duration::from_secs(60), || {
            let now = load.leaves();
            ensure!(
                now.iter().zip(before).all(|(now, before)| *now > before),
                "{before:?}, now {now:?}"
            );
            Ok(())
        })?;
        load.wait_for_more(50)?;
    }
    load.end("leaf renewal")?;
    assert!(webhooks.iter().all(|one| !one.process.log().contains("CA rotation")));
    Ok(())
}

#[test]
fn a_ca_rotation_fails_no_write() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    start_over(cluster)?;
    // A CA of which too little is left: its successor is announced at once.
    let now = Timestamp::now();
    let old = Authority::generate(now - SignedDuration::from_hours(24 * 300))?;
    put(cluster, &old, "create")?;
    let webhooks = two_replicas(cluster, "webhook-rotation")?;
    let load = Load::start(cluster)?;
    wait_logged(&webhooks, "Announce", false)?;
    load.wait_for_more(50)?;
    assert_eq!(stored(cluster)?.current, old.current, "the old one still signs");
    // Two days pass: the next one is due for promotion.
    let announced = old.after(Step::Announce, now - SignedDuration::from_hours(48))?;
    put(cluster, &announced, "replace")?;
    wait_logged(&webhooks, "Promote", false)?;
    let promoted = stored(cluster)?;
    assert_eq!(Some(&promoted.current), announced.next.as_ref());
    assert_eq!(
        promoted.old.as_ref().map(|(certificate, _)| certificate.pem()),
        Some(old.current.certificate.pem())
    );
    for bundle in bundles(cluster)? {
        let found = certificates(&bundle);
        let both = certificates(&promoted.bundle());
        assert_eq!(found.len(), both.len(), "{bundle}");
        let trusted = both.iter().all(|one| found.contains(one));
        assert!(
            trusted,
            "both are trusted while leaves of the old one may live: {bundle}"
        );
    }
    wait_logged(&webhooks, "leaf certificate of the new CA", true)?;
    load.wait_for_more(50)?;
    // And eight more: the old one is forgotten.
    let mut last = promoted;
    if let Some((_, until)) = &mut last.old {
        *until = Timestamp::now() - SignedDuration::from_hours(1);
    }
    put(cluster, &last, "replace")?;
    wait_logged(&webhooks, "DropOld", false)?;
    load.wait_for_more(100)?;
    assert!(stored(cluster)?.old.is_none());
    load.end("CA rotation")
}

#[test]
fn a_ca_whose_secret_is_deleted_or_put_back_fails_no_write() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    start_over(cluster)?;
    let webhooks = two_replicas(cluster, "webhook-lost-ca")?;
    let (first, before) = (stored(cluster)?, bundles(cluster)?);
    let load = Load::start(cluster)?;
    load.wait_for_more(50)?;
    cluster
        .kubectl(&["delete", "secret", SECRET_NAME, "-n", NAMESPACE])?
        .success()?;
    wait_logged(&webhooks, "leaf certificate of the new CA", true)?;
    load.wait_for_more(50)?;
    for (bundle, old) in bundles(cluster)?.iter().zip(&before) {
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(
            bundle.contains(old.trim_end()) && !bundle.starts_with(old.trim_end()),
            "the old one is the second"
        );
    }
    let second = stored(cluster)?;
    assert_ne!(second.current, first.current);
    // A backup of the operator namespace is put back, and the CA of the time.
    let leaves = load.leaves();
    put(cluster, &first, "replace")?;
    wait_for(
        "both replicas show leaves of the restored CA",
        Duration::from_secs(60),
        || {
            let now = load.leaves();
            ensure!(
                now.iter().zip(leaves).all(|(now, before)| *now > before),
                "{leaves:?}, now {now:?}"
            );
            Ok(())
        },
    )?;
    load.wait_for_more(100)?;
    assert_eq!(stored(cluster)?.current, first.current);
    load.end("CA Secret deleted and put back")?;
    assert!(
        webhooks
            .iter()
            .all(|one| one.health("/readyz").is_ok_and(|(code, _)| code == 200))
    );
    Ok(())
}
