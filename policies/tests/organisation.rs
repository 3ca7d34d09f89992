//! The organisation's policies: the examples of `org/`, every layer, limits, the ratchet.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::organisation::{self, MAX_TIME, MAX_TIME_OF_ALL, Policy};
use tailnet_policies::{Config, Layer, Operation, Outcome, Request, Requester, Snapshot, evaluate};

fn data(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("policy.yaml".to_owned(), text.to_owned())])
}

/// A policy with these expressions.
fn policy(expressions: &[&str]) -> BTreeMap<String, String> {
    let validations: Vec<Value> = expressions.iter().map(|text| json!({"expression": text})).collect();
    data(&json!({ "validations": validations }).to_string())
}

fn snapshot(policies: &[(&str, BTreeMap<String, String>)]) -> Snapshot {
    let mut snapshot = Snapshot::closed(Config::default());
    let tailnet = json!({
        "metadata": {"name": "corp", "labels": {"stage": "live"}},
        "spec": {"server": "https://control.example.net", "apiSecretRef": {"name": "key"}},
    });
    snapshot.upsert(Kind::Tailnet, tailnet);
    for (name, data) in policies {
        snapshot.set_policy(name, Some(Arc::new(organisation::standing(name, data))));
    }
    snapshot
}

fn site(change: impl FnOnce(&mut Value)) -> Value {
    let mut site = json!({
        "apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetSite", "metadata": {"name": "lab"},
        "spec": {"tailnetRef": {"name": "corp"}, "prefixes": ["10.20.0.0/16"], "advertisedBy": ["tag:router"], "owner": "network"},
    });
    change(&mut site);
    site
}

fn ingress(namespace: &str, from: &[&str]) -> Value {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetIngress",
        "metadata": {"name": "portal", "namespace": namespace},
        "spec": {
            "tailnetRef": {"name": "corp"}, "allowFrom": from,
            "exposes": [{"name": "web", "port": 5432, "backend": {"service": "web", "port": 80}}],
        },
    })
}

fn egress(port: u16, labels: Value) -> Value {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetEgress",
        "metadata": {"name": "jump", "namespace": "tailnet-system", "labels": labels},
        "spec": {
            "tailnetRef": {"name": "corp"}, "consumerNamespaces": ["team-a"],
            "targets": [
                {"name": "db", "address": "192.0.2.10", "port": 5432},
                {"name": "host", "address": "192.0.2.11", "port": port},
            ],
        },
    })
}

fn ask(snapshot: &Snapshot, layer: Layer, object: &Value) -> Outcome {
    let kind = object["kind"].as_str().unwrap().parse().unwrap();
    let mut request = Request::for_object(kind, object.clone(), layer);
    if layer == Layer::Webhook {
        request.requester = Some(Requester {
            username: "alice".into(),
            groups: vec!["platform".into()],
            may_bypass: None,
        });
    }
    evaluate(&request, snapshot)
}

/// What policies say.
fn said(outcome: &Outcome) -> Vec<String> {
    outcome
        .findings
        .iter()
        .filter(|finding| finding.rule == "TN009")
        .map(ToString::to_string)
        .collect()
}

fn examples() -> Vec<(String, BTreeMap<String, String>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("org");
    let mut examples = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let config_map: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(config_map["metadata"]["labels"]["tsunaro.io/admission-policy"], "true");
        let name = config_map["metadata"]["name"].as_str().unwrap().to_owned();
        examples.push((name, serde_json::from_value(config_map["data"].clone()).unwrap()));
    }
    assert!(examples.len() >= 3);
    examples
}

