//! Alert rules and dashboard of the chart: every metric that they name is served by a process, with the labels that they use,
//! and every alert has its section in the runbook.
//!
//! Expressions are read word by word, which finds every name in them; that they are PromQL as a whole is Prometheus' to say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::generate::metrics::served;

/// Labels that Prometheus adds when it scrapes Pods, and those of its own data model.
const OF_THE_SCRAPE: [&str; 7] = ["namespace", "pod", "container", "job", "instance", "endpoint", "le"];
/// Functions, operators and modifiers that our expressions use.
const WORDS: [&str; 24] = [
    "absent",
    "and",
    "avg",
    "by",
    "count",
    "group_left",
    "histogram_quantile",
    "ignoring",
    "increase",
    "max",
    "min",
    "offset",
    "on",
    "or",
    "rate",
    "sum",
    "time",
    "topk",
    "unless",
    "vector",
    "without",
    "bool",
    "clamp_min",
    "changes",
];

/// Every fault as a line; and how many expressions were read.
pub fn faults(root: &Path) -> Result<(Vec<String>, usize)> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"));
    let known = known()?;
    let mut faults = Vec::new();
    let mut expressions = 0;
    let runbook = read("docs/runbook.md")?;
    let alerts: Value =
        serde_saphyr::from_str(&read("chart/monitoring/alerts.yaml")?).context("chart/monitoring/alerts.yaml")?;
    for rule in rules(&alerts)? {
        let name = rule["alert"].as_str().context("a rule without a name")?;
        expressions += 1;
        let expression = rule["expr"]
            .as_str()
            .with_context(|| format!("{name} has no expression"))?;
        faults.extend(
            wrong(expression, &known)
                .into_iter()
                .map(|fault| format!("alert {name}: {fault}")),
        );
        faults.extend(
            incomplete(rule)
                .into_iter()
                .map(|fault| format!("alert {name}: {fault}")),
        );
        if !runbook.lines().any(|line| line == format!("## {name}")) {
            faults.push(format!("docs/runbook.md has no section {name}"));
        }
    }
    let named: BTreeSet<String> = rules(&alerts)?
        .iter()
        .filter_map(|rule| rule["alert"].as_str().map(str::to_owned))
        .collect();
    for section in runbook.lines().filter_map(|line| line.strip_prefix("## Tailnet")) {
        if !named.contains(&format!("Tailnet{section}")) {
            faults.push(format!(
                "docs/runbook.md has a section Tailnet{section} and no alert is called so"
            ));
        }
    }
    let dashboard: Value =
        serde_json::from_str(&read("chart/monitoring/dashboard.json")?).context("chart/monitoring/dashboard.json")?;
    let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    for panel in panels {
        let title = panel["title"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            expressions += 1;
            let expression = target["expr"]
                .as_str()
                .with_context(|| format!("panel {title} asks nothing"))?;
            let expression = expression.replace("$__rate_interval", "5m");
            faults.extend(
                wrong(&expression, &known)
                    .into_iter()
                    .map(|fault| format!("panel {title}: {fault}")),
            );
        }
    }
    ensure!(expressions > 30, "only {expressions} expressions were found");
    Ok((faults, expressions))
}

/// Every series that a process serves, with its labels.
fn known() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut known = BTreeMap::new();
    for (name, kind, labels) in served()? {
        let labels: BTreeSet<String> = labels
            .split(", ")
            .filter(|label| !label.is_empty())
            .map(str::to_owned)
            .collect();
        if kind == "histogram" {
            for suffix in ["bucket", "sum", "count"] {
                known.insert(format!("{name}_{suffix}"), labels.clone());
            }
        } else {
            known.insert(name, labels);
        }
    }
    Ok(known)
}

fn rules(alerts: &Value) -> Result<Vec<&Value>> {
    let groups = alerts["groups"].as_array().context("the alerts have no groups")?;
    let rules: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
        .collect();
    if rules.is_empty() {
        bail!("there are no alerts");
    }
    Ok(rules)
}

/// What every alert must have, and nothing else that Prometheus would not know.
fn incomplete(rule: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    if !["critical", "warning", "info"].contains(&rule["labels"]["severity"].as_str().unwrap_or_default()) {
        faults.push("its label severity is to be critical, warning or info".to_owned());
    }
    for annotation in ["summary", "description"] {
        if rule["annotations"][annotation].as_str().is_none_or(str::is_empty) {
            faults.push(format!("it has no annotation {annotation}"));
        }
    }
    let fields = rule.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
    faults.extend(
        fields
            .filter(|field| !["alert", "expr", "for", "keep_firing_for", "labels", "annotations"].contains(field))
            .map(|field| format!("Prometheus knows no field {field}")),
    );
    faults
}

