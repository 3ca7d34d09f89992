//! Backends of http exposes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use futures::StreamExt;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A backend with many answers, HTTP/1.1 and HTTP/2 without TLS.
pub const APP: u16 = 7101;
/// A backend that answers every connection's first request with its own name.
pub const OTHER: u16 = 7102;

pub async fn start() {
    serve_router(APP, app()).await;
    let other = Router::new().fallback(|| async { "other\n" });
    serve_router(OTHER, other).await;
}

async fn serve_router(port: u16, router: Router) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
}

fn app() -> Router {
    Router::new()
        .route("/headers", any(headers))
        .route("/hang", any(|| async { std::future::pending::<()>().await }))
        .route("/half", get(half))
        .route("/events", get(events))
        .route("/encoded", get(encoded))
        .route("/upload", post(upload))
        .route("/upgrade", get(upgrade))
        .route("/test.Echo/Stream", post(grpc))
        .route("/cached", get(cached))
}

/// What came, a line per header, with the version and target before them.
async fn headers(request: Request) -> String {
    let mut lines = vec![format!(
        "{} {} {:?}",
        request.method(),
        request.uri(),
        request.version()
    )];
    let pairs = request.headers().iter();
    lines.extend(pairs.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())));
    lines.join("\n") + "\n"
}

/// A head, half a body, and then nothing.
async fn half() -> Response {
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"half"))]);
    Body::from_stream(first.chain(stream::pending())).into_response()
}

/// Three events, each when the one before has long been sent.
async fn events() -> Response {
    let events = stream::iter(1..=3).then(|number| async move {
        if number > 1 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok::<_, Infallible>(Bytes::from(format!("data: {number}\n\n")))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

/// Bytes that call themselves compressed and are not.
async fn encoded(request: HeaderMap) -> Response {
    let asked = request.get(header::ACCEPT_ENCODING).is_some();
    (
        [
            (header::CONTENT_ENCODING, "br"),
            (header::ETAG, "W/\"1\""),
            (header::CONTENT_RANGE, if asked { "bytes 1-2/3" } else { "bytes 0-1/3" }),
        ],
        b"\x00\xff\r\n".to_vec(),
    )
        .into_response()
}

async fn upload(request: Request) -> String {
    let expect = request.headers().contains_key(header::EXPECT);
    let (mut length, mut sum) = (0_u64, 0_u64);
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.unwrap().into_data() {
            length += data.len() as u64;
            sum = data
                .iter()
                .fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        }
    }
    format!("{length} {sum} expect={expect}\n")
}

async fn cached(request: HeaderMap) -> Response {
    let tag = [(header::ETAG, "\"v1\"")];
    if request
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value == "\"v1\"")
    {
        return (StatusCode::NOT_MODIFIED, tag).into_response();
    }
    (tag, "the whole thing\n").into_response()
}

/// Another protocol: says hello, then gives back every byte.
async fn upgrade(mut request: Request) -> Response {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let mut stream = TokioIo::new(upgraded);
        let _ = stream.write_all(b"hello\n").await;
        let mut buf = [0; 1024];
        while let Ok(read @ 1..) = stream.read(&mut buf).await {
            if stream.write_all(&buf[..read]).await.is_err() {
                break;
            }
        }
    });
    (
        StatusCode::SWITCHING_PROTOCOLS,
        [(header::CONNECTION, "upgrade"), (header::UPGRADE, "echo")],
    )
        .into_response()
}

/// gRPC, as far as a proxy sees it: every message comes back at once, then trailers.
async fn grpc(request: Request) -> Response {
    let trailers = request.headers().get(header::TE).is_some_and(|te| te == "trailers");
    let version = format!("{:?}", request.version());
    let messages = request.into_body().into_data_stream();
    let messages = messages.map(|data| Ok::<_, axum::Error>(Frame::data(data?)));
    let mut end = HeaderMap::new();
    end.insert("grpc-status", if trailers { "0" } else { "13" }.parse().unwrap());
    end.insert("x-version", version.parse().unwrap());
    let body = StreamBody::new(messages.chain(stream::iter([Ok(Frame::trailers(end))])));
    ([(header::CONTENT_TYPE, "application/grpc")], Body::new(body)).into_response()
}

/// A backend that keeps what it got, byte by byte, and answers every head with `answer`.
pub async fn recorder(port: u16, answer: &'static [u8]) -> Arc<Mutex<Vec<u8>>> {
    let record = Arc::new(Mutex::new(Vec::new()));
    let kept = record.clone();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let record = record.clone();
            tokio::spawn(async move {
                let mut buf = [0; 4096];
                while let Ok(read @ 1..) = socket.read(&mut buf).await {
                    record.lock().extend_from_slice(&buf[..read]);
                    if record.lock().windows(4).any(|bytes| bytes == b"\r\n\r\n")
                        && socket.write_all(answer).await.is_err()
                    {
                        break;
                    }
                }
            });
        }
    });
    kept
}
