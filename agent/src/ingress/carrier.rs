//! What every connection from the tailnet needs, and the carrying of a tcp expose's bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tsnet::{DialError, ErrorClass, Incoming};

use super::backend;
use super::expose::{Expose, Way};
use crate::connection::millis;
use crate::destinations::Destinations;
use crate::limits::{Limit, Permit, Reached};
use crate::membership::Membership;
use crate::metrics::Metrics;
use crate::until_end::until_end;
use crate::usage::Open;

/// Reason of a connection to an expose whose Service has no address.
pub(crate) const NO_BACKEND: &str = "no-backend";
/// Why an open connection is ended when its expose goes or leads elsewhere.
const NOT_CONFIGURED: &str = "no expose of the configuration leads from this port to this backend any more";

/// Shared by all connections. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    pub(crate) membership: Membership,
    pub(crate) metrics: Metrics,
    pub(crate) total: Limit,
    pub(crate) dial_timeout: Duration,
    /// What is configured.
    pub(crate) ways: Destinations<Way>,
    /// Every open connection; the drain waits for them.
    pub(crate) connections: TaskTracker,
    /// Cancelled when the listeners are closed: what can be ended in order should end.
    pub(crate) draining: CancellationToken,
    /// Cancelled once the drain is over.
    pub(crate) abandon: CancellationToken,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Tailnet address and port, as text.
    pub(crate) source: String,
    /// MagicDNS label of its node; empty when unknown.
    pub(crate) node: String,
    /// Login name of its user; empty for a tagged or unknown node.
    pub(crate) login: String,
    /// Display name of its user.
    pub(crate) name: String,
}

impl Carrier {
    /// Asks the tailnet who `source` is.
    pub(crate) async fn who(&self, source: &str) -> Peer {
        let mut peer = Peer {
            source: source.to_owned(),
            ..Peer::default()
        };
        let Some(node) = self.membership.node() else {
            return peer;
        };
        match node.whois(source).await {
            Ok(who) => {
                peer.node = who.node;
                // A tagged node acts for nobody.
                if who.tags.is_empty() {
                    peer.login = who.login;
                    peer.name = who.name;
                }
            }
            Err(error) => tracing::debug!(%error, source, "asking who a peer is"),
        }
        peer
    }

    /// Takes a connection to a tcp expose and returns at once.
    pub(crate) fn take_tcp(&self, incoming: Incoming, expose: &Arc<Expose>) {
        self.metrics.accepted.get_or_create(&expose.usage.label()).inc();
        let permit = match Limit::permit(&self.total, &expose.usage.limit) {
            Ok(permit) => permit,
            Err(reached) => return self.reject(&incoming.source, expose, reached),
        };
        let Some(backend) = expose.backend() else {
            return self.count_rejection(&incoming.source, expose, NO_BACKEND, "the Service has no address");
        };
        let (carrier, expose) = (self.clone(), expose.clone());
        self.connections.spawn(async move {
            let open = Open::new(&expose.usage, &carrier.metrics);
            carrier.carry(incoming, &expose, backend).await;
            drop(open);
            drop::<Permit>(permit);
        });
    }

    /// Until this returns `incoming.conn` is ours, and dropping it resets the peer's connection.
    async fn carry(&self, incoming: Incoming, expose: &Expose, backend: SocketAddr) {
        let started = Instant::now();
        let (peer, socket) = tokio::join!(self.who(&incoming.source), backend::connect(backend, self.dial_timeout));
        let dialed = socket.and_then(|socket| {
            let socket = socket.into_std().map_err(|error| other(error.to_string()))?;
            incoming
                .conn
                .splice(socket.into())
                .map_err(|error| other(error.to_string()))
        });
        expose.dialed(backend, dialed.as_ref().map(drop));
        let carried = match dialed {
            Ok(carried) => carried,
            Err(error) => {
                expose.usage.count_dial_error(&self.metrics, error.class);
                tracing::warn!(
                    target_name = expose.name,
                    peer = peer.source,
                    node = peer.node,
                    login = peer.login,
                    duration_ms = millis(started.elapsed()),
                    error_class = error.class.as_str(),
                    error = error.message,
                    "connection failed"
                );
                return;
            }
        };
        self.metrics
            .dial_seconds
            .get_or_create(&expose.usage.label())
            .observe(started.elapsed().as_secs_f64());
        let way = Way::Backend {
            port: expose.port(),
            backend,
        };
        let removed = self.ways.until_removed(&way);
        let end = until_end(
            carried,
            &expose.name,
            &self.metrics,
            (removed, NOT_CONFIGURED),
            &self.abandon,
        )
        .await;
        if let Some(class) = end.class() {
            expose.usage.count_connection_error(&self.metrics, class);
        }
        tracing::info!(
            target_name = expose.name,
            peer = peer.source,
            node = peer.node,
            login = peer.login,
            backend = %backend,
            bytes_to_tailnet = end.up,
            bytes_from_tailnet = end.down,
            duration_ms = millis(started.elapsed()),
            error_class = end.class().map_or("none", ErrorClass::as_str),
            error = end.error.as_ref().map(|e| e.message.as_str()),
            "connection ended"
        );
    }

    /// A connection that is one too many.
    pub(crate) fn reject(&self, source: &str, expose: &Expose, reached: Reached) {
        self.count_rejection(source, expose, reached.as_str(), "too many are open");
    }

    fn count_rejection(&self, source: &str, expose: &Expose, class: &'static str, why: &str) {
        expose.usage.count_rejection(&self.metrics, class);
        tracing::warn!(
            target_name = expose.name,
            peer = source,
            error_class = class,
            open = expose.usage.open(),
            "connection reset: {why}"
        );
    }
}

fn other(message: String) -> DialError {
    DialError {
        class: ErrorClass::Other,
        message,
    }
}
