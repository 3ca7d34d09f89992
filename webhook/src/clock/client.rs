//! A Kubernetes client that goes by [`ApiClock`]: it checks the API server's certificate by it and tells it every `Date`.

use std::error::Error;
use std::io;
use std::sync::Arc;

use http::Response;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use secrecy::ExposeSecret;
use tower::retry::RetryLayer;
use tower::util::MapResponseLayer;
use tower::{BoxError, ServiceBuilder};

use super::{ApiClock, Token};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor a service account.
    #[error("{0}")]
    Config(#[from] kube::config::InferConfigError),
    /// The configuration cannot be used.
    #[error("{0}")]
    Kube(Box<kube::Error>),
    /// The configured name of the API server is none.
    #[error("tls-server-name {0:?} of the kubeconfig is neither a DNS name nor an address")]
    ServerName(String),
}

impl From<kube::Error> for ClientError {
    fn from(error: kube::Error) -> Self {
        Self::Kube(Box::new(error))
    }
}

/// A client for the API server of the environment (KUBECONFIG, ~/.kube/config, or the Pod's service account).
pub async fn connect(clock: &ApiClock) -> Result<Client, ClientError> {
    client(Config::infer().await?, clock)
}

/// A client for the API server of `config`.
pub fn client(config: Config, clock: &ApiClock) -> Result<Client, ClientError> {
    if config.proxy_url.is_some() {
        // Only kube can speak to a proxy, or says that this build cannot; the API server's certificate is then checked by
        // this machine's clock.
        return Ok(ClientBuilder::try_from(config)?
            .with_layer(&MapResponseLayer::new(listening(clock)))
            .build());
    }
    match (&config.auth_info.token_file, &config.auth_info.token) {
        (Some(path), _) => clock.set_token(Token::File(path.into())),
        (None, Some(token)) => clock.set_token(Token::from_text(token.expose_secret())),
        (None, None) => {}
    }
    let mut connector = TimeoutConnector::new(https(&config, clock)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: hyper_util::client::legacy::Client<_, Body> =
        hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build(connector);
    // The layers of kube's own client.
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(
            config
                .default_retry
                .then(|| RetryLayer::new(RetryPolicy::server_retry())),
        )
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(MapResponseLayer::new(listening(clock)))
        .map_err(watching(clock))
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Hands the `Date` of every answer to `clock`.
fn listening<B>(clock: &ApiClock) -> impl Fn(Response<B>) -> Response<B> + Clone + Send + Sync + 'static {
    let clock = clock.clone();
    move |response| {
        let date = response.headers().get(http::header::DATE);
        if let Some(date) = date.and_then(|date| date.to_str().ok()) {
            clock.heard_date(date);
        }
        response
    }
}

/// Tells `clock` of handshakes that failed for the time.
fn watching(
    clock: &ApiClock,
) -> impl Fn(hyper_util::client::legacy::Error) -> BoxError + Clone + Send + Sync + 'static {
    let clock = clock.clone();
    move |error| {
        if is_about_time(&error) {
            clock.failed_for_the_time();
        }
        error.into()
    }
}

/// Whether `error` comes from a certificate that has ended or not begun.
fn is_about_time(error: &(dyn Error + 'static)) -> bool {
    use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    if let Some(rustls::Error::InvalidCertificate(fault)) = error.downcast_ref() {
        return matches!(
            fault,
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        );
    }
    // An io::Error does not count what it carries among its sources.
    let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    carried.is_some_and(|inner| is_about_time(inner)) || error.source().is_some_and(is_about_time)
}

fn https(config: &Config, clock: &ApiClock) -> Result<HttpsConnector<HttpConnector>, ClientError> {
    let mut tls = config.rustls_client_config()?;
    tls.time_provider = Arc::new(clock.clone());
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name =
            rustls_pki_types::ServerName::try_from(name.clone()).map_err(|_| ClientError::ServerName(name.clone()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_http1().wrap_connector(http))
}
