//! Programs of this workspace, built by cargo when a test needs them.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{command, nested_cargo, paths};

/// What was built by this process already.
static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Folder of cargo's output that the running program came from: `target/debug` or `target/release`.
fn output_folder() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let folder = exe.parent().context("a program has a folder")?;
    let folder = if folder.ends_with("deps") || folder.ends_with("examples") {
        folder.parent().unwrap_or(folder)
    } else {
        folder
    };
    Ok(folder.to_owned())
}

/// Builds program `binary` of workspace package `package` in the profile of the running program, and returns its path.
///
/// # Errors
/// When cargo fails: the text holds the compiler's output.
pub fn workspace(package: &str, binary: &str) -> Result<PathBuf> {
    let folder = output_folder()?;
    let path = folder.join(binary);
    let key = format!("{package}/{binary}");
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !built.contains(&key) {
        let mut cargo = nested_cargo::cargo();
        cargo
            .current_dir(paths::repository())
            // Of the whole workspace: the features of dependencies are then those of `cargo test --workspace`, so that nothing is built twice.
            .args(["build", "--quiet", "--workspace", "--bin", binary]);
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        command::output(&mut cargo, "", Duration::from_secs(30 * 60))?
            .success()
            .with_context(|| format!("cargo build --workspace --bin {binary} (of package {package})"))?;
        built.push(key);
    }
    ensure!(path.is_file(), "cargo did not leave {}", path.display());
    Ok(path)
}

/// The harness's own program. Tests of this package find it built; everybody else builds it first.
///
/// # Errors
/// See [`workspace`].
pub(crate) fn tailnet_box() -> Result<PathBuf> {
    let beside = output_folder()?.join("tailnet-box");
    if std::env::var_os("CARGO_PKG_NAME").is_some_and(|name| name == env!("CARGO_PKG_NAME")) && beside.is_file() {
        return Ok(beside);
    }
    workspace(env!("CARGO_PKG_NAME"), "tailnet-box")
}

/// Whether `path` is a program.
pub fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
