//! TailnetIngress: read, guard, claims, key, certificate, desired objects, apply, prune, status.
//!
//! Every step may be interrupted and repeated. Everything that an ingress consists of is in its own namespace.

mod apply;
mod conditions;
pub(crate) mod workload;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use rand::RngExt;
use tailnet_crds::conditions::reason;
use tailnet_crds::names::ingress as names;
use tailnet_crds::{ExposeMode, Kind, Tailnet, TailnetIngress};
use tokio_util::sync::CancellationToken;

use crate::children::ChildError;
use crate::claims::KeepError;
use crate::context::Context;
use crate::controllers::agent_nodes::Renamed;
use crate::controllers::{claims, runner};
use crate::desired::tailnet_ingress::{DesiredError, Resolved};
use crate::guard::{Verdict, frozen_reason, message};
use crate::keys::{self, KeyError, KeyOwner, KeyState};
use crate::queue::Requests;
use crate::status;
use crate::trusted_ca::CaError;
use crate::writes::is_gone;

/// Why an ingress is not as it should be; all are retried with back-off, and told in its conditions where it has any.
#[derive(Debug, thiserror::Error)]
pub enum IngressError {
    /// Without the record nobody knows whose a name is.
    #[error(transparent)]
    Claims(#[from] Arc<KeepError>),
    /// The object cannot be written as JSON.
    #[error("cannot write the object as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The pre-auth key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A child.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The children cannot be written down.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The CA bundle.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The certificate's Secret or Certificate could not be looked at.
    #[error("cannot read {kind} {name}: {source}")]
    Read {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The status could not be written.
    #[error("cannot write the status: {0}")]
    Status(#[source] Box<kube::Error>),
}

/// What cert-manager says of the ingress's Certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Issuance {
    /// cert-manager does not run here.
    NotInstalled,
    /// Its word: (status, reason, message) of the condition Ready; None before there is one.
    Says(Option<(String, String, String)>),
}

/// What the guard, the key and the children came to.
pub(crate) struct Progress {
    /// Accepted or why not, as (reason, message).
    pub(crate) refused: Option<(&'static str, String)>,
    /// The key; None when it was not looked at.
    pub(crate) key: Option<Result<KeyState, KeyError>>,
    /// What went wrong with children and CA.
    pub(crate) problems: Vec<IngressError>,
    /// sha256 of the configuration that agents should have.
    pub(crate) config_sha256: Option<String>,
    /// The nodes' tag.
    pub(crate) tag: String,
    /// DNS names of each expose, in the CR's order.
    pub(crate) names: Vec<Vec<String>>,
    /// Backend of each expose, in the CR's order.
    pub(crate) backends: Vec<Resolved>,
    /// Name of the Secret with the certificate; None where none is needed.
    pub(crate) certificate_secret: Option<String>,
    /// Where cert-manager issues.
    pub(crate) issuance: Option<Issuance>,
    /// It may have no effect: how many of its Pods are still there.
    pub(crate) leaving: Option<usize>,
}

/// What the controller remembers of its objects.
#[derive(Default)]
pub(crate) struct Memory {
    /// Nodes that were renamed, or could not be.
    renamed: Renamed,
    /// Since when the agents of an object, by its UID, have been asked to let go of everything.
    leaving: Mutex<HashMap<String, Instant>>,
}

/// How soon an ingress is looked at again while an agent reloads.
const RELOADING: Duration = Duration::from_secs(2);
/// How soon an ingress without effect is looked at again while any Pod of it is left.
const LEAVING: Duration = Duration::from_secs(1);
/// How soon the certificate's Secret is looked at again: Secrets of other namespaces are not watched.
const CERTIFICATE_LOOK: Duration = Duration::from_secs(10);

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, requests: Requests<TailnetIngress>, stop: CancellationToken) {
    let store = context.stores.ingresses.clone();
    let memory = Arc::new(Memory::default());
    runner::run(
        "TailnetIngress",
        context,
        store,
        requests,
        stop,
        move |ingress, context| {
            let memory = Arc::clone(&memory);
            async move { reconcile(&ingress, &context, &memory).await }
        },
    )
    .await;
}

async fn reconcile(ingress: &TailnetIngress, context: &Context, memory: &Memory) -> Result<Action, IngressError> {
    let settled = claims::settle(context, &ingress.spec.tailnet_ref.name).await;
    if ingress.metadata.deletion_timestamp.is_some() {
        // Somebody else's finalizer holds it. Its key is found superfluous when the object is gone.
        let finalizers = ingress.finalizers().join(", ");
        let mut progress = refused(
            reason::DELETING,
            format!(
                "being deleted: what was made for it is removed, and it is gone once its finalizers are: {finalizers}"
            ),
        );
        withdraw(context, ingress, memory, &mut progress).await;
        report(context, ingress, None, &progress).await?;
        let again = match progress.leaving {
            Some(left) if left > 0 => Action::requeue(LEAVING),
            _ => Action::await_change(),
        };
        return match first_worth_a_retry(progress) {
            Some(error) => Err(error),
            None => Ok(again),
        };
    }
    let tailnet = context
        .stores
        .tailnets
        .get(&ObjectRef::new(&ingress.spec.tailnet_ref.name))
        .filter(|tailnet| tailnet.metadata.deletion_timestamp.is_none());
    let (verdict, _) = context.guard.verdict(Kind::TailnetIngress, ingress)?;
    let progress = match (verdict, &tailnet) {
        (Verdict::Withdraw(findings), _) => {
            let reason = frozen_reason(ingress, &findings);
            let what = match reason {
                reason::WAITING_FOR_HOLDER => "nothing is made until the holder is gone",
                _ => "without effect",
            };
            let mut progress = refused(reason, format!("{what}: {}", message(&findings)));
            if let Err(error) = release(context, ingress).await {
                progress.problems.push(error);
            }
            withdraw(context, ingress, memory, &mut progress).await;
            progress
        }
        (Verdict::Freeze(findings), _) => {
            let reason = frozen_reason(ingress, &findings);
            refused(reason, format!("{}; {}", frozen(context, ingress), message(&findings)))
        }
        // Without the record nobody knows whose a name is.
        (Verdict::Valid, _) if let Err(error) = &settled => {
            let message = format!("{}; {error}", frozen(context, ingress));
            refused(reason::CLAIMS_NOT_RECORDED, message)
        }
        (Verdict::Valid, None) => refused(
            reason::TAILNET_NOT_FOUND,
            format!(
                "{}; there is no Tailnet {:?} [TN001]: create it, or correct spec.tailnetRef.name",
                frozen(context, ingress),
                ingress.spec.tailnet_ref.name
            ),
        ),
        (Verdict::Valid, Some(tailnet)) => {
            memory.stays(ingress);
            apply::act(context, ingress, tailnet, &memory.renamed).await
        }
    };
    let settling = report(context, ingress, tailnet.as_deref(), &progress).await?;
    settled?;
    let leaves = progress.leaving.is_some_and(|left| left > 0);
    if let Some(error) = first_worth_a_retry(progress) {
        return Err(error);
    }
    if leaves {
        return Ok(Action::requeue(LEAVING));
    }
    let mut again = context.settings.resync().mul_f64(rand::rng().random_range(0.9..1.1));
    if ingress
        .spec
        .exposes
        .iter()
        .any(|expose| expose.mode() == ExposeMode::Http)
    {
        again = again.min(CERTIFICATE_LOOK.mul_f64(rand::rng().random_range(0.9..1.1)));
    }
    Ok(Action::requeue(
        settling.map_or(again, |left| again.min(left + Duration::from_millis(500))),
    ))
}

impl Memory {
    /// Since when the ingress has been on its way out; from now on, when it was not.
    fn leaves_since(&self, ingress: &TailnetIngress) -> Instant {
        let uid = ingress.uid().unwrap_or_default();
        *self.leaving.lock().entry(uid).or_insert_with(Instant::now)
    }

    fn stays(&self, ingress: &TailnetIngress) {
        self.leaving.lock().remove(&ingress.uid().unwrap_or_default());
    }
}

/// Takes the key away from an ingress that may have no effect.
async fn release(context: &Context, ingress: &TailnetIngress) -> Result<(), IngressError> {
    let Some(owner) = KeyOwner::of(ingress) else {
        return Ok(());
    };
    if context
        .ledger
        .read()
        .await
        .is_ok_and(|ledger| ledger.has_key_in_use(&owner))
    {
        let secret = names::auth_key_secret(&ingress.name_any());
        keys::release(context, &ingress.spec.tailnet_ref.name, &owner, &secret).await?;
    }
    Ok(())
}

/// Ends the service of an ingress that may have no effect, and removes what it consists of.
async fn withdraw(context: &Context, ingress: &TailnetIngress, memory: &Memory, progress: &mut Progress) {
    let since = memory.leaves_since(ingress);
    if let Err(error) = apply::withdraw(context, ingress, since).await {
        progress.problems.push(error);
    }
    let left = workload::pods(context, ingress).len();
    if left == 0 && workload::deployment(context, ingress).is_none() {
        memory.stays(ingress);
    }
    progress.leaving = Some(left);
}

/// Writes status and metrics; gives the time after which an observation that is kept for now must be looked at again.
async fn report(
    context: &Context,
    ingress: &TailnetIngress,
    tailnet: Option<&Tailnet>,
    progress: &Progress,
) -> Result<Option<Duration>, IngressError> {
    let wanted = conditions::status(context, ingress, tailnet, progress, Timestamp::now());
    let namespace = ingress.namespace().unwrap_or_default();
    let api: Api<TailnetIngress> = Api::namespaced(context.client.clone(), &namespace);
    match status::write(&api, ingress, &wanted).await {
        Ok(written) => {
            if written {
                context.metrics.wrote("TailnetIngress");
            }
        }
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(IngressError::Status(Box::new(error))),
    }
    let list = wanted
        .conditions
        .iter()
        .map(|condition| (condition.type_.as_str(), condition.status.as_str()));
    context
        .metrics
        .conditions(Kind::TailnetIngress, Some(&namespace), &ingress.name_any(), list);
    if workload::any_behind(context, ingress, progress) {
        // It reloads within seconds: ask until it has, instead of waiting for the next round.
        context.agents.look_soon();
        return Ok(Some(RELOADING));
    }
    Ok(context.settling())
}

fn refused(reason: &'static str, message: String) -> Progress {
    Progress {
        refused: Some((reason, message)),
        key: None,
        problems: Vec::new(),
        config_sha256: None,
        tag: String::new(),
        names: Vec::new(),
        backends: Vec::new(),
        certificate_secret: None,
        issuance: None,
        leaving: None,
    }
}

/// What "not accepted" means for this object, in words.
fn frozen(context: &Context, ingress: &TailnetIngress) -> &'static str {
    if workload::deployment(context, ingress).is_some() {
        "frozen, what runs keeps running unchanged"
    } else {
        "nothing is made for it"
    }
}

/// The error that the back-off should deal with. What only a person can resolve is told in the status and looked at again at
/// the next round.
fn first_worth_a_retry(progress: Progress) -> Option<IngressError> {
    let key = progress
        .key
        .and_then(Result::err)
        .filter(|error| !matches!(error, KeyError::Foreign { .. }));
    let mut problems = progress.problems.into_iter().filter(|problem| {
        !matches!(
            problem,
            IngressError::Ca(CaError::NoConfigMap { .. } | CaError::NoKey { .. })
                | IngressError::Child(ChildError::Foreign { .. })
        )
    });
    problems.next().or(key.map(IngressError::Key))
}
