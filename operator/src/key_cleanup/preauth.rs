//! The pre-auth keys of a Tailnet: one pass over what the ledger has, and a look whether Headscale honours what is in use.

use std::collections::HashMap;

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use tailnet_headscale::preauth_key::PreAuthKeyInfo;
use tailnet_headscale::{Client, Error, Node};

use super::owner::{current_key, exists, is_cached, pods_gone};
use super::recognize::{is_key_of, joined_with, made_key};
use super::step::{SECRET_DELAY, Situation, Step, step};
use super::{CleanupError, absent_is_fine};
use crate::context::Context;
use crate::keys::in_use;
use crate::ledger::{Entry, KeyKind, KeyStage, LOST_ANSWER, LedgerError};
use crate::writes::is_forbidden;

/// One pass over the pre-auth keys of `tailnet` on `server`. `nodes` must have been read after the last pass. True when
/// something was done, so that another pass may find more.
///
/// # Errors
/// See [`CleanupError`]; what was done before the error stays done.
pub async fn sweep_preauth(
    context: &Context,
    tailnet: &str,
    server: &str,
    client: &Client,
    nodes: &[Node],
) -> Result<bool, CleanupError> {
    let _sweeping = context.keys.lock(tailnet).await;
    let ledger = context.ledger.read().await?;
    let entries: Vec<&Entry> = ledger.on_server(tailnet, server, KeyKind::PreAuth).collect();
    let mut of_owner: HashMap<&str, usize> = HashMap::new();
    for entry in &entries {
        *of_owner.entry(&entry.owner.uid).or_default() += 1;
    }
    let now = Timestamp::now();
    let secret_delay = SECRET_DELAY.min(context.settings.headscale.preauth_key_lifetime() / 10);
    let mut listed: Option<Vec<PreAuthKeyInfo>> = None;
    let mut progress = false;
    for entry in entries {
        let alive = is_cached(context, &entry.owner) || exists(context, &entry.owner).await?;
        let alone = of_owner.get(entry.owner.uid.as_str()) == Some(&1);
        if alive && alone && entry.stage == KeyStage::Active {
            continue;
        }
        let current = if alive {
            match current_key(context, &entry.owner).await {
                Ok(current) => current,
                // The rights in one namespace are gone: that must not stop the clean-up of all others.
                Err(CleanupError::Secret { name, source }) if is_forbidden(&source) => {
                    tracing::warn!(owner = %entry.owner, tailnet, secret = name, error = %source, "the operator may not look at this key's Secret, so the key is left as it is");
                    continue;
                }
                Err(error) => return Err(error),
            }
        } else {
            None
        };
        let situation = Situation {
            alive,
            current,
            nodes: nodes
                .iter()
                .filter(|node| joined_with(node, entry))
                .map(|n| (n.id.clone(), n.online))
                .collect(),
            withdrawn: context.keys.is_withdrawn(&entry.owner.uid),
            pods_gone: entry.stage == KeyStage::Expired && pods_gone(context, &entry.owner).await?,
            secret_delay,
        };
        match step(entry, &situation, now) {
            Step::Keep => continue,
            Step::Resolve => {
                match once_listed(&mut listed, client)
                    .await?
                    .iter()
                    .find(|key| is_key_of(key, entry))
                {
                    Some(key) => {
                        let (id, prefix) = (key.id.to_string(), key.prefix().to_owned());
                        let kept = situation
                            .current
                            .as_ref()
                            .is_some_and(|current| current.id == id && current.prefix == prefix);
                        context
                            .ledger
                            .update(|l| {
                                if kept {
                                    l.made(entry.number, Some(id.clone()), Some(prefix.clone()));
                                } else {
                                    l.made_in_vain(entry.number, id.clone(), prefix.clone());
                                }
                            })
                            .await?;
                    }
                    None if now.duration_since(entry.created_at) < LOST_ANSWER => continue,
                    None => context.ledger.update(|l| l.drop_entry(entry.number)).await?,
                }
            }
            Step::Retire => context.ledger.update(|l| l.retire(entry.number, now)).await?,
            Step::Expire => {
                // One that ended by itself needs no call, and is looked for before it is deleted.
                if entry.expires_at > now {
                    match made_key(once_listed(&mut listed, client).await?, entry) {
                        Some(key) => client.expire_preauth_key(&key.id).await?,
                        None if situation.nodes.is_empty() => {
                            forget_stranger(context, entry).await?;
                            progress = true;
                            continue;
                        }
                        // Somebody deleted it; its nodes are still to go.
                        None => {}
                    }
                }
                context
                    .ledger
                    .update(|l| {
                        l.entry_mut(entry.number)
                            .into_iter()
                            .for_each(|e| e.stage = KeyStage::Expired)
                    })
                    .await?;
                tracing::info!(owner = %entry.owner, tailnet, id = entry.id, "pre-auth key expired: not needed any more");
            }
            Step::RemoveNodes(ids) => {
                for id in ids {
                    absent_is_fine(client.delete_node(&id).await)?;
                    tracing::info!(owner = %entry.owner, tailnet, node = %id, "node removed: its key is not needed any more");
                }
            }
            Step::Delete => match made_key(once_listed(&mut listed, client).await?, entry) {
                Some(key) => {
                    client.delete_preauth_key(&key.id).await?;
                    context.ledger.update(|l| l.drop_entry(entry.number)).await?;
                }
                None => forget_stranger(context, entry).await?,
            },
        }
        progress = true;
    }
    Ok(progress)
}

