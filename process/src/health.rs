//! The plain HTTP endpoint: `/healthz`, `/readyz`, `/metrics`, and what the binary adds (`/status` of the agent).

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::readiness::Readiness;

/// How long open connections may finish after the stop.
const DRAIN: Duration = Duration::from_secs(5);
/// What prometheus-client writes.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why the endpoint does not serve.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address} for health and metrics: {source}; choose another address with --health-listen")]
    Bind {
        /// The wanted address.
        address: SocketAddr,
        /// What the kernel says.
        source: io::Error,
    },
    /// Accepting connections failed for good.
    #[error("the health endpoint stopped: {0}")]
    Serve(io::Error),
    /// The server task was cancelled or panicked.
    #[error("the health endpoint's task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// The running endpoint.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    task: JoinHandle<Result<(), HealthError>>,
}

impl Serving {
    /// The address that was bound; the port is the real one when 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Ends when the endpoint ended: after the stop token and a drain of at most 5 s, or with an error.
    pub async fn finished(self) -> Result<(), HealthError> {
        self.task.await?
    }
}

/// The routes alone:
/// * `/healthz`: 200 `ok` while the runtime answers. It does not look at readiness: a process that waits for another one
///   must not be restarted for it.
/// * `/readyz`: 200 `ready`, or 503 with one line per condition that is not met.
/// * `/metrics`: OpenMetrics text.
pub fn router(readiness: Readiness, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { ready(&readiness) }))
        .route("/metrics", get(move || async move { metrics(&registry) }))
}

/// Serves [`router`] merged with `extra` on `address` until `stop` is cancelled. Returns once the address is bound.
///
/// A process that drains (unready first, then stop) passes a token of its own, so that probes still get their answer.
pub async fn serve(
    address: SocketAddr,
    readiness: Readiness,
    registry: Arc<Registry>,
    extra: Router,
    stop: CancellationToken,
) -> Result<Serving, HealthError> {
    let bind = |source| HealthError::Bind { address, source };
    let listener = crate::listen::bind(address).map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    let routes = router(readiness, registry).merge(extra);
    let task = tokio::spawn(async move {
        let late = stop.clone();
        let server = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned());
        tokio::select! {
            result = async { server.await } => result.map_err(HealthError::Serve),
            () = async { late.cancelled().await; tokio::time::sleep(DRAIN).await } => Ok(()),
        }
    });
    tracing::info!(%address, "health endpoint: /healthz /readyz /metrics");
    Ok(Serving { address, task })
}

fn ready(readiness: &Readiness) -> Response {
    let missing = readiness.missing();
    if missing.is_empty() {
        return "ready\n".into_response();
    }
    let mut text = String::from("not ready:\n");
    for condition in missing {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {condition}");
    }
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics cannot be written, see the log\n",
            )
                .into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_util::sync::CancellationToken;

    use super::{HealthError, serve};
    use crate::{Readiness, metrics};

    async fn fetch(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    }

    #[tokio::test]
    async fn endpoint_tells_what_is_missing_and_stops() {
        let readiness = Readiness::new();
        let condition = readiness.condition("caches", "Tailnet not listed yet");
        let stop = CancellationToken::new();
        let registry = Arc::new(metrics::registry("tailnet_test"));
        let extra = Router::new().route("/status", get(|| async { "mine" }));
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let health = serve(any, readiness, registry, extra, stop.clone())
            .await
            .expect("serves");
        let address = health.local_addr();

        assert!(fetch(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let unready = fetch(address, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(
            unready.ends_with("not ready:\n- caches: Tailnet not listed yet (for 0 s)\n"),
            "{unready}"
        );
        condition.met();
        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = fetch(address, "/metrics").await;
        assert!(metrics.contains("tailnet_test_build_info{version=\""), "{metrics}");
        assert!(fetch(address, "/status").await.ends_with("mine"));

        // An idle connection must not hold the process up.
        let _idle = TcpStream::connect(address).await.expect("connect");
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(8), health.finished())
            .await
            .expect("in time")
            .expect("clean");
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = taken.local_addr().expect("address");
        let registry = Arc::new(metrics::registry("tailnet_test"));
        let error = serve(
            address,
            Readiness::new(),
            registry,
            Router::new(),
            CancellationToken::new(),
        )
        .await
        .expect_err("taken");
        assert!(matches!(error, HealthError::Bind { .. }));
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
