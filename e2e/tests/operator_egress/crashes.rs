//! The operator dies, and finds what it left and what others did meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use serde_json::json;
use tailnet_crds::TailnetEgress;
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::checks::{SOON, live_keys, wait_complete, wait_condition, wait_tailnet_ready};
use crate::operating::{HOSTS, Kube, Operator, apply, cluster, egress, start_over};

#[test]
fn killed_at_any_step_it_recovers() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    type Step = (&'static str, fn(&Kube, &str) -> Result<bool>);
    let steps: [Step; 7] = [
        ("claims", |kube, name| {
            let claims = kube.find::<ConfigMap>("tailnet-claims-demo")?;
            Ok(claims
                .and_then(|claims| claims.data)
                .is_some_and(|data| data["claims"].contains(&format!("service:{name}"))))
        }),
        ("intention", |kube, name| {
            let ledger = kube.find::<Secret>("tailnet-key-ledger")?;
            let text = ledger
                .and_then(|ledger| ledger.data?.remove("ledger.json"))
                .map(|text| text.0)
                .unwrap_or_default();
            Ok(String::from_utf8_lossy(&text).contains(&format!("tag:egress-{name}")))
        }),
        ("key", |kube, name| {
            Ok(kube
                .find::<Secret>(&format!("tailnet-egress-{name}-authkey"))?
                .is_some())
        }),
        ("configuration", |kube, name| {
            Ok(kube
                .find::<ConfigMap>(&format!("tailnet-egress-{name}-config"))?
                .is_some())
        }),
        ("policy", |kube, name| {
            Ok(kube.find::<NetworkPolicy>(&format!("tailnet-egress-{name}"))?.is_some())
        }),
        ("deployment", |kube, name| {
            Ok(kube.find::<Deployment>(&format!("tailnet-egress-{name}"))?.is_some())
        }),
        ("service", |kube, name| Ok(kube.find::<Service>(name)?.is_some())),
    ];
    for (step, reached) in steps {
        let operator = Operator::start(cluster, &format!("operator-killed-{step}"))?;
        wait_tailnet_ready(&kube)?;
        kube.create::<TailnetEgress>(&egress(step, &[(step, "192.0.2.10", 5432)]))?;
        // No pause between two looks: the kill should come as close behind the step as can be.
        let deadline = Instant::now() + SOON;
        while !reached(&kube, step)? {
            if Instant::now() > deadline {
                bail!("step {step} was never reached; log: {}", operator.process.log_tail(5));
            }
        }
        operator.kill()?;
        let operator = Operator::start(cluster, &format!("operator-after-{step}"))?;
        wait_complete(&kube, step)?;
        wait_condition(&kube, step, "KeyReady", "True", "KeyReady")?;
        operator.kill()?;
    }
    // However often it was killed: one key per object that opens anything, the one in its Secret.
    let operator = Operator::start(cluster, "operator-after-all")?;
    for (step, _) in steps {
        let tag = format!("tag:egress-{step}");
        wait_for(
            &format!("one live key is left for {tag}"),
            Duration::from_secs(200),
            || {
                let keys = live_keys(&kube, cluster, &tag)?;
                ensure!(keys.len() == 1, "{} live keys", keys.len());
                let secret: Secret = kube.get(&format!("tailnet-egress-{step}-authkey"))?;
                let id = secret.annotations().get("tsunaro.io/key-id").cloned();
                ensure!(
                    id.as_deref() == Some(keys[0].id.as_str()),
                    "the live key is not the Secret's"
                );
                Ok(())
            },
        )?;
    }
    operator.stop()
}

#[test]
fn deleted_while_the_operator_is_down_nothing_is_left() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-before")?;
    let mut wanted = egress("team-a", &[("remote-db", "192.0.2.10", 5432)]);
    wanted["spec"]["targets"][0]["aliases"] = json!(["db.site.example.net"]);
    apply(cluster, &[wanted])?;
    wait_complete(&kube, "team-a")?;
    wait_condition(&kube, "team-a", "DNSReady", "True", "Published")?;
    assert_eq!(live_keys(&kube, cluster, "tag:egress-team-a")?.len(), 1);
    operator.kill()?;
    kube.delete::<TailnetEgress>("team-a")?;
    wait_for("the children are collected", SOON, || {
        ensure!(
            kube.find::<Deployment>("tailnet-egress-team-a")?.is_none(),
            "Deployment"
        );
        ensure!(kube.find::<Service>("remote-db")?.is_none(), "Service");
        ensure!(
            kube.find::<Secret>("tailnet-egress-team-a-authkey")?.is_none(),
            "Secret"
        );
        Ok(())
    })?;
    assert_eq!(
        live_keys(&kube, cluster, "tag:egress-team-a")?.len(),
        1,
        "nobody was there to expire it"
    );

    let operator = Operator::start(cluster, "operator-back")?;
    wait_for("the key is expired, the alias and the claims are gone", SOON, || {
        ensure!(
            live_keys(&kube, cluster, "tag:egress-team-a")?.is_empty(),
            "the key is alive"
        );
        let hosts = kube.get::<ConfigMap>(HOSTS)?.data.context("data")?;
        ensure!(!hosts["hosts"].contains("db.site.example.net"), "{}", hosts["hosts"]);
        let claims = kube.get::<ConfigMap>("tailnet-claims-demo")?.data.context("data")?;
        ensure!(!claims["claims"].contains("team-a"), "{}", claims["claims"]);
        Ok(())
    })?;
    operator.stop()
}
