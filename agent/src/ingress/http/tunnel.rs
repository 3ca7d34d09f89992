//! The bytes of an upgraded connection, such as a WebSocket.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use crate::ingress::carrier::Carrier;
use crate::ingress::expose::{Expose, Way};

/// How it ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) from_peer: u64,
    pub(crate) to_peer: u64,
    /// Absent when both sides ended in order.
    pub(crate) reason: Option<&'static str>,
}

/// Carries until both directions have ended, the expose leads elsewhere, or the drain is over.
pub(crate) async fn carry<C, B>(
    carrier: &Carrier,
    expose: &Arc<Expose>,
    port: u16,
    backend_address: SocketAddr,
    client: C,
    backend: B,
) -> End
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut client, mut backend) = (Counting::new(client), Counting::new(backend));
    let (from_peer, to_peer) = (client.read.clone(), backend.read.clone());
    let way = Way::Backend {
        port,
        backend: backend_address,
    };
    let reason = tokio::select! {
        result = copy_bidirectional(&mut client, &mut backend) => result.err().map(|error| {
            tracing::debug!(%error, target_name = expose.name, "upgraded connection");
            "reset"
        }),
        () = carrier.ways.until_removed(&way) => Some("not-configured"),
        () = carrier.abandon.cancelled() => Some("shutdown"),
    };
    End {
        from_peer: from_peer.load(Ordering::Relaxed),
        to_peer: to_peer.load(Ordering::Relaxed),
        reason,
    }
}

/// Counts what is read.
struct Counting<S> {
    inner: S,
    read: Arc<AtomicU64>,
}

impl<S> Counting<S> {
    fn new(inner: S) -> Counting<S> {
        Counting {
            inner,
            read: Arc::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counting<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let read = buf.filled().len().saturating_sub(before);
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
