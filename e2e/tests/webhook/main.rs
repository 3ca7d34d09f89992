//! The webhook process against a real API server: what users see, its certificates, and what bad days do to it.

#[path = "../installed/mod.rs"]
mod installed;

mod arming;
mod audit;
mod certificates;
mod clocks;
mod corpus;
mod given_certificates;
mod load;
mod passwords;

mod organisation;
mod rights;
mod verbs;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use installed::{Caller, NAMESPACE, Webhook, clear, cluster, egress, item, site, tailnet, uninstall};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_e2e::{Cluster, Exit, one_at_a_time, wait_for};
use tailnet_webhook::tls::authority::SECRET_NAME;

/// Waits until the webhook's watches have what the test has just written.
fn wait_known(caller: &Caller, tailnet: &str) -> Result<()> {
    wait_for(
        &format!("the webhook knows Tailnet {tailnet}"),
        Duration::from_secs(10),
        || {
            let answer = caller.create(&site("known-yet", &["203.0.113.0/24"], tailnet), true)?;
            ensure!(
                answer.warnings.iter().all(|text| !text.contains("[TN001]")),
                "{answer:?}"
            );
            Ok(())
        },
    )
}

/// Waits until a dry run of `object` is refused by the rule `id`: the webhook's watches have what that takes.
fn wait_refused(caller: &Caller, object: &Value, id: &str) -> Result<()> {
    wait_for(
        &format!("a dry run is refused by {id}"),
        Duration::from_secs(10),
        || {
            let answer = caller.create(object, true)?;
            ensure!(
                answer.status == 422 && answer.message().contains(&format!("[{id}]")),
                "{answer:?}"
            );
            Ok(())
        },
    )
}

fn start_over(cluster: &Cluster) -> Result<Caller> {
    uninstall(cluster)?;
    clear(cluster)?;
    cluster
        .kubectl(&["delete", "secret", SECRET_NAME, "-n", NAMESPACE, "--ignore-not-found"])?
        .success()?;
    Caller::new(cluster)
}

#[test]
fn kubectl_shows_every_fault_and_a_dry_run_shows_the_same() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let _webhook = Webhook::installed(cluster, "webhook-apply", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    cluster.apply(&egress("first", "corp").to_string())?;
    wait_known(&caller, "corp")?;

    // The alias belongs to another egress, and egress objects live in the operator namespace only.
    let mut wrong = egress("second", "corp");
    wrong["metadata"]["namespace"] = json!("default");
    wrong["spec"]["targets"][0]["aliases"] = json!(["first.db.example.net"]);
    let text = cluster.apply_refused(&wrong.to_string())?;
    assert!(text.contains("The TailnetEgress \"second\" is invalid"), "{text}");
    assert!(
        text.contains("[TN201]") && text.contains("[TN206]"),
        "all faults at once: {text}"
    );
    assert!(
        text.contains("TailnetEgress tailnet-system/first"),
        "names the holder: {text}"
    );

    let dry = cluster.kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], &wrong.to_string())?;
    assert_eq!(dry.failure()?, text, "a dry run gives the same answer");

    let right = egress("third", "corp");
    let dry = cluster.kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], &right.to_string())?;
    assert!(dry.success()?.contains("created (server dry run)"), "{dry:?}");
    assert_eq!(caller.get(&right)?.status, 404, "nothing was stored");
    assert_eq!(caller.get(&wrong)?.status, 404);

    let answer = caller.create(&wrong, false)?;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.body["reason"], "Invalid");
    assert_eq!(
        answer.causes().len(),
        answer.message().lines().count(),
        "one line per cause: {answer:?}"
    );
    assert!(
        answer
            .message()
            .starts_with("admission webhook \"validate.tsunaro.io\" denied the request: "),
        "{answer:?}"
    );
    assert_eq!(caller.create(&right, false)?.status, 201);
    Ok(())
}

#[test]
fn a_missing_reference_warns_and_is_stored() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let _webhook = Webhook::installed(cluster, "webhook-warn", 9443)?;
    let early = egress("early", "not-yet");
    let answer = caller.create(&early, false)?;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(
        answer.warnings.iter().any(|text| text.contains("[TN001]")),
        "{answer:?}"
    );
    Ok(())
}

#[test]
fn defaults_are_filled_in_once() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-defaults", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    let mut object = egress("plain", "corp");
    object["spec"].as_object_mut().context("spec")?.remove("tag");
    let mutations = || {
        webhook
            .audit_lines()
            .iter()
            .filter(|line| line["endpoint"] == "mutate" && line["name"] == "plain")
            .count()
    };
    let dry = caller.create(&object, true)?;
    assert_eq!(dry.body["spec"]["tag"], "tag:egress-plain", "{dry:?}");
    let first = cluster.apply(&object.to_string())?;
    assert!(first.contains("created"), "{first}");
    assert_eq!(caller.get(&object)?.body["spec"]["tag"], "tag:egress-plain");
    wait_for("the audit line is written", Duration::from_secs(5), || {
        ensure!(
            mutations() == 2,
            "{} mutations: the dry run and the real one",
            mutations()
        );
        Ok(())
    })?;
    let second = cluster.apply(&object.to_string())?;
    assert!(second.contains("unchanged"), "{second}");
    // An update that has its defaults is not even sent to /mutate.
    let mut live = caller.get(&object)?.body;
    live["spec"]["replicas"] = json!(2);
    assert_eq!(caller.update_as(&live, false, None)?.status, 200);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(mutations(), 2);
    Ok(())
}

