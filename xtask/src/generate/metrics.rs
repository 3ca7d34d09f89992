//! `docs/reference/metrics.md`, from the lists that the processes keep and test.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

const BUILD_INFO: &str = "Version and commit of this process; always 1";

/// One metric, as scraped.
struct Metric {
    name: String,
    kind: &'static str,
    labels: String,
    help: String,
}

/// The page.
pub fn reference() -> Result<String> {
    let mut text = String::from(
        "# Metrics\n\nEvery process serves `/metrics` (Prometheus text) beside `/healthz` and `/readyz` on its health port: webhook 9401, agent 9402, operator 9403.\n",
    );
    table("Webhook", &webhook(), &mut text);
    table("Operator", &operator(), &mut text);
    table(
        "Agent",
        &agent(include_str!("../../../agent/src/metrics.rs"))?,
        &mut text,
    );
    Ok(text)
}

/// Name, type and labels (`a, b`) of every metric that a process serves.
pub fn served() -> Result<Vec<(String, &'static str, String)>> {
    let mut all = webhook();
    all.extend(operator());
    all.extend(agent(include_str!("../../../agent/src/metrics.rs"))?);
    Ok(all
        .into_iter()
        .map(|metric| (metric.name, metric.kind, metric.labels))
        .collect())
}

fn table(process: &str, metrics: &[Metric], text: &mut String) {
    let _ = write!(
        text,
        "\n## {process}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n"
    );
    for metric in metrics {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            metric.name, metric.kind, metric.labels, metric.help
        );
    }
}

fn webhook() -> Vec<Metric> {
    use tailnet_webhook::metrics::{METRICS, PREFIX};
    let own = METRICS.iter().map(|metric| Metric {
        name: format!(
            "{PREFIX}_{}{}",
            metric.name,
            if metric.kind == "counter" { "_total" } else { "" }
        ),
        kind: metric.kind,
        labels: metric.labels.join(", "),
        help: metric.help.to_owned(),
    });
    let build = Metric {
        name: format!("{PREFIX}_build_info"),
        kind: "gauge",
        labels: "version".to_owned(),
        help: BUILD_INFO.to_owned(),
    };
    std::iter::once(build).chain(own).collect()
}

fn operator() -> Vec<Metric> {
    tailnet_operator::metrics::METRICS
        .iter()
        .map(|(name, kind, labels, help)| Metric {
            name: (*name).to_owned(),
            kind,
            labels: (*labels).to_owned(),
            help: (*help).to_owned(),
        })
        .collect()
}

/// The agent cannot be linked here: it would bring the Go runtime into this program. So its registrations are read from its source, strictly:
/// `registry.register("name", "help", m.field.clone())`, with the field's type in `struct Metrics` and its labels in the label's struct.
fn agent(source: &str) -> Result<Vec<Metric>> {
    let prefix = source
        .split("const PREFIX: &str = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .context("agent/src/metrics.rs has no PREFIX")?;
    let mut metrics = vec![Metric {
        name: format!("{prefix}_build_info"),
        kind: "gauge",
        labels: "version".to_owned(),
        help: BUILD_INFO.to_owned(),
    }];
    for call in source.split("registry.register(").skip(1) {
        let mut quoted = call.split('"');
        let (name, help, last) = (quoted.nth(1), quoted.nth(1), quoted.next());
        let (name, help) = (
            name.context("a registration without a name")?,
            help.context("a registration without a text")?,
        );
        let field = last
            .and_then(|rest| rest.split("m.").nth(1)?.split(".clone()").next())
            .with_context(|| format!("cannot see which field {name} registers"))?;
        let declared = format!("pub {field}: ");
        let of = source
            .split(&declared)
            .nth(1)
            .and_then(|rest| rest.split(",\n").next())
            .with_context(|| format!("field {field} of {name} is not declared"))?;
        let kind = ["Histogram", "Counter"]
            .into_iter()
            .find(|kind| of.contains(kind))
            .map_or("gauge", |kind| if kind == "Counter" { "counter" } else { "histogram" });
        let labels = match of.strip_prefix("Family<").and_then(|rest| rest.split(',').next()) {
            Some(label) => label_names(source, label)?,
            None => String::new(),
        };
        let total = if kind == "counter" { "_total" } else { "" };
        metrics.push(Metric {
            name: format!("{prefix}_{name}{total}"),
            kind,
            labels,
            help: help.to_owned(),
        });
    }
    ensure!(metrics.len() > 1, "agent/src/metrics.rs registers nothing");
    Ok(metrics)
}

/// Fields of a label set.
fn label_names(source: &str, label: &str) -> Result<String> {
    let opening = format!("pub struct {label} {{");
    let body = source
        .split(&opening)
        .nth(1)
        .and_then(|rest| rest.split('}').next())
        .with_context(|| format!("no struct {label}"))?;
    let names = body
        .split("pub ")
        .skip(1)
        .filter_map(|field| field.split(':').next())
        .collect::<Vec<_>>();
    Ok(names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{agent, reference};

    #[test]
    fn registrations_are_read_from_source() {
        let source = r#"
pub const PREFIX: &str = "p";
pub struct ByteLabel {
    /// Target.
    pub target: String,
    pub direction: &'static str,
}
pub struct Metrics {
    pub bytes: Family<ByteLabel, Counter>,
    pub age: Float,
}
        registry.register(
            "bytes",
            "Bytes carried",
            m.bytes.clone(),
        );
        registry.register("age_seconds", "Age", m.age.clone());
"#;
        let found = agent(source)
            .unwrap()
            .into_iter()
            .map(|metric| format!("{} {} {} {}", metric.name, metric.kind, metric.labels, metric.help))
            .collect::<Vec<_>>();
        assert_eq!(
            found[1..],
            [
                "p_bytes_total counter target, direction Bytes carried",
                "p_age_seconds gauge  Age"
            ]
        );
        assert!(agent("const PREFIX: &str = \"p\"; registry.register(\"a\", \"b\", other)").is_err());
    }

    #[test]
    fn every_process_has_its_table() {
        let text = reference().unwrap();
        for name in [
            "`tailnet_webhook_requests_total` | counter | endpoint, kind, operation, decision |",
            "`tailnet_operator_leader`",
            "`tailnet_agent_bytes_total` | counter | target, direction |",
        ] {
            assert!(text.contains(name), "{name}:\n{text}");
        }
    }
}
