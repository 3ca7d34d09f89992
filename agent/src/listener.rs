//! The listening socket of one target.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tailnet_process::listen;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connection::Carrier;
use crate::target::Target;

/// Pause after a failed accept, so that a lack of descriptors does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener and the task that accepts on it.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) port: u16,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Listening {
    /// Binds `port` on every address, IPv6 and IPv4, or IPv4 alone where there is no IPv6.
    pub(crate) fn start(port: u16, target: Arc<Target>, carrier: Carrier) -> io::Result<Listening> {
        let listener = listen::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
        let stop = CancellationToken::new();
        target.listening.store(true, Ordering::Relaxed);
        let task = tokio::spawn(accept(listener, target, carrier, stop.clone()));
        Ok(Listening { port, stop, task })
    }

    /// Stops accepting; returns once the port is free. Connections go on.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, port = self.port, "a listener's task failed");
        }
    }

    /// Whether the task is gone without having been stopped.
    pub(crate) fn failed(&self) -> bool {
        self.task.is_finished()
    }
}

async fn accept(listener: TcpListener, target: Arc<Target>, carrier: Carrier, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => carrier.take(socket, peer, target.clone()),
                Err(error) => {
                    tracing::warn!(%error, target_name = target.name, "accepting a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    target.listening.store(false, Ordering::Relaxed);
}
