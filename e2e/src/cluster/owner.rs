//! The process that made a cluster, as seen from the box: a pipe whose end means the end of the box.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Options;
use crate::binaries;
use crate::boxed::slot::{self, BoxState};

/// Longest time a box may take to go.
const DOWN: Duration = Duration::from_secs(40);

/// A box that we made and that ends with us.
#[derive(Debug)]
pub struct Owner {
    supervisor: Child,
    pipe: Option<ChildStdin>,
}

/// Makes a box. The owner is absent when the box is to live on.
///
/// # Errors
/// When the box cannot be made, with the supervisor's reason.
pub fn make_box(options: &Options) -> Result<(BoxState, Option<Owner>)> {
    let mut command = Command::new(binaries::tailnet_box()?);
    command.args(["supervise", "--name", &options.name]);
    if let Some(dir) = &options.dir {
        command.arg("--dir").arg(dir);
    }
    if options.detached {
        command.arg("--detached").stdin(Stdio::null());
    } else {
        command.stdin(Stdio::piped());
    }
    // Standard error is a pipe only until the box stands: afterwards nobody reads it, and the supervisor has little to say.
    let mut supervisor = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start tailnet-box")?;
    let pipe = supervisor.stdin.take();
    let stdout = supervisor.stdout.take().context("no pipe from tailnet-box")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let Ok(state) = serde_json::from_str::<BoxState>(&line) else {
        let mut why = String::new();
        if let Some(mut stderr) = supervisor.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut stderr, &mut why);
        }
        let _ = supervisor.wait();
        return Err(anyhow!(why.trim().to_owned()).context("the box could not be made"));
    };
    // The detached one is reaped by the machine's init once we are gone.
    Ok((state, (!options.detached).then_some(Owner { supervisor, pipe })))
}

impl Owner {
    /// Ends the box and waits until nothing of it is left.
    ///
    /// # Errors
    /// When something could not be removed, with the supervisor's reason.
    pub fn end(&mut self) -> Result<()> {
        drop(self.pipe.take());
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.supervisor.try_wait()? {
                break status;
            }
            ensure!(
                start.elapsed() < DOWN,
                "the box's supervisor ({}) did not end within {DOWN:?}",
                self.supervisor.id()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        if !status.success() {
            let mut why = String::new();
            if let Some(mut stderr) = self.supervisor.stderr.take() {
                let _ = std::io::Read::read_to_string(&mut stderr, &mut why);
            }
            bail!("the box did not go cleanly: {}", why.trim());
        }
        Ok(())
    }
}

/// Ends a box that somebody else made and left running.
///
/// # Errors
/// When it does not go within 40 seconds.
pub fn end_foreign(state: &BoxState) -> Result<()> {
    let _ = kill(Pid::from_raw(state.supervisor), Signal::SIGTERM);
    let start = Instant::now();
    while slot::is_alive(state.n) {
        ensure!(
            start.elapsed() < DOWN,
            "box {} ({}) did not go within {DOWN:?}; its supervisor is {}",
            state.n,
            state.name,
            state.supervisor
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // A supervisor that was killed instead of asked leaves everything for whoever comes next.
    let _global = slot::global_lock()?;
    slot::sweep()
}