#[test]
fn the_examples_say_what_they_are_for_and_nothing_else() {
    let mut snapshot = Snapshot::closed(Config::default());
    for (name, data) in examples() {
        Policy::compile(&name, &data).unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        snapshot.set_policy(&name, Some(Arc::new(organisation::standing(&name, &data))));
    }
    let labels = |value: &str| BTreeMap::from([("environment".to_owned(), value.to_owned())]);
    snapshot.upsert_namespace_with("shop", labels("production"));
    snapshot.upsert_namespace_with("lab", labels("test"));
    snapshot.upsert_namespace("plain");
    for layer in [Layer::Webhook, Layer::Guard, Layer::Lint] {
        let says = |object: &Value, words: &[&str]| {
            let found = said(&ask(&snapshot, layer, object));
            assert_eq!(found.len(), words.len(), "{layer:?} {object}: {found:#?}");
            for (found, words) in found.iter().zip(words) {
                assert!(found.contains(words), "{layer:?}: {found}");
            }
        };
        says(&ingress("shop", &["group:team-a"]), &[]);
        says(
            &ingress("shop", &["group:team-a", "group:contractors-eu"]),
            &[
                "spec.allowFrom: Forbidden: services of production namespaces are not exposed to contractors: take out group:contractors-eu, or",
            ],
        );
        says(&ingress("shop", &["*"]), &["[ORG/production-exposure/1]"]);
        says(&ingress("lab", &["group:contractors"]), &[]);
        says(&ingress("plain", &["group:contractors"]), &[]);
        says(&site(|_| ()), &[]);
        says(
            &site(|site| site["spec"]["owner"] = json!("somebody")),
            &[
                "spec.owner: Invalid value: the owner somebody is none of network, facilities, team-a, team-b [ORG/site-owners/2]",
            ],
        );
        says(
            &site(|site| drop(site["spec"].as_object_mut().unwrap().shift_remove("owner"))),
            &["a site has an owner; set spec.owner to the team that answers for it [ORG/site-owners/1]"],
        );
        says(&egress(443, json!({})), &[]);
        says(
            &egress(22, json!({"other": "x"})),
            &[
                "spec.targets: Forbidden: target host is SSH: the label example.net/ssh-approved-by says who approved it [ORG/egress-ssh/1]",
            ],
        );
        says(&egress(22, json!({"example.net/ssh-approved-by": "alice"})), &[]);
        let mut unlabelled = egress(22, json!({}));
        unlabelled["metadata"].as_object_mut().unwrap().shift_remove("labels");
        says(&unlabelled, &["[ORG/egress-ssh/1]"]);
    }
}

#[test]
fn a_layer_that_does_not_know_something_does_not_guess() {
    let by_user = snapshot(&[("by-user", policy(&["request.userInfo.username == 'root'"]))]);
    assert_eq!(said(&ask(&by_user, Layer::Webhook, &site(|_| ()))).len(), 1);
    assert!(said(&ask(&by_user, Layer::Guard, &site(|_| ()))).is_empty());
    let lint = ask(&by_user, Layer::Lint, &site(|_| ()));
    assert!(said(&lint).is_empty());
    assert!(
        lint.notes
            .iter()
            .any(|note| note.contains("nobody knows here who will apply it") && note.contains("TN009")),
        "{:?}",
        lint.notes
    );
    // The operation is known to lint, and not to the guard.
    let on_create = snapshot(&[("frozen", policy(&["request.operation != 'CREATE'"]))]);
    assert_eq!(said(&ask(&on_create, Layer::Lint, &site(|_| ()))).len(), 1);
    assert!(said(&ask(&on_create, Layer::Guard, &site(|_| ()))).is_empty());
    let only_new = "{matchConstraints: {resourceRules: [{resources: ['*'], operations: [CREATE]}]}, validations: [{expression: 'false'}]}";
    let only_new = snapshot(&[("only-new", data(only_new))]);
    assert_eq!(said(&ask(&only_new, Layer::Webhook, &site(|_| ()))).len(), 1);
    assert!(said(&ask(&only_new, Layer::Guard, &site(|_| ()))).is_empty());
    // Labels of a namespace that nobody knows.
    let labels = snapshot(&[("labels", policy(&["namespaceObject.metadata.labels['a'] == 'b'"]))]);
    let outcome = ask(&labels, Layer::Lint, &ingress("shop", &[]));
    assert!(said(&outcome).is_empty());
    assert!(
        outcome
            .notes
            .iter()
            .any(|note| note.contains("namespaces") && note.contains("TN009"))
    );
    // A Tailnet that does not exist yet.
    let tailnet = snapshot(&[("tailnet", policy(&["tailnet.metadata.labels['stage'] == 'test'"]))]);
    assert_eq!(said(&ask(&tailnet, Layer::Webhook, &site(|_| ()))).len(), 1);
    let later = ask(
        &tailnet,
        Layer::Webhook,
        &site(|site| site["spec"]["tailnetRef"]["name"] = json!("later")),
    );
    assert!(said(&later).is_empty(), "{later:?}");
    let missing = later.findings.iter().find(|finding| finding.rule == "TN001").unwrap();
    assert!(missing.detail.contains("TN009"), "{missing}");
}

