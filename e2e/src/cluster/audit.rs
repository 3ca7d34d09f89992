//! The API server's audit log: every request on our kinds, with the object that was sent.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// File name below the box's folder.
pub const FILE: &str = "audit.log";

/// Requests on our group at level Request: who, what, the object, what every admission webhook noted, and what it patched.
/// The write requests of operator and agents on other kinds are recorded without their bodies, so that Secrets stay out.
pub fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Request", "verbs": ["create", "update", "patch", "delete", "deletecollection"], "resources": [{"group": "tsunaro.io"}]},
            {"level": "Metadata", "userGroups": ["system:serviceaccounts:tailnet-system"], "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
            {"level": "None"},
        ],
    })
}

/// All complete events of the log in `dir`, oldest first.
///
/// # Errors
/// When the log cannot be read or a complete line is no JSON.
pub fn read(dir: &Path) -> Result<Vec<Value>> {
    let path = dir.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        // Nothing was logged yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    // The last line may still be being written.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("audit log: {line}")))
        .collect()
}
