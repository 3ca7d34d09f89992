//! http exposes with curl as the client: names, headers, limits, errors.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::bed::*;
use super::web::{self, APP, OTHER};
use crate::support::*;

const A: &str = "a.test.internal";
const B: &str = "b.test.internal";

#[test]
fn http_exposes_as_curl_sees_them() {
    in_namespace(async || {
        web::start().await;
        let mut short = http("short", "short.test.internal", APP);
        short["http"]["backendRequestTimeoutMs"] = json!(500);
        short["http"]["requestTimeoutMs"] = json!(1500);
        let nowhere = json!({"name": "nowhere", "port": HTTPS,
            "http": {"names": ["nowhere.test.internal"], "backendRequestTimeoutMs": 60000}});
        let mut bed = Bed::new(
            json!([
                http("a", A, APP),
                http("b", B, OTHER),
                short,
                nowhere,
                http("dead", "dead.test.internal", NOBODY)
            ]),
            &["*.test.internal"],
            &[],
        )
        .await;
        wait_for("the first answer", Duration::from_secs(30), async || {
            let (ok, text) = bed.curl(B, "/", &[]).await;
            (ok && text == "other\n").then_some(())
        })
        .await;
        names(&bed).await;
        headers(&bed).await;
        untouched(&bed).await;
        uploads(&bed).await;
        errors(&bed).await;
        log_and_metrics(&bed).await;
        stop(&mut bed).await;
    });
}

/// The name of the handshake decides, and the host must be the same one.
async fn names(bed: &Bed) {
    for version in ["--http1.1", "--http2"] {
        let (ok, text) = bed.curl(A, "/headers", &[version]).await;
        assert!(ok && text.starts_with("GET /headers HTTP/1.1\n"), "{text}");
        for host in [
            "A.Test.Internal",
            "a.test.internal.",
            "a.test.internal:443",
            "A.test.internal.:9443",
        ] {
            let (ok, text) = bed
                .curl(A, "/headers", &[version, "-H", &format!("Host: {host}")])
                .await;
            assert!(ok && text.contains(&format!("host: {host}\n")), "{host}: {text}");
        }
        for host in [B, "test.internal", "a.test.internal.b.test.internal", "127.0.0.1"] {
            let args = [version, "-H", &format!("Host: {host}"), "-w", "%{http_code}"];
            let (_, text) = bed.curl(A, "/headers", &args).await;
            assert!(text.ends_with("421"), "{host}: {text}");
        }
    }
    let (ok, text) = bed.curl("none.test.internal", "/", &[]).await;
    assert!(
        !ok && text.contains("alert"),
        "a name that nobody has is refused in the handshake: {text}"
    );
    bed.line("why", |line| {
        line["message"] == "handshake failed" && line["error_class"] == "server-name"
    })
    .await;
    // Plain HTTP.
    let output = tokio::process::Command::new("curl")
        .args(["-sS", "--max-time", "20", "--noproxy", "*", "-w", "%{http_code}"])
        .arg(format!("http://127.0.0.1:{HTTPS}/"))
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("speaks HTTPS") && text.ends_with("400"), "{text}");
}

/// What the backend gets.
async fn headers(bed: &Bed) {
    for version in ["--http1.1", "--http2"] {
        let lies = [
            version,
            "-H",
            "X-Forwarded-For: 10.0.0.1",
            "-H",
            "X-Forwarded-Proto: http",
            "-H",
            "Forwarded: for=10.0.0.1",
            "-H",
            "X-Real-IP: 10.0.0.1",
            "-H",
            "Tailscale-User-Login: root@example.net",
            "-H",
            "Tailscale_User_Login: root@example.net",
            "-H",
            "Range: bytes=1-2",
        ];
        let (ok, text) = bed.curl(A, "/headers?q=1", &lies).await;
        assert!(ok, "{text}");
        assert!(text.starts_with("GET /headers?q=1 HTTP/1.1\n"), "{text}");
        assert!(!text.contains("10.0.0.1") && !text.contains("root@"), "{text}");
        assert!(!text.contains("accept-encoding"), "none is invented: {text}");
        assert!(text.contains("x-forwarded-for: 100.64."), "{text}");
        assert!(text.contains("x-forwarded-proto: https\n"), "{text}");
        assert!(text.contains("x-forwarded-host: a.test.internal:9443\n"), "{text}");
        assert!(text.contains("forwarded: for=100.64."), "{text}");
        assert!(text.contains("range: bytes=1-2\n"), "{text}");
        assert!(!text.contains("tailscale"), "the peer is a tagged node: {text}");
    }
}

