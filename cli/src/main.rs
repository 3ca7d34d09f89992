//! `kubectl tailnet`: what people and CI ask about tsunaro.io manifests.

mod args;
mod audit;
mod lint;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Lint(args) => lint::run(&args),
        Command::Audit(args) => audit::run(&args),
    }
}
