//! What stays of every decision: a line in the stream, annotations for the API server's audit log, metrics.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use support::{Harness, Script, egress, object, review, site, snapshot, tailnet};
use tailnet_crds::Kind;
use tailnet_crds::audit::{Decision, Line, Reason, SCHEMA};
use tailnet_policies::{Class, Finding, Outcome, Severity};
use tailnet_webhook::audit::{Audit, Target};
use tailnet_webhook::live::Presence;
use tailnet_webhook::metrics::{Metrics, PREFIX};
use tailnet_webhook::router::{MAX_BODY, Reviewer, router};
use tailnet_webhook::snapshot::SharedSnapshot;

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

/// A webhook whose stream is a file.
struct Audited {
    harness: Harness,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Audited {
    fn new(with: impl FnOnce(Reviewer) -> Reviewer) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("audit.jsonl");
        let harness = Harness::build(snapshot(), Presence::Present, &Target::File(path.clone()), with);
        Self {
            harness,
            path,
            _folder: folder,
        }
    }

    /// Ends the webhook, which writes what waits, and gives all lines once there are `count` of them.
    async fn lines(self, count: usize) -> Vec<Line> {
        drop(self.harness);
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        // A rule that still hangs holds the stream open.
        for _ in 0..500 {
            let text = support::read(&self.path);
            if text.lines().count() >= count {
                return text.lines().map(read).collect();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} of {count} lines", support::read(&self.path).lines().count());
    }
}

fn finding(rule: &'static str, severity: Severity, field: &str) -> Finding {
    Finding {
        rule,
        severity,
        field: field.to_owned(),
        class: Class::Invalid,
        value: Some("\"secret-value\"".to_owned()),
        detail: "is wrong".to_owned(),
        holder: None,
        policy: None,
    }
}

/// Rules that find what the object's name asks for.
fn scripted(reviewer: Reviewer) -> Reviewer {
    reviewer.with_rules(
        Box::new(|request, _, _| {
            let mut outcome = Outcome::default();
            match request.name.as_str() {
                "deny" => outcome.findings.push(finding("TN401", Severity::Deny, "spec.a")),
                "warn" => outcome.findings.push(finding("TN001", Severity::Warn, "spec.b")),
                "bypass" => {
                    outcome.findings.push(finding("TN001", Severity::Warn, "spec.b"));
                    outcome.bypassed.push(finding("TN401", Severity::Deny, "spec.a"));
                    outcome.bypassed.push(finding("TN402", Severity::Deny, "spec.b"));
                }
                "panic" => panic!("a rule with a fault"),
                "hang" => std::thread::sleep(Duration::from_millis(2500)),
                _ => {}
            }
            outcome
        }),
        // Long enough for a panic, whose backtrace is looked up in a debug build.
        Duration::from_millis(2000),
    )
}

fn create(name: &str) -> Value {
    review(
        "CREATE",
        Kind::TailnetSite,
        Some(&site(name, &["198.51.100.0/24"])),
        None,
    )
}

#[tokio::test]
async fn every_decision_is_a_line_in_the_audit_stream() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("audit.jsonl");
    let harness = Harness::build(snapshot(), Presence::Present, &Target::File(path.clone()), |reviewer| {
        reviewer
    });
    let mut dry = review("CREATE", Kind::Tailnet, Some(&tailnet("lab")), None);
    dry["request"]["dryRun"] = json!(true);
    harness.validate(&dry).await;
    let mut wrong = egress("secretive");
    wrong["spec"]["targets"][0]["address"] = json!("10.0.0.300");
    harness
        .validate(&review("CREATE", Kind::TailnetEgress, Some(&wrong), None))
        .await;
    drop(harness);
    let text = support::read(&path);
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(lines[0]["decision"], "allow");
    assert_eq!(lines[0]["dryRun"], true);
    assert_eq!(lines[0]["user"], "alice");
    assert_eq!(lines[0]["groups"], json!(["team-a", "system:authenticated"]));
    assert_eq!(lines[1]["decision"], "deny");
    assert_eq!(lines[1]["uid"], UID);
    assert_eq!(
        (&lines[1]["verb"], &lines[1]["kind"]),
        (&json!("CREATE"), &json!("TailnetEgress"))
    );
    assert_eq!(
        (&lines[1]["namespace"], &lines[1]["name"]),
        (&json!("tailnet-system"), &json!("secretive"))
    );
    assert_eq!(lines[1]["rules"], json!(["TN203"]));
    assert_eq!(lines[1]["fields"], json!(["spec.targets[0].address"]));
    assert!(lines[1]["latencyMs"].as_f64().is_some_and(|latency| latency > 0.0));
    assert!(!text.contains("10.0.0.300"), "values stay out of the stream");
}

