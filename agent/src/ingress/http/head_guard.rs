//! A strict look at HTTP/1 requests before the server's parser sees them.
//!
//! What two parsers can read in two ways is how a request is smuggled past the first one. So what is not written exactly as
//! RFC 9112 has it is not repaired but refused: bare LF or CR, folded lines, space around a name, two lengths, two hosts, a
//! target that is not a path. The guard follows the framing of bodies, passes good bytes on unchanged, and puts a request of
//! its own in the place of a bad one, whose entry in [`Heads`] tells the service to answer with the reason.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longest request head.
pub(crate) const MAX_HEAD: usize = 64 << 10;
/// Longest request target.
pub(crate) const MAX_TARGET: usize = 16 << 10;
/// Most header lines.
pub(crate) const MAX_HEADERS: usize = 128;
/// Longest chunk-size line and trailer section.
const MAX_CHUNK_LINE: usize = 256;
const MAX_TRAILERS: usize = 16 << 10;
const READ: usize = 16 << 10;
/// Bytes that are read and dropped behind a refused request, so that the answer is not lost in a reset.
const MAX_DISCARD: usize = 1 << 20;

/// Stands in the place of a refused request.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Status of the answer.
    pub(crate) status: u16,
    /// The reason in header and log.
    pub(crate) reason: &'static str,
}

const fn bad(reason: &'static str) -> Refusal {
    Refusal { status: 400, reason }
}

/// What is known of one request's head, in the order in which the service is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// When its first byte came.
    pub(crate) started: Instant,
    /// Why it is refused.
    pub(crate) refusal: Option<Refusal>,
}

/// Shared between the guard and the service of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    queue: Arc<Mutex<VecDeque<Head>>>,
    tunnel: Arc<AtomicBool>,
    /// Requests that have an answer which leaves the connection with HTTP.
    answered: Arc<AtomicU64>,
}

impl Heads {
    /// The head of the request that the service is called with now.
    pub(crate) fn next(&self) -> Option<Head> {
        self.queue.lock().pop_front()
    }

    /// A request has its answer, and it was not the change to another protocol: what came behind it is HTTP.
    pub(crate) fn answered(&self) {
        self.answered.fetch_add(1, Ordering::AcqRel);
    }

    /// The connection is another protocol's from here on.
    pub(crate) fn upgraded(&self) {
        self.tunnel.store(true, Ordering::Release);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// Bytes of a body that are left.
    Sized(u64),
    ChunkLine,
    /// Bytes of a chunk that are left, its CRLF included.
    Chunk(u64),
    Trailers,
    Refused,
    Tunnel,
}

/// The guard around a connection.
#[derive(Debug)]
pub(crate) struct HeadGuard<S> {
    inner: S,
    heads: Heads,
    parser: Parser,
    scratch: Box<[u8]>,
    end: bool,
    discarded: usize,
}

/// What is read and not yet passed on.
#[derive(Debug)]
struct Parser {
    state: State,
    /// Not looked at, or of an incomplete line or head.
    input: Vec<u8>,
    /// To be passed on, from `sent`.
    output: Vec<u8>,
    sent: usize,
    started: Option<Instant>,
    /// Heads that were passed on or refused.
    heads: u64,
    /// The last of them asks for another protocol: whether what follows it is HTTP is known only with its answer.
    asks_upgrade: bool,
}

impl<S> HeadGuard<S> {
    pub(crate) fn new(inner: S, heads: Heads) -> HeadGuard<S> {
        HeadGuard {
            inner,
            heads,
            parser: Parser {
                state: State::Head,
                input: Vec::new(),
                output: Vec::new(),
                sent: 0,
                started: None,
                heads: 0,
                asks_upgrade: false,
            },
            scratch: vec![0; READ].into_boxed_slice(),
            end: false,
            discarded: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadGuard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.parser.give(buf) {
                return Poll::Ready(Ok(()));
            }
            if this.heads.tunnel.load(Ordering::Acquire) && this.parser.state != State::Tunnel {
                this.parser.state = State::Tunnel;
                let early = std::mem::take(&mut this.parser.input);
                this.parser.output = early;
                this.parser.sent = 0;
                continue;
            }
            if this.parser.state == State::Tunnel {
                return Pin::new(&mut this.inner).poll_read(cx, buf);
            }
            if this.parser.waits(&this.heads) {
                // The server asks again when it has answered, so nobody needs to be woken.
                if this.parser.input.len() >= MAX_HEAD || (this.end && !this.parser.input.is_empty()) {
                    return Poll::Pending;
                }
            } else if !this.parser.input.is_empty() && this.parser.asks_upgrade {
                this.parser.asks_upgrade = false;
                this.parser.work(&this.heads)?;
                if this.end {
                    this.parser.end();
                }
                continue;
            }
            if this.end {
                return Poll::Ready(Ok(()));
            }
            let mut read = ReadBuf::new(&mut this.scratch);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
            let bytes = read.filled();
            if bytes.is_empty() {
                this.end = true;
                if !this.parser.waits(&this.heads) {
                    this.parser.end();
                }
                continue;
            }
            if this.parser.state == State::Refused {
                this.discarded += bytes.len();
                if this.discarded > MAX_DISCARD {
                    this.end = true;
                }
                continue;
            }
            this.parser.input.extend_from_slice(bytes);
            this.parser.work(&this.heads)?;
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

impl Parser {
    /// Gives what is ready; false when nothing is.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let rest = &self.output[self.sent..];
        if rest.is_empty() {
            return false;
        }
        let length = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..length]);
        self.sent += length;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        true
    }

