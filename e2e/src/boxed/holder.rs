//! The holder: takes a new network and mount namespace, waits until the supervisor has given it its link, and becomes the parent of the box's PID 1.

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};

/// Runs until the box's PID 1 ends. Talks to the supervisor over its standard streams: writes `ready`, reads `go`, writes the init's pid.
///
/// # Errors
/// When the namespaces cannot be made, or PID 1 ends.
pub fn run(dir: &Path, n: u8) -> Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The supervisor's mask is none of the box's.
    SigSet::empty().thread_set_mask()?;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context("cannot make a network and mount namespace")?;
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .context("cannot make the mounts private")?;
    println!("ready");
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if line.trim() != "go" {
        bail!("the supervisor went away");
    }
    // From here on children are born into the new PID namespace; the first one is its PID 1.
    unshare(CloneFlags::CLONE_NEWPID).context("cannot make a PID namespace")?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("tailnet-box")
        .args(["init", "--dir"])
        .arg(dir)
        .args(["--n", &n.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            Ok(())
        });
    }
    let mut init = command.spawn().context("cannot start PID 1 of the box")?;
    println!("{}", init.id());
    std::io::stdout().flush()?;
    let status = init.wait()?;
    bail!("PID 1 of the box ended: {status}")
}
