//! The way to the cluster: kubeconfig, client, deadline. Everything that asks a cluster goes through here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tailnet_crds::names::DEFAULT_OPERATOR_NAMESPACE;

/// Why the cluster cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No usable kubeconfig.
    #[error("there is no usable kubeconfig: {0}; set KUBECONFIG, or --kubeconfig and --context")]
    Kubeconfig(String),
    /// No client from it.
    #[error("cannot connect: {0}")]
    Client(#[source] Box<kube::Error>),
    /// It takes too long.
    #[error("the cluster could not be read within {0} s; check the connection, or give more time with --timeout")]
    Deadline(u64),
    /// No thread or timer for the connection.
    #[error("cannot start: {0}")]
    Runtime(#[from] std::io::Error),
}

/// Flags of commands that ask a cluster.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Context of the kubeconfig instead of the current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Kubeconfig file instead of the usual ones (KUBECONFIG, ~/.kube/config, service account).
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Longest time for asking the cluster, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub timeout: Duration,
    /// Namespace in which the operator is installed.
    #[arg(long, value_name = "NAME", env = "OPERATOR_NAMESPACE", default_value = DEFAULT_OPERATOR_NAMESPACE)]
    pub operator_namespace: String,
}

/// Reads a whole number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err("is to be a number of seconds from 1 to 3600".to_owned()),
    }
}

/// Runs `work` with a client of the cluster that the flags name, for at most `timeout`.
///
/// # Errors
/// See [`ConnectError`]; and what `work` says.
pub fn with_client<T, E: From<ConnectError>>(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    timeout: Duration,
    work: impl AsyncFnOnce(Client) -> Result<T, E>,
) -> Result<T, E> {
    // A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ConnectError::Runtime)?;
    let work = async {
        let config = config(kubeconfig, context).await?;
        let client = Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
        work(client).await
    };
    let done = runtime.block_on(async { tokio::time::timeout(timeout, work).await });
    // A name that is still being looked up must not hold the process.
    runtime.shutdown_background();
    done.map_err(|_| ConnectError::Deadline(timeout.as_secs()))?
}

async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, ConnectError> {
    let refused = |error: &dyn std::fmt::Display| ConnectError::Kubeconfig(error.to_string());
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    match (kubeconfig, context) {
        (Some(file), _) => {
            let kubeconfig = Kubeconfig::read_from(file).map_err(|error| refused(&error))?;
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| refused(&error))
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| refused(&error)),
        (None, None) => Config::infer().await.map_err(|error| refused(&error)),
    }
}

/// The API server's clock: ages of Leases are told by it, not by this machine's, which may be wrong.
pub async fn server_time(client: &Client) -> Timestamp {
    let asked = async {
        let request = http::Request::get("/version").body(kube::client::Body::empty()).ok()?;
        let answer = client.send(request).await.ok()?;
        let date = answer.headers().get(http::header::DATE)?.to_str().ok()?;
        jiff::fmt::rfc2822::parse(date).ok().map(|date| date.timestamp())
    };
    asked.await.unwrap_or_else(Timestamp::now)
}
