//! The number N of a box: which are taken, and what is known about each.
//!
//! A box holds a lock on `N.lock` as long as it lives, so a number whose lock is free but which has left something behind is a dead box.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::{leftovers, sysctls};
use crate::paths;

/// What a box tells the world about itself: the contents of `N.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxState {
    /// Number; the box's node address is 172.31.N.2.
    pub n: u8,
    /// Name given by its maker.
    pub name: String,
    /// Folder with everything of the box.
    pub dir: PathBuf,
    /// Process that owns the box, in the host's numbering. SIGTERM takes the box down.
    pub supervisor: i32,
    /// PID 1 of the box, in the host's numbering.
    pub init: i32,
}

impl BoxState {
    /// The host's address on the link to the box.
    pub fn host_address(&self) -> String {
        format!("172.31.{}.1", self.n)
    }

    /// The box's address: of the node, the API server, Headscale.
    pub fn node_address(&self) -> String {
        format!("172.31.{}.2", self.n)
    }

    /// Name of the host's end of the link.
    pub fn link(&self) -> String {
        link(self.n)
    }
}

/// Name of the host's end of the link to box `n`.
pub fn link(n: u8) -> String {
    format!("tc{n}")
}

/// A number that is ours until this is dropped.
#[derive(Debug)]
pub struct Slot {
    /// The number.
    pub n: u8,
    _lock: Flock<File>,
}

const NUMBERS: std::ops::RangeInclusive<u8> = 1..=250;

fn lock_path(n: u8) -> PathBuf {
    paths::boxes().join(format!("{n}.lock"))
}

/// Where the state of box `n` is.
pub fn state_path(n: u8) -> PathBuf {
    paths::boxes().join(format!("{n}.json"))
}

/// Where the machine's settings are kept while boxes live.
pub fn sysctl_path() -> PathBuf {
    paths::boxes().join("sysctls.json")
}

fn prepare_folder() -> Result<PathBuf> {
    let folder = paths::boxes();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Serialises taking, sweeping and giving back numbers.
///
/// # Errors
/// When the lock file cannot be opened.
pub fn global_lock() -> Result<Flock<File>> {
    let file = File::create(prepare_folder()?.join("lock"))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .context("cannot lock the folder of boxes")
}

fn try_take(n: u8) -> Result<Option<Slot>> {
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(lock_path(n))?;
    Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .ok()
        .map(|lock| Slot { n, _lock: lock }))
}

/// Numbers that have a lock file, a state file, a link or a cgroup.
fn used_numbers() -> Vec<u8> {
    NUMBERS
        .filter(|n| lock_path(*n).exists() || state_path(*n).exists() || leftovers::exist(*n))
        .collect()
}

/// Removes what dead boxes left: links, cgroups, folders, state. Call with the global lock held.
///
/// # Errors
/// When something of a dead box cannot be removed.
pub fn sweep() -> Result<()> {
    let mut alive = false;
    for n in used_numbers() {
        let Some(slot) = try_take(n)? else {
            alive = true;
            continue;
        };
        leftovers::remove(n, read_state(n).as_ref())?;
        let _ = fs::remove_file(state_path(n));
        let _ = fs::remove_file(lock_path(n));
        drop(slot);
    }
    if !alive {
        sysctls::restore(&sysctl_path())?;
    }
    Ok(())
}

/// Takes the lowest free number. Call with the global lock held, after [`sweep`].
///
/// # Errors
/// When all are taken.
pub fn take() -> Result<Slot> {
    let links = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    for n in NUMBERS {
        // A network of the machine itself that happens to be 172.31.N.0.
        if links.contains(&format!("172.31.{n}.")) {
            continue;
        }
        if let Some(slot) = try_take(n)? {
            return Ok(slot);
        }
    }
    bail!(
        "no free box number; `ls {}` shows what is taken",
        paths::boxes().display()
    )
}

/// Gives a number back: forgets its state, and restores the machine's settings when it was the last box.
///
/// # Errors
/// When the settings cannot be restored.
pub fn give_back(slot: Slot) -> Result<()> {
    let _global = global_lock()?;
    let n = slot.n;
    let _ = fs::remove_file(state_path(n));
    let _ = fs::remove_file(lock_path(n));
    drop(slot);
    if NUMBERS
        .filter(|other| lock_path(*other).exists())
        .all(|other| !is_alive(other))
    {
        sysctls::restore(&sysctl_path())?;
    }
    Ok(())
}

/// Whether a living box holds number `n`.
pub fn is_alive(n: u8) -> bool {
    let Ok(file) = File::open(lock_path(n)) else {
        return false;
    };
    Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err()
}

/// The state of box `n`, when it wrote one.
pub fn read_state(n: u8) -> Option<BoxState> {
    serde_json::from_str(&fs::read_to_string(state_path(n)).ok()?).ok()
}

/// Writes the state of a box, whole or not at all.
///
/// # Errors
/// When the file cannot be written.
pub fn write_state(state: &BoxState) -> Result<()> {
    write_whole(&state_path(state.n), &serde_json::to_string_pretty(state)?)
}

/// Writes a file by renaming a finished one over it.
///
/// # Errors
/// When the folder is not writable.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    let unfinished = path.with_extension("tmp");
    fs::write(&unfinished, text).with_context(|| format!("cannot write {}", unfinished.display()))?;
    fs::rename(&unfinished, path).with_context(|| format!("cannot write {}", path.display()))
}

/// All living boxes.
pub fn living() -> Vec<BoxState> {
    NUMBERS
        .filter(|n| state_path(*n).exists() && is_alive(*n))
        .filter_map(read_state)
        .collect()
}
