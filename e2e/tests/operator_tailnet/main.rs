//! The operator's Tailnet controller and its keys, against a real API server and a real Headscale.
//!
//! Every test has an operator namespace of its own, with exactly the rights that the operator's roles give, and one Tailnet;
//! they take turns, since an operator serves all Tailnets of a cluster.

mod access_policy;
mod bed;
mod cut_answers;
mod ledger_lost;
mod organisation;
mod second_headscale;
mod server_move;
mod sites;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bed::{Bed, PATIENCE, SERVER, join, kube_ca};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tailnet_e2e::wait_for;

#[test]
fn minting_facts_and_heartbeat() -> Result<()> {
    let bed = Bed::new("tailnet_minting")?;
    let bootstrap = bed.own_key()?;
    bed.bootstrap(&bootstrap)?;
    let before = bed.get(&["secret", "headscale-api"])?["metadata"]["resourceVersion"].clone();
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    for r#type in ["Accepted", "Reachable", "APIKeyReady", "DNSReady"] {
        assert_eq!(bed.condition(&["tailnet", &bed.tailnet], r#type)?.0, "True", "{type}");
    }
    let (prefix, key) = bed.working_key()?;
    assert_ne!(key, bootstrap);
    let info = bed
        .new_api_keys()?
        .into_iter()
        .find(|k| k.short_prefix() == prefix)
        .context("not in Headscale")?;
    let days = info
        .expiration
        .context("an end")?
        .duration_since(Timestamp::now())
        .as_hours()
        / 24;
    assert!((89..=90).contains(&days), "{days} days");
    assert_eq!(
        bed.get(&["secret", "headscale-api"])?["metadata"]["resourceVersion"],
        before,
        "the bootstrap Secret is read-only"
    );

    let status = bed.get(&["tailnet", &bed.tailnet])?["status"].clone();
    assert_eq!(status["apiKey"]["prefix"], prefix);
    assert_eq!(status["serverVersion"], "v0.29.3");
    assert_eq!(
        status["observed"]["factsConfigMaps"],
        json!([format!("tailnet-facts-{}-0", bed.tailnet)])
    );

    bed.block(bed.admin.put_policy("{\"tagOwners\": {\"tag:one\": []}}"))?;
    wait_for("the facts have the policy", PATIENCE, || {
        let facts = bed.facts()?;
        ensure!(facts.policy.tag_owners.contains_key("tag:one"), "{facts:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    // Without news the ConfigMap, the ledger and the Tailnet rest while the heartbeat moves.
    let lease = || -> Result<String> {
        let lease = bed.get(&["lease", &format!("tailnet-facts-{}", bed.tailnet)])?;
        Ok(lease["spec"]["renewTime"].as_str().context("no heartbeat")?.to_owned())
    };
    let versions = || -> Result<Vec<Value>> {
        let name = format!("tailnet-facts-{}-0", bed.tailnet);
        let objects = [
            bed.get(&["configmap", &name])?,
            bed.get(&["secret", "tailnet-key-ledger"])?,
            bed.get(&["tailnet", &bed.tailnet])?,
        ];
        Ok(objects
            .iter()
            .map(|object| object["metadata"]["resourceVersion"].clone())
            .collect())
    };
    std::thread::sleep(Duration::from_secs(2));
    let (first, rested) = (lease()?, versions()?);
    std::thread::sleep(Duration::from_secs(4));
    assert_ne!(lease()?, first, "the heartbeat moves");
    assert_eq!(versions()?, rested, "nothing else is written");

    // What somebody deletes or edits comes back.
    bed.delete(&["configmap", &format!("tailnet-facts-{}-0", bed.tailnet)])?;
    wait_for("the facts are back", PATIENCE, || bed.facts())?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[&bootstrap, &key])
}

#[test]
fn whose_turn_it_is() -> Result<()> {
    let bed = Bed::new("tailnet_turns")?;
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    let message = bed.expect("APIKeyReady", "False", "SecretNotFound")?;
    assert!(
        message.contains("headscale-api") && message.contains("headscale apikeys create"),
        "{message}"
    );
    assert_eq!(
        bed.expect("Ready", "False", "SecretNotFound")?,
        format!("APIKeyReady: {message}")
    );

    bed.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "headscale-api", "namespace": bed.ns()}, "stringData": {"other": "x"}}))?;
    bed.expect("APIKeyReady", "False", "SecretKeyMissing")?;
    bed.bootstrap("two words")?;
    bed.expect("APIKeyReady", "False", "APIKeyMalformed")?;
    let wrong = "hskey-api-abcdefghijkl-WRONGWRONGWRONGWRONG";
    bed.bootstrap(wrong)?;
    let message = bed.expect("APIKeyReady", "False", "APIKeyRefused")?;
    assert!(!message.contains("WRONG"), "{message}");
    let expired = bed.block(
        bed.admin
            .create_api_key(Timestamp::now() - SignedDuration::from_hours(1)),
    )?;
    bed.bootstrap(expired.secret().expose())?;
    bed.expect("APIKeyReady", "False", "APIKeyRefused")?;

    bed.tailnet(|spec| spec["api"]["caConfigMapRef"]["name"] = json!("no-such-map"))?;
    bed.expect("Reachable", "False", "CAUnusable")?;
    bed.expect("APIKeyReady", "Unknown", "ControlPlaneUnreachable")?;
    bed.tailnet(|spec| *spec = json!({"server": SERVER, "apiSecretRef": {"name": "headscale-api"}, "api": null}))?;
    let message = bed.expect("Reachable", "False", "CertificateNotTrusted")?;
    assert!(
        message.contains("trustedCA") && message.contains("caConfigMapRef"),
        "{message}"
    );
    for (endpoint, reason) in [
        ("https://no-such-host.example.net", "NameNotResolved"),
        ("https://control.example.net:9", "ConnectionRefused"),
    ] {
        bed.tailnet(|spec| spec["api"]["endpoint"] = json!(endpoint))?;
        bed.expect("Reachable", "False", reason)?;
    }
    // The API server itself: https, but not trusted. The health endpoint of etcd or another plain server is not Headscale.
    let node = bed.cluster.node_address();
    bed.apply(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-ca", "namespace": bed.ns()},
        "data": {"ca.crt": kube_ca(bed.cluster)?}}),
    )?;
    bed.tailnet(|spec| {
        spec["api"] = json!({"endpoint": format!("https://{node}:6443"), "caConfigMapRef": {"name": "kube-ca"}});
    })?;
    bed.expect("Reachable", "False", "UnexpectedAnswer")?;

    // Everything put right: no restart, no person.
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|spec| spec["api"]["endpoint"] = Value::Null)?;
    bed.ready()?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[wrong, expired.secret().expose()])
}

