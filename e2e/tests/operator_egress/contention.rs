//! Two that want the same.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use tailnet_crds::TailnetEgress;
use tailnet_e2e::{one_at_a_time, wait_for};

use crate::checks::{SOON, wait_complete, wait_condition, wait_tailnet_ready};
use crate::operating::{NAMESPACE, Operator, cluster, condition, egress, start_over};

#[test]
fn of_two_that_want_the_same_exactly_one_gets_it() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-race")?;
    wait_tailnet_ready(&kube)?;
    for round in 0..8 {
        let target = format!("shared-{round}");
        let names = [format!("a{round}"), format!("b{round}")];
        std::thread::scope(|scope| {
            let made: Vec<_> = names
                .iter()
                .map(|name| {
                    let (kube, target) = (&kube, &target);
                    scope.spawn(move || kube.create::<TailnetEgress>(&egress(name, &[(target, "192.0.2.10", 5432)])))
                })
                .collect();
            made.into_iter()
                .try_for_each(|made| made.join().map_err(|_| anyhow::anyhow!("panicked"))?.map(drop))
        })?;
        let winner = wait_for(&format!("round {round} has one winner and one loser"), SOON, || {
            let accepted: Vec<Option<(String, String, String)>> = names
                .iter()
                .map(|name| Ok(condition(&kube.get::<TailnetEgress>(name)?, "Accepted")))
                .collect::<Result<_>>()?;
            let status = |i: usize| accepted[i].as_ref().map(|(status, _, _)| status.as_str());
            match (status(0), status(1)) {
                (Some("True"), Some("False")) => Ok(0),
                (Some("False"), Some("True")) => Ok(1),
                _ => bail!("{accepted:?}"),
            }
        })?;
        let loser = &names[1 - winner];
        let (_, reason, message) = condition(&kube.get::<TailnetEgress>(loser)?, "Accepted").context("Accepted")?;
        assert_eq!(reason, "HeldByOther");
        assert!(
            message.contains(&format!("{NAMESPACE}/{}", names[winner])),
            "the holder is not named: {message}"
        );
        wait_complete(&kube, &names[winner])?;
        assert!(
            kube.find::<Deployment>(&format!("tailnet-egress-{loser}"))?.is_none(),
            "the loser has an effect"
        );

        // The loser gets it when the holder goes.
        kube.delete::<TailnetEgress>(&names[winner])?;
        wait_complete(&kube, loser)?;
        wait_condition(&kube, loser, "Accepted", "True", "Valid")?;
        kube.delete::<TailnetEgress>(loser)?;
    }
    operator.stop()
}
