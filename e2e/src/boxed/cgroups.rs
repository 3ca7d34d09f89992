//! The box's own cgroup root, `/sys/fs/cgroup/*/tcN`, so that two kubelets never share `/kubepods`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const ROOT: &str = "/sys/fs/cgroup";

/// Name of the cgroup of box `n`, without a slash.
pub fn name(n: u8) -> String {
    format!("tc{n}")
}

/// The hierarchies in which Pods get a cgroup: the unified one, or every version 1 controller.
fn hierarchies() -> Vec<PathBuf> {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        return vec![ROOT.into()];
    }
    let Ok(entries) = fs::read_dir(ROOT) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("cgroup.procs").exists() && !path.join("cgroup.controllers").exists())
        .collect()
}

/// Makes the cgroups of box `n`.
///
/// # Errors
/// When a cgroup cannot be made.
pub fn create(n: u8) -> Result<()> {
    for hierarchy in hierarchies() {
        let own = hierarchy.join(name(n));
        fs::create_dir_all(&own).with_context(|| format!("cannot make cgroup {}", own.display()))?;
        if hierarchy.join("cgroup.controllers").exists() {
            let controllers = fs::read_to_string(hierarchy.join("cgroup.controllers"))?;
            let enable: Vec<_> = controllers
                .split_whitespace()
                .map(|controller| format!("+{controller}"))
                .collect();
            // A controller that is already enabled, or cannot be, is not worth a failure: kubelet says what it misses.
            for target in [&hierarchy, &own] {
                let _ = fs::write(target.join("cgroup.subtree_control"), enable.join(" "));
            }
        }
        // A version 1 cpuset starts without CPUs and can hold no process until it has some.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if own.join(file).exists() && !hierarchy.join("cgroup.controllers").exists() {
                fs::write(own.join(file), fs::read(hierarchy.join(file))?)?;
            }
        }
    }
    Ok(())
}

/// Every place where a cgroup of ours may be: runc makes one in the unified hierarchy too when both versions are mounted.
fn places() -> Vec<PathBuf> {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        return vec![ROOT.into()];
    }
    let Ok(entries) = fs::read_dir(ROOT) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn remove_tree(folder: &Path) {
    if let Ok(entries) = fs::read_dir(folder) {
        for entry in entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Whether box `n` has a cgroup.
pub fn exist(n: u8) -> bool {
    places().iter().any(|hierarchy| hierarchy.join(name(n)).exists())
}

/// Removes the cgroups of box `n`, whose processes have ended.
///
/// # Errors
/// When one is still in use after 5 seconds.
pub fn remove(n: u8) -> Result<()> {
    let start = Instant::now();
    while exist(n) {
        for hierarchy in places() {
            remove_tree(&hierarchy.join(name(n)));
        }
        if !exist(n) {
            break;
        }
        if start.elapsed() > Duration::from_secs(5) {
            bail!("cgroup {} is still in use", name(n));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
