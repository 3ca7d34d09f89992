//! The real binary on logs of both kinds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Output;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use support::run;

/// A name that would act on a terminal, turn text around, or run in a browser.
const HOSTILE: &str = "</td><script>alert('x')</script><img src=x onerror=alert(1)>\u{1b}[2J\u{202e}&\"";

fn line(minute: u8, user: &str, name: &str, decision: &str, rules: &[&str]) -> Value {
    let mut line = json!({
        "schema": "tsunaro.io/admission-decision/v1", "time": format!("2026-11-30T12:{minute:02}:00Z"), "uid": format!("review-{minute}"),
        "endpoint": "validate", "decision": decision, "user": user, "groups": ["team-a"], "verb": "CREATE",
        "kind": "TailnetEgress", "namespace": "tailnet-system", "name": name, "dryRun": false,
        "rules": [], "fields": ["spec.targets[0].address"], "latencyMs": 0.5,
    });
    let key = match decision {
        "deny" => "rules",
        "bypass" => "bypassedRules",
        _ => "warnedRules",
    };
    line[key] = json!(rules);
    line
}

fn event(minute: u8, user: &str, name: &str, annotations: Value, status: Value) -> Value {
    json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": format!("audit-{minute}"), "stage": "ResponseComplete",
        "requestURI": "/apis/tsunaro.io/v1alpha1/tailnetsites", "verb": "create", "user": {"username": user, "groups": []},
        "objectRef": {"resource": "tailnetsites", "name": name, "apiGroup": "tsunaro.io", "apiVersion": "v1alpha1"},
        "responseStatus": status, "requestReceivedTimestamp": format!("2026-11-30T12:{minute:02}:30.000000Z"), "annotations": annotations,
    })
}

/// Three refusals, a bypass and an acceptance in the stream; one decision of both logs and three only the API server knows.
fn logs() -> (String, String) {
    let stream = [
        line(1, "alice", "a", "deny", &["TN203"]),
        line(2, "alice", "a", "deny", &["TN203"]),
        line(3, "bob", HOSTILE, "deny", &["TN201", "TN203"]),
        line(4, HOSTILE, "b", "bypass", &["TN206"]),
        line(5, "carol", "a", "allow", &[]),
    ];
    let denied = json!({"validate.tsunaro.io/decision": "deny", "validate.tsunaro.io/review-uid": "review-1", "validate.tsunaro.io/rules": "TN203"});
    let api_server = [
        event(1, "alice", "a", denied, json!({"code": 422})),
        event(
            6,
            "dave",
            "lab",
            json!({}),
            json!({"code": 422, "message": "spec.prefixes: Invalid value [TN401]", "details": {"causes": [{"field": "spec.prefixes"}]}}),
        ),
        event(
            7,
            "dave",
            "lab",
            json!({}),
            json!({"code": 500, "message": "failed calling webhook \"validate.tsunaro.io\": refused"}),
        ),
        event(8, "dave", "lab", json!({}), json!({"code": 201})),
    ];
    let text = |values: &[Value]| values.iter().map(|value| format!("{value}\n")).collect::<String>();
    (text(&stream), text(&api_server))
}

fn audit(directory: &Path, arguments: &[&str], input: &[u8]) -> Output {
    run("audit", directory, arguments, input)
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn summary(directory: &Path, arguments: &[&str], input: &[u8]) -> Value {
    let mut all = vec!["-o", "json"];
    all.extend(arguments);
    serde_json::from_str(&stdout(&audit(directory, &all, input))).unwrap()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (stream, api_server) = logs();
    std::fs::write(folder.path().join("stream.jsonl"), stream).unwrap();
    std::fs::write(folder.path().join("audit.log"), api_server).unwrap();
    folder
}

#[test]
fn both_logs_together_give_one_answer() {
    let folder = folder();
    let summary = summary(folder.path(), &["stream.jsonl", "audit.log"], b"");
    assert_eq!(
        summary["decisions"],
        json!({"allow": 1, "warn": 0, "deny": 4, "bypass": 1, "error": 1})
    );
    let read = &summary["read"];
    assert_eq!(
        (
            &read["streamLines"],
            &read["apiServerEvents"],
            &read["duplicates"],
            &read["unasked"],
            &read["brokenLines"]
        ),
        (&json!(5), &json!(4), &json!(1), &json!(1), &json!(0))
    );
    assert_eq!(summary["rules"][0]["rule"], "TN203");
    assert_eq!(
        (&summary["rules"][0]["refused"], &summary["rules"][0]["users"]),
        (&json!(3), &json!(2))
    );
    let first = &summary["refusals"][0];
    assert_eq!(
        (
            &first["user"],
            &first["name"],
            &first["times"],
            &first["acceptedSince"],
            &first["by"]
        ),
        (&json!("alice"), &json!("a"), &json!(2), &json!(true), &json!("webhook"))
    );
    assert!(
        summary["refusals"]
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["by"] == "schema" && row["rules"] == json!(["TN401"])),
        "{summary:#}"
    );
    assert_eq!(summary["bypasses"][0]["user"], HOSTILE, "JSON has the name as it is");
    assert_eq!(summary["errors"][0]["reason"], "webhook-not-reached");
    assert_eq!(summary["latency"]["count"], 5);
}

