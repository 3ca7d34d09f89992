use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;

/// What the server sees of `bytes`, read in pieces of `piece`, and the heads.
async fn seen(bytes: &[u8], piece: usize) -> (io::Result<Vec<u8>>, Vec<Option<Refusal>>) {
    let heads = Heads::default();
    let pieces: Vec<&[u8]> = bytes.chunks(piece.max(1)).collect();
    let mut mock = tokio_test_reader(&pieces);
    // No request is waited for: each is answered before the next one is looked at.
    heads.answered.store(u64::MAX, Ordering::Release);
    let mut guard = HeadGuard::new(&mut mock, heads.clone());
    let mut out = Vec::new();
    let result = guard.read_to_end(&mut out).await;
    let heads = std::iter::from_fn(|| heads.next()).map(|head| head.refusal).collect();
    (result.map(|_| out), heads)
}

/// A reader that gives one piece per read.
struct Pieces<'a>(std::collections::VecDeque<&'a [u8]>);

fn tokio_test_reader<'a>(pieces: &[&'a [u8]]) -> Pieces<'a> {
    Pieces(pieces.iter().copied().collect())
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(piece) = self.0.pop_front() {
            let (now, later) = piece.split_at(piece.len().min(buf.remaining()));
            buf.put_slice(now);
            if !later.is_empty() {
                self.0.push_front(later);
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn run(bytes: &[u8], piece: usize) -> (io::Result<Vec<u8>>, Vec<Option<Refusal>>) {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(seen(bytes, piece))
}

const GOOD: &[u8] = b"POST /a?b HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n\
    4;x=y\r\nWiki\r\n1\r\n\n\r\n0\r\nTrailer-One: 1\r\n\r\n\
    PUT / HTTP/1.1\r\nhost:a.example\r\ncontent-length: 5\r\n\r\n\n\r\n\r\n\
    GET /x HTTP/1.0\r\nHost: a.example\r\n\r\n";

#[test]
fn good_requests_pass_unchanged_however_they_are_cut() {
    for piece in 1..GOOD.len() {
        let (out, heads) = run(GOOD, piece);
        assert_eq!(out.unwrap(), GOOD, "pieces of {piece}");
        assert_eq!(heads, [None; 3]);
    }
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(MAX_TARGET));
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(MAX_HEAD));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(MAX_HEADERS));
    for (request, status, reason) in [
        ("GET / HTTP/1.1\nHost: a\n\n", 400, "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", 400, "bare-cr"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", 400, "folded-header"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "header-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "two-hosts"),
        ("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400, "two-hosts"),
        ("GET / HTTP/1.1\r\n\r\n", 400, "no-host"),
        (
            "GET https://b.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
            400,
            "target-not-a-path",
        ),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target-not-a-path"),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target-not-a-path"),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request-line"),
        ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request-line"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 501, "connect"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "target-not-a-path"),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "http-version"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "two-lengths",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
            400,
            "two-lengths",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            400,
            "two-lengths",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
            400,
            "content-length",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
            400,
            "content-length",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            400,
            "transfer-encoding",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
            400,
            "transfer-encoding",
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "transfer-encoding",
        ),
        (&long, 414, "uri-too-long"),
        (&large, 431, "head-too-large"),
        (&many, 431, "too-many-headers"),
    ] {
        for piece in [1, 7, 100_000] {
            let (out, heads) = run(request.as_bytes(), piece);
            assert_eq!(out.unwrap(), STAND_IN, "{request:.80} in pieces of {piece}");
            assert_eq!(heads, [Some(Refusal { status, reason })], "{request:.80}");
        }
    }
}

#[test]
fn nothing_behind_a_refused_request_is_served() {
    let (out, heads) = run(
        b"GET / HTTP/1.1\nHost: a\n\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n",
        10,
    );
    assert_eq!(out.unwrap(), STAND_IN);
    assert_eq!(heads.len(), 1);
}

#[test]
fn a_broken_chunk_breaks_the_connection() {
    let with = |body: &str| format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    for body in [
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "0\r\nX y\r\n\r\n",
        "0\r\nX: y\n\r\n",
        "ffffffffffffffff\r\n",
    ] {
        let (out, _) = run(with(body).as_bytes(), 3);
        assert!(out.is_err(), "{body:?}");
    }
}

#[test]
fn an_upgraded_connection_is_left_alone() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let heads = Heads::default();
        let pieces: [&[u8]; 3] = [
            b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"early\n",
            b"\0\n",
        ];
        let mut guard = HeadGuard::new(tokio_test_reader(&pieces), heads.clone());
        let mut head = vec![0; pieces[0].len()];
        guard.read_exact(&mut head).await.unwrap();
        heads.upgraded();
        let mut rest = Vec::new();
        guard.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"early\n\0\n");
    });
}

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";

/// A guard around `bytes` in one piece, of which the server has read a request that asks for another protocol.
async fn asked<'a>(bytes: &'a [u8], heads: &Heads) -> HeadGuard<Pieces<'a>> {
    let mut guard = HeadGuard::new(tokio_test_reader(&[bytes]), heads.clone());
    let mut head = vec![0; UPGRADE.len()];
    guard.read_exact(&mut head).await.unwrap();
    assert_eq!(head, UPGRADE);
    assert!(
        futures::poll!(Box::pin(guard.read_u8())).is_pending(),
        "what follows has no meaning yet"
    );
    guard
}

/// A client that does not wait for the 101 loses nothing, and nothing of its own bytes is taken for a request.
#[tokio::test]
async fn bytes_sent_before_the_upgrade_are_not_read_as_a_request() {
    for early in [&b"\0early\n"[..], b"GET / HTTP/1.1\r\nbad\r\n\r\n"] {
        let heads = Heads::default();
        let bytes = [UPGRADE, early].concat();
        let mut guard = asked(&bytes, &heads).await;
        heads.upgraded();
        let mut rest = Vec::new();
        guard.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, early);
        assert_eq!(heads.queue.lock().len(), 1);
    }
}

#[tokio::test]
async fn after_a_declined_upgrade_the_next_request_is_checked() {
    let heads = Heads::default();
    let good = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    let bytes = [UPGRADE, good, b"GET / HTTP/1.1\nHost: a\n\n"].concat();
    let mut guard = asked(&bytes, &heads).await;
    heads.answered();
    let mut rest = Vec::new();
    guard.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [&good[..], STAND_IN].concat());
    let refused: Vec<bool> = heads.queue.lock().iter().map(|head| head.refusal.is_some()).collect();
    assert_eq!(refused, [false, false, true]);
}

proptest! {
    /// Whatever comes: what the server sees is what was sent, from its start, with nothing in it that was not.
    #[test]
    fn the_server_sees_a_prefix(bytes in "(GET|POST) /[a-z]{0,3} HTTP/1.[01]\r\n(Host: a\r?\n)?((Content-Length: [0-9]{1,2}|X: ?[a-z]*|Transfer-Encoding: chunked| y)\r?\n){0,4}\r?\n([0-9a-f]\r\n[a-z]{0,9}(\r\n)?){0,3}", piece in 1_usize..40) {
        let (out, heads) = run(bytes.as_bytes(), piece);
        if let Ok(out) = out {
            let refused = heads.iter().any(Option::is_some);
            let plain = if refused { out.strip_suffix(STAND_IN).unwrap() } else { out.as_slice() };
            prop_assert!(bytes.as_bytes().starts_with(plain));
            prop_assert!(refused || plain == bytes.as_bytes());
        }
    }
}
