//! Wakes the members of Tailnets, when the state of their Headscale server changed.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// Nodes come and go in bursts.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.hub.subscribe();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => {
                if changed.is_err() {
                    // The sender lives in the context: this is the end of the process.
                    return;
                }
            }
        }
        for tailnet in context.stores.tailnets.state() {
            context.enqueue_members(&tailnet.name_any());
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(DEBOUNCE) => {}
        }
    }
}
