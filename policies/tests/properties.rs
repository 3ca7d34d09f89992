//! What holds for every input.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use proptest::prelude::*;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::table::{Check, Layers, RULES, rule};
use tailnet_policies::{
    Config, Layer, Operation, Request, Snapshot, defaults, evaluate, evaluate_config_map, with_defaults,
};

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

/// Texts that rules look at closely, and any other.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            "corp",
            "tag:egress-a",
            "TAG:Router",
            "10.0.0.0/8",
            "10.0.0.1/33",
            "010.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1%eth0",
            "0.0.0.0/0",
            "https://control.example.net",
            "http://user:pass@x/",
            "{name}.{namespace}.example.net",
            "{name",
            "*",
            "group:a",
            "autogroup:danger-all",
            "db.example.net.",
            "bücher.example",
            "xn--",
            "1h30m",
            "99999h",
            "registry:5000/a:latest",
            "team-a",
            "http",
            "tcp",
            "UDP",
            "tailnet-system",
        ])
        .prop_map(str::to_owned),
        ".{0,40}",
        "[a-z0-9.:/@-]{0,300}",
    ]
}

/// Any JSON, made of the field names that our kinds have.
fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let names = prop::sample::select(vec![
            "spec",
            "metadata",
            "name",
            "namespace",
            "tailnetRef",
            "tag",
            "tags",
            "targets",
            "address",
            "port",
            "aliases",
            "exposes",
            "backend",
            "service",
            "prefixes",
            "server",
            "apiSecretRef",
            "dns",
            "policy",
            "annotations",
            "deletionTimestamp",
            "consumerNamespaces",
            "allowFrom",
            "replicas",
            "timeouts",
            "request",
            "tls",
            "zone",
            "routes",
            "lan",
            "image",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..8).prop_map(|fields| Value::Object(
                fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()
            )),
        ]
    })
}

/// An object of a kind with texts in every place that has a format.
fn objects() -> impl Strategy<Value = (Kind, Value)> {
    (kinds(), prop::collection::vec(texts(), 12), 0..3i64).prop_map(|(kind, t, port)| {
        let mut next = t.into_iter().cycle();
        let mut text = move || next.next().unwrap_or_default();
        let spec = match kind {
            Kind::Tailnet => json!({
                "server": text(), "apiSecretRef": { "name": text() }, "clusterName": text(),
                "dns": { "ingressNameTemplate": text(), "reservedNames": [text()], "hostsConfigMap": text() },
                "policy": { "baseConfigMap": "p", "routeApprovers": [text()], "ingressSourceAllowlist": [text()] },
                "tagGrants": [{ "namespaces": [text()], "tags": [text()] }], "reservedNetworks": [text(), text()],
            }),
            Kind::TailnetEgress => json!({
                "tailnetRef": { "name": "corp" }, "tag": text(), "consumerNamespaces": [text(), text()],
                "targets": [
                    { "name": text(), "address": text(), "port": port, "aliases": [text(), text()] },
                    { "name": text(), "address": text(), "port": port },
                ],
            }),
            Kind::TailnetIngress => json!({
                "tailnetRef": { "name": "corp" }, "tag": text(), "hostname": text(), "allowFrom": [text(), text()],
                "exposes": [
                    { "name": text(), "port": port, "mode": "http", "dnsLabel": text(), "alias": true, "timeouts": { "request": text() },
                      "backend": { "service": text(), "port": text(), "namespace": text(), "tls": { "serverName": text(), "caConfigMapRef": { "name": text() } } } },
                    { "name": text(), "port": port, "backend": { "service": text(), "port": port } },
                ],
            }),
            Kind::TailnetSite => json!({
                "tailnetRef": { "name": "corp" }, "prefixes": [text(), text(), text()], "advertisedBy": [text()],
            }),
            Kind::TailnetGateway => json!({
                "tailnetRef": { "name": "corp" }, "hostname": text(), "tags": [text()], "stateSecretRef": { "name": text() }, "image": text(),
                "routes": { "lan": [text()] }, "service": { "loadBalancerIP": text(), "tailnetLBCIDR": text() },
                "dns": { "zone": text(), "serviceName": text(), "serviceClusterIP": text(), "image": text(),
                         "staticRecords": [{ "name": text(), "address": text() }, { "name": text(), "target": text() }],
                         "extraZones": [{ "zone": text(), "upstreams": [text()] }] },
            }),
        };
        let namespace = matches!(kind, Kind::TailnetEgress | Kind::TailnetIngress).then(&mut text);
        (kind, json!({ "metadata": { "name": text(), "namespace": namespace }, "spec": spec }))
    })
}