#[tokio::test]
async fn each_of_the_five_decisions_has_line_annotations_and_metrics() {
    let audited = Audited::new(scripted);
    for (name, decision, rules) in [
        ("allow", "allow", json!({})),
        ("warn", "warn", json!({"warned-rules": "TN001", "fields": "spec.b"})),
        ("deny", "deny", json!({"rules": "TN401", "fields": "spec.a"})),
        (
            "bypass",
            "bypass",
            json!({"warned-rules": "TN001", "bypassed-rules": "TN401,TN402", "fields": "spec.b,spec.a"}),
        ),
        ("panic", "error", json!({"reason": "panic"})),
        ("hang", "error", json!({"reason": "deadline"})),
    ] {
        let response = audited.harness.validate(&create(name)).await;
        let mut expected = rules;
        expected["decision"] = json!(decision);
        expected["review-uid"] = json!(UID);
        assert_eq!(response["auditAnnotations"], expected, "{name}");
        let allowed = !["deny", "error"].contains(&decision);
        assert_eq!(response["allowed"], allowed, "{name}");
        if name == "bypass" {
            let warnings = response["warnings"].to_string();
            assert!(
                warnings.contains("skipped: spec.a") && warnings.contains("[TN402]"),
                "a bypass is said aloud: {warnings}"
            );
        }
    }
    let metrics = audited.harness.metrics();
    for (decision, count) in [("allow", 1), ("warn", 1), ("deny", 1), ("bypass", 1), ("error", 2)] {
        let line = format!(
            "tailnet_webhook_requests_total{{endpoint=\"validate\",kind=\"TailnetSite\",operation=\"CREATE\",decision=\"{decision}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    for (name, rule, count) in [
        ("denials", "TN401", 1),
        ("warnings", "TN001", 2),
        ("bypasses", "TN402", 1),
    ] {
        let line = format!(
            "tailnet_webhook_{name}_total{{rule=\"{rule}\",kind=\"TailnetSite\",operation=\"CREATE\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let lines = audited.lines(6).await;
    let decisions: Vec<_> = lines.iter().map(|line| line.decision.as_str()).collect();
    assert_eq!(decisions, ["allow", "warn", "deny", "bypass", "error", "error"]);
    for line in &lines {
        assert_eq!(
            (line.schema.as_str(), line.uid.as_str(), line.user.as_str()),
            (SCHEMA, UID, "alice")
        );
    }
    assert_eq!(lines[3].bypassed_rules, ["TN401", "TN402"]);
    assert_eq!(lines[3].warned_rules, ["TN001"]);
    assert_eq!(lines[3].fields, ["spec.b", "spec.a"], "each once");
    assert_eq!(lines[4].reason, Some(Reason::Panic));
    assert_eq!(
        (lines[5].reason, lines[5].name.as_str()),
        (Some(Reason::Deadline), "hang")
    );
    assert!(lines[5].latency_ms >= 2000.0, "{}", lines[5].latency_ms);
}

#[tokio::test]
async fn what_cannot_be_decided_has_a_line_too() {
    let audited = Audited::new(|reviewer| reviewer);
    let mut large = site("large", &["198.51.100.0/24"]);
    large["metadata"]["annotations"] = json!({"x": "y".repeat(MAX_BODY)});
    audited
        .harness
        .validate(&review("CREATE", Kind::TailnetSite, Some(&large), None))
        .await;
    audited
        .harness
        .ask("/mutate", &review("CREATE", Kind::TailnetSite, Some(&large), None))
        .await;
    let mut old = create("old-protocol");
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    audited.harness.validate(&old).await;
    let whole = create("cut-off").to_string();
    audited
        .harness
        .send("/validate", whole[..whole.len() - 40].to_owned())
        .await;
    audited.harness.send("/validate", "not json").await;
    let mut status = create("status");
    status["request"]["subResource"] = json!("status");
    audited.harness.validate(&status).await;
    let metrics = audited.harness.metrics();
    for reason in ["too-large", "version", "unreadable"] {
        assert!(
            metrics.contains(&format!("tailnet_webhook_undecidable_total{{reason=\"{reason}\"}}")),
            "{metrics}"
        );
    }
    assert!(
        !metrics.contains("reason=\"no-rules\""),
        "that is no failure: {metrics}"
    );
    let lines = audited.lines(6).await;
    let seen: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line.endpoint.as_str(),
                line.decision.as_str(),
                line.reason.map(Reason::as_str),
                line.name.as_str(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("validate", "error", Some("too-large"), "large"),
            ("mutate", "error", Some("too-large"), "large"),
            ("validate", "error", Some("version"), "old-protocol"),
            ("validate", "error", Some("version"), "cut-off"),
            ("validate", "error", Some("unreadable"), ""),
            ("validate", "allow", Some("no-rules"), "status"),
        ]
    );
    for line in lines.iter().filter(|line| line.reason != Some(Reason::Unreadable)) {
        assert_eq!(
            (line.user.as_str(), line.kind.as_str(), line.uid.as_str()),
            ("alice", "TailnetSite", UID)
        );
    }
}

#[tokio::test]
async fn defaults_have_lines_of_their_own() {
    let audited = Audited::new(|reviewer| reviewer);
    let mut lacking = egress("plain");
    lacking["spec"].as_object_mut().expect("spec").remove("tag");
    let response = audited
        .harness
        .ask("/mutate", &review("CREATE", Kind::TailnetEgress, Some(&lacking), None))
        .await;
    assert_eq!(
        response["auditAnnotations"],
        json!({"decision": "patch", "review-uid": UID})
    );
    let lines = audited.lines(1).await;
    assert_eq!(
        (lines[0].decision, lines[0].endpoint.as_str()),
        (Decision::Patch, "mutate")
    );
}

#[tokio::test]
async fn no_value_gets_into_the_stream_and_no_caller_makes_it_long() {
    let audited = Audited::new(scripted);
    let mut hostile = create("bypass");
    hostile["request"]["userInfo"] = json!({
        "username": "u".repeat(100_000),
        "groups": (0..5000).map(|n| format!("g{n}\u{1}")).collect::<Vec<_>>(),
    });
    hostile["request"]["namespace"] = json!("n".repeat(100_000));
    audited.harness.validate(&hostile).await;
    let path = audited.path.clone();
    let Audited { harness, _folder, .. } = audited;
    drop(harness);
    let text = support::read(&path);
    assert!(!text.contains("secret-value"), "{text}");
    assert!(text.len() <= tailnet_crds::audit::MAX_LINE, "{}", text.len());
    let line: Line = serde_json::from_str(text.trim_end()).expect("a line");
    assert_eq!(line.cut, ["user", "namespace", "groups"]);
    assert_eq!(line.bypassed_rules, ["TN401", "TN402"]);
}

#[tokio::test]
async fn callers_cannot_grow_the_metrics() {
    let harness = Harness::new(snapshot());
    let series = |harness: &Harness| harness.metrics().lines().count();
    let ask = async |n: usize| {
        let thing = object(
            Kind::TailnetSite,
            Some(&format!("ns-{n}")),
            &format!("name-{n}"),
            json!({}),
        );
        let mut review = review("CREATE", Kind::TailnetSite, Some(&thing), None);
        review["request"]["kind"]["kind"] = json!(format!("Kind{n}"));
        review["request"]["operation"] = json!(format!("VERB{n}"));
        review["request"]["userInfo"]["username"] = json!(format!("user-{n}"));
        harness.validate(&review).await;
        harness.validate(&create(&format!("site-{n}"))).await;
    };
    ask(0).await;
    let before = series(&harness);
    for n in 1..50 {
        ask(n).await;
    }
    assert_eq!(series(&harness), before);
}

/// A pipe that nobody reads.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        loop {
            std::thread::park();
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_stream_that_nobody_reads_refuses_and_delays_nobody() {
    let mut registry = Registry::with_prefix(PREFIX);
    let metrics = Arc::new(Metrics::register(&mut registry));
    let audit = Audit::start(Box::new(Full), metrics.audit_lost.clone()).expect("a thread");
    let shared = Arc::new(SharedSnapshot::new(snapshot()));
    let live = Script::always(Presence::Present);
    let reviewer = Reviewer::new(Arc::clone(&shared), live.clone(), audit, metrics);
    let harness = Harness {
        snapshot: shared,
        registry,
        live,
        router: router(Arc::new(reviewer)),
    };
    let question = create("lab");
    for _ in 0..6000 {
        assert_eq!(harness.validate(&question).await["allowed"], true);
    }
    let metrics = harness.metrics();
    let lost = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tailnet_webhook_audit_lines_lost_total "))
        .and_then(|count| count.parse::<u64>().ok())
        .expect("the counter");
    assert!(
        (1000..6000).contains(&lost),
        "more than the queue holds were asked: {lost}"
    );
}