#[test]
fn what_cannot_be_decided_is_refused_and_says_why() {
    for (expression, words) in [
        (
            "object.metadata.labels['a'] == 'b'",
            "validation 1 of the organisation's policy \"p\" fails: there is no field or key \"labels\"",
        ),
        ("object.spec.owner > 1", "is used on values that it does not take"),
        ("1 / (size(object.spec.prefixes) - 1) == 1", "ivision"),
        ("object.spec.prefixes[7] == ''", "fails"),
        ("object.spec.owner", "gives a string and not true or false"),
        (
            "object.spec.owner.name == 'x'",
            "is used on values that it does not take",
        ),
        ("!object.spec.owner.name", "is used on values that it does not take"),
        ("int(object.spec.owner) == 1", "parse error"),
    ] {
        let snapshot = snapshot(&[("p", policy(&[expression]))]);
        // Some of these are found when they are compiled, which stands in the same message.
        for layer in [Layer::Webhook, Layer::Guard, Layer::Lint] {
            let found = said(&ask(&snapshot, layer, &site(|_| ())));
            assert_eq!(found.len(), 1, "{expression}: {found:?}");
            assert!(found[0].ends_with("[TN009]"), "{found:?}");
            assert!(
                found[0].contains(words) || found[0].contains("has no field"),
                "{expression}: {found:?}"
            );
        }
    }
}

#[test]
fn steps_and_sizes_are_limited_also_where_the_failure_is_swallowed() {
    let ten = "[0,1,2,3,4,5,6,7,8,9]";
    let endless = format!(
        "{ten}.all(a, {ten}.all(b, {ten}.all(c, {ten}.all(d, {ten}.all(e, {ten}.all(f, {ten}.all(g, a+b+c+d+e+f+g >= 0)))))))"
    );
    let swallowed = format!("{endless} || true");
    let mut doubling = vec![json!({"name": "v0", "expression": "['0123456789abcdef0123456789abcdef']"})];
    let mut texts = vec![json!({"name": "v0", "expression": "'0123456789abcdef0123456789abcdef'"})];
    for at in 1..30 {
        let before = at - 1;
        doubling.push(
            json!({"name": format!("v{at}"), "expression": format!("[variables.v{before}, variables.v{before}]")}),
        );
        texts.push(
            json!({"name": format!("v{at}"), "expression": format!("variables.v{before} + variables.v{before}")}),
        );
    }
    let grown = |variables: &[Value]| {
        data(
            &json!({"variables": variables, "validations": [{"expression": "size(variables.v29) > 0 || true"}]})
                .to_string(),
        )
    };
    for (data, words) in [
        (policy(&[&endless]), "needs more than 500000 steps"),
        (policy(&[&swallowed]), "needs more than 500000 steps"),
        (grown(&doubling), "builds a value of more than 20000 parts"),
        (grown(&texts), "builds a value of more than 20000 parts"),
        (
            policy(&["'a'.replace('', 'x').size() > 0 && [1,2].map(x, 'a').join('b') != ''"]),
            "",
        ),
    ] {
        let snapshot = snapshot(&[("p", data)]);
        let found = said(&ask(&snapshot, Layer::Guard, &site(|_| ())));
        match words {
            "" => assert!(found.is_empty(), "{found:?}"),
            words => {
                assert_eq!(found.len(), 1, "{found:?}");
                assert!(found[0].contains(words), "{found:?}");
            }
        }
    }
}

/// Milliseconds that have passed for the policies: each look at the clock takes one.
static LOOKS: AtomicU64 = AtomicU64::new(0);

fn clock() -> Duration {
    Duration::from_millis(LOOKS.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn time_is_limited_for_one_policy_and_for_all() {
    let slow = "object.spec.prefixes.all(p, [0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c, a+b+c >= 0))))";
    let names: Vec<String> = (0..9).map(|at| format!("p{at}")).collect();
    let all: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), policy(&[slow, "true"])))
        .collect();
    let mut snapshot = snapshot(&all);
    assert!(
        said(&ask(&snapshot, Layer::Guard, &site(|_| ()))).is_empty(),
        "without a clock it is within its steps"
    );
    snapshot.set_clock(clock);
    let found = said(&ask(&snapshot, Layer::Guard, &site(|_| ())));
    let of = |words: &str| found.iter().filter(|text| text.contains(words)).count();
    assert!(
        of(&format!("takes longer than {} ms", MAX_TIME.as_millis())) >= 4,
        "{found:#?}"
    );
    assert!(
        of(&format!(
            "all policies together took longer than {} ms",
            MAX_TIME_OF_ALL.as_millis()
        )) >= 4,
        "{found:#?}"
    );
    // One finding for each, though both validations of a policy fail then.
    assert_eq!(
        found.iter().filter(|text| text.contains("\"p8\"")).count(),
        2,
        "{found:#?}"
    );
}

