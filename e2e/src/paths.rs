//! Where the harness keeps things: the build cache, the checkout, the folder of running boxes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Root of the checkout this crate was compiled in.
pub fn repository() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// The folder with one Go module per pinned server.
pub fn tool_modules() -> PathBuf {
    repository().join("e2e/tools")
}

/// `${XDG_CACHE_HOME:-~/.cache}/tailnet-operator`: built servers and images, kept between runs.
///
/// # Errors
/// When neither `XDG_CACHE_HOME` nor `HOME` is set.
pub fn cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(value) => PathBuf::from(value),
        None => PathBuf::from(
            std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set: no place for the cache")?,
        )
        .join(".cache"),
    };
    Ok(base.join("tailnet-operator"))
}

/// Folder of all boxes of this machine: `N.json` (state), `N.lock` (held while box N lives), `N/` (its files).
///
/// The path is short on purpose: UNIX socket paths below it must stay under 108 bytes.
pub fn boxes() -> PathBuf {
    std::env::temp_dir().join("tailnet-e2e")
}

/// Where logs of failed tests are kept: `target/e2e-logs`.
pub fn kept_logs() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), PathBuf::from)
        .join("e2e-logs")
}

/// Name of the running program, without the hash that cargo appends to tests.
pub fn program_name() -> String {
    let name = std::env::current_exe()
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    let name = name.unwrap_or_else(|| "unnamed".to_owned());
    match name.rsplit_once('-') {
        Some((stem, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => stem.to_owned(),
        _ => name,
    }
}