#[test]
fn rotation() -> Result<()> {
    let bed = Bed::new("tailnet_rotation")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    bed.egress("rot")?;
    let operator = bed.operator(&[
        "--api-key-lifetime-seconds",
        "12",
        "--preauth-key-lifetime-seconds",
        "20",
    ])?;
    bed.ready()?;
    let (mut working, mut joining) = (BTreeSet::new(), BTreeSet::new());
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(32) {
        let (prefix, key) = bed.working_key()?;
        // What the Secret holds works at every moment. One look back: it may have been replaced between read and try.
        if !bed
            .block(bed.headscale.client_with_key(&key)?.check_key())
            .unwrap_or(false)
        {
            let (again, key) = bed.working_key()?;
            ensure!(again != prefix, "the key in the Secret does not work");
            bed.block(bed.headscale.client_with_key(&key)?.check_key())?;
        }
        working.insert(prefix);
        if let Ok((id, _)) = bed.authkey("rot") {
            joining.insert(id);
        }
        std::thread::sleep(Duration::from_millis(400));
    }
    assert!(working.len() >= 4, "a working key lives 6 s: {working:?}");
    assert!(joining.len() >= 3, "a pre-auth key lives 10 s: {joining:?}");
    assert_eq!(bed.condition(&["tailnet", &bed.tailnet], "Ready")?.0, "True");

    wait_for("only the keys in use are left", PATIENCE, || {
        let (prefix, _) = bed.working_key()?;
        let mine: Vec<_> = bed
            .new_api_keys()?
            .into_iter()
            .filter(|k| k.short_prefix() == prefix)
            .collect();
        ensure!(mine.len() == 1, "{mine:?}");
        // The test's bootstrap key and the working key.
        let all = bed.new_api_keys()?.len();
        ensure!(all == 2, "{all} API keys");
        let (id, _) = bed.authkey("rot")?;
        let left: Vec<_> = bed.preauth_keys("rot")?.into_iter().map(|k| k.id.to_string()).collect();
        ensure!(left == [id.clone()], "{left:?}, in use {id}");
        Ok::<_, anyhow::Error>(())
    })?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[])
}

