//! A connection to an http expose: TLS handshake, the expose by server name, requests.

mod body;
pub(crate) mod head_guard;
mod headers;
mod host;
mod proxy;
pub(crate) mod request_log;
mod tunnel;
pub(crate) mod upstream;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nix::sys::socket::{MsgFlags, recv};
use rustls::ServerConfig;
use rustls::server::{Acceptor, ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::os::fd::AsRawFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tsnet::Incoming;

use self::head_guard::{HeadGuard, Heads, MAX_HEADERS};
use self::host::canonical;
use self::proxy::Service;
use super::carrier::Carrier;
use super::certificate::{ALPN, Certificate, provider};
use super::expose::{Expose, Way};
use crate::limits::Reached;
use crate::metrics::ErrorLabel;
use crate::usage::Open;

/// How long the handshake may take, from accept to the end of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an HTTP/1 connection may take for a request head, and be idle between requests.
const HEAD: Duration = Duration::from_secs(60);
/// An HTTP/2 client that is gone is noticed within twice this.
const PING: Duration = Duration::from_secs(20);
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 256;
/// Most of a head as HTTP/2 counts it.
const HEADER_LIST: u32 = 64 << 10;

/// Why a connection never came to a request.
pub(crate) const HANDSHAKE_ERRORS: [&str; 5] = ["plaintext", "server-name", "timeout", "tls", "closed"];

const PLAINTEXT: &str = "This port speaks HTTPS: use https:// in the URL.\n";

/// What is served on one port.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) certificate: Arc<Certificate>,
    /// Exposes by canonical name; only names that the certificate covers.
    pub(crate) names: HashMap<String, Arc<Expose>>,
}

/// Why there is no HTTP connection.
struct Failure {
    class: &'static str,
    expose: Option<Arc<Expose>>,
    why: String,
}

fn failure(class: &'static str, why: impl ToString) -> Failure {
    Failure {
        class,
        expose: None,
        why: why.to_string(),
    }
}

/// Takes a connection and returns at once.
pub(crate) fn take(carrier: &Carrier, incoming: Incoming, port: u16, site: Arc<Site>) {
    let Some(total) = carrier.total.one() else {
        let label = ErrorLabel {
            target: String::new(),
            class: Reached::Total.as_str(),
        };
        carrier.metrics.rejected.get_or_create(&label).inc();
        tracing::warn!(
            port,
            peer = incoming.source,
            error_class = Reached::Total.as_str(),
            "connection reset: too many are open"
        );
        return;
    };
    let shared = carrier.clone();
    carrier.connections.spawn(async move {
        let source = incoming.source.clone();
        match tokio::time::timeout(HANDSHAKE, shake_hands(&shared, incoming, &site)).await {
            Ok(Ok(accepted)) => serve(&shared, accepted, port, &source, total).await,
            Ok(Err(failure)) => tell(&shared, port, &source, &failure),
            Err(_) => tell(
                &shared,
                port,
                &source,
                &failure("timeout", "the handshake was not done within 10 s"),
            ),
        }
    });
}

fn tell(carrier: &Carrier, port: u16, source: &str, failure: &Failure) {
    let name = failure
        .expose
        .as_ref()
        .map(|expose| expose.name.clone())
        .unwrap_or_default();
    let label = ErrorLabel {
        target: name.clone(),
        class: failure.class,
    };
    carrier.metrics.handshake_errors.get_or_create(&label).inc();
    tracing::info!(
        target_name = name,
        port,
        peer = source,
        error_class = failure.class,
        error = failure.why,
        "handshake failed"
    );
}

struct Accepted {
    tls: TlsStream<UnixStream>,
    name: String,
    expose: Arc<Expose>,
}

