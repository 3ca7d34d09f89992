//! Both ask at the same moment.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::bed::Bed;
use crate::installed::item;
use crate::pairs::{Pair, at_once, name_of, pair, settle};
use crate::{SOON, rounds};

/// Pairs that race at the same time.
const BATCH: usize = 10;

#[test]
fn of_two_that_are_created_at_once_exactly_one_is_accepted() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let total = rounds(10, 500);
    let mut both_let_in = 0;
    for first in (0..total).step_by(BATCH) {
        let pairs: Vec<Pair> = (first..total.min(first + BATCH)).map(pair).collect();
        let said = at_once(bed, &pairs, |caller, pair, side| {
            caller.create(&pair.objects[side], false)
        })?;
        let mut decided = Vec::new();
        for (pair, said) in pairs.iter().zip(&said) {
            let (winner, both) = settle(bed, pair, said)?;
            both_let_in += usize::from(both);
            bed.wait_accepted(&pair.objects[winner])?;
            decided.push((&pair.objects[winner], &pair.objects[1 - winner]));
            if pair.rule == "TN202" {
                let service = pair.objects[winner]["spec"]["targets"][0]["name"]
                    .as_str()
                    .context("name")?
                    .to_owned();
                let uid = bed.caller.get(&pair.objects[winner])?.body["metadata"]["uid"].clone();
                wait_for(&format!("Service {service} is the winner's"), SOON, || {
                    let service: Service = bed.kube.get(&service)?;
                    let owner = service.metadata.owner_references.unwrap_or_default();
                    ensure!(
                        owner.first().map(|owner| json!(owner.uid)) == Some(uid.clone()),
                        "{owner:?}"
                    );
                    Ok(())
                })?;
            }
        }
        // Nothing of a loser was made, also not for a moment. Afterwards it may get what the winner leaves.
        for (winner, loser) in &decided {
            assert_eq!(bed.made_for(loser)?, Vec::<String>::new(), "of {}", name_of(loser));
            if winner["kind"] == "TailnetEgress" {
                wait_for("the audit log shows what the winner has", SOON, || {
                    ensure!(!bed.made_for(winner)?.is_empty(), "{}", name_of(winner));
                    Ok(())
                })?;
            }
        }
        bed.delete_all(&pairs)?;
    }
    // Both replicas were asked.
    let asked: Vec<usize> = bed.webhooks.iter().map(|webhook| webhook.audit_lines().len()).collect();
    eprintln!("{total} pairs, in {both_let_in} of them both were let in; requests by replica: {asked:?}");
    assert!(asked.iter().all(|count| *count > total / 4), "{asked:?}");
    Ok(())
}

#[test]
fn of_two_that_are_changed_at_once_exactly_one_is_accepted() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let total = rounds(5, 100);
    let mut both_let_in = 0;
    for first in (0..total).step_by(BATCH) {
        let pairs: Vec<Pair> = (first..total.min(first + BATCH)).map(|n| pair(1000 + n)).collect();
        // Each begins with something of its own.
        for (pair, side) in pairs.iter().flat_map(|pair| [(pair, 0), (pair, 1)]) {
            let said = bed.caller.create(&pair.with_its_own(side), false)?;
            ensure!(said.status == 201, "{said:?}");
        }
        for object in pairs.iter().flat_map(|pair| &pair.objects) {
            bed.wait_accepted(object)?;
        }
        let said = at_once(bed, &pairs, |caller, pair, side| {
            let object = &pair.objects[side];
            caller.ask(
                Method::PATCH,
                &item(object)?,
                Some(&json!({"spec": object["spec"]})),
                None,
            )
        })?;
        for (pair, said) in pairs.iter().zip(&said) {
            let (winner, both) = settle(bed, pair, said)?;
            both_let_in += usize::from(both);
            bed.wait_accepted(&pair.objects[winner])?;
            if !both {
                // Who was refused keeps what it had.
                bed.wait_accepted(&pair.objects[1 - winner])?;
            }
        }
        bed.delete_all(&pairs)?;
    }
    eprintln!("{total} pairs, in {both_let_in} of them both changes were let in");
    Ok(())
}
