//! One accepted connection, from accept to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tsnet::{Carried, DialError, ErrorClass, Splice};

use crate::destinations::{Destination, Destinations};
use crate::limits::{Limit, Permit, Reached};
use crate::membership::Membership;
use crate::metrics::Metrics;
use crate::target::Target;
use crate::until_end::until_end;
use crate::usage::Open;

/// Reason of a connection that came while the agent was no node of the tailnet.
const NOT_JOINED: &str = "not-joined";
/// Every reason for a connection to be reset before a dial.
pub(crate) const REJECTIONS: [&str; 4] = [NOT_JOINED, "total-limit", "target-limit", "no-backend"];
/// Why an open connection is ended when its target goes or gets another address.
const NOT_CONFIGURED: &str = "no target of the configuration has this address and port any more";

/// What every connection needs. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    pub(crate) membership: Membership,
    pub(crate) metrics: Metrics,
    pub(crate) total: Limit,
    pub(crate) dial_timeout: Duration,
    /// What may be connected to.
    pub(crate) destinations: Destinations,
    /// Every open connection; the drain waits for them.
    pub(crate) connections: TaskTracker,
    /// Cancelled once the drain is over.
    pub(crate) abandon: CancellationToken,
}

impl Carrier {
    /// Takes an accepted connection and returns at once.
    pub(crate) fn take(&self, socket: TcpStream, peer: SocketAddr, target: Arc<Target>) {
        self.metrics.accepted.get_or_create(&target.usage.label()).inc();
        let permit = match Limit::permit(&self.total, &target.usage.limit) {
            Ok(permit) => permit,
            Err(reached) => return self.reject(&socket, peer, &target, reached),
        };
        let started = Instant::now();
        let destination = target.destination();
        match self.dial(socket, &destination) {
            Ok(splice) => {
                let open = Open::new(&target.usage, &self.metrics);
                let carrier = self.clone();
                self.connections.spawn(async move {
                    carrier.carry(splice, peer, &target, &destination, started).await;
                    drop(open);
                    drop::<Permit>(permit);
                });
            }
            Err(error) => {
                target.dialed(&destination, Err(&error));
                target.usage.count_rejection(&self.metrics, NOT_JOINED);
                tracing::warn!(target_name = target.name, peer = %canonical(peer), error = error.message, error_class = NOT_JOINED, "connection reset");
            }
        }
    }

    fn dial(&self, socket: TcpStream, destination: &Destination) -> Result<Splice, DialError> {
        let Some(node) = self.membership.node() else {
            reset(&socket);
            return Err(not_joined(
                "the agent has not joined the tailnet (yet, or any more)".into(),
            ));
        };
        // Leaves tokio's poll before it goes to Go's.
        let socket = socket.into_std().map_err(|e| not_joined(e.to_string()))?;
        node.splice_dial(socket.into(), &destination.dial_address(), &[], self.dial_timeout)
            .map_err(|e| not_joined(e.to_string()))
    }

    async fn carry(
        &self,
        mut splice: Splice,
        peer: SocketAddr,
        target: &Target,
        destination: &Destination,
        started: Instant,
    ) {
        let dialed = (&mut splice.dialed).await;
        target.dialed(destination, dialed.as_ref().map(drop));
        let (address, router) = match &dialed {
            Ok(dialed) => {
                self.metrics
                    .dial_seconds
                    .get_or_create(&target.usage.label())
                    .observe(dialed.took.as_secs_f64());
                self.metrics.hedges.inc_by(u64::from(dialed.hedges));
                (dialed.address.as_str(), dialed.peer.as_str())
            }
            Err(error) => {
                target.usage.count_dial_error(&self.metrics, error.class);
                tracing::warn!(
                    target_name = target.name,
                    peer = %canonical(peer),
                    duration_ms = millis(started.elapsed()),
                    error_class = error.class.as_str(),
                    error = error.message,
                    "connection failed"
                );
                return;
            }
        };
        let carried = Carried {
            ended: splice.ended,
            traffic: splice.traffic,
            abort: splice.abort,
        };
        let removed = self.destinations.until_removed(destination);
        let end = until_end(
            carried,
            &target.name,
            &self.metrics,
            (removed, NOT_CONFIGURED),
            &self.abandon,
        )
        .await;
        if let Some(class) = end.class() {
            target.usage.count_connection_error(&self.metrics, class);
        }
        tracing::info!(
            target_name = target.name,
            peer = %canonical(peer),
            address,
            router,
            bytes_to_tailnet = end.up,
            bytes_from_tailnet = end.down,
            duration_ms = millis(started.elapsed()),
            error_class = end.class().map_or("none", ErrorClass::as_str),
            error = end.error.as_ref().map(|e| e.message.as_str()),
            "connection ended"
        );
    }

    fn reject(&self, socket: &TcpStream, peer: SocketAddr, target: &Target, reached: Reached) {
        reset(socket);
        let reason = reached.as_str();
        target.usage.count_rejection(&self.metrics, reason);
        tracing::warn!(
            target_name = target.name,
            peer = %canonical(peer),
            error_class = reason,
            open = target.usage.open(),
            "connection reset: too many are open"
        );
    }
}

fn not_joined(message: String) -> DialError {
    DialError {
        class: ErrorClass::Other,
        message,
    }
}

/// Makes the closing of `socket` a reset, so that the client sees an error and not an end.
fn reset(socket: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    if let Err(error) = setsockopt(socket, sockopt::Linger, &linger) {
        tracing::debug!(%error, "setting SO_LINGER");
    }
}

/// An IPv4 peer of a dual-stack listener as IPv4.
pub(crate) fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
