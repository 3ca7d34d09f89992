//! Ordinary set-ups are let in, in every order of applying them, and nobody is warned in vain.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::corpus::{self, Setup};
use tailnet_policies::{
    Config, Layer, Operation, Outcome, Request, Severity, Snapshot, defaults, evaluate, resolve_claims, with_defaults,
};

fn all() -> Vec<Setup> {
    corpus::load().unwrap_or_else(|error| panic!("{error}"))
}

fn long() -> bool {
    std::env::var_os("TAILNET_LONG_TESTS").is_some()
}

/// An installation that knows its ranges, as the chart tells it.
fn empty() -> Snapshot {
    Snapshot::closed(Config {
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        ..Config::default()
    })
}

/// A generator that gives the same orders every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// Orders of a set-up's objects: all of few, some of many.
fn orders(setup: &Setup) -> Vec<Vec<usize>> {
    let count = setup.objects.len();
    let forward: Vec<usize> = (0..count).collect();
    if setup.fixed_order {
        return vec![forward];
    }
    if count <= 4 {
        return permutations(&forward);
    }
    let mut orders = vec![forward.clone(), forward.iter().rev().copied().collect()];
    let mut dice = Dice(count as u64);
    for _ in 0..if long() { 60 } else { 6 } {
        let mut order = forward.clone();
        dice.shuffle(&mut order);
        orders.push(order);
    }
    orders
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in items.iter().enumerate() {
        let mut rest = items.to_vec();
        rest.remove(at);
        for mut tail in permutations(&rest) {
            tail.insert(0, *first);
            all.push(tail);
        }
    }
    all
}

/// Creates the object as the API server would: defaults, verdict, stored with a UID and an age.
fn create(kind: Kind, object: &Value, snapshot: &mut Snapshot, at: usize) -> Outcome {
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
    let mut stored = with_defaults(kind, namespace, object, snapshot);
    let outcome = evaluate(&Request::for_object(kind, stored.clone(), Layer::Webhook), snapshot);
    stored["metadata"]["uid"] = json!(format!("uid-{at}"));
    stored["metadata"]["creationTimestamp"] = json!(format!(
        "2026-01-01T{:02}:{:02}:{:02}Z",
        at / 3600,
        at / 60 % 60,
        at % 60
    ));
    snapshot.upsert(kind, stored);
    outcome
}

fn rules(outcome: &Outcome, severity: Severity) -> BTreeSet<String> {
    outcome
        .findings
        .iter()
        .filter(|finding| finding.severity == severity)
        .map(|finding| finding.rule.to_owned())
        .collect()
}

fn texts(outcome: &Outcome) -> String {
    outcome
        .findings
        .iter()
        .map(|finding| format!("\n  {finding}"))
        .collect()
}

#[test]
fn there_are_a_hundred_set_ups_of_all_kinds() {
    let setups = all();
    assert!(setups.len() >= 100, "{}", setups.len());
    for kind in Kind::ALL {
        let count = setups
            .iter()
            .filter(|setup| setup.objects.iter().any(|(k, _)| *k == kind))
            .count();
        assert!(count >= 10, "{kind}: {count}");
    }
    let mut seen = BTreeSet::new();
    for setup in &setups {
        for (kind, object) in &setup.objects {
            let metadata = &object["metadata"];
            let key = (*kind, metadata["namespace"].to_string(), metadata["name"].to_string());
            assert!(
                seen.insert(key),
                "{}: {kind} {} is in two set-ups",
                setup.name,
                metadata["name"]
            );
        }
    }
}

#[test]
fn no_order_of_applying_a_set_up_is_refused() {
    for setup in all() {
        let mut warned = BTreeSet::new();
        for order in orders(&setup) {
            let mut snapshot = empty();
            for (at, index) in order.iter().enumerate() {
                let (kind, object) = &setup.objects[*index];
                let outcome = create(*kind, object, &mut snapshot, at);
                assert!(
                    !outcome.denied(),
                    "{} in order {order:?}:{}",
                    setup.name,
                    texts(&outcome)
                );
                // What the object's Tailnet will say is not known before it is there, and that is said.
                let mut warnings = rules(&outcome, Severity::Warn);
                if warnings.remove("TN001") {
                    assert!(
                        !setup.objects[..].iter().any(|(kind, tailnet)| {
                            *kind == Kind::Tailnet
                                && snapshot
                                    .get(Kind::Tailnet, None, tailnet["metadata"]["name"].as_str().unwrap())
                                    .is_some()
                                && object.pointer("/spec/tailnetRef/name") == Some(&tailnet["metadata"]["name"])
                        }),
                        "{}: its Tailnet is there",
                        setup.name
                    );
                }
                assert!(
                    warnings.is_subset(&setup.warns),
                    "{} in order {order:?} is warned about in vain:{}",
                    setup.name,
                    texts(&outcome)
                );
                warned.extend(warnings);
            }
            // Once more, as GitOps tools do: nothing to refuse, and the warnings that the file names.
            for (kind, object) in &setup.objects {
                let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
                let stored = with_defaults(*kind, namespace, object, &snapshot);
                let mut again = Request::for_object(*kind, stored.clone(), Layer::Webhook);
                again.operation = Operation::Update;
                again.old = Some(stored);
                let outcome = evaluate(&again, &snapshot);
                assert!(!outcome.denied(), "{} again:{}", setup.name, texts(&outcome));
                let warnings = rules(&outcome, Severity::Warn);
                assert!(
                    warnings.is_subset(&setup.warns),
                    "{} again:{}",
                    setup.name,
                    texts(&outcome)
                );
                warned.extend(warnings);
            }
        }
        assert_eq!(
            warned, setup.warns,
            "{}: the file names warnings that are not given",
            setup.name
        );
    }
}

