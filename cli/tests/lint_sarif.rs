//! `lint -o sarif` against SARIF 2.1.0: the part of its schema that lint writes, as types that take nothing else. The schema
//! allows no property that it does not name, so a property with a wrong name or in a wrong place fails here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]
#![allow(dead_code, reason = "fields are there to be read from JSON")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use support::{folder, lint, text};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    #[serde(rename = "$schema")]
    schema: String,
    version: Version,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
enum Version {
    #[serde(rename = "2.1.0")]
    Supported,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Run {
    tool: Tool,
    column_kind: ColumnKind,
    invocations: Vec<Invocation>,
    /// "It must be present (but may be empty) if a log file represents an actual scan."
    results: Vec<Outcome>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum ColumnKind {
    Utf16CodeUnits,
    UnicodeCodePoints,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    driver: Driver,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Driver {
    name: String,
    semantic_version: String,
    information_uri: String,
    rules: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Descriptor {
    id: String,
    short_description: Multiformat,
    full_description: Option<Multiformat>,
    help: Option<Multiformat>,
    help_uri: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Multiformat {
    text: String,
    markdown: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Invocation {
    execution_successful: bool,
    tool_execution_notifications: Vec<Notification>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Notification {
    level: Level,
    message: Message,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    None,
    Note,
    Warning,
    Error,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Outcome {
    rule_id: String,
    rule_index: usize,
    level: Level,
    message: Message,
    locations: Vec<Location>,
    partial_fingerprints: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Location {
    physical_location: PhysicalLocation,
    logical_locations: Vec<LogicalLocation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PhysicalLocation {
    artifact_location: ArtifactLocation,
    region: Region,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArtifactLocation {
    uri: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Region {
    /// At least 1.
    start_line: std::num::NonZeroU64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LogicalLocation {
    fully_qualified_name: String,
    kind: String,
}

/// Reads a log and checks what types do not say.
fn conforming(output: &[u8]) -> Log {
    let value: Value = serde_json::from_slice(output).unwrap();
    let log: Log = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value:#}"));
    assert!(is_absolute_uri(&log.schema), "{}", log.schema);
    for run in &log.runs {
        let driver = &run.tool.driver;
        assert!(is_absolute_uri(&driver.information_uri), "{}", driver.information_uri);
        let numbers = driver.semantic_version.split(['-', '+']).next().unwrap().split('.');
        assert_eq!(
            numbers.filter(|number| number.parse::<u64>().is_ok()).count(),
            3,
            "{}",
            driver.semantic_version
        );
        let ids: BTreeSet<&str> = driver.rules.iter().map(|rule| rule.id.as_str()).collect();
        assert_eq!(ids.len(), driver.rules.len(), "rules are unique");
        for rule in &driver.rules {
            assert!(is_absolute_uri(&rule.help_uri), "{}", rule.help_uri);
        }
        for result in &run.results {
            assert_eq!(driver.rules[result.rule_index].id, result.rule_id);
            assert!(!result.message.text.is_empty() && !result.locations.is_empty());
            for location in &result.locations {
                let uri = &location.physical_location.artifact_location.uri;
                assert!(is_relative_uri(uri), "{uri}");
            }
        }
    }
    log
}

/// Characters that RFC 3986 lets stand in a path, and whole percent codes.
fn is_relative_uri(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=@/".contains(c);
    let mut pieces = text.split('%');
    let plain = pieces.next().is_some_and(|first| first.chars().all(allowed));
    plain
        && pieces.all(|piece| {
            piece.len() >= 2
                && piece.is_char_boundary(2)
                && piece[..2].chars().all(|c| c.is_ascii_hexdigit())
                && piece[2..].chars().all(allowed)
        })
}

fn is_absolute_uri(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, rest)| {
        scheme == "https"
            && !rest.is_empty()
            && rest.chars().all(|c| c.is_ascii_graphic() && !"<>\"{}|\\^`".contains(c))
    })
}

/// The objects of the rules' own fixtures, each in a file of its own: thousands of findings of every rule that lint has.
#[test]
fn every_rules_findings_conform_to_sarif() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/cases");
    let directory = tempfile::tempdir().unwrap();
    let mut files = 0;
    for rule in std::fs::read_dir(&cases).unwrap() {
        let rule = rule.unwrap().path();
        for case in std::fs::read_dir(&rule).unwrap() {
            let case = case.unwrap().path();
            let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(&case).unwrap()).unwrap();
            let objects = documents.iter().filter_map(|document| document.get("object"));
            for object in objects.filter(|object| object["kind"] != "ConfigMap") {
                // Names that a URI has to escape.
                let name = format!("{} {files}#é.json", case.file_stem().unwrap().display());
                std::fs::write(
                    directory.path().join(name),
                    serde_json::to_string_pretty(object).unwrap(),
                )
                .unwrap();
                files += 1;
            }
        }
    }
    assert!(files > 200, "{files}");
    std::fs::write(
        directory.path().join("broken.yaml"),
        "apiVersion: tsunaro.io/v1alpha1\nkind: [\n",
    )
    .unwrap();
    let output = lint(directory.path(), &["-o", "sarif", "."]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let log = conforming(&output.stdout);
    let run = &log.runs[0];
    assert!(run.results.len() > 1000, "{}", run.results.len());
    assert!(run.tool.driver.rules.len() > 40, "{}", run.tool.driver.rules.len());
    assert!(!run.invocations[0].execution_successful);
    assert_eq!(run.invocations[0].tool_execution_notifications.len(), 1);
}

#[test]
fn a_run_without_findings_conforms_too() {
    let directory = folder(&[("empty.yaml", "# nothing\n")]);
    let output = lint(directory.path(), &["-o", "sarif", "."]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let log = conforming(&output.stdout);
    assert!(log.runs[0].results.is_empty() && log.runs[0].invocations[0].execution_successful);
}

/// The check itself: what the schema refuses is refused here.
#[test]
fn what_the_schema_does_not_have_fails() {
    let directory = folder(&[("empty.yaml", "# nothing\n")]);
    let good: Value = serde_json::from_slice(&lint(directory.path(), &["-o", "sarif", "."]).stdout).unwrap();
    let broken: [(&str, Value); 5] = [
        ("/version", "2.0.0".into()),
        ("/runs/0/tool/driver/rules", Value::Null),
        ("/runs/0/results", Value::Null),
        ("/runs/0/columnKind", "bytes".into()),
        ("/runs/0/invocations/0/executionSuccessful", "yes".into()),
    ];
    for (place, value) in broken {
        let mut wrong = good.clone();
        *wrong.pointer_mut(place).unwrap() = value;
        assert!(serde_json::from_value::<Log>(wrong).is_err(), "{place}");
    }
    let mut more = good;
    more["runs"][0]["columnKinds"] = "unicodeCodePoints".into();
    assert!(serde_json::from_value::<Log>(more).is_err());
}
