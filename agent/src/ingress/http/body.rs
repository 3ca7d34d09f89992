//! Bodies on their way through: counted, with their end told, with a deadline where there is one. Nothing is changed or kept.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::request_log::Entry;

/// What a body can fail with.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request, on its way to the backend.
#[derive(Debug)]
pub(crate) struct RequestBody {
    inner: Incoming,
    bytes: Arc<AtomicU64>,
    /// Told `true` once, at the end; also when this is dropped.
    ended: watch::Sender<bool>,
}

impl RequestBody {
    pub(crate) fn new(inner: Incoming, bytes: Arc<AtomicU64>) -> (RequestBody, watch::Receiver<bool>) {
        let (ended, end) = watch::channel(inner.is_end_stream());
        (RequestBody { inner, bytes, ended }, end)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
                if self.inner.is_end_stream() {
                    self.ended.send_replace(true);
                }
            }
            Poll::Ready(None | Some(Err(_))) => {
                self.ended.send_replace(true);
            }
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.ended.send_replace(true);
    }
}

/// The body of a response, on its way to the peer. Its entry is logged when it is dropped.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    inner: Inner,
    deadline: Option<Pin<Box<Sleep>>>,
    entry: Option<Entry>,
}

#[derive(Debug)]
enum Inner {
    Backend(Incoming),
    Own(Full<Bytes>),
}

/// The response took longer than the expose allows.
#[derive(Debug, thiserror::Error)]
#[error("the response was not complete within timeouts.request")]
pub(crate) struct TooLate;

impl ResponseBody {
    /// The backend's, which has to end by `deadline`.
    pub(crate) fn backend(inner: Incoming, deadline: Option<Instant>, entry: Entry) -> ResponseBody {
        ResponseBody {
            inner: Inner::Backend(inner),
            deadline: deadline.map(|at| Box::pin(sleep_until(at))),
            entry: Some(entry),
        }
    }

    /// A short text of our own.
    pub(crate) fn own(text: String, entry: Entry) -> ResponseBody {
        ResponseBody {
            inner: Inner::Own(Full::from(text)),
            deadline: None,
            entry: Some(entry),
        }
    }

    /// Nothing, of an answer that is logged elsewhere.
    pub(crate) fn empty() -> ResponseBody {
        ResponseBody {
            inner: Inner::Own(Full::default()),
            deadline: None,
            entry: None,
        }
    }

    fn note(&mut self, note: impl FnOnce(&mut Entry)) {
        if let Some(entry) = &mut self.entry {
            note(entry);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.note(|entry| entry.failed("request-timeout"));
            return Poll::Ready(Some(Err(TooLate.into())));
        }
        let frame = match &mut self.inner {
            Inner::Backend(body) => Pin::new(body).poll_frame(cx).map_err(BodyError::from),
            Inner::Own(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never: Infallible| match never {}),
        };
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.note(|entry| entry.sent(data.len()));
                }
                if self.is_end_stream() {
                    self.note(Entry::complete);
                }
            }
            Poll::Ready(Some(Err(_))) => self.note(|entry| entry.failed("backend-reset")),
            Poll::Ready(None) => self.note(Entry::complete),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Backend(body) => body.is_end_stream(),
            Inner::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Backend(body) => body.size_hint(),
            Inner::Own(body) => body.size_hint(),
        }
    }
}
