//! The moments between a key in Headscale, its Secret and its entry in the ledger: whatever is cut off there, one key that
//! works is left, the one in the Secret, and it is left soon.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};
use tailnet_crds::TailnetEgress;
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};
use tailnet_headscale::Id;

use crate::checks::{live_keys, wait_complete, wait_condition, wait_tailnet_ready};
use crate::operating::{Kube, Operator, TAILNET, apply, cluster, egress, start_over, tailnet};
use crate::scripted_proxy::Proxy;

/// Until then a key that nobody has must be gone. A Pod may start with what was in a Secret for five minutes: that this is
/// much shorter is the point.
const AT_ONCE: Duration = Duration::from_secs(60);

const LEDGER: &str = "tailnet-key-ledger";

fn ledger_secret(kube: &Kube) -> Result<(Secret, Value)> {
    let secret: Secret = kube.get(LEDGER)?;
    let text = secret.data.as_ref().and_then(|data| data.get("ledger.json"));
    let ledger = serde_json::from_slice(&text.context("ledger.json")?.0)?;
    Ok((secret, ledger))
}

/// The entries of the ledger for egress `name`.
fn entries(kube: &Kube, name: &str) -> Result<Vec<Value>> {
    let (_, ledger) = ledger_secret(kube)?;
    let all = ledger["entries"].as_array().cloned().unwrap_or_default();
    Ok(all.into_iter().filter(|entry| entry["owner"]["name"] == name).collect())
}

/// Changes the one entry of egress `name` while no operator runs.
fn edit_entry(kube: &Kube, name: &str, change: impl Fn(&mut Value)) -> Result<()> {
    let (mut secret, mut ledger) = ledger_secret(kube)?;
    let all = ledger["entries"].as_array_mut().context("entries")?;
    all.iter_mut()
        .filter(|entry| entry["owner"]["name"] == name)
        .for_each(change);
    let text = ByteString(serde_json::to_vec(&ledger)?);
    secret
        .data
        .get_or_insert_default()
        .insert("ledger.json".to_owned(), text);
    let api = kube.api::<Secret>();
    kube.block_on(api.replace(LEDGER, &PostParams::default(), &secret))?;
    Ok(())
}

/// Headscale's id of the key in the Secret of egress `name`.
fn key_id(kube: &Kube, name: &str) -> Result<String> {
    let secret: Secret = kube.get(&format!("tailnet-egress-{name}-authkey"))?;
    secret.annotations().get("tsunaro.io/key-id").cloned().context("key-id")
}

/// Waits until the only key for `tag` that opens anything is the one in the Secret of egress `name`, and the ledger says
/// the same; gives its id.
fn wait_one_key(kube: &Kube, cluster: &Cluster, name: &str, tag: &str) -> Result<String> {
    wait_for(&format!("{name} has one key"), AT_ONCE, || {
        let id = key_id(kube, name)?;
        let live = live_keys(kube, cluster, tag)?;
        ensure!(live.len() == 1 && live[0].id.as_str() == id, "Secret {id}; {live:?}");
        let entries = entries(kube, name)?;
        ensure!(
            entries.len() == 1 && entries[0]["stage"] == "Active" && entries[0]["id"] == json!(id),
            "{entries:?}"
        );
        Ok(id)
    })
}

/// The Tailnet, reached through `proxy`.
fn apply_tailnet_behind(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    let mut behind = tailnet(cluster, TAILNET)?;
    behind["spec"]["api"]["endpoint"] = json!(proxy.endpoint());
    apply(cluster, &[behind])
}

#[test]
fn killed_between_the_key_and_its_secret() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let proxy = Proxy::start(cluster)?;
    apply_tailnet_behind(cluster, &proxy)?;
    let operator = Operator::start(cluster, "operator-held")?;
    wait_tailnet_ready(&kube)?;
    proxy.hold();
    kube.create::<TailnetEgress>(&egress("window", &[("window", "192.0.2.10", 5432)]))?;
    let orphan = proxy.wait_kept_back(1)?;
    operator.kill()?;
    proxy.pass();
    let live = live_keys(&kube, cluster, "tag:egress-window")?;
    assert_eq!(
        live.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(),
        [orphan.as_str()],
        "Headscale has made the key"
    );
    assert!(kube.find::<Secret>("tailnet-egress-window-authkey")?.is_none());
    assert_eq!(entries(&kube, "window")?[0]["stage"], "Intended");

    let operator = Operator::start(cluster, "operator-after-held")?;
    wait_complete(&kube, "window")?;
    let id = wait_one_key(&kube, cluster, "window", "tag:egress-window")?;
    assert_ne!(id, orphan, "nobody knows the text of the first key");

    // The same without a kill: a gateway loses the answer.
    proxy.lose_one();
    kube.create::<TailnetEgress>(&egress("lost", &[("lost", "192.0.2.10", 5432)]))?;
    let orphan = proxy.wait_kept_back(2)?;
    wait_complete(&kube, "lost")?;
    assert_ne!(wait_one_key(&kube, cluster, "lost", "tag:egress-lost")?, orphan);
    operator.stop()
}

