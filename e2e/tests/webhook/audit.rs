//! What is left of a decision on a real API server: annotations in its audit log, lines in the webhook's stream, and what
//! `kubectl tailnet audit` makes of both.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_e2e::{Cluster, binaries, one_at_a_time, wait_for};
use tailnet_policies::{Class, Config, Finding, ObjectRef, Outcome, Request, Severity, Snapshot};
use tailnet_webhook::audit::{Audit, Target};
use tailnet_webhook::configuration::{Parameters, mutating, validating};
use tailnet_webhook::live::ApiServer;
use tailnet_webhook::metrics::Metrics;
use tailnet_webhook::router::{Reviewer, router};
use tailnet_webhook::server::{Ending, serve};
use tailnet_webhook::snapshot::SharedSnapshot;
use tailnet_webhook::tls::authority::Authority;
use tailnet_webhook::tls::source::{Source, server_config};

use super::installed::{Caller, Webhook, cluster, egress, site, tailnet};
use super::{start_over, wait_known};

/// What the API server is told by rules that find what an object's name asks for: what no object can bring about on purpose
/// (a panic, a rule that hangs) included.
fn scripted(request: &Request, _: &Snapshot, _: &[ObjectRef]) -> Outcome {
    let finding = |rule, severity, field: &str| Finding {
        rule,
        severity,
        field: field.to_owned(),
        class: Class::Invalid,
        value: Some("\"a-value\"".to_owned()),
        detail: "is wrong".to_owned(),
        holder: None,
        policy: None,
    };
    let mut outcome = Outcome::default();
    match request.name.as_str() {
        "told-warn" => outcome.findings.push(finding("TN001", Severity::Warn, "spec.a")),
        "told-deny" => outcome.findings.push(finding("TN401", Severity::Deny, "spec.b")),
        "told-bypass" => outcome.bypassed.push(finding("TN402", Severity::Deny, "spec.c")),
        // Without the hook that keeps logs of failed tests.
        "told-panic" => std::panic::resume_unwind(Box::new("a rule with a fault")),
        "told-hang" => std::thread::sleep(Duration::from_millis(2500)),
        _ => {}
    }
    outcome
}

/// A webhook in this process, with scripted rules.
struct Scripted {
    runtime: tokio::runtime::Runtime,
    ending: Ending,
    stream: PathBuf,
}

impl Scripted {
    /// Starts it where the API server of `cluster` reaches it, and installs both configurations for it.
    fn installed(cluster: &Cluster) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let host = cluster.host_address();
        let address: SocketAddr = format!("{host}:0").parse()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address))?;
        let authority = Authority::generate(Timestamp::now())?;
        let source = Source::default();
        source.set(authority.current.issue(std::slice::from_ref(&host), Timestamp::now())?);

        let stream = cluster.dir().join("scripted-audit.jsonl");
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let audit = Audit::open(&Target::File(stream.clone()), metrics.audit_lost.clone())?;
        let mut snapshot = Snapshot::closed(Config::default());
        // Defaults come from a Tailnet.
        snapshot.upsert(Kind::Tailnet, tailnet("any"));
        let snapshot = Arc::new(SharedSnapshot::new(snapshot));
        let live = Arc::new(ApiServer(runtime.block_on(async { cluster.client() })?));
        let reviewer = Reviewer::new(snapshot, live, audit, metrics);
        let reviewer = reviewer.with_rules(Box::new(scripted), Duration::from_millis(2000));
        let ending = Ending::default();
        let parameters = Parameters::url(&format!("https://{}", listener.local_addr()?));
        let tls = Arc::new(server_config(source)?);
        runtime.spawn(serve(
            listener,
            tls,
            router(Arc::new(reviewer)),
            Default::default(),
            ending.clone(),
        ));

        let mut items = [
            serde_json::to_value(validating(&parameters))?,
            serde_json::to_value(mutating(&parameters))?,
        ];
        let bundle = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, authority.bundle());
        for entry in items
            .iter_mut()
            .filter_map(|item| item["webhooks"].as_array_mut())
            .flatten()
        {
            entry["clientConfig"]["caBundle"] = json!(bundle);
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        cluster
            .kubectl_with_input(
                &["apply", "--server-side", "--force-conflicts", "-f", "-"],
                &list.to_string(),
            )?
            .success()?;
        let this = Self {
            runtime,
            ending,
            stream,
        };
        let caller = Caller::new(cluster)?;
        wait_for(
            "the API server calls the scripted webhook",
            Duration::from_secs(20),
            || {
                let answer = caller.create(&site("told-deny", &["192.0.2.0/24"], "any"), true)?;
                ensure!(answer.status == 422, "{answer:?}");
                Ok(())
            },
        )?;
        Ok(this)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.ending.closing.cancel();
        self.ending.stop.cancel();
        // Lets the listener close before the runtime goes.
        self.runtime
            .block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
    }
}

