//! Precedence, claims, the second look, and a snapshot that follows its cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::time::Duration;

use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::claims::{ClaimKey, Claims};
use tailnet_policies::facts::{FORMAT_VERSION, Facts};
use tailnet_policies::{
    Config, Layer, ObjectRef, Operation, Outcome, Request, Snapshot, evaluate, evaluate_ignoring, resolve_claims,
};

const OLD: &str = "2026-01-01T00:00:00Z";
const YOUNG: &str = "2026-02-01T00:00:00Z";
const NOW: &str = "2026-03-01T00:00:00Z";

fn tailnet(spec: Value) -> Value {
    let mut all = json!({ "server": "https://control.example.net", "apiSecretRef": { "name": "key" } });
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    json!({ "metadata": { "name": "corp", "creationTimestamp": OLD }, "spec": all })
}

fn site(name: &str, prefix: &str, created: &str) -> Value {
    json!({
        "metadata": { "name": name, "creationTimestamp": created, "uid": format!("uid-{name}") },
        "spec": { "tailnetRef": { "name": "corp" }, "prefixes": [prefix], "advertisedBy": ["tag:router"] },
    })
}

fn egress(name: &str, service: &str, created: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "tailnet-system", "creationTimestamp": created, "uid": format!("uid-{name}") },
        "spec": {
            "tailnetRef": { "name": "corp" }, "consumerNamespaces": ["team-a"],
            "targets": [{ "name": service, "address": "192.0.2.10", "port": 5432 }],
        },
    })
}

fn ingress(namespace: &str, name: &str, created: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": namespace, "creationTimestamp": created, "uid": format!("uid-{namespace}-{name}") },
        "spec": {
            "tailnetRef": { "name": "corp" }, "allowFrom": [],
            "exposes": [{ "name": "web", "port": 443, "dnsLabel": "portal", "backend": { "service": "web", "port": 80 } }],
        },
    })
}

fn snapshot(objects: &[(Kind, Value)]) -> Snapshot {
    let mut snapshot = Snapshot::closed(Config::default());
    snapshot.upsert(Kind::Tailnet, tailnet(json!({})));
    for (kind, object) in objects {
        snapshot.upsert(*kind, object);
    }
    snapshot
}

fn denials(outcome: &Outcome) -> Vec<&'static str> {
    outcome.denials().map(|finding| finding.rule).collect()
}

fn guard(kind: Kind, object: &Value, snapshot: &Snapshot) -> Vec<&'static str> {
    denials(&evaluate(&Request::guard(kind, object.clone()), snapshot))
}

#[test]
fn of_two_that_exist_exactly_the_younger_loses() {
    let (a, b) = (site("a", "10.0.0.0/16", YOUNG), site("b", "10.0.1.0/24", OLD));
    let snapshot = snapshot(&[(Kind::TailnetSite, a.clone()), (Kind::TailnetSite, b.clone())]);
    assert_eq!(guard(Kind::TailnetSite, &a, &snapshot), ["TN403"]);
    assert!(guard(Kind::TailnetSite, &b, &snapshot).is_empty());
}

#[test]
fn of_two_of_one_second_the_name_decides() {
    let (a, b) = (egress("a", "db", OLD), egress("b", "db", OLD));
    let snapshot = snapshot(&[(Kind::TailnetEgress, b.clone()), (Kind::TailnetEgress, a.clone())]);
    assert!(guard(Kind::TailnetEgress, &a, &snapshot).is_empty());
    assert_eq!(guard(Kind::TailnetEgress, &b, &snapshot), ["TN202"]);
}

#[test]
fn the_record_decides_against_the_age() {
    let (young, old) = (site("young", "10.0.0.0/16", YOUNG), site("old", "10.0.1.0/24", OLD));
    let mut first = snapshot(&[(Kind::TailnetSite, young.clone())]);
    let claims = resolve_claims(&first, NOW).remove("corp").unwrap();
    first.upsert(Kind::TailnetSite, old.clone());
    first.set_claims("corp", Some(claims.clone()));
    assert!(guard(Kind::TailnetSite, &young, &first).is_empty());
    assert_eq!(guard(Kind::TailnetSite, &old, &first), ["TN403"]);
    // The record stays as it is while the holder stays, and follows when it goes.
    let later = &resolve_claims(&first, "2026-04-01T00:00:00Z")["corp"];
    let prefixes = |claims: &Claims| {
        let mut claims = claims.claims.clone();
        claims.retain(|key, _| key.starts_with("prefix:"));
        claims
    };
    assert_eq!(prefixes(later), prefixes(&claims));
    first.remove(Kind::TailnetSite, None, "young");
    let after = resolve_claims(&first, "2026-04-01T00:00:00Z").remove("corp").unwrap();
    assert_eq!(
        after
            .holder(&ClaimKey::Prefix("10.0.1.0/24".parse().unwrap()))
            .unwrap()
            .name,
        "old"
    );
}