#[test]
fn keys_that_somebody_removes_in_headscale() -> Result<()> {
    let bed = Bed::new("tailnet_removed_keys")?;
    let bootstrap = bed.own_key()?;
    bed.bootstrap(&bootstrap)?;
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    let (prefix, _) = bed.working_key()?;
    bed.block(bed.admin.expire_api_key(&prefix))?;
    wait_for("another working key", PATIENCE, || {
        let (now, _) = bed.working_key()?;
        ensure!(now != prefix, "still {now}");
        Ok::<_, anyhow::Error>(())
    })?;
    bed.ready()?;
    // Without the bootstrap Secret what works goes on working.
    bed.delete(&["secret", "headscale-api"])?;
    std::thread::sleep(Duration::from_secs(3));
    bed.ready()?;
    // With both gone it is the user's turn; a new bootstrap key is all it takes.
    let (prefix, _) = bed.working_key()?;
    bed.block(bed.admin.expire_api_key(&prefix))?;
    bed.expect("APIKeyReady", "False", "SecretNotFound")?;
    bed.bootstrap(&bootstrap)?;
    bed.ready()?;
    // Somebody deletes the Secret: the key in it is not left behind.
    let (lost, _) = bed.working_key()?;
    bed.delete(&["secret", &format!("tailnet-{}-apikey", bed.tailnet)])?;
    wait_for("the lost key is gone and another works", PATIENCE, || {
        let (now, _) = bed.working_key()?;
        ensure!(now != lost, "still {now}");
        ensure!(
            bed.new_api_keys()?.iter().all(|k| k.short_prefix() != lost),
            "{lost} is still there"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[&bootstrap])
}

#[test]
fn the_limit_of_new_keys_holds() -> Result<()> {
    let bed = Bed::new("tailnet_limit")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&["--key-mints-per-hour", "2"])?;
    bed.ready()?;
    for _ in 0..2 {
        let (prefix, _) = bed.working_key()?;
        bed.block(bed.admin.expire_api_key(&prefix))?;
        wait_for("the key is replaced or the limit is told", PATIENCE, || {
            let replaced = bed.working_key()?.0 != prefix;
            let told = bed.condition(&["tailnet", &bed.tailnet], "APIKeyReady")?.1 == "TooManyKeys";
            ensure!(replaced || told, "neither");
            Ok::<_, anyhow::Error>(())
        })?;
    }
    let message = bed.expect("APIKeyReady", "False", "TooManyKeys")?;
    assert!(message.contains("2 keys were already made for Tailnet"), "{message}");
    operator.terminate(Duration::from_secs(10))?;
    Ok(())
}

#[test]
fn headscale_down_and_back() -> Result<()> {
    let bed = Bed::new("tailnet_outage")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    let (prefix, _) = bed.working_key()?;
    bed.headscale.kill()?;
    bed.expect("Reachable", "False", "ConnectionRefused")?;
    bed.expect("APIKeyReady", "Unknown", "ControlPlaneUnreachable")?;
    bed.egress("outage")?;
    std::thread::sleep(Duration::from_secs(3));
    assert!(bed.facts().is_ok(), "the last facts stay");
    bed.headscale.start()?;
    let back = Instant::now();
    bed.ready()?;
    assert!(
        back.elapsed() < Duration::from_secs(25),
        "recovery took {:?}",
        back.elapsed()
    );
    assert_eq!(bed.working_key()?.0, prefix, "an outage is no reason for a new key");
    wait_for(
        "the egress that came meanwhile has its key",
        Duration::from_secs(60),
        || bed.authkey("outage"),
    )?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[])
}

