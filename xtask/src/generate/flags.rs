//! `docs/reference/flags.md`: what every binary says when it is asked for help.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::Result;

use crate::command::{output, run};
use crate::image::BINARIES;
use crate::workspace::Workspace;

/// Builds the binaries (debug, as tests do) and prints their `--help`.
pub fn reference(workspace: &Workspace) -> Result<String> {
    let mut cargo = tailnet_e2e::nested_cargo::cargo();
    cargo
        .current_dir(&workspace.root)
        // Of the whole workspace, as for images and tests, so that nothing is built twice.
        .args(["build", "--locked", "--quiet", "--workspace"]);
    for (_, binary) in BINARIES {
        cargo.args(["--bin", binary]);
    }
    run(&mut cargo)?;
    let mut text = String::from(
        "# Command line flags\n\nEvery flag has an environment variable where one is named. `--version` prints the commit.\n",
    );
    for (_, binary) in BINARIES {
        let help = |arguments: &[&str]| {
            let mut command = Command::new(workspace.target.join("debug").join(binary));
            // No environment: clap shows the values it finds there.
            command.args(arguments).arg("--help").env_clear().env("COLUMNS", "110");
            let help = output(&mut command)?;
            let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
            anyhow::Ok(help.trim().to_owned())
        };
        let own = help(&[])?;
        let _ = write!(text, "\n## {binary}\n\n```text\n{own}\n```\n");
        for command in subcommands(&own) {
            let group = help(&[command])?;
            let _ = write!(text, "\n### {binary} {command}\n\n```text\n{group}\n```\n");
            for inner in subcommands(&group) {
                let help = help(&[command, inner])?;
                let _ = write!(text, "\n### {binary} {command} {inner}\n\n```text\n{help}\n```\n");
            }
        }
    }
    Ok(text)
}

/// Names of the commands that a help text lists.
fn subcommands(help: &str) -> Vec<&str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    listed
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.strip_prefix("  ")?
                .split_whitespace()
                .next()
                .filter(|_| !line.starts_with("   "))
        })
        .filter(|name| *name != "help")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::subcommands;

    #[test]
    fn commands_are_read_from_the_help() {
        let help = "About\n\nCommands:\n  lint   Check\n         more words\n  audit  Say\n  help   Print\n\nOptions:\n  -h, --help";
        assert_eq!(subcommands(help), ["lint", "audit"]);
        assert!(subcommands("Usage: x\n\nOptions:\n  -h").is_empty());
    }
}
