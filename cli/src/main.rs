//! `kubectl tailnet`: what people and CI ask about tsunaro.io manifests, objects and installations.

mod args;
mod audit;
mod connect;
mod doctor;
mod facts;
mod kinds;
mod kubectl;
mod lint;
mod policy;
mod why;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Lint(args) => lint::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Policy(args) => policy::run(&args),
    }
}
