//! SARIF 2.1.0: what code scanning services read.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tailnet_policies::table::{RULES, rule};

use super::output::Line;

/// Where the rules are explained.
const REFERENCE: &str = "https://github.com/tsunaro/tailnet-operator/blob/main/docs/reference/rules.md";

/// The log of one run. `errors` are what could not be read.
pub fn log(lines: &[Line], errors: &[String]) -> Value {
    // Every rule that has findings, the table's in its order, then the organisation's policies.
    let found: BTreeSet<&str> = lines.iter().map(|line| line.rule.as_str()).collect();
    let mut ids: Vec<&str> = RULES
        .iter()
        .map(|rule| rule.id)
        .filter(|id| found.contains(id))
        .collect();
    ids.extend(found.iter().filter(|id| rule(id).is_none()));
    let rules: Vec<Value> = ids.iter().map(|id| descriptor(id)).collect();
    let results: Vec<Value> = lines.iter().map(|line| result(line, &ids)).collect();
    let notifications: Vec<Value> = errors
        .iter()
        .map(|error| json!({"level": "error", "message": {"text": error}}))
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "kubectl-tailnet",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "informationUri": "https://github.com/tsunaro/tailnet-operator",
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "invocations": [{
                "executionSuccessful": errors.is_empty(),
                "toolExecutionNotifications": notifications,
            }],
            "results": results,
        }],
    })
}

fn descriptor(id: &str) -> Value {
    let organisation = "A policy of the organisation in CEL does not hold; its message says why.";
    match rule(id) {
        Some(rule) => json!({
            "id": id,
            "shortDescription": {"text": rule.message},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix, "markdown": format!("{}\n\nWrong:\n\n```yaml\n{}\n```\n", rule.fix, rule.example)},
            "helpUri": format!("{REFERENCE}#{}", id.to_lowercase()),
        }),
        None => json!({
            "id": id,
            "shortDescription": {"text": organisation},
            "helpUri": format!("{REFERENCE}#tn009"),
        }),
    }
}

fn result(line: &Line, ids: &[&str]) -> Value {
    let level = if line.severity == super::DENY {
        "error"
    } else {
        "warning"
    };
    let object = line.object();
    json!({
        "ruleId": line.rule,
        "ruleIndex": ids.iter().position(|id| *id == line.rule),
        "level": level,
        "message": {"text": format!("{object}: {}: {}", line.field, line.message)},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": uri(&line.file)},
                "region": {"startLine": line.line.max(1)},
            },
            "logicalLocations": [{"fullyQualifiedName": format!("{object}: {}", line.field), "kind": "resource"}],
        }],
        // The same fault in the same object is the same result, wherever its line moves.
        "partialFingerprints": {"objectFieldRule/v1": format!("{object}/{}/{}", line.field, line.rule)},
    })
}

/// A path as a relative URI reference.
fn uri(file: &str) -> String {
    if file == "-" {
        return "stdin".to_owned();
    }
    let file = file.strip_prefix("./").unwrap_or(file).replace('\\', "/");
    let mut uri = String::new();
    for byte in file.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b'+' | b'@' => {
                uri.push(char::from(byte));
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::uri;

    #[test]
    fn paths_become_uris() {
        assert_eq!(uri("./a b/ü:1.yaml"), "a%20b/%C3%BC%3A1.yaml");
        assert_eq!(uri("-"), "stdin");
    }
}
