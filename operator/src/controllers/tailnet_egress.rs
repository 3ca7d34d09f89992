//! TailnetEgress: read, guard, claims, key, desired objects, apply, prune, status.
//!
//! Every step may be interrupted and repeated. Nothing here waits: agents, Headscale and the API server wake the object by
//! their watches and polls.

mod apply;
mod conditions;
pub(crate) mod workload;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use rand::RngExt;
use tailnet_crds::conditions::reason;
use tailnet_crds::names::egress as names;
use tailnet_crds::{Kind, Tailnet, TailnetEgress};
use tokio_util::sync::CancellationToken;

use crate::children::ChildError;
use crate::claims::KeepError;
use crate::context::Context;
use crate::controllers::agent_nodes::Renamed;
use crate::controllers::{claims, runner};
use crate::desired::listen_ports::PortMemory;
use crate::desired::tailnet_egress::DesiredError;
use crate::guard::{Verdict, frozen_reason, message};
use crate::keys::{self, KeyError, KeyOwner, KeyState};
use crate::queue::Requests;
use crate::status;
use crate::trusted_ca::CaError;
use crate::writes::is_gone;

/// Why an egress is not as it should be; all are retried with back-off, and told in its conditions where it has any.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// Without the record nobody knows whose a name is.
    #[error(transparent)]
    Claims(#[from] Arc<KeepError>),
    /// The object cannot be written as JSON.
    #[error("cannot write the object as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The pre-auth key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A child, or a Pod that could not be told of its new configuration.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The children cannot be written down.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The CA bundle.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The status could not be written.
    #[error("cannot write the status: {0}")]
    Status(#[source] Box<kube::Error>),
}

/// What the controller remembers between reconciles; losing it costs nothing but a look at stored objects.
#[derive(Default)]
pub(crate) struct Memory {
    /// Ports as last written, by UID of the egress: the watch may still show an older configuration.
    ports: Mutex<HashMap<String, PortMemory>>,
    /// Nodes that were renamed, or could not be.
    renamed: Renamed,
}

/// What the guard, the key and the children came to.
pub(crate) struct Progress {
    /// Accepted or why not, as (reason, message).
    pub refused: Option<(&'static str, String)>,
    /// The key; None when it was not looked at.
    pub key: Option<Result<KeyState, KeyError>>,
    /// What went wrong with children and CA.
    pub problems: Vec<EgressError>,
    /// sha256 of the configuration that agents should have.
    pub config_sha256: Option<String>,
    /// The node identity of agents as the object asks for it; None while what runs is kept as it is.
    pub node_identity: Option<String>,
    /// The nodes' tag.
    pub tag: String,
}

/// How long after the operator has settled what it kept until then is looked at again.
const AFTER_SETTLING: Duration = Duration::from_millis(500);
/// How soon an egress is looked at again while an agent reloads.
const RELOADING: Duration = Duration::from_secs(2);

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, requests: Requests<TailnetEgress>, stop: CancellationToken) {
    let store = context.stores.egresses.clone();
    let memory = Arc::new(Memory::default());
    runner::run(
        "TailnetEgress",
        context,
        store,
        requests,
        stop,
        move |egress, context| {
            let memory = Arc::clone(&memory);
            async move { reconcile(&egress, &context, &memory).await }
        },
    )
    .await;
}

async fn reconcile(egress: &TailnetEgress, context: &Context, memory: &Memory) -> Result<Action, EgressError> {
    let settled = claims::settle(context, &egress.spec.tailnet_ref.name).await;
    if egress.metadata.deletion_timestamp.is_some() {
        // Somebody else's finalizer holds it. It has no claims any more, so nothing of it may go on; its key is found
        // superfluous when the object is gone.
        let mut progress = deleting(egress);
        if let Err(error) = apply::withdraw(context, egress).await {
            progress.problems.push(error);
        }
        report(context, egress, None, &progress).await?;
        return match first_worth_a_retry(progress) {
            Some(error) => Err(error),
            None => Ok(Action::await_change()),
        };
    }
    let tailnet = context
        .stores
        .tailnets
        .get(&ObjectRef::new(&egress.spec.tailnet_ref.name))
        .filter(|tailnet| tailnet.metadata.deletion_timestamp.is_none());
    let (verdict, _) = context.guard.verdict(Kind::TailnetEgress, egress)?;
    let keeps_running = matches!(verdict, Verdict::Freeze(_));
    let mut progress = match (verdict, &tailnet) {
        (Verdict::Withdraw(findings), _) => {
            let removed = apply::withdraw(context, egress).await;
            // Also where an object resists: without key and node it is cut off.
            if let Some(owner) = KeyOwner::of(egress) {
                context.keys.mark_withdrawn(&owner.uid);
                if has_key(context, egress, &owner).await {
                    let secret = names::auth_key_secret(&egress.name_any());
                    keys::release(context, &egress.spec.tailnet_ref.name, &owner, &secret).await?;
                }
            }
            removed?;
            match frozen_reason(egress, &findings) {
                reason::WAITING_FOR_HOLDER => refused(
                    reason::WAITING_FOR_HOLDER,
                    format!("nothing is made until the holder is gone: {}", message(&findings)),
                ),
                // Held by another one, or a rule of its own.
                reason => refused(
                    reason,
                    format!("without effect, whatever ran was removed: {}", message(&findings)),
                ),
            }
        }
        (Verdict::Freeze(findings), _) => {
            let reason = frozen_reason(egress, &findings);
            refused(reason, format!("{}; {}", frozen(context, egress), message(&findings)))
        }
        // Without the record nobody knows whose a name is.
        (Verdict::Valid, _) if let Err(error) = &settled => {
            let message = format!("{}; {error}", frozen(context, egress));
            refused(reason::CLAIMS_NOT_RECORDED, message)
        }
        (Verdict::Valid, None) => refused(
            reason::TAILNET_NOT_FOUND,
            format!(
                "{}; there is no Tailnet {:?} [TN001]: create it, or correct spec.tailnetRef.name",
                frozen(context, egress),
                egress.spec.tailnet_ref.name
            ),
        ),
        (Verdict::Valid, Some(tailnet)) => apply::act(context, egress, tailnet, memory).await,
    };
    if keeps_running && let Some(tailnet) = &tailnet {
        progress.key = apply::keep_key(context, egress, tailnet).await;
    }
    let settling = report(context, egress, tailnet.as_deref(), &progress).await?;
    settled?;
    if let Some(error) = first_worth_a_retry(progress) {
        return Err(error);
    }
    let resync = context.settings.resync().mul_f64(rand::rng().random_range(0.9..1.1));
    Ok(Action::requeue(settling.map_or(resync, |left| left + AFTER_SETTLING)))
}

/// Writes status and metrics; gives the time after which an observation that is kept for now must be looked at again.
async fn report(
    context: &Context,
    egress: &TailnetEgress,
    tailnet: Option<&Tailnet>,
    progress: &Progress,
) -> Result<Option<Duration>, EgressError> {
    let (wanted, settling) = conditions::status(context, egress, tailnet, progress, Timestamp::now());
    let namespace = egress.namespace().unwrap_or_default();
    let api: Api<TailnetEgress> = Api::namespaced(context.client.clone(), &namespace);
    match status::write(&api, egress, &wanted).await {
        Ok(written) => {
            if written {
                context.metrics.wrote("TailnetEgress");
            }
        }
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(EgressError::Status(Box::new(error))),
    }
    let list = wanted
        .conditions
        .iter()
        .map(|condition| (condition.type_.as_str(), condition.status.as_str()));
    context
        .metrics
        .conditions(Kind::TailnetEgress, Some(&namespace), &egress.name_any(), list);
    if conditions::any_behind(context, egress, progress) {
        // It reloads within seconds: ask until it has, instead of waiting for the next round.
        context.agents.look_soon();
        return Ok(Some(settling.map_or(RELOADING, |left| left.min(RELOADING))));
    }
    Ok(settling)
}

fn refused(reason: &'static str, message: String) -> Progress {
    Progress {
        refused: Some((reason, message)),
        key: None,
        problems: Vec::new(),
        config_sha256: None,
        node_identity: None,
        tag: String::new(),
    }
}

/// What an object says that is gone but for the finalizers of others.
fn deleting(egress: &TailnetEgress) -> Progress {
    let finalizers = egress.finalizers().join(", ");
    refused(
        reason::DELETING,
        format!("being deleted: what was made for it is removed, and it is gone once its finalizers are: {finalizers}"),
    )
}

/// What "not accepted" means for this object, in words.
fn frozen(context: &Context, egress: &TailnetEgress) -> &'static str {
    if workload::deployment(context, egress).is_some() {
        "frozen, what runs keeps running unchanged"
    } else {
        "nothing is made for it"
    }
}

