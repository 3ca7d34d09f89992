//! Pairs of objects of which only one can be accepted, and how it is told which one it is.

use std::sync::Barrier;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use tailnet_crds::API_VERSION;

use crate::bed::Bed;
use crate::installed::{self, Caller, Said};
use crate::operating::{NAMESPACE, TAILNET, egress};

pub fn name_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match text("/metadata/namespace") {
        "" => format!("{} {}", text("/kind"), text("/metadata/name")),
        namespace => format!("{} {namespace}/{}", text("/kind"), text("/metadata/name")),
    }
}

/// Two that exclude each other.
pub struct Pair {
    pub what: String,
    pub number: usize,
    pub objects: [Value; 2],
    pub rule: &'static str,
}

impl Pair {
    /// The object as it is before it asks for what the other asks for.
    pub fn with_its_own(&self, side: usize) -> Value {
        let mut own = self.objects[side].clone();
        let unique = format!("{}-own", own["metadata"]["name"].as_str().unwrap_or_default());
        let number = 2 * self.number + side;
        match self.rule {
            "TN403" => own["spec"]["prefixes"] = json!([format!("10.{}.{}.0/24", 200 + number / 250, number % 250)]),
            "TN304" => own["spec"]["exposes"][0]["dnsLabel"] = json!(unique),
            "TN202" => own["spec"]["targets"][0]["name"] = json!(unique),
            "TN206" => own["spec"]["targets"][0]["aliases"] = json!([]),
            _ => own["spec"]["tag"] = json!(format!("tag:{unique}")),
        }
        own
    }
}

pub fn ingress(name: &str, namespace: &str, label: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "TailnetIngress", "metadata": {"name": name, "namespace": namespace},
        "spec": {"tailnetRef": {"name": TAILNET}, "allowFrom": ["group:a"], "exposes": [
            {"name": "x", "dnsLabel": label, "port": 5432, "backend": {"service": "x", "port": 1}},
        ]},
    })
}

/// The `n`th pair: the kinds take turns.
pub fn pair(n: usize) -> Pair {
    let (a, b) = (format!("a{n}"), format!("b{n}"));
    let alone = |name: &str| egress(name, &[(&format!("svc-{name}"), "192.0.2.10", 5432)]);
    let site = |name: &str, prefix: String| installed::site(name, &[&prefix], TAILNET);
    let (rule, objects) = match n % 5 {
        0 => (
            "TN403",
            [
                site(&a, format!("10.{}.{}.0/24", n / 250, n % 250)),
                site(&b, format!("10.{}.{}.128/25", n / 250, n % 250)),
            ],
        ),
        1 => (
            "TN304",
            [
                ingress(&a, "team-a", &format!("portal-{n}")),
                ingress(&b, "team-b", &format!("portal-{n}")),
            ],
        ),
        2 => {
            let shared = format!("shared-{n}");
            (
                "TN202",
                [
                    egress(&a, &[(&shared, "192.0.2.10", 5432)]),
                    egress(&b, &[(&shared, "192.0.2.11", 5432)]),
                ],
            )
        }
        3 => {
            let mut objects = [alone(&a), alone(&b)];
            for object in &mut objects {
                object["spec"]["targets"][0]["aliases"] = json!([format!("db-{n}.example.com")]);
            }
            ("TN206", objects)
        }
        _ => {
            let mut objects = [alone(&a), ingress(&b, NAMESPACE, &b)];
            for object in &mut objects {
                object["spec"]["tag"] = json!(format!("tag:shared-{n}"));
            }
            ("TN005", objects)
        }
    };
    Pair {
        what: format!("pair {n} ({rule})"),
        number: n,
        objects,
        rule,
    }
}

/// Both requests of each pair at the same moment; the answers by pair.
pub fn at_once(
    bed: &Bed,
    pairs: &[Pair],
    ask: impl Fn(&Caller, &Pair, usize) -> Result<Said> + Sync,
) -> Result<Vec<[Said; 2]>> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for pair in pairs {
            let barrier = std::sync::Arc::new(Barrier::new(2));
            for side in 0..2 {
                let (barrier, ask, cluster) = (std::sync::Arc::clone(&barrier), &ask, bed.cluster);
                threads.push(scope.spawn(move || {
                    let caller = Caller::new(cluster)?;
                    // The connection is there before the race.
                    let ready = caller.get(&pair.objects[side]);
                    barrier.wait();
                    ready?;
                    ask(&caller, pair, side)
                }));
            }
        }
        let mut answers = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("panicked"))?);
        let mut by_pair = Vec::new();
        while let (Some(first), Some(second)) = (answers.next(), answers.next()) {
            by_pair.push([first?, second?]);
        }
        Ok(by_pair)
    })
}

/// One winner among the answers, or two who were let in and then one that the operator accepts: gives the winner, and whether
/// both were let in.
pub fn settle(bed: &Bed, pair: &Pair, said: &[Said; 2]) -> Result<(usize, bool)> {
    match [said[0].status.is_success(), said[1].status.is_success()] {
        [true, true] => Ok((bed.winner(pair)?, true)),
        [false, false] => bail!("{}: both were refused: {said:?}", pair.what),
        [first, _] => {
            let winner = usize::from(!first);
            let refused = &said[1 - winner];
            let holder = name_of(&pair.objects[winner]);
            ensure!(
                refused.status == 422 && refused.message().contains(&holder) && refused.message().contains(pair.rule),
                "{}: {refused:?}",
                pair.what
            );
            Ok((winner, false))
        }
    }
}