    /// Whether a request that asks for another protocol has no answer yet: until then nothing behind it is looked at.
    fn waits(&self, heads: &Heads) -> bool {
        self.asks_upgrade && self.state == State::Head && heads.answered.load(Ordering::Acquire) < self.heads
    }

    /// Nothing comes any more: what is incomplete is the server's to judge.
    fn end(&mut self) {
        let rest = std::mem::take(&mut self.input);
        if self.state != State::Refused {
            self.output.extend_from_slice(&rest);
        }
    }

    /// Moves what is good from input to output. An error is a broken body: nothing can be answered to it.
    fn work(&mut self, heads: &Heads) -> io::Result<()> {
        let mut input = std::mem::take(&mut self.input);
        let mut at = 0;
        while at < input.len() && self.state != State::Refused && !self.waits(heads) {
            let rest = &input[at..];
            let used = match self.state {
                State::Head => self.head(rest, heads),
                State::Sized(left) => {
                    let (used, left) = self.pass(rest, left);
                    self.state = if left == 0 { State::Head } else { State::Sized(left) };
                    used
                }
                State::Chunk(left) => self.chunk(rest, left)?,
                State::ChunkLine => self.chunk_line(rest)?,
                State::Trailers => self.trailers(rest)?,
                State::Refused | State::Tunnel => 0,
            };
            if used == 0 {
                break;
            }
            at += used;
        }
        if self.state != State::Refused {
            input.drain(..at);
            self.input = input;
        }
        Ok(())
    }

    fn pass(&mut self, rest: &[u8], left: u64) -> (usize, u64) {
        let used = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        self.output.extend_from_slice(&rest[..used]);
        (used, left - used as u64)
    }

    fn head(&mut self, rest: &[u8], heads: &Heads) -> usize {
        // Empty lines before a request are allowed, and mean nothing.
        if self.started.is_none() && rest.starts_with(b"\r\n") {
            return 2;
        }
        if self.started.is_none() && rest == b"\r" {
            return 0;
        }
        let started = *self.started.get_or_insert_with(Instant::now);
        let (refusal, used) = match find_end(rest) {
            Err(refusal) => (Some(refusal), rest.len()),
            Ok(None) => return 0,
            Ok(Some(length)) => match check_head(&rest[..length]) {
                Err(refusal) => (Some(refusal), rest.len()),
                Ok(checked) => {
                    self.output.extend_from_slice(&rest[..length]);
                    self.state = checked.body;
                    self.asks_upgrade = checked.asks_upgrade;
                    (None, length)
                }
            },
        };
        self.started = None;
        self.heads += 1;
        heads.queue.lock().push_back(Head { started, refusal });
        if refusal.is_some() {
            self.output.extend_from_slice(STAND_IN);
            self.state = State::Refused;
        }
        used
    }

    fn chunk(&mut self, rest: &[u8], left: u64) -> io::Result<usize> {
        // The last two of `left` are CR and LF.
        if left > 2 {
            let (used, left_of_data) = self.pass(rest, left - 2);
            self.state = State::Chunk(left_of_data + 2);
            return Ok(used);
        }
        let expected = if left == 2 { b'\r' } else { b'\n' };
        if rest.first() != Some(&expected) {
            return Err(broken("a chunk is longer than its size"));
        }
        self.output.push(expected);
        self.state = if left == 2 { State::Chunk(1) } else { State::ChunkLine };
        Ok(1)
    }

    fn chunk_line(&mut self, rest: &[u8]) -> io::Result<usize> {
        let Some(length) = line(rest, MAX_CHUNK_LINE)? else {
            return Ok(0);
        };
        let text = &rest[..length - 2];
        let digits = text.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| !digits.is_empty() && digits.len() <= 15 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or_else(|| broken("a chunk size is not a number"))?;
        self.output.extend_from_slice(&rest[..length]);
        self.state = if size == 0 {
            State::Trailers
        } else {
            State::Chunk(size + 2)
        };
        Ok(length)
    }

