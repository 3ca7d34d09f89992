//! The rules in CEL, which the API server checks by itself, and the same rules in Rust say the same of every fixture and of every
//! object of the corpus.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::collections::{BTreeMap, BTreeSet};

use kube::core::cel::Validator;
use serde_json::Value;
use tailnet_crds::crd::{schema, with_defaults};
use tailnet_crds::{Kind, cel, structural};
use tailnet_policies::table::{Layers, rule};
use tailnet_policies::{Config, Layer, Operation, Request, Severity, Snapshot, cases, corpus, evaluate};

/// Every object that a fixture or a set-up has, with the stored one before it where there is one, and the snapshot around it.
fn objects() -> Vec<(String, Kind, Value, Option<Value>, Snapshot)> {
    let mut all = Vec::new();
    for case in cases::load(&cases::directory()).unwrap() {
        let snapshot = case.snapshot();
        for (at, object) in case.cluster.objects.iter().enumerate() {
            let kind = cases::kind_of(object).unwrap();
            all.push((
                format!("{} cluster {at}", case.name),
                kind,
                object.clone(),
                None,
                snapshot.clone(),
            ));
        }
        // A ConfigMap has no schema of ours.
        let Some(kind) = case.kind else { continue };
        if let Some(old) = &case.old {
            all.push((format!("{} old", case.name), kind, old.clone(), None, snapshot.clone()));
            let name = format!("{} update", case.name);
            all.push((name, kind, case.object.clone(), Some(old.clone()), snapshot.clone()));
        }
        all.push((case.name.clone(), kind, case.object.clone(), None, snapshot));
    }
    for setup in corpus::load().unwrap() {
        for (kind, object) in &setup.objects {
            let snapshot = Snapshot::closed(Config::default());
            all.push((format!("corpus/{}", setup.name), *kind, object.clone(), None, snapshot));
        }
    }
    all
}

