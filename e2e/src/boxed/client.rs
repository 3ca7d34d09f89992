//! Asks the supervisor or the box's PID 1 to start programs, and holds on to what was started.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;

use super::files;
use super::protocol::{Exit, Reply, Request, Spawn};

/// A place where programs can be started: inside the box, or on the host.
#[derive(Debug, Clone)]
pub struct Starter {
    socket: PathBuf,
    dir: PathBuf,
}

/// A program that ran to its end.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Standard output without surrounding white space, when the exit code was 0.
    ///
    /// # Errors
    /// Otherwise, with both streams.
    pub fn success(&self) -> Result<&str> {
        if self.exit == Exit::Code(0) {
            return Ok(self.stdout.trim());
        }
        bail!("{}\n{}{}", self.exit, self.stdout, self.stderr)
    }
}

static COUNTER: AtomicU64 = AtomicU64::new(0);

impl Starter {
    /// The inside of the box whose folder is `dir`.
    pub fn inside(dir: &Path) -> Self {
        Self {
            socket: dir.join(files::INIT_SOCKET),
            dir: dir.to_owned(),
        }
    }

    /// The host's namespaces; what is started there ends with the box.
    pub fn host(dir: &Path) -> Self {
        Self {
            socket: dir.join(files::HOST_SOCKET),
            dir: dir.to_owned(),
        }
    }

    /// Asks one question; `patience` is how long the answer may take.
    ///
    /// # Errors
    /// When the box is gone, does not answer, or refuses.
    pub fn ask(&self, request: &Request, patience: Duration) -> Result<Reply> {
        let gone = || format!("the box does not answer at {}; has it ended?", self.socket.display());
        let mut stream = UnixStream::connect(&self.socket).with_context(gone)?;
        stream.set_read_timeout(Some(patience))?;
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        stream.write_all(text.as_bytes()).with_context(gone)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).with_context(gone)?;
        match serde_json::from_str(&line).with_context(gone)? {
            Reply::Failed { error } => Err(anyhow!(error)),
            reply => Ok(reply),
        }
    }

    /// Log file of the program called `name`.
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.dir.join(files::LOGS).join(format!("{name}.log"))
    }

    /// Starts a program whose output goes to `logs/NAME.log`; see [`Starter::spawn_with`] for more.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn<A: AsRef<str>>(&self, name: &str, argv: &[A], env: &[(&str, &str)]) -> Result<Process> {
        self.spawn_with(Spawn {
            name: name.to_owned(),
            argv: argv.iter().map(|arg| arg.as_ref().to_owned()).collect(),
            env: env
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..Spawn::default()
        })
    }

    /// Starts a program. Empty `stdout` and `stderr` stand for `logs/NAME.log`.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn_with(&self, mut spawn: Spawn) -> Result<Process> {
        let log = self.log_path(&spawn.name);
        for stream in [&mut spawn.stdout, &mut spawn.stderr] {
            if stream.as_os_str().is_empty() {
                stream.clone_from(&log);
            }
        }
        let name = spawn.name.clone();
        match self
            .ask(&Request::Spawn(Box::new(spawn)), Duration::from_secs(20))
            .with_context(|| format!("starting {name}"))?
        {
            Reply::Started { pid } => Ok(Process {
                starter: self.clone(),
                name,
                pid,
                log,
                kill_on_drop: true,
            }),
            other => bail!("starting {name}: unexpected answer {other:?}"),
        }
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// When it cannot be started or does not end within `deadline` (it is killed then). A non-zero exit is no error here.
    pub fn run_with(&self, mut spawn: Spawn, deadline: Duration) -> Result<Finished> {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let stem = self.dir.join("run").join(format!("{}-{number}", std::process::id()));
        let (out, err) = (stem.with_extension("out"), stem.with_extension("err"));
        spawn.stdout.clone_from(&out);
        spawn.stderr.clone_from(&err);
        let line = spawn.argv.join(" ");
        let process = self.spawn_with(spawn)?;
        let exit = process.wait(deadline);
        let read = |path: &Path| {
            std::fs::read(path)
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .unwrap_or_default()
        };
        let (stdout, stderr) = (read(&out), read(&err));
        let _ = std::fs::remove_file(&out);
        let _ = std::fs::remove_file(&err);
        match exit {
            Ok(exit) => Ok(Finished { exit, stdout, stderr }),
            Err(error) => Err(error.context(format!("{line}; it printed: {stdout}{stderr}"))),
        }
    }

    /// Runs a program to its end, 60 seconds at most.
    ///
    /// # Errors
    /// See [`Starter::run_with`].
    pub fn run<A: AsRef<str>>(&self, argv: &[A]) -> Result<Finished> {
        self.run_in(None, argv)
    }

    /// Runs a program in a network namespace of the box, 60 seconds at most.
    ///
    /// # Errors
    /// See [`Starter::run_with`].
    pub fn run_in<A: AsRef<str>>(&self, netns: Option<&str>, argv: &[A]) -> Result<Finished> {
        let argv: Vec<String> = argv.iter().map(|arg| arg.as_ref().to_owned()).collect();
        let name = argv.first().cloned().unwrap_or_default();
        self.run_with(
            Spawn {
                name,
                argv,
                netns: netns.map(str::to_owned),
                ..Spawn::default()
            },
            Duration::from_secs(60),
        )
    }

    /// Runs a program that must succeed, and returns its standard output.
    ///
    /// # Errors
    /// Also when it exits with another code than 0.
    pub fn check<A: AsRef<str>>(&self, netns: Option<&str>, argv: &[A]) -> Result<String> {
        let line = argv.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
        let done = self.run_in(netns, argv)?;
        done.success().map(str::to_owned).with_context(|| line)
    }
}

