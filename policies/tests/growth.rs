//! What many rivals cost: a verdict must not ask everybody about everybody.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::{Config, Layer, Operation, Request, Snapshot, evaluate, resolve_claims};

const NOW: &str = "2026-06-01T00:00:00Z";

fn tailnet() -> Value {
    json!({ "metadata": { "name": "corp" }, "spec": {
        "server": "https://control.example.net", "apiSecretRef": { "name": "x" },
        "dns": { "ingressNameTemplate": "{name}.example.net" },
        "policy": { "baseConfigMap": "p", "ingressSourceAllowlist": ["group:a"] },
    } })
}

fn created(at: usize) -> String {
    format!("2026-01-01T{:02}:{:02}:{:02}Z", at / 3600, at / 60 % 60, at % 60)
}

/// Many objects, and what all of them ask for.
fn rivals(count: usize, rival: &dyn Fn(usize) -> (Kind, Value)) -> (Snapshot, Vec<(Kind, Value)>) {
    let mut snapshot = Snapshot::closed(Config::default());
    snapshot.upsert(Kind::Tailnet, tailnet());
    let mut objects = Vec::new();
    for at in 0..count {
        let (kind, mut object) = rival(at);
        object["metadata"]["uid"] = json!(format!("uid-{at}"));
        object["metadata"]["creationTimestamp"] = json!(created(at));
        snapshot.upsert(kind, &object);
        objects.push((kind, object));
    }
    (snapshot, objects)
}

/// How long the record and a verdict on each of them take, from nothing and once more with the record.
fn time_of(count: usize, rival: &dyn Fn(usize) -> (Kind, Value)) -> Duration {
    let (mut snapshot, objects) = rivals(count, rival);
    let started = Instant::now();
    for _ in 0..2 {
        for (tailnet, claims) in resolve_claims(&snapshot, NOW) {
            snapshot.set_claims(&tailnet, Some(claims));
        }
        for (kind, object) in &objects {
            evaluate(&Request::guard(*kind, object.clone()), &snapshot);
        }
    }
    started.elapsed()
}

/// Four times as many rivals take at most `limit` times as long; the best of a few attempts, since others use the machine too.
fn grows_at_most(limit: f64, what: &str, rival: &dyn Fn(usize) -> (Kind, Value)) {
    let mut ratios = Vec::new();
    for _ in 0..6 {
        let few = time_of(150, rival).max(time_of(150, rival));
        let many = time_of(600, rival).min(time_of(600, rival));
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("{what}: 150 in {few:?}, 600 in {many:?}, ratio {ratio:.1}");
        if ratio <= limit {
            return;
        }
        ratios.push(ratio);
    }
    panic!("{what}: four times as many take {ratios:?} times as long, more than {limit}");
}

fn ingress(at: usize) -> (Kind, Value) {
    let object = json!({ "metadata": { "name": format!("i-{at}"), "namespace": "team-a" }, "spec": {
        "tailnetRef": { "name": "corp" }, "allowFrom": [],
        "exposes": [{ "name": "x", "port": 5432, "dnsLabel": format!("l-{at}"), "backend": { "service": "x", "port": 1 } }],
    } });
    (Kind::TailnetIngress, object)
}

#[test]
fn many_holders_of_one_tag_take_no_cubic_time() {
    let egress = |at: usize| {
        let object = json!({ "metadata": { "name": format!("e-{at}"), "namespace": "tailnet-system" }, "spec": {
            "tailnetRef": { "name": "corp" }, "tag": "tag:one", "consumerNamespaces": ["a"],
            "targets": [{ "name": format!("t-{at}"), "address": "192.0.2.1", "port": 1 }],
        } });
        (Kind::TailnetEgress, object)
    };
    grows_at_most(8.0, "egresses with one tag", &egress);
}

#[test]
fn many_that_a_rule_leaves_without_effect_take_no_cubic_time() {
    let withdrawn = |at: usize| {
        let (kind, mut object) = ingress(at);
        object["spec"]["allowFrom"] = json!(["group:b"]);
        object["spec"]["tag"] = json!("tag:one");
        object["spec"]["exposes"][0]["dnsLabel"] = json!("one");
        (kind, object)
    };
    grows_at_most(8.0, "ingresses without effect that want one name", &withdrawn);
}

#[test]
fn many_that_want_one_name_take_no_cubic_time() {
    let rival = |at: usize| {
        let (kind, mut object) = ingress(at);
        object["spec"]["exposes"][0]["dnsLabel"] = json!("one");
        object["spec"]["hostname"] = json!("one-team-a");
        (kind, object)
    };
    grows_at_most(8.0, "ingresses that want one name", &rival);
}