/// The operator dies at every moment of its first work; what it leaves is one key of each kind and nothing else.
#[test]
fn killed_at_every_step() -> Result<()> {
    let bed = Bed::new("tailnet_killed")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    bed.egress("kill")?;
    // A replaced key is kept for a tenth of its life, since a Pod may still start with it.
    let lifetime = ["--preauth-key-lifetime-seconds", "600"];
    let step = Duration::from_millis(40);
    for n in 1..=40 {
        let operator = bed.operator(&lifetime)?;
        std::thread::sleep(step * n);
        operator.kill()?;
        // Starts over from nothing now and then, so that the first steps are met again and again.
        if n % 4 == 0 {
            let secrets = [
                format!("tailnet-{}-apikey", bed.tailnet),
                "tailnet-egress-kill-authkey".into(),
            ];
            bed.delete(&["secret", "--ignore-not-found", &secrets[0], &secrets[1]])?;
        }
    }
    let operator = bed.operator(&lifetime)?;
    bed.ready()?;
    // A key whose answer was lost is only given up after two minutes; one that was found goes at once.
    wait_for("one key of each kind is left", Duration::from_secs(200), || {
        let (prefix, _) = bed.working_key()?;
        let keys = bed.new_api_keys()?;
        ensure!(
            keys.len() == 2 && keys.iter().any(|k| k.short_prefix() == prefix),
            "{} API keys",
            keys.len()
        );
        let (id, _) = bed.authkey("kill")?;
        let keys = bed.preauth_keys("kill")?;
        ensure!(keys.len() == 1 && keys[0].id.as_str() == id, "{keys:?}");
        ensure!(!keys[0].expired(Timestamp::now()), "the key in use is expired");
        let entries = bed.entries()?;
        ensure!(
            entries.len() == 2 && entries.iter().all(|e| e["stage"] == "Active"),
            "{entries:?}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[])
}

#[test]
fn what_goes_while_the_operator_is_down() -> Result<()> {
    let bed = Bed::new("tailnet_departed")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    bed.egress("gone")?;
    bed.egress("stays")?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    let (_, key) = wait_for("the egress has its key", PATIENCE, || bed.authkey("gone"))?;
    wait_for("the other egress has its key", PATIENCE, || bed.authkey("stays"))?;
    let node = join(&bed, "node-of-gone", &key)?;
    wait_for("the node is there", PATIENCE, || {
        ensure!(bed.nodes("gone")?.len() == 1, "no node");
        Ok::<_, anyhow::Error>(())
    })?;
    operator.kill()?;
    node.kill()?;
    bed.delete(&["tailnetegress", "gone"])?;

    let operator = bed.operator(&[])?;
    wait_for(
        "node, key and entry of the deleted egress are gone",
        Duration::from_secs(60),
        || {
            ensure!(bed.nodes("gone")?.is_empty(), "its node is there");
            ensure!(bed.preauth_keys("gone")?.is_empty(), "its key is there");
            let entries = bed.entries()?;
            ensure!(entries.iter().all(|e| e["owner"]["name"] != "gone"), "{entries:?}");
            Ok::<_, anyhow::Error>(())
        },
    )?;
    assert_eq!(bed.preauth_keys("stays")?.len(), 1, "the other egress keeps its key");
    bed.ready()?;
    operator.kill()?;

    // The Tailnet and its last egress go while nobody looks.
    bed.delete(&["tailnetegress", "stays"])?;
    bed.delete(&["tailnet", &bed.tailnet])?;
    let operator = bed.operator(&[])?;
    wait_for("nothing is left of the Tailnet", Duration::from_secs(60), || {
        ensure!(bed.preauth_keys("stays")?.is_empty(), "a pre-auth key is there");
        let keys = bed.new_api_keys()?.len();
        ensure!(keys == 1, "{keys} API keys beside the test's own");
        ensure!(
            bed.get(&["secret", &format!("tailnet-{}-apikey", bed.tailnet)])?
                .is_null(),
            "the Secret is there"
        );
        ensure!(bed.entries()?.is_empty(), "{:?}", bed.entries()?);
        Ok::<_, anyhow::Error>(())
    })?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[&key])
}

#[test]
fn foreign_objects_are_left_alone() -> Result<()> {
    let bed = Bed::new("tailnet_foreign")?;
    bed.bootstrap(&bed.own_key()?)?;
    let name = format!("tailnet-{}-apikey", bed.tailnet);
    bed.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": bed.ns()}, "stringData": {"mine": "x"}}))?;
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    bed.expect("APIKeyReady", "False", "ChildNotOurs")?;
    assert_eq!(bed.get(&["secret", &name])?["data"], json!({"mine": "eA=="}));
    bed.delete(&["secret", &name])?;
    bed.ready()?;

    // The ledger: a foreign one means no keys at all.
    operator.terminate(Duration::from_secs(10))?;
    bed.delete(&["secret", "tailnet-key-ledger", &name])?;
    bed.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tailnet-key-ledger", "namespace": bed.ns()}, "stringData": {"mine": "x"}}))?;
    let operator = bed.operator(&[])?;
    bed.expect("APIKeyReady", "False", "LedgerUnusable")?;
    if bed.working_key().is_ok() {
        bail!("a key was made without a ledger");
    }
    operator.terminate(Duration::from_secs(10))?;
    Ok(())
}
