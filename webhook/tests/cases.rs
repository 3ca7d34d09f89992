//! Every fixture of the rules, through the router: the wire form loses and adds nothing.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::sync::Arc;

use serde_json::Value;
use support::{Harness, Says, config_map_review, review};
use tailnet_policies::Layer;
use tailnet_policies::cases::{self, Case};
use tailnet_webhook::audit::Target;
use tailnet_webhook::live::Presence;

/// What an answer says, in the words of the fixtures.
fn lines(response: &Value) -> Vec<String> {
    let empty = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = response
        .pointer("/status/details/causes")
        .and_then(Value::as_array)
        .unwrap_or(&empty);
    let mut lines: Vec<_> = causes
        .iter()
        .map(|cause| format!("deny {}: {}", text(&cause["field"]), text(&cause["message"])))
        .collect();
    let warnings = response["warnings"].as_array().unwrap_or(&empty);
    let warnings = cases::whole_warnings(warnings.iter().filter_map(Value::as_str));
    lines.extend(warnings.iter().filter_map(|warning| cases::warning_line(warning)));
    lines
}

async fn answer(case: &Case) -> Value {
    let may = case.user.as_ref().and_then(|user| user.may_bypass);
    let harness = Harness::build(case.snapshot(), Presence::Present, &Target::None, |reviewer| {
        reviewer.with_access(Arc::new(Says(may)))
    });
    let mut review = match case.kind {
        Some(kind) if case.deletes => review("DELETE", kind, None, Some(&case.object)),
        Some(kind) if case.old.is_some() => review("UPDATE", kind, Some(&case.object), case.old.as_ref()),
        Some(kind) => review("CREATE", kind, Some(&case.object), None),
        None => config_map_review(&case.object, case.old.as_ref()),
    };
    if let Some(user) = &case.user {
        review["request"]["userInfo"] = serde_json::json!({"username": user.username, "groups": user.groups});
    }
    harness.validate(&review).await
}

#[tokio::test]
async fn every_case_gives_its_findings_on_the_wire() {
    let all = cases::load(&cases::directory()).expect("fixtures");
    assert!(all.len() > 40, "{} fixtures", all.len());
    let mut failures = Vec::new();
    for case in all.into_iter().filter(|case| case.layer() == Layer::Webhook) {
        let response = answer(&case).await;
        let found = lines(&response);
        let denies = case.expect.iter().any(|line| line.starts_with("deny "));
        if found != case.expect || response["allowed"] == denies {
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