#[test]
fn the_table_answers_and_acts_on_no_terminal() {
    let folder = folder();
    let text = stdout(&audit(folder.path(), &["stream.jsonl", "audit.log"], b""));
    assert!(
        text.starts_with(
            "7 decisions, 2026-11-30 12:01:00 to 2026-11-30 12:07:30 UTC: 4 refused, 1 bypassed, 1 not decided"
        ),
        "{text}"
    );
    for wanted in [
        "RULE   REFUSED  BYPASSED  USERS  WHAT MUST HOLD",
        "TailnetEgress tailnet-system/a",
        "webhook-not-reached",
        "Writes that were stored without asking the webhook: 1.",
    ] {
        assert!(text.contains(wanted), "{wanted}:\n{text}");
    }
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    let one = stdout(&audit(folder.path(), &["--limit", "1", "stream.jsonl"], b""));
    assert!(one.contains("and 1 more; --limit 0 shows all"), "{one}");
}

#[test]
fn the_page_needs_nothing_and_runs_nothing() {
    let folder = folder();
    let page = stdout(&audit(folder.path(), &["-o", "html", "stream.jsonl", "audit.log"], b""));
    let mut tags = BTreeSet::new();
    for piece in page.split('<').skip(1) {
        let name: String = piece
            .trim_start_matches(['/', '!'])
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        tags.insert(name);
    }
    let ours = [
        "b", "body", "br", "code", "div", "doctype", "footer", "g", "h1", "h2", "h3", "head", "header", "html", "line",
        "main", "meta", "p", "rect", "section", "span", "style", "svg", "table", "tbody", "td", "text", "th", "thead",
        "title", "tr",
    ];
    let foreign: Vec<_> = tags.iter().filter(|tag| !ours.contains(&tag.as_str())).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    // Handlers and addresses could only be inside a tag.
    for inside in page
        .split('<')
        .skip(1)
        .filter_map(|piece| piece.split_once('>'))
        .map(|(tag, _)| tag)
    {
        for wrong in [" on", "src=", "href", "url(", "//"] {
            assert!(!inside.contains(wrong), "{wrong} in <{inside}>");
        }
    }
    assert!(!page.contains("@import") && !page.contains("url("));
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)"), "the name is shown");
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    for wanted in [
        "default-src 'none'",
        "<svg role=\"img\"",
        "TN203",
        "<b>4</b> refused",
        "schema",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
}

#[test]
fn filters_must_all_hold() {
    let folder = folder();
    let denied = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["stream.jsonl", "audit.log"]);
        summary(folder.path(), &all, b"")["decisions"]["deny"].clone()
    };
    assert_eq!(denied(&["--user", "alice"]), 2);
    assert_eq!(denied(&["--user", "a*", "--user", "bob"]), 3);
    assert_eq!(denied(&["--rule", "tn201"]), 1);
    assert_eq!(denied(&["--rule", "TN201,TN401"]), 2);
    assert_eq!(denied(&["-n", "tailnet-*"]), 3);
    assert_eq!(
        denied(&["--since", "2026-11-30T12:02:00Z", "--until", "2026-11-30T12:03:00Z"]),
        1
    );
    assert_eq!(denied(&["--decision", "bypass,allow"]), 0);
    assert_eq!(denied(&["--user", "alice", "--rule", "TN201"]), 0);
    // An answer that is passed on says what it left out.
    let asked = [
        "--user",
        "al*",
        "--decision",
        "deny,warn",
        "--no-dry-run",
        "stream.jsonl",
    ];
    let words = "--user al* --decision deny --decision warn --no-dry-run";
    assert_eq!(
        summary(folder.path(), &asked, b"")["asked"],
        json!(["--user al*", "--decision deny", "--decision warn", "--no-dry-run"])
    );
    assert!(stdout(&audit(folder.path(), &asked, b"")).contains(&format!("asked about: {words}\n")));
    let html: Vec<_> = asked.iter().copied().chain(["-o", "html"]).collect();
    assert!(stdout(&audit(folder.path(), &html, b"")).contains(&format!("<code>{words}</code>")));
    let output = audit(folder.path(), &["--decision", "patch", "stream.jsonl"], b"");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn gzip_standard_input_and_broken_lines() {
    let folder = folder();
    let (stream, _) = logs();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(stream.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    assert_eq!(
        summary(folder.path(), &[], &gzip)["decisions"]["deny"],
        3,
        "no file at all"
    );
    assert_eq!(
        summary(folder.path(), &["-"], stream.as_bytes())["decisions"]["deny"],
        3
    );

    let broken = format!("{}{}\nnot a record\n", &stream[..stream.len() - 20], "\u{1b}");
    let output = audit(folder.path(), &[], broken.as_bytes());
    assert!(output.status.success(), "broken lines are no failure: {output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("-:5: is no JSON") && !errors.contains('\u{1b}'),
        "{errors}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("Lines that look like audit records and cannot be read: 1."),
        "{text}"
    );

    // A cut gzip file: what came through counts, and the exit status says that it was not all.
    std::fs::write(folder.path().join("cut.gz"), &gzip[..gzip.len() - 8]).unwrap();
    let output = audit(folder.path(), &["cut.gz", "missing.log", "audit.log"], b"");
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("cut.gz: reading broke off") && errors.contains("cannot open missing.log"),
        "{errors}"
    );
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("7 decisions"));
}

