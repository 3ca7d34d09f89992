//! A backup comes back: objects and records with other UIDs and in any order.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::SOON;
use crate::bed::{Bed, tailnet};
use crate::installed::item;
use crate::operating::{TAILNET, apply, start_over};
use crate::pairs::pair;

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
    let records: Vec<ConfigMap> = bed
        .kube
        .list::<ConfigMap>()?
        .into_iter()
        .filter(|map| {
            map.metadata
                .name
                .as_deref()
                .is_some_and(|name| name.starts_with("tailnet-claims-"))
        })
        .collect();
    ensure!(!records.is_empty());

    bed.stop_operator()?;
    start_over(bed.cluster)?;
    apply(bed.cluster, &[tailnet(bed.cluster)?])?;
    let without_server_fields = |mut value: Value| {
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
    };
    for record in &records {
        let mut value = without_server_fields(serde_json::to_value(record)?);
        (value["apiVersion"], value["kind"]) = (json!("v1"), json!("ConfigMap"));
        ensure!(bed.caller.create(&value, false)?.status == 201);
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
