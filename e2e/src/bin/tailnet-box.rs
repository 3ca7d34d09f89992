//! The harness's own program: the processes that make a box, and the hosts of a site. Started by the harness, not by people.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tailnet_e2e::boxed::supervisor::Wanted;
use tailnet_e2e::boxed::{holder, init, supervisor};
use tailnet_e2e::lan_servers;
use tailnet_e2e::tools::{self, Tool};

/// Value of `--NAME`.
fn option(args: &[String], name: &str) -> Option<String> {
    let position = args.iter().position(|arg| arg.strip_prefix("--") == Some(name))?;
    args.get(position + 1).cloned()
}

fn required(args: &[String], name: &str) -> Result<String> {
    option(args, name).with_context(|| format!("--{name} is missing"))
}

fn run(args: &[String]) -> Result<()> {
    let (role, args) = args
        .split_first()
        .context("tailnet-box is started by the test harness (cargo xtask cluster up), not by people")?;
    match role.as_str() {
        "supervise" => {
            let wanted = Wanted {
                name: required(args, "name")?,
                dir: option(args, "dir").map(PathBuf::from),
                detached: args.iter().any(|arg| arg == "--detached"),
            };
            supervisor::run(&wanted)
        }
        "hold" => holder::run(&PathBuf::from(required(args, "dir")?), required(args, "n")?.parse()?),
        "init" => init::run(&PathBuf::from(required(args, "dir")?), required(args, "n")?.parse()?),
        "https" => lan_servers::serve_https(
            &required(args, "listen")?,
            required(args, "certificate")?.as_ref(),
            required(args, "key")?.as_ref(),
        ),
        "echo" => lan_servers::serve_echo(&required(args, "listen")?),
        "tools" => build_tools(args),
        other => bail!("tailnet-box has no role {other}"),
    }
}

/// Builds the pinned servers named by their files' names, or all.
fn build_tools(names: &[String]) -> Result<()> {
    let mut wanted = Vec::new();
    for tool in Tool::ALL {
        let path = tool.path()?;
        if names.is_empty() || names.iter().any(|name| path.ends_with(name)) {
            wanted.push(tool);
        }
    }
    tools::ensure(&wanted)?;
    for tool in wanted {
        println!("{}", tool.built()?.display());
    }
    Ok(())
}

fn main() -> ExitCode {
    // Started through /proc/self/exe it would show as "exe".
    let _ = nix::sys::prctl::set_name(c"tailnet-box");
    let args: Vec<_> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "tailnet-box: {error:#}");
            ExitCode::FAILURE
        }
    }
}
