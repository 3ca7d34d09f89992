//! Runs a program to its end with a deadline and an error that says what it printed.

use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What a finished program left.
#[derive(Debug, Clone)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output, lossily decoded.
    pub stdout: String,
    /// Standard error, lossily decoded.
    pub stderr: String,
}

impl Output {
    /// Whether the exit code was 0.
    pub fn ok(&self) -> bool {
        self.status.success()
    }

    /// Standard output without surrounding white space; an error with both streams when the program failed.
    ///
    /// # Errors
    /// When the exit code is not 0.
    pub fn success(&self) -> Result<&str> {
        if self.ok() {
            return Ok(self.stdout.trim());
        }
        bail!("{}\n{}{}", self.status, self.stdout, self.stderr)
    }

    /// Standard error of a program that had to fail.
    ///
    /// # Errors
    /// When it succeeded.
    pub fn failure(&self) -> Result<&str> {
        if self.ok() {
            bail!("succeeded although it had to fail; it printed:\n{}", self.stdout);
        }
        Ok(self.stderr.trim())
    }
}

fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs `command` with `input` on its standard input; kills it after `deadline`.
///
/// # Errors
/// When it cannot be started or does not end in time. A non-zero exit is no error here.
pub fn output(command: &mut Command, input: &str, deadline: Duration) -> Result<Output> {
    let line = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {line}"))?;
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_owned();
        std::thread::spawn(move || {
            let _ = stdin.write_all(input.as_bytes());
        });
    }
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let printed = stderr.and_then(|reader| reader.join().ok()).unwrap_or_default();
            bail!("{line} did not end within {deadline:?}; it printed: {printed}");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let text = |reader: Option<std::thread::JoinHandle<String>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    Ok(Output {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

/// Runs `program` with `args`, 60 s at most, and returns its standard output.
///
/// # Errors
/// When it cannot be started, does not end, or fails; the text holds the command and what it printed.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let done = output(Command::new(program).args(args), "", Duration::from_secs(60))?;
    match done.success() {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(error.context(format!("{program} {}", args.join(" ")))),
    }
}
