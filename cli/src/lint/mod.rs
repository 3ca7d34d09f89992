//! `lint`: the files are the cluster, every object in them is asked about.

mod args;
pub mod cluster;
mod explain;
mod github;
mod locate;
pub mod manifests;
mod output;
pub mod policies;
mod sarif;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::Value;
use tailnet_policies::{
    Config, Object, Operation, Request, Severity, Snapshot, base, evaluate, evaluate_config_map, organisation,
    with_defaults,
};

pub use args::{LintArgs, Output};

use cluster::Live;
use locate::line_of;
use manifests::{Found, Manifest};
use output::Line;
use policies::PolicyText;

/// Checks and prints; the exit status is described in the help.
pub fn run(args: &LintArgs) -> ExitCode {
    if let Some(id) = &args.explain {
        return explain::run(id);
    }
    let (found, mut errors) = manifests::read(&args.paths, &args.namespace);
    let (old, old_errors) = manifests::read(&args.old, &args.namespace);
    let (given, policy_errors) = policies::read(&args.policies, &args.namespace);
    errors.extend(old_errors);
    errors.extend(policy_errors);
    let mut errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let live = if args.cluster {
        match cluster::read(&cluster::Access::of(args)) {
            Ok(live) => live,
            Err(error) => {
                errors.push(error.to_string());
                Live::default()
            }
        }
    } else {
        Live::default()
    };
    let report = check(&found, &old, &given, live, args);
    let printed = match args.output {
        Output::Text => {
            report.lines.iter().for_each(|line| println!("{}", line.text()));
            Ok(())
        }
        Output::Json => serde_json::to_string_pretty(&report.lines).map(|text| println!("{text}")),
        Output::Sarif => {
            serde_json::to_string_pretty(&sarif::log(&report.lines, &errors)).map(|text| println!("{text}"))
        }
        Output::Github => {
            report
                .lines
                .iter()
                .for_each(|line| println!("{}", github::annotation(line)));
            errors.iter().for_each(|error| println!("{}", github::error(error)));
            Ok(())
        }
    };
    if let Err(error) = printed {
        eprintln!("kubectl tailnet: the findings cannot be written as JSON: {error}");
        return ExitCode::from(2);
    }
    for note in report.notes.iter().chain(&found.notes) {
        eprintln!("note: {note}");
    }
    for error in &errors {
        eprintln!("kubectl tailnet: {error}");
    }
    let of = |severity| report.lines.iter().filter(|line| line.severity == severity).count();
    // Where nothing could be read, a count would look like an answer.
    if errors.is_empty() || !found.manifests.is_empty() {
        eprintln!(
            "{} objects checked: {} denied, {} warnings",
            found.manifests.len(),
            of(DENY),
            of(WARN)
        );
    }
    match (errors.is_empty(), of(DENY)) {
        (false, _) => ExitCode::from(2),
        (true, 0) => ExitCode::SUCCESS,
        (true, _) => ExitCode::FAILURE,
    }
}

const DENY: &str = "deny";
const WARN: &str = "warn";

struct Report {
    lines: Vec<Line>,
    notes: BTreeSet<String>,
}

/// Kind, namespace and name as one text.
fn key(object: &Object) -> String {
    object.to_string()
}

fn check(found: &Found, old: &Found, given: &[PolicyText], live: Live, args: &LintArgs) -> Report {
    let config = Config {
        operator_namespace: args.operator_namespace.clone(),
        cluster_domain: args.cluster_domain.clone(),
        service_cidrs: args.service_cidrs.clone(),
        pod_cidrs: args.pod_cidrs.clone(),
    };
    let mut snapshot = Snapshot::closed(config);
    let mut notes: BTreeSet<String> = live.notes.iter().cloned().collect();
    let mut before: BTreeMap<String, Value> = live.fill(&mut snapshot);
    for manifest in &old.manifests {
        before.insert(
            key(&Object::parse(manifest.kind, &manifest.object)),
            manifest.object.clone(),
        );
    }
    for (name, labels) in &found.namespaces {
        snapshot.set_namespace_labels(name, labels.clone());
    }
    let mut lines = Vec::new();
    let of_files = found
        .policies
        .iter()
        .filter(|policy| policy.namespace.as_deref() == Some(args.operator_namespace.as_str()));
    for policy in given.iter().chain(of_files) {
        match organisation::Policy::compile(&policy.name, &policy.data) {
            Ok(compiled) => snapshot.set_policy(&policy.name, Some(Arc::new(Ok(compiled)))),
            // Said here, once, and not of every object.
            Err(problems) => lines.extend(problems.iter().map(|problem| policy.line_of(problem))),
        }
    }
    for document in &found.base_documents {
        let text = |pointer: &str| document.object.pointer(pointer).and_then(Value::as_str);
        if text("/metadata/namespace") == Some(args.operator_namespace.as_str()) {
            let policy = document.object.pointer("/data").and_then(|data| data.get(base::KEY));
            snapshot.set_base_document(
                text("/metadata/name").unwrap_or_default(),
                policy.and_then(Value::as_str),
            );
        }
    }
    let mut first: BTreeMap<String, &Manifest> = BTreeMap::new();
    for manifest in &found.manifests {
        let object = Object::parse(manifest.kind, &manifest.object);
        if let Some(earlier) = first.insert(key(&object), manifest) {
            notes.insert(format!(
                "{object} stands in {}:{} and again in {}:{}, which counts",
                earlier.file, earlier.line, manifest.file, manifest.line
            ));
        }
        snapshot.upsert(manifest.kind, &manifest.object);
    }
    for manifest in &found.manifests {
        // As the API server would: defaults first, then the rules.
        let object = with_defaults(manifest.kind, None, &manifest.object, &snapshot);
        let parsed = Object::parse(manifest.kind, &object);
        let mut request = Request::lint(manifest.kind, object);
        if let Some(old) = before.get(&key(&parsed)) {
            request.operation = Operation::Update;
            request.old = Some(with_defaults(manifest.kind, None, old, &snapshot));
        }
        let outcome = evaluate(&request, &snapshot);
        notes.extend(outcome.notes);
        lines.extend(outcome.findings.into_iter().map(|finding| Line {
            file: manifest.file.clone(),
            line: line_of(&manifest.lines, &finding.field, manifest.line),
            kind: manifest.kind.as_str(),
            namespace: parsed.namespace.clone(),
            name: parsed.name.clone(),
            rule: finding.id().to_owned(),
            severity: if finding.severity == Severity::Deny { DENY } else { WARN },
            message: finding.message(),
            field: finding.field,
        }));
    }
    for document in &found.base_documents {
        let outcome = evaluate_config_map(&document.object, None, &snapshot);
        let text = |pointer: &str| {
            document
                .object
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        lines.extend(outcome.findings.into_iter().map(|finding| Line {
            file: document.file.clone(),
            line: line_of(&document.lines, &finding.field, document.line),
            kind: "ConfigMap",
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name").unwrap_or_default(),
            rule: finding.id().to_owned(),
            severity: if finding.severity == Severity::Deny { DENY } else { WARN },
            message: finding.message(),
            field: finding.field,
        }));
    }
    Report { lines, notes }
}