#[test]
fn an_update_is_denied_for_what_it_changes_only() {
    let snapshot = snapshot(&[(
        "owners",
        policy(&[
            "object.spec.owner in ['network']",
            "oldObject == null || object.spec.owner == oldObject.spec.owner",
        ]),
    )]);
    let update = |old: &Value, new: &Value| {
        let mut request = Request::for_object(Kind::TailnetSite, new.clone(), Layer::Webhook);
        request.operation = Operation::Update;
        request.old = Some(old.clone());
        let outcome = evaluate(&request, &snapshot);
        (
            outcome.denials().map(|f| f.id().to_owned()).collect::<Vec<_>>(),
            outcome
                .warnings()
                .filter(|f| f.rule == "TN009")
                .map(|f| f.id().to_owned())
                .collect::<Vec<_>>(),
        )
    };
    let owned = |owner: &str| site(|site| site["spec"]["owner"] = json!(owner));
    let mut described = owned("x");
    described["spec"]["description"] = json!("d");
    assert_eq!(
        update(&owned("x"), &described),
        (vec![], vec!["ORG/owners/1".to_owned()])
    );
    assert_eq!(update(&owned("x"), &owned("y")).0, ["ORG/owners/1", "ORG/owners/2"]);
    assert_eq!(
        update(&owned("network"), &owned("y")).0,
        ["ORG/owners/1", "ORG/owners/2"]
    );
    assert_eq!(update(&owned("x"), &owned("network")).0, ["ORG/owners/2"]);
}

#[test]
fn problems_name_key_document_path_line_and_position() {
    let text = "validations:\n  - expression: 'true'\n---\nvariables:\n  - name: a\n    expression: 'true'\nvalidations:\n  - expression: |\n      true &&\n      object.spec.ownr == 'a'\n";
    let problems = Policy::compile("p", &data(text)).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(
        problems[0].to_string(),
        "data[policy.yaml]: document 2: validations[0].expression:2:13: object.spec has no field \"ownr\": did you mean owner?"
    );
    assert!(
        problems[0].line.is_some_and(|line| (8..=9).contains(&line)),
        "{problems:?}"
    );
    for (text, words) in [
        ("", "there is no validation"),
        ("validations: []", "there is none"),
        ("validations: [{expression: 'true', mesage: x}]", "mesage"),
        (
            "validations: [{expression: 'true', reason: Because}]",
            "is none of Invalid",
        ),
        (
            "{failurePolicy: Ignore, validations: [{expression: 'true'}]}",
            "what cannot be decided is refused",
        ),
        (
            "{validationActions: [Audit], validations: [{expression: 'true'}]}",
            "either [Deny] or [Warn]",
        ),
        (
            "{matchConstraints: {resourceRules: [{resources: [pods]}]}, validations: [{expression: 'true'}]}",
            "\"pods\" is none of tailnets",
        ),
        (
            "{matchConstraints: {resourceRules: [{resources: ['*'], operations: [DELETE]}]}, validations: [{expression: 'true'}]}",
            "CREATE and UPDATE",
        ),
        (
            "{matchConstraints: {resourceRules: [{resources: ['*'], apiGroups: [apps]}]}, validations: [{expression: 'true'}]}",
            "tsunaro.io only",
        ),
        (
            "{variables: [{name: a, expression: variables.b}, {name: b, expression: '1'}], validations: [{expression: 'true'}]}",
            "there is no variable \"b\"",
        ),
        (
            "{variables: [{name: a-b, expression: '1'}], validations: [{expression: 'true'}]}",
            "is no name",
        ),
        ("validations: [{expression: 'true', message: \"a\\nb\"}]", "one line"),
        ("validations: [", ""),
    ] {
        let problems = Policy::compile("p", &data(text)).unwrap_err();
        assert!(
            problems.iter().any(|problem| problem.message.contains(words)),
            "{text}: {problems:?}"
        );
    }
    let whole = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: x}\nspec:\n  validations:\n    - expression: object.spec.tailnetRef.name != ''\n";
    assert_eq!(Policy::compile("p", &data(whole)).unwrap().validations(), 1);
}

