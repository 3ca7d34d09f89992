//! The Go side's log, line by line, as tracing events of target `tsnet::client`.

use std::os::fd::OwnedFd;

use tokio::io::{AsyncBufReadExt, BufReader};

/// Makes the pipe, starts its reader on the current runtime, and gives the end that Go writes to.
pub(crate) fn pipe() -> std::io::Result<OwnedFd> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK)?;
    let receiver = tokio::net::unix::pipe::Receiver::from_owned_fd(read)?;
    tokio::spawn(async move {
        let mut lines = BufReader::new(receiver).lines();
        // An error is a line that is not UTF-8, which the client does not write; the log then ends.
        while let Ok(Some(line)) = lines.next_line().await {
            tracing::debug!(target: "tsnet::client", "{line}");
        }
    });
    Ok(write)
}
