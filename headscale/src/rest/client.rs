//! The client: one endpoint, one key, bounded calls.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, Response, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use super::api_key::ApiKey;
use super::error::Error;
use super::{reply, trust};

/// How long and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For TCP and TLS together.
    pub connect: Duration,
    /// For one call, from the first attempt to the last byte of the answer.
    pub total: Duration,
    /// Largest answer in bytes.
    pub reply: usize,
}

impl Default for Limits {
    /// 5 s to connect, 30 s in all (Headscale's own timeout), 64 MiB (a node takes about 1.5 KiB).
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            total: Duration::from_secs(30),
            reply: 64 * 1024 * 1024,
        }
    }
}

/// Why a URL cannot be an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not a URL.
    #[error("{url:?} is not a URL: {detail}")]
    NotAUrl {
        /// The text.
        url: String,
        /// What is wrong.
        detail: String,
    },
    /// Another scheme than http or https.
    #[error("{url:?} must begin with https:// or http://")]
    Scheme {
        /// The text.
        url: String,
    },
    /// User name, password, query or fragment.
    #[error("the endpoint must be scheme, host, port and path only: no user name, no query, no fragment")]
    Decorated,
}

/// Base address of a Headscale server: scheme, host, port and an optional path prefix.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(Url);

impl Endpoint {
    /// Reads `url`; a trailing slash is fine.
    pub fn parse(url: &str) -> Result<Self, EndpointError> {
        let parsed = Url::parse(url.trim()).map_err(|e| EndpointError::NotAUrl {
            url: crate::redact_keys(url, 200),
            detail: e.to_string(),
        })?;
        if !parsed.username().is_empty()
            || parsed.password().is_some()
            || parsed.query().is_some()
            || parsed.fragment().is_some()
        {
            return Err(EndpointError::Decorated);
        }
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
            return Err(EndpointError::Scheme {
                url: crate::redact_keys(url, 200),
            });
        }
        Ok(Self(parsed))
    }

    /// `host:port`, for error texts.
    pub fn address(&self) -> String {
        let port = self.0.port_or_known_default().unwrap_or_default();
        format!("{}:{port}", self.host())
    }

    /// The host, an IPv6 address in brackets.
    pub fn host(&self) -> String {
        self.0.host_str().unwrap_or_default().to_owned()
    }

    /// The endpoint with `segments` behind its path.
    fn join(&self, segments: &[&str]) -> Url {
        let mut url = self.0.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One request, as the modules with the calls describe it.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    /// Path segments after the endpoint; percent-encoded on joining.
    pub(crate) path: &'a [&'a str],
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) body: Option<Value>,
    /// Whether sending it twice does no harm; only then is a broken connection tried again.
    pub(crate) repeatable: bool,
    /// Whether the key is sent.
    pub(crate) authenticated: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn get(path: &'a [&'a str]) -> Self {
        Self {
            method: Method::GET,
            path,
            query: &[],
            body: None,
            repeatable: true,
            authenticated: true,
        }
    }

    /// A call that may be sent twice.
    pub(crate) fn put(method: Method, path: &'a [&'a str], body: Option<Value>) -> Self {
        Self {
            method,
            path,
            query: &[],
            body,
            repeatable: true,
            authenticated: true,
        }
    }

    /// A call that makes something new each time it arrives.
    pub(crate) fn create(path: &'a [&'a str], body: Value) -> Self {
        Self {
            method: Method::POST,
            path,
            query: &[],
            body: Some(body),
            repeatable: false,
            authenticated: true,
        }
    }

    pub(crate) fn query(mut self, query: &'a [(&'a str, &'a str)]) -> Self {
        self.query = query;
        self
    }

    pub(crate) fn without_key(mut self) -> Self {
        self.authenticated = false;
        self
    }

    fn name(&self) -> String {
        format!("{} /{}", self.method, self.path.join("/"))
    }
}

