//! `cargo xtask bench NAME`: ours beside a reference, measured in the same run in interleaved rounds. Nothing here asserts a number.

mod admission;
mod report;
mod webhook;

use anyhow::Result;

use crate::workspace::Workspace;

/// Flags of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure
    name: Name,
    /// Interleaved rounds; the table shows their medians
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
}

/// The benchmarks there are.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Name {
    /// Deciding one admission request in process, beside decoding the same object into its type
    Admission,
    /// What our webhook adds to a CREATE at a real API server, beside a webhook in Go that allows everything; needs root
    Webhook,
}

/// Runs one benchmark, prints its table and writes `target/bench/NAME.json`.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let (name, rows) = match args.name {
        Name::Admission => ("admission", admission::measure(args.rounds)?),
        Name::Webhook => ("webhook", webhook::measure(args.rounds)?),
    };
    if cfg!(debug_assertions) {
        println!("measured with a debug build; for numbers to keep: cargo run --release -p xtask -- bench {name}");
    }
    report::print(name, &rows);
    let path = workspace.target.join("bench").join(format!("{name}.json"));
    report::write(&path, &rows)?;
    println!("written: {}", path.display());
    Ok(())
}
