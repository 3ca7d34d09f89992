//! Findings with their places.

use serde::Serialize;

/// One finding in one file.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The file, `-` for standard input.
    pub file: String,
    /// Line of the field, or of the nearest field around it.
    pub line: u64,
    /// Kind of the object.
    pub kind: &'static str,
    /// Its namespace; null for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Id of the rule, or of the organisation's policy.
    pub rule: String,
    /// `deny` or `warn`.
    pub severity: &'static str,
    /// Path of the field.
    pub field: String,
    /// Class, value, what is wrong and what to do, with the id.
    pub message: String,
}

impl Line {
    /// `TailnetEgress tailnet-system/db`
    pub fn object(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }

    /// `deploy/db.yaml:12: deny: TailnetEgress tailnet-system/db: spec.targets[0].address: Invalid value: …`
    pub fn text(&self) -> String {
        format!(
            "{}:{}: {}: {}: {}: {}",
            self.file,
            self.line,
            self.severity,
            self.object(),
            self.field,
            self.message
        )
    }
}
