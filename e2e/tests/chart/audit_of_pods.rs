//! `kubectl logs … | kubectl tailnet audit`, as docs/audit.md has it, of the chart's own Pods.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::binaries;

use crate::bed::{Bed, OPERATOR, TEAM};

const WEBHOOK: &str = "app.kubernetes.io/component=webhook";

/// The decisions are there, whatever kubectl puts in front of a line. (Which Pod the API server asks is its own affair.)
pub fn read(bed: &Bed) -> Result<()> {
    ensure!(bed.pods(WEBHOOK)?.len() == 2, "the chart has two replicas");
    // In a tenant's namespace: the schema cannot know that, so it is the webhook that refuses.
    let misplaced = json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetEgress",
        "metadata": {"name": "misplaced", "namespace": TEAM},
        "spec": {
            "tailnetRef": {"name": "demo"},
            "consumerNamespaces": [TEAM],
            "targets": [{"name": "misplaced-db", "address": "192.0.2.10", "port": 5432}],
        },
    });
    let done = bed
        .cluster
        .kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &misplaced.to_string())?;
    let said = done.failure().context("a misplaced egress")?;
    ensure!(said.contains("TN201"), "refused for another reason: {said}");
    let mut refused = None;
    for more in [&[][..], &["--prefix"], &["--timestamps"], &["--prefix", "--timestamps"]] {
        let line = [&["-n", OPERATOR, "logs", "-l", WEBHOOK, "--tail=-1"], more].concat();
        let logs = bed.kubectl(&line)?;
        let summary = audit(&logs).with_context(|| format!("kubectl {}", line.join(" ")))?;
        let read = &summary["read"];
        let of_stream = logs.matches("\"schema\":\"tsunaro.io/admission-decision/").count();
        ensure!(
            read["streamLines"] == of_stream && read["brokenLines"] == 0 && read["duplicates"] == 0,
            "{of_stream} decisions in the logs: {read}"
        );
        ensure!(
            read["otherLines"].as_u64() > Some(0),
            "the webhook's own log is not between: {read}"
        );
        let rule = summary["rules"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|row| row["rule"] == "TN201");
        let count = rule.context("TN201 refused nothing")?["refused"].as_u64();
        ensure!(count >= Some(1), "{count:?} refusals");
        ensure!(
            refused.is_none_or(|before| count == before),
            "{refused:?}, then {count:?}"
        );
        refused = Some(count);
    }
    Ok(())
}

fn audit(logs: &str) -> Result<Value> {
    let mut child = Command::new(binaries::workspace("kubectl-tailnet", "kubectl-tailnet")?)
        .args(["audit", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().context("stdin")?;
    input.write_all(logs.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}
