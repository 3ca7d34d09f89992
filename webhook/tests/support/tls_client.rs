//! A caller as an API server is one: HTTP/1.1 with keep-alive over TLS, trusting a bundle.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// DER of the certificate that the server showed.
    pub shown: Vec<u8>,
}

/// What came back.
pub struct Reply {
    pub status: u16,
    pub closes: bool,
    pub body: Vec<u8>,
}

pub fn client_config(bundle: &str) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("a CA");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

impl Connection {
    pub async fn open(address: SocketAddr, bundle: &str) -> std::io::Result<Self> {
        Self::open_with(address, client_config(bundle)).await
    }

    pub async fn open_with(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> std::io::Result<Self> {
        Self::over(TcpStream::connect(address).await?, address, config).await
    }

    /// From another address of this machine.
    pub async fn open_from(
        source: IpAddr,
        address: SocketAddr,
        config: Arc<rustls::ClientConfig>,
    ) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        Self::over(socket.connect(address).await?, address, config).await
    }

    async fn over(stream: TcpStream, address: SocketAddr, config: Arc<rustls::ClientConfig>) -> std::io::Result<Self> {
        let name = ServerName::from(address.ip());
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        let shown = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|all| all.first())
            .expect("a certificate")
            .to_vec();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self { sender, shown })
    }

    pub async fn call(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Reply, hyper::Error> {
        self.sender.ready().await?;
        let request = hyper::Request::post(path)
            .header("host", "webhook")
            .body(Full::new(body.into()));
        let response = self.sender.send_request(request.expect("request")).await?;
        let status = response.status().as_u16();
        let closes = response
            .headers()
            .get("connection")
            .is_some_and(|value| value == "close");
        let body = response.into_body().collect().await?.to_bytes().to_vec();
        Ok(Reply { status, closes, body })
    }
}