/// Events of the API server's audit log about what `user` asked.
fn events(cluster: &Cluster, user: &str) -> Result<Vec<Value>> {
    let mut events = cluster.audit_log()?;
    events.retain(|event| event["impersonatedUser"]["username"] == user);
    Ok(events)
}

fn lines(stream: &Path, user: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(stream)?;
    let lines = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Value>, _>>()?;
    Ok(lines.into_iter().filter(|line| line["user"] == user).collect())
}

/// Our annotations of an event, without the entry's name.
fn annotations(event: &Value, entry: &str) -> Value {
    let all = event["annotations"].as_object().cloned().unwrap_or_default();
    let ours = all.into_iter().filter_map(|(key, value)| {
        let key = key.strip_prefix(entry)?.strip_prefix('/')?.to_owned();
        Some((key, value))
    });
    Value::Object(ours.collect())
}

fn groups() -> Vec<String> {
    vec!["team-a".to_owned(), "system:masters".to_owned()]
}

#[test]
fn each_of_the_five_decisions_is_in_the_audit_log_and_in_the_stream() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Scripted::installed(cluster)?;
    let user = "told-by-scripted-rules";
    let expected = [
        ("told-allow", 201, json!({"decision": "allow"})),
        (
            "told-warn",
            201,
            json!({"decision": "warn", "warned-rules": "TN001", "fields": "spec.a"}),
        ),
        (
            "told-deny",
            422,
            json!({"decision": "deny", "rules": "TN401", "fields": "spec.b"}),
        ),
        (
            "told-bypass",
            201,
            json!({"decision": "bypass", "bypassed-rules": "TN402", "fields": "spec.c"}),
        ),
        ("told-panic", 500, json!({"decision": "error", "reason": "panic"})),
        ("told-hang", 504, json!({"decision": "error", "reason": "deadline"})),
    ];
    for (at, (name, status, _)) in expected.iter().enumerate() {
        let prefix = format!("198.51.100.{}/32", at + 1);
        let object = site(name, &[&prefix], "any");
        if *status == 504 {
            // kube's client would ask again and again; kubectl takes a 504 for an answer.
            let create = ["create", "--as", user, "--as-group", "system:masters", "-f", "-"];
            let text = cluster.kubectl_with_input(&create, &object.to_string())?;
            assert!(text.failure()?.contains("could not decide in time"), "{text:?}");
            continue;
        }
        let answer = caller.create_as(&object, false, Some((user, &groups())))?;
        assert_eq!(answer.status, *status, "{name}: {answer:?}");
    }
    // The defaults are a decision of their own.
    let mut lacking = egress("told-defaults", "any");
    lacking["spec"].as_object_mut().context("spec")?.remove("tag");
    let answer = caller.create_as(&lacking, true, Some((user, &groups())))?;
    assert_eq!(answer.status, 201, "{answer:?}");

    wait_for("all events are logged", Duration::from_secs(10), || {
        let count = events(cluster, user)?.len();
        ensure!(count == expected.len() + 1, "{count} events");
        Ok(())
    })?;
    wait_for("all lines are written", Duration::from_secs(10), || {
        let count = lines(&webhook.stream, user)?.len();
        ensure!(count == expected.len() + 2, "{count} lines");
        Ok(())
    })?;
    let (events, lines) = (events(cluster, user)?, lines(&webhook.stream, user)?);
    for (name, status, annotated) in &expected {
        let event = events
            .iter()
            .find(|event| event["objectRef"]["name"] == *name)
            .context(*name)?;
        assert_eq!(event["responseStatus"]["code"], *status, "{event}");
        let line = lines.iter().find(|line| line["name"] == *name).context(*name)?;
        let mut annotated = annotated.clone();
        assert_eq!(line["decision"], annotated["decision"], "{line}");
        // One is found by the other.
        annotated["review-uid"] = line["uid"].clone();
        assert_eq!(annotations(event, "validate.tsunaro.io"), annotated, "{event}");
        assert!(!event["annotations"].to_string().contains("a-value") && !line.to_string().contains("a-value"));
    }
    let defaults = events
        .iter()
        .find(|event| event["objectRef"]["name"] == "told-defaults")
        .context("the event of the defaults")?;
    let line = lines
        .iter()
        .find(|line| line["endpoint"] == "mutate")
        .context("the line of the defaults")?;
    assert_eq!(
        annotations(defaults, "mutate.tsunaro.io"),
        json!({"decision": "patch", "review-uid": line["uid"]})
    );
    assert_eq!(annotations(defaults, "validate.tsunaro.io")["decision"], "allow");
    assert_eq!((&line["decision"], &line["dryRun"]), (&json!("patch"), &json!(true)));
    Ok(())
}

