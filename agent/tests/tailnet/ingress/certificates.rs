//! The certificate: none, good, bad, changed, all under one connection that goes on.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::bed::*;
use super::web::{self, APP};
use crate::support::*;

const A: &str = "a.test.internal";
const B: &str = "b.test.internal";

#[test]
fn certificates_come_and_go_under_open_connections() {
    in_namespace(async || {
        start_servers().await;
        web::start().await;
        let mut bed = Bed::alone(json!([http("a", A, APP), tcp("echo", TCP, ECHO)]), &[]).await;
        // Without one there is no listener, and the reason is told; the tcp expose serves all the same.
        let cause = |status: &Value| status["certificate"]["problem"]["cause"].clone();
        let status = bed
            .until("the tcp expose serves", |status| {
                status["exposes"][1]["listening"] == json!(true)
            })
            .await;
        assert_eq!(cause(&status), json!("NotIssued"), "{status}");
        assert_eq!(status["exposes"][0]["listening"], json!(false));
        assert!(
            status["exposes"][0]["error"].as_str().unwrap().contains("NotIssued"),
            "{status}"
        );
        let (code, text) = http_get_from("127.0.0.1:9403", "/readyz").await.unwrap();
        assert!(
            code == 503 && text.contains("a: no certificate for a.test.internal"),
            "{text}"
        );
        bed.join().await;
        wait_for("the tcp expose", Duration::from_secs(30), async || {
            let mut socket = TcpStream::connect(("127.0.0.1", TCP)).await.ok()?;
            echo(&mut socket, b"hello").await.ok()
        })
        .await;
        assert!(bed.tls(A, &["http/1.1"]).await.is_err());

        bed.issue(&[A]);
        bed.ready().await;
        let mut open = bed.tls(A, &["http/1.1"]).await.unwrap();
        let first = leaf(&open);
        ask(&mut open).await;

        // Bad ones change nothing.
        let good_key = std::fs::read_to_string(bed.dir().join("tls/tls.key")).unwrap();
        let good_chain = std::fs::read_to_string(bed.dir().join("tls/tls.crt")).unwrap();
        let (other_chain, _) = bed.authority.issue(&[A], 2040);
        let (expired_chain, expired_key) = bed.authority.issue(&[A], 2022);
        let (foreign_chain, foreign_key) = bed.authority.issue(&[B], 2040);
        for (chain, key, wanted) in [
            (&other_chain, &good_key, "KeyMismatch"),
            (&expired_chain, &expired_key, "Expired"),
            (&foreign_chain, &foreign_key, "SANMismatch"),
            (&"half a certif".to_owned(), &good_key, "Invalid"),
        ] {
            bed.put(chain, key);
            bed.until(wanted, |status| cause(status) == json!(wanted)).await;
            ask(&mut open).await;
            let new = bed.tls(A, &["http/1.1"]).await.unwrap();
            assert_eq!(leaf(&new), first, "{wanted}: the last good one serves");
        }
        bed.put(&good_chain, &good_key);
        bed.until("the good one is back", |status| cause(status) == json!(null))
            .await;

        // A new name waits for its certificate, a new certificate comes, and the open connection knows nothing of it.
        bed.configure(&json!([http("a", A, APP), http("b", B, APP), tcp("echo", TCP, ECHO)]));
        let status = bed
            .until("b waits", |status| cause(status) == json!("SANMismatch"))
            .await;
        assert_eq!(status["exposes"][0]["listening"], json!(true), "{status}");
        assert_eq!(status["exposes"][1]["listening"], json!(false), "{status}");
        assert!(bed.tls(B, &["http/1.1"]).await.is_err());
        bed.issue(&[A, B]);
        bed.ready().await;
        let second = leaf(&bed.tls(B, &["http/1.1"]).await.unwrap());
        assert_ne!(first, second);
        assert_eq!(leaf(&bed.tls(A, &["http/1.1"]).await.unwrap()), second);
        ask(&mut open).await;
        let status = bed.status().await;
        assert_eq!(status["certificate"]["dnsNames"], json!([A, B]));
        assert_eq!(status["certificate"]["notAfter"], json!("2040-01-01T00:00:00Z"));
        assert!(!bed.ingress.log().contains("PRIVATE KEY"));
    });
}

fn leaf(tls: &TlsStream<TcpStream>) -> Vec<u8> {
    tls.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// A request on a connection that is kept.
async fn ask(tls: &mut TlsStream<TcpStream>) {
    tls.write_all(format!("HEAD /cached HTTP/1.1\r\nHost: {A}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        within(tls.read_exact(&mut byte)).await.unwrap();
        answer.push(byte[0]);
    }
    assert!(
        answer.starts_with(b"HTTP/1.1 200 OK\r\n"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}