/// Place in the schema of a field of an object: `spec.targets[2].address` is `spec.targets[].address`.
fn place(field: &str) -> String {
    field.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Ids of the rules that refuse, each with the places.
type Verdict = BTreeMap<String, BTreeSet<String>>;

/// What the schema refuses.
fn by_schema(kind: Kind, object: &Value, old: Option<&Value>) -> Verdict {
    let mut ids = Verdict::new();
    if let Err(errors) = Validator::new().validate(schema(kind), object, old) {
        for error in &errors {
            let id = error.message.rsplit_once('[').and_then(|(_, id)| id.strip_suffix(']'));
            let id = id.unwrap_or_else(|| panic!("a message without id: {}", error.message));
            ids.entry(id.to_owned())
                .or_default()
                .insert(place(error.field_path.trim_start_matches('.')));
        }
    }
    ids
}

/// The same of the rules in Rust, with every finding that would deny in a create or by this change.
fn by_rust(kind: Kind, object: &Value, old: Option<&Value>, snapshot: &Snapshot) -> Verdict {
    let mut ids = Verdict::new();
    let mut collect = |request: Request| {
        for finding in evaluate(&request, snapshot).findings {
            if finding.severity == Severity::Deny {
                ids.entry(finding.rule.to_owned())
                    .or_default()
                    .insert(place(&finding.field));
            }
        }
    };
    collect(Request::for_object(kind, object.clone(), Layer::Webhook));
    if let Some(old) = old {
        let mut request = Request::for_object(kind, object.clone(), Layer::Webhook);
        request.operation = Operation::Update;
        request.old = Some(old.clone());
        collect(request);
    }
    ids
}

/// What CEL leaves to Rust, as (rule, place, why). Everything else is a fault of the one or the other.
const ONLY_IN_RUST: &[(&str, &str, &str)] = &[
    (
        "TN012",
        "spec.agent",
        "CEL does not know which namespace is the operator's",
    ),
    (
        "TN313",
        "spec.hostname",
        "CEL does not know which namespace is the operator's",
    ),
    (
        "TN206",
        "spec.targets[].aliases[]",
        "CEL does not know the cluster's domain",
    ),
    (
        "TN203",
        "spec.targets[].address",
        "CEL does not take IPv6 addresses apart",
    ),
    ("TN101", "spec.server", "CEL does not take URLs apart"),
    (
        "TN103",
        "spec.dns.ingressNameTemplate",
        "CEL does not know the cluster's domain",
    ),
    ("TN507", "spec.dns.zone", "CEL does not know the cluster's domain"),
    (
        "TN017",
        "spec.defaults.tls.issuerRef.kind",
        "an unknown kind of cert-manager does no harm while the webhook is down",
    ),
    (
        "TN503",
        "spec.routes.lan[]",
        "comparing 128 networks in pairs is over CEL's cost limit",
    ),
    (
        "TN508",
        "spec.dns.staticRecords[]",
        "comparing 256 records in pairs is over CEL's cost limit",
    ),
];

#[test]
fn cel_and_rust_say_the_same_of_every_fixture() {
    // Without other objects: what rests on them CEL cannot see.
    let alone = Snapshot::closed(Config::default());
    let mut faults = Vec::new();
    let (mut agreed, mut compared) = (BTreeMap::<String, usize>::new(), 0);
    let mut used = BTreeSet::new();
    let mut known: BTreeMap<String, Verdict> = BTreeMap::new();
    for (name, kind, object, old, snapshot) in objects() {
        let read = |object: &Value| with_defaults(kind, object);
        let (object, old) = (read(&object), old.as_ref().map(read));
        // What the structural schema refuses never comes to CEL.
        let misfit = |object: &Value| !structural::check(kind, object).is_empty();
        if misfit(&object) || old.as_ref().is_some_and(misfit) {
            continue;
        }
        compared += 1;
        // Many fixtures have the same objects around them, and compiling their rules is what costs.
        let text = format!("{kind} {object} {old:?}");
        let schema = known
            .entry(text)
            .or_insert_with(|| by_schema(kind, &object, old.as_ref()))
            .clone();
        let rust = by_rust(kind, &object, old.as_ref(), &snapshot);
        let refused = |by: &Verdict, id: &str, places: &BTreeSet<String>| {
            // By the same rule, or by another one in the same place: what one parser cannot read the other may read.
            by.contains_key(id)
                || places
                    .iter()
                    .all(|place| by.values().flatten().any(|other| near(place, other)))
        };
        for (id, places) in &schema {
            if refused(&rust, id, places) {
                *agreed.entry(id.clone()).or_default() += 1;
            } else {
                faults.push(format!("{name}: only CEL refuses by {id} at {places:?}"));
            }
        }
        for (id, places) in &by_rust(kind, &object, old.as_ref(), &alone) {
            if !rule(id).unwrap().layers.has(Layers::CEL) || refused(&schema, id, places) {
                continue;
            }
            // A place of which the schema says nothing for this rule is not CEL's.
            let said = |place: &String| {
                cel::rules().any(|row| row.id == id.as_str() && row.kind == kind && near(row.path, place))
            };
            if !places.iter().any(said) {
                continue;
            }
            let exception = |place: &String| {
                ONLY_IN_RUST
                    .iter()
                    .position(|(rule, at, _)| rule == id && near(at, place))
            };
            match places.iter().map(exception).collect::<Option<Vec<_>>>() {
                Some(found) => used.extend(found),
                None => faults.push(format!("{name}: only Rust refuses by {id} at {places:?}")),
            }
        }
    }
    println!("{compared} objects; both refuse: {agreed:?}");
    assert!(faults.is_empty(), "{} differ:\n{}", faults.len(), faults.join("\n"));
    for (at, (id, place, _)) in ONLY_IN_RUST.iter().enumerate() {
        assert!(used.contains(&at), "{id} at {place} is an exception for nothing");
    }
    // Every rule that the schema has was refused by both at least once.
    for row in cel::rules() {
        assert!(
            agreed.contains_key(row.id),
            "no fixture is refused by {} in CEL",
            row.id
        );
    }
}

/// Whether a row at `path` may speak of a field in that place: it names the field or something above it.
fn near(path: &str, place: &str) -> bool {
    place == path
        || place
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with(['.', '[']))
        || path.is_empty()
}
