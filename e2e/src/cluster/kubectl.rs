//! The real kubectl against the cluster.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{self, Output};
use crate::tools::Tool;

/// Longest run of one kubectl.
const DEADLINE: Duration = Duration::from_secs(180);

/// Runs kubectl with a kubeconfig; `input` is its standard input.
///
/// # Errors
/// When kubectl is not built or does not end within 3 minutes. A non-zero exit is in the [`Output`].
pub fn run(kubeconfig: &Path, args: &[&str], input: &str) -> Result<Output> {
    let mut command = Command::new(Tool::Kubectl.built()?);
    // Neither the caller's configuration nor its cache of other clusters' discovery may play a part.
    let cache = kubeconfig
        .parent()
        .context("a kubeconfig has a folder")?
        .join("kubectl-cache");
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--cache-dir")
        .arg(cache)
        .args(args)
        .env_remove("KUBECONFIG");
    command::output(&mut command, input, DEADLINE)
}
