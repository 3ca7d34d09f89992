//! `doctor`: an installation from outside, part by part.

mod args;
mod check;
mod cluster;
mod corefile;
mod crds;
mod objects;
mod operator;
mod webhook;

use std::io::Write;
use std::process::ExitCode;

pub use args::DoctorArgs;
use args::Output;
use check::{Check, State};
use jiff::Timestamp;
use kube::Client;
use serde::Serialize;

use crate::audit::printable::printable;
use crate::connect::{self, ConnectError};
use crate::kubectl::Kubectl;

/// What every check has at hand.
struct Surroundings {
    client: Client,
    /// Namespace of the operator.
    namespace: String,
    kubectl: Kubectl,
    /// The API server's clock.
    now: Timestamp,
}

/// All findings.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether nothing fails.
    healthy: bool,
    checks: Vec<Check>,
}

/// Looks and prints; the exit status is described in the help.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let cluster = &args.cluster;
    let looked = connect::with_client(
        cluster.kubeconfig.as_deref(),
        cluster.context.as_deref(),
        cluster.timeout,
        async |client| {
            let around = Surroundings {
                now: connect::server_time(&client).await,
                client,
                namespace: cluster.operator_namespace.clone(),
                kubectl: Kubectl::new(cluster),
            };
            look(&around).await
        },
    );
    let checks = match looked {
        Ok(checks) => checks,
        Err(error) => {
            eprintln!("kubectl tailnet: {}", printable(&error.to_string()));
            return ExitCode::from(2);
        }
    };
    let report = Report {
        healthy: checks.iter().all(|check| check.state != State::Fail),
        checks,
    };
    let text = match args.output {
        Output::Text => table(&report.checks),
        Output::Json => match serde_json::to_string_pretty(&report) {
            Ok(text) => text + "\n",
            Err(error) => {
                eprintln!("kubectl tailnet: the findings cannot be written as JSON: {error}");
                return ExitCode::from(2);
            }
        },
    };
    // A reader that has seen enough (`| head`) is no fault.
    if let Err(error) = std::io::stdout().write_all(text.as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("kubectl tailnet: cannot write the findings: {error}");
        return ExitCode::from(2);
    }
    if report.healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

/// All checks, in the order in which parts build on each other. An API server that does not answer is an error, not a finding.
async fn look(around: &Surroundings) -> Result<Vec<Check>, ConnectError> {
    let mut checks = vec![cluster::api_server(around).await?];
    let crds = crds::check(around).await;
    let installed = crds.iter().all(|check| check.state != State::Fail);
    checks.extend(crds);
    checks.extend(operator::check(around).await);
    let objects = objects::read(around).await;
    checks.extend(webhook::check(around, &objects, installed).await);
    checks.extend(objects::tailnets(around, &objects).await);
    checks.push(objects::members(around, &objects));
    checks.push(cluster::network_policy(around, &objects).await);
    checks.push(cluster::dns(around, &objects).await);
    checks.push(cluster::cert_manager(around, &objects).await);
    Ok(checks)
}

fn table(checks: &[Check]) -> String {
    let width = checks
        .iter()
        .map(|check| check.check.chars().count())
        .max()
        .unwrap_or_default();
    let mut out = String::new();
    for check in checks {
        out.push_str(&format!(
            "{:<5} {:<width$}  {}\n",
            check.state.as_str(),
            printable(&check.check),
            printable(&check.message)
        ));
        if let Some(turn) = check.turn {
            out.push_str(&format!("      {:<width$}  turn: {turn}\n", ""));
        }
        for command in &check.next {
            out.push_str(&format!("      {:<width$}  next: {}\n", "", printable(command)));
        }
    }
    let count = |state: State| checks.iter().filter(|check| check.state == state).count();
    out.push_str(&format!(
        "\n{} ok, {} failing, {} to look at, {} not known\n",
        count(State::Ok),
        count(State::Fail),
        count(State::Warn),
        count(State::Unknown)
    ));
    out
}