#[test]
fn variables_are_worked_out_when_they_are_used() {
    let text = json!({
        "variables": [{"name": "bad", "expression": "object.metadata.labels['no']"}, {"name": "n", "expression": "1"}],
        "validations": [
            {"expression": "variables.n == 1 || variables.bad == 1"},
            {"expression": "variables.bad == 1 || variables.n == 1"},
        ],
    });
    let snapshot = snapshot(&[("p", data(&text.to_string()))]);
    assert_eq!(
        said(&ask(&snapshot, Layer::Webhook, &site(|_| ()))),
        Vec::<String>::new()
    );
}

#[test]
fn status_and_managed_fields_are_not_seen() {
    let all = snapshot(&[(
        "p",
        policy(&["!has(object.metadata.managedFields)", "size(object) == 4"]),
    )]);
    let object = site(|site| {
        site["status"] = json!({"conditions": []});
        site["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    });
    assert_eq!(said(&ask(&all, Layer::Webhook, &object)), Vec::<String>::new());
}

fn config_map(namespace: &str, label: &str, data: &BTreeMap<String, String>) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": namespace, "labels": {"tsunaro.io/admission-policy": label}},
        "data": data,
    })
}

#[test]
fn a_config_map_is_refused_for_every_fault_and_warned_of_whom_it_would_refuse() {
    let mut snapshot = snapshot(&[]);
    for owner in ["a", "b", "c"] {
        let mut site = site(|site| site["spec"]["owner"] = json!(owner));
        site["metadata"]["name"] = json!(format!("site-{owner}"));
        snapshot.upsert(Kind::TailnetSite, site);
    }
    let ask = |new: &Value, old: Option<&Value>| {
        let outcome = organisation::evaluate_config_map(new, old, &snapshot);
        let lines: Vec<String> = outcome
            .findings
            .iter()
            .map(|finding| format!("{:?} {finding}", finding.severity))
            .collect();
        (outcome.denied(), lines)
    };
    let bad = policy(&["object.spec.ownr == 'a'", "object.spec.owner =="]);
    let (denied, lines) = ask(&config_map("tailnet-system", "true", &bad), None);
    assert!(denied);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        lines[0],
        "Deny data[policy.yaml]: validations[0].expression: Invalid value: line 1, column 13: object.spec has no field \"ownr\": did you mean owner? [TN009]"
    );
    assert!(lines[1].contains("ends too early"), "{lines:?}");
    // The same text with another annotation is not refused again; another text is.
    let stored = config_map("tailnet-system", "true", &bad);
    assert!(!ask(&stored, Some(&stored)).0);
    assert!(
        ask(
            &config_map("tailnet-system", "true", &policy(&["objct"])),
            Some(&stored)
        )
        .0
    );
    // Elsewhere, or without the label, it is nobody's business.
    assert_eq!(ask(&config_map("default", "true", &bad), None), (false, vec![]));
    assert_eq!(ask(&config_map("tailnet-system", "false", &bad), None), (false, vec![]));
    let good = policy(&["!has(object.spec.owner) || object.spec.owner in ['a']"]);
    let good = config_map("tailnet-system", "true", &good);
    let (denied, lines) = ask(&good, None);
    assert!(!denied);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("Warn data: Forbidden: 2 objects that exist are not accepted any more: TailnetSite site-b, TailnetSite site-c ("), "{lines:?}");
    let (denied, lines) = ask(&config_map("tailnet-system", "off", &policy(&["true"])), Some(&good));
    assert!(!denied && lines[0].contains("is no longer in force"), "{lines:?}");
}

