//! Every file in `cases/` is a test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::collections::{BTreeMap, BTreeSet};

use tailnet_crds::names::annotation::VALIDATION;
use tailnet_policies::cases::{self, Case, Promise};
use tailnet_policies::table::{RULES, rule};
use tailnet_policies::{Layer, Outcome, Severity, evaluate};

fn all() -> Vec<Case> {
    cases::load(&cases::directory()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_case_finds_exactly_what_it_says() {
    let mut failures = Vec::new();
    for case in all() {
        let found = cases::lines(&case.outcome(case.layer(), &case.snapshot()));
        if found != case.expect {
            if std::env::var_os("UPDATE_CASES").is_some() {
                update(&case, &found);
            }
            failures.push(format!(
                "{}\n  expected {:#?}\n  found {found:#?}",
                case.name, case.expect
            ));
        }
    }
    assert!(
        failures.is_empty(),
        "{} cases differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Rewrites the last document.
fn update(case: &Case, found: &[String]) {
    let text = std::fs::read_to_string(&case.path).unwrap();
    let head = &text[..text.rfind("---\nexpect:").expect("a document expect: at the end")];
    let mut new = format!("{head}---\nexpect:{}\n", if found.is_empty() { " []" } else { "" });
    for line in found {
        new.push_str(&format!("  - '{}'\n", line.replace('\'', "''")));
    }
    std::fs::write(&case.path, new).unwrap();
}

#[test]
fn every_case_keeps_the_promise_of_its_name() {
    for case in all() {
        let outcome = case.outcome(case.layer(), &case.snapshot());
        let by = |severity| {
            outcome
                .findings
                .iter()
                .any(|f| f.rule == case.rule && f.severity == severity)
        };
        let kept = match case.promise {
            Promise::Accept => !outcome.denied() && !by(Severity::Warn),
            Promise::Warn => !outcome.denied() && by(Severity::Warn),
            Promise::Deny => by(Severity::Deny),
        };
        assert!(kept, "{}: {:#?}", case.name, cases::lines(&outcome));
    }
}

#[test]
fn every_rule_has_cases_and_every_folder_a_rule() {
    let mut promises: BTreeMap<String, Vec<Promise>> = BTreeMap::new();
    for case in all() {
        promises.entry(case.rule.clone()).or_default().push(case.promise);
    }
    let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    for folder in promises.keys() {
        assert!(rules.contains(folder.as_str()), "cases/{folder} is of no rule");
    }
    for id in rules {
        let has = |wanted: &[Promise]| {
            promises
                .get(id)
                .is_some_and(|all| all.iter().any(|p| wanted.contains(p)))
        };
        assert!(has(&[Promise::Accept]), "{id} has no accept case");
        let against = match rule(id).unwrap().severity {
            Severity::Deny => [Promise::Deny],
            Severity::Warn => [Promise::Warn],
        };
        assert!(has(&against), "{id} has no {against:?} case");
    }
}

#[test]
fn an_update_that_changes_nothing_is_never_denied() {
    for case in all() {
        let Some(mut request) = case.request(case.layer()).filter(|request| request.new.is_some()) else {
            continue;
        };
        request.operation = tailnet_policies::Operation::Update;
        request.old = Some(case.object.clone());
        let outcome = evaluate(&request, &case.snapshot());
        assert!(!outcome.denied(), "{}: {:#?}", case.name, cases::lines(&outcome));
    }
}

#[test]
fn the_guard_finds_what_a_create_would_find_for_an_object_that_came_last() {
    for case in all() {
        // Everybody else is older: whoever has no creationTimestamp comes last.
        let mut case = case;
        for object in &mut case.cluster.objects {
            object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        case.old = None;
        case.cluster.claims.clear();
        if let Some(metadata) = case.object["metadata"].as_object_mut() {
            metadata.shift_remove("creationTimestamp");
        }
        // The guard knows no deletion; and it takes the annotation that skips rules for granted, since the webhook asked.
        let asks = case
            .object
            .pointer("/metadata/annotations")
            .and_then(|all| all.get(VALIDATION));
        let granted = case.user.as_ref().and_then(|user| user.may_bypass) == Some(true);
        if case.kind.is_none() || case.deletes || (asks.is_some_and(|value| value == "disabled") && !granted) {
            continue;
        }
        let snapshot = case.snapshot();
        let in_guard = |outcome: &Outcome| -> Vec<String> {
            let guarded =
                |id: &str| rule(id).is_some_and(|rule| rule.layers.has(tailnet_policies::table::Layers::GUARD));
            outcome
                .findings
                .iter()
                .filter(|f| guarded(f.rule))
                .map(|f| f.to_string())
                .collect()
        };
        let create = case.outcome(case.layer(), &snapshot);
        let guard = case.outcome(Layer::Guard, &snapshot);
        let (mut create, mut guard) = (in_guard(&create), in_guard(&guard));
        create.sort();
        guard.sort();
        assert_eq!(create, guard, "{}", case.name);
    }
}

#[test]
fn messages_are_short_and_have_one_shape() {
    for case in all() {
        for finding in case.outcome(case.layer(), &case.snapshot()).findings {
            let message = finding.to_string();
            let detail = &finding.detail;
            assert!(message.chars().count() <= 320, "{}: {message}", case.name);
            assert!(
                !detail.ends_with('.') || detail.ends_with("..."),
                "{}: {message}",
                case.name
            );
            assert!(!detail.contains('\n'), "{}: {message}", case.name);
            assert!(
                message.ends_with(&format!("[{}]", finding.id())),
                "{}: {message}",
                case.name
            );
        }
    }
}

/// The manifests of the published documentation, all in one cluster.
#[test]
fn the_seeds_are_accepted() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/seeds");
    let mut objects: Vec<serde_json::Value> = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        objects.extend(serde_saphyr::from_multiple::<serde_json::Value>(&text).unwrap());
    }
    assert!(objects.len() >= 5, "{}", objects.len());
    let mut snapshot = tailnet_policies::Snapshot::closed(tailnet_policies::Config::default());
    for object in &objects {
        snapshot.upsert(cases::kind_of(object).unwrap(), object);
    }
    for layer in [Layer::Webhook, Layer::Guard, Layer::Lint] {
        for object in &objects {
            let kind = cases::kind_of(object).unwrap();
            let outcome = evaluate(
                &tailnet_policies::Request::for_object(kind, object.clone(), layer),
                &snapshot,
            );
            assert!(!outcome.denied(), "{layer:?}: {:#?}", cases::lines(&outcome));
        }
    }
}