/// A program that was started in the box or on the host. Killed when dropped, unless [`Process::detach`]ed.
#[derive(Debug)]
pub struct Process {
    starter: Starter,
    name: String,
    pid: i32,
    log: PathBuf,
    kill_on_drop: bool,
}

impl Process {
    /// A handle to a process that an earlier handle left running.
    pub(crate) fn attach(starter: Starter, name: &str, pid: i32) -> Self {
        let log = starter.log_path(name);
        Self {
            starter,
            name: name.to_owned(),
            pid,
            log,
            kill_on_drop: false,
        }
    }

    /// Name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id, in the PID namespace it runs in.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its log file.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// All it has written so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The last `lines` lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<_> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Lets it run on when this handle is dropped; it ends with the box.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.kill_on_drop = false;
        self
    }

    fn ended_within(&self, limit: Duration) -> Result<Option<Exit>> {
        let milliseconds = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        match self.starter.ask(
            &Request::Wait {
                pid: self.pid,
                milliseconds,
            },
            limit + Duration::from_secs(10),
        )? {
            Reply::Ended(exit) => Ok(Some(exit)),
            Reply::Running => Ok(None),
            other => bail!("waiting for {}: unexpected answer {other:?}", self.name),
        }
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    /// When the box is gone.
    pub fn try_wait(&self) -> Result<Option<Exit>> {
        self.ended_within(Duration::ZERO)
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        matches!(self.try_wait(), Ok(None))
    }

    /// Waits for its end; kills it when `deadline` passes.
    ///
    /// # Errors
    /// When it did not end in time, or the box is gone.
    pub fn wait(&self, deadline: Duration) -> Result<Exit> {
        if let Some(exit) = self.ended_within(deadline)? {
            return Ok(exit);
        }
        self.kill()?;
        bail!("{} did not end within {deadline:?}", self.name)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the box is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.starter
            .ask(
                &Request::Signal {
                    pid: self.pid,
                    signal: signal as i32,
                },
                Duration::from_secs(10),
            )
            .map(drop)
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not vanish within 10 seconds, or the box is gone.
    pub fn kill(&self) -> Result<Exit> {
        self.signal(Signal::SIGKILL)?;
        self.ended_within(Duration::from_secs(10))?
            .with_context(|| format!("{} survives SIGKILL", self.name))
    }

    /// SIGTERM; SIGKILL when it has not ended after `grace`. Returns how it ended and how long that took.
    ///
    /// # Errors
    /// When it does not vanish, or the box is gone.
    pub fn terminate(&self, grace: Duration) -> Result<(Exit, Duration)> {
        let start = Instant::now();
        self.signal(Signal::SIGTERM)?;
        let exit = match self.ended_within(grace)? {
            Some(exit) => exit,
            None => self.kill()?,
        };
        Ok((exit, start.elapsed()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.kill_on_drop {
            let _ = self.kill();
        }
    }
}
