//! The small servers that stand behind a site's router: HTTPS with a certificate of the site's own CA, and a TCP echo.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A peer that says nothing for this long is dropped.
const PATIENCE: Duration = Duration::from_secs(60);

fn each(listen: &str, handle: impl Fn(TcpStream) -> Result<()> + Send + Sync + 'static) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let handle = Arc::new(handle);
    for stream in listener.incoming() {
        let stream = stream?;
        let handle = Arc::clone(&handle);
        std::thread::spawn(move || {
            let peer = stream
                .peer_addr()
                .map(|address| address.to_string())
                .unwrap_or_default();
            match handle(stream) {
                Ok(()) => println!("{peer}: done"),
                Err(error) => println!("{peer}: {error:#}"),
            }
        });
    }
    Ok(())
}

/// Sends back every byte; passes a half-close on: after the peer's end of file all its bytes are still answered.
///
/// # Errors
/// When the address cannot be listened on.
pub fn serve_echo(listen: &str) -> Result<()> {
    each(listen, |mut stream| {
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        Ok(())
    })
}

/// Answers every HTTPS request with a JSON object: `method`, `path`, `host` (header), `sni`, `peer` (address and port it came from),
/// `bytes` (of the request's body).
///
/// # Errors
/// When the address cannot be listened on or the certificate cannot be read.
pub fn serve_https(listen: &str, certificate: &Path, key: &Path) -> Result<()> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .with_context(|| format!("cannot read {}", certificate.display()))?
        .collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("cannot read {}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    each(listen, move |stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        let peer = stream.peer_addr()?;
        let stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config))?, stream);
        answer_requests(stream, &peer.to_string())
    })
}

fn answer_requests(stream: StreamOwned<ServerConnection, TcpStream>, peer: &str) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let (mut host, mut length, mut close) = (String::new(), 0_u64, false);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "host" => value.trim().clone_into(&mut host),
                "content-length" => length = value.trim().parse().context("bad content-length")?,
                "connection" => close = value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        let bytes = std::io::copy(&mut (&mut stream).take(length), &mut std::io::sink())?;
        let mut words = first.split_whitespace();
        let body = serde_json::json!({
            "method": words.next(),
            "path": words.next(),
            "host": host,
            "sni": stream.get_ref().conn.server_name(),
            "peer": peer,
            "bytes": bytes,
        });
        let body = format!("{body}\n");
        let connection = if close { "close" } else { "keep-alive" };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: {connection}\r\n\r\n",
            body.len()
        );
        let out = stream.get_mut();
        out.write_all(head.as_bytes())?;
        out.write_all(body.as_bytes())?;
        out.flush()?;
        if close {
            out.conn.send_close_notify();
            out.flush()?;
            return Ok(());
        }
    }
}
