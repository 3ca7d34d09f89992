//! Requests that must not reach a backend, byte by byte.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::bed::*;
use super::web;
use crate::support::*;

const NAME: &str = "a.test.internal";
const RECORDED: u16 = 7110;

#[test]
fn malformed_requests_reach_no_backend() {
    in_namespace(async || {
        let record = web::recorder(RECORDED, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let bed = Bed::new(json!([http("a", NAME, RECORDED)]), &[NAME], &[]).await;
        let good = "GET /good HTTP/1.1\r\nHost: a.test.internal\r\nConnection: close\r\n\r\n";
        wait_for("the first answer", Duration::from_secs(30), async || {
            let answer = send(&bed, good).await;
            answer.starts_with("HTTP/1.1 200 OK\r\n").then_some(())
        })
        .await;
        record.lock().clear();
        let host = "Host: a.test.internal\r\n";
        let long = format!("GET /{} HTTP/1.1\r\n{host}\r\n", "x".repeat(20_000));
        let large = format!("GET / HTTP/1.1\r\n{host}X: {}\r\n\r\n", "x".repeat(70_000));
        for (request, status, reason) in [
            (
                format!("POST / HTTP/1.1\r\n{host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
                400,
                "two-lengths",
            ),
            (
                format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
                400,
                "two-lengths",
            ),
            (
                format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n"),
                400,
                "transfer-encoding",
            ),
            (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), 400, "two-hosts"),
            ("GET / HTTP/1.1\nHost: a.test.internal\n\n".to_owned(), 400, "bare-lf"),
            (
                format!("GET / HTTP/1.1\r\n{host}X: a\r\n b\r\n\r\n"),
                400,
                "folded-header",
            ),
            (
                format!("GET https://a.test.internal/ HTTP/1.1\r\n{host}\r\n"),
                400,
                "target-not-a-path",
            ),
            (
                format!("CONNECT a.test.internal:443 HTTP/1.1\r\n{host}\r\n"),
                501,
                "connect",
            ),
            (long, 414, "uri-too-long"),
            (large, 431, "head-too-large"),
        ] {
            let answer = send(&bed, &request).await;
            let short: String = request.chars().take(90).collect();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{short}: {answer}");
            assert!(
                answer.contains(&format!("tailnet-ingress-reason: {reason}\r\n")),
                "{short}: {answer}"
            );
        }
        // What comes behind a refused request is not looked at.
        let smuggled =
            format!("POST / HTTP/1.1\r\n{host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{good}");
        let answer = send(&bed, &smuggled).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert_eq!(record.lock().as_slice(), b"", "something reached the backend");

        // Two good ones at once are both answered.
        let twice = format!("GET /one HTTP/1.1\r\n{host}\r\n{good}");
        let answer = send(&bed, &twice).await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
        let line = bed.line("the refusal", |line| line["reason"] == "two-lengths").await;
        assert_eq!((&line["status"], &line["target_name"]), (&json!(400), &json!("a")));
        slow_loris(&bed).await;
    });
}

/// Sends and reads to the end; an error ends it as well.
async fn send(bed: &Bed, request: &str) -> String {
    let Ok(mut tls) = bed.tls(NAME, &["http/1.1"]).await else {
        return String::new();
    };
    tls.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = within(tls.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// A peer that sends nothing, or no more than a handshake's start, is let go.
async fn slow_loris(bed: &Bed) {
    let mut silent = connect(HTTPS).await;
    let mut slow = connect(HTTPS).await;
    slow.write_all(b"\x16\x03\x01").await.unwrap();
    for socket in [&mut silent, &mut slow] {
        let mut rest = Vec::new();
        let _ = within(socket.read_to_end(&mut rest)).await;
    }
    assert!(
        bed.metric("tailnet_agent_handshake_errors_total{target=\"\",class=\"timeout\"}")
            .await
            >= 2.0
    );
}