/// What is wrong with the names in an expression.
fn wrong(expression: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut faults = Vec::new();
    let pieces = pieces(expression, &mut faults);
    let mut metrics: Vec<&str> = Vec::new();
    // What the last name before an opening brace was; labels between braces are of it.
    let mut labels_of: Option<&str> = None;
    let mut grouping = false;
    let mut groupings = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| pieces.get(at)).map(String::as_str);
        let after = pieces.get(at + 1).map(String::as_str);
        match piece.as_str() {
            "{" => labels_of = before,
            "}" => labels_of = None,
            "(" if before.is_some_and(|word| ["by", "without", "on", "ignoring"].contains(&word)) => grouping = true,
            ")" => grouping = false,
            word if !word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') => {}
            label if grouping => groupings.push(label),
            label if labels_of.is_some() => {
                let metric = labels_of.unwrap_or_default();
                if let Some(labels) = known.get(metric)
                    && !labels.contains(label)
                    && !OF_THE_SCRAPE.contains(&label)
                {
                    faults.push(format!("{metric} has no label {label}"));
                }
            }
            word if WORDS.contains(&word) && (after == Some("(") || !word.contains('_')) => {}
            metric if known.contains_key(metric) => metrics.push(metric),
            other => faults.push(format!("no process serves {other}")),
        }
    }
    if metrics.is_empty() && faults.is_empty() {
        faults.push("it names no metric".to_owned());
    }
    for label in groupings {
        let has = |metric: &&str| known.get(*metric).is_some_and(|labels| labels.contains(label));
        if !metrics.iter().any(has) && !OF_THE_SCRAPE.contains(&label) {
            faults.push(format!("none of its metrics has the label {label}"));
        }
    }
    faults
}

/// Words, brackets and signs; texts in quotes and durations in brackets are left out. Says what is not closed.
fn pieces(expression: &str, faults: &mut Vec<String>) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut open = Vec::new();
    let mut letters = expression.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            quote @ ('"' | '\'') => skip(&mut letters, quote, "a text", faults),
            '[' => skip(&mut letters, ']', "a range", faults),
            '(' | '{' => {
                open.push(letter);
                pieces.push(letter.to_string());
            }
            ')' | '}' => {
                let wanted = if letter == ')' { '(' } else { '{' };
                if open.pop() != Some(wanted) {
                    faults.push(format!("{letter} closes nothing"));
                }
                pieces.push(letter.to_string());
            }
            first if first.is_ascii_alphanumeric() || first == '_' => {
                let mut word = first.to_string();
                while let Some(next) = letters.next_if(|next| next.is_ascii_alphanumeric() || "_:.".contains(*next)) {
                    word.push(next);
                }
                pieces.push(word);
            }
            _ => {}
        }
    }
    if !open.is_empty() {
        faults.push("a bracket is not closed".to_owned());
    }
    pieces
}

/// Passes over what ends with `end`.
fn skip(letters: &mut impl Iterator<Item = char>, end: char, what: &str, faults: &mut Vec<String>) {
    if !letters.any(|letter| letter == end) {
        faults.push(format!("{what} is not closed"));
    }
}

#[cfg(test)]
mod tests {
    use super::{faults, known, wrong};

    #[test]
    fn what_is_committed_is_right() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (faults, expressions) = faults(root).unwrap();
        assert!(faults.is_empty(), "{faults:#?}");
        assert!(expressions > 30);
    }

    #[test]
    fn a_name_that_nobody_serves_is_found() {
        let known = known().unwrap();
        let faults = |expression: &str| wrong(expression, &known);
        let fine = r#"sum by (le, pod) (rate(tailnet_agent_dial_duration_seconds_bucket{target=~"a|b"}[5m])) > 0.5"#;
        assert_eq!(faults(fine), Vec::<String>::new());
        for (expression, word) in [
            ("rate(tailnet_agent_bytes[5m])", "no process serves tailnet_agent_bytes"),
            (
                "tailnet_agent_dial_duration_seconds > 1",
                "no process serves tailnet_agent_dial_duration_seconds",
            ),
            (
                "tailnet_resource_ready{knd=\"x\"} == 0",
                "tailnet_resource_ready has no label knd",
            ),
            (
                "sum by (knd) (tailnet_resource_ready)",
                "none of its metrics has the label knd",
            ),
            ("sum(tailnet_operator_leader", "a bracket is not closed"),
            ("tailnet_resource_ready{kind=\"x} == 0", "a text is not closed"),
            ("summ(tailnet_operator_leader)", "no process serves summ"),
            ("vector(1)", "it names no metric"),
        ] {
            let found = faults(expression);
            assert!(
                found.iter().any(|fault| fault.contains(word)),
                "{expression}: {found:?}"
            );
        }
    }
}
