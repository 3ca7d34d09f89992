//! What a restored record of claims keeps, from the record to the guard's verdict.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::claims::Claims;
use tailnet_policies::{Config, Finding, Layer, Request, Snapshot, evaluate, resolve_claims};

const OLD: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-06-01T00:00:00Z";
const UNTIL: &str = "2026-06-01T00:10:00Z";
const OVER: &str = "2026-06-01T00:10:01Z";

fn tailnet(name: &str) -> Value {
    json!({ "metadata": { "name": name, "uid": name }, "spec": {
        "server": format!("https://{name}.example.net"), "apiSecretRef": { "name": name },
        "dns": { "ingressNameTemplate": "{name}.example.net" },
        "policy": { "baseConfigMap": "p", "ingressSourceAllowlist": ["group:a"] },
    } })
}

fn site(name: &str, prefix: &str) -> (Kind, Value) {
    let spec =
        json!({ "tailnetRef": { "name": "corp" }, "prefixes": [prefix], "advertisedBy": [format!("tag:{name}")] });
    (Kind::TailnetSite, json!({ "metadata": { "name": name }, "spec": spec }))
}

fn ingress(namespace: &str, label: &str) -> (Kind, Value) {
    let spec = json!({ "tailnetRef": { "name": "corp" }, "allowFrom": [], "exposes": [
        { "name": "x", "port": 5432, "dnsLabel": label, "backend": { "service": "x", "port": 1 } },
    ] });
    (
        Kind::TailnetIngress,
        json!({ "metadata": { "name": "x", "namespace": namespace }, "spec": spec }),
    )
}

fn egress(tailnet: &str, name: &str, service: &str) -> (Kind, Value) {
    let spec = json!({ "tailnetRef": { "name": tailnet }, "consumerNamespaces": ["a"], "targets": [
        { "name": service, "address": "192.0.2.1", "port": 1 },
    ] });
    (
        Kind::TailnetEgress,
        json!({ "metadata": { "name": name, "namespace": "tailnet-system" }, "spec": spec }),
    )
}

fn uid(object: &Value, life: &str) -> String {
    let metadata = &object["metadata"];
    format!("{life} {} {}", metadata["namespace"], metadata["name"])
}

/// As stored, at a time, with a UID of that life of the cluster.
fn stored((kind, object): &(Kind, Value), life: &str, created: &str) -> (Kind, Value) {
    let mut object = object.clone();
    object["metadata"]["uid"] = json!(uid(&object, life));
    object["metadata"]["creationTimestamp"] = json!(created);
    (*kind, object)
}

struct Cluster(Snapshot);

impl Cluster {
    /// Empty but for what the records keep for `had`.
    fn restored(had: &[(Kind, Value)]) -> Self {
        let mut before = Snapshot::closed(Config::default());
        for name in ["corp", "lab"] {
            before.upsert(Kind::Tailnet, tailnet(name));
        }
        for object in had {
            let (kind, object) = stored(object, "old", OLD);
            before.upsert(kind, object);
        }
        let mut after = Snapshot::closed(Config::default());
        for (tailnet, claims) in resolve_claims(&before, OLD) {
            after.set_claims(&tailnet, Some(claims.restored(UNTIL)));
        }
        Self(after)
    }

    fn with_tailnets(mut self) -> Self {
        for name in ["corp", "lab"] {
            self.0.upsert(Kind::Tailnet, tailnet(name));
        }
        self
    }

    fn store(&mut self, object: &(Kind, Value), created: &str) {
        let (kind, object) = stored(object, "new", created);
        self.0.upsert(kind, object);
    }

    /// The operator decides and writes it down.
    fn settle(&mut self, now: &str) -> BTreeMap<String, Claims> {
        let decided = resolve_claims(&self.0, now);
        for (tailnet, claims) in &decided {
            self.0.set_claims(tailnet, Some(claims.clone()));
        }
        decided
    }

    fn denials(&self, object: &(Kind, Value), created: &str) -> Vec<Finding> {
        let (kind, object) = stored(object, "new", created);
        evaluate(&Request::guard(kind, object), &self.0)
            .denials()
            .cloned()
            .collect()
    }

    fn created(&self, (kind, object): &(Kind, Value)) -> Vec<String> {
        let outcome = evaluate(&Request::for_object(*kind, object.clone(), Layer::Webhook), &self.0);
        outcome.denials().map(ToString::to_string).collect()
    }
}