#[test]
fn the_api_servers_audit_log_has_the_verdict() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-audit", 9443)?;
    let mut wrong = egress("audited", "not-yet");
    wrong["metadata"]["namespace"] = json!("default");
    let groups = ["team-a".to_owned(), "system:masters".to_owned()];
    let answer = caller.create_as(&wrong, false, Some(("alice", &groups)))?;
    assert_eq!(answer.status, 422, "{answer:?}");
    wait_for("the event is in the audit log", Duration::from_secs(10), || {
        let events = cluster.audit_log()?;
        let event = events
            .iter()
            .find(|event| event["impersonatedUser"]["username"] == "alice")
            .context("no event yet")?;
        ensure!(event["responseStatus"]["code"] == 422, "{event}");
        let annotations = &event["annotations"];
        ensure!(annotations["validate.tsunaro.io/decision"] == "deny", "{annotations}");
        ensure!(annotations["validate.tsunaro.io/rules"] == "TN201", "{annotations}");
        ensure!(
            annotations["validate.tsunaro.io/warned-rules"] == "TN001",
            "{annotations}"
        );
        ensure!(
            annotations["validate.tsunaro.io/fields"]
                .as_str()
                .is_some_and(|text| text.contains("metadata.namespace")),
            "{annotations}"
        );
        Ok(())
    })?;
    let lines = webhook.audit_lines();
    let line = lines
        .iter()
        .find(|line| line["name"] == "audited")
        .context("the webhook's own line")?;
    assert_eq!(
        (&line["user"], &line["decision"], &line["dryRun"]),
        (&json!("alice"), &json!("deny"), &json!(false))
    );
    assert!(
        line["groups"]
            .as_array()
            .is_some_and(|groups| groups.contains(&json!("team-a")))
    );
    let (_, metrics) = webhook.health("/metrics")?;
    assert!(
        metrics.contains("tailnet_webhook_denials_total{rule=\"TN201\",kind=\"TailnetEgress\",operation=\"CREATE\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("tailnet_webhook_certificate_expiry_seconds 6"),
        "a week, nearly: {metrics}"
    );
    Ok(())
}

#[test]
fn an_api_server_that_restarts_is_followed_again() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-restart", 9443)?;
    cluster.daemons().stop("kube-apiserver")?;
    wait_for("a look at the certificates has failed", Duration::from_secs(45), || {
        ensure!(
            webhook.process.log().contains("certificates are not up to date"),
            "not yet"
        );
        Ok(())
    })?;
    // Not reachable is no reason to be unready: both replicas would be, and calls fail when the API server is back.
    let (code, text) = webhook.health("/readyz")?;
    assert_eq!(code, 200, "{text}");
    cluster.restart_apiserver()?;
    webhook.wait_called(cluster)?;
    let caller = Caller::new(cluster)?;
    cluster.apply(&tailnet("after").to_string())?;
    wait_known(&caller, "after")?;
    assert_eq!(webhook.health("/readyz")?.0, 200);
    assert!(webhook.process.is_running());
    // The watches came back by themselves, and what they missed is known.
    cluster.apply(&site("lab", &["198.51.100.0/24"], "after").to_string())?;
    wait_refused(&caller, &site("lab-2", &["198.51.100.0/25"], "after"), "TN403")
}

#[test]
fn a_webhook_that_is_down_says_so_and_keeps_nothing_from_going() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-down", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    let mut kept = site("kept", &["198.51.100.0/24"], "corp");
    kept["metadata"]["finalizers"] = json!(["tsunaro.io/gateway-teardown"]);
    assert_eq!(caller.create(&kept, false)?.status, 201);
    assert_eq!(caller.create(&egress("going", "corp"), false)?.status, 201);
    webhook.process.kill()?;

    let text = cluster.apply_refused(&site("new", &["203.0.113.0/24"], "corp").to_string())?;
    assert!(
        text.contains("failed calling webhook \"validate.tsunaro.io\""),
        "{text}"
    );
    // Status is the operator's, and it must go on.
    let status = json!({"status": {"conditions": []}});
    let answer = caller.ask(
        Method::PATCH,
        &format!("{}/status", item(&egress("going", "corp"))?),
        Some(&status),
        None,
    )?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        caller.delete(&egress("going", "corp"))?.status,
        200,
        "a delete needs no webhook"
    );
    assert_eq!(caller.delete(&kept)?.status, 200);
    assert!(
        caller.get(&kept)?.body["metadata"]["deletionTimestamp"].is_string(),
        "its finalizer holds it"
    );
    // A change of what is being deleted is refused, the removal of its finalizer is not.
    let change = json!({"spec": {"prefixes": ["203.0.113.0/24"]}});
    let answer = caller.ask(Method::PATCH, &item(&kept)?, Some(&change), None)?;
    assert_eq!(answer.status, 500, "{answer:?}");
    let answer = caller.ask(
        Method::PATCH,
        &item(&kept)?,
        Some(&json!({"metadata": {"finalizers": null}})),
        None,
    )?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(caller.get(&kept)?.status, 404);
    Ok(())
}

