//! One listening port of the node.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tsnet::{Incoming, Listener, Node};

use super::carrier::Carrier;
use super::expose::Expose;
use super::http::{self, Site};

/// What a port is for.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// One tcp expose.
    Tcp(Arc<Expose>),
    /// The http exposes of the port.
    Http(Arc<Site>),
}

/// An open port and the task that accepts on it.
#[derive(Debug)]
pub(crate) struct TailnetPort {
    node: Arc<Node>,
    role: Arc<ArcSwap<Role>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl TailnetPort {
    pub(crate) fn open(node: &Arc<Node>, port: u16, role: Role, carrier: Carrier) -> Result<TailnetPort, tsnet::Error> {
        let listener = node.listen(port)?;
        let role = Arc::new(ArcSwap::from_pointee(role));
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, port, role.clone(), carrier, stop.clone()));
        Ok(TailnetPort {
            node: node.clone(),
            role,
            stop,
            task,
        })
    }

    /// What is accepted from now on is carried by `role`.
    pub(crate) fn set_role(&self, role: Role) {
        self.role.store(Arc::new(role));
    }

    /// Whether it is open, and a port of `node`.
    pub(crate) fn is_of(&self, node: Option<&Node>) -> bool {
        node.is_some_and(|node| std::ptr::eq(self.node.as_ref(), node)) && !self.task.is_finished()
    }

    /// Stops accepting; connections go on.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "a listener's task failed");
        }
    }
}

async fn accept(
    mut listener: Listener,
    port: u16,
    role: Arc<ArcSwap<Role>>,
    carrier: Carrier,
    stop: CancellationToken,
) {
    loop {
        let incoming: Incoming = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Some(incoming) => incoming,
                // The node is closed.
                None => return,
            },
        };
        match role.load().as_ref() {
            Role::Tcp(expose) => carrier.take_tcp(incoming, expose),
            Role::Http(site) => http::take(&carrier, incoming, port, site.clone()),
        }
    }
}
