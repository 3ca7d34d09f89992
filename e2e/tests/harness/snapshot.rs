//! Everything of the machine that a box could leave a trace in.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use tailnet_e2e::Cluster;
use tailnet_e2e::boxed::sysctls;

fn names(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return vec![format!("{folder} does not exist")];
    };
    entries
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .collect()
}

fn printed(program: &str, args: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Programs that only a cluster runs, with the box they belong to by their arguments.
fn processes() -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains("tailnet-e2e/") || line.starts_with("/testbox") || line.starts_with("/pause") {
            found.push(format!("process {} {line}", entry.file_name().display()));
        }
    }
    found
}

/// What is there now. Includes what belongs to boxes of others.
#[derive(Debug)]
pub struct Snapshot {
    traces: BTreeSet<String>,
    /// Numbers of the boxes that run now.
    boxes: BTreeSet<u8>,
}

impl Snapshot {
    /// Looks at the machine.
    pub fn take() -> Self {
        let mut boxes: BTreeSet<u8> = Cluster::list().iter().map(|state| state.n).collect();
        let mut all: Vec<String> = Vec::new();
        let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        all.extend(
            printed("ip", &["-brief", "address"])
                .iter()
                .map(|line| format!("link {}", squeeze(line))),
        );
        all.extend(
            printed("ip", &["route", "show", "table", "all"])
                .iter()
                .map(|line| format!("route {} ", squeeze(line))),
        );
        all.extend(
            printed("ip", &["netns", "list"])
                .iter()
                .map(|line| format!("netns {line}")),
        );
        all.extend(
            printed("nft", &["list", "ruleset"])
                .iter()
                .map(|line| format!("nft {line}")),
        );
        // Without the numbers, which change with every mount anywhere.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        all.extend(mounts.lines().map(|line| {
            format!(
                "mount {}",
                line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ")
            )
        }));
        for hierarchy in names("/sys/fs/cgroup") {
            all.extend(
                names(&hierarchy)
                    .into_iter()
                    .filter(|path| path.contains("/tc") && Path::new(path).is_dir()),
            );
        }
        for folder in [
            "/run/containerd",
            "/run/netns",
            "/opt",
            "/var/lib/kubelet",
            "/var/lib/cni",
            "/var/log/pods",
            "/var/log/containers",
            "/tmp/tailnet-e2e",
        ] {
            all.extend(names(folder));
        }
        all.extend(processes());
        all.extend(
            sysctls::read()
                .into_iter()
                .map(|(name, value)| format!("sysctl {name} = {value}")),
        );
        // Again: one may have been made meanwhile.
        boxes.extend(Cluster::list().iter().map(|state| state.n));
        Self {
            traces: all.into_iter().collect(),
            boxes,
        }
    }

    /// What `self` has that `before` has not, without what belongs to boxes of others.
    pub fn added_since(&self, before: &Self, own: Option<u8>) -> Vec<String> {
        let foreign: Vec<u8> = self
            .boxes
            .union(&before.boxes)
            .copied()
            .filter(|n| Some(*n) != own)
            .collect();
        let of_a_box = |trace: &str, n: u8| {
            [
                format!("tc{n} "),
                format!("tc{n}@"),
                format!("172.31.{n}."),
                format!("tailnet-e2e/{n}/"),
                format!("tailnet-e2e/{n} "),
                format!("tailnet-e2e/{n}."),
            ]
            .iter()
            .any(|mark| trace.contains(mark.as_str()))
                || trace.ends_with(&format!("/tc{n}"))
                || trace.ends_with(&format!("tailnet-e2e/{n}"))
        };
        self.traces
            .difference(&before.traces)
            .filter(|trace| !foreign.iter().any(|n| of_a_box(trace, *n)))
            // The machine's settings are restored after the last box, and a process may be on its way to another box.
            .filter(|trace| {
                foreign.is_empty()
                    || !["sysctl", "supervise --name", "/pause", "/testbox"]
                        .iter()
                        .any(|mark| trace.contains(mark))
            })
            // The folder of boxes and its lock are made by the first box ever.
            .filter(|trace| !trace.ends_with("/tailnet-e2e/lock") && !trace.ends_with("does not exist"))
            .cloned()
            .collect()
    }
}
