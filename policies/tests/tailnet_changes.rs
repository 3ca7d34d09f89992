//! What a change of a Tailnet breaks (TN107) is found by a few questions; here it is held against asking everybody everything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::facts::{Facts, PolicyFacts, Posture};
use tailnet_policies::table::rule;
use tailnet_policies::{Config, Finding, Layer, Operation, Request, Snapshot, evaluate, resolve_claims};

fn choice<T: Clone + std::fmt::Debug + 'static>(of: &[T]) -> impl Strategy<Value = T> + use<T> {
    prop::sample::select(of.to_vec())
}

fn some_of(of: &[&'static str]) -> impl Strategy<Value = Vec<&'static str>> + use<> {
    prop::sample::subsequence(of.to_vec(), 0..=of.len())
}

/// A Tailnet with every field that a rule about others reads, each often as in the other one of a pair.
fn tailnets() -> impl Strategy<Value = Value> {
    let policy = prop_oneof![
        1 => Just(Value::Null),
        4 => (
            some_of(&["group:a", "group:b", "*", "10.0.0.0/8"]),
            some_of(&["tag:router", "tag:shared"]),
            choice(&["base", "other-base"]),
            choice(&["DryRun", "Apply"]),
        )
            .prop_map(|(allowed, approvers, base, mode)| json!({
                "ingressSourceAllowlist": allowed, "routeApprovers": approvers, "baseConfigMap": base, "mode": mode,
            })),
    ];
    let dns = prop_oneof![
        1 => Just(Value::Null),
        4 => (
            choice(&["{name}.example.net", "{name}.{namespace}.example.net", "{name}-{namespace}.example.net"]),
            choice(&[None, Some("{name}.example.net")]),
            some_of(&["team-a", "team-b"]),
            some_of(&["web.example.net", "db.example.net"]),
        )
            .prop_map(|(name, alias, namespaces, reserved)| json!({
                "ingressNameTemplate": name, "ingressAliasTemplate": alias, "aliasNamespaces": namespaces, "reservedNames": reserved,
            })),
    ];
    let rest = (
        choice(&[None, None, Some("prod")]),
        choice(&["https://control.example.net", "https://web.example.net"]),
        choice(&[None, Some("issuer-a"), Some("issuer-b")]),
        some_of(&["10.1.0.0/16", "10.2.0.0/16"]),
        some_of(&["tag:shared", "tag:egress-e-0"]),
    );
    (policy, dns, rest).prop_map(|(policy, dns, (cluster, server, issuer, reserved, granted))| {
        let mut spec = json!({
            "server": server, "apiSecretRef": { "name": "x" }, "reservedNetworks": reserved,
            "tagGrants": [{ "namespaces": ["team-a"], "tags": granted }],
        });
        let optional = [
            ("policy", policy),
            ("dns", dns),
            ("clusterName", json!(cluster)),
            (
                "defaults",
                issuer.map_or(Value::Null, |name| json!({ "tls": { "issuerRef": { "name": name } } })),
            ),
        ];
        for (field, value) in optional {
            if !value.is_null() {
                spec[field] = value;
            }
        }
        if let Some(dns) = spec.get_mut("dns").and_then(Value::as_object_mut) {
            dns.retain(|_, value| !value.is_null());
        }
        json!({ "metadata": { "name": "corp", "uid": "corp" }, "spec": spec })
    })
}

/// The spec of an ingress, an egress, a site or a gateway, and for an ingress its namespace.
fn members() -> impl Strategy<Value = (Kind, Option<&'static str>, Value)> {
    let tags = || {
        choice(&[
            None,
            None,
            Some("tag:shared"),
            Some("tag:egress-e-0"),
            Some("tag:ingress-team-a-i"),
        ])
    };
    let ingress = (
        choice(&["team-a", "team-b", "tailnet-system"]),
        some_of(&["group:a", "group:b", "*", "10.1.2.3", "group:unknown"]),
        tags(),
        choice(&[None, Some("web-team-a"), Some("web-team-b")]),
        choice(&["web", "db", "web-team-a"]),
        any::<bool>(),
        choice(&[None, Some("issuer-a"), Some("issuer-b")]),
        choice(&["tcp", "http"]),
    )
        .prop_map(|(namespace, allow, tag, hostname, label, alias, issuer, mode)| {
            let mut spec = json!({ "allowFrom": allow, "exposes": [{
                "name": "x", "port": 443, "mode": mode, "dnsLabel": label, "alias": alias, "backend": { "service": "s", "port": 1 },
            }] });
            if let Some(issuer) = issuer.filter(|_| mode == "http") {
                spec["tls"] = json!({ "issuerRef": { "name": issuer, "kind": "ClusterIssuer" } });
            }
            for (field, value) in [("tag", tag), ("hostname", hostname)] {
                if let Some(value) = value {
                    spec[field] = json!(value);
                }
            }
            (Kind::TailnetIngress, Some(namespace), spec)
        });
    let egress = (
        tags(),
        choice(&[
            "web.example.net",
            "db.example.net",
            "web.team-a.example.net",
            "free.example.org",
        ]),
    )
        .prop_map(|(tag, alias)| {
            let mut spec = json!({ "consumerNamespaces": ["a"], "targets": [
                { "name": "t", "address": "192.0.2.1", "port": 1, "aliases": [alias] },
            ] });
            if let Some(tag) = tag {
                spec["tag"] = json!(tag);
            }
            (Kind::TailnetEgress, Some("tailnet-system"), spec)
        });
    let site = (
        choice(&["10.1.0.0/24", "10.2.0.0/16", "10.2.3.0/24", "10.3.0.0/16"]),
        choice(&["tag:router", "tag:shared"]),
    )
        .prop_map(|(prefix, tag)| {
            (
                Kind::TailnetSite,
                None,
                json!({ "prefixes": [prefix], "advertisedBy": [tag] }),
            )
        });
    let gateways = (
        choice(&["web", "db", "gone"]),
        choice(&["10.1.0.0/16", "10.9.0.0/16"]),
        choice(&["tag:router", "tag:shared"]),
    )
        .prop_map(|(cname, lan, tag)| {
            let spec = gateway(cname, lan, tag);
            (Kind::TailnetGateway, Some("tailnet-system"), spec)
        });
    prop_oneof![5 => ingress, 2 => egress, 2 => site, 1 => gateways]
}

/// The spec of a gateway whose zone has one record, with a target.
fn gateway(record: &str, lan: &str, tag: &str) -> Value {
    json!({
        "image": "registry.example.net/tailscale:v1.98.3", "hostname": "gw", "tags": [tag],
        "stateSecretRef": { "name": "gw-state" }, "routes": { "lan": [lan] },
        "service": { "tailnetLBCIDR": "10.8.0.0/24", "loadBalancerIP": "10.8.0.1" },
        "dns": {
            "image": "registry.example.net/coredns:1.14.7", "zone": "example.net", "serviceName": "gw-dns",
            "serviceClusterIP": "10.96.0.9", "staticRecords": [{ "name": record, "target": "elsewhere.example.org" }],
        },
    })
}

fn object(at: usize, kind: Kind, namespace: Option<&str>, mut spec: Value) -> Value {
    let letter = kind.as_str().to_lowercase().replace("tailnet", "");
    spec["tailnetRef"] = json!({ "name": "corp" });
    if kind == Kind::TailnetEgress {
        spec["targets"][0]["name"] = json!(format!("t-{at}"));
    }
    let mut object = json!({ "metadata": {
        "name": format!("{}-{at}", &letter[..1]), "uid": format!("uid-{at}"),
        "creationTimestamp": format!("2026-01-01T00:{:02}:00Z", at % 60),
    }, "spec": spec });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

/// The denials of the guard, but for the rule that speaks for itself in the Tailnet's own verdict.
fn denials(kind: Kind, object: &Value, snapshot: &Snapshot) -> Vec<Finding> {
    let outcome = evaluate(&Request::guard(kind, object.clone()), snapshot);
    let denials = outcome.denials().filter(|finding| finding.rule != "TN005");
    denials.cloned().collect()
}

/// The members that have a denial after the change which they had not before, by asking everybody.
fn broken_by_asking_all(objects: &[(Kind, Value)], before: &Snapshot, after: &Snapshot) -> BTreeSet<String> {
    let mut broken = BTreeSet::new();
    for (kind, object) in objects {
        let had = denials(*kind, object, before);
        let new = denials(*kind, object, after).into_iter().any(|finding| {
            !had.iter()
                .any(|had| had.rule == finding.rule && had.value == finding.value)
        });
        if new {
            let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
            let name = object.pointer("/metadata/name").unwrap().as_str().unwrap();
            broken.insert(match namespace {
                Some(namespace) => format!("{} {namespace}/{name}", kind.as_str()),
                None => format!("{} {name}", kind.as_str()),
            });
        }
    }
    broken
}

fn facts() -> Facts {
    let policy = PolicyFacts {
        present: true,
        default_posture: Posture::Deny,
        tag_owners: [("tag:shared".to_owned(), Vec::new())].into(),
        ..PolicyFacts::default()
    };
    Facts {
        policy,
        ..Facts::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_same_objects_are_named_as_when_all_are_asked(
        old in tailnets(),
        new in tailnets(),
        // Of the new Tailnet only one field differs as often as several do.
        field in choice(&[None, Some("policy"), Some("dns"), Some("clusterName"), Some("server"), Some("reservedNetworks"), Some("tagGrants"), Some("defaults")]),
        objects in prop::collection::vec(members(), 1..16),
        with_record in any::<bool>(),
        with_facts in any::<bool>(),
    ) {
        let mut changed = new;
        if let Some(field) = field {
            let value = changed["spec"].get(field).cloned();
            changed = old.clone();
            match value {
                Some(value) => changed["spec"][field] = value,
                None => { changed["spec"].as_object_mut().unwrap().remove(field); }
            }
        }
        let mut before = Snapshot::closed(Config::default());
        for namespace in ["team-a", "team-b", "tailnet-system"] {
            before.upsert_namespace(namespace);
        }
        before.set_base_document("base", Some(r#"{"groups": {"group:a": ["ann@"], "group:b": ["bob@"]}}"#));
        before.set_base_document("other-base", Some(r#"{"groups": {"group:a": ["ann@"]}}"#));
        if with_facts {
            before.set_facts("corp", Some(facts()), std::time::Duration::from_secs(1));
        }
        before.upsert(Kind::Tailnet, &old);
        let objects: Vec<(Kind, Value)> = objects
            .into_iter()
            .enumerate()
            .map(|(at, (kind, namespace, spec))| (kind, object(at, kind, namespace, spec)))
            .collect();
        for (kind, object) in &objects {
            before.upsert(*kind, object);
        }
        if with_record {
            for (tailnet, claims) in resolve_claims(&before, "2026-02-01T00:00:00Z") {
                before.set_claims(&tailnet, Some(claims));
            }
        }
        let mut after = before.clone();
        after.upsert(Kind::Tailnet, &changed);
        let expected = broken_by_asking_all(&objects, &before, &after);

        let mut request = Request::for_object(Kind::Tailnet, changed, Layer::Webhook);
        request.operation = Operation::Update;
        request.old = Some(old);
        let outcome = evaluate(&request, &before);
        let named: BTreeSet<String> = outcome
            .findings
            .iter()
            .filter(|finding| finding.rule == "TN107")
            .filter_map(|finding| Some(finding.detail.strip_prefix("by this ")?.split_once(" breaks ")?.0.to_owned()))
            .collect();
        prop_assert_eq!(named, expected);
    }
}

/// A gateway's record and an ingress's name meet by a new template: both are named.
#[test]
fn a_gateway_is_named_whose_record_meets_a_name() {
    let tailnet = |template: &str| {
        let spec = json!({ "server": "https://control.example.net", "apiSecretRef": { "name": "x" }, "dns": { "ingressNameTemplate": template } });
        json!({ "metadata": { "name": "corp" }, "spec": spec })
    };
    let (old, new) = (tailnet("{name}.example.org"), tailnet("{name}.example.net"));
    let mut snapshot = Snapshot::closed(Config::default());
    snapshot.upsert(Kind::Tailnet, &old);
    let ingress = json!({ "allowFrom": [], "exposes": [{ "name": "x", "port": 443, "dnsLabel": "web", "backend": { "service": "s", "port": 1 } }] });
    for (at, kind, namespace, spec) in [
        (
            0,
            Kind::TailnetGateway,
            "tailnet-system",
            gateway("web", "10.1.0.0/16", "tag:router"),
        ),
        (1, Kind::TailnetIngress, "team-a", ingress),
    ] {
        snapshot.upsert(kind, object(at, kind, Some(namespace), spec));
    }
    let mut request = Request::for_object(Kind::Tailnet, new, Layer::Webhook);
    request.operation = Operation::Update;
    request.old = Some(old);
    let outcome = evaluate(&request, &snapshot);
    let said: Vec<&str> = outcome.findings.iter().map(|finding| finding.detail.as_str()).collect();
    assert!(
        said.iter()
            .any(|detail| detail.contains("TailnetGateway tailnet-system/g-0 breaks TN508")),
        "{said:?}"
    );
    assert!(
        said.iter()
            .any(|detail| detail.contains("TailnetIngress team-a/i-1 breaks TN304")),
        "{said:?}"
    );
}

/// Every rule that the quick way may ask about exists, so that a renamed one is not silently left out.
#[test]
fn the_rules_that_are_asked_exist() {
    for id in [
        "TN006", "TN011", "TN206", "TN301", "TN302", "TN304", "TN305", "TN309", "TN314", "TN315", "TN318", "TN402",
        "TN508", "TN512",
    ] {
        assert!(rule(id).is_some(), "{id}");
    }
}
