//! Logs of failed tests: copied out of the box before it goes, into a folder named after the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use anyhow::{Context, Result};

use crate::boxed::files;
use crate::cluster::audit;
use crate::paths;

/// Copies the logs in `dir` to `target/e2e-logs/LABEL`, replacing an older copy, and returns that folder.
///
/// # Errors
/// When they cannot be copied.
pub fn keep(dir: &Path, label: &str) -> Result<PathBuf> {
    let label: String = label
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() || "-_.".contains(letter) {
                letter
            } else {
                '_'
            }
        })
        .collect();
    let kept = paths::kept_logs().join(label);
    if kept.exists() {
        fs::remove_dir_all(&kept)?;
    }
    fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    for entry in fs::read_dir(dir.join(files::LOGS))?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            fs::copy(entry.path(), kept.join(entry.file_name()))?;
        }
    }
    let audit = dir.join(audit::FILE);
    if audit.exists() {
        fs::copy(audit, kept.join(audit::FILE))?;
    }
    eprintln!("logs are kept in {}", kept.display());
    Ok(kept)
}

/// The boxes whose logs a panic keeps.
static WATCHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// From now on a panic on any thread keeps the logs in `dir`, named after the program and the thread: under libtest a thread is named after its test.
pub fn keep_on_panic(dir: &Path) {
    static ONCE: Once = Once::new();
    WATCHED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(dir.to_owned());
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            previous(info);
            let thread = std::thread::current();
            let label = format!("{}--{}", paths::program_name(), thread.name().unwrap_or("unnamed"));
            let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for (index, dir) in watched.iter().enumerate() {
                let _ = keep(
                    dir,
                    &if index == 0 {
                        label.clone()
                    } else {
                        format!("{label}-{}", index + 1)
                    },
                );
            }
        }));
    });
}