/// A cluster with one object of each kind, all older than what is asked about.
fn cluster() -> Snapshot {
    let mut snapshot = Snapshot::closed(Config::default());
    let created = "2026-01-01T00:00:00Z";
    snapshot.upsert(
        Kind::Tailnet,
        json!({ "metadata": { "name": "corp", "creationTimestamp": created }, "spec": {
            "server": "https://control.example.net", "apiSecretRef": { "name": "x" }, "reservedNetworks": ["10.96.0.0/12"],
            "dns": { "ingressNameTemplate": "{name}.{namespace}.example.net", "ingressAliasTemplate": "{name}.example.net" },
            "policy": { "baseConfigMap": "p", "routeApprovers": ["tag:router"], "ingressSourceAllowlist": ["group:a", "10.0.0.0/8"] },
        } }),
    );
    snapshot.upsert(
        Kind::TailnetEgress,
        json!({ "metadata": { "name": "a", "namespace": "tailnet-system", "creationTimestamp": created }, "spec": {
            "tailnetRef": { "name": "corp" }, "consumerNamespaces": ["team-a"],
            "targets": [{ "name": "corp", "address": "192.0.2.1", "port": 1, "aliases": ["db.example.net"] }],
        } }),
    );
    snapshot.upsert(
        Kind::TailnetSite,
        json!({ "metadata": { "name": "lab", "creationTimestamp": created }, "spec": {
            "tailnetRef": { "name": "corp" }, "prefixes": ["10.1.0.0/16"],
        } }),
    );
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_json_never_panics(kind in kinds(), new in json_values(), old in prop::option::of(json_values()), layer in 0..3usize) {
        let mut snapshot = cluster();
        let request = Request {
            operation: if old.is_some() { Operation::Update } else { Operation::Create },
            old,
            ..Request::for_object(kind, new.clone(), [Layer::Webhook, Layer::Guard, Layer::Lint][layer])
        };
        let outcome = evaluate(&request, &snapshot);
        // What is no object of its kind is refused, unless the stored object was none either.
        if request.old.is_none() && new.get("spec").is_none() {
            prop_assert!(outcome.denied());
        }
        let _ = defaults(kind, None, &new, &snapshot);
        let going = Request {
            operation: Operation::Delete,
            old: Some(new.clone()),
            new: None,
            ..request.clone()
        };
        prop_assert!(!evaluate(&going, &snapshot).denied(), "a deletion is never denied");
        let _ = evaluate_config_map(&new, request.old.as_ref(), &snapshot);
        // A snapshot takes whatever a watch brings.
        snapshot.upsert(kind, &new);
        snapshot.upsert(kind, &new);
        let _ = evaluate(&request, &snapshot);
        let _ = tailnet_policies::resolve_claims(&snapshot, "2026-01-01T00:00:00Z");
    }

    #[test]
    fn base_documents_of_strange_texts_are_judged_in_bounded_messages(names in prop::collection::vec(texts(), 6), raw in ".{0,200}") {
        let whole = json!({
            "groups": { names[0].clone(): [names[1].clone()] },
            "tagOwners": { names[2].clone(): [names[3].clone()] },
            "grants": [{ "src": [names[1].clone(), names[4].clone()], "dst": [names[5].clone()], "ip": [names[0].clone()] }],
            "tests": [{ "src": names[4].clone(), "accept": [names[5].clone()] }],
        });
        for text in [whole.to_string(), raw] {
            let mut snapshot = cluster();
            snapshot.set_base_document("p", Some(&text));
            let config_map = json!({
                "metadata": { "name": "p", "namespace": "tailnet-system", "labels": { "tsunaro.io/policy": "base" } },
                "data": { "policy.hujson": text },
            });
            let alone = evaluate_config_map(&config_map, None, &snapshot);
            prop_assert!(!evaluate_config_map(&config_map, Some(&config_map), &snapshot).denied(), "unchanged");
            let tailnet = json!({ "metadata": { "name": "corp" }, "spec": {
                "server": "https://control.example.net", "apiSecretRef": { "name": "x" }, "policy": { "baseConfigMap": "p" },
            } });
            let on_tailnet = evaluate(&Request::for_object(Kind::Tailnet, tailnet, Layer::Webhook), &snapshot);
            prop_assert!(!on_tailnet.denied(), "{:?}", on_tailnet.findings);
            for finding in alone.findings.iter().chain(&on_tailnet.findings) {
                prop_assert!(finding.to_string().chars().count() <= 640, "{finding}");
            }
        }
    }

    #[test]
    fn specs_of_strange_texts_are_judged_in_bounded_messages((kind, object) in objects()) {
        let outcome = evaluate(&Request::for_object(kind, object, Layer::Webhook), &cluster());
        for finding in &outcome.findings {
            let message = finding.to_string();
            prop_assert!(message.chars().count() <= 640, "{message}");
            prop_assert!(finding.value.as_ref().is_none_or(|value| value.chars().count() <= 100), "{message}");
            // Where a URL is expected, what could be a password is not shown.
            prop_assert!(!finding.field.ends_with("server") || !message.contains("user:pass"), "{message}");
            prop_assert!(rule(finding.rule).is_some());
        }
    }

    #[test]
    fn defaults_twice_are_defaults_once((kind, object) in objects()) {
        let snapshot = cluster();
        let mut bare = object;
        if let Some(spec) = bare["spec"].as_object_mut() {
            spec.remove("tag");
            spec.remove("hostname");
        }
        let once = with_defaults(kind, None, &bare, &snapshot);
        prop_assert!(defaults(kind, None, &once, &snapshot).is_empty());
        prop_assert_eq!(&with_defaults(kind, None, &once, &snapshot), &once);
        // The patch and the function agree.
        let mut patched = bare.clone();
        json_patch::patch(&mut patched, &defaults(kind, None, &bare, &snapshot)).unwrap();
        prop_assert_eq!(patched, once);
    }

    #[test]
    fn defaults_add_no_finding((kind, object) in objects()) {
        let snapshot = cluster();
        let mut bare = object;
        bare["metadata"] = json!({ "name": "a.b", "namespace": "team-a" });
        if let Some(spec) = bare["spec"].as_object_mut() {
            spec.remove("tag");
            if kind == Kind::TailnetIngress {
                spec.remove("hostname");
            }
        }
        let judged = |object: Value| -> Vec<String> {
            evaluate(&Request::for_object(kind, object, Layer::Webhook), &snapshot).findings.iter().map(|f| f.to_string()).collect()
        };
        let with = with_defaults(kind, None, &bare, &snapshot);
        prop_assert_eq!(judged(bare), judged(with));
    }

    #[test]
    fn the_guard_is_a_create_without_the_requester((kind, object) in objects()) {
        let snapshot = cluster();
        let create = evaluate(&Request::for_object(kind, object.clone(), Layer::Webhook), &snapshot);
        let guard = evaluate(&Request::guard(kind, object), &snapshot);
        let expected: Vec<_> = create
            .findings
            .into_iter()
            .filter(|finding| {
                let rule = rule(finding.rule).unwrap();
                rule.layers.has(Layers::GUARD) && !matches!(rule.check, Check::Requester(_))
            })
            .collect();
        prop_assert_eq!(guard.findings, expected);
    }

    #[test]
    fn an_unchanged_object_is_never_denied((kind, object) in objects()) {
        let mut request = Request::for_object(kind, object.clone(), Layer::Webhook);
        request.operation = Operation::Update;
        request.old = Some(object);
        prop_assert!(!evaluate(&request, &cluster()).denied());
    }

    #[test]
    fn the_order_of_arrival_leaves_no_trace(mut all in prop::collection::vec(objects(), 1..8)) {
        let fill = |all: &[(Kind, Value)]| {
            let mut snapshot = cluster();
            for (kind, object) in all {
                snapshot.upsert(*kind, object);
            }
            snapshot
        };
        // Objects of one name replace each other: keep the last of each.
        let key = |(kind, object): &(Kind, Value)| (*kind, object["metadata"].to_string());
        let mut seen = std::collections::BTreeSet::new();
        all.reverse();
        all.retain(|entry| seen.insert(key(entry)));
        let forward = fill(&all);
        let (kind, object) = all[0].clone();
        all.reverse();
        let mut backward = fill(&all);
        // And what comes and goes.
        backward.upsert(Kind::TailnetSite, json!({ "metadata": { "name": "guest" }, "spec": { "tailnetRef": { "name": "corp" }, "prefixes": ["0.0.0.0/0"] } }));
        backward.remove(Kind::TailnetSite, None, "guest");
        let request = Request::guard(kind, object);
        prop_assert_eq!(evaluate(&request, &forward), evaluate(&request, &backward));
    }
}

