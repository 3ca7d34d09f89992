//! An API server, or something in front of it, that tells a wrong time once: this process must find its way back in. A real
//! one cannot be made to do it.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tailnet_webhook::clock::ApiClock;
use tailnet_webhook::clock::client::client;
use tailnet_webhook::tls::authority::Authority;
use tailnet_webhook::tls::source::{Source, server_config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Answers every connection once, with the next of `dates`, the last one for ever.
async fn answer(listener: TcpListener, tls: rustls::ServerConfig, dates: Vec<Timestamp>) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let mut dates = dates.into_iter().peekable();
    let mut date = *dates.peek().expect("a date");
    loop {
        let (stream, _) = listener.accept().await.expect("accept");
        // A caller that does not believe the certificate.
        let Ok(mut stream) = acceptor.accept(stream).await else {
            continue;
        };
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => request.push(byte),
                Err(_) => break,
            }
        }
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        date = dates.next().unwrap_or(date);
        let date = date.strftime("%a, %d %b %Y %H:%M:%S GMT");
        let body = r#"{"major":"1","minor":"37","gitVersion":"v1.37.0","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ndate: {date}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .expect("answer");
        let _ = stream.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_date_shuts_nobody_out() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    for wrong in ["2100-01-01T00:00:00Z", "2025-01-01T00:00:00Z"] {
        let wrong: Timestamp = wrong.parse().expect("time");
        let now = Timestamp::now();
        let authority = Authority::generate(now).expect("CA");
        let source = Source::default();
        source.set(authority.current.issue(&["127.0.0.1".to_owned()], now).expect("leaf"));
        let mut tls = server_config(source).expect("TLS settings");
        // A handshake that goes on with an earlier one checks no certificate.
        tls.send_tls13_tickets = 0;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("https://{}", listener.local_addr().expect("address"));
        tokio::spawn(answer(listener, tls, vec![wrong, now]));

        let clock = ApiClock::default();
        let mut config = kube::Config::new(url.parse().expect("URL"));
        let bundle = authority.bundle();
        let roots = CertificateDer::pem_slice_iter(bundle.as_bytes()).map(|root| root.expect("PEM").to_vec());
        config.root_cert = Some(roots.collect());
        let client = client(config, &clock).expect("client");
        client.apiserver_version().await.expect("the first answer");
        assert!(clock.now().duration_since(wrong).abs() < SignedDuration::from_mins(1));

        let (mut failed, mut answered) = (Vec::new(), false);
        while failed.len() < 12 && !answered {
            match tokio::time::timeout(Duration::from_secs(5), client.apiserver_version())
                .await
                .expect("an answer in time")
            {
                Ok(_) => answered = true,
                Err(error) => failed.push(format!("{error:?}")),
            }
        }
        assert!(!failed.is_empty(), "the certificate was not checked at the wrong time");
        assert!(answered, "{failed:#?}");
        assert!(
            clock.now().duration_since(Timestamp::now()).abs() < SignedDuration::from_mins(1),
            "the right time counts again"
        );
    }
}
