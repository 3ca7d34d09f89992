//! `tailnet-agent`.

use std::process::ExitCode;

use clap::Parser;
use tailnet_agent::args::Args;
use tailnet_agent::run::run;

/// Rust only accepts and counts; the bytes are Go's, which sizes itself.
const WORKERS: usize = 2;
/// Blocking calls into Go: status, routes, login.
const BLOCKING: usize = 32;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = args.log.init() {
        eprintln!("tailnet-agent: {error}");
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(run(args));
            // A call into Go that overran its deadline must not keep the process.
            runtime.shutdown_background();
            result
        }
        Err(error) => {
            tracing::error!(%error, "starting the runtime");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "tailnet-agent cannot run");
            ExitCode::FAILURE
        }
    }
}
