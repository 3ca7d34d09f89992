//! The TLS listener: accepts, speaks HTTP/1.1, and ends without failing a call.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connections::{Connections, Counted, Full};
use crate::metrics::LimitLabels;
use crate::router::Source;

/// A handshake that takes longer is dropped.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Idle connections stay open this long: longer than an API server keeps them (90 s), because a request that meets the
/// closing of its connection is a failed call.
const IDLE: Duration = Duration::from_secs(120);
/// A connection without a request must go after this time when there are many. Among few it may stay: API servers open some
/// that they need only later.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// What is read of a connection before somebody takes it: the head of a request fits, and a piece of its body.
const BUFFER: usize = 16 * 1024;
/// Between two lines in the log about connections that are refused.
const QUIET: Duration = Duration::from_secs(10);
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

/// Serves `router` on `listener` until [`Ending::stop`], then drains for at most 15 s. Connections beyond the limits are counted
/// in `refused`.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    router: Router,
    refused: Family<LimitLabels, Counter>,
    ending: Ending,
) {
    let acceptor = TlsAcceptor::from(tls);
    let closing = ending.closing.clone();
    let router = router.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let closing = closing.clone();
        async move { Ok::<_, Infallible>(close_when_ending(request, next, &closing).await) }
    }));
    let connections = Connections::default();
    let mut refusals = Refusals::new(refused);
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
        let counted = match connections.enter(peer.ip()) {
            Ok(counted) => counted,
            Err(full) => {
                refusals.refused(peer, full);
                continue;
            }
        };
        let (acceptor, router, stop) = (acceptor.clone(), router.clone(), ending.stop.clone());
        tasks.spawn(async move {
            connection(stream, peer, counted, acceptor, router, stop).await;
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

/// Tells of refused connections, without a line for each: they come by the thousand.
struct Refusals {
    counter: Family<LimitLabels, Counter>,
    told: Option<Instant>,
    untold: u64,
}

impl Refusals {
    fn new(counter: Family<LimitLabels, Counter>) -> Self {
        Self {
            counter,
            told: None,
            untold: 0,
        }
    }

    fn refused(&mut self, peer: SocketAddr, full: Full) {
        let labels = LimitLabels { limit: full.as_str() };
        self.counter.get_or_create(&labels).inc();
        self.untold += 1;
        if self.told.is_none_or(|told| told.elapsed() >= QUIET) {
            tracing::warn!(
                %peer, limit = full.limit(), of = full.as_str(), refused = self.untold,
                "too many connections: new ones are closed at once"
            );
            self.told = Some(Instant::now());
            self.untold = 0;
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    counted: Counted,
    tls: TlsAcceptor,
    router: Router,
    stop: CancellationToken,
) {
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
    let (asked, source) = (CancellationToken::new(), Source(counted.source()));
    let service = {
        let (asked, router) = (asked.clone(), TowerToHyperService::new(router));
        hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            asked.cancel();
            request.extensions_mut().insert(source);
            hyper::service::Service::call(&router, request)
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = in_the_way(&counted, &asked) => {
            tracing::debug!(%peer, "a connection without a request makes room for others");
            return;
        }
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended with an error");
    }
}

/// Returns when the connection has asked nothing for [`FIRST_REQUEST`] and there are many.
async fn in_the_way(counted: &Counted, asked: &CancellationToken) {
    let idle = async {
        tokio::time::sleep(FIRST_REQUEST).await;
        while !counted.is_crowded() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = asked.cancelled() => std::future::pending().await,
        () = idle => {}
    }
}
