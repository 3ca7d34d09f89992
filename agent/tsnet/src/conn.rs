use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::error::Error;
use crate::ffi;
use crate::node::Shared;
use crate::splice::{Aborter, Carried, Ended};

/// The port of [`crate::Node::listen`] that stands for every address of the advertised routes, with every port.
pub const ROUTED: u16 = 0;

/// Connections of [`crate::Node::listen`]. Dropping it stops accepting; accepted connections go on.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    port: u16,
    incoming: mpsc::Receiver<Incoming>,
}

/// A connection from the tailnet.
#[derive(Debug)]
pub struct Incoming {
    /// `ip:port` of the peer.
    pub source: String,
    /// `ip:port` that it connected to: an own address, or one of a route.
    pub destination: String,
    /// The connection.
    pub conn: Conn,
}

/// A tailnet connection that nobody reads yet. Dropping it resets it.
#[derive(Debug)]
pub struct Conn {
    shared: Arc<Shared>,
    id: u64,
    taken: bool,
}

impl Listener {
    pub(crate) fn new(shared: Arc<Shared>, port: u16, incoming: mpsc::Receiver<Incoming>) -> Listener {
        Listener { shared, port, incoming }
    }

    /// The next connection; `None` when the node is closed.
    pub async fn accept(&mut self) -> Option<Incoming> {
        self.incoming.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.unlisten(self.port);
    }
}

impl Conn {
    pub(crate) fn new(shared: Arc<Shared>, id: u64) -> Conn {
        Conn {
            shared,
            id,
            taken: false,
        }
    }

    /// The bytes, through a socket pair. Slower than a splice; for connections that Rust must read.
    ///
    /// # Errors
    /// When the node is closed or no socket pair can be made; the connection is then reset.
    pub fn into_stream(mut self) -> Result<(UnixStream, Ended), Error> {
        let (token, ended, _) = self.shared.wait_for_end();
        match ffi::conn_fd(self.shared.handle, self.id, token) {
            Ok(fd) => {
                // SAFETY: Go has just made this descriptor for us and keeps no copy of its number.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                self.taken = true;
                let stream = std::os::unix::net::UnixStream::from(fd);
                stream.set_nonblocking(true).map_err(Error::Socket)?;
                Ok((UnixStream::from_std(stream).map_err(Error::Socket)?, ended))
            }
            Err(error) => {
                self.shared.forget(token);
                Err(error)
            }
        }
    }

    /// Carries bytes between the connection and `socket` until both directions have ended.
    ///
    /// # Errors
    /// When the socket is none or the node is closed; both are then reset.
    pub fn splice(mut self, socket: OwnedFd) -> Result<Carried, Error> {
        let (token, ended, traffic) = self.shared.wait_for_end();
        match ffi::splice_conn(self.shared.handle, self.id, token, socket.into_raw_fd()) {
            Ok(()) => {
                self.taken = true;
                Ok(Carried {
                    ended,
                    traffic,
                    abort: Aborter::new(self.shared.clone(), token),
                })
            }
            Err(error) => {
                self.shared.forget(token);
                Err(error)
            }
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        // Fails only when the node is closed, which resets it as well.
        let _ = ffi::conn_close(self.shared.handle, self.id);
    }
}
