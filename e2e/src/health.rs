//! The health endpoint of our processes, asked from the host.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::boxed::client::Process;
use crate::wait;

/// `GET path` at `address` (`IP:PORT`): code and body.
///
/// # Errors
/// When nobody answers within five seconds, or not in HTTP.
pub fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address.parse()?, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok((code.context("no HTTP answer")?, body.unwrap_or_default()))
}

/// Waits until `process` says at `address` that it is ready.
///
/// # Errors
/// When it does not within 30 seconds: what is missing, and the end of its log.
pub fn wait_ready(process: &Process, address: &str) -> Result<()> {
    let what = format!("{} is ready", process.name());
    wait::wait_for(&what, Duration::from_secs(30), || match get(address, "/readyz") {
        Ok((200, _)) => Ok(()),
        Ok((_, text)) => Err(anyhow!("{text}; log: {}", process.log_tail(3))),
        Err(error) => Err(error.context(process.log_tail(3))),
    })
}