/// What `kubectl logs -l …` gives of several Pods: each Pod's streams mixed, one Pod after the other or line by line (`-f`),
/// with what `--prefix` and `--timestamps` put in front, and how other tools that gather logs print a line.
#[test]
fn logs_of_several_pods_are_read_whatever_stands_in_front() {
    let (stream, _) = logs();
    let decisions: Vec<&str> = stream.lines().collect();
    // The webhook's own log, in both of its formats, and another container's.
    let others = [
        "2026-11-30T12:00:00.000001Z  INFO tailnet_webhook::run: starts version=\"0.1.0\" namespace=tailnet-system",
        r#"2026-11-30T12:00:00.000002Z  WARN tailnet_webhook::bypass: cannot ask whether the user may skip rules; it may not user="{\"schema\":\"tsunaro.io/admission-decision/v1\"}" error=timed out"#,
        r#"{"timestamp":"2026-11-30T12:00:00.000003Z","level":"WARN","message":"facts cannot be used","tailnet":"corp","target":"tsunaro.io"}"#,
        "I1130 12:00:00.000004       1 proxy.go:1] serving {\"address\":\"[::]:8443\"}",
        "",
    ];
    let pods = ["tailnet-webhook-5d9c8b7f6d-2xkzq", "tailnet-webhook-5d9c8b7f6d-9vhtl"];
    let time = "2026-11-30T12:00:01.234567891Z";
    type Front = fn(&str, &str) -> String;
    let fronts: [(&str, Front); 6] = [
        ("kubectl logs", |_, _| String::new()),
        ("--prefix", |pod, _| format!("[pod/{pod}/webhook] ")),
        ("--timestamps", |_, time| format!("{time} ")),
        ("--prefix --timestamps", |pod, time| {
            format!("[pod/{pod}/webhook] {time} ")
        }),
        ("stern", |pod, _| format!("{pod} webhook ")),
        ("files of the node", |_, time| format!("{time} stdout F ")),
    ];
    for (how, front) in fronts {
        // Each Pod has every second decision, with other lines between.
        let of = |at: usize| -> Vec<String> {
            let mine = decisions.iter().skip(at).step_by(2);
            mine.flat_map(|decision| others.iter().chain([decision]))
                .map(|line| format!("{}{line}", front(pods[at], time)))
                .collect()
        };
        let (first, second) = (of(0), of(1));
        let one_after_the_other: Vec<&String> = first.iter().chain(&second).collect();
        let mut line_by_line: Vec<&String> = Vec::new();
        for at in 0..first.len().max(second.len()) {
            line_by_line.extend(first.get(at).into_iter().chain(second.get(at)));
        }
        for lines in [one_after_the_other, line_by_line] {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let output = run("audit", Path::new("/"), &["-o", "json"], text.as_bytes());
            assert!(output.stderr.is_empty(), "{how}: {output:?}");
            let summary: Value = serde_json::from_str(&stdout(&output)).unwrap();
            assert_eq!(
                summary["decisions"],
                json!({"allow": 1, "warn": 0, "deny": 3, "bypass": 1, "error": 0}),
                "{how}"
            );
            let read = &summary["read"];
            assert_eq!(
                (
                    &read["streamLines"],
                    &read["otherLines"],
                    &read["brokenLines"],
                    &read["duplicates"]
                ),
                (&json!(5), &json!(25), &json!(0), &json!(0)),
                "{how}"
            );
        }
    }
}

#[test]
fn a_log_of_something_else_is_said() {
    let folder = folder();
    let output = audit(folder.path(), &[], b"{\"a\": 1}\nhello\n");
    assert!(stdout(&output).starts_with("0 decisions"));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("no admission decision in 2 lines")
    );
}