/// A client of one Headscale server. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    endpoint: Endpoint,
    key: Option<ApiKey>,
    limits: Limits,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client for `endpoint` that trusts the system's roots and `ca_bundles` (name for error texts, PEM text). Without a
    /// key only [`Client::version`] and [`Client::health`] can be called.
    pub fn new(
        endpoint: Endpoint,
        ca_bundles: &[(String, String)],
        key: Option<ApiKey>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(trust::client_config(ca_bundles)?)
            .user_agent(concat!("tailnet-operator/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            // A redirect would carry the key to a place nobody named.
            .redirect(redirect::Policy::none())
            .connect_timeout(limits.connect)
            // Headscale closes idle connections after 30 s; ours close first.
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_max_idle_per_host(2)
            .tcp_keepalive(Duration::from_secs(15))
            .build()
            .map_err(|e| Error::Setup(chain(&e)))?;
        Ok(Self {
            http,
            endpoint,
            key,
            limits,
        })
    }

    /// The same server and connections with another key.
    pub fn with_key(&self, key: ApiKey) -> Self {
        Self {
            key: Some(key),
            ..self.clone()
        }
    }

    /// The server.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The key's public prefix, if there is a key and it has one.
    pub fn key_prefix(&self) -> Option<&str> {
        self.key.as_ref().and_then(ApiKey::prefix)
    }

    /// Sends `request` and reads the answer as JSON.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: Request<'_>) -> Result<T, Error> {
        let name = request.name();
        let (headers, body) = match tokio::time::timeout(self.limits.total, self.exchange(&request, &name)).await {
            Ok(result) => result?,
            Err(_) => {
                return Err(Error::Timeout {
                    call: name,
                    after: self.limits.total,
                });
            }
        };
        serde_json::from_slice(&body).map_err(|cause| reply::unreadable(&name, &headers, &body, &cause))
    }

    async fn exchange(&self, request: &Request<'_>, name: &str) -> Result<(HeaderMap, Vec<u8>), Error> {
        let response = match self.send(request, name).await {
            Err(Error::Broken { .. }) if request.repeatable => self.send(request, name).await?,
            other => other?,
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let body = self.read(response, name).await;
        if status.is_success() {
            return Ok((headers, body?));
        }
        // The status alone decides when the body of an error cannot be read.
        Err(reply::error(name, status, &headers, &body.unwrap_or_default()))
    }

    async fn send(&self, request: &Request<'_>, name: &str) -> Result<Response, Error> {
        let mut url = self.endpoint.join(request.path);
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(request.query);
        }
        let mut builder = self.http.request(request.method.clone(), url);
        if request.authenticated {
            let Some(key) = &self.key else {
                return Err(Error::NoKey { call: name.to_owned() });
            };
            builder = builder.header(AUTHORIZATION, key.header()?);
        }
        if let Some(body) = &request.body {
            builder = builder.json(body);
        }
        builder.send().await.map_err(|e| self.transport_error(name, &e))
    }

    async fn read(&self, mut response: Response, name: &str) -> Result<Vec<u8>, Error> {
        let limit = self.limits.reply;
        let too_large = || Error::ReplyTooLarge {
            call: name.to_owned(),
            limit,
        };
        if response.content_length().is_some_and(|n| n > limit as u64) {
            return Err(too_large());
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.transport_error(name, &e))? {
            if body.len() + chunk.len() > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Sorts a failure below HTTP by its cause.
    fn transport_error(&self, name: &str, error: &reqwest::Error) -> Error {
        let address = self.endpoint.address();
        let detail = chain(error);
        if let Some(tls) = find::<rustls::Error>(error) {
            let unknown_issuer = matches!(
                tls,
                rustls::Error::InvalidCertificate(
                    rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature
                )
            );
            return Error::Tls {
                address,
                detail: tls.to_string(),
                unknown_issuer,
            };
        }
        if error.is_connect() && error.is_timeout() {
            return Error::ConnectTimeout {
                address,
                after: self.limits.connect,
            };
        }
        if error.is_timeout() {
            return Error::Timeout {
                call: name.to_owned(),
                after: self.limits.total,
            };
        }
        if error.is_connect() {
            if error.is_dns() || detail.contains("dns error") {
                return Error::Dns {
                    host: self.endpoint.host(),
                    detail: innermost(error),
                };
            }
            let refused =
                find::<std::io::Error>(error).is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
            return Error::Connect {
                address,
                detail: innermost(error),
                refused,
            };
        }
        if find::<hyper::Error>(error).is_some_and(|e| e.is_parse() || e.is_parse_too_large()) {
            return Error::NotHeadscale {
                call: name.to_owned(),
                detail: "no HTTP".into(),
            };
        }
        Error::Broken {
            call: name.to_owned(),
            detail: innermost(error),
        }
    }
}

/// Visits an error and its causes, looking into `io::Error`s too, whose `source()` skips the error they wrap.
fn visit<'e>(error: &'e (dyn StdError + 'static), see: &mut dyn FnMut(&'e (dyn StdError + 'static))) {
    let mut next = Some(error);
    while let Some(e) = next {
        see(e);
        next = match e.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => e.source(),
        };
    }
}

fn find<'e, T: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e T> {
    let mut found = None;
    visit(error, &mut |e| found = found.or_else(|| e.downcast_ref::<T>()));
    found
}

/// The text of the last cause: `Connection refused (os error 111)`.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    visit(error, &mut |e| text = e.to_string());
    crate::redact_keys(&text, 300)
}

/// All causes, outermost first.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    visit(error, &mut |e| parts.push(e.to_string()));
    parts.dedup();
    crate::redact_keys(&parts.join(": "), 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let e = Endpoint::parse("https://control.example.net/").unwrap();
        assert_eq!(
            (e.to_string(), e.address()),
            ("https://control.example.net".into(), "control.example.net:443".into())
        );
        assert_eq!(
            e.join(&["api", "v1", "node", "a/b"]).as_str(),
            "https://control.example.net/api/v1/node/a%2Fb"
        );
        let e = Endpoint::parse("http://[::1]:8080/hs/").unwrap();
        assert_eq!(e.join(&["version"]).as_str(), "http://[::1]:8080/hs/version");
        assert_eq!(e.address(), "[::1]:8080");
        for bad in [
            "",
            "control.example.net",
            "ftp://x",
            "https://u:p@x",
            "https://x?a=b",
            "https://x#f",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
        assert!(
            !Endpoint::parse("https://u:secretpw@x")
                .unwrap_err()
                .to_string()
                .contains("secretpw")
        );
    }
}
