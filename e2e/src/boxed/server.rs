//! Answers [`Request`]s on a UNIX socket and reaps every child: the engine of both the supervisor and the box's PID 1.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use super::protocol::{Exit, Reply, Request, Spawn};

/// What is known about the children.
#[derive(Debug, Default)]
struct Known {
    running: HashSet<i32>,
    ended: HashMap<i32, Exit>,
    /// Set when std shall wait for its own children again.
    stopped: bool,
}

/// The children and how they ended.
#[derive(Debug, Default)]
pub struct Children {
    known: Mutex<Known>,
    changed: Condvar,
}

impl Children {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `pid` ended or `limit` passed.
    pub fn wait(&self, pid: i32, limit: Duration) -> Option<Exit> {
        let end = Instant::now() + limit;
        let mut known = self.lock();
        loop {
            if let Some(exit) = known.ended.get(&pid) {
                return Some(*exit);
            }
            let left = end.checked_duration_since(Instant::now())?;
            known = self
                .changed
                .wait_timeout(known, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Starts `command`. The lock keeps the reaper away while the child may still fail to exec, which std waits for itself.
    fn start(&self, command: &mut Command) -> std::io::Result<i32> {
        let mut known = self.lock();
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        // A reused id must not show the end of its predecessor.
        known.ended.remove(&pid);
        known.running.insert(pid);
        Ok(pid)
    }

    /// Reaps children until [`Children::kill_all`]; `on_end` is told about each.
    pub fn reap(&self, on_end: impl Fn(i32, Exit)) {
        loop {
            // Look first, reap under the lock.
            if waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).is_err() {
                // No children at the moment.
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut known = self.lock();
            if known.stopped {
                return;
            }
            let (pid, exit) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), Exit::Signal(signal as i32)),
                _ => continue,
            };
            known.running.remove(&pid);
            known.ended.insert(pid, exit);
            self.changed.notify_all();
            drop(known);
            on_end(pid, exit);
        }
    }

    /// Stops reaping, and kills every started program that still runs, with its process group.
    ///
    /// # Errors
    /// When one survives for 10 seconds.
    pub fn kill_all(&self) -> Result<()> {
        let mut known = self.lock();
        known.stopped = true;
        for pid in &known.running {
            let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        for pid in &known.running {
            let start = Instant::now();
            while matches!(
                waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG)),
                Ok(WaitStatus::StillAlive)
            ) {
                ensure!(
                    start.elapsed() < Duration::from_secs(10),
                    "process {pid} survives SIGKILL"
                );
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

fn append(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Starts one program. `die_with_parent` kills it when the calling thread ends.
fn start(children: &Children, spawn: &Spawn, die_with_parent: bool) -> Result<i32> {
    let (program, args) = spawn.argv.split_first().context("nothing to start: argv is empty")?;
    let netns = match &spawn.netns {
        Some(name) => {
            let path = Path::new("/run/netns").join(name);
            Some(File::open(&path).with_context(|| format!("no network namespace {name}"))?)
        }
        None => None,
    };
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/tmp")
        .envs(spawn.env.iter().cloned())
        .current_dir(spawn.cwd.as_deref().unwrap_or(Path::new("/")))
        .stdout(append(&spawn.stdout)?)
        .stderr(append(&spawn.stderr)?)
        .process_group(0);
    match &spawn.stdin {
        Some(path) => command.stdin(File::open(path).with_context(|| format!("cannot open {}", path.display()))?),
        None => command.stdin(Stdio::null()),
    };
    let user = spawn.user;
    // SAFETY: only system calls between fork and exec, no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            // The supervisor blocks the signals that it waits for, and a mask is inherited: unblocked, a program can be asked to stop.
            nix::sys::signal::SigSet::empty().thread_set_mask()?;
            if die_with_parent {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            }
            if let Some(netns) = &netns {
                setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
            }
            if let Some((uid, gid)) = user {
                nix::unistd::setgroups(&[])?;
                nix::unistd::setgid(gid.into())?;
                nix::unistd::setuid(uid.into())?;
            }
            Ok(())
        });
    }
    children
        .start(&mut command)
        .with_context(|| format!("cannot start {program}"))
}

/// A spawn that waits for the spawning thread.
type Job = (Spawn, Sender<Result<i32>>);

/// Listens on `socket` and starts the threads that answer. Spawns are made by the caller in [`Spawner::run`]:
/// "die with parent" means the parent *thread*, so it has to be one that lives as long as the process.
///
/// # Errors
/// When the socket cannot be bound.
pub fn serve(socket: &Path, children: Arc<Children>, die_with_parent: bool) -> Result<Spawner> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let (jobs, queue) = channel();
    let shared = Arc::clone(&children);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (children, jobs) = (Arc::clone(&shared), jobs.clone());
            std::thread::spawn(move || {
                let _ = converse(&stream, &children, &jobs);
            });
        }
    });
    Ok(Spawner {
        children,
        queue,
        die_with_parent,
    })
}

/// The end that does the spawning.
#[derive(Debug)]
pub struct Spawner {
    children: Arc<Children>,
    queue: Receiver<Job>,
    die_with_parent: bool,
}

impl Spawner {
    /// Starts programs as they are asked for; never returns while the listener lives.
    pub fn run(self) {
        for (spawn, answer) in self.queue {
            let _ = answer.send(start(&self.children, &spawn, self.die_with_parent));
        }
    }
}

fn converse(stream: &UnixStream, children: &Children, jobs: &Sender<Job>) -> Result<()> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => answer(request, children, jobs).unwrap_or_else(|error| Reply::Failed {
                error: format!("{error:#}"),
            }),
            Err(error) => Reply::Failed {
                error: format!("not a request: {error}"),
            },
        };
        let mut text = serde_json::to_string(&reply)?;
        text.push('\n');
        (&*stream).write_all(text.as_bytes())?;
        line.clear();
    }
    Ok(())
}

fn answer(request: Request, children: &Children, jobs: &Sender<Job>) -> Result<Reply> {
    match request {
        Request::Spawn(spawn) => {
            let (sender, receiver) = channel();
            jobs.send((*spawn, sender)).context("the spawning thread has ended")?;
            Ok(Reply::Started {
                pid: receiver.recv().context("the spawning thread has ended")??,
            })
        }
        Request::Signal { pid, signal } => {
            // Only while it is our child: afterwards its id may belong to another.
            let known = children.lock();
            if known.running.contains(&pid) {
                kill(Pid::from_raw(pid), Signal::try_from(signal).context("no such signal")?)
                    .with_context(|| format!("cannot signal {pid}"))?;
            }
            Ok(Reply::Done)
        }
        Request::Wait { pid, milliseconds } => Ok(children
            .wait(pid, Duration::from_millis(milliseconds))
            .map_or(Reply::Running, Reply::Ended)),
    }
}
