//! Start, drain, stop.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use tailnet_process::health::{self, HealthError};
use tailnet_process::signals::{self, SignalError};
use tailnet_process::{Readiness, metrics as process_metrics};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::args::{Args, Mode, ModeError};
use crate::connection::Carrier;
use crate::egress::{Egress, Targets};
use crate::ingress::{self, Exposes, Ingress};
use crate::limits::Limit;
use crate::membership::{Membership, Settings};
use crate::metrics::{Metrics, PREFIX, gauge};
use crate::status::{self, StatusSource};
use crate::{config_file, destinations, memory};

/// How long connections that the node's close has ended may take for their last log lines.
const LAST_LOG_LINES: Duration = Duration::from_secs(1);

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// `AGENT_MODE` is not usable.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// No stop signals.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// No health endpoint.
    #[error(transparent)]
    Health(#[from] HealthError),
    /// The tailnet client does not work at all.
    #[error("setting up the tailnet client: {0}")]
    Client(#[from] tsnet::Error),
    /// A part of the agent ended, which only a fault can cause; the supervisor starts the agent anew.
    #[error("the agent's {0} ended by itself")]
    PartEnded(&'static str),
}

/// Runs until a stop signal, drains, and returns.
///
/// # Errors
/// See [`RunError`].
pub async fn run(args: Args) -> Result<(), RunError> {
    let mode = args.mode()?;
    let stop = signals::stop_signal()?;
    let mut registry = process_metrics::registry(PREFIX);
    let metrics = Metrics::new(&mut registry);
    limit_memory(&metrics)?;
    tracing::info!(
        mode = mode.as_str(),
        client = tsnet::client_version()?,
        "tailnet-agent starts"
    );

    let readiness = Readiness::new();
    let loaded = readiness.condition("configuration", "no configuration has been read");
    let bound = readiness.condition("listeners", "waiting for the configuration");
    let joined = readiness.condition("tailnet", "logging in");

    // Health, configuration and node outlive the stop signal: the drain needs them.
    let (end_config, end_node, end_health) = (
        CancellationToken::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    let health_port = args.health_listen.port();
    let (config, config_task) = config_file::watch(args.config.clone(), mode, health_port, end_config.clone());
    let membership = Membership::default();
    let (targets, exposes) = (Targets::default(), Exposes::default());
    let source = StatusSource {
        mode,
        membership: membership.clone(),
        config: config.clone(),
        targets: targets.clone(),
        exposes: exposes.clone(),
    };
    let routes = status::router(source);
    let health = health::serve(
        args.health_listen,
        readiness.clone(),
        Arc::new(registry),
        routes,
        end_health.clone(),
    )
    .await?;

    let (connections, abandon, end_accept) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
    let settings = Settings {
        auth_key_file: args.authkey_file.clone(),
        probe_every: args.probe_every(),
        // An ingress only answers.
        accept_routes: mode == Mode::Egress,
    };
    let node = membership.clone();
    let mut node_task = tokio::spawn(node.run(settings, config.clone(), joined, metrics.clone(), end_node.clone()));
    let mut accept_task = match mode {
        Mode::Egress => {
            let (configured, destinations) = destinations::channel();
            let carrier = Carrier {
                membership,
                metrics,
                total: Limit::new(args.max_connections),
                dial_timeout: args.dial_timeout(),
                destinations,
                connections: connections.clone(),
                abandon: abandon.clone(),
            };
            let egress = Egress::new(carrier, configured, targets, args.max_connections_per_target);
            tokio::spawn(egress.run(config, loaded, bound, end_accept.clone()))
        }
        Mode::Ingress => {
            let (configured, ways) = destinations::channel();
            let carrier = ingress::Carrier {
                membership,
                metrics,
                total: Limit::new(args.max_connections),
                dial_timeout: args.dial_timeout(),
                ways,
                connections: connections.clone(),
                draining: CancellationToken::new(),
                abandon: abandon.clone(),
            };
            let limit = args.max_connections_per_target;
            let ingress = Ingress::new(carrier, configured, exposes, limit, args.tls_dir.clone());
            tokio::spawn(ingress.run(config, loaded, bound, end_accept.clone()))
        }
    };

    tokio::select! {
        () = stop.cancelled() => {}
        _ = &mut node_task => return Err(RunError::PartEnded("membership")),
        _ = &mut accept_task => return Err(RunError::PartEnded("listening")),
    }

    readiness.stopping();
    let parts = Parts {
        accept: accept_task,
        end_accept,
        connections,
        abandon,
        node: node_task,
        end_node,
    };
    drain(&args, parts).await;
    end_config.cancel();
    if config_task.await.is_err() {
        tracing::error!("the configuration's task failed");
    }
    end_health.cancel();
    health.finished().await?;
    tracing::info!("tailnet-agent ends");
    Ok(())
}

struct Parts {
    accept: JoinHandle<()>,
    end_accept: CancellationToken,
    connections: TaskTracker,
    abandon: CancellationToken,
    node: JoinHandle<()>,
    end_node: CancellationToken,
}

/// Unready already; goes on accepting for the grace, stops accepting, waits for open connections, leaves the tailnet.
async fn drain(args: &Args, parts: Parts) {
    let deadline = tokio::time::Instant::now() + args.drain();
    tracing::info!(open = parts.connections.len(), limit_s = args.drain_seconds, "draining");
    tokio::time::sleep(args.accept_grace()).await;
    parts.end_accept.cancel();
    if parts.accept.await.is_err() {
        tracing::error!("the listeners' task failed");
    }
    parts.connections.close();
    if tokio::time::timeout_at(deadline, parts.connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            open = parts.connections.len(),
            "the drain is over; the connections that are left are reset"
        );
    }
    parts.abandon.cancel();
    parts.end_node.cancel();
    if parts.node.await.is_err() {
        tracing::error!("the membership's task failed");
    }
    // Their ends have been told by the node's close; what is left to do is a log line each.
    if tokio::time::timeout(LAST_LOG_LINES, parts.connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(open = parts.connections.len(), "connections were not told their end");
    }
}

fn limit_memory(metrics: &Metrics) -> Result<(), tsnet::Error> {
    if let Ok(value) = env::var("GOMEMLIMIT") {
        tracing::info!(value, "GOMEMLIMIT is set; the container's limit is not looked at");
        return Ok(());
    }
    let container = memory::container_limit();
    let limit = memory::client_limit(container);
    tracing::info!(container, limit, "memory limit of the tailnet client, bytes");
    metrics.client_limit.set(gauge(limit));
    tsnet::set_memory_limit(limit)
}
