//! The supervisor: makes a box, holds it, and takes it down when told to or when its owner ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{SigSet, Signal};

use super::server::{self, Children};
use super::slot::{self, BoxState};
use super::{cgroups, files, init, leftovers, sysctls};
use crate::{command, paths};

/// How a box is wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Name for people.
    pub name: String,
    /// Folder for everything; `N` below [`paths::boxes`] when absent.
    pub dir: Option<PathBuf>,
    /// Lives on when its maker ends.
    pub detached: bool,
}

/// Why the box ends.
enum End {
    Asked,
    Died,
}

fn make_folder(dir: &Path) -> Result<()> {
    ensure!(
        dir.as_os_str().len() < 60,
        "{}: the folder's path is too long for UNIX sockets below it (60 bytes at most)",
        dir.display()
    );
    if dir.exists() {
        ensure!(
            fs::read_dir(dir)?.next().is_none(),
            "{} is not empty: choose a new folder",
            dir.display()
        );
    }
    for folder in [files::LOGS, files::OVERLAY, "run"] {
        fs::create_dir_all(dir.join(folder)).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    Ok(())
}

/// The holder and the host's number of the box's PID 1.
struct Holder {
    child: Child,
    init: i32,
}

fn start_holder(dir: &Path, n: u8) -> Result<Holder> {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join(files::LOGS).join("box.log"))?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("tailnet-box")
        .args(["hold", "--dir"])
        .arg(dir)
        .args(["--n", &n.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the box's holder")?;
    let said = || {
        format!(
            "the box did not start: {}",
            fs::read_to_string(dir.join(files::LOGS).join("box.log"))
                .unwrap_or_default()
                .trim()
        )
    };
    let mut lines = BufReader::new(child.stdout.take().context("no pipe from the holder")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    ensure!(line.trim() == "ready", said());
    let (link, pid) = (slot::link(n), child.id().to_string());
    command::run(
        "ip",
        &[
            "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid,
        ],
    )?;
    command::run("ip", &["addr", "add", &format!("172.31.{n}.1/24"), "dev", &link])?;
    command::run("ip", &["link", "set", &link, "up"])?;
    child
        .stdin
        .take()
        .context("no pipe to the holder")?
        .write_all(b"go\n")?;
    line.clear();
    lines.read_line(&mut line)?;
    let init = line.trim().parse().ok().with_context(said)?;
    let start = Instant::now();
    let socket = dir.join(files::INIT_SOCKET);
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        ensure!(
            child.try_wait()?.is_none() && start.elapsed() < Duration::from_secs(20),
            said()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(Holder { child, init })
}

/// Ends the box when its owner closes the pipe, which the kernel does for an owner that was killed.
fn watch_owner(end: Sender<End>) {
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|count| count > 0) {}
        let _ = end.send(End::Asked);
    });
}

fn watch_signals(signals: SigSet, end: Sender<End>) {
    std::thread::spawn(move || {
        if signals.wait().is_ok() {
            let _ = end.send(End::Asked);
        }
    });
}

/// Makes the box, prints its [`BoxState`] as one JSON line, and holds it until its end.
///
/// # Errors
/// When the box cannot be made or something of it cannot be removed.
pub fn run(wanted: &Wanted) -> Result<()> {
    // Before the first thread, so that all inherit it.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let _ = nix::unistd::setsid();

    let global = slot::global_lock()?;
    slot::sweep().context("cleaning up after a dead box")?;
    let slot = slot::take()?;
    sysctls::save(&slot::sysctl_path())?;
    let n = slot.n;
    let dir = wanted.dir.clone().unwrap_or_else(|| paths::boxes().join(n.to_string()));
    make_folder(&dir)?;
    let mut state = BoxState {
        n,
        name: wanted.name.clone(),
        dir: dir.clone(),
        supervisor: std::process::id().cast_signed(),
        init: 0,
    };
    slot::write_state(&state)?;
    drop(global);

    let built = (|| {
        let node = init::node_address(n);
        init::write_names(&dir, &format!("127.0.0.1 localhost\n{node} node1\n"), "127.0.0.1")?;
        cgroups::create(n)?;
        start_holder(&dir, n)
    })();
    let holder = match built {
        Ok(holder) => holder,
        Err(error) => {
            let _ = leftovers::remove(n, Some(&state));
            let _ = slot::give_back(slot);
            return Err(error);
        }
    };
    state.init = holder.init;
    slot::write_state(&state)?;

    let (end, ended) = channel();
    let children = Arc::new(Children::default());
    let (reaped, died, holder_pid) = (Arc::clone(&children), end.clone(), holder.child.id().cast_signed());
    std::thread::spawn(move || {
        reaped.reap(|pid, _| {
            if pid == holder_pid {
                let _ = died.send(End::Died);
            }
        })
    });
    // Programs on the host die with this thread, which lives as long as the process.
    let spawner = server::serve(&dir.join(files::HOST_SOCKET), Arc::clone(&children), true)?;
    std::thread::spawn(|| spawner.run());
    watch_signals(signals, end.clone());
    if !wanted.detached {
        watch_owner(end.clone());
    }
    println!("{}", serde_json::to_string(&state)?);
    std::io::stdout().flush()?;
    let why = ended.recv().unwrap_or(End::Asked);
    if matches!(why, End::Died) {
        // Not eprintln: the reader of the pipe may be gone, and a panic here would leave everything behind.
        let _ = writeln!(
            std::io::stderr(),
            "the box {} ended by itself; see {}",
            state.name,
            dir.join(files::LOGS).display()
        );
    }
    // Inside first: when PID 1 dies the kernel kills everything in the box. The holder only waits for it.
    leftovers::kill_init(state.init)?;
    children.kill_all()?;
    leftovers::remove(n, Some(&state))?;
    slot::give_back(slot)
}
