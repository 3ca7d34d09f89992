//! Deciding one admission request in process. The reference does what any typed webhook must do at least: decode the same bytes into the kind's type.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_crds::{Kind, TailnetEgressSpec};
use tailnet_policies::{Config, Layer, Request, Snapshot, evaluate, with_defaults};

use super::report::{Row, interleave};

/// Decisions per round: long enough for a clock, short enough for many rounds.
const DECISIONS: u32 = 200;

const REFERENCE: &str = "JSON decoded into TailnetEgressSpec, no rule";
const FEW: usize = 100;
const MANY: usize = 10_000;
const BESIDE_FEW: &str = "the same decision beside 100 objects";

/// All cases.
pub fn measure(rounds: u32) -> Result<Vec<Row>> {
    let mut rows = [
        ("accepted, 2 targets, alone", egress("new", 2, "192.0.2.10"), 0, true),
        (
            "accepted, 2 targets, beside 1000 objects",
            egress("new", 2, "192.0.2.10"),
            1000,
            true,
        ),
        (
            "accepted, 128 targets, beside 1000 objects",
            egress("new", 128, "192.0.2.10"),
            1000,
            true,
        ),
        (
            "denied, 2 targets, beside 1000 objects",
            egress("new", 2, "10.0.0.300"),
            1000,
            false,
        ),
    ]
    .into_iter()
    .map(|(case, object, others, accepted)| one(case, &object, others, accepted, rounds))
    .collect::<Result<Vec<_>>>()?;
    rows.extend(growth(rounds)?);
    Ok(rows)
}

/// The slowest of a hundred decisions beside [`MANY`] objects of three kinds, and the same beside [`FEW`].
fn growth(rounds: u32) -> Result<Vec<Row>> {
    let (many, few) = (mixed(MANY), mixed(FEW));
    [
        (Kind::TailnetEgress, egress("new", 2, "192.0.2.10")),
        (Kind::TailnetIngress, ingress("new", &few)),
        (Kind::TailnetSite, site("new", "203.0.113.0/24")),
    ]
    .into_iter()
    .map(|(kind, object)| {
        let request = Request::for_object(kind, object, Layer::Webhook);
        for snapshot in [&many, &few] {
            let outcome = evaluate(&request, snapshot);
            ensure!(!outcome.denied(), "{kind}: denied: {:?}", outcome.findings);
        }
        let slowest = |snapshot: &Snapshot| {
            let mut times: Vec<f64> = (0..DECISIONS)
                .map(|_| {
                    let start = Instant::now();
                    black_box(evaluate(&request, snapshot));
                    start.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times
                .get(times.len() * 99 / 100)
                .copied()
                .context("no decision was timed")
        };
        Ok(Row::lower(
            format!("{kind} accepted, beside {MANY} objects"),
            "99th percentile",
            "us",
            interleave(rounds, || slowest(&many), || slowest(&few))?,
            BESIDE_FEW,
        ))
    })
    .collect()
}

/// What the webhook would know of a cluster with so many objects: four of ten egresses, five ingresses, one a site.
fn mixed(count: usize) -> Snapshot {
    let mut snapshot = snapshot(0);
    for number in 0..count {
        let name = format!("other-{number}");
        let (kind, mut object) = match number % 10 {
            0..=3 => (Kind::TailnetEgress, egress(&name, 2, "198.51.100.20")),
            4..=8 => (Kind::TailnetIngress, ingress(&name, &snapshot)),
            _ => {
                let prefix = format!("10.{}.{}.0/24", number / 10 / 256, number / 10 % 256);
                (Kind::TailnetSite, site(&name, &prefix))
            }
        };
        object["metadata"]["uid"] = json!(name);
        snapshot.upsert(kind, &object);
    }
    snapshot
}

/// With its defaults, as `/mutate` has left it. `tailnets` knows the Tailnet.
fn ingress(name: &str, tailnets: &Snapshot) -> Value {
    let written = json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetIngress",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"tailnetRef": {"name": "demo"}, "allowFrom": [],
            "exposes": [{"name": "db", "port": 5432, "backend": {"service": "db", "port": 5432}}]},
    });
    with_defaults(Kind::TailnetIngress, None, &written, tailnets)
}

fn site(name: &str, prefix: &str) -> Value {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetSite",
        "metadata": {"name": name},
        "spec": {"tailnetRef": {"name": "demo"}, "prefixes": [prefix], "advertisedBy": ["tag:router"]},
    })
}

fn one(case: &str, object: &Value, others: usize, accepted: bool, rounds: u32) -> Result<Row> {
    let snapshot = snapshot(others);
    let bytes = serde_json::to_vec(object)?;
    let decide = || -> Result<bool> {
        let object = serde_json::from_slice(&bytes)?;
        Ok(!evaluate(
            &Request::for_object(Kind::TailnetEgress, object, Layer::Webhook),
            &snapshot,
        )
        .denied())
    };
    ensure!(
        decide()? == accepted,
        "{case}: the verdict is not the expected one; what is measured would be something else"
    );
    let ours = || {
        timed(|| {
            black_box(decide()?);
            Ok(())
        })
    };
    let reference = || {
        timed(|| {
            let mut value: Value = serde_json::from_slice(&bytes)?;
            // A denied address is not a value of the type; the reference stops there, as a typed webhook would.
            black_box(serde_json::from_value::<TailnetEgressSpec>(value["spec"].take()).is_ok());
            Ok(())
        })
    };
    Ok(Row::lower(
        case,
        "time per decision",
        "us",
        interleave(rounds, ours, reference)?,
        REFERENCE,
    ))
}

/// Microseconds per call.
fn timed(mut act: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..DECISIONS {
        act()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(DECISIONS))
}

fn egress(name: &str, targets: usize, address: &str) -> Value {
    let targets = (0..targets)
        .map(|number| json!({"name": format!("{name}-{number}"), "address": address, "port": 5432, "aliases": [format!("{name}-{number}.site.example.net")]}))
        .collect::<Vec<_>>();
    json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetEgress",
        "metadata": {"name": name, "namespace": "tailnet-system"},
        "spec": {"tailnetRef": {"name": "demo"}, "tag": format!("tag:egress-{name}"), "consumerNamespaces": ["team-a"], "targets": targets},
    })
}

/// What the webhook would know of a cluster with so many other egress objects.
fn snapshot(others: usize) -> Snapshot {
    let mut snapshot = Snapshot::closed(Config::default());
    let tailnet = json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "Tailnet",
        "metadata": {"name": "demo", "uid": "0"},
        "spec": {"server": "https://control.example.net", "apiSecretRef": {"name": "headscale-bootstrap", "key": "apiKey"}},
    });
    snapshot.upsert(Kind::Tailnet, &tailnet);
    snapshot.upsert_namespace("team-a");
    for number in 0..others {
        let mut object = egress(&format!("other-{number}"), 2, "198.51.100.20");
        object["metadata"]["uid"] = json!(format!("{number}"));
        snapshot.upsert(Kind::TailnetEgress, &object);
    }
    snapshot
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_measures_what_it_says() {
        let rows = super::measure(3).unwrap();
        assert_eq!(rows.len(), 7);
        assert!(
            rows.iter()
                .all(|row| row.ours > 0.0 && row.reference > 0.0 && row.ratio.is_finite())
        );
    }
}