#[test]
fn ids_are_sorted_and_unique_and_rows_are_whole() {
    for pair in RULES.windows(2) {
        assert!(pair[0].id < pair[1].id, "{} before {}", pair[0].id, pair[1].id);
    }
    for rule in RULES {
        for text in [rule.field, rule.message, rule.why, rule.example, rule.fix] {
            assert!(!text.trim().is_empty(), "{}", rule.id);
        }
        assert!(
            rule.example.contains("spec") || rule.example.contains("metadata"),
            "{}: {}",
            rule.id,
            rule.example
        );
        let example = serde_saphyr::from_multiple::<Value>(rule.example);
        assert!(example.is_ok(), "{}: {example:?}", rule.id);
        assert!(!rule.message.ends_with('.'), "{}", rule.id);
        assert!(!rule.kinds.is_empty(), "{}", rule.id);
    }
}

#[test]
fn the_reference_has_an_anchor_for_every_rule() {
    let text = tailnet_policies::reference_md();
    for rule in RULES {
        assert!(text.contains(&format!("\n## {}\n", rule.id)), "{}", rule.id);
        assert!(text.contains(&format!("(#{})", rule.id.to_lowercase())), "{}", rule.id);
    }
}

#[test]
fn the_schema_and_the_table_know_the_same_rules() {
    for row in tailnet_crds::cel::rules() {
        let rule =
            rule(row.id).unwrap_or_else(|| panic!("{} is in the schema of {} and not in the table", row.id, row.kind));
        assert!(
            rule.layers.has(Layers::CEL),
            "{} is in the schema and the table does not say so",
            row.id
        );
        assert!(
            rule.kinds.contains(&row.kind),
            "{} is in the schema of {} and not in the table for it",
            row.id,
            row.kind
        );
    }
    for rule in RULES.iter().filter(|rule| rule.layers.has(Layers::CEL)) {
        assert!(
            tailnet_crds::cel::rules().any(|row| row.id == rule.id),
            "{} says that the schema has it, and it has not",
            rule.id
        );
    }
}

#[test]
fn the_webhook_is_registered_for_what_rules_look_at() {
    for (kind, operations) in tailnet_policies::webhook_rules() {
        assert!(
            operations.contains(&Operation::Create) && operations.contains(&Operation::Update),
            "{kind}"
        );
    }
}
