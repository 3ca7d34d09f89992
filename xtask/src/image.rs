//! `cargo xtask image`: the product's image from the repository's Dockerfile, without a daemon.

mod context;
mod notices;

pub use context::BINARIES;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tailnet_e2e::cluster::Cluster;
use tailnet_e2e::prerequisites::{self, Need};
use tailnet_e2e::progress::Progress;

use crate::command::{output, run};
use crate::workspace::Workspace;

/// Name of the image in tests and demo; the chart's default repository with the tag `dev`.
pub const REFERENCE: &str = "docker.io/tsunaro/tailnet-operator:dev";

/// File in a cluster's folder that says which image of ours its node has.
const LOADED: &str = "our-image";

/// What the binaries in an image are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Tests, demo and trying things out: Cargo's profile `dev`, whose output `cargo test` has made already. Arithmetic is checked for overflow.
    Development,
    /// Somebody's cluster: Cargo's profile `release`, which takes minutes to link.
    Release,
}

impl Purpose {
    /// What `--release` on the command line chooses.
    #[must_use]
    pub const fn release(wanted: bool) -> Self {
        if wanted { Self::Release } else { Self::Development }
    }

    /// Ending of this image's files below `target/oci`, so that a development image is never taken for one to be pushed.
    const fn ending(self) -> &'static str {
        match self {
            Self::Development => "-dev",
            Self::Release => "",
        }
    }
}

/// Builds the binaries, lays out the build context, and makes an OCI archive of it. A context that did not change keeps the archive it has.
/// Returns the archive's path.
pub fn build(workspace: &Workspace, purpose: Purpose) -> Result<PathBuf> {
    prerequisites::ensure_present(&[Need::Image])?;
    let folder = lay_out(workspace, purpose)?;
    let named = format!("tailnet-operator{}", purpose.ending());
    let archive = workspace.target.join(format!("oci/{named}.oci.tar"));
    let stamp = workspace.target.join(format!("oci/{named}.sha256"));
    let digest = digest(&workspace.root.join("Dockerfile"), &folder)?;
    if archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|text| text == digest) {
        eprintln!("image {REFERENCE} is up to date: {}", archive.display());
        return Ok(archive);
    }
    let progress = Progress::start(format!("building image {REFERENCE}"));
    bud(workspace, &folder, &archive)?;
    fs::write(&stamp, digest)?;
    progress.done();
    let size = archive.metadata()?.len();
    eprintln!("image {REFERENCE}: {} ({:.1} MB)", archive.display(), size as f64 / 1e6);
    Ok(archive)
}

/// Loads the image into a cluster's node, and leaves a mark there for [`loaded`].
pub fn load(cluster: &Cluster, archive: &Path) -> Result<()> {
    cluster.load_image(archive).context("loading our image")?;
    let mark = cluster.dir().join(LOADED);
    fs::write(&mark, REFERENCE).with_context(|| format!("cannot write {}", mark.display()))
}

/// Name of our image on a cluster's node; None when [`load`] did not put it there.
pub fn loaded(cluster: &Cluster) -> Option<String> {
    fs::read_to_string(cluster.dir().join(LOADED)).ok()
}

/// The build context alone, for another builder. Returns its folder.
pub fn lay_out(workspace: &Workspace, purpose: Purpose) -> Result<PathBuf> {
    let binaries = context::build_binaries(workspace, purpose)?;
    let folder = workspace.target.join(format!("oci/context{}", purpose.ending()));
    context::lay_out(workspace, &binaries, &folder)?;
    Ok(folder)
}

/// buildah keeps its storage below the target directory and leaves nothing behind.
fn bud(workspace: &Workspace, context: &Path, archive: &Path) -> Result<()> {
    let storage = workspace.target.join("oci/buildah");
    // Images are only ever made from scratch and written to a file: nothing is pulled that a signature could vouch for.
    let policy = workspace.target.join("oci/policy.json");
    fs::write(&policy, r#"{"default":[{"type":"insecureAcceptAnything"}]}"#)?;
    let buildah = || {
        let mut command = Command::new("buildah");
        command
            .arg("--root")
            .arg(storage.join("root"))
            .arg("--runroot")
            .arg(storage.join("run"))
            .args(["--storage-driver", "vfs"]);
        command
    };
    let revision = output(
        Command::new("git")
            .args(["rev-parse", "HEAD"])
            .current_dir(&workspace.root),
    )
    .unwrap_or_else(|_| "unknown".to_owned());
    let made = run(buildah()
        .args([
            "bud",
            "--isolation",
            "chroot",
            "--pull-never",
            "--layers=false",
            "--quiet",
            "--signature-policy",
        ])
        .arg(&policy)
        .args([
            "--build-arg",
            concat!("VERSION=", env!("CARGO_PKG_VERSION")),
            "--build-arg",
        ])
        .arg(format!("REVISION={}", revision.trim()))
        .args(["--tag", REFERENCE, "--file"])
        .arg(workspace.root.join("Dockerfile"))
        .arg(context))
    .and_then(|()| {
        let unfinished = archive.with_extension("tmp");
        if unfinished.exists() {
            fs::remove_file(&unfinished)?;
        }
        run(buildah()
            .args(["push", "--quiet", "--signature-policy"])
            .arg(&policy)
            .arg(REFERENCE)
            .arg(format!("oci-archive:{}:{REFERENCE}", unfinished.display())))?;
        fs::rename(&unfinished, archive).with_context(|| format!("cannot write {}", archive.display()))
    });
    if storage.exists() {
        fs::remove_dir_all(&storage).with_context(|| format!("cannot remove {}", storage.display()))?;
    }
    made
}

/// sha256 over the Dockerfile and every file of the context with its path.
fn digest(dockerfile: &Path, context: &Path) -> Result<String> {
    let mut sum = Sha256::new();
    sum.update(fs::read(dockerfile).with_context(|| format!("cannot read {}", dockerfile.display()))?);
    for entry in walkdir::WalkDir::new(context).sort_by_file_name() {
        let entry = entry?;
        sum.update(entry.path().strip_prefix(context)?.as_os_str().as_encoded_bytes());
        if entry.file_type().is_file() {
            sum.update(fs::read(entry.path())?);
        }
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
