//! Webhooks whose clock is 13 months ahead or behind: certificates go by the API server's clock, and nothing is rotated.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use tailnet_e2e::{Cluster, clock, one_at_a_time};
use tailnet_webhook::tls::authority::{Authority, CA_LIFE, SECRET_NAME};

use super::installed::{NAMESPACE, Webhook, cluster, kubeconfig};
use super::load::{Load, REPLICAS, install_balanced};
use super::start_over;

/// Thirteen months.
const DAYS: i32 = 395;

/// A webhook whose clock shows `days` more than the machine's.
fn shifted(cluster: &'static Cluster, name: &str, port: u16, days: i32) -> Result<Webhook> {
    let env = if days == 0 { Vec::new() } else { clock::shifted(days)? };
    Webhook::start_as(cluster, name, port, &[], &env, kubeconfig(cluster)?)
}

fn secret(cluster: &Cluster) -> Result<k8s_openapi::api::core::v1::Secret> {
    let text = cluster.kubectl(&["get", "secret", SECRET_NAME, "-n", NAMESPACE, "-o", "json"])?;
    Ok(serde_json::from_str(text.success()?)?)
}

/// The difference that the webhook reports, in days.
fn reported(webhook: &Webhook) -> Result<i64> {
    let (_, metrics) = webhook.health("/metrics")?;
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tailnet_webhook_clock_difference_seconds "))
        .with_context(|| metrics.clone())?;
    // A second more or less is no other day.
    Ok((value.parse::<f64>()? / 86_400.0).round() as i64)
}

/// Two replicas with these clocks, the first of which makes the CA: no write fails, and the CA is right and stays.
fn replicas(days: [i32; 2]) -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    start_over(cluster)?;
    let name = format!("webhook-clock{:+}{:+}", days[0], days[1]);
    let mut one = shifted(cluster, &format!("{name}-a"), REPLICAS[0], days[0])?;
    one.install(cluster, |_| {})?;
    one.wait_ready()?;
    let mut two = shifted(cluster, &format!("{name}-b"), REPLICAS[1], days[1])?;
    install_balanced(cluster, [&mut one, &mut two])?;

    let before = secret(cluster)?;
    let authority = Authority::from_data(before.data.as_ref().context("data")?)?;
    let life = authority.current.certificate.not_after.duration_since(Timestamp::now());
    assert!(
        (life - CA_LIFE).abs() < SignedDuration::from_hours(1),
        "it ends a year from now: {life}"
    );

    let load = Load::start(cluster)?;
    load.wait_for_more(200)?;
    // The rounds that would rotate in a loop: each change of the Secret wakes both.
    for round in 0..3 {
        let label = format!("round={round}");
        cluster
            .kubectl(&["label", "--overwrite", "secret", SECRET_NAME, "-n", NAMESPACE, &label])?
            .success()?;
        load.wait_for_more(60)?;
    }
    let leaves = load.leaves();
    load.end(&format!("clocks {days:?} days off"))?;
    assert_eq!(leaves, [1, 1], "nobody made a new leaf");
    assert_eq!(secret(cluster)?.data, before.data, "nobody touched the CA");
    for (webhook, days) in [(&one, days[0]), (&two, days[1])] {
        let log = webhook.process.log();
        assert!(!log.contains("CA rotation"), "{log}");
        ensure!(
            reported(webhook)? == i64::from(-days),
            "{} for {days}",
            reported(webhook)?
        );
        assert_eq!(log.contains("clock differs from the API server's"), days != 0, "{log}");
        let (code, text) = webhook.health("/readyz")?;
        assert_eq!(code, 200, "{text}");
        // A week, nearly, whatever the machine says.
        let (_, metrics) = webhook.health("/metrics")?;
        assert!(
            metrics.contains("tailnet_webhook_certificate_expiry_seconds 60"),
            "{metrics}"
        );
        // The audit stream tells the time of the API server too.
        let lines = webhook.audit_lines();
        let time = lines.last().and_then(|line| line["time"].as_str()).context("a line")?;
        let age = Timestamp::now().duration_since(time.parse()?);
        assert!(age.abs() < SignedDuration::from_hours(1), "{time}");
    }
    Ok(())
}

#[test]
fn a_replica_that_is_ahead_makes_a_sound_ca_and_fails_no_write() -> Result<()> {
    replicas([DAYS, 0])
}

#[test]
fn replicas_that_are_behind_and_ahead_agree_and_fail_no_write() -> Result<()> {
    replicas([-DAYS, DAYS])
}