#[test]
fn claims_and_guard_agree_on_one_winner_for_every_pair() {
    let pairs: [(Kind, Value, Value); 3] = [
        (
            Kind::TailnetSite,
            site("a", "10.0.0.0/8", OLD),
            site("b", "10.9.0.0/16", OLD),
        ),
        (Kind::TailnetEgress, egress("a", "db", OLD), egress("b", "db", OLD)),
        (
            Kind::TailnetIngress,
            ingress("team-a", "x", OLD),
            ingress("team-b", "x", OLD),
        ),
    ];
    for (kind, a, b) in pairs {
        for order in [[&a, &b], [&b, &a]] {
            let mut snapshot = Snapshot::closed(Config::default());
            let dns = json!({ "dns": { "ingressNameTemplate": "{name}.lab.example.net" } });
            snapshot.upsert(Kind::Tailnet, tailnet(dns));
            for object in order {
                snapshot.upsert(kind, object);
            }
            for _ in 0..2 {
                let verdicts = [&a, &b].map(|object| guard(kind, object, &snapshot).is_empty());
                assert_eq!(verdicts, [true, false], "{kind}");
                for (name, claims) in resolve_claims(&snapshot, NOW) {
                    snapshot.set_claims(&name, Some(claims));
                }
            }
        }
    }
}

#[test]
fn an_object_that_a_security_rule_refuses_holds_nothing() {
    let mut foreign = ingress("team-a", "x", OLD);
    foreign["spec"]["tag"] = "tag:admin".into();
    let mut snapshot = snapshot(&[
        (Kind::TailnetIngress, foreign),
        (Kind::TailnetIngress, ingress("team-b", "y", YOUNG)),
    ]);
    let claims = resolve_claims(&snapshot, NOW).remove("corp").unwrap();
    assert!(claims.holder(&ClaimKey::Tag("tag:admin".into())).is_none());
    assert!(claims.claims.values().all(|claim| claim.name == "y"), "{claims:?}");
    // And loses what it had.
    let mut had = Claims::empty();
    let mut claim = claims.claims.values().next().unwrap().clone();
    (claim.name, claim.namespace, claim.uid) = ("x".into(), Some("team-a".into()), Some("uid-team-a-x".into()));
    had.claims.insert("tag:tag:admin".into(), claim);
    snapshot.set_claims("corp", Some(had));
    assert!(
        resolve_claims(&snapshot, NOW)["corp"]
            .holder(&ClaimKey::Tag("tag:admin".into()))
            .is_none()
    );
}

#[test]
fn what_is_frozen_keeps_what_it_has_and_gets_nothing_new() {
    let mut snapshot = snapshot(&[(Kind::TailnetEgress, egress("a", "db", OLD))]);
    let claims = resolve_claims(&snapshot, NOW).remove("corp").unwrap();
    assert!(claims.holder(&ClaimKey::Service("db".into())).is_some());
    snapshot.set_claims("corp", Some(claims));
    // An upgrade brings a rule that the object breaks, and the object changes.
    let mut wrong = egress("a", "db", OLD);
    wrong["spec"]["consumerNamespaces"] = json!(["Team A"]);
    wrong["spec"]["targets"][0]["protocol"] = "UDP".into();
    wrong["spec"]["targets"][0]["address"] = "127.0.0.1".into();
    wrong["spec"]["targets"][0]["aliases"] = json!(["new.example.net"]);
    snapshot.upsert(Kind::TailnetEgress, wrong);
    let claims = resolve_claims(&snapshot, NOW).remove("corp").unwrap();
    assert!(claims.holder(&ClaimKey::Service("db".into())).is_some());
    assert!(claims.holder(&ClaimKey::Name("new.example.net".into())).is_none());
    // The same while its Tailnet is away.
    snapshot.set_claims("corp", Some(claims));
    snapshot.remove(Kind::Tailnet, None, "corp");
    assert!(
        resolve_claims(&snapshot, NOW)["corp"]
            .holder(&ClaimKey::Service("db".into()))
            .is_some()
    );
}

