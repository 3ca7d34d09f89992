//! A backup comes back: objects and records with other UIDs and in any order.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::SOON;
use crate::bed::{BYPASS, Bed, tailnet};
use crate::installed::item;
use crate::operating::{NAMESPACE, TAILNET, apply, start_over};
use crate::pairs::{Pair, name_of, pair};

/// The records of claims, as a backup has them.
fn records(bed: &Bed) -> Result<Vec<Value>> {
    let mut records = Vec::new();
    for map in bed.kube.list::<ConfigMap>()? {
        let name = map.metadata.name.as_deref().unwrap_or_default();
        if name.starts_with("tailnet-claims-") {
            let mut value = without_server_fields(serde_json::to_value(&map)?);
            (value["apiVersion"], value["kind"]) = (json!("v1"), json!("ConfigMap"));
            records.push(value);
        }
    }
    ensure!(!records.is_empty(), "there is no record");
    Ok(records)
}

fn without_server_fields(mut value: Value) -> Value {
    if let Some(metadata) = value["metadata"].as_object_mut() {
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "managedFields",
        ] {
            metadata.remove(field);
        }
    }
    value
}

/// The claims of the Tailnet's record.
fn claims(record: &Value) -> Result<Value> {
    Ok(serde_json::from_str(
        record["data"]["claims"].as_str().context("no claims")?,
    )?)
}

/// The same with other claims in it.
fn with_claims(record: &Value, change: impl FnOnce(&mut Value)) -> Result<Value> {
    let mut changed = claims(record)?;
    change(&mut changed);
    let mut record = record.clone();
    record["data"]["claims"] = json!(changed.to_string());
    Ok(record)
}

/// Both of every pair are stored, and the first one of each has what both ask for.
fn held_pairs(bed: &Bed, numbers: std::ops::Range<usize>) -> Result<Vec<Pair>> {
    let pairs: Vec<Pair> = numbers.map(pair).collect();
    for pair in &pairs {
        ensure!(bed.caller.create(&pair.objects[0], false)?.status == 201);
    }
    for pair in &pairs {
        bed.wait_accepted(&pair.objects[0])?;
        // As when both were created at once.
        let groups = ["system:masters".to_owned()];
        let said = bed.caller.create_as(&pair.objects[1], false, Some((BYPASS, &groups)))?;
        ensure!(said.status == 201, "{said:?}");
    }
    for pair in &pairs {
        ensure!(bed.winner(pair)? == 0, "{}", pair.what);
    }
    Ok(pairs)
}

/// Waits until an object is kept out for the sake of another, which the message names.
fn wait_kept_out(bed: &Bed, object: &Value, holder: &Value) -> Result<()> {
    wait_for(&format!("{} is kept out", name_of(object)), SOON, || {
        let (status, reason, message) = bed.accepted(object)?;
        ensure!(
            status == "False" && reason == "HeldByOther" && message.contains(&name_of(holder)),
            "{status} {reason}: {message}"
        );
        Ok(())
    })
}

/// The refused come back first, through the webhook and with an operator that is there: they wait. The holders come later,
/// are let in and have what they had; one comes back with other wishes, and what it had is its rival's.
#[test]
fn who_was_refused_wins_nothing_by_coming_back_first() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let pairs = held_pairs(bed, 5100..5105)?;
    let records = records(bed)?;
    let installation = claims(&records[0])?["installation"].clone();
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let own = bed.caller.ask(Method::GET, &path, None, None)?.body["metadata"]["uid"].clone();
    ensure!(
        own.is_string() && installation == own,
        "{installation}, the namespace is {own}"
    );

    bed.stop_operator()?;
    start_over(bed.cluster)?;
    // The namespace is the test's and stays; a new cluster's has another UID.
    for record in &records {
        let foreign = with_claims(record, |claims| {
            claims["installation"] = json!("00000000-0000-4000-8000-000000000000");
        })?;
        ensure!(bed.caller.create(&foreign, false)?.status == 201);
    }
    bed.start_operator("races-operator-incomplete")?;
    wait_for("the record is this installation's", SOON, || {
        let record: ConfigMap = bed.kube.get(&format!("tailnet-claims-{TAILNET}"))?;
        let claims = claims(&serde_json::to_value(&record)?)?;
        ensure!(claims["installation"] == installation, "{claims}");
        let all = claims["claims"].as_object().context("claims")?;
        ensure!(
            !all.is_empty() && all.values().all(|claim| claim["reservedUntil"].is_string()),
            "{claims}"
        );
        Ok(())
    })?;
    apply(bed.cluster, &[tailnet(bed.cluster)?])?;
    for pair in &pairs {
        let said = bed.caller.create(&pair.objects[1], false)?;
        ensure!(said.status == 201, "{}: {said:?}", pair.what);
    }
    for pair in &pairs {
        wait_kept_out(bed, &pair.objects[1], &pair.objects[0])?;
    }
    // creationTimestamps count seconds: the holders are younger by any order.
    std::thread::sleep(Duration::from_millis(1100));
    let (changed, same) = pairs.split_first().context("pairs")?;
    for pair in same {
        let said = bed.caller.create(&pair.objects[0], false)?;
        ensure!(said.status == 201, "{}: {said:?}", pair.what);
    }
    for pair in same {
        ensure!(bed.winner(pair)? == 0, "{}: who came first won", pair.what);
        assert_eq!(bed.made_for(&pair.objects[1])?, Vec::<String>::new(), "{}", pair.what);
    }
    ensure!(bed.caller.create(&changed.with_its_own(0), false)?.status == 201);
    bed.wait_accepted(&changed.objects[0])?;
    bed.wait_accepted(&changed.objects[1])?;
    // Nothing is kept for them any more; what the record had of other tests waits for its time.
    let names: Vec<&Value> = pairs.iter().map(|pair| &pair.objects[0]["metadata"]["name"]).collect();
    wait_for("no reservation of the pairs is left", SOON, || {
        let record: ConfigMap = bed.kube.get(&format!("tailnet-claims-{TAILNET}"))?;
        let claims = claims(&serde_json::to_value(&record)?)?;
        let all = claims["claims"].as_object().context("claims")?;
        let mut of_pairs = all.values().filter(|claim| names.contains(&&claim["name"]));
        ensure!(of_pairs.all(|claim| claim.get("reservedUntil").is_none()), "{claims}");
        Ok(())
    })?;
    bed.delete_all(&pairs)
}