#[test]
fn other_objects_count_as_steps() {
    let mut snapshot = snapshot(&[("p", policy(&["size(others) >= 0"]))]);
    for at in 0..200 {
        let mut other = site(|site| site["spec"]["prefixes"] = json!([format!("10.{at}.0.0/24")]));
        other["metadata"]["name"] = json!(format!("other-{at}"));
        snapshot.upsert(Kind::TailnetSite, other);
    }
    let mine = site(|site| site["spec"]["prefixes"] = json!(["10.255.0.0/24"]));
    assert_eq!(said(&ask(&snapshot, Layer::Guard, &mine)), Vec::<String>::new());
    let many: Vec<String> = (0..128).map(|at| format!("172.16.{at}.0/24")).collect();
    for at in 0..4000 {
        let mut other = site(|site| site["spec"]["prefixes"] = json!(many));
        other["metadata"]["name"] = json!(format!("large-{at}"));
        snapshot.upsert(Kind::TailnetSite, other);
    }
    let found = said(&ask(&snapshot, Layer::Guard, &mine));
    assert!(
        found.len() == 1 && found[0].contains("needs more than 500000 steps"),
        "{found:?}"
    );
}

/// Pieces of expressions, right ones more often than not.
fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "object",
        "object.spec.owner",
        "object.spec.prefixes",
        "object.metadata.name",
        "oldObject",
        "others",
        "tailnet",
        "tailnet.spec",
        "request.operation",
        "namespaceObject",
        "variables.v",
        "true",
        "null",
        "1",
        "-7",
        "2u",
        "1.5",
        "'text'",
        "'10.0.0.0/8'",
        "b'x'",
        "[]",
        "[1, 'a']",
        "{}",
        "{'a': 1}",
        "x",
        "''",
        "9223372036854775807",
        "object.metadata.?labels",
        "object.spec[?'owner']",
        "duration('1h')",
        "optional.none()",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(4, 40, 3, |inner| {
        let operators = prop::sample::select(vec!["&&", "||", "==", "!=", "<", ">=", "+", "-", "*", "/", "%", "in"]);
        let methods = prop::sample::select(vec![
            "size()",
            "startsWith('a')",
            "matches('[a-z]+')",
            "matches(x)",
            "split(',')",
            "join('-')",
            "replace('a', 'bb')",
            "orValue('')",
            "hasValue()",
            "value()",
            "containsCIDR('10.1.0.0/16')",
            "containsIP('10.1.0.1')",
            "prefixLength()",
            "map(x, x)",
            "all(x, x != null)",
            "exists(x, x == 'a')",
            "filter(x, true)",
            "exists_one(x, true)",
            "substring(1)",
            "substring(3, 1)",
            "charAt(9)",
            "indexOf('x')",
            "slice(1, 9)",
            "slice(5, 2)",
            "sort()",
            "distinct()",
            "flatten()",
            "sum()",
            "reverse()",
            "first()",
            "last()",
            "min()",
            "lowerAscii()",
            "trim()",
            "masked()",
            "ip()",
            "family()",
            "getHours()",
            "string()",
            "isSorted()",
        ]);
        let functions = prop::sample::select(vec![
            "size",
            "int",
            "uint",
            "double",
            "string",
            "cidr",
            "ip",
            "isIP",
            "url",
            "quantity",
            "!",
            "-",
            "dyn",
            "bytes",
            "timestamp",
            "duration",
            "math.abs",
            "math.greatest",
            "optional.of",
            "has",
            "strings.quote",
        ]);
        prop_oneof![
            (inner.clone(), operators, inner.clone()).prop_map(|(a, operator, b)| format!("({a} {operator} {b})")),
            (inner.clone(), methods).prop_map(|(a, method)| format!("{a}.{method}")),
            (functions, inner.clone()).prop_map(|(function, a)| format!("{function}({a})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{a}[{b}]")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_expression_is_refused_or_decided_and_fails_nothing_but_itself(expression in expressions(), raw in ".{0,80}") {
        let text = json!({
            "variables": [{"name": "v", "expression": "object.spec.prefixes"}],
            "validations": [{"expression": expression}],
        });
        let mut snapshot = snapshot(&[("p", data(&text.to_string())), ("raw", policy(&[&raw]))]);
        snapshot.upsert_namespace("shop");
        for layer in [Layer::Webhook, Layer::Guard, Layer::Lint] {
            for object in [site(|_| ()), ingress("shop", &["group:a"])] {
                for text in said(&ask(&snapshot, layer, &object)) {
                    prop_assert!(!text.contains("the interpreter failed"), "{expression}: {text}");
                    prop_assert!(text.chars().count() <= 420, "{}: {text}", text.chars().count());
                }
            }
        }
    }
}
