//! The TLS listener: accepts, speaks HTTP/1.1, and ends without failing a call.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A handshake that takes longer is dropped.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Idle connections stay open this long: longer than an API server keeps them (90 s), because a request that meets the
/// closing of its connection is a failed call.
const IDLE: Duration = Duration::from_secs(120);
/// Connections at once; an API server needs a handful.
const CONNECTIONS: usize = 1024;
/// What still runs after the stop is given this long.
const DRAIN: Duration = Duration::from_secs(15);
/// Pause after a connection could not be accepted, so that the listener does not spin.
const AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(50);

/// The two steps of the end.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// From here on every answer carries `Connection: close`, so that callers move to other replicas.
    pub closing: CancellationToken,
    /// From here on nothing is accepted; idle connections are closed, running calls finish.
    pub stop: CancellationToken,
}

/// Serves `router` on `listener` until [`Ending::stop`], then drains for at most 15 s.
pub async fn serve(listener: TcpListener, tls: Arc<rustls::ServerConfig>, router: Router, ending: Ending) {
    let acceptor = TlsAcceptor::from(tls);
    let closing = ending.closing.clone();
    let router = router.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let closing = closing.clone();
        async move { Ok::<_, Infallible>(close_when_ending(request, next, &closing).await) }
    }));
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let tasks = TaskTracker::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, or the peer is gone already: neither ends the listener.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(AFTER_FAILED_ACCEPT).await;
                    continue;
                }
            },
            () = ending.stop.cancelled() => break,
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::warn!(%peer, limit = CONNECTIONS, "too many connections, refusing one");
            continue;
        };
        let (acceptor, router, stop) = (acceptor.clone(), router.clone(), ending.stop.clone());
        tasks.spawn(async move {
            connection(stream, peer, acceptor, router, stop).await;
            drop(permit);
        });
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(open = tasks.len(), "connections still open after the drain are cut");
    }
}

async fn close_when_ending(request: Request, next: Next, closing: &CancellationToken) -> Response {
    let mut response = next.run(request).await;
    if closing.is_cancelled() {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn connection(stream: TcpStream, peer: SocketAddr, tls: TlsAcceptor, router: Router, stop: CancellationToken) {
    // Answers are one small write each; waiting for more to send would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
    }
    let stream = match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake took too long");
            return;
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended with an error");
    }
}
