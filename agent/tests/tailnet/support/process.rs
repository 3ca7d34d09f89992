use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::wait_for;

/// A process that is killed with the test; its log is in a file, and is printed when the test fails.
pub struct Kept {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Kept {
    pub fn spawn(name: &str, dir: &Path, mut command: Command) -> Kept {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        command.stderr(Stdio::from(file));
        // SAFETY: prctl alone, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // Dies with the thread that started it, so that a killed test leaves nothing.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("starting {name} ({command:?}): {e}"));
        Kept {
            name: name.to_owned(),
            child,
            log,
        }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The log's lines as JSON; other lines are left out.
    pub fn log_json(&self) -> Vec<serde_json::Value> {
        self.log()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    pub async fn wait_for_line(&mut self, start: &str) {
        let stdout = self.child.stdout.take().expect("a piped standard output");
        let stdout = tokio::process::ChildStdout::from_std(stdout).unwrap();
        let mut lines = BufReader::new(stdout).lines();
        let found = tokio::time::timeout(Duration::from_secs(60), async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.starts_with(start) {
                    return true;
                }
            }
            false
        });
        assert!(
            found.await.unwrap_or(false),
            "{} never said {start:?}:\n{}",
            self.name,
            self.log()
        );
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub async fn exit(&mut self, limit: Duration) -> ExitStatus {
        let name = self.name.clone();
        wait_for(&format!("{name} ends"), limit, async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            // A Go process that panicked ends with the stacks of all goroutines; its reason stands before them.
            let reason = lines
                .iter()
                .position(|l| l.starts_with("panic: ") || l.starts_with("fatal error: "));
            let start = reason.map_or(lines.len().saturating_sub(60), |at| at.saturating_sub(20));
            eprintln!("--- {} ---", self.name);
            lines.iter().skip(start).take(80).for_each(|line| eprintln!("{line}"));
        }
    }
}

pub fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}