#[test]
fn the_guard_and_lint_accept_what_the_webhook_accepts() {
    for setup in all() {
        let mut snapshot = empty();
        for (at, (kind, object)) in setup.objects.iter().enumerate() {
            create(*kind, object, &mut snapshot, at);
        }
        for layer in [Layer::Guard, Layer::Lint] {
            // In the guard an announced rename waits for the old object, and a repository has only the new one.
            if setup.fixed_order {
                continue;
            }
            for (kind, object) in &setup.objects {
                let mut asked = object.clone();
                if layer == Layer::Guard {
                    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
                    asked = with_defaults(*kind, namespace, object, &snapshot);
                    let name = object["metadata"]["name"].as_str().unwrap();
                    let stored = snapshot.get(*kind, namespace, name).unwrap();
                    asked["metadata"]["uid"] = json!(stored.uid);
                    asked["metadata"]["creationTimestamp"] = json!(stored.created);
                }
                let outcome = evaluate(&Request::for_object(*kind, asked, layer), &snapshot);
                assert!(!outcome.denied(), "{} in {layer:?}:{}", setup.name, texts(&outcome));
            }
        }
    }
}

#[test]
fn all_set_ups_fit_one_cluster_and_everybody_holds_what_he_asked_for() {
    let setups = all();
    let mut dice = Dice(11);
    let mut last = None;
    for round in 0..if long() { 20 } else { 3 } {
        let mut objects: Vec<&(Kind, Value)> = setups
            .iter()
            .filter(|setup| !setup.fixed_order)
            .flat_map(|setup| &setup.objects)
            .collect();
        if round > 0 {
            dice.shuffle(&mut objects);
        }
        let mut snapshot = empty();
        for (at, (kind, object)) in objects.iter().enumerate() {
            let outcome = create(*kind, object, &mut snapshot, at);
            assert!(
                !outcome.denied(),
                "round {round}, {kind} {}:{}",
                object["metadata"]["name"],
                texts(&outcome)
            );
        }
        let claims = resolve_claims(&snapshot, "2026-02-01T00:00:00Z");
        for (tailnet, claims) in &claims {
            snapshot.set_claims(tailnet, Some(claims.clone()));
        }
        assert_eq!(
            resolve_claims(&snapshot, "2026-03-01T00:00:00Z"),
            claims,
            "the record is settled at once"
        );
        // Whoever came first: the same objects hold the same things.
        let holders: BTreeSet<String> = claims
            .iter()
            .flat_map(|(tailnet, claims)| {
                claims.claims.iter().map(move |(key, claim)| {
                    format!("{tailnet} {key} {} {:?} {}", claim.kind, claim.namespace, claim.name)
                })
            })
            .collect();
        assert_eq!(*last.get_or_insert_with(|| holders.clone()), holders, "round {round}");
    }
}

/// Fields of a newer version are kept, and a second run of the defaults adds nothing.
#[test]
fn defaults_keep_what_they_do_not_know() {
    for setup in all() {
        let mut snapshot = empty();
        for (at, (kind, object)) in setup.objects.iter().enumerate() {
            create(*kind, object, &mut snapshot, at);
        }
        for (kind, object) in &setup.objects {
            let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
            let mut newer = object.clone();
            newer["spec"]["ofANewerVersion"] = json!({ "list": [1, null, { "deep": "x" }], "1e400": 1.5 });
            newer["futureTopLevel"] = json!(true);
            let once = with_defaults(*kind, namespace, &newer, &snapshot);
            assert_eq!(
                once["spec"]["ofANewerVersion"], newer["spec"]["ofANewerVersion"],
                "{}",
                setup.name
            );
            assert_eq!(once["futureTopLevel"], json!(true));
            assert!(
                defaults(*kind, namespace, &once, &snapshot).is_empty(),
                "{}",
                setup.name
            );
            for operation in &defaults(*kind, namespace, &newer, &snapshot) {
                assert!(matches!(operation, json_patch::PatchOperation::Add(_)), "{operation:?}");
            }
        }
    }
}
