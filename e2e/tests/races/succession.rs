//! One asks after the other: who has it keeps it, and who gives it up is followed.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::json;
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::bed::{BYPASS, Bed};
use crate::installed::item;
use crate::pairs::{Pair, ingress, name_of, pair};
use crate::{SOON, rounds};

/// Past the webhook, so that the record alone decides.
#[test]
fn an_incumbent_never_loses_to_an_older_object_that_asks_later() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let count = rounds(5, 20);
    let pairs: Vec<Pair> = (2000..2000 + count).map(pair).collect();
    for pair in &pairs {
        ensure!(bed.caller.create(&pair.with_its_own(0), false)?.status == 201);
    }
    std::thread::sleep(Duration::from_millis(1100)); // creationTimestamps count seconds
    for pair in &pairs {
        ensure!(bed.caller.create(&pair.objects[1], false)?.status == 201);
    }
    for pair in &pairs {
        bed.wait_accepted(&pair.objects[1])?;
    }
    // Through the webhook it is refused.
    for pair in &pairs {
        let patch = json!({"spec": pair.objects[0]["spec"]});
        let said = bed
            .caller
            .ask(Method::PATCH, &item(&pair.objects[0])?, Some(&patch), None)?;
        ensure!(
            said.status == 422 && said.message().contains(&name_of(&pair.objects[1])),
            "{said:?}"
        );
    }
    let groups = ["system:masters".to_owned()];
    for pair in &pairs {
        let patch = json!({"spec": pair.objects[0]["spec"]});
        let path = item(&pair.objects[0])?;
        let said = bed
            .caller
            .ask(Method::PATCH, &path, Some(&patch), Some((BYPASS, &groups)))?;
        ensure!(said.status == 200, "{said:?}");
    }
    for pair in &pairs {
        ensure!(bed.winner(pair)? == 1, "{}: the older one won", pair.what);
    }
    bed.delete_all(&pairs)?;
    Ok(())
}

#[test]
fn a_new_object_gets_what_was_deleted_a_moment_ago() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let pairs: Vec<Pair> = (3000..3000 + rounds(5, 50)).map(pair).collect();
    for pair in &pairs {
        ensure!(bed.caller.create(&pair.objects[0], false)?.status == 201);
    }
    for pair in &pairs {
        bed.wait_accepted(&pair.objects[0])?;
    }
    for pair in &pairs {
        ensure!(bed.caller.delete(&pair.objects[0])?.status.is_success());
        let said = bed.caller.create(&pair.objects[1], false)?;
        ensure!(said.status == 201, "{}: {said:?}", pair.what);
    }
    for pair in &pairs {
        bed.wait_accepted(&pair.objects[1])?;
    }
    bed.delete_all(&pairs)
}

/// The order of GitOps tools: the new object is applied, then the old one is pruned.
#[test]
fn a_rename_that_is_announced_takes_over() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let mut pairs: Vec<Pair> = (4000..4005).map(pair).collect();
    for Pair {
        number, objects, rule, ..
    } in &mut pairs
    {
        // A tenant takes over in its own namespace only.
        if *rule == "TN304" {
            objects[1] = ingress(&format!("b{number}"), "team-a", &format!("portal-{number}"));
        }
        ensure!(bed.caller.create(&objects[0], false)?.status == 201);
    }
    for Pair {
        objects: [old, new],
        rule,
        ..
    } in &mut pairs
    {
        bed.wait_accepted(old)?;
        let said = bed.caller.create(new, true)?;
        ensure!(said.status == 422, "without the announcement it is refused: {said:?}");
        // `TailnetSite a` is written TailnetSite/a.
        new["metadata"]["annotations"] = json!({"tsunaro.io/takes-over": name_of(old).replace(' ', "/")});
        let said = bed.caller.create(new, false)?;
        let warned = said.warnings.iter().any(|text| text.contains(*rule));
        ensure!(said.status == 201 && warned, "{said:?}");
    }
    for Pair {
        objects: [old, new], ..
    } in &pairs
    {
        wait_for(&format!("{} waits", name_of(new)), SOON, || {
            let (status, reason, message) = bed.accepted(new)?;
            ensure!(
                status == "False" && reason == "WaitingForHolder",
                "{status} {reason}: {message}"
            );
            Ok(())
        })?;
        bed.wait_accepted(old)?;
        assert_eq!(
            bed.made_for(new)?,
            Vec::<String>::new(),
            "while {} waited",
            name_of(new)
        );
    }
    for Pair { objects: [old, _], .. } in &pairs {
        ensure!(bed.caller.delete(old)?.status.is_success());
    }
    for Pair { objects: [_, new], .. } in &pairs {
        bed.wait_accepted(new)?;
    }
    bed.delete_all(&pairs)
}
