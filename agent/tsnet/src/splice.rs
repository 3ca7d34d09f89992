use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{DialError, ErrorClass};
use crate::ffi;
use crate::node::Shared;

/// A connection on its way to a target, and then the bytes on it. Dropping this does not end it.
#[derive(Debug)]
pub struct Splice {
    /// Gives the outcome of the dial.
    pub dialed: Dialing,
    /// Gives the end of the connection; also when the dial fails, with no bytes.
    pub ended: Ended,
    /// Bytes so far, brought up to date every five seconds and at the end.
    pub traffic: Arc<Traffic>,
    /// Ends it before its time.
    pub abort: Aborter,
}

/// Bytes between an accepted connection and a socket of this machine. Dropping this does not end it.
#[derive(Debug)]
pub struct Carried {
    /// Gives the end of the connection.
    pub ended: Ended,
    /// Bytes so far, brought up to date every five seconds and at the end.
    pub traffic: Arc<Traffic>,
    /// Ends it before its time.
    pub abort: Aborter,
}

/// The way to end a [`Splice`] or [`Carried`] that should not go on.
#[derive(Clone, Debug)]
pub struct Aborter {
    shared: Arc<Shared>,
    token: u64,
}

impl Aborter {
    pub(crate) fn new(shared: Arc<Shared>, token: u64) -> Self {
        Self { shared, token }
    }

    /// Resets both sides of the connection; its end then has [`ErrorClass::Aborted`] and the message `why`. Does nothing
    /// while the dial is under way, and nothing to a connection that has ended.
    pub fn abort(&self, why: &str) {
        // Fails only when the node is closed, which resets it as well.
        let _ = ffi::splice_abort(self.shared.handle, self.token, why);
    }
}

/// Bytes that a connection has carried.
#[derive(Debug, Default)]
pub struct Traffic {
    up: AtomicU64,
    down: AtomicU64,
}

impl Traffic {
    pub(crate) fn set(&self, up: u64, down: u64) {
        self.up.store(up, Ordering::Relaxed);
        self.down.store(down, Ordering::Relaxed);
    }

    /// Bytes to the tailnet.
    pub fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    /// Bytes from the tailnet.
    pub fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }
}

/// A dial that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialed {
    /// Address that was connected to.
    pub address: String,
    /// Peer that serves it, MagicDNS label.
    pub peer: String,
    /// SYNs that were sent beside the first.
    pub hedges: u32,
    /// Time from the call to the connection.
    pub took: Duration,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpliceEnd {
    /// Bytes to the tailnet.
    pub up: u64,
    /// Bytes from the tailnet.
    pub down: u64,
    /// Time that it was open.
    pub took: Duration,
    /// Absent when both directions ended in order.
    pub error: Option<DialError>,
}

/// Future of a dial; see [`Splice::dialed`].
#[derive(Debug)]
pub struct Dialing(pub(crate) oneshot::Receiver<Result<Dialed, DialError>>);

impl Future for Dialing {
    type Output = Result<Dialed, DialError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|sent| sent.unwrap_or_else(|_| Err(DialError::closed())))
    }
}

/// Future of a connection's end; see [`Splice::ended`].
#[derive(Debug)]
pub struct Ended(pub(crate) oneshot::Receiver<SpliceEnd>);

impl Future for Ended {
    type Output = SpliceEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|sent| sent.unwrap_or_else(|_| SpliceEnd::lost()))
    }
}

impl SpliceEnd {
    /// The end of a connection whose node closed before it could be reported.
    fn lost() -> SpliceEnd {
        SpliceEnd {
            up: 0,
            down: 0,
            took: Duration::ZERO,
            error: Some(DialError::closed()),
        }
    }

    pub(crate) fn never_began(error: DialError) -> SpliceEnd {
        SpliceEnd {
            up: 0,
            down: 0,
            took: Duration::ZERO,
            error: Some(error),
        }
    }

    /// Class of the error, if there is one.
    pub fn class(&self) -> Option<ErrorClass> {
        self.error.as_ref().map(|e| e.class)
    }
}
