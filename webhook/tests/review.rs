//! Reviews in, reviews out, through the router: what every operation gets, and what happens when nothing can be decided.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use serde_json::{Value, json};
use support::{Harness, Says, answer, config_map_review, egress, patch, review, site, snapshot, tailnet};
use tailnet_crds::Kind;
use tailnet_policies::RefKind;
use tailnet_webhook::audit::Target;
use tailnet_webhook::live::Presence;
use tailnet_webhook::router::MAX_BODY;

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

#[tokio::test]
async fn a_right_object_passes_without_a_word() {
    let harness = Harness::new(snapshot());
    let response = harness
        .validate(&review("CREATE", Kind::Tailnet, Some(&tailnet("lab")), None))
        .await;
    assert_eq!(
        response,
        json!({"uid": UID, "allowed": true, "auditAnnotations": {"decision": "allow", "review-uid": UID}})
    );
}

#[tokio::test]
async fn a_denial_is_422_with_every_finding_as_a_cause() {
    let harness = Harness::new(snapshot());
    let mut wrong = egress("remote");
    wrong["metadata"]["namespace"] = json!("team-a");
    wrong["spec"]["targets"][0]["address"] = json!("10.0.0.300");
    wrong["spec"]["consumerNamespaces"] = json!(["team-a", "nowhere"]);
    let response = harness
        .validate(&review("CREATE", Kind::TailnetEgress, Some(&wrong), None))
        .await;
    assert_eq!(response["allowed"], false);
    let status = &response["status"];
    assert_eq!(
        (&status["code"], &status["reason"], &status["status"]),
        (&json!(422), &json!("Invalid"), &json!("Failure"))
    );
    assert_eq!(status["details"]["group"], "tsunaro.io");
    assert_eq!(status["details"]["kind"], "TailnetEgress");
    assert_eq!(status["details"]["name"], "remote");
    let causes = status["details"]["causes"].as_array().expect("causes");
    let address = causes
        .iter()
        .find(|cause| cause["field"] == "spec.targets[0].address")
        .expect("the address");
    assert_eq!(address["reason"], "FieldValueInvalid");
    let message = address["message"].as_str().expect("text");
    assert!(
        message.starts_with("Invalid value: \"10.0.0.300\": ") && message.ends_with("[TN203]"),
        "{message}"
    );
    assert!(
        causes
            .iter()
            .any(|cause| cause["message"].as_str().is_some_and(|text| text.ends_with("[TN201]"))),
        "{causes:?}"
    );
    let lines: Vec<_> = status["message"]
        .as_str()
        .expect("message")
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(lines.len(), causes.len(), "one line per finding");
    assert!(lines.contains(&format!("spec.targets[0].address: {message}")));
    let rules = response["auditAnnotations"]["rules"].as_str().expect("rules");
    assert_eq!(rules.split(',').collect::<Vec<_>>(), ["TN201", "TN203"]);
    assert_eq!(response["auditAnnotations"]["decision"], "deny");
    // The namespace that does not exist is only a warning; it comes along with the denial.
    let warnings = response["warnings"].to_string();
    assert!(
        warnings.contains("nowhere") && warnings.contains("[TN209]"),
        "{warnings}"
    );
    let metrics = harness.metrics();
    assert!(
        metrics.contains("tailnet_webhook_denials_total{rule=\"TN203\",kind=\"TailnetEgress\",operation=\"CREATE\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("kind=\"TailnetEgress\",operation=\"CREATE\",decision=\"deny\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("tailnet_webhook_requests_in_flight 0"), "{metrics}");
}

#[tokio::test]
async fn a_missing_reference_is_a_warning() {
    let harness = Harness::new(snapshot());
    let mut object = egress("remote");
    object["spec"]["tailnetRef"]["name"] = json!("not-yet");
    let response = harness
        .validate(&review("CREATE", Kind::TailnetEgress, Some(&object), None))
        .await;
    assert_eq!(response["allowed"], true);
    assert!(response["warnings"].to_string().contains("[TN001]"), "{response}");
    assert_eq!(response["auditAnnotations"]["decision"], "warn");
    assert_eq!(response["auditAnnotations"]["warned-rules"], "TN001");
    assert!(response.get("status").is_none());
}

#[tokio::test]
async fn an_update_is_measured_against_what_was_there() {
    let harness = Harness::new(snapshot());
    let old = site("lab", &["192.0.2.0/24", "198.51.100.7/24"]);
    let mut relabelled = old.clone();
    relabelled["spec"]["prefixes"] = json!(["192.0.2.0/24", "198.51.100.7/24", "203.0.113.0/24"]);
    let response = harness
        .validate(&review("UPDATE", Kind::TailnetSite, Some(&relabelled), Some(&old)))
        .await;
    assert_eq!(
        response["allowed"], true,
        "an old fault does not block a change: {response}"
    );
    assert!(response["warnings"].to_string().contains("[TN401]"), "{response}");
    let mut worse = old.clone();
    worse["spec"]["prefixes"] = json!(["192.0.2.1/24", "198.51.100.7/24"]);
    let response = harness
        .validate(&review("UPDATE", Kind::TailnetSite, Some(&worse), Some(&old)))
        .await;
    assert_eq!(response["allowed"], false, "{response}");
    let causes = response["status"]["details"]["causes"].as_array().expect("causes");
    assert_eq!(
        causes.iter().map(|cause| &cause["field"]).collect::<Vec<_>>(),
        ["spec.prefixes[0]"]
    );
}

#[tokio::test]
async fn a_finalizer_leaves_a_wrong_object_that_is_being_deleted() {
    let harness = Harness::new(snapshot());
    let mut old = site("lab", &["198.51.100.7/24"]);
    old["metadata"]["deletionTimestamp"] = json!("2026-11-30T00:00:00Z");
    old["metadata"]["finalizers"] = json!(["tsunaro.io/gateway-teardown"]);
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    let response = harness
        .validate(&review("UPDATE", Kind::TailnetSite, Some(&new), Some(&old)))
        .await;
    assert_eq!(response["allowed"], true, "{response}");
}

#[tokio::test]
async fn a_delete_has_no_object_and_passes() {
    let harness = Harness::new(snapshot());
    let mut message = review(
        "DELETE",
        Kind::TailnetSite,
        None,
        Some(&site("lab", &["198.51.100.7/24"])),
    );
    message["request"]["object"] = Value::Null;
    let response = harness.validate(&message).await;
    assert_eq!(response["allowed"], true, "{response}");
    message["request"]["oldObject"] = Value::Null;
    assert_eq!(harness.validate(&message).await["allowed"], true);
}

#[tokio::test]
async fn an_object_that_fits_no_type_is_denied_not_dropped() {
    let harness = Harness::new(snapshot());
    let object = support::object(
        Kind::TailnetSite,
        None,
        "odd",
        json!({"tailnetRef": "corp", "prefixes": 7}),
    );
    let response = harness
        .validate(&review("CREATE", Kind::TailnetSite, Some(&object), None))
        .await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 422);
}

#[tokio::test]
async fn defaults_are_a_patch_once() {
    let harness = Harness::new(snapshot());
    let mut object = egress("remote");
    object["spec"].as_object_mut().expect("spec").remove("tag");
    let response = harness
        .ask("/mutate", &review("CREATE", Kind::TailnetEgress, Some(&object), None))
        .await;
    assert_eq!(response["allowed"], true);
    assert_eq!(
        patch(&response),
        json!([{"op": "add", "path": "/spec/tag", "value": "tag:egress-remote"}])
    );
    let mut dry = review("CREATE", Kind::TailnetEgress, Some(&object), None);
    dry["request"]["dryRun"] = json!(true);
    assert_eq!(
        harness.ask("/mutate", &dry).await,
        response,
        "a dry run is the same path"
    );
    object["spec"]["tag"] = json!("tag:egress-remote");
    let response = harness
        .ask("/mutate", &review("CREATE", Kind::TailnetEgress, Some(&object), None))
        .await;
    assert_eq!(
        response,
        json!({"uid": UID, "allowed": true, "auditAnnotations": {"decision": "allow", "review-uid": UID}})
    );
    let (status, _) = harness.send("/validate", "").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_dry_run_is_decided_like_the_real_thing() {
    let harness = Harness::new(snapshot());
    for object in [site("lab", &["198.51.100.7/24"]), site("lab", &["198.51.100.0/24"])] {
        let real = review("CREATE", Kind::TailnetSite, Some(&object), None);
        let mut dry = real.clone();
        dry["request"]["dryRun"] = json!(true);
        assert_eq!(harness.validate(&real).await, harness.validate(&dry).await);
    }
}

#[tokio::test]
async fn a_holder_that_is_gone_denies_nobody() {
    for (presence, allowed) in [
        (Presence::Gone, true),
        (Presence::Present, false),
        (Presence::Unknown, false),
    ] {
        let mut snapshot = snapshot();
        snapshot.upsert(Kind::TailnetSite, site("first", &["198.51.100.0/24"]));
        let harness = Harness::build(snapshot, presence, &Target::None, |reviewer| reviewer);
        let second = site("second", &["198.51.100.128/25"]);
        let response = harness
            .validate(&review("CREATE", Kind::TailnetSite, Some(&second), None))
            .await;
        assert_eq!(response["allowed"], allowed, "{presence:?}: {response}");
        let asked = harness.live.asked.lock().expect("not poisoned").clone();
        assert_eq!(asked.len(), 1, "read once: {asked:?}");
        assert_eq!(
            (asked[0].kind, asked[0].name.as_str()),
            (RefKind::Ours(Kind::TailnetSite), "first")
        );
        if !allowed {
            assert!(
                response["status"]["message"].as_str().expect("text").contains("first"),
                "names the holder: {response}"
            );
        }
        let result = format!(
            "tailnet_webhook_holder_reads_total{{result=\"{}\"}} 1",
            presence.as_str()
        );
        assert!(harness.metrics().contains(&result));
    }
}

#[tokio::test]
async fn an_api_server_is_not_asked_when_no_holder_matters() {
    let harness = Harness::new(snapshot());
    harness
        .validate(&review(
            "CREATE",
            Kind::TailnetSite,
            Some(&site("lab", &["198.51.100.7/24"])),
            None,
        ))
        .await;
    assert!(harness.live.asked.lock().expect("not poisoned").is_empty());
}

#[tokio::test]
async fn a_panic_still_answers_with_the_uid() {
    let harness = Harness::build(snapshot(), Presence::Present, &Target::None, |reviewer| {
        reviewer.with_rules(
            Box::new(|_, _, _| panic!("a rule with a fault")),
            Duration::from_secs(4),
        )
    });
    let response = harness
        .validate(&review("CREATE", Kind::TailnetSite, Some(&site("lab", &[])), None))
        .await;
    assert_eq!(response["allowed"], false, "fails closed");
    assert_eq!(response["status"]["code"], 500);
    assert!(
        !response.to_string().contains("a rule with a fault"),
        "the panic's text is for the log: {response}"
    );
    assert!(
        harness
            .metrics()
            .contains("tailnet_webhook_undecidable_total{reason=\"panic\"} 1")
    );
    assert!(harness.metrics().contains("tailnet_webhook_requests_in_flight 0"));
}

#[tokio::test]
async fn a_rule_that_hangs_is_answered_before_the_api_server_gives_up() {
    let harness = Harness::build(snapshot(), Presence::Present, &Target::None, |reviewer| {
        let hang =
            |_: &tailnet_policies::Request, _: &tailnet_policies::Snapshot, _: &[tailnet_policies::ObjectRef]| {
                std::thread::sleep(Duration::from_millis(700));
                tailnet_policies::Outcome::default()
            };
        reviewer.with_rules(Box::new(hang), Duration::from_millis(100))
    });
    let started = std::time::Instant::now();
    let response = harness
        .validate(&review("CREATE", Kind::TailnetSite, Some(&site("lab", &[])), None))
        .await;
    assert!(
        started.elapsed() < Duration::from_millis(600),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(response["allowed"], false);
    assert_eq!(
        (&response["status"]["code"], &response["status"]["reason"]),
        (&json!(504), &json!("Timeout"))
    );
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_its_uid() {
    let harness = Harness::new(snapshot());
    let mut large = site("lab", &["198.51.100.0/24"]);
    large["metadata"]["annotations"] = json!({"x": "y".repeat(MAX_BODY)});
    let response = harness
        .validate(&review("CREATE", Kind::TailnetSite, Some(&large), None))
        .await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 413);
    let response = harness
        .ask("/mutate", &review("CREATE", Kind::TailnetSite, Some(&large), None))
        .await;
    assert_eq!(
        response["allowed"], true,
        "defaults are not worth a refusal; /validate refuses"
    );
    let mut fits = site("lab", &["198.51.100.0/24"]);
    fits["metadata"]["annotations"] = json!({"x": "y".repeat(MAX_BODY - 4096)});
    let response = harness
        .validate(&review("CREATE", Kind::TailnetSite, Some(&fits), None))
        .await;
    assert_eq!(response["allowed"], true, "what fits is decided");
    let (status, _) = harness.send("/validate", "x".repeat(MAX_BODY + 1)).await;
    assert_eq!(
        status,
        StatusCode::PAYLOAD_TOO_LARGE,
        "without a uid no answer can be right"
    );
}

#[tokio::test]
async fn another_version_of_the_protocol_is_refused_with_its_uid() {
    let harness = Harness::new(snapshot());
    let mut old = review(
        "CREATE",
        Kind::TailnetSite,
        Some(&site("lab", &["198.51.100.0/24"])),
        None,
    );
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let response = harness.validate(&old).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 400);
    assert!(
        response["status"]["message"]
            .as_str()
            .expect("text")
            .contains("admission.k8s.io/v1 "),
        "{response}"
    );
}

#[tokio::test]
async fn a_cut_off_body_is_answered_when_its_uid_came_through() {
    let harness = Harness::new(snapshot());
    let whole = review(
        "CREATE",
        Kind::TailnetSite,
        Some(&site("lab", &["198.51.100.0/24"])),
        None,
    )
    .to_string();
    let (status, body) = harness.send("/validate", whole[..whole.len() - 40].to_owned()).await;
    let response = answer(status, &body, UID);
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 400);
    let (status, _) = harness.send("/validate", "not json").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn other_peoples_kinds_and_subresources_pass() {
    let harness = Harness::new(snapshot());
    let mut pod = review(
        "CREATE",
        Kind::TailnetSite,
        Some(&json!({"metadata": {"name": "p"}})),
        None,
    );
    pod["request"]["kind"] = json!({"group": "", "version": "v1", "kind": "Pod"});
    assert_eq!(harness.validate(&pod).await["allowed"], true);
    let wrong = site("lab", &["198.51.100.7/24"]);
    let mut status = review("UPDATE", Kind::TailnetSite, Some(&wrong), Some(&wrong));
    status["request"]["subResource"] = json!("status");
    assert_eq!(harness.validate(&status).await["allowed"], true);
    assert!(
        harness.metrics().contains("kind=\"other\""),
        "a foreign kind is no label"
    );
}

/// An egress that no security rule stands against, and that asks to skip the others.
fn asks_to_skip() -> Value {
    let mut object = egress("remote");
    object["metadata"]["annotations"] = json!({"tsunaro.io/validation": "disabled"});
    object["spec"]["targets"][0]["address"] = json!("169.254.169.254");
    object
}

fn harness_saying(answer: Option<bool>) -> Harness {
    Harness::build(snapshot(), Presence::Present, &Target::None, |reviewer| {
        reviewer.with_access(Arc::new(Says(answer)))
    })
}

#[tokio::test]
async fn who_may_skip_rules_does_so_aloud() {
    let harness = harness_saying(Some(true));
    let response = harness
        .validate(&review("CREATE", Kind::TailnetEgress, Some(&asks_to_skip()), None))
        .await;
    assert_eq!(response["allowed"], true, "{response}");
    let annotations = &response["auditAnnotations"];
    assert_eq!(annotations["decision"], "bypass");
    assert_eq!(annotations["bypassed-rules"], "TN203");
    assert_eq!(annotations["warned-rules"], "TN008");
    let warnings = response["warnings"].to_string();
    assert!(
        warnings.contains("RULES ARE SKIPPED") && warnings.contains("skipped: spec.targets[0].address"),
        "{warnings}"
    );
    let metrics = harness.metrics();
    for line in [
        "tailnet_webhook_bypass_requests_total{result=\"allowed\"} 1",
        "tailnet_webhook_bypasses_total{rule=\"TN203\",kind=\"TailnetEgress\",operation=\"CREATE\"} 1",
        "operation=\"CREATE\",decision=\"bypass\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn who_may_not_skip_rules_and_who_cannot_be_asked_about_is_refused() {
    for (answer, result) in [(Some(false), "refused"), (None, "unknown")] {
        let harness = harness_saying(answer);
        let response = harness
            .validate(&review("CREATE", Kind::TailnetEgress, Some(&asks_to_skip()), None))
            .await;
        assert_eq!(response["allowed"], false, "{response}");
        let annotations = &response["auditAnnotations"];
        assert_eq!(annotations["rules"], "TN008,TN203");
        assert!(annotations.get("bypassed-rules").is_none(), "{annotations}");
        let metrics = harness.metrics();
        let line = format!("tailnet_webhook_bypass_requests_total{{result=\"{result}\"}} 1");
        assert!(
            metrics.contains(&line) && !metrics.contains("bypasses_total{"),
            "{metrics}"
        );
    }
}

#[tokio::test]
async fn without_somebody_to_ask_nobody_may_skip_rules() {
    let harness = Harness::new(snapshot());
    let response = harness
        .validate(&review("CREATE", Kind::TailnetEgress, Some(&asks_to_skip()), None))
        .await;
    assert_eq!(response["allowed"], false, "{response}");
}

#[tokio::test]
async fn a_config_map_is_checked_and_named_as_one() {
    let harness = Harness::new(snapshot());
    let mut config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "tailnet-policy", "namespace": "tailnet-system", "labels": {"tsunaro.io/policy": "base"}},
        "data": {"policy.hujson": "{\n  \"grantz\": []\n}"},
    });
    let response = harness.validate(&config_map_review(&config_map, None)).await;
    assert_eq!(response["allowed"], false, "{response}");
    let details = &response["status"]["details"];
    assert_eq!((&details["group"], &details["kind"]), (&json!(""), &json!("ConfigMap")));
    assert_eq!(details["causes"][0]["field"], "data[policy.hujson]");
    assert!(
        harness
            .metrics()
            .contains("kind=\"ConfigMap\",operation=\"CREATE\",decision=\"deny\"} 1")
    );
    config_map["metadata"]["labels"] = json!({});
    assert_eq!(
        harness.validate(&config_map_review(&config_map, None)).await["allowed"],
        true
    );
    assert_eq!(
        harness.ask("/mutate", &config_map_review(&config_map, None)).await["allowed"],
        true
    );
}

#[tokio::test]
async fn only_post_is_answered() {
    use tower::ServiceExt;
    let harness = Harness::new(snapshot());
    let get = axum::http::Request::get("/validate")
        .body(Body::empty())
        .expect("request");
    assert_eq!(
        harness.router.clone().oneshot(get).await.expect("answer").status(),
        StatusCode::METHOD_NOT_ALLOWED
    );
    let (status, _) = harness.send("/other", "{}").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
