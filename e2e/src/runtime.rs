//! The harness's own async runtime, so that its blocking functions work with and without a caller's runtime.

use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle, Runtime};

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// The runtime's handle.
///
/// # Errors
/// When its thread cannot be started.
pub fn handle() -> Result<Handle> {
    if RUNTIME.get().is_none() {
        let built = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("e2e-harness")
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let _ = RUNTIME.set(built);
    }
    Ok(RUNTIME.get().context("no runtime")?.handle().clone())
}

/// Runs a future to its end and blocks the calling thread meanwhile.
///
/// # Errors
/// When the runtime cannot be started, or the future panicked.
pub fn block_on<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = sync_channel(1);
    handle()?.spawn(async move {
        let _ = sender.send(future.await);
    });
    receiver.recv().context("an internal call of the harness panicked")
}