async fn shake_hands(carrier: &Carrier, incoming: Incoming, site: &Site) -> Result<Accepted, Failure> {
    let (stream, _) = incoming.conn.into_stream().map_err(|error| failure("closed", error))?;
    match first_byte(&stream).await.map_err(|error| failure("closed", error))? {
        None => return Err(failure("closed", "the peer sent nothing")),
        // A handshake record.
        Some(0x16) => {}
        Some(byte) => {
            refuse_plaintext(stream, byte).await;
            return Err(failure("plaintext", "the peer does not speak TLS"));
        }
    }
    let start = LazyConfigAcceptor::new(Acceptor::default(), stream)
        .await
        .map_err(|error| failure("tls", error))?;
    let name = start.client_hello().server_name().map(canonical);
    let found = name.as_ref().and_then(|name| site.names.get(name)).cloned();
    let (Some(name), Some(expose)) = (name.clone(), found) else {
        // The client is told by an alert.
        let _ = start.into_stream(refusing()?).await;
        let name = name.as_deref().unwrap_or("no name");
        return Err(failure(
            "server-name",
            format!("the peer asked for {name}, which is none of this port's"),
        ));
    };
    carrier.metrics.accepted.get_or_create(&expose.usage.label()).inc();
    match start.into_stream(site.certificate.config.clone()).await {
        Ok(tls) => Ok(Accepted { tls, name, expose }),
        Err(error) => Err(Failure {
            expose: Some(expose),
            ..failure("tls", error)
        }),
    }
}

/// The first byte, which stays unread; None at the end.
async fn first_byte(stream: &UnixStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    let read = stream
        .async_io(Interest::READABLE, || {
            recv(stream.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK).map_err(io::Error::from)
        })
        .await?;
    Ok((read > 0).then_some(byte[0]))
}

/// Tells an HTTP client what it did; anything else is closed without a word.
async fn refuse_plaintext(mut stream: UnixStream, first: u8) {
    if first.is_ascii_uppercase() {
        let answer = format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n{}: plaintext\r\nConnection: close\r\n\r\n{PLAINTEXT}",
            PLAINTEXT.len(),
            proxy::REASON,
        );
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
        // Unread bytes would turn the end into a reset, and the answer would be lost.
        let mut rest = [0; 4096];
        let _ = tokio::time::timeout(Duration::from_secs(1), async {
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        })
        .await;
    }
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

fn refusing() -> Result<Arc<ServerConfig>, Failure> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| failure("tls", error))?;
    Ok(Arc::new(
        builder
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificate)),
    ))
}

async fn serve(carrier: &Carrier, accepted: Accepted, port: u16, source: &str, total: OwnedSemaphorePermit) {
    let Accepted { tls, name, expose } = accepted;
    let Some(permit) = expose.usage.limit.one() else {
        return carrier.reject(source, &expose, Reached::Target);
    };
    let open = Open::new(&expose.usage, &carrier.metrics);
    let http2 = tls.get_ref().1.alpn_protocol() == Some(ALPN[0]);
    let service = Service {
        carrier: carrier.clone(),
        expose,
        peer: Arc::new(carrier.who(source).await),
        port,
        name: name.clone(),
        heads: None,
    };
    let way = Way::Name { port, name };
    let serving = async {
        if http2 {
            serve_http2(carrier, tls, service).await
        } else {
            serve_http1(carrier, tls, service).await
        }
    };
    tokio::select! {
        result = serving => if let Err(error) = result {
            tracing::debug!(%error, peer = source, port, "HTTP connection");
        },
        () = carrier.ways.until_removed(&way) => tracing::info!(peer = source, port, "connection ended: its name is not configured any more"),
        () = carrier.abandon.cancelled() => {}
    }
    drop(open);
    drop((permit, total));
}

async fn serve_http1(carrier: &Carrier, tls: TlsStream<UnixStream>, service: Service) -> hyper::Result<()> {
    let heads = Heads::default();
    let service = Service {
        heads: Some(heads.clone()),
        ..service
    };
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(head_guard::MAX_HEAD + 8192)
        .max_headers(MAX_HEADERS);
    let io = TokioIo::new(HeadGuard::new(tls, heads));
    let connection = builder
        .serve_connection(io, service_fn(move |request| service.clone().answer(request)))
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        () = carrier.draining.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

async fn serve_http2(carrier: &Carrier, tls: TlsStream<UnixStream>, service: Service) -> hyper::Result<()> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_LIST)
        .initial_stream_window_size(512 << 10)
        .initial_connection_window_size(2 << 20);
    let connection = builder.serve_connection(
        TokioIo::new(tls),
        service_fn(move |request| service.clone().answer(request)),
    );
    tokio::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        () = carrier.draining.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
