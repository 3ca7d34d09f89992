//! What lives longer than a request and an answer: gRPC streams, upgrades; and verified HTTPS to the backend.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::bed::*;
use super::web::{self, APP};
use crate::support::*;

const NAME: &str = "a.test.internal";
const SECURE: &str = "secure.test.internal";
const SECURE_PORT: u16 = 7120;

#[test]
fn grpc_upgrades_and_backend_tls() {
    in_namespace(async || {
        web::start().await;
        let bed = Bed::alone(json!([http("a", NAME, APP)]), &[]).await;
        bed.issue(&["*.test.internal"]);
        let mut bed = bed;
        bed.ready().await;
        bed.join().await;
        wait_for("the first answer", Duration::from_secs(30), async || {
            let (ok, _) = bed.curl(NAME, "/headers", &[]).await;
            ok.then_some(())
        })
        .await;
        grpc(&bed).await;
        let tunnel = upgrade(&bed).await;
        backend_tls(&bed).await;
        a_tunnel_ends_with_its_expose(&bed, tunnel).await;
    });
}

/// A bidirectional stream: every message is answered before the next is sent; trailers at the end.
async fn grpc(bed: &Bed) {
    let tls = bed.tls(NAME, &["h2"]).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tls))
        .await
        .unwrap();
    tokio::spawn(connection);
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, std::convert::Infallible>>(4);
    let messages = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|frame| (frame, receiver))
    });
    let request = hyper::Request::post(format!("https://{NAME}:{HTTPS}/test.Echo/Stream"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(Box::pin(messages)))
        .unwrap();
    let response = within(client.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    for number in 0..20_u8 {
        let message = Bytes::from(vec![0, 0, 0, 0, 1, number]);
        sender.send(Ok(Frame::data(message.clone()))).await.unwrap();
        let frame = within(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), message);
    }
    drop(sender);
    let trailers = within(body.frame()).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0", "TE: trailers reached the backend");
    assert_eq!(trailers["x-version"], "HTTP/2.0");
}

/// An upgrade over HTTP/1.1, as WebSockets begin.
async fn upgrade(bed: &Bed) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let mut tls = bed.tls(NAME, &["http/1.1"]).await.unwrap();
    let request = format!("GET /upgrade HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    // A client that does not wait for the 101, and bytes that no HTTP parser would take.
    let early = b"\0early\n\n";
    tls.write_all(&[request.as_bytes(), early].concat()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\nhello\n") {
        let mut byte = [0];
        within(tls.read_exact(&mut byte)).await.unwrap();
        head.push(byte[0]);
        assert!(head.len() < 4096, "{}", String::from_utf8_lossy(&head));
    }
    let text = String::from_utf8_lossy(&head);
    assert!(text.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{text}");
    assert!(text.contains("upgrade: echo\r\n"), "{text}");
    let mut back = vec![0; early.len()];
    within(tls.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, early);
    for message in [b"\x81\x00\n\r\n\r\n\0".as_slice(), b"GET / HTTP/1.1\nX\n\n"] {
        tls.write_all(message).await.unwrap();
        let mut back = vec![0; message.len()];
        within(tls.read_exact(&mut back)).await.unwrap();
        assert_eq!(back, message);
    }
    tls
}

fn secure(bed: &Bed, server_name: &str) -> Value {
    let mut expose = http("secure", SECURE, SECURE_PORT);
    let ca = bed.dir().join("backend-ca.crt");
    expose["http"]["tls"] = json!({"serverName": server_name, "caFile": ca});
    expose
}

/// HTTPS to the backend: its certificate is verified against the bundle, which is read again.
async fn backend_tls(bed: &Bed) {
    let other = Authority::new(&bed.dir());
    let (chain, key) = other.issue(&["backend.internal"], 2040);
    serve_tls(&chain, &key).await;
    let bundle = bed.dir().join("backend-ca.crt");
    let both = |name: &str| json!([http("a", NAME, APP), secure(bed, name)]);
    let answer = async |what: &str, wanted: &str| {
        wait_for(what, Duration::from_secs(20), async || {
            let (_, text) = bed.curl(SECURE, "/", &["--include"]).await;
            text.contains(wanted).then_some(())
        })
        .await;
    };
    bed.configure(&both("backend.internal"));
    answer("no bundle yet", "tailnet-ingress-reason: backend-ca").await;
    replace(&bundle, bed.authority.pem());
    answer("a bundle of others", "tailnet-ingress-reason: backend-tls").await;
    replace(&bundle, other.pem());
    answer("the right bundle", "over tls as backend.internal").await;
    bed.configure(&both("else.internal"));
    answer("another name", "tailnet-ingress-reason: backend-tls").await;
    bed.configure(&both("backend.internal"));
    answer("the right name", "over tls as backend.internal").await;
    replace(&bundle, "no certificate at all");
    bed.line("the broken bundle is told", |line| {
        line["message"] == "CA bundle not usable"
    })
    .await;
    answer("the last good bundle stays", "over tls as backend.internal").await;
}

async fn serve_tls(chain: &str, key: &str) {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
        .map(Result::unwrap)
        .collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", SECURE_PORT)).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(socket).await else {
                    return;
                };
                let name = tls.get_ref().1.server_name().unwrap_or("nobody").to_owned();
                let mut head = [0; 8192];
                while let Ok(1..) = tls.read(&mut head).await {
                    let body = format!("over tls as {name}\n");
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    if tls.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// The tunnel has outlived every reload that left its expose alone, and ends with it.
async fn a_tunnel_ends_with_its_expose(bed: &Bed, mut tunnel: tokio_rustls::client::TlsStream<tokio::net::TcpStream>) {
    tunnel.write_all(b"still here").await.unwrap();
    let mut back = [0; 10];
    within(tunnel.read_exact(&mut back)).await.unwrap();
    bed.configure(&json!([secure(bed, "backend.internal")]));
    let mut rest = Vec::new();
    let _ = within(tunnel.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
    let line = bed
        .line("its log line", |line| {
            line["message"] == "request" && line["path"] == "/upgrade"
        })
        .await;
    assert_eq!(line["status"], json!(101));
    assert!(line["bytes_from_tailnet"].as_u64().unwrap() > 20, "{line}");
    assert!(line["upgraded_ms"].as_u64().is_some(), "{line}");
}
