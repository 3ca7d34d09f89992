//! Runs one controller: takes references from its queue, merges duplicates, calls the reconcile, backs off after errors.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use kube::runtime::controller::{Action, Config, Error, applier};
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::queue::Requests;

/// Events that come in a burst (a CR and its children) become one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Objects of one controller that are reconciled at once; one object never is reconciled twice at once.
const CONCURRENCY: u16 = 8;
/// Longest time of one reconcile: a stuck call must not hold its object for ever.
const DEADLINE: Duration = Duration::from_secs(120);

/// What the runner adds to a controller's own errors.
#[derive(Debug, thiserror::Error)]
enum RunError<E: std::error::Error + 'static> {
    #[error(transparent)]
    Reconcile(E),
    #[error("not finished within {} s", DEADLINE.as_secs())]
    Deadline,
}

/// Runs until `stop`; reconciles that are under way then are finished.
///
/// `name` labels metrics and logs. Errors of one object delay that object only.
pub async fn run<K, E, F>(
    name: &'static str,
    context: Arc<Context>,
    store: Store<K>,
    requests: Requests<K>,
    stop: CancellationToken,
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> F + Send + Sync + 'static,
) where
    K: Resource<DynamicType: Hash + Eq + Clone + Default + Debug + Unpin> + Clone + Send + Sync + 'static,
    E: std::error::Error + Send + 'static,
    F: Future<Output = Result<Action, E>> + Send + 'static,
{
    let reconcile = Arc::new(reconcile);
    let run_one = move |object: Arc<K>, context: Arc<Context>| {
        let reconcile = Arc::clone(&reconcile);
        async move {
            let started = Instant::now();
            let key = key(name, object.as_ref());
            let result = match tokio::time::timeout(DEADLINE, reconcile(object, Arc::clone(&context))).await {
                Ok(result) => result.map_err(RunError::Reconcile),
                Err(_elapsed) => Err(RunError::Deadline),
            };
            context.metrics.reconciled(name, started.elapsed(), result.is_err());
            if result.is_ok() {
                context.backoff.succeeded(&key);
            }
            result
        }
        .boxed()
    };
    let error_policy = move |object: Arc<K>, error: &RunError<E>, context: Arc<Context>| {
        let delay = context.backoff.failed(&key(name, object.as_ref()));
        tracing::warn!(
            kind = name,
            namespace = object.namespace().unwrap_or_default(),
            name = object.name_any(),
            retry_in_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            %error,
            "reconcile failed"
        );
        Action::requeue(delay)
    };
    let config = Config::default().debounce(DEBOUNCE).concurrency(CONCURRENCY);
    applier(
        run_one,
        error_policy,
        context,
        store,
        requests.take_until(stop.cancelled_owned()),
        config,
    )
    .for_each(|result| async move {
        match result {
            // Deleted since it was queued: the watch listeners have dealt with that.
            Ok(_) | Err(Error::ReconcilerFailed(..) | Error::ObjectNotFound(_)) => {}
            Err(error) => tracing::error!(kind = name, %error, "controller queue failed"),
        }
    })
    .await;
    tracing::debug!(kind = name, "controller ended");
}

/// Under which name `Context::backoff` counts the failures of an object in the controller called `name`.
pub fn key<K: Resource>(name: &str, object: &K) -> String {
    format!(
        "{name}/{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}
