//! `tailnet-operator`: creates and observes what Tailnet objects ask for.

use std::process::ExitCode;

use clap::Parser;
use tailnet_operator::settings::Settings;
use tailnet_process::LogArgs;

/// Operator of Kubernetes <-> Headscale connections.
///
/// Watches Tailnet, TailnetEgress, TailnetIngress, TailnetSite and TailnetGateway; runs the admission rules once more as a
/// guard; then creates keys, agents, Services and NetworkPolicies in its own namespace and reports status. It needs the
/// CRDs and the RBAC of the Helm chart. Its connection to the API server comes from the Pod's service account or from
/// KUBECONFIG.
#[derive(Parser)]
#[command(name = "tailnet-operator", version = tailnet_process::VERSION)]
struct CommandLine {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    log: LogArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    if let Err(error) = command_line.log.init() {
        eprintln!("tailnet-operator: {error}");
        return ExitCode::from(2);
    }
    match tailnet_operator::run(command_line.settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "tailnet-operator ends");
            ExitCode::FAILURE
        }
    }
}