#[test]
fn services_are_held_across_tailnets() {
    let mut other = egress("b", "db", YOUNG);
    other["spec"]["tailnetRef"]["name"] = "lab".into();
    let mut snapshot = snapshot(&[
        (Kind::TailnetEgress, egress("a", "db", OLD)),
        (Kind::TailnetEgress, other.clone()),
    ]);
    let mut lab = tailnet(json!({ "server": "https://lab.example.net" }));
    lab["metadata"]["name"] = "lab".into();
    snapshot.upsert(Kind::Tailnet, lab);
    let claims = resolve_claims(&snapshot, NOW);
    let key = ClaimKey::Service("db".into());
    assert!(claims["corp"].holder(&key).is_some());
    assert!(claims["lab"].holder(&key).is_none());
    assert_eq!(guard(Kind::TailnetEgress, &other, &snapshot), ["TN202"]);
}

#[test]
fn a_denial_names_its_holder_and_a_second_look_leaves_it_out() {
    let snapshot = snapshot(&[
        (Kind::TailnetSite, site("lab", "10.0.0.0/16", OLD)),
        (Kind::TailnetSite, site("lab2", "10.1.0.0/16", OLD)),
    ]);
    let request = Request::for_object(Kind::TailnetSite, site("new", "10.0.0.0/15", NOW), Layer::Webhook);
    let outcome = evaluate(&request, &snapshot);
    let holders = outcome.holders();
    assert_eq!(
        holders,
        [
            ObjectRef::ours(Kind::TailnetSite, None, "lab"),
            ObjectRef::ours(Kind::TailnetSite, None, "lab2")
        ]
    );
    assert_eq!(
        denials(&evaluate_ignoring(&request, &snapshot, &holders[..1])),
        ["TN403"]
    );
    assert!(!evaluate_ignoring(&request, &snapshot, &holders).denied());
}

#[test]
fn a_service_that_is_gone_is_left_out_too() {
    let mut snapshot = snapshot(&[]);
    snapshot.set_services_known(true);
    snapshot.upsert_service(json!({ "metadata": { "name": "db", "namespace": "tailnet-system" } }));
    let request = Request::for_object(Kind::TailnetEgress, egress("a", "db", NOW), Layer::Webhook);
    let outcome = evaluate(&request, &snapshot);
    assert_eq!(outcome.holders(), [ObjectRef::service("tailnet-system", "db")]);
    assert!(!evaluate_ignoring(&request, &snapshot, &outcome.holders()).denied());
    snapshot.remove_service("tailnet-system", "db");
    assert!(!evaluate(&request, &snapshot).denied());
}

#[test]
fn names_follow_the_template_of_the_tailnet() {
    let mut snapshot = snapshot(&[(Kind::TailnetIngress, ingress("team-a", "x", OLD))]);
    let mut asks = egress("b", "db", NOW);
    asks["spec"]["targets"][0]["aliases"] = json!(["portal.lab.example.net"]);
    let request = Request::for_object(Kind::TailnetEgress, asks, Layer::Webhook);
    assert!(!evaluate(&request, &snapshot).denied());
    let dns = |template: &str| tailnet(json!({ "dns": { "ingressNameTemplate": template } }));
    snapshot.upsert(Kind::Tailnet, dns("{name}.lab.example.net"));
    assert_eq!(denials(&evaluate(&request, &snapshot)), ["TN206"]);
    snapshot.upsert(Kind::Tailnet, dns("{name}.other.example.net"));
    assert!(!evaluate(&request, &snapshot).denied());
}