/// Whether there is a key to take away: a Secret, or one in use whose Secret somebody deleted.
async fn has_key(context: &Context, egress: &TailnetEgress, owner: &KeyOwner) -> bool {
    let secret = ObjectRef::new(&names::auth_key_secret(&egress.name_any())).within(context.namespace());
    context.stores.secrets.get(&secret).is_some()
        // An unreadable ledger is told by whatever has to write it.
        || context.ledger.read().await.is_ok_and(|ledger| ledger.has_key_in_use(owner))
}

/// The error that the back-off should deal with. What only a person can resolve is told in the status and waits for its
/// watch.
fn first_worth_a_retry(progress: Progress) -> Option<EgressError> {
    let key = progress
        .key
        .and_then(Result::err)
        .filter(|error| !matches!(error, KeyError::Foreign { .. }));
    let mut problems = progress.problems.into_iter().filter(|problem| match problem {
        // All Services and ConfigMaps are watched; of the other kinds only our own, so these are looked at again.
        EgressError::Child(ChildError::Foreign { kind, .. }) => kind != "Service" && kind != "ConfigMap",
        // The watch of ConfigMaps wakes the object when the bundle comes.
        EgressError::Ca(CaError::NoConfigMap { .. } | CaError::NoKey { .. }) => false,
        _ => true,
    });
    problems.next().or(key.map(EgressError::Key))
}
