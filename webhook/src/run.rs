//! Wiring: which part gets what, what starts and ends in which order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use tailnet_policies::Snapshot;
use tailnet_process::{Readiness, health, metrics as registry, signals, version};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::arming::Arming;
use crate::audit::{Audit, AuditError};
use crate::bypass::Reviews;
use crate::clock::ApiClock;
use crate::clock::client::{self, ClientError};
use crate::live::ApiServer;
use crate::metrics::{Metrics, PREFIX};
use crate::organisation;
use crate::router::{Reviewer, router};
use crate::server::{self, Ending};
use crate::snapshot::{self, SharedSnapshot};
use crate::sync::Sync;
use crate::tls::inject::Target;
use crate::tls::keeper::{Keeper, Origin};
use crate::tls::source::{Source, server_config};
use crate::tls::trusted::Others;

/// Why the webhook does not start or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No way to the API server.
    #[error("cannot tell where the API server is: {0}; set KUBECONFIG or run in a Pod with a service account")]
    Kubernetes(#[from] ClientError),
    /// The admission address cannot be used.
    #[error("cannot listen on {address} for admission: {source}; choose another address with --listen")]
    Listen {
        /// The wanted address.
        address: SocketAddr,
        /// The system's words.
        source: io::Error,
    },
    /// The TLS library refuses its settings.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The audit stream cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The health endpoint does not serve.
    #[error(transparent)]
    Health(#[from] health::HealthError),
    /// Signals cannot be received.
    #[error(transparent)]
    Signal(#[from] signals::SignalError),
    /// A part that runs for ever has ended.
    #[error("the {0} ended; the process stops so that it is started again")]
    Ended(&'static str),
}

/// Runs the webhook until a stop signal.
pub async fn run(args: Args) -> Result<(), RunError> {
    // Both kube and our listener find the provider by this; a second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tracing::info!(
        version = version(),
        namespace = args.operator_namespace,
        "tailnet-webhook starts"
    );
    let stop = signals::stop_signal()?;
    let readiness = Readiness::new();
    let certificate = readiness.condition("certificate", "no leaf certificate yet");
    let caches = readiness.condition("caches", "not listed yet");
    let bundle = readiness.condition("caBundle", "the webhook configurations do not carry the CA yet");
    let mut registry = registry::registry(PREFIX);
    let metrics = Arc::new(Metrics::register(&mut registry));
    let audit = Audit::open(&args.audit_log, metrics.audit_lost.clone())?;
    let health_stop = CancellationToken::new();
    let health = health::serve(
        args.health_listen,
        readiness.clone(),
        Arc::new(registry),
        Router::new(),
        health_stop.clone(),
    )
    .await?;

    let clock = ApiClock::default();
    clock.report_to(metrics.clock_difference.clone());
    let client = client::connect(&clock).await?;
    let listen = |source| RunError::Listen {
        address: args.listen,
        source,
    };
    let listener = tailnet_process::listen::bind(args.listen).map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    tracing::info!(%address, "admission endpoint: /validate /mutate");

    let mut snapshot = Snapshot::new(args.config());
    snapshot.set_clock(organisation::clock);
    let snapshot = Arc::new(SharedSnapshot::new(snapshot));
    let sync = Arc::new(Sync::new(snapshot::watched(), caches));
    let mut watches = snapshot::watch(&client, &args.operator_namespace, &snapshot, &sync, &metrics, &clock);
    let source = Source::default();
    let given = args.certificate_secret.as_deref();
    let keeper = Keeper {
        client: client.clone(),
        clock: clock.clone(),
        namespace: args.operator_namespace.clone(),
        names: given.map_or_else(|| args.names(), |_| args.called_names()),
        targets: vec![
            Target::validating(&args.validating_configuration),
            Target::mutating(&args.mutating_configuration),
        ],
        source: source.clone(),
        certificate,
        bundle,
        metrics: Arc::clone(&metrics),
        others: Others::default(),
        carried: AtomicBool::new(false),
    };
    let ending = Ending::default();
    let mut keeper = tokio::spawn(keeper.run(Origin::new(given), ending.stop.clone()));
    let arming = Arming {
        client: client.clone(),
        name: args.validating_configuration.clone(),
        namespace: args.operator_namespace.clone(),
        readiness: readiness.clone(),
        open: metrics.admission_open.clone(),
    };
    // Not until the end: what is installed while this Pod still answers its last calls is another installation's.
    let mut arming = tokio::spawn(arming.run(ending.closing.clone()));
    let refused = metrics.connections_refused.clone();
    let access = Arc::new(Reviews::new(client.clone()));
    let reviewer = Reviewer::new(snapshot, Arc::new(ApiServer(client)), audit, metrics)
        .with_access(access)
        .with_clock(clock);
    let reviewer = Arc::new(reviewer);
    let routes = router(Arc::clone(&reviewer));
    let mut server = tokio::spawn(server::serve(
        listener,
        Arc::new(server_config(source)?),
        routes,
        refused,
        ending.clone(),
    ));

    let ended = tokio::select! {
        () = stop.cancelled() => None,
        _ = &mut keeper => Some("certificate keeper"),
        _ = &mut arming => Some("keeper of the failurePolicy"),
        _ = &mut server => Some("listener"),
        _ = watches.join_next() => Some("watches"),
    };
    readiness.stopping();
    if let Some(part) = ended {
        return Err(RunError::Ended(part));
    }
    // Endpoints follow readiness with a delay; until then calls still come, and they are answered.
    ending.closing.cancel();
    tracing::info!(delay = ?args.shutdown_delay, "unready; still serving");
    tokio::time::sleep(args.shutdown_delay).await;
    ending.stop.cancel();
    if let Err(error) = server.await {
        tracing::error!(%error, "the listener ended badly");
    }
    drop(watches);
    // The last audit lines are written when the reviewer goes.
    drop(reviewer);
    health_stop.cancel();
    health.finished().await?;
    tracing::info!("stopped");
    Ok(())
}
