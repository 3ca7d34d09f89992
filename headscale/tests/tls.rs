//! Certificates: a trusted CA, none, the wrong name.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as the test may")]

use std::sync::Arc;
use std::time::Duration;

use tailnet_headscale::{Class, Client, Endpoint, Error, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A TLS server whose certificate is for `name`; gives its port and its CA.
async fn serve(name: &str) -> (u16, String) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                let _ = stream.read(&mut [0; 4096]).await;
                let body = r#"{"version":"v0.29.3"}"#;
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (port, ca_pem)
}

async fn version(url: &str, bundles: &[(String, String)]) -> Result<String, Error> {
    let limits = Limits {
        connect: Duration::from_secs(5),
        total: Duration::from_secs(5),
        reply: 10_000,
    };
    Ok(Client::new(Endpoint::parse(url).unwrap(), bundles, None, limits)?
        .version()
        .await?
        .version)
}

#[tokio::test]
async fn trust() {
    let (port, ca) = serve("localhost").await;
    let url = format!("https://localhost:{port}");
    assert_eq!(
        version(&url, &[("own CA".into(), ca.clone())]).await.unwrap(),
        "v0.29.3"
    );

    let error = version(&url, &[]).await.unwrap_err();
    assert_eq!(error.class(), Class::Tls);
    assert!(
        error
            .to_string()
            .contains("set the chart's trustedCA or spec.api.caConfigMapRef"),
        "{error}"
    );
    let (_, other) = serve("localhost").await;
    let error = version(&url, &[("another CA".into(), other)]).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Tls {
                unknown_issuer: true,
                ..
            }
        ),
        "{error:?}"
    );

    let error = version(&format!("https://127.0.0.1:{port}"), &[("own CA".into(), ca)])
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Tls {
                unknown_issuer: false,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        !error.to_string().contains("trustedCA"),
        "the CA is not at fault: {error}"
    );
}

#[tokio::test]
async fn https_where_plain_http_is_spoken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    });
    let error = version(&format!("https://127.0.0.1:{port}"), &[]).await.unwrap_err();
    assert_eq!(error.class(), Class::Tls, "{error:?}");
}
