//! How much memory the processes of a box use.

use std::fs;

use anyhow::{Context, Result};

use super::Cluster;

/// Memory of all processes of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Program.
    pub program: String,
    /// How many processes.
    pub processes: usize,
    /// Resident set, in KiB; shared pages are counted in every process.
    pub resident: u64,
    /// Proportional share, in KiB; shared pages are divided among those that share them.
    pub proportional: u64,
}

fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok())
        .unwrap_or(0)
}

impl Cluster {
    /// Memory of every program in the box, largest first. Pods are included.
    ///
    /// # Errors
    /// When the box has ended.
    pub fn memory(&self) -> Result<Vec<Usage>> {
        fs::metadata(format!("/proc/{}", self.state().init)).context("the box has ended")?;
        let mut programs: Vec<Usage> = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let path = entry.path();
            // Shims and what a Pod runs are children of the box's PID 1 in the end.
            if !belongs_to(&path, self.state().init) {
                continue;
            }
            let Ok(rollup) = fs::read_to_string(path.join("smaps_rollup")) else {
                continue;
            };
            let program = fs::read_to_string(path.join("comm"))
                .unwrap_or_default()
                .trim()
                .to_owned();
            let (resident, proportional) = (field(&rollup, "Rss:"), field(&rollup, "Pss:"));
            match programs.iter_mut().find(|usage| usage.program == program) {
                Some(usage) => {
                    usage.processes += 1;
                    usage.resident += resident;
                    usage.proportional += proportional;
                }
                None => programs.push(Usage {
                    program,
                    processes: 1,
                    resident,
                    proportional,
                }),
            }
        }
        programs.sort_by_key(|usage| std::cmp::Reverse(usage.resident));
        Ok(programs)
    }
}

/// Whether `init` is the process itself or one of its ancestors.
fn belongs_to(process: &std::path::Path, init: i32) -> bool {
    let mut pid: i32 = match process.file_name().and_then(|name| name.to_str()?.parse().ok()) {
        Some(pid) => pid,
        None => return false,
    };
    for _ in 0..64 {
        if pid == init {
            return true;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        pid = match status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
        {
            Some(parent) if parent > 0 => parent,
            _ => return false,
        };
    }
    false
}
