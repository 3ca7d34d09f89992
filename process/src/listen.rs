//! Listening on every address of the machine, whichever IP families its kernel has.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Binds `address`, inside a tokio runtime. `[::]` takes IPv4 connections too, and means `0.0.0.0` where the kernel has no
/// IPv6.
///
/// # Errors
/// The kernel's.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match (bind_exactly(address), fallback(address)) {
        (Err(error), Some(every_ipv4)) if no_ipv6(&error) => bind_exactly(every_ipv4),
        (result, _) => result,
    }
}

fn bind_exactly(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() {
        TcpSocket::new_v6()?
    } else {
        TcpSocket::new_v4()?
    };
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // Whatever the machine's default is.
        setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What to bind instead without IPv6; None for an address that was chosen, which nothing else can stand for.
fn fallback(address: SocketAddr) -> Option<SocketAddr> {
    (address.ip() == Ipv6Addr::UNSPECIFIED).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// Whether the kernel has no IPv6 at all.
fn no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EPROTONOSUPPORT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_address_takes_ipv4_connections() {
        let listener = bind("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(
            tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn a_chosen_address_is_the_only_one_and_a_taken_one_is_refused() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(address.ip().is_loopback());
        assert_eq!(bind(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn only_every_address_falls_back_and_only_without_ipv6() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(fallback(address("[::]:9401")), Some(address("0.0.0.0:9401")));
        assert_eq!(fallback(address("[::1]:9401")), None);
        assert_eq!(fallback(address("127.0.0.1:9401")), None);
        assert!(no_ipv6(&io::Error::from_raw_os_error(libc::EAFNOSUPPORT)));
        assert!(!no_ipv6(&io::Error::from_raw_os_error(libc::EADDRINUSE)));
    }
}
