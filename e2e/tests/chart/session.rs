//! One long-lived connection: a Pod of team-a that keeps a single PostgreSQL session and uses it twice a second.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tailnet_e2e::site::postgres;
use tailnet_e2e::wait_for;

use crate::bed::{Bed, SOON, TEAM};
use crate::connection;

const POD: &str = "session";
/// A connection that does not answer for this long counts as broken, though nobody has said so.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a new session in place of the last one.
pub fn start(bed: &Bed) -> Result<()> {
    bed.kubectl(&["-n", TEAM, "delete", "pod", POD, "--ignore-not-found", "--timeout=60s"])?;
    let psql = format!(
        "psql -qAt -v ON_ERROR_STOP=1 -h {} -U {} -d {}",
        connection::DATABASE,
        postgres::USER,
        postgres::DATABASE
    );
    // A NetworkPolicy knows a new Pod only after a moment, so the first tries may be refused. \warn writes to standard error,
    // which nobody buffers: one line per answered query, with the server process that answered.
    let script = format!(
        r#"until {psql} -c 'SELECT 1' >/dev/null 2>&1; do sleep 0.5; done
(while :; do printf '%s\n' 'SELECT pg_backend_pid() AS pid \gset' '\warn :pid'; sleep 0.5; done) | {psql}"#
    );
    let pod = connection::pod(TEAM, POD, Some(json!(["sh", "-c", script])));
    bed.cluster.apply(&pod.to_string())?;
    wait_for("the session is open", SOON, || {
        ensure!(!answers(bed)?.is_empty(), "no answer yet");
        Ok::<_, anyhow::Error>(())
    })
}

/// What the session has been answered so far: the server process per query.
fn answers(bed: &Bed) -> Result<Vec<String>> {
    let log = bed.kubectl(&["-n", TEAM, "logs", POD])?;
    Ok(log.lines().map(str::to_owned).collect())
}

/// The connection that was opened first is still the one that is used, and it answers now.
pub fn goes_on(bed: &Bed) -> Result<()> {
    let before = answers(bed)?;
    let first = before.first().context("the session never answered")?;
    wait_for("the open connection answers three more queries", PATIENCE, || {
        let now = answers(bed)?;
        ensure!(
            now.iter().all(|pid| pid == first && pid.parse::<u32>().is_ok()),
            "the session says: {}",
            now.iter().rev().take(3).cloned().collect::<Vec<_>>().join(" / ")
        );
        ensure!(
            now.len() >= before.len() + 3,
            "{} answers, before: {}",
            now.len(),
            before.len()
        );
        Ok::<_, anyhow::Error>(())
    })
}
