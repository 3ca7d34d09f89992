//! kubelet sets some kernel settings of the whole machine; they are saved before the first box and restored after the last.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const NAMES: [&str; 5] = [
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The current values of the settings that kubelet changes.
pub fn read() -> BTreeMap<String, String> {
    NAMES
        .iter()
        .filter_map(|name| {
            let value = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            Some(((*name).to_owned(), value.trim().to_owned()))
        })
        .collect()
}

/// Saves the current values to `file`, unless there are saved ones.
///
/// # Errors
/// When the file cannot be written.
pub fn save(file: &Path) -> Result<()> {
    if file.exists() {
        return Ok(());
    }
    fs::write(file, serde_json::to_string_pretty(&read())?).with_context(|| format!("cannot write {}", file.display()))
}

/// Restores the values of `file` and removes it.
///
/// # Errors
/// When the file is unreadable or a value is refused.
pub fn restore(file: &Path) -> Result<()> {
    let Ok(text) = fs::read_to_string(file) else {
        return Ok(());
    };
    let saved: BTreeMap<String, String> =
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", file.display()))?;
    let now = read();
    for (name, value) in saved {
        if NAMES.contains(&name.as_str()) && now.get(&name) != Some(&value) {
            fs::write(Path::new("/proc/sys").join(&name), &value).with_context(|| format!("cannot restore {name}"))?;
        }
    }
    fs::remove_file(file)?;
    Ok(())
}
