//! Developer commands: `cargo xtask …`.

mod bench;
mod check;
mod cluster;
mod command;
mod demo;
mod generate;
mod image;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Commands for working on tailnet-operator. Cluster, demo, test and image need root on Linux, and install what they miss on Debian.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Bring up a cluster, a Headscale and a remote site, install the chart, carry a connection, see wrong manifests refused
    Demo(demo::Args),
    /// Run all tests, on real servers
    Test(test::Args),
    /// Format, lints, licences, generated files, API docs, links, chart
    Check,
    /// Write everything that is generated from code: CRDs, RBAC, webhook configuration, values schema, reference pages
    Gen,
    /// A cluster to try things on
    Cluster(cluster::Args),
    /// Build the image from the Dockerfile, without a daemon
    Image(ImageArgs),
    /// Measure something beside a reference and write target/bench/NAME.json
    Bench(bench::Args),
}

#[derive(clap::Args)]
struct ImageArgs {
    /// Only lay out the build context, for another builder
    #[arg(long)]
    context: bool,
    /// Binaries as for tests and demo: unoptimised, built in a fraction of the time
    #[arg(long)]
    dev: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Subcommands) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find()?;
    match command {
        Subcommands::Demo(args) => demo::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
        Subcommands::Test(args) => test::run(&workspace, &args),
        Subcommands::Check => Ok(check::all(&workspace)),
        Subcommands::Gen => generate::write(&workspace).map(|()| ExitCode::SUCCESS),
        Subcommands::Cluster(args) => cluster::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
        Subcommands::Image(args) => {
            let purpose = image::Purpose::release(!args.dev);
            if args.context {
                println!("{}", image::lay_out(&workspace, purpose)?.display());
            } else {
                image::build(&workspace, purpose)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Subcommands::Bench(args) => bench::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
    }
}
