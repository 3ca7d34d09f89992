//! Connections to the backend of an http expose, kept and used again.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tailnet_crds::agent::{BackendTlsFiles, IngressExpose};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tsnet::{DialError, ErrorClass};

use super::body::RequestBody;
use crate::ingress::certificate::{ALPN, provider};
use crate::ingress::{backend, expose};

/// Idle connections that are kept per backend: enough that hundreds of clients need no new one per request.
const IDLE: usize = 512;
/// How long they are kept.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// A dead HTTP/2 connection is noticed within twice this.
const PING: Duration = Duration::from_secs(20);

pub(crate) type HttpClient = Client<Connector, RequestBody>;

/// The way to a backend as configured.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// HTTP/1.1 alone; also for upgrades.
    pub(crate) http1: HttpClient,
    /// HTTP/2 without TLS, or whatever the backend's TLS chooses.
    pub(crate) http2: HttpClient,
    /// Requests go by `http2` where they can.
    pub(crate) prefers_http2: bool,
}

/// Why there is no way to a backend.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("the Service has no cluster address, or no such port")]
    NoBackend,
    #[error("the CA bundle of backend.tls cannot be used: {0}")]
    Ca(String),
}

/// The upstream of an expose, made anew when its configuration or CA bundle changes. Requests under way go on with the old one.
#[derive(Debug)]
pub(crate) struct Upstreams {
    dial_timeout: Duration,
    current: ArcSwapOption<Upstream>,
    seen: Mutex<Option<Seen>>,
    error: Mutex<UpstreamError>,
}

/// What the current upstream was made from.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    backend: SocketAddr,
    h2c: bool,
    tls: Option<(BackendTlsFiles, Vec<u8>)>,
}

impl Upstreams {
    pub(crate) fn new(dial_timeout: Duration) -> Upstreams {
        Upstreams {
            dial_timeout,
            current: ArcSwapOption::empty(),
            seen: Mutex::new(None),
            error: Mutex::new(UpstreamError::NoBackend),
        }
    }

    pub(crate) fn get(&self) -> Result<Arc<Upstream>, UpstreamError> {
        self.current.load_full().ok_or_else(|| self.error.lock().clone())
    }

    /// Follows the expose and its CA bundle. A bundle that cannot be used leaves a good one of the same backend in force.
    pub(crate) fn follow(&self, spec: &IngressExpose) {
        let Some(http) = &spec.http else { return };
        let Some(backend) = spec.backend.as_ref().and_then(expose::address) else {
            self.set(None, UpstreamError::NoBackend);
            return;
        };
        let tls = match &http.tls {
            None => None,
            Some(files) => match std::fs::read(&files.ca_file) {
                Ok(bundle) => Some((files.clone(), bundle)),
                Err(error) => return self.failed(backend, files, format!("{}: {error}", files.ca_file)),
            },
        };
        let wanted = Seen {
            backend,
            h2c: http.h2c,
            tls,
        };
        if self.seen.lock().as_ref() == Some(&wanted) {
            return;
        }
        match Upstream::new(&wanted, self.dial_timeout) {
            Ok(upstream) => {
                tracing::info!(target_name = spec.name, backend = %backend, scheme = upstream.scheme, "backend");
                self.current.store(Some(Arc::new(upstream)));
                *self.seen.lock() = Some(wanted);
            }
            Err(why) => {
                if let Some((files, _)) = &wanted.tls {
                    self.failed(backend, files, why);
                }
            }
        }
    }

    fn failed(&self, backend: SocketAddr, files: &BackendTlsFiles, why: String) {
        let still_good = self
            .seen
            .lock()
            .as_ref()
            .is_some_and(|seen| seen.backend == backend && seen.tls.as_ref().is_some_and(|(now, _)| now == files));
        let text = format!(
            "{why}{}",
            if still_good {
                "; the last good one stays in force"
            } else {
                ""
            }
        );
        let news = !matches!(&*self.error.lock(), UpstreamError::Ca(before) if *before == text);
        if news {
            tracing::error!(backend = %backend, error = text, "CA bundle not usable");
        }
        if still_good {
            *self.error.lock() = UpstreamError::Ca(text);
        } else {
            self.set(None, UpstreamError::Ca(text));
        }
    }

    fn set(&self, upstream: Option<Arc<Upstream>>, error: UpstreamError) {
        *self.seen.lock() = None;
        self.current.store(upstream);
        *self.error.lock() = error;
    }
}

impl Upstream {
    fn new(wanted: &Seen, dial_timeout: Duration) -> Result<Upstream, String> {
        let connector = |alpn: &[&[u8]]| -> Result<Connector, String> {
            let tls = match &wanted.tls {
                None => None,
                Some((files, bundle)) => Some(tls(files, bundle, alpn)?),
            };
            Ok(Connector {
                address: wanted.backend,
                limit: dial_timeout,
                tls,
            })
        };
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_max_idle_per_host(IDLE)
            .pool_idle_timeout(IDLE_TIME)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http1_max_buf_size(64 << 10)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING)
            .http2_initial_stream_window_size(512 << 10)
            .http2_initial_connection_window_size(2 << 20)
            .http2_max_header_list_size(64 << 10);
        let http1 = builder.build(connector(&ALPN[1..])?);
        // Without TLS nothing is negotiated: HTTP/2 is then spoken at once.
        builder.http2_only(wanted.tls.is_none());
        let http2 = builder.build(connector(&ALPN)?);
        Ok(Upstream {
            address: wanted.backend,
            scheme: if wanted.tls.is_some() { "https" } else { "http" },
            http1,
            http2,
            prefers_http2: wanted.h2c || wanted.tls.is_some(),
        })
    }
}

fn tls(files: &BackendTlsFiles, bundle: &[u8], alpn: &[&[u8]]) -> Result<(TlsConnector, ServerName<'static>), String> {
    let name = ServerName::try_from(files.server_name.clone()).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        let certificate = certificate.map_err(|error| format!("it is not PEM: {error}"))?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it holds no certificate".to_owned());
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Connects to one address, whatever name a request is for.
#[derive(Clone)]
pub(crate) struct Connector {
    address: SocketAddr,
    limit: Duration,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("address", &self.address)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

/// Why a backend could not be connected to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("backend {address}: TLS: {source}")]
    Tls {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

impl ConnectError {
    /// As the status and metrics of dials have it.
    pub(crate) fn as_dial_error(&self) -> DialError {
        match self {
            ConnectError::Dial(error) => error.clone(),
            ConnectError::Tls { .. } => DialError {
                class: ErrorClass::Other,
                message: self.to_string(),
            },
        }
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<BackendStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let stream = backend::connect(this.address, this.limit).await?;
            let Some((connector, name)) = this.tls else {
                return Ok(TokioIo::new(BackendStream::Plain(stream)));
            };
            let failed = |source| ConnectError::Tls {
                address: this.address,
                source,
            };
            match tokio::time::timeout(this.limit, connector.connect(name, stream)).await {
                Ok(Ok(stream)) => Ok(TokioIo::new(BackendStream::Tls(Box::new(stream)))),
                Ok(Err(error)) => Err(failed(error)),
                Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
            }
        })
    }
}

/// A connection to a backend.
#[derive(Debug)]
pub(crate) enum BackendStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for BackendStream {
    fn connected(&self) -> Connected {
        match self {
            BackendStream::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(ALPN[0]) => {
                Connected::new().negotiated_h2()
            }
            _ => Connected::new(),
        }
    }
}

impl AsyncRead for BackendStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            BackendStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            BackendStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for BackendStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            BackendStream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            BackendStream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            BackendStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            BackendStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            BackendStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            BackendStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
