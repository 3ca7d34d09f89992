//! Where things are: the checkout and its target directory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand};

/// The checkout that this command runs in.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub root: PathBuf,
    /// Cargo's target directory, wherever the environment puts it.
    pub target: PathBuf,
}

impl Workspace {
    /// Finds the checkout by this crate's manifest. Cargo sets the variable at run time; what was compiled in may name another clone
    /// when several share a target directory.
    pub fn find() -> Result<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest)
            .parent()
            .map(Path::to_path_buf)
            .context("xtask's manifest has no parent folder; run it as `cargo xtask` in the checkout")?;
        let metadata = MetadataCommand::new()
            .current_dir(&root)
            .no_deps()
            .exec()
            .context("cargo metadata failed; is cargo in PATH?")?;
        Ok(Self {
            root,
            target: metadata.target_directory.into_std_path_buf(),
        })
    }

    /// Everything cargo knows of the dependencies, exactly as locked.
    pub fn metadata(&self) -> Result<Metadata> {
        MetadataCommand::new()
            .current_dir(&self.root)
            .other_options(["--locked".to_owned(), "--filter-platform".to_owned(), host_triple()?])
            .exec()
            .context("cargo metadata failed; is Cargo.lock up to date?")
    }
}

fn host_triple() -> Result<String> {
    let text = crate::command::output(std::process::Command::new("rustc").arg("-vV"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc -vV names no host")
}