#[test]
fn incomplete_lists_are_noted_and_deny_only_what_is_known() {
    let mut snapshot = Snapshot::new(Config::default());
    let request = Request::for_object(Kind::TailnetSite, site("new", "10.0.0.0/16", NOW), Layer::Webhook);
    let outcome = evaluate(&request, &snapshot);
    assert!(outcome.findings.is_empty(), "{outcome:?}");
    assert!(
        outcome
            .notes
            .iter()
            .any(|note| note.contains("not every TailnetSite is known here") && note.contains("TN403")),
        "{outcome:?}"
    );
    assert!(
        outcome
            .notes
            .iter()
            .any(|note| note.contains("not every Tailnet is known here") && note.contains("TN001")),
        "{outcome:?}"
    );
    snapshot.upsert(Kind::TailnetSite, site("lab", "10.0.0.0/8", OLD));
    assert_eq!(denials(&evaluate(&request, &snapshot)), ["TN403"]);
    for kind in Kind::ALL {
        snapshot.set_complete(kind, true);
    }
    assert!(
        !evaluate(&request, &snapshot)
            .notes
            .iter()
            .any(|note| note.contains("not every"))
    );
}

#[test]
fn an_announced_rename_is_admitted_and_waits() {
    let old = egress("old", "db", OLD);
    let mut new = egress("new", "db", NOW);
    new["metadata"]["annotations"] = json!({ "tsunaro.io/takes-over": "TailnetEgress/tailnet-system/old" });
    let mut snapshot = snapshot(&[(Kind::TailnetEgress, old), (Kind::TailnetEgress, new.clone())]);
    assert!(
        !evaluate(
            &Request::for_object(Kind::TailnetEgress, new.clone(), Layer::Webhook),
            &snapshot
        )
        .denied()
    );
    assert_eq!(guard(Kind::TailnetEgress, &new, &snapshot), ["TN202"]);
    snapshot.remove(Kind::TailnetEgress, Some("tailnet-system"), "old");
    assert!(guard(Kind::TailnetEgress, &new, &snapshot).is_empty());
}

#[test]
fn an_object_made_anew_does_not_inherit() {
    let mut snapshot = snapshot(&[(Kind::TailnetSite, site("a", "10.0.0.0/16", OLD))]);
    let claims = resolve_claims(&snapshot, NOW).remove("corp").unwrap();
    snapshot.set_claims("corp", Some(claims));
    let mut anew = site("a", "10.0.0.0/16", NOW);
    anew["metadata"]["uid"] = "another".into();
    let rival = site("b", "10.0.0.0/16", YOUNG);
    snapshot.upsert(Kind::TailnetSite, &anew);
    snapshot.upsert(Kind::TailnetSite, &rival);
    assert_eq!(guard(Kind::TailnetSite, &anew, &snapshot), ["TN403"]);
    assert!(guard(Kind::TailnetSite, &rival, &snapshot).is_empty());
}

#[test]
fn facts_and_their_age_are_kept() {
    let mut snapshot = snapshot(&[]);
    let facts = Facts {
        version: FORMAT_VERSION,
        ..Facts::default()
    };
    snapshot.set_facts("corp", Some(facts), Duration::from_secs(5));
    snapshot.set_facts_age("corp", Duration::from_secs(20));
    assert_eq!(snapshot.facts("corp").unwrap().age, Duration::from_secs(20));
    snapshot.set_facts("corp", None, Duration::ZERO);
    assert!(snapshot.facts("corp").is_none());
}

#[test]
fn a_deletion_is_let_in() {
    let snapshot = snapshot(&[(Kind::TailnetSite, site("a", "10.0.0.0/16", OLD))]);
    let request = Request {
        operation: Operation::Delete,
        old: Some(site("a", "10.0.0.0/16", OLD)),
        new: None,
        ..Request::for_object(Kind::TailnetSite, Value::Null, Layer::Webhook)
    };
    assert_eq!(evaluate(&request, &snapshot), Outcome::default());
}

#[test]
fn a_watch_that_begins_anew_leaves_nothing_behind() {
    let mut snapshot = snapshot(&[(Kind::TailnetSite, site("a", "10.0.0.0/16", OLD))]);
    assert_eq!(snapshot.len(), 2);
    snapshot.clear(Kind::TailnetSite);
    assert!(snapshot.get(Kind::TailnetSite, None, "a").is_none());
    let request = Request::for_object(Kind::TailnetSite, site("b", "10.0.0.0/16", NOW), Layer::Webhook);
    assert!(!evaluate(&request, &snapshot).denied());
}

