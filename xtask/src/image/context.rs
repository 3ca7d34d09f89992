//! The image's build context: the binaries, the few system files they need, and the licences of everything inside.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Purpose, notices};
use crate::command::{output, run};
use crate::workspace::Workspace;

/// Package and binary names of what is in the image.
pub const BINARIES: [(&str, &str); 4] = [
    ("tailnet-operator", "tailnet-operator"),
    ("tailnet-webhook", "tailnet-webhook"),
    ("tailnet-agent", "tailnet-agent"),
    ("kubectl-tailnet", "kubectl-tailnet"),
];

const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Builds the binaries and returns their paths.
pub fn build_binaries(workspace: &Workspace, purpose: Purpose) -> Result<Vec<PathBuf>> {
    let mut cargo = tailnet_e2e::nested_cargo::cargo();
    cargo.current_dir(&workspace.root).args(["build", "--locked"]);
    let profile = match purpose {
        Purpose::Development => {
            // The features of dependencies are then those of `cargo test --workspace`, so that nothing is built twice.
            cargo.arg("--workspace");
            "debug"
        }
        Purpose::Release => {
            cargo.arg("--release");
            for (package, _) in BINARIES {
                cargo.args(["--package", package]);
            }
            "release"
        }
    };
    for (_, binary) in BINARIES {
        cargo.args(["--bin", binary]);
    }
    run(&mut cargo)?;
    Ok(BINARIES
        .iter()
        .map(|(_, binary)| workspace.target.join(profile).join(binary))
        .collect())
}

/// Writes the context afresh.
pub fn lay_out(workspace: &Workspace, binaries: &[PathBuf], folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let (bin, rootfs) = (folder.join("bin"), folder.join("rootfs"));
    fs::create_dir_all(&bin)?;
    let mut libraries = BTreeSet::new();
    for binary in binaries {
        let inside = bin.join(binary.file_name().context("a binary has a name")?);
        copy(binary, &inside, 0o755)?;
        // Development binaries carry line tables; a release has none left to remove.
        output(Command::new("strip").arg("--strip-debug").arg(&inside))?;
        libraries.extend(tailnet_e2e::images::libraries(binary)?);
    }
    for library in &libraries {
        // The loader's path is written into the binaries; libraries are found in the loader's default folders.
        copy(Path::new(library), &rootfs.join(library.trim_start_matches('/')), 0o755)?;
    }
    ensure!(
        Path::new(CA_BUNDLE).is_file(),
        "{CA_BUNDLE} is missing on this machine; install the package ca-certificates"
    );
    copy(Path::new(CA_BUNDLE), &rootfs.join(&CA_BUNDLE[1..]), 0o644)?;
    write(
        &rootfs.join("etc/passwd"),
        "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
    )?;
    write(&rootfs.join("etc/group"), "root:x:0:\nnonroot:x:65532:\n")?;
    write(&rootfs.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    copy(&workspace.root.join("LICENSE"), &rootfs.join("licenses/LICENSE"), 0o644)?;
    write(&rootfs.join("licenses/THIRD-PARTY.txt"), &notices::text(workspace)?)?;
    for package in ["libc6", "libgcc-s1", "ca-certificates"] {
        let copyright = Path::new("/usr/share/doc").join(package).join("copyright");
        ensure!(
            copyright.is_file(),
            "{} is missing on this machine: the image must carry the licence of {package}",
            copyright.display()
        );
        copy(&copyright, &rootfs.join("licenses/debian").join(package), 0o644)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
