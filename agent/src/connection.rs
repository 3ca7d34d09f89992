//! One accepted connection, from accept to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tsnet::{DialError, ErrorClass, Splice, SpliceEnd};

use crate::destinations::{Destination, Destinations};
use crate::limits::{Limit, Permit, Reached};
use crate::membership::Membership;
use crate::metrics::{ByteLabel, ErrorLabel, Metrics, TargetLabel};
use crate::target::Target;

/// Reason of a connection that came while the agent was no node of the tailnet.
const NOT_JOINED: &str = "not-joined";
/// Every reason for a connection to be reset before a dial.
pub(crate) const REJECTIONS: [&str; 4] = [NOT_JOINED, "total-limit", "target-limit", "no-backend"];
/// Why an open connection is ended when its target goes or gets another address.
const NOT_CONFIGURED: &str = "no target of the configuration has this address and port any more";
/// How often the bytes of an open connection are added to the metrics.
pub(crate) const COUNT_EVERY: Duration = Duration::from_secs(5);

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
        let label = TargetLabel {
            target: target.name.clone(),
        };
        self.metrics.accepted.get_or_create(&label).inc();
        let permit = match Limit::permit(&self.total, &target.limit) {
            Ok(permit) => permit,
            Err(reached) => return self.reject(&socket, peer, &target, reached),
        };
        let started = Instant::now();
        let destination = target.destination();
        match self.dial(socket, &destination) {
            Ok(splice) => {
                target.opened();
                self.metrics.open.get_or_create(&label).inc();
                let carrier = self.clone();
                self.connections.spawn(async move {
                    carrier.carry(splice, peer, &target, &destination, started).await;
                    target.closed();
                    carrier.metrics.open.get_or_create(&label).dec();
                    drop::<Permit>(permit);
                });
            }
            Err(error) => {
                target.dialed(&destination, Err(&error));
                self.count_rejection(&target, NOT_JOINED);
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
                let label = TargetLabel {
                    target: target.name.clone(),
                };
                self.metrics
                    .dial_seconds
                    .get_or_create(&label)
                    .observe(dialed.took.as_secs_f64());
                self.metrics.hedges.inc_by(u64::from(dialed.hedges));
                (dialed.address.as_str(), dialed.peer.as_str())
            }
            Err(error) => {
                self.count_error(target, error.class, true);
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
        let end = self.until_end(splice, target, destination).await;
        if let Some(class) = end.class() {
            self.count_error(target, class, false);
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

    async fn until_end(&self, splice: Splice, target: &Target, destination: &Destination) -> SpliceEnd {
        let (mut ended, traffic) = (splice.ended, splice.traffic);
        let mut counted = Counted::default();
        let removed = self.destinations.until_removed(destination);
        tokio::pin!(removed);
        let mut aborted = false;
        loop {
            tokio::select! {
                () = &mut removed, if !aborted => {
                    splice.abort.abort(NOT_CONFIGURED);
                    aborted = true;
                }
                end = &mut ended => {
                    counted.add(&self.metrics, &target.name, end.up.max(traffic.up()), end.down.max(traffic.down()));
                    return end;
                }
                () = tokio::time::sleep(COUNT_EVERY) => counted.add(&self.metrics, &target.name, traffic.up(), traffic.down()),
                () = self.abandon.cancelled() => {
                    // The node closes now, and with it the connection, which is told here a little later.
                    return tokio::time::timeout(COUNT_EVERY, ended).await.unwrap_or_else(|_| SpliceEnd {
                        up: traffic.up(),
                        down: traffic.down(),
                        took: Duration::ZERO,
                        error: Some(DialError { class: ErrorClass::Shutdown, message: "the drain is over".into() }),
                    });
                }
            }
        }
    }

    fn reject(&self, socket: &TcpStream, peer: SocketAddr, target: &Target, reached: Reached) {
        reset(socket);
        let reason = reached.as_str();
        self.count_rejection(target, reason);
        tracing::warn!(
            target_name = target.name,
            peer = %canonical(peer),
            error_class = reason,
            open = target.open(),
            "connection reset: too many are open"
        );
    }

    fn count_rejection(&self, target: &Target, reason: &'static str) {
        self.metrics
            .rejected
            .get_or_create(&ErrorLabel {
                target: target.name.clone(),
                class: reason,
            })
            .inc();
    }

    fn count_error(&self, target: &Target, class: ErrorClass, dial: bool) {
        let label = ErrorLabel {
            target: target.name.clone(),
            class: class.as_str(),
        };
        let family = if dial {
            &self.metrics.dial_errors
        } else {
            &self.metrics.connection_errors
        };
        family.get_or_create(&label).inc();
    }
}

/// Bytes of one connection that are in the metrics already.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    up: u64,
    down: u64,
}

impl Counted {
    pub(crate) fn add(&mut self, metrics: &Metrics, target: &str, up: u64, down: u64) {
        let directions = [("to_tailnet", &mut self.up, up), ("from_tailnet", &mut self.down, down)];
        for (direction, counted, now) in directions {
            if now > *counted {
                let label = ByteLabel {
                    target: target.to_owned(),
                    direction,
                };
                metrics.bytes.get_or_create(&label).inc_by(now - *counted);
                *counted = now;
            }
        }
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