fn rules(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn the_rival_waits_and_the_holder_has_it_when_it_comes() {
    for (holder, rival, rule) in [
        (site("holder", "10.0.0.0/16"), site("rival", "10.0.3.0/24"), "TN403"),
        (ingress("team-a", "portal"), ingress("team-b", "portal"), "TN304"),
        (egress("corp", "holder", "db"), egress("corp", "rival", "db"), "TN202"),
        // Services share one namespace, whatever the Tailnet.
        (egress("corp", "holder", "db"), egress("lab", "rival", "db"), "TN202"),
    ] {
        let mut cluster = Cluster::restored(std::slice::from_ref(&holder)).with_tailnets();
        assert!(cluster.created(&rival).is_empty(), "{rule}: a restore must not fail");
        cluster.store(&rival, NOW);
        cluster.settle(NOW);
        let denials = cluster.denials(&rival, NOW);
        assert_eq!(rules(&denials), ["TN018"], "{rule}");
        let name = holder.1["metadata"]["name"].as_str().unwrap();
        assert_eq!(denials[0].holder.as_ref().unwrap().name, name);

        assert!(
            cluster.created(&holder).is_empty(),
            "{rule}: {:?}",
            cluster.created(&holder)
        );
        cluster.store(&holder, UNTIL);
        let decided = cluster.settle(NOW);
        assert!(cluster.denials(&holder, UNTIL).is_empty());
        let denials = cluster.denials(&rival, NOW);
        assert_eq!(rules(&denials), [rule]);
        let kept = decided.values().flat_map(|claims| claims.claims.values());
        assert!(kept.clone().all(|claim| claim.reserved_until.is_none()), "{decided:?}");
        let uid = uid(&holder.1, "new");
        let held: Vec<_> = kept.filter(|claim| claim.uid.as_ref() == Some(&uid)).collect();
        assert!(
            !held.is_empty() && held.iter().all(|claim| claim.since == OLD),
            "{rule}: {held:?}"
        );
    }
}

#[test]
fn who_never_comes_back_or_asks_for_something_else_keeps_nobody_out() {
    let (holder, rival) = (site("holder", "10.0.0.0/16"), site("rival", "10.0.3.0/24"));
    let mut cluster = Cluster::restored(std::slice::from_ref(&holder)).with_tailnets();
    cluster.store(&rival, NOW);
    cluster.settle(NOW);
    assert_eq!(rules(&cluster.denials(&rival, NOW)), ["TN018"]);
    let decided = cluster.settle(OVER);
    assert!(cluster.denials(&rival, NOW).is_empty());
    assert!(
        decided["corp"].claims["prefix:10.0.3.0/24"].name == "rival",
        "{decided:?}"
    );

    let mut cluster = Cluster::restored(std::slice::from_ref(&holder)).with_tailnets();
    cluster.store(&rival, NOW);
    cluster.settle(NOW);
    cluster.store(&site("holder", "10.9.0.0/16"), NOW);
    cluster.settle(NOW);
    assert!(cluster.denials(&rival, NOW).is_empty());
}

/// Names come from the Tailnet's templates: without it, nobody knows what an object that is back asks for.
#[test]
fn nothing_is_let_go_while_the_tailnet_is_not_back() {
    let holder = ingress("team-a", "portal");
    let mut cluster = Cluster::restored(std::slice::from_ref(&holder));
    cluster.store(&holder, NOW);
    let decided = cluster.settle(NOW);
    assert!(
        decided["corp"].claims.contains_key("name:portal.example.net"),
        "{decided:?}"
    );
    let mut cluster = cluster.with_tailnets();
    let rival = ingress("team-b", "portal");
    cluster.store(&rival, OLD);
    let decided = cluster.settle(NOW);
    assert_eq!(
        decided["corp"].claims["name:portal.example.net"].namespace.as_deref(),
        Some("team-a")
    );
    assert_eq!(rules(&cluster.denials(&rival, OLD)), ["TN304"]);
}

/// A record of the same life of the cluster keeps nothing for a name: another tenant may have it by now.
#[test]
fn without_a_restore_a_name_is_worth_nothing() {
    let holder = ingress("team-a", "portal");
    let mut before = Snapshot::closed(Config::default());
    before.upsert(Kind::Tailnet, tailnet("corp"));
    let (kind, object) = stored(&holder, "old", OLD);
    before.upsert(kind, object);
    let record = resolve_claims(&before, OLD)["corp"].clone();
    let mut cluster = Cluster(Snapshot::closed(Config::default())).with_tailnets();
    cluster.0.set_claims("corp", Some(record));
    let rival = ingress("team-b", "portal");
    cluster.store(&rival, OLD);
    // Made anew, in a namespace that was made anew.
    cluster.store(&holder, NOW);
    cluster.settle(NOW);
    assert!(cluster.denials(&rival, OLD).is_empty());
    assert_eq!(rules(&cluster.denials(&holder, NOW)), ["TN304"]);
}

#[test]
fn the_annotation_that_skips_rules_skips_no_reservation() {
    let (holder, mut rival) = (site("holder", "10.0.0.0/16"), site("rival", "10.0.3.0/24"));
    rival.1["metadata"]["annotations"] = json!({ "tsunaro.io/validation": "disabled" });
    let mut cluster = Cluster::restored(std::slice::from_ref(&holder)).with_tailnets();
    cluster.store(&rival, NOW);
    let decided = cluster.settle(NOW);
    assert_eq!(rules(&cluster.denials(&rival, NOW)), ["TN018"]);
    assert!(!decided["corp"].claims.contains_key("prefix:10.0.3.0/24"));
}
