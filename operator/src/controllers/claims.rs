//! Keeps the claims record up to date with the objects, and wakes the objects whose verdict a change may turn.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::claims::{KeepError, Settled};
use crate::context::Context;

/// Changes that come together are settled together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Even without an event, the record is compared with the objects this often.
const AT_LEAST: Duration = Duration::from_secs(60);

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    loop {
        let pause = match settle_all(&context).await {
            Ok(settled) if settled.failed.is_empty() => {
                context.backoff.succeeded("claims");
                AT_LEAST
            }
            // Each Tailnet was logged by itself.
            Ok(_) => context.backoff.failed("claims"),
            Err(error) => {
                tracing::warn!(%error, "claims records cannot be read; nothing new is accepted meanwhile");
                context.backoff.failed("claims")
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = context.guard.changed_since_settle() => {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(DEBOUNCE) => {}
                }
            }
        }
    }
}

/// Settles all records; an error when the one of `tailnet` is not up to date, whatever the others are.
///
/// # Errors
/// The keeper's: nobody may act on new claims in `tailnet` then.
pub async fn settle(context: &Context, tailnet: &str) -> Result<(), Arc<KeepError>> {
    let mut settled = settle_all(context).await.map_err(Arc::new)?;
    settled.failed.remove(tailnet).map_or(Ok(()), Err)
}

/// Settles the records and wakes the members of the Tailnets whose record changed.
async fn settle_all(context: &Context) -> Result<Settled, KeepError> {
    let settled = context.claims.settle(&context.guard, &context.installation()).await?;
    for tailnet in &settled.changed {
        context.enqueue_members(tailnet);
    }
    Ok(settled)
}
