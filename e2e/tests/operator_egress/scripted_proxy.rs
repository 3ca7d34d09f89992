//! A proxy in front of Headscale's API that does to the answers about new pre-auth keys what a test says: Headscale has made
//! the key then, and the operator does not know it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use serde_json::Value;
use tailnet_e2e::{Cluster, wait_for};
use tokio::sync::watch;

use crate::checks::SOON;

/// What happens to Headscale's answer to `POST /api/v1/preauthkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// It goes through.
    Pass,
    /// It waits until the script is another one.
    Hold,
    /// The next one is lost, those after it go through.
    LoseOne,
}

struct Shared {
    upstream: String,
    client: reqwest::Client,
    script: watch::Sender<Script>,
    /// Ids of the keys whose answers did not go through.
    kept_back: watch::Sender<Vec<String>>,
}

/// The proxy; it ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

impl Proxy {
    /// Starts one on the host, where the box reaches it. Answers go through until a test says otherwise.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let headscale = cluster.headscale()?;
        tailnet_e2e::tls::install_provider();
        let authority = reqwest::Certificate::from_pem(headscale.ca_pem()?.as_bytes())?;
        let shared = Arc::new(Shared {
            upstream: headscale.host_url(),
            client: reqwest::Client::builder()
                .tls_certs_only([authority])
                .no_proxy()
                .build()?,
            script: watch::Sender::new(Script::Pass),
            kept_back: watch::Sender::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listen = (cluster.host_address(), 0);
        let listener = runtime.block_on(tokio::net::TcpListener::bind(listen))?;
        let address = listener.local_addr()?;
        let routes = Router::new().fallback(forward).with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Ok(Self {
            address,
            shared,
            _runtime: runtime,
        })
    }

    /// The URL for `spec.api.endpoint`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on answers about new keys wait for [`Proxy::pass`].
    pub fn hold(&self) {
        self.shared.script.send_replace(Script::Hold);
    }

    /// The next answer about a new key is lost.
    pub fn lose_one(&self) {
        self.shared.script.send_replace(Script::LoseOne);
    }

    /// Answers go through again.
    pub fn pass(&self) {
        self.shared.script.send_replace(Script::Pass);
    }

    /// Waits until Headscale has made `count` keys whose answers did not go through; gives the id of the last one.
    pub fn wait_kept_back(&self, count: usize) -> Result<String> {
        wait_for(&format!("{count} answers were kept back"), SOON, || {
            let ids = self.shared.kept_back.borrow();
            ensure!(ids.len() >= count, "{ids:?}");
            ids.last().cloned().context("no id")
        })
    }
}

async fn forward(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, StatusCode> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.map_err(|_| StatusCode::BAD_REQUEST)?;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let url = format!("{}{path}", shared.upstream);
    let mut forwarded = shared.client.request(parts.method.clone(), url).body(body);
    for name in [header::AUTHORIZATION, header::CONTENT_TYPE, header::ACCEPT] {
        if let Some(value) = parts.headers.get(&name) {
            forwarded = forwarded.header(name, value);
        }
    }
    let gateway = |_| StatusCode::BAD_GATEWAY;
    let answer = forwarded
        .timeout(Duration::from_secs(10))
        .send()
        .await
        .map_err(gateway)?;
    let status = answer.status();
    let kind = answer.headers().get(header::CONTENT_TYPE).cloned();
    let body = answer.bytes().await.map_err(gateway)?;
    if parts.method == Method::POST && parts.uri.path() == "/api/v1/preauthkey" && status.is_success() {
        answered(&shared, &body).await?;
    }
    let mut response = Response::builder().status(status);
    if let Some(kind) = kind {
        response = response.header(header::CONTENT_TYPE, kind);
    }
    response.body(Body::from(body)).map_err(|_| StatusCode::BAD_GATEWAY)
}

/// Headscale has made a key and said so in `body`.
async fn answered(shared: &Shared, body: &[u8]) -> Result<(), StatusCode> {
    let script = *shared.script.borrow();
    if script == Script::Pass {
        return Ok(());
    }
    let body: Value = serde_json::from_slice(body).map_err(|_| StatusCode::BAD_GATEWAY)?;
    let id = body["preAuthKey"]["id"].as_str().ok_or(StatusCode::BAD_GATEWAY)?;
    shared.kept_back.send_modify(|ids| ids.push(id.to_owned()));
    if script == Script::LoseOne {
        shared.script.send_replace(Script::Pass);
        return Err(StatusCode::BAD_GATEWAY);
    }
    let mut changed = shared.script.subscribe();
    let released = changed.wait_for(|script| *script != Script::Hold).await;
    released.map(drop).map_err(|_| StatusCode::BAD_GATEWAY)
}
