//! The API keys of a Tailnet: all but its working key go; entries of servers that are not asked any more end by themselves.

use jiff::Timestamp;
use tailnet_headscale::Client;

use super::recognize::same_instant;
use super::{CleanupError, absent_is_fine};
use crate::context::Context;
use crate::ledger::{KeyKind, LOST_ANSWER, LedgerError};
use crate::server_identity::same;

/// One pass over the API keys of `tailnet` on `server`, all but the one with prefix `current`; with None all of them.
/// `client` must use another key than those.
///
/// # Errors
/// See [`CleanupError`].
pub async fn sweep_api(
    context: &Context,
    tailnet: &str,
    server: &str,
    client: &Client,
    current: Option<&str>,
) -> Result<(), CleanupError> {
    let ledger = context.ledger.read().await?;
    let now = Timestamp::now();
    for entry in ledger.on_server(tailnet, server, KeyKind::Api) {
        let prefix = match (&entry.prefix, entry.stage) {
            (Some(prefix), _) if Some(prefix.as_str()) == current => continue,
            (Some(prefix), _) => Some(prefix.clone()),
            // Its answer was lost: known by its end of validity alone.
            (None, _) => client
                .api_keys()
                .await?
                .into_iter()
                .find(|key| key.expiration.is_some_and(|end| same_instant(end, entry.expires_at)))
                .map(|key| key.short_prefix().to_owned()),
        };
        match prefix {
            Some(prefix) => {
                // Deleted and not expired first: expiring changes the end by which a key is known whose answer was lost.
                absent_is_fine(client.delete_api_key(&prefix).await)?;
                tracing::info!(tailnet, prefix, "superfluous API key deleted");
            }
            None if now.duration_since(entry.created_at) < LOST_ANSWER => continue,
            None => {}
        }
        context.ledger.update(|l| l.drop_entry(entry.number)).await?;
    }
    Ok(())
}

/// Drops the entries of keys that ended on servers that are not asked any more.
///
/// # Errors
/// The ledger's.
pub async fn forget_ended_elsewhere(context: &Context, tailnet: &str, server: Option<&str>) -> Result<(), LedgerError> {
    let now = Timestamp::now();
    context
        .ledger
        .update(|ledger| {
            ledger
                .entries
                .retain(|e| e.tailnet != tailnet || server.is_some_and(|s| same(&e.server, s)) || e.expires_at > now);
        })
        .await
}
