//! What the machine must have: root, and a few Debian packages, which are installed when they are missing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::progress::Progress;

/// Which parts of the harness are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A box with API server and etcd.
    Api,
    /// A box with a node that runs Pods.
    Node,
    /// Sites with a PostgreSQL server.
    Site,
    /// Building images from the Dockerfile.
    Image,
    /// Programs under a clock that is wrong.
    Clock,
}

/// A file (or the stem of one) and the Debian package that brings it.
const PROGRAMS: &[(Need, &str, &str)] = &[
    (Need::Api, "ip", "iproute2"),
    (Need::Node, "containerd", "containerd"),
    (Need::Node, "ctr", "containerd"),
    (Need::Node, "runc", "runc"),
    (Need::Node, "/usr/lib/cni/bridge", "containernetworking-plugins"),
    (Need::Node, "iptables", "iptables"),
    (Need::Node, "ipset", "ipset"),
    (Need::Node, "nft", "nftables"),
    (Need::Node, "conntrack", "conntrack"),
    (Need::Node, "curl", "curl"),
    (Need::Node, "psql", "postgresql-client"),
    (Need::Site, "iptables", "iptables"),
    (Need::Site, "/usr/lib/postgresql", "postgresql"),
    (Need::Image, "buildah", "buildah"),
    (Need::Clock, crate::clock::LIBRARY, "libfaketime"),
];

/// Full path of `program` in `PATH` or in the system's sbin folders.
pub fn find_program(program: &str) -> Option<std::path::PathBuf> {
    if program.starts_with('/') {
        return Path::new(program).exists().then(|| program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(Into::into))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages: Vec<_> = PROGRAMS
        .iter()
        .filter(|(need, program, _)| needs.contains(need) && find_program(program).is_none())
        .map(|(_, _, package)| *package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Checks that we are root and that the packages of `needs` are installed; installs missing ones with apt on Debian.
///
/// # Errors
/// Not root, not Debian while something is missing, or apt fails: each with what to do.
pub fn ensure_present(needs: &[Need]) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the cluster harness makes network, mount and PID namespaces and therefore needs root: run it as root (sudo -E cargo xtask ...)"
    );
    let packages = missing(needs);
    if packages.is_empty() {
        return Ok(());
    }
    ensure!(
        Path::new("/etc/debian_version").exists(),
        "missing on this machine: {}. This is not Debian, so install the programs of these Debian packages yourself",
        packages.join(" ")
    );
    let progress = Progress::start(format!("installing Debian packages: {}", packages.join(" ")));
    let apt = |args: &[&str]| -> Result<()> {
        let mut command = Command::new("apt-get");
        // RUNLEVEL=1 keeps package scripts from starting the services they bring.
        command
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("RUNLEVEL", "1");
        crate::command::output(&mut command, "", Duration::from_secs(600))?
            .success()
            .map(drop)
    };
    apt(&["update", "-q"]).context("apt-get update")?;
    let mut install = vec!["install", "-q", "-y", "--no-install-recommends"];
    install.extend(&packages);
    apt(&install).with_context(|| format!("apt-get {}", install.join(" ")))?;
    let left = missing(needs);
    if !left.is_empty() {
        bail!("still missing after apt-get install: {}", left.join(" "));
    }
    progress.done();
    Ok(())
}
