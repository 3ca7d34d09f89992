//! Test binaries: built by cargo, run here, several at once.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;
use parking_lot::Mutex;

use super::totals::Totals;
use tailnet_e2e::progress::Progress;

/// Binaries that count what is on the machine, or hold states against a clock: nothing else runs beside them.
const ALONE: [&str; 2] = ["harness", "chart"];
/// Binaries that take minutes, longest first, so that none of them is started last.
const FIRST: [&str; 8] = [
    "operator_tailnet",
    "operator_egress",
    "webhook",
    "operator_egress_path",
    "why",
    "operator_ingress_path",
    "tailnet",
    "headscale",
];

/// One test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Name of the target, as in `cargo test --test NAME`.
    name: String,
    executable: PathBuf,
    /// Folder of its package; tests run there and find it in `CARGO_MANIFEST_DIR`.
    package: PathBuf,
    package_name: String,
}

/// Builds the test binaries that `cargo test` with these arguments would run.
///
/// # Errors
/// When something does not build; the compiler has said what.
pub fn build(mut cargo: Command) -> Result<Vec<Binary>> {
    cargo.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    eprintln!("  $ {}", crate::command::shown(&cargo));
    let mut child = cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo could not be started")?;
    let stdout = child.stdout.take().context("cargo's output is not piped")?;
    let mut found = Vec::new();
    for message in Message::parse_stream(BufReader::new(stdout)) {
        if let Message::CompilerArtifact(artifact) = message.context("cargo's messages broke off")?
            && artifact.profile.test
            && let Some(executable) = artifact.executable
        {
            let manifest = artifact.manifest_path;
            let package = manifest.parent().context("a manifest has a folder")?;
            found.push(Binary {
                name: artifact.target.name,
                executable: executable.into_std_path_buf(),
                package: package.as_std_path().to_owned(),
                package_name: artifact.package_id.repr.clone(),
            });
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the tests do not build ({status})");
    }
    Ok(found)
}

/// Runs the binaries, `jobs` at once, and those of [`ALONE`] one after another at the end. What each printed is printed whole
/// when it has ended. False when one did not end well.
pub fn run(
    binaries: Vec<Binary>,
    filter: Option<&str>,
    environment: &[(&str, OsString)],
    jobs: usize,
) -> (Totals, bool) {
    let (alone, together) = in_order(binaries);
    let result = Mutex::new((Totals::default(), true));
    let work = |queue: &Mutex<VecDeque<Binary>>| {
        loop {
            let Some(binary) = queue.lock().pop_front() else { return };
            let (text, ended_well) = run_binary(&binary, filter, environment);
            let mut result = result.lock();
            // Under the lock, so that two outputs do not mix.
            print!("{text}");
            text.lines().for_each(|line| result.0.read(line));
            result.1 &= ended_well;
        }
    };
    let queue = Mutex::new(together);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| work(&queue));
        }
    });
    work(&Mutex::new(alone));
    result.into_inner()
}

/// The binaries of [`ALONE`], and the others with [`FIRST`] first.
fn in_order(mut binaries: Vec<Binary>) -> (VecDeque<Binary>, VecDeque<Binary>) {
    let place = |binary: &Binary| {
        FIRST
            .iter()
            .position(|name| *name == binary.name)
            .unwrap_or(FIRST.len())
    };
    binaries.sort_by_key(place);
    binaries
        .into_iter()
        .partition(|binary| ALONE.contains(&binary.name.as_str()))
}

fn run_binary(binary: &Binary, filter: Option<&str>, environment: &[(&str, OsString)]) -> (String, bool) {
    let head = format!("     Running {} ({})\n", binary.name, binary.package_name);
    let progress = Progress::start(format!("testing {}", binary.name));
    let start = Instant::now();
    let ended = Command::new(&binary.executable)
        .args(filter)
        .current_dir(&binary.package)
        .env("CARGO_MANIFEST_DIR", &binary.package)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output();
    progress.done();
    match ended {
        Ok(output) => {
            let well = output.status.success();
            let mut text = head;
            text.push_str(&String::from_utf8_lossy(&output.stdout));
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            if !well {
                text.push_str(&format!(
                    "{} ended with {} after {:.0} s; to repeat it: cargo xtask test -p PACKAGE, or run {}\n",
                    binary.name,
                    output.status,
                    start.elapsed().as_secs_f64(),
                    binary.executable.display()
                ));
            }
            (text, well)
        }
        Err(error) => (
            format!("{head}{} cannot be run: {error}\n", binary.executable.display()),
            false,
        ),
    }
}

/// Runs one command, whose output is shown as it comes, and adds up what it says of tests.
///
/// # Errors
/// When it cannot be started.
pub fn run_one(command: &mut Command) -> Result<(Totals, bool)> {
    eprintln!("  $ {}", crate::command::shown(command));
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{} could not be started", crate::command::shown(command)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let mut totals = Totals::default();
    text.lines().for_each(|line| totals.read(line));
    Ok((totals, output.status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(name: &str) -> Binary {
        Binary {
            name: name.into(),
            executable: "/bin/true".into(),
            package: "/".into(),
            package_name: "p".into(),
        }
    }

    #[test]
    fn what_measures_runs_alone_and_what_takes_long_begins() {
        let (alone, together) = in_order(["crds", "harness", "webhook", "operator_tailnet"].map(binary).to_vec());
        let names = |list: VecDeque<Binary>| list.into_iter().map(|b| b.name).collect::<Vec<_>>();
        assert_eq!(names(alone), ["harness"]);
        assert_eq!(names(together), ["operator_tailnet", "webhook", "crds"]);
    }

    #[test]
    fn a_crash_is_not_well_even_without_a_failed_test() {
        let crashed = Binary {
            executable: "/bin/false".into(),
            ..binary("crashed")
        };
        let (totals, well) = run(vec![binary("fine"), crashed], None, &[], 2);
        assert_eq!((totals, well), (Totals::default(), false));
        let absent = Binary {
            executable: "/nowhere".into(),
            ..binary("absent")
        };
        assert!(!run(vec![absent], None, &[], 1).1);
    }
}
