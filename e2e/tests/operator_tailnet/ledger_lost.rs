//! The key ledger is deleted, with and without an operator that remembers it: no key is forgotten, and the end of a Tailnet
//! still takes everything with it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tailnet_e2e::wait_for;
use tailnet_headscale::{Id, NewPreAuthKey};
use tailnet_operator::key_mark::Maker;
use tailnet_operator::ledger::KeyKind;

use crate::bed::{Bed, PATIENCE};

const LEDGER: &str = "tailnet-key-ledger";

/// The prefixes of the ledger's entries that are in use, sorted.
fn in_use(bed: &Bed) -> Result<Vec<String>> {
    let mut prefixes: Vec<String> = bed
        .entries()?
        .iter()
        .filter(|entry| entry["stage"] == "Active")
        .filter_map(|entry| Some(entry["prefix"].as_str()?.to_owned()))
        .collect();
    prefixes.sort();
    Ok(prefixes)
}

/// The prefix of the key in the Secret of an egress.
fn joining_prefix(bed: &Bed, egress: &str) -> Result<String> {
    let secret = bed.get(&["secret", &format!("tailnet-egress-{egress}-authkey")])?;
    let prefix = secret["metadata"]["annotations"]["tsunaro.io/key-prefix"].as_str();
    Ok(prefix.context("no prefix")?.to_owned())
}

/// The end of the Tailnet as the documentation of the installation has it.
fn end_of_the_tailnet(bed: &Bed, egresses: &[&str]) -> Result<()> {
    for egress in egresses {
        bed.delete(&["tailnetegress", egress])?;
        // As the garbage collector would, a little later.
        bed.delete(&[
            "secret",
            "--ignore-not-found",
            &format!("tailnet-egress-{egress}-authkey"),
        ])?;
    }
    bed.delete(&["tailnet", &bed.tailnet])?;
    wait_for("the working key's Secret is gone", Duration::from_secs(90), || {
        let secret = bed.get(&["secret", &format!("tailnet-{}-apikey", bed.tailnet)])?;
        ensure!(secret.is_null(), "still there; ledger: {:?}", bed.entries()?);
        let entries = bed.entries()?;
        ensure!(entries.is_empty(), "{entries:?}");
        for egress in egresses {
            let keys = bed.preauth_keys(egress)?;
            ensure!(keys.is_empty(), "{keys:?}");
        }
        let api = bed.new_api_keys()?.len();
        ensure!(api == 1, "{api} API keys besides the test's own");
        Ok(())
    })
}

/// A whole ledger that has no keys yet: the operator that finds it has lost nothing.
fn whole_ledger(bed: &Bed) -> Result<()> {
    bed.apply(&json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": LEDGER, "namespace": bed.ns(), "labels": {"app.kubernetes.io/managed-by": "tailnet-operator"}},
        "stringData": {"ledger.json": json!({"version": 1, "nextNumber": 0, "entries": []}).to_string()}}))
}

/// Somebody else's key that looks by chance as if the operator had made it for an egress that is gone.
fn look_alike(bed: &Bed) -> Result<Id> {
    let namespace = bed.get(&["namespace", bed.ns()])?;
    let tags = ["tag:egress-look-alike".to_owned()];
    let maker = Maker {
        installation: namespace["metadata"]["uid"].as_str().context("no UID")?,
        tailnet: &bed.tailnet,
        kind: KeyKind::PreAuth,
        tags: &tags,
    };
    let key = NewPreAuthKey {
        reusable: true,
        ephemeral: true,
        expiration: maker.end(Timestamp::now() + SignedDuration::from_hours(24), |_| false),
        tags: tags.to_vec(),
    };
    Ok(bed.block(bed.admin.create_preauth_key(&key))?.info.id)
}

#[test]
fn a_ledger_that_is_deleted_is_written_again_from_memory() -> Result<()> {
    let bed = Bed::new("tailnet_ledger_deleted")?;
    bed.bootstrap(&bed.own_key()?)?;
    whole_ledger(&bed)?;
    let look_alike = look_alike(&bed)?;
    bed.tailnet(|_| {})?;
    bed.egress("ledger-deleted")?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    wait_for("the egress has its key", PATIENCE, || bed.authkey("ledger-deleted"))?;
    let before = wait_for("both keys are in use", PATIENCE, || {
        ensure!(in_use(&bed)?.len() == 2, "{:?}", bed.entries()?);
        bed.entries()
    })?;
    bed.delete(&["secret", LEDGER])?;
    wait_for("the ledger is there again, unchanged", PATIENCE, || {
        ensure!(bed.entries()? == before, "{:?}", bed.entries()?);
        Ok(())
    })?;
    end_of_the_tailnet(&bed, &["ledger-deleted"])?;
    // No key was lost, so none was looked for by its mark.
    let left = bed.preauth_keys("look-alike")?;
    assert!(
        left.len() == 1 && left[0].id == look_alike && !left[0].expired(Timestamp::now()),
        "somebody else's key is left alone: {left:?}"
    );
    operator.terminate(Duration::from_secs(10))?;
    bed.block(bed.admin.delete_preauth_key(&look_alike))?;
    bed.no_key_is_told(&[])
}