    fn trailers(&mut self, rest: &[u8]) -> io::Result<usize> {
        let Some(length) = line(rest, MAX_TRAILERS)? else {
            return Ok(0);
        };
        let text = &rest[..length - 2];
        if text.is_empty() {
            self.state = State::Head;
        } else if header(text).is_err() {
            return Err(broken("a trailer is not a header line"));
        }
        self.output.extend_from_slice(&rest[..length]);
        Ok(length)
    }
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Length of the first line with its CRLF.
fn line(rest: &[u8], max: usize) -> io::Result<Option<usize>> {
    match rest.iter().position(|byte| *byte == b'\n') {
        Some(at) if at == 0 || rest[at - 1] != b'\r' => Err(broken("a line ends without CR")),
        Some(at) if at >= max => Err(broken("a line is too long")),
        Some(at) if rest[..at - 1].contains(&b'\r') => Err(broken("a line has a CR in it")),
        Some(at) => Ok(Some(at + 1)),
        None if rest.len() > max => Err(broken("a line is too long")),
        None => Ok(None),
    }
}

/// Length of the head that `rest` begins with, its empty line included.
fn find_end(rest: &[u8]) -> Result<Option<usize>, Refusal> {
    let mut start = 0;
    loop {
        let line = &rest[start..];
        let Some(end) = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
            break;
        };
        match (line[end], line.get(end + 1)) {
            (b'\n', _) => return Err(bad("bare-lf")),
            (_, None) => break,
            (_, Some(b'\n')) => {}
            (_, Some(_)) => return Err(bad("bare-cr")),
        }
        if start == 0 && end > MAX_TARGET + 64 {
            break;
        }
        start += end + 2;
        if end == 0 {
            return if start > MAX_HEAD {
                Err(TOO_LARGE)
            } else {
                Ok(Some(start))
            };
        }
    }
    if start == 0 && rest.len() > MAX_TARGET + 64 {
        return Err(URI_TOO_LONG);
    }
    if rest.len() > MAX_HEAD {
        Err(TOO_LARGE)
    } else {
        Ok(None)
    }
}

const TOO_LARGE: Refusal = Refusal {
    status: 431,
    reason: "head-too-large",
};
const URI_TOO_LONG: Refusal = Refusal {
    status: 414,
    reason: "uri-too-long",
};

/// What a good head says of the bytes behind it.
struct Checked {
    /// The framing of its body.
    body: State,
    asks_upgrade: bool,
}

/// Checks a whole head.
fn check_head(head: &[u8]) -> Result<Checked, Refusal> {
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let http_11 = request_line(lines.next().unwrap_or_default())?;
    let (mut hosts, mut length, mut chunked, mut count, mut asks_upgrade) = (0, None, None, 0, false);
    for text in lines.take_while(|line| !line.is_empty()) {
        count += 1;
        if count > MAX_HEADERS {
            return Err(Refusal {
                status: 431,
                reason: "too-many-headers",
            });
        }
        let (name, value) = header(text)?;
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if length.is_some() {
                return Err(bad("two-lengths"));
            }
            length = Some(content_length(value)?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked.is_some() || !value.eq_ignore_ascii_case(b"chunked") || !http_11 {
                return Err(bad("transfer-encoding"));
            }
            chunked = Some(());
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            asks_upgrade = http_11;
        }
    }
    match hosts {
        1 => {}
        0 => return Err(bad("no-host")),
        _ => return Err(bad("two-hosts")),
    }
    let body = match (chunked, length) {
        (Some(()), Some(_)) => return Err(bad("two-lengths")),
        (Some(()), None) => State::ChunkLine,
        (None, Some(0) | None) => State::Head,
        (None, Some(length)) => State::Sized(length),
    };
    Ok(Checked { body, asks_upgrade })
}

/// Whether the request is of HTTP/1.1 (else 1.0).
fn request_line(line: &[u8]) -> Result<bool, Refusal> {
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts.as_slice() else {
        return Err(bad("request-line"));
    };
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return Err(bad("request-line"));
    }
    if method.eq_ignore_ascii_case(b"connect") {
        return Err(Refusal {
            status: 501,
            reason: "connect",
        });
    }
    if target.len() > MAX_TARGET {
        return Err(URI_TOO_LONG);
    }
    if !(target.starts_with(b"/") || (*target == b"*" && *method == b"OPTIONS")) {
        return Err(bad("target-not-a-path"));
    }
    if !target.iter().all(|byte| byte.is_ascii_graphic() || *byte >= 0x80) {
        return Err(bad("request-line"));
    }
    match *version {
        b"HTTP/1.1" => Ok(true),
        b"HTTP/1.0" => Ok(false),
        _ => Err(Refusal {
            status: 505,
            reason: "http-version",
        }),
    }
}

/// Name and value of a header line.
fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
        return Err(bad("folded-header"));
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(bad("header-line"))?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err(bad("header-name"));
    }
    if value
        .iter()
        .any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f)
    {
        return Err(bad("header-value"));
    }
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = value.iter().position(is_text).unwrap_or(value.len());
    let end = value.iter().rposition(is_text).map_or(start, |at| at + 1);
    Ok((name, &value[start..end]))
}

fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    let digits = !value.is_empty() && value.len() <= 19 && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value)
        .ok()
        .filter(|_| digits)
        .and_then(|text| text.parse().ok())
        .ok_or(bad("content-length"))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
#[path = "head_guard_tests.rs"]
mod tests;
