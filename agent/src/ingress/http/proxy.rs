//! One request: checked, sent to the backend, its answer passed on.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tailnet_crds::agent::HttpExpose;
use tokio::time::sleep;

use super::body::{RequestBody, ResponseBody};
use super::head_guard::{Heads, Refusal};
use super::host::{Authority, authority};
use super::request_log::Entry;
use super::upstream::{ConnectError, Upstream, UpstreamError};
use super::{headers, tunnel};
use crate::ingress::carrier::{Carrier, NO_BACKEND, Peer};
use crate::ingress::expose::Expose;

/// Header of answers that are the agent's own: why.
pub(crate) const REASON: HeaderName = HeaderName::from_static("tailnet-ingress-reason");

/// What all requests of a connection share.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) carrier: Carrier,
    pub(crate) expose: Arc<Expose>,
    pub(crate) peer: Arc<Peer>,
    /// Port of the node.
    pub(crate) port: u16,
    /// Name that the client asked for in the handshake, canonical.
    pub(crate) name: String,
    /// Of an HTTP/1 connection.
    pub(crate) heads: Option<Heads>,
}

/// An answer of the agent's own.
#[derive(Debug)]
struct Own {
    status: StatusCode,
    reason: &'static str,
    detail: String,
}

fn own(status: StatusCode, reason: &'static str, detail: impl Into<String>) -> Own {
    Own {
        status,
        reason,
        detail: detail.into(),
    }
}

impl Service {
    pub(crate) async fn answer(self, request: Request<Incoming>) -> Result<Response<ResponseBody>, Infallible> {
        let head = self.heads.as_ref().and_then(Heads::next);
        let started = head.map_or_else(Instant::now, |head| head.started);
        let received = Arc::new(AtomicU64::new(0));
        let refusal = head.and_then(|head| head.refusal);
        let mut entry = Entry {
            metrics: self.carrier.metrics.clone(),
            expose: self.expose.name.clone(),
            peer: self.peer.clone(),
            method: request.method().to_string(),
            host: self.name.clone(),
            path: request.uri().path().chars().take(1024).collect(),
            version: version(request.version()),
            started,
            status: None,
            reason: None,
            detail: None,
            received: received.clone(),
            sent: 0,
            complete: false,
            upgraded: None,
        };
        if let Some(Refusal { status, reason }) = refusal {
            self.stays_http();
            // The request that was read is a stand-in.
            entry.method = "-".to_owned();
            entry.path = "-".to_owned();
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
            let mut response = own_response(own(status, reason, "the request is malformed"), entry);
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
            return Ok(response);
        }
        let http2 = request.version() == Version::HTTP_2;
        let mut response = match self.forward(request, started, received, &mut entry).await {
            Ok(Forwarded::Response(response, deadline)) => {
                entry.status = Some(response.status().as_u16());
                let (parts, body) = response.into_parts();
                Response::from_parts(parts, ResponseBody::backend(body, deadline, entry))
            }
            Ok(Forwarded::Upgraded(response, tunnel)) => {
                entry.status = Some(response.status().as_u16());
                return Ok(self.upgrade(response, *tunnel, entry));
            }
            Err(answer) => own_response(answer, entry),
        };
        self.stays_http();
        if http2 {
            headers::strip_hop_by_hop(response.headers_mut(), false);
        }
        Ok(response)
    }

