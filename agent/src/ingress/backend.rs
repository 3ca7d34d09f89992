//! A connection to a backend: exactly the address that the operator resolved, with keepalive.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;
use tsnet::{DialError, ErrorClass};

/// A backend that is gone without a word is noticed after about two minutes, as on the tailnet's side.
const KEEPALIVE_IDLE: u32 = 60;
const KEEPALIVE_INTERVAL: u32 = 15;
const KEEPALIVE_COUNT: u32 = 4;
/// Milliseconds after which bytes that stay unacknowledged end a connection.
const USER_TIMEOUT: u32 = 300_000;

/// Connects within `limit`.
pub(crate) async fn connect(address: SocketAddr, limit: Duration) -> Result<TcpStream, DialError> {
    let failed = |class: ErrorClass, why: String| DialError {
        class,
        message: format!("backend {address}: {why}"),
    };
    match tokio::time::timeout(limit, TcpStream::connect(address)).await {
        Err(_) => Err(failed(
            ErrorClass::Timeout,
            format!(
                "no answer within {} s: no endpoint is ready, or a NetworkPolicy is in the way",
                limit.as_secs()
            ),
        )),
        Ok(Err(error)) => Err(failed(class(&error), error.to_string())),
        Ok(Ok(stream)) => {
            if let Err(error) = keep_alive(&stream) {
                tracing::debug!(%error, "setting keepalive");
            }
            Ok(stream)
        }
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_COUNT)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &USER_TIMEOUT)?;
    Ok(())
}

fn class(error: &io::Error) -> ErrorClass {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ErrorClass::Refused,
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => ErrorClass::Reset,
        io::ErrorKind::TimedOut => ErrorClass::Timeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => ErrorClass::NoRoute,
        _ => ErrorClass::Other,
    }
}
