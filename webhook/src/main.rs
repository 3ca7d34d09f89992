//! The admission webhook of tailnet-operator.

use std::process::ExitCode;

use clap::Parser;
use tailnet_webhook::{args::Args, run};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = args.log.init() {
        eprintln!("tailnet-webhook: {error}");
        return ExitCode::from(2);
    }
    match run::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
