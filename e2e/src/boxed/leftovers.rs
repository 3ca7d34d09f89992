//! Removes what is left of a box in the host's namespaces once its processes are dead: the link, the cgroups, the folder.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::slot::{BoxState, link};
use super::{cgroups, files};
use crate::command;

fn link_exists(n: u8) -> bool {
    Path::new("/sys/class/net").join(link(n)).exists()
}

/// Whether box `n` left a link or a cgroup.
pub fn exist(n: u8) -> bool {
    link_exists(n) || cgroups::exist(n)
}

/// Whether `pid` is one of our programs. A process id out of a file may long belong to somebody else.
fn is_ours(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "tailnet-box")
}

/// Kills the box's PID 1 and with it everything inside, when it still runs.
///
/// # Errors
/// When it does not end within 15 seconds.
pub fn kill_init(pid: i32) -> Result<()> {
    if pid <= 1 || !is_ours(pid) {
        return Ok(());
    }
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    let start = Instant::now();
    while is_ours(pid) && !is_zombie(pid) {
        if start.elapsed() > Duration::from_secs(15) {
            bail!("the box's PID 1 ({pid}) survives SIGKILL");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')))
}

/// Removes everything of box `n`. The processes of the box are dead or are killed here.
///
/// # Errors
/// When something cannot be removed.
pub fn remove(n: u8, state: Option<&BoxState>) -> Result<()> {
    if let Some(state) = state {
        kill_init(state.init)?;
    }
    if link_exists(n) {
        // Without this the link stays for a minute and a half, as long as orphaned TCP connections keep the dead network namespace.
        // It may go by itself between the look and the command.
        let deleted = command::run("ip", &["link", "del", &link(n)]);
        if link_exists(n) {
            deleted?;
        }
    }
    cgroups::remove(n)?;
    if let Some(state) = state {
        remove_folder(&state.dir)?;
    }
    Ok(())
}

/// Removes a box's folder without ever entering another file system.
///
/// # Errors
/// When the folder is not one of ours, or cannot be removed.
pub fn remove_folder(folder: &Path) -> Result<()> {
    let Ok(meta) = fs::symlink_metadata(folder) else {
        return Ok(());
    };
    ensure!(meta.is_dir(), "{} is not a folder", folder.display());
    ensure!(
        folder.join(files::LOGS).is_dir() || fs::read_dir(folder)?.next().is_none(),
        "{} does not look like a box's folder: it is not removed",
        folder.display()
    );
    remove_tree(folder, meta.dev()).with_context(|| format!("cannot remove {}", folder.display()))
}

fn remove_tree(folder: &Path, device: u64) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if !meta.is_dir() {
            fs::remove_file(entry.path())?;
        } else if meta.dev() == device {
            remove_tree(&entry.path(), device)?;
        } else {
            bail!("{} is a mount", entry.path().display());
        }
    }
    fs::remove_dir(folder)?;
    Ok(())
}