/// A holder that never comes back keeps nobody waiting for ever, and one that was deleted while no operator ran, in the
/// same installation, keeps nobody waiting at all.
#[test]
fn what_a_record_keeps_is_free_when_its_time_is_over() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let pairs = held_pairs(bed, 5200..5205)?;
    bed.stop_operator()?;
    let (gone, away) = pairs.split_at(1);
    for pair in &pairs {
        ensure!(bed.caller.delete(&pair.objects[0])?.status.is_success());
    }
    let until = Timestamp::now() + SignedDuration::from_secs(45);
    for record in records(bed)? {
        let changed = with_claims(&record, |claims| {
            let all = claims["claims"].as_object_mut().into_iter().flatten();
            for (_, claim) in all.filter(|(_, claim)| claim["name"] != gone[0].objects[0]["metadata"]["name"]) {
                claim["reservedUntil"] = json!(until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
                claim.as_object_mut().map(|claim| claim.shift_remove("uid"));
            }
        })?;
        let said = bed.caller.ask(Method::PUT, &item(&changed)?, Some(&changed), None)?;
        ensure!(said.status == 200, "{said:?}");
    }
    bed.start_operator("races-operator-reserved")?;
    for pair in gone {
        bed.wait_accepted(&pair.objects[1])?;
    }
    for pair in away {
        wait_kept_out(bed, &pair.objects[1], &pair.objects[0])?;
    }
    ensure!(
        Timestamp::now() < until,
        "the machine was too slow to see anything kept"
    );
    for pair in away {
        wait_for(&format!("{} is free", pair.what), 3 * SOON, || {
            let (status, reason, message) = bed.accepted(&pair.objects[1])?;
            ensure!(status == "True", "{status} {reason}: {message}");
            Ok(())
        })?;
        ensure!(Timestamp::now() >= until, "{} was free too early", pair.what);
    }
    bed.delete_all(&pairs)
}

#[test]
fn a_backup_is_restored_into_an_empty_cluster() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let objects: Vec<Value> = (5000..5010).map(|n| pair(n).objects[n % 2].clone()).collect();
    for object in &objects {
        ensure!(bed.caller.create(object, false)?.status == 201);
    }
    for object in &objects {
        bed.wait_accepted(object)?;
    }
    let mut backup: Vec<Value> = Vec::new();
    for object in &objects {
        backup.push(bed.caller.get(object)?.body);
    }
    let records = records(bed)?;

    bed.stop_operator()?;
    start_over(bed.cluster)?;
    apply(bed.cluster, &[tailnet(bed.cluster)?])?;
    for record in &records {
        ensure!(bed.caller.create(record, false)?.status == 201);
    }
    backup.reverse();
    for object in &backup {
        let said = bed.caller.create(&without_server_fields(object.clone()), false)?;
        ensure!(said.status == 201, "{said:?}");
        // Backup tools put the status back as well.
        let mut told = bed.caller.get(object)?.body;
        told["status"] = object["status"].clone();
        let said = bed
            .caller
            .ask(Method::PUT, &format!("{}/status", item(object)?), Some(&told), None)?;
        ensure!(said.status == 200, "{said:?}");
    }
    bed.start_operator("races-operator-restored")?;
    for object in &objects {
        bed.wait_accepted(object)?;
    }
    // The record names the new UIDs.
    let uids: Vec<Value> = objects
        .iter()
        .map(|object| Ok(bed.caller.get(object)?.body["metadata"]["uid"].clone()))
        .collect::<Result<_>>()?;
    wait_for("the record is of the restored objects", SOON, || {
        let record: ConfigMap = bed.kube.get(&format!("tailnet-claims-{TAILNET}"))?;
        let claims: Value = serde_json::from_str(&record.data.context("data")?["claims"])?;
        for (key, claim) in claims["claims"].as_object().context("claims")? {
            ensure!(uids.contains(&claim["uid"]), "{key}: {claim}");
        }
        Ok(())
    })?;
    Ok(())
}
