//! What a Tailnet leaves behind: keys and nodes in Headscale after the object is gone (also when it went while the operator
//! was down), keys on a server that the Tailnet does not point to any more.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::Tailnet;
use tailnet_headscale::{Class, Client, Endpoint, Limits};
use tokio_util::sync::CancellationToken;

use crate::access_policy;
use crate::context::Context;
use crate::controllers::tailnet_policy;
use crate::key_cleanup::{self, CleanupError, absent_is_fine};
use crate::key_recovery;
use crate::ledger::{KeyKind, LedgerError};
use crate::trusted_ca::{self, CaError};
use crate::working_key::{self, Stored, WorkingKey, WorkingKeyError};

/// How often the ledger is compared with the Tailnets that exist; it is in memory.
const INTERVAL: Duration = Duration::from_secs(3);
/// Shortest pause after a pass that had nothing to do but wait: for Pods to stop, for keys to end by themselves.
const SHORTEST_WAIT: Duration = Duration::from_secs(30);
/// Time for one call to a server that may be gone for good.
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(3),
    total: Duration::from_secs(8),
    reply: 64 * 1024 * 1024,
};

/// Why the clean-up after a Tailnet did not end. It is tried again until its keys have ended by themselves.
#[derive(Debug, thiserror::Error)]
enum DepartedError {
    #[error(transparent)]
    Key(#[from] WorkingKeyError),
    #[error(transparent)]
    Cleanup(#[from] CleanupError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Headscale(#[from] tailnet_headscale::Error),
    #[error(transparent)]
    Ca(#[from] CaError),
    #[error("cannot ask whether the Tailnet exists: {0}")]
    Tailnet(#[source] Box<kube::Error>),
    #[error("the recorded server URL cannot be used: {0}")]
    Endpoint(#[from] tailnet_headscale::EndpointError),
}

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Something; the next one may find more.
    Progress,
    /// Nothing: it is not its time yet.
    Waiting,
}

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut retry_at: HashMap<String, Instant> = HashMap::new();
    let mut compared = false;
    loop {
        // At the start, and as long as there is no ledger: with nothing to enter, that asks the API server nothing.
        if !compared || !key_recovery::ledger_is_there(&context) {
            match key_recovery::from_secrets(&context).await {
                Ok(()) => compared = true,
                Err(error) => tracing::warn!(%error, "key ledger not compared with the Secrets of the keys"),
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        for name in context.hub.names().into_iter().filter(|name| is_gone(&context, name)) {
            context.hub.forget(&name);
            context.published.forget(&name);
            context.guard.facts(&name, None, Duration::ZERO);
        }
        let names = match context.ledger.read().await {
            Ok(ledger) => ledger
                .entries
                .into_iter()
                .map(|entry| entry.tailnet)
                .collect::<BTreeSet<_>>(),
            Err(error) => {
                tracing::warn!(%error, "key ledger not read");
                continue;
            }
        };
        retry_at.retain(|name, _| names.contains(name));
        for name in names.into_iter().filter(|name| is_gone(&context, name)) {
            if retry_at.get(&name).is_some_and(|at| *at > Instant::now()) {
                continue;
            }
            let key = format!("departed/{name}");
            match clean_up(&context, &name).await {
                Ok(Pass::Progress) => context.backoff.succeeded(&key),
                Ok(Pass::Waiting) => {
                    let delay = wait(context.backoff.failed(&key));
                    retry_at.insert(name.clone(), Instant::now() + delay);
                }
                Err(error) => {
                    let delay = context.backoff.failed(&key);
                    retry_at.insert(name.clone(), Instant::now() + delay);
                    tracing::warn!(tailnet = name, retry_in_s = delay.as_secs(), %error, "clean-up after a deleted Tailnet interrupted");
                }
            }
        }
    }
}

/// The pause after a pass that waited; `backoff` is what the failures and waits in a row ask for.
fn wait(backoff: Duration) -> Duration {
    backoff.max(SHORTEST_WAIT)
}

/// Whether the watch knows of no such Tailnet.
fn is_gone(context: &Context, tailnet: &str) -> bool {
    context
        .stores
        .tailnets
        .get(&ObjectRef::<Tailnet>::new(tailnet))
        .is_none()
}

/// One pass: pre-auth keys of CRs that are gone too, then, when none is left, the working key and its Secret. The key is
/// kept as long as it is needed for that.
async fn clean_up(context: &Context, tailnet: &str) -> Result<Pass, DepartedError> {
    let live = Api::<Tailnet>::all(context.client.clone())
        .get_metadata_opt(tailnet)
        .await
        .map_err(|error| DepartedError::Tailnet(Box::new(error)))?;
    if live.is_some() {
        // The watch is late.
        return Ok(Pass::Waiting);
    }
    key_cleanup::forget_ended_elsewhere(context, tailnet, None).await?;
    let stored = working_key::stored(context, tailnet).await?;
    let (key, secret) = match stored {
        Stored::Key(key, secret) if key.expires_at > Timestamp::now() => (key, secret),
        Stored::Key(_, secret) | Stored::Damaged(secret) => {
            // It opens nothing any more; the other keys end by themselves.
            working_key::remove(context, tailnet, &secret).await?;
            return Ok(Pass::Progress);
        }
        Stored::Absent => return Ok(Pass::Waiting),
    };
    let client = client(context, &key)?;
    // Refused: the last step was done before a crash, or somebody deleted the key. It opens nothing any more either way.
    if working_key::is_accepted(&client).await? {
        key_recovery::from_headscale(context, tailnet, &key.server, &client).await?;
        if let Some(owner) = access_policy::own(context, tailnet) {
            match tailnet_policy::release(&client, &owner).await {
                // Whoever writes the policy next has to take the line out by hand.
                Err(error) if error.class() == Class::Permanent => {
                    tracing::warn!(tailnet, %error, "the owner's line stays in the live access policy");
                }
                released => drop(released?),
            }
        }
        let nodes = client.nodes().await?;
        let progress = key_cleanup::sweep_preauth(context, tailnet, &key.server, &client, &nodes).await?;
        let ledger = context.ledger.read().await?;
        if ledger
            .on_server(tailnet, &key.server, KeyKind::PreAuth)
            .next()
            .is_some()
        {
            return Ok(if progress { Pass::Progress } else { Pass::Waiting });
        }
        key_cleanup::sweep_api(context, tailnet, &key.server, &client, Some(&key.prefix)).await?;
        // The last call: the key deletes itself. Then its Secret, then its record: a crash in between leaves a Secret
        // whose key Headscale refuses, and the ledger entry leads here again.
        let deleted = client.delete_api_key(&key.prefix).await;
        if !is_refusal(&deleted) || working_key::is_accepted(&client).await? {
            absent_is_fine(deleted)?;
        }
    }
    working_key::remove(context, tailnet, &secret).await?;
    forget(context, tailnet, &key.server).await?;
    tracing::info!(tailnet, "the keys of the deleted Tailnet are gone");
    Ok(Pass::Progress)
}

fn is_refusal(result: &Result<(), tailnet_headscale::Error>) -> bool {
    matches!(result, Err(tailnet_headscale::Error::Unauthorized { .. }))
}

/// Drops what the ledger has of `tailnet` on `server`.
async fn forget(context: &Context, tailnet: &str, server: &str) -> Result<(), LedgerError> {
    context.ledger.update(|ledger| ledger.forget(tailnet, server)).await
}

/// A client with a recorded key: trusted CA and the CA ConfigMap that was recorded with it, if it still exists.
fn client(context: &Context, key: &WorkingKey) -> Result<Client, DepartedError> {
    let mut bundles = trusted_ca::trusted(context)?;
    if let Some((name, data_key)) = key
        .ca_config_map
        .as_deref()
        .and_then(|reference| reference.split_once('/'))
    {
        let stored = context
            .stores
            .config_maps
            .get(&ObjectRef::new(name).within(context.namespace()));
        if let Some(pem) = stored.and_then(|stored| stored.data.as_ref()?.get(data_key).cloned()) {
            bundles.push((format!("ConfigMap {name}"), pem));
        }
    }
    Ok(Client::new(
        Endpoint::parse(&key.server)?,
        &bundles,
        Some(key.key.clone()),
        LIMITS,
    )?)
}

/// The Tailnet points to another server now and has a working key there: what it has on the old one is expired, as far as
/// that can be reached. Tried once, with the old key that is not stored any more; whatever is left ends by itself.
pub async fn abandon_server(context: &Context, tailnet: &str, key: &WorkingKey) {
    if let Err(error) = expire_all(context, tailnet, key).await {
        tracing::warn!(tailnet, server = key.server, %error, "keys on the former server were not all expired; they end by themselves");
    }
}

async fn expire_all(context: &Context, tailnet: &str, key: &WorkingKey) -> Result<(), DepartedError> {
    let client = client(context, key)?;
    let ledger = context.ledger.read().await?;
    let listed = client.preauth_keys().await?;
    for entry in ledger.on_server(tailnet, &key.server, KeyKind::PreAuth) {
        if let Some(made) = key_cleanup::made_key(&listed, entry) {
            client.expire_preauth_key(&made.id).await?;
        }
    }
    key_cleanup::sweep_api(context, tailnet, &key.server, &client, Some(&key.prefix)).await?;
    absent_is_fine(client.delete_api_key(&key.prefix).await)?;
    forget(context, tailnet, &key.server).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::Backoff;

    #[test]
    fn waiting_is_no_hot_loop() {
        let backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..12).map(|_| wait(backoff.failed("departed/corp"))).collect();
        assert!(pauses.iter().all(|pause| *pause >= SHORTEST_WAIT), "{pauses:?}");
        assert!(pauses[11] > SHORTEST_WAIT.mul_f64(2.0), "it backs off: {pauses:?}");
    }
}