/// What the client gets.
async fn untouched(bed: &Bed) {
    for version in ["--http1.1", "--http2"] {
        let (ok, text) = bed.curl(A, "/encoded", &[version, "--include", "--output", "-"]).await;
        assert!(ok && text.contains("content-encoding: br\r\n"), "{text}");
        assert!(
            text.contains("etag: W/\"1\"\r\n") && text.contains("content-range: bytes 0-1/3\r\n"),
            "{text}"
        );
        assert!(
            text.contains("content-length: 4\r\n") && text.ends_with("\r\n"),
            "{text}"
        );
        let (ok, text) = bed.curl(A, "/cached", &[version, "--head"]).await;
        assert!(
            ok && text.contains("content-length: 16\r\n"),
            "HEAD keeps the length: {text}"
        );
        let matching = [version, "--include", "-H", "If-None-Match: \"v1\""];
        let (ok, text) = bed.curl(A, "/cached", &matching).await;
        assert!(ok && text.contains(" 304") && text.contains("etag: \"v1\""), "{text}");
        let (ok, text) = bed.curl(A, "/events", &[version, "--no-buffer"]).await;
        assert!(ok && text == "data: 1\n\ndata: 2\n\ndata: 3\n\n", "{text}");
    }
}

/// Sized and chunked, with the client asking first.
async fn uploads(bed: &Bed) {
    let file = bed.world.dir.path().join("upload");
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    let sum = content
        .iter()
        .fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let data = format!("@{}", file.display());
    for version in ["--http1.1", "--http2"] {
        for framing in ["X-Sized: yes", "Transfer-Encoding: chunked"] {
            let args = [
                version,
                "-H",
                framing,
                "-H",
                "Expect: 100-continue",
                "--data-binary",
                &data,
                "-v",
            ];
            let (ok, text) = bed.curl(A, "/upload", &args).await;
            assert!(
                ok && text.contains(&format!("{} {sum} expect=false\n", content.len())),
                "{version} {framing}: {text}"
            );
            if version == "--http1.1" {
                assert!(text.contains("HTTP/1.1 100 Continue"), "{text}");
            }
        }
    }
}

/// Every failure has its status and its reason.
async fn errors(bed: &Bed) {
    for (name, path, status, reason) in [
        ("short.test.internal", "/hang", "504", "backend-request-timeout"),
        ("nowhere.test.internal", "/", "503", "no-backend"),
        ("dead.test.internal", "/", "502", "backend-refused"),
    ] {
        for version in ["--http1.1", "--http2"] {
            let (_, text) = bed.curl(name, path, &[version, "--include"]).await;
            assert!(text.contains(&format!(" {status}")), "{name}{path}: {text}");
            assert!(
                text.contains(&format!("tailnet-ingress-reason: {reason}\r\n")),
                "{name}{path}: {text}"
            );
        }
    }
    for version in ["--http1.1", "--http2"] {
        let (ok, text) = bed
            .curl("short.test.internal", "/half", &[version, "--no-buffer"])
            .await;
        assert!(
            !ok && text.starts_with("half"),
            "an answer that is cut off must not look whole: {text}"
        );
    }
    bed.line("the request limit", |line| {
        line["target_name"] == "short" && line["path"] == "/half" && line["reason"] == "request-timeout"
    })
    .await;
    // An upload that takes longer than the backend may does not count as the backend's time.
    let dial = bed.expose("dead").await["lastDial"].clone();
    assert_eq!(dial["errorClass"], json!("refused"), "{dial}");
    // The others serve.
    let (ok, text) = bed.curl(B, "/", &[]).await;
    assert!(ok && text == "other\n", "{text}");
}