/// `kubectl tailnet audit -o json` about one user.
pub fn summary(logs: &[&Path], user: &str) -> Result<Value> {
    summary_with(logs, user, "")
}

/// [`summary`] with something on standard input.
fn summary_with(logs: &[&Path], user: &str, input: &str) -> Result<Value> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new(binaries::workspace("kubectl-tailnet", "kubectl-tailnet")?)
        .args(["audit", "-o", "json", "--user", user])
        .args(logs)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("stdin")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(output.stderr.is_empty(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[test]
fn kubectl_tailnet_audit_reads_what_the_api_server_and_the_webhook_wrote() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-audited", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    // Bidirectional text and markup in a name must not change what is read.
    let user = "audited <b>\"user\"</b>";
    let groups = groups();
    let asks = |object: &Value, dry_run: bool| caller.create_as(object, dry_run, Some((user, &groups)));

    let mut misplaced = egress("asked", "corp");
    misplaced["metadata"]["namespace"] = json!("default");
    assert_eq!(asks(&misplaced, false)?.status, 422, "TN201, by the webhook");
    assert_eq!(asks(&misplaced, true)?.status, 422);
    let wrong = site("asked", &["198.51.100.7/24"], "corp");
    assert_eq!(asks(&wrong, false)?.status, 422, "TN401, by the schema");
    assert_eq!(asks(&site("asked", &["198.51.100.0/24"], "corp"), false)?.status, 201);
    assert_eq!(
        asks(&site("early", &["203.0.113.0/24"], "not-yet"), false)?.status,
        201,
        "TN001 warns"
    );
    // Whoever is of system:masters may skip rules; the default of the tag is a decision of its own.
    let mut skipping = misplaced.clone();
    skipping["metadata"]["name"] = json!("skipping");
    skipping["metadata"]["annotations"] = json!({"tsunaro.io/validation": "disabled"});
    skipping["spec"].as_object_mut().context("spec")?.remove("tag");
    let answer = asks(&skipping, false)?;
    assert_eq!(answer.status, 201, "{answer:?}");
    wait_for("the lines are written", Duration::from_secs(10), || {
        let count = lines(&webhook.audit, user)?.len();
        ensure!(count == 6, "{count} lines");
        Ok(())
    })?;
    webhook.process.kill()?;
    assert_eq!(asks(&site("late", &["192.0.2.0/24"], "corp"), false)?.status, 500);
    wait_for("the events are logged", Duration::from_secs(10), || {
        let count = events(cluster, user)?.len();
        ensure!(count == 7, "{count} events");
        Ok(())
    })?;

    let api_server = cluster.dir().join("audit.log");
    let both = summary(&[&webhook.audit, &api_server], user)?;
    // Both that were stored were warned about: one of TN001, one that nothing is known of the Tailnet's server here.
    assert_eq!(
        both["decisions"],
        json!({"allow": 0, "warn": 2, "deny": 3, "bypass": 1, "error": 1}),
        "{both:#}"
    );
    let refusals = both["refusals"].as_array().context("refusals")?;
    let first = &refusals[0];
    assert_eq!(
        (&first["rules"], &first["times"], &first["dryRuns"], &first["by"]),
        (&json!(["TN201"]), &json!(2), &json!(1), &json!("webhook")),
        "{first}"
    );
    assert_eq!(
        (&first["kind"], &first["namespace"], &first["name"], &first["user"]),
        (
            &json!("TailnetEgress"),
            &json!("default"),
            &json!("asked"),
            &json!(user)
        )
    );
    let by_schema = &refusals[1];
    assert_eq!(
        (&by_schema["rules"], &by_schema["by"], &by_schema["name"]),
        (&json!(["TN401"]), &json!("schema"), &json!("asked")),
        "{by_schema}"
    );
    assert_eq!(by_schema["fields"], json!(["spec.prefixes[0]"]), "{by_schema}");
    assert_eq!(by_schema["acceptedSince"], true, "it was put right");
    assert_eq!(
        (&both["errors"][0]["reason"], &both["errors"][0]["by"]),
        (&json!("webhook-not-reached"), &json!("server"))
    );
    let bypass = &both["bypasses"][0];
    assert_eq!(
        (&bypass["user"], &bypass["name"], &bypass["rules"], &bypass["groups"]),
        (
            &json!(user),
            &json!("skipping"),
            &json!(["TN201"]),
            &json!(["team-a", "system:masters", "system:authenticated"])
        ),
        "{bypass}"
    );
    // The API server's log alone gives the same; the stream alone what the webhook saw.
    let alone = summary(&[&api_server], user)?;
    assert_eq!(alone["decisions"], both["decisions"]);
    // But for the times, which are the request's there and the decision's here.
    let untimed = |summary: &Value| {
        let mut refusals = summary["refusals"].as_array().cloned().unwrap_or_default();
        for refusal in refusals.iter_mut().filter_map(Value::as_object_mut) {
            refusal.retain(|key, _| key != "first" && key != "last");
        }
        refusals
    };
    assert_eq!(untimed(&alone), untimed(&both));
    let seen = summary(&[&webhook.audit], user)?;
    assert_eq!(
        seen["decisions"],
        json!({"allow": 0, "warn": 2, "deny": 2, "bypass": 1, "error": 0})
    );
    assert!(
        both["read"]["duplicates"].as_u64().is_some_and(|count| count >= 6),
        "decisions of both logs are recognised: {}",
        both["read"]
    );
    Ok(())
}

#[test]
fn the_stream_and_the_log_part_again_in_what_kubectl_logs_would_show() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    // A container's log is both outputs of the process, as is this file: the stream in between the webhook's own words.
    let webhook = Webhook::start_with(cluster, "webhook-stdout", 9443, &["--audit-log=-".to_owned()])?;
    webhook.install(cluster, |_| {})?;
    webhook.wait_ready()?;
    webhook.wait_called(cluster)?;
    let user = "told-on-stdout";
    let groups = groups();
    let mut misplaced = egress("asked", "any");
    misplaced["metadata"]["namespace"] = json!("default");
    for _ in 0..20 {
        assert_eq!(caller.create_as(&misplaced, true, Some((user, &groups)))?.status, 422);
    }
    wait_for("the lines are written", Duration::from_secs(10), || {
        let log = webhook.process.log();
        let summary = summary_with(&[Path::new("-")], user, &log)?;
        ensure!(summary["decisions"]["deny"] == 20, "{}", summary["decisions"]);
        assert!(
            summary["read"]["otherLines"].as_u64().is_some_and(|count| count > 0)
                && summary["read"]["brokenLines"] == 0,
            "{}",
            summary["read"]
        );
        // What the how-to says to find lines by.
        let start = "{\"schema\":\"tsunaro.io/";
        let found = log
            .lines()
            .filter(|line| line.starts_with(start) && line.contains(user))
            .count();
        ensure!(found == 20, "{found}");
        Ok(())
    })
}