    fn stays_http(&self) {
        if let Some(heads) = &self.heads {
            heads.answered();
        }
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        started: Instant,
        received: Arc<AtomicU64>,
        entry: &mut Entry,
    ) -> Result<Forwarded, Own> {
        let spec = self.expose.spec();
        let (mut parts, body) = request.into_parts();
        let host = self.bound_host(&parts)?;
        entry.host.clone_from(&host.name);
        if parts.method == Method::CONNECT {
            return Err(own(StatusCode::NOT_IMPLEMENTED, "connect", "CONNECT is not supported"));
        }
        let http = spec
            .http
            .as_ref()
            .ok_or_else(|| own(StatusCode::MISDIRECTED_REQUEST, "misdirected", "no such name here"))?;
        let upstream = self.expose.upstreams.get().map_err(|error| match error {
            UpstreamError::NoBackend => own(StatusCode::SERVICE_UNAVAILABLE, NO_BACKEND, error.to_string()),
            UpstreamError::Ca(_) => own(StatusCode::BAD_GATEWAY, "backend-ca", error.to_string()),
        })?;

        let upgrade = parts.version == Version::HTTP_11 && headers::wants_upgrade(&parts.headers);
        let grpc = parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
        let by_http2 = !upgrade && (upstream.prefers_http2 || grpc);
        headers::strip_hop_by_hop(&mut parts.headers, upgrade);
        headers::identify(&mut parts.headers, &self.peer, &host.sent);
        parts.uri = self.target(&parts.uri, &host, upstream.scheme)?;
        parts.version = if by_http2 && upstream.scheme == "http" {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        };
        if by_http2 {
            parts.headers.remove(HOST);
        } else if let Ok(value) = HeaderValue::from_str(&host.sent) {
            parts.headers.insert(HOST, value);
        }
        let client_upgrade = upgrade
            .then(|| parts.extensions.remove::<hyper::upgrade::OnUpgrade>())
            .flatten();
        parts.extensions.clear();

        let (body, mut end) = RequestBody::new(body, received);
        let outgoing = Request::from_parts(parts, body);
        let client = if by_http2 { &upstream.http2 } else { &upstream.http1 };
        let limits = Limits::of(http);
        let deadline = limits
            .request
            .map(|limit| tokio::time::Instant::from_std(started + limit));
        let answer = client.request(outgoing);
        tokio::pin!(answer);
        let result = tokio::select! {
            biased;
            result = &mut answer => result,
            () = until(deadline) => {
                let detail = "no answer within timeouts.request";
                return Err(own(StatusCode::GATEWAY_TIMEOUT, "request-timeout", detail));
            }
            () = async {
                let _ = end.wait_for(|ended| *ended).await;
                sleep(limits.backend).await;
            } => {
                let detail = "the backend has not begun to answer within timeouts.backendRequest";
                return Err(own(StatusCode::GATEWAY_TIMEOUT, "backend-request-timeout", detail));
            }
        };
        let mut response = match result {
            Ok(response) => {
                self.expose.dialed(upstream.address, Ok(()));
                response
            }
            Err(error) => return Err(self.failed(&upstream, &error)),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = client_upgrade else {
                let detail = "the backend answered 101 to a request without an upgrade";
                return Err(own(StatusCode::BAD_GATEWAY, "backend-protocol", detail));
            };
            headers::strip_hop_by_hop(response.headers_mut(), true);
            let backend = hyper::upgrade::on(&mut response);
            let tunnel = Box::new((client, backend, upstream.address));
            return Ok(Forwarded::Upgraded(response.map(drop), tunnel));
        }
        headers::strip_hop_by_hop(response.headers_mut(), false);
        Ok(Forwarded::Response(response, deadline))
    }

    /// The request's host, which must be the name of the handshake.
    fn bound_host(&self, parts: &http::request::Parts) -> Result<Authority, Own> {
        let Some(host) = authority(parts) else {
            return Err(own(
                StatusCode::BAD_REQUEST,
                "host",
                "the request names no host, or two",
            ));
        };
        if host.name == self.name {
            return Ok(host);
        }
        let detail = format!(
            "this connection was made for {}: use another one for other names",
            self.name
        );
        Err(own(StatusCode::MISDIRECTED_REQUEST, "misdirected", detail))
    }

