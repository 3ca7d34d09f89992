//! The rules in CEL, run by kube's client-side evaluation: each row refuses what it should, alone, and says so.

use kube::core::cel::Validator;
use serde_json::{Value, json};
use tailnet_crds::cel::{detail, rules};
use tailnet_crds::crd::schema;
use tailnet_crds::{Kind, structural};

use crate::seeds::{kind_of, seed};

/// Messages of the rules that the object breaks.
fn refusals(object: &Value, old: Option<&Value>) -> Vec<String> {
    match Validator::new().validate(schema(kind_of(object)), object, old) {
        Ok(()) => Vec::new(),
        Err(errors) => errors
            .iter()
            // A field path below the root comes with a dot before it.
            .map(|error| {
                format!(
                    "{}: {}",
                    error.field_path.trim_start_matches('.'),
                    without_value(&error.message)
                )
            })
            .collect(),
    }
}

/// What follows the value that some messages quote themselves.
fn without_value(message: &str) -> &str {
    match message.strip_prefix('"').and_then(|quoted| quoted.split_once("\": ")) {
        Some((_, text)) => text,
        None => message,
    }
}

include!("cel_cases.rs");

#[test]
fn every_row_refuses_what_it_should() {
    for (kind, changes, wanted) in cases() {
        let object = with(seed(kind), &changes);
        let got = refusals(&object, None);
        assert_eq!(got, wanted, "{kind} with {changes:?}");
    }
}

#[test]
fn a_value_is_quoted_unless_it_may_hold_a_password() {
    let said = |kind: Kind, at: &'static str, value: &str| -> Vec<String> {
        let object = with(seed(kind), &[(at, json!(value))]);
        match Validator::new().validate(schema(kind), &object, None) {
            Ok(()) => Vec::new(),
            Err(errors) => errors.iter().map(|error| error.message.clone()).collect(),
        }
    };
    for (kind, at, shown, hidden) in [
        (Kind::Tailnet, "/spec/server", "https://h/path", "https://u:hunter2@h"),
        (
            Kind::TailnetEgress,
            "/spec/targets/0/address",
            "db:5432",
            "postgres://u:hunter2@h/db",
        ),
        (
            Kind::TailnetEgress,
            "/spec/targets/0/address",
            "db:5432",
            "postgr\u{e9}s://u:hunter2@h/db",
        ),
    ] {
        let messages = said(kind, at, shown);
        assert!(
            messages.len() == 1 && messages[0].starts_with(&format!("\"{shown}\": is not ")),
            "{messages:?}"
        );
        let messages = said(kind, at, hidden);
        assert!(
            messages.len() == 1 && messages[0].starts_with("is not "),
            "{messages:?}"
        );
    }
}

#[test]
fn updates_that_are_refused() {
    for (kind, old, new, wanted) in updates() {
        let (old, new) = (with(seed(kind), &old), with(seed(kind), &new));
        assert_eq!(refusals(&new, Some(&old)), wanted, "{kind}");
        assert_eq!(
            refusals(&new, Some(&new)),
            Vec::<String>::new(),
            "{kind}: an unchanged object is refused"
        );
    }
}

#[test]
fn every_row_has_a_case() {
    let mut wanted: Vec<String> = cases()
        .into_iter()
        .flat_map(|(_, _, wanted)| wanted.into_iter().map(str::to_owned))
        .collect();
    wanted.extend(
        updates()
            .into_iter()
            .flat_map(|(_, _, _, wanted)| wanted.into_iter().map(str::to_owned)),
    );
    for rule in rules() {
        let place = rule.path.replace("[]", "[");
        let hit = wanted.iter().any(|text| {
            let (path, message) = text.split_once(": ").expect("a path");
            let plain: String = path.chars().filter(|c| !c.is_ascii_digit() && *c != ']').collect();
            message.contains(&format!("[{}]", rule.id))
                && message.starts_with(rule.message)
                && (plain == place
                    || plain == format!("{place}{}", rule.field_path.unwrap_or_default())
                    || place.is_empty())
        });
        assert!(
            hit,
            "no case for {} at {:?} of {}: {}",
            rule.id, rule.path, rule.kind, rule.message
        );
    }
}

#[test]
fn texts_can_be_found() {
    assert_eq!(
        detail("TN203", Kind::TailnetEgress, "spec.targets[].address"),
        Some("is not an IPv4 or IPv6 address or a DNS name")
    );
    assert_eq!(detail("TN203", Kind::TailnetEgress, "spec.tag"), None);
}

#[test]
fn cases_fit_the_structural_schema() {
    for (kind, changes, _) in cases() {
        let errors = structural::check(kind, &with(seed(kind), &changes));
        assert!(errors.is_empty(), "{kind} with {changes:?}: {errors:?}");
    }
}