#[test]
fn many_objects_beside_each_other_grow_with_their_number() {
    grows_at_most(8.0, "ingresses beside each other", &ingress);
}

/// The question about a Tailnet of which one field is changed.
fn change(field: &str, value: Value) -> Request {
    let mut changed = tailnet();
    *changed["spec"].pointer_mut(field).unwrap() = value;
    let mut request = Request::for_object(Kind::Tailnet, changed, Layer::Webhook);
    request.operation = Operation::Update;
    request.old = Some(tailnet());
    request
}

/// How long a verdict on a change of the Tailnet takes, as in the webhook: on a copy.
fn time_of_change(snapshot: &Snapshot, request: &Request) -> Duration {
    let started = Instant::now();
    let copy = snapshot.clone();
    let copied = started.elapsed();
    let outcome = evaluate(request, &copy);
    let whole = started.elapsed();
    assert!(!outcome.denied());
    println!(
        "{} objects: copied in {copied:?}, evaluated in {:?}",
        snapshot.len(),
        whole - copied
    );
    whole
}

fn few_and_many() -> (usize, usize) {
    match std::env::var_os("TAILNET_LONG_TESTS") {
        Some(_) => (2500, 10_000),
        None => (250, 1000),
    }
}

/// A Tailnet that takes its names elsewhere: every object of it is asked about.
#[test]
fn a_change_of_a_tailnet_grows_with_its_members() {
    let (few, many) = few_and_many();
    let (few, many) = (rivals(few, &ingress).0, rivals(many, &ingress).0);
    let request = change("/dns/ingressNameTemplate", json!("{name}.{namespace}.example.org"));
    let ratios: Vec<f64> = (0..6)
        .map(|_| time_of_change(&many, &request).as_secs_f64() / time_of_change(&few, &request).as_secs_f64())
        .collect();
    assert!(ratios.iter().any(|ratio| *ratio <= 8.0), "{ratios:?}");
}

/// Who reads nothing of what changes is neither asked nor copied: forty times as many ingresses beside five sites.
#[test]
fn a_change_of_a_tailnet_costs_what_it_can_touch() {
    let count = few_and_many().1;
    let beside_sites = |count: usize| {
        let mut snapshot = rivals(count, &ingress).0;
        for at in 0..5 {
            let spec = json!({ "tailnetRef": { "name": "corp" }, "prefixes": [format!("10.{at}.0.0/16")], "advertisedBy": ["tag:router"] });
            snapshot.upsert(
                Kind::TailnetSite,
                json!({ "metadata": { "name": format!("s-{at}") }, "spec": spec }),
            );
        }
        snapshot
    };
    let (few, many) = (beside_sites(count / 40), beside_sites(count));
    let mut request = change("/server", json!("https://control.example.net"));
    request.new.as_mut().unwrap()["spec"]["reservedNetworks"] = json!(["10.3.0.0/16"]);
    let named = evaluate(&request, &many);
    assert!(
        named
            .warnings()
            .any(|finding| finding.rule == "TN107" && finding.detail.contains("TailnetSite s-3")),
        "{named:?}"
    );
    let ratios: Vec<f64> = (0..10)
        .map(|_| time_of_change(&many, &request).as_secs_f64() / time_of_change(&few, &request).as_secs_f64())
        .collect();
    assert!(ratios.iter().any(|ratio| *ratio <= 10.0), "{ratios:?}");
}

/// Of whoever reads what changes, only the rules that do are asked.
#[test]
fn a_change_of_a_tailnet_costs_less_than_asking_all_members() {
    let (snapshot, objects) = rivals(few_and_many().1, &ingress);
    let request = change("/policy/ingressSourceAllowlist", json!(["group:b"]));
    let ratios: Vec<f64> = (0..6)
        .map(|_| {
            let change = time_of_change(&snapshot, &request);
            let started = Instant::now();
            for (kind, object) in &objects {
                evaluate(&Request::guard(*kind, object.clone()), &snapshot);
            }
            change.as_secs_f64() / started.elapsed().as_secs_f64()
        })
        .collect();
    assert!(ratios.iter().any(|ratio| *ratio <= 0.5), "{ratios:?}");
}

/// More than linear: each has all others for rivals, in whose order it finds those that are named.
#[test]
fn many_sites_with_one_prefix_take_no_cubic_time() {
    let site = |at: usize| {
        let spec =
            json!({ "tailnetRef": { "name": "corp" }, "prefixes": ["192.0.2.0/24"], "advertisedBy": ["tag:router"] });
        (
            Kind::TailnetSite,
            json!({ "metadata": { "name": format!("s-{at}") }, "spec": spec }),
        )
    };
    grows_at_most(24.0, "sites with one prefix", &site);
}