/// What a tenant was let in with while nobody could check it, does not keep the right owner out.
#[test]
fn what_a_security_rule_withdraws_blocks_nobody() {
    let mut foreign = ingress("team-a", "x", OLD);
    foreign["spec"]["tag"] = "tag:db".into();
    let mut wants = egress("a", "db", NOW);
    wants["spec"]["tag"] = "tag:db".into();
    let ask = |snapshot: &Snapshot| {
        let request = Request::for_object(Kind::TailnetEgress, wants.clone(), Layer::Webhook);
        denials(&evaluate(&request, snapshot))
    };
    let mut snapshot = snapshot(&[(Kind::TailnetIngress, foreign.clone())]);
    assert!(ask(&snapshot).is_empty());
    // It loses against the younger owner in the guard too.
    snapshot.upsert(Kind::TailnetEgress, wants.clone());
    assert!(guard(Kind::TailnetEgress, &wants, &snapshot).is_empty());
    assert!(guard(Kind::TailnetIngress, &foreign, &snapshot).contains(&"TN011"));
    let claims = resolve_claims(&snapshot, NOW).remove("corp").unwrap();
    let key = ClaimKey::Tag("tag:db".into());
    assert_eq!(claims.holder(&key).map(|claim| claim.name.as_str()), Some("a"));
    // Nor does it keep a router from the tag.
    snapshot.remove(Kind::TailnetEgress, Some("tailnet-system"), "a");
    let mut router = site("lab", "10.0.0.0/16", NOW);
    router["spec"]["advertisedBy"] = json!(["tag:db"]);
    let request = Request::for_object(Kind::TailnetSite, router, Layer::Webhook);
    assert!(denials(&evaluate(&request, &snapshot)).is_empty());
    // Granted by the administrator, it has effect and counts.
    snapshot.upsert(
        Kind::Tailnet,
        tailnet(json!({ "tagGrants": [{ "namespaces": ["team-a"], "tags": ["tag:db"] }] })),
    );
    assert_eq!(ask(&snapshot), ["TN005"]);
    // While the Tailnet is away nobody can say that it has none.
    snapshot.remove(Kind::Tailnet, None, "corp");
    assert_eq!(ask(&snapshot), ["TN005"]);
}

/// A source that the administrator does not allow costs the ingress its name as well.
#[test]
fn a_name_of_an_ingress_without_effect_is_free() {
    let dns = json!({ "ingressNameTemplate": "{name}.lab.example.net" });
    let policy = |allowed: Value| {
        tailnet(json!({ "dns": dns, "policy": { "baseConfigMap": "base", "ingressSourceAllowlist": allowed } }))
    };
    let mut first = ingress("team-a", "x", OLD);
    first["spec"]["allowFrom"] = json!(["group:team-a"]);
    let mut snapshot = Snapshot::closed(Config::default());
    snapshot.upsert(Kind::Tailnet, policy(json!(["group:team-a"])));
    snapshot.upsert(Kind::TailnetIngress, first);
    let request = Request::for_object(Kind::TailnetIngress, ingress("team-b", "y", NOW), Layer::Webhook);
    assert_eq!(denials(&evaluate(&request, &snapshot)), ["TN304"]);
    snapshot.upsert(Kind::Tailnet, policy(json!(["group:ops"])));
    assert!(denials(&evaluate(&request, &snapshot)).is_empty());
}

/// Admitted by an older version, a rename across namespaces waits in vain.
#[test]
fn a_tenant_does_not_inherit_from_another_namespace() {
    let holder = ingress("team-a", "x", OLD);
    let mut camper = ingress("team-b", "x", YOUNG);
    camper["metadata"]["annotations"] = json!({ "tsunaro.io/takes-over": "TailnetIngress/team-a/x" });
    let mut snapshot = Snapshot::closed(Config::default());
    let dns = json!({ "dns": { "ingressNameTemplate": "{name}.lab.example.net" } });
    snapshot.upsert(Kind::Tailnet, tailnet(dns));
    snapshot.upsert(Kind::TailnetIngress, &holder);
    let request = Request::for_object(Kind::TailnetIngress, camper.clone(), Layer::Webhook);
    assert_eq!(denials(&evaluate(&request, &snapshot)), ["TN013", "TN304"]);
    snapshot.upsert(Kind::TailnetIngress, &camper);
    snapshot.remove(Kind::TailnetIngress, Some("team-a"), "x");
    assert!(resolve_claims(&snapshot, NOW)["corp"].claims.is_empty());
}
