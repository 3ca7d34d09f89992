//! Stop signals.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code after a second stop signal: the process was told to leave at once.
pub const EXIT_ABANDONED: i32 = 130;

/// A signal handler could not be installed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for {name}: {source}")]
pub struct SignalError {
    name: &'static str,
    source: io::Error,
}

fn listen(name: &'static str, kind: SignalKind) -> Result<Signal, SignalError> {
    signal(kind).map_err(|source| SignalError { name, source })
}

/// A token that is cancelled by the first SIGTERM or SIGINT. A second one ends the process at once with
/// [`EXIT_ABANDONED`], for the person who does not want to wait for the drain. Needs a tokio runtime.
pub fn stop_signal() -> Result<CancellationToken, SignalError> {
    let mut terminate = listen("SIGTERM", SignalKind::terminate())?;
    let mut interrupt = listen("SIGINT", SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if token.is_cancelled() {
                tracing::warn!(signal = name, "second stop signal: leaving at once");
                std::process::exit(EXIT_ABANDONED);
            }
            tracing::info!(signal = name, "stop signal: shutting down");
            token.cancel();
        }
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    #[tokio::test]
    async fn sigterm_cancels() {
        let stop = super::stop_signal().expect("handlers");
        assert!(!stop.is_cancelled());
        let status = Command::new("kill")
            .args(["-TERM", &std::process::id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
        tokio::time::timeout(Duration::from_secs(10), stop.cancelled())
            .await
            .expect("cancelled by the signal");
    }
}