async fn log_and_metrics(bed: &Bed) {
    let line = bed
        .line("an access log line", |line| {
            line["message"] == "request" && line["target_name"] == "a" && line["path"] == "/headers"
        })
        .await;
    assert_eq!(
        (&line["method"], &line["status"]),
        (&json!("GET"), &json!(200)),
        "{line}"
    );
    assert_eq!(line["node"], json!("egress"), "{line}");
    assert!(line["peer"].as_str().unwrap().starts_with("100.64."), "{line}");
    assert!(line["bytes_to_tailnet"].as_u64().unwrap() > 0, "{line}");
    assert!(!bed.ingress.log().contains("q=1"), "no query is logged");
    assert!(
        bed.metric("tailnet_agent_http_requests_total{target=\"a\",code=\"2xx\"}")
            .await
            >= 4.0
    );
    assert!(
        bed.metric("tailnet_agent_http_requests_total{target=\"dead\",code=\"5xx\"}")
            .await
            >= 2.0
    );
    assert!(
        bed.metric("tailnet_agent_http_request_duration_seconds_count{target=\"b\"}")
            .await
            >= 1.0
    );
    assert!(
        bed.metric("tailnet_agent_handshake_errors_total{target=\"\",class=\"plaintext\"}")
            .await
            >= 1.0
    );
    assert!(bed.metric("tailnet_agent_certificate_not_after_seconds").await > 2e9);
}

/// A stop signal: a request under way is answered, an idle connection is closed, the node is gone.
async fn stop(bed: &mut Bed) {
    let mut idle = bed.tls(B, &["http/1.1"]).await.unwrap();
    idle.write_all(format!("GET / HTTP/1.1\r\nHost: {B}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut busy = bed.tls(A, &["http/1.1"]).await.unwrap();
    let head = format!("POST /upload HTTP/1.1\r\nHost: {A}\r\nContent-Length: 2\r\n\r\na");
    busy.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    within(idle.read_exact(&mut first)).await.unwrap();
    signal(bed.ingress.pid(), Signal::SIGTERM);
    let mut rest = Vec::new();
    within(idle.read_to_end(&mut rest)).await.expect("an orderly end");
    busy.write_all(b"b").await.unwrap();
    let mut answer = Vec::new();
    let _ = within(busy.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("expect=false"),
        "{answer}"
    );
    assert!(bed.ingress.exit(Duration::from_secs(30)).await.success());
    assert!(bed.world.headscale.ids("ingress").is_empty(), "the node has logged out");
}

/// A node of a user: the backend hears who it is.
#[test]
fn a_user_is_named_to_the_backend() {
    in_namespace(async || {
        web::start().await;
        let mut bed = Bed::alone(json!([http("a", A, APP)]), &[]).await;
        bed.issue(&[A]);
        bed.ready().await;
        bed.join_as("anna", "Anna Ähre").await;
        let text = wait_for("the first answer", Duration::from_secs(30), async || {
            let lie = ["-H", "Tailscale-User-Login: root@example.net"];
            let (ok, text) = bed.curl(A, "/headers", &lie).await;
            ok.then_some(text)
        })
        .await;
        assert!(text.contains("tailscale-user-login: anna"), "{text}");
        assert!(
            text.contains("tailscale-user-name: =?utf-8?q?Anna_=C3=84hre?=\n"),
            "{text}"
        );
        assert!(!text.contains("root@"), "{text}");
    });
}
