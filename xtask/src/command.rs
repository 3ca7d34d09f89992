//! Running other programs: what runs is shown, what fails is named.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The command as a person would type it.
pub fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .map(|word| {
            if word.contains([' ', '"', '$']) || word.is_empty() {
                format!("'{word}'")
            } else {
                word.into_owned()
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs it with our output; an exit code other than 0 is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let text = shown(command);
    eprintln!("  $ {text}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("{text}: could not be started"))?;
    if !status.success() {
        bail!("{text}: {status}");
    }
    Ok(())
}

/// Runs it quietly and gives back its standard output; its error output becomes part of the error.
pub fn output(command: &mut Command) -> Result<String> {
    let text = shown(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{text}: could not be started"))?;
    if !output.status.success() {
        bail!(
            "{text}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{text}: its output is not UTF-8"))
}

/// Whether a program of that name is in PATH.
pub fn installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}