#[test]
fn an_old_ledger_that_is_put_back_under_a_running_operator_loses_nothing() -> Result<()> {
    let bed = Bed::new("tailnet_ledger_put_back")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    let old = wait_for("the working key is in use", PATIENCE, || {
        ensure!(in_use(&bed)?.len() == 1, "{:?}", bed.entries()?);
        bed.get(&["secret", LEDGER])
    })?;
    bed.egress("ledger-newer")?;
    wait_for("the egress has its key", PATIENCE, || bed.authkey("ledger-newer"))?;
    wait_for("both keys are in use", PATIENCE, || {
        ensure!(in_use(&bed)?.len() == 2, "{:?}", bed.entries()?);
        Ok(())
    })?;
    // As a backup tool would: the data as it was, whatever the version is now.
    let patch = json!({ "data": old["data"] }).to_string();
    let arguments = ["patch", "secret", LEDGER, "-n", bed.ns(), "--type=merge", "-p", &patch];
    bed.cluster.kubectl(&arguments)?.success()?;
    ensure!(in_use(&bed)?.len() == 1, "the old one is there: {:?}", bed.entries()?);
    // It is noticed when the next key is made.
    bed.egress("ledger-newest")?;
    wait_for("the ledger has all keys", PATIENCE, || {
        let mut wanted = vec![bed.working_key()?.0];
        for egress in ["ledger-newer", "ledger-newest"] {
            wanted.push(joining_prefix(&bed, egress)?);
        }
        wanted.sort();
        ensure!(in_use(&bed)? == wanted, "{:?}, not {wanted:?}", bed.entries()?);
        Ok(())
    })?;
    let numbers: Vec<Value> = bed.entries()?.iter().map(|entry| entry["number"].clone()).collect();
    assert_eq!(numbers, [0, 1, 2], "no number is given out twice");
    end_of_the_tailnet(&bed, &["ledger-newer", "ledger-newest"])?;
    operator.terminate(Duration::from_secs(10))?;
    bed.no_key_is_told(&[])
}

#[test]
fn a_lost_ledger_is_made_again_from_secrets_and_headscale() -> Result<()> {
    let bed = Bed::new("tailnet_ledger_lost")?;
    let bootstrap = bed.own_key()?;
    bed.bootstrap(&bootstrap)?;
    bed.tailnet(|_| {})?;
    bed.egress("ledger-stays")?;
    bed.egress("ledger-goes")?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    wait_for("the egresses have their keys", PATIENCE, || {
        bed.authkey("ledger-stays")?;
        bed.authkey("ledger-goes")
    })?;
    wait_for("all keys are in use", PATIENCE, || {
        ensure!(in_use(&bed)?.len() == 3, "{:?}", bed.entries()?);
        Ok(())
    })?;
    operator.kill()?;

    // While nobody looks: the ledger goes, an egress and its Secret go, and the working key's Secret.
    let (forgotten, _) = bed.working_key()?;
    let stays = joining_prefix(&bed, "ledger-stays")?;
    bed.delete(&["secret", LEDGER])?;
    bed.delete(&["tailnetegress", "ledger-goes"])?;
    // The garbage collector may have been faster.
    bed.delete(&["secret", "--ignore-not-found", "tailnet-egress-ledger-goes-authkey"])?;
    bed.delete(&["secret", &format!("tailnet-{}-apikey", bed.tailnet)])?;
    // Somebody else's key with the tag of ours.
    let foreign = NewPreAuthKey {
        reusable: true,
        ephemeral: true,
        expiration: Timestamp::now() + SignedDuration::from_hours(168),
        tags: vec!["tag:egress-ledger-goes".to_owned()],
    };
    let foreign = bed.block(bed.admin.create_preauth_key(&foreign))?.info.id;

    let operator = bed.operator(&[])?;
    bed.ready()?;
    wait_for(
        "what is forgotten is found and ended, the rest is known",
        PATIENCE,
        || {
            let (working, _) = bed.working_key()?;
            let mut wanted = vec![working, stays.clone()];
            wanted.sort();
            ensure!(in_use(&bed)? == wanted, "{:?}, not {wanted:?}", bed.entries()?);
            ensure!(bed.entries()?.len() == 2, "{:?}", bed.entries()?);
            let api = bed.new_api_keys()?;
            ensure!(api.len() == 2, "{api:?}");
            ensure!(
                api.iter().all(|key| key.short_prefix() != forgotten),
                "{forgotten} is left"
            );
            let goes: Vec<_> = bed.preauth_keys("ledger-goes")?.into_iter().map(|key| key.id).collect();
            ensure!(goes == [foreign.clone()], "{goes:?}, somebody else's is {foreign}");
            Ok(())
        },
    )?;
    assert_eq!(joining_prefix(&bed, "ledger-stays")?, stays, "the key in use stays");
    let others = bed.preauth_keys("ledger-goes")?;
    assert!(
        !others[0].expired(Timestamp::now()),
        "somebody else's key is left alone"
    );
    let (status, _, message) = bed.condition(&["tailnet", &bed.tailnet], "APIKeyReady")?;
    assert_eq!(status, "True");
    assert!(
        message.contains(LEDGER) && message.contains("1 found in Secrets, 2 found in Headscale"),
        "{message}"
    );

    end_of_the_tailnet(&bed, &["ledger-stays"])?;
    operator.terminate(Duration::from_secs(10))?;
    bed.block(bed.admin.delete_preauth_key(&foreign))?;
    let entries = json!(bed.entries()?);
    assert_eq!(entries, json!([]));
    bed.no_key_is_told(&[&bootstrap])
}