    /// The target for the client, whose name keys the kept connections: of many ports only the expose's own is one.
    fn target(&self, uri: &Uri, host: &Authority, scheme: &str) -> Result<Uri, Own> {
        let authority = match host.port {
            Some(port) if port == self.port => format!("{}:{port}", host.name),
            _ => host.name.clone(),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Uri::builder()
            .scheme(scheme)
            .authority(authority)
            .path_and_query(path)
            .build()
            .map_err(|error| own(StatusCode::BAD_REQUEST, "request-line", error.to_string()))
    }

    fn failed(&self, upstream: &Upstream, error: &hyper_util::client::legacy::Error) -> Own {
        if let Some(connect) = cause::<ConnectError>(error) {
            let dial = connect.as_dial_error();
            self.expose.dialed(upstream.address, Err(&dial));
            self.expose.usage.count_dial_error(&self.carrier.metrics, dial.class);
            let (status, reason) = match connect {
                ConnectError::Tls { .. } => (StatusCode::BAD_GATEWAY, "backend-tls"),
                ConnectError::Dial(_) => match dial.class {
                    tsnet::ErrorClass::Timeout => (StatusCode::GATEWAY_TIMEOUT, "backend-timeout"),
                    tsnet::ErrorClass::Refused => (StatusCode::BAD_GATEWAY, "backend-refused"),
                    tsnet::ErrorClass::NoRoute => (StatusCode::BAD_GATEWAY, "backend-unreachable"),
                    _ => (StatusCode::BAD_GATEWAY, "backend-error"),
                },
            };
            return own(status, reason, dial.message);
        }
        let detail = chain(error);
        let reason = match cause::<hyper::Error>(error) {
            Some(hyper) if hyper.is_parse() => "backend-protocol",
            Some(hyper) if hyper.is_user() => "client-gone",
            _ => "backend-reset",
        };
        self.expose
            .usage
            .count_connection_error(&self.carrier.metrics, tsnet::ErrorClass::Reset);
        own(StatusCode::BAD_GATEWAY, reason, detail)
    }

    /// Answers 101 and carries the other protocol's bytes from then on.
    fn upgrade(&self, response: Response<()>, tunnel: Tunnel, entry: Entry) -> Response<ResponseBody> {
        let (client, backend, address) = tunnel;
        if let Some(heads) = &self.heads {
            heads.upgraded();
        }
        let (carrier, expose, port) = (self.carrier.clone(), self.expose.clone(), self.port);
        self.carrier.connections.spawn(async move {
            let mut entry = entry;
            let since = Instant::now();
            match tokio::try_join!(client, backend) {
                Ok((client, backend)) => {
                    let (client, backend) = (TokioIo::new(client), TokioIo::new(backend));
                    let end = tunnel::carry(&carrier, &expose, port, address, client, backend).await;
                    entry.received.fetch_add(end.from_peer, Ordering::Relaxed);
                    entry.sent += end.to_peer;
                    entry.reason = end.reason;
                }
                Err(error) => {
                    entry.failed("upgrade-failed");
                    entry.detail = Some(error.to_string());
                }
            }
            entry.upgraded = Some(since.elapsed());
            drop(entry);
        });
        response.map(|()| ResponseBody::empty())
    }
}

/// Both ends of an upgraded connection, and where its backend is.
type Tunnel = (
    hyper::upgrade::OnUpgrade,
    hyper::upgrade::OnUpgrade,
    std::net::SocketAddr,
);

enum Forwarded {
    Response(Response<Incoming>, Option<tokio::time::Instant>),
    Upgraded(Response<()>, Box<Tunnel>),
}

struct Limits {
    request: Option<Duration>,
    backend: Duration,
}

impl Limits {
    fn of(http: &HttpExpose) -> Limits {
        Limits {
            request: http.request_timeout_ms.map(Duration::from_millis),
            backend: Duration::from_millis(http.backend_request_timeout_ms),
        }
    }
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn own_response(answer: Own, mut entry: Entry) -> Response<ResponseBody> {
    entry.status = Some(answer.status.as_u16());
    entry.reason = Some(answer.reason);
    entry.detail = Some(answer.detail.chars().take(300).collect());
    // The detail is for the log: it can name addresses that are not the peer's to know.
    let text = format!("{} ({})\n", answer.status, answer.reason);
    let mut response = Response::new(ResponseBody::own(text, entry));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(REASON, HeaderValue::from_static(answer.reason));
    response
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_11 => "HTTP/1.1",
        _ => "HTTP/1.0",
    }
}

/// The first cause of type `E`.
fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        current = error.source();
    }
    None
}

fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut current = error.source();
    while let Some(error) = current {
        text.push_str(": ");
        text.push_str(&error.to_string());
        current = error.source();
    }
    text
}