/// The server's pre-auth keys, asked for at most once a pass.
async fn once_listed<'a>(
    listed: &'a mut Option<Vec<PreAuthKeyInfo>>,
    client: &Client,
) -> Result<&'a [PreAuthKeyInfo], Error> {
    let keys = match listed.take() {
        Some(keys) => keys,
        None => client.preauth_keys().await?,
    };
    Ok(listed.insert(keys))
}

/// Headscale does not have the key of `entry`: what has its id now, if anything, is not ours and is left alone.
async fn forget_stranger(context: &Context, entry: &Entry) -> Result<(), LedgerError> {
    tracing::info!(owner = %entry.owner, tailnet = entry.tailnet, id = entry.id, prefix = entry.prefix, "pre-auth key is not in Headscale any more; its record is dropped");
    context.ledger.update(|l| l.drop_entry(entry.number)).await
}

/// Looks whether Headscale still honours the keys in use; keys that somebody expired or deleted there are replaced.
///
/// # Errors
/// See [`CleanupError`].
pub async fn audit_preauth(
    context: &Context,
    tailnet: &str,
    server: &str,
    client: &Client,
) -> Result<(), CleanupError> {
    let now = Timestamp::now();
    let ledger = context.ledger.read().await?;
    let active: Vec<&Entry> = ledger
        .on_server(tailnet, server, KeyKind::PreAuth)
        .filter(|e| in_use(e) && e.expires_at > now)
        .collect();
    if active.is_empty() {
        return Ok(());
    }
    let listed = client.preauth_keys().await?;
    for entry in active {
        let Some(prefix) = &entry.prefix else { continue };
        let honoured = made_key(&listed, entry).is_some_and(|key| !key.expired(now));
        if !honoured && context.keys.mark_dead(tailnet, prefix) {
            tracing::warn!(owner = %entry.owner, tailnet, id = entry.id, prefix, "somebody expired or deleted a pre-auth key in Headscale; it is replaced");
            if entry.owner.kind == "TailnetEgress" {
                context
                    .queues
                    .egress
                    .push(ObjectRef::new(&entry.owner.name).within(&entry.owner.namespace));
            }
            if entry.owner.kind == "TailnetIngress" {
                context
                    .queues
                    .ingress
                    .push(ObjectRef::new(&entry.owner.name).within(&entry.owner.namespace));
            }
        }
    }
    Ok(())
}