#[test]
fn killed_between_the_secret_and_the_ledger() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-before-cut")?;
    kube.create::<TailnetEgress>(&egress("cut", &[("cut", "192.0.2.10", 5432)]))?;
    wait_complete(&kube, "cut")?;
    let id = wait_one_key(&kube, cluster, "cut", "tag:egress-cut")?;
    let before: Secret = kube.get("tailnet-egress-cut-authkey")?;
    operator.kill()?;
    // What the ledger is in that moment.
    edit_entry(&kube, "cut", |entry| {
        entry["stage"] = json!("Intended");
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("id");
            entry.remove("prefix");
        }
    })?;
    let operator = Operator::start(cluster, "operator-after-cut")?;
    assert_eq!(wait_one_key(&kube, cluster, "cut", "tag:egress-cut")?, id);
    let after: Secret = kube.get("tailnet-egress-cut-authkey")?;
    assert_eq!(
        after.resource_version(),
        before.resource_version(),
        "the key in use stays"
    );
    operator.kill()?;

    // A Secret that somebody restored holds a key which has been given up since: it is not used again.
    let client = cluster.headscale()?.client()?;
    kube.block_on(client.expire_preauth_key(&Id::new(&id)))?;
    edit_entry(&kube, "cut", |entry| entry["stage"] = json!("Expired"))?;
    let operator = Operator::start(cluster, "operator-after-restore")?;
    assert_ne!(wait_one_key(&kube, cluster, "cut", "tag:egress-cut")?, id);
    operator.stop()
}

/// A security rule takes the rights of an egress while one of its keys has not been answered yet: nothing is left of either.
#[test]
fn rights_that_are_withdrawn_with_a_key_on_its_way() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let proxy = Proxy::start(cluster)?;
    apply_tailnet_behind(cluster, &proxy)?;
    let operator = Operator::start(cluster, "operator-pending")?;
    let with_tag = |tag: &str| {
        let mut loser = egress("loser", &[("loser", "192.0.2.10", 5432)]);
        loser["spec"]["tag"] = json!(tag);
        apply(cluster, &[loser])
    };
    apply(cluster, &[egress("holder", &[("holder", "192.0.2.10", 5432)])])?;
    wait_complete(&kube, "holder")?;
    with_tag("tag:egress-loser")?;
    wait_complete(&kube, "loser")?;
    proxy.hold();
    with_tag("tag:egress-next")?;
    proxy.wait_kept_back(1)?;
    operator.kill()?;
    proxy.pass();
    for tag in ["tag:egress-loser", "tag:egress-next"] {
        assert_eq!(live_keys(&kube, cluster, tag)?.len(), 1, "{tag}");
    }

    with_tag("tag:egress-holder")?;
    let operator = Operator::start(cluster, "operator-withdraws")?;
    wait_condition(&kube, "loser", "Accepted", "False", "HeldByOther")?;
    wait_for("nothing is left of the loser's keys", AT_ONCE, || {
        for tag in ["tag:egress-loser", "tag:egress-next"] {
            let live = live_keys(&kube, cluster, tag)?;
            ensure!(live.is_empty(), "{live:?}");
        }
        let entries = entries(&kube, "loser")?;
        ensure!(entries.is_empty(), "{entries:?}");
        ensure!(kube.find::<Secret>("tailnet-egress-loser-authkey")?.is_none(), "Secret");
        ensure!(kube.find::<Deployment>("tailnet-egress-loser")?.is_none(), "Deployment");
        Ok(())
    })?;
    wait_one_key(&kube, cluster, "holder", "tag:egress-holder")?;

    // With a tag of its own it is let in again.
    with_tag("tag:egress-loser")?;
    wait_complete(&kube, "loser")?;
    wait_one_key(&kube, cluster, "loser", "tag:egress-loser")?;
    operator.stop()
}
