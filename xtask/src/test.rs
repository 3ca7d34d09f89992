//! `cargo xtask test`: prepares everything that the tests need and runs them.

mod binaries;
mod totals;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, ensure};
use tailnet_e2e::prerequisites::{self, Need};
use tailnet_e2e::tools::{self, Tool};

use crate::image;
use crate::workspace::Workspace;

/// Set for the tests: the image archive of this checkout.
const IMAGE_VARIABLE: &str = "TAILNET_IMAGE_ARCHIVE";
/// Set for the tests with `--long`.
const LONG_VARIABLE: &str = "TAILNET_LONG_TESTS";

/// Flags of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Also run what takes minutes: soak, many rounds of races, every failure point
    #[arg(long)]
    long: bool,
    /// Only tests of this package (repeatable), e.g. tailnet-policies; servers and image are still prepared for tailnet-e2e
    #[arg(long, short)]
    package: Vec<String>,
    /// Test binaries that run at once; each may bring up a cluster of about 1 GiB, and those that measure or count what is
    /// on the machine run alone in any case
    #[arg(long, short, default_value_t = 2)]
    jobs: usize,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// Builds all test binaries, runs them side by side, then the examples in the docs.
pub fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    ensure!(args.jobs > 0, "--jobs 0 would run nothing");
    // insta would look for its snapshots where a binary was compiled, which may be another clone with the same target directory.
    let mut environment: Vec<(&str, std::ffi::OsString)> =
        vec![("INSTA_WORKSPACE_ROOT", workspace.root.clone().into())];
    if args.package.is_empty() || args.package.iter().any(|package| package == "tailnet-e2e") {
        prerequisites::ensure_present(&[Need::Api, Need::Node, Need::Site, Need::Image, Need::Clock])?;
        tools::ensure(&Tool::ALL)?;
        let archive = image::build(workspace, image::Purpose::Development)?;
        environment.push((IMAGE_VARIABLE, archive.into()));
    }
    if args.long {
        environment.push((LONG_VARIABLE, "1".into()));
    }
    let cargo_test = || -> Command {
        let mut cargo = tailnet_e2e::nested_cargo::cargo();
        cargo.current_dir(&workspace.root).args(["test", "--locked"]);
        if args.package.is_empty() {
            cargo.arg("--workspace");
        }
        for package in &args.package {
            cargo.args(["--package", package]);
        }
        cargo
    };
    let found = binaries::build(cargo_test())?;
    let (totals, mut all_ended_well) = binaries::run(found, args.filter.as_deref(), &environment, args.jobs);

    // rustdoc tests have no binaries of their own; cargo runs them.
    let mut docs = cargo_test();
    docs.args(["--doc", "--no-fail-fast"]).args(&args.filter);
    let (docs, docs_ended_well) = binaries::run_one(&mut docs)?;
    all_ended_well &= docs_ended_well;
    let totals = totals.and(docs);

    println!("\n{:.0} s in all", start.elapsed().as_secs_f64());
    for name in &totals.names {
        println!("FAILED {name}");
    }
    if !all_ended_well && totals.failed == 0 {
        println!("no test failed, but a test binary crashed or could not be run: see above");
    }
    let skipped = if totals.skipped > 0 {
        format!(", {} skipped", totals.skipped)
    } else {
        String::new()
    };
    println!("{} passed, {} failed{skipped}", totals.passed, totals.failed);
    Ok(if all_ended_well && totals.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
