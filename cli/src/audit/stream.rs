//! A line of the webhook's own stream as a [`Record`].

use jiff::Timestamp;
use tailnet_crds::audit::{Line, Reason, SCHEMA};

use super::record::{Layer, Record, Target};

/// Start of every `schema` of such lines, whatever the version.
pub const SCHEMAS: &str = "tsunaro.io/admission-decision/";

/// Reads a line whose `schema` is `schema`.
pub fn read(text: &str, schema: &str) -> Result<Record, String> {
    if schema != SCHEMA {
        return Err(format!("has the schema {schema}, this version reads {SCHEMA}"));
    }
    let line: Line = serde_json::from_str(text).map_err(|error| format!("is no decision: {error}"))?;
    let time: Timestamp = line
        .time
        .parse()
        .map_err(|error| format!("has a time that cannot be read: {error}"))?;
    Ok(Record {
        time,
        review: line.uid,
        endpoint: line.endpoint,
        layer: Layer::Webhook,
        decision: line.decision,
        reason: line.reason.map(Reason::as_str).map(str::to_owned),
        user: line.user,
        groups: line.groups,
        verb: line.verb,
        target: Target {
            kind: line.kind,
            namespace: line.namespace,
            name: line.name,
        },
        dry_run: line.dry_run,
        rules: line.rules,
        warned: line.warned_rules,
        bypassed: line.bypassed_rules,
        fields: line.fields,
        latency_ms: Some(line.latency_ms),
        lost_before: line.lost_before,
    })
}

#[cfg(test)]
mod tests {
    use super::read;
    use tailnet_crds::audit::{Decision, Endpoint, Line, SCHEMA};

    #[test]
    fn another_version_and_half_a_line_are_named() {
        let mut line = Line::new("2026-11-30T12:00:00Z".to_owned(), Endpoint::Validate, Decision::Deny);
        line.user = "alice".to_owned();
        assert_eq!(read(&line.to_json().unwrap(), SCHEMA).unwrap().user, "alice");
        line.time = "yesterday".to_owned();
        assert!(read(&line.to_json().unwrap(), SCHEMA).unwrap_err().contains("time"));
        assert!(
            read("{}", "tsunaro.io/admission-decision/v9")
                .unwrap_err()
                .contains("/v9")
        );
        assert!(read("{}", SCHEMA).unwrap_err().contains("missing field"));
    }
}