#[test]
fn what_was_deleted_a_moment_ago_holds_nothing() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-delete-create", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    for round in 0..40 {
        let (first, second) = (
            site("first", &["198.51.100.0/24"], "corp"),
            site("second", &["198.51.100.0/25"], "corp"),
        );
        let answer = caller.create(&first, false)?;
        assert_eq!(answer.status, 201, "round {round}: {answer:?}");
        assert_eq!(caller.delete(&first)?.status, 200);
        let answer = caller.create(&second, false)?;
        assert_eq!(answer.status, 201, "round {round}: {answer:?}");
        assert_eq!(caller.delete(&second)?.status, 200);
    }
    // A holder that is there is no obstacle to this test: it must still deny.
    assert_eq!(
        caller
            .create(&site("first", &["198.51.100.0/24"], "corp"), false)?
            .status,
        201
    );
    wait_for("an overlap is denied", Duration::from_secs(5), || {
        let answer = caller.create(&site("second", &["198.51.100.0/25"], "corp"), true)?;
        ensure!(answer.status == 422, "{answer:?}");
        Ok(())
    })?;
    let (_, metrics) = webhook.health("/metrics")?;
    assert!(
        metrics.contains("tailnet_webhook_holder_reads_total{result=\"present\"}"),
        "{metrics}"
    );
    Ok(())
}

#[test]
fn a_stop_signal_ends_it_after_the_delay_and_without_a_lost_audit_line() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-stop", 9443)?;
    // Its own requests only, each once: a caller from an earlier test may still be at work, and an API server whose
    // connection ends sends the same request (with the same uid) again.
    let written = || -> std::collections::BTreeSet<String> {
        let lines = webhook.audit_lines();
        let ours = lines.iter().filter(|line| line["name"] == "late");
        ours.map(|line| line["uid"].to_string()).collect()
    };
    assert!(written().is_empty());
    webhook.process.signal(Signal::SIGTERM)?;
    let started = Instant::now();
    wait_for("it is unready", Duration::from_secs(1), || {
        let (code, text) = webhook.health("/readyz")?;
        ensure!(code == 503 && text.contains("stopping"), "{text}");
        Ok(())
    })?;
    // What is installed meanwhile is not for one that goes to arm.
    arming::open_by_hand(cluster)?;
    // Unready, and still answering.
    let mut calls = 0;
    while started.elapsed() < Duration::from_millis(700) {
        let answer = caller.create(&site("late", &["192.0.2.0/24"], "not-yet"), true)?;
        assert!(answer.status.is_success(), "{answer:?}");
        calls += 1;
    }
    assert!(calls > 5, "{calls}");
    assert_eq!(webhook.process.wait(Duration::from_secs(10))?, Exit::Code(0));
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    assert_eq!(written().len(), calls);
    assert_eq!(arming::policy(cluster)?, "Ignore");
    Ok(())
}

#[test]
fn the_role_is_enough_and_nothing_is_refused() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-role", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    let log = webhook.process.log();
    assert!(!log.contains("forbidden") && !log.contains("Forbidden"), "{log}");
    // What it must not do.
    let account = format!("system:serviceaccount:{NAMESPACE}:tailnet-webhook");
    for wrong in [
        ["get", "secrets", "-n", NAMESPACE],
        ["delete", "secrets", "-n", NAMESPACE],
        ["list", "secrets", "-n", "default"],
        ["update", "tailnets", "-n", "default"],
        ["get", "configmaps", "-n", "default"],
        ["create", "validatingwebhookconfigurations", "-n", "default"],
    ] {
        let mut args = vec!["auth", "can-i", "--as", &account];
        args.extend(wrong);
        let can = cluster.kubectl(&args)?;
        assert!(!can.ok() && can.stdout.trim() == "no", "{wrong:?}: {can:?}");
    }
    for kind in Kind::ALL {
        let can = cluster.kubectl(&[
            "auth",
            "can-i",
            "--as",
            &account,
            "watch",
            kind.crd_name().as_str(),
            "--all-namespaces",
        ])?;
        assert_eq!(can.success()?, "yes");
    }
    Ok(())
}
