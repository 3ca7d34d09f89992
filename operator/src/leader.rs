//! Leader election on the Lease `tailnet-operator`: at most one process acts; who cannot renew the Lease in time stops acting.
//!
//! The rules are client-go's: a holder's record is believed for its own duration, measured by our clock from the moment
//! we first saw it (never by comparing clocks); every write carries the resourceVersion that was read.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta};
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use crate::writes::post_params;

/// Name of the Lease.
pub const LEASE_NAME: &str = tailnet_crds::names::OPERATOR_LEASE;
/// How long a holder may be silent before another may take over.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for this long must stop acting: well before another may take over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between two tries.
const RETRY: Duration = Duration::from_secs(2);
/// Deadline of one request.
const REQUEST: Duration = Duration::from_secs(5);

/// Why leadership could not be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// Reading the Lease failed.
    #[error("cannot read Lease {LEASE_NAME}: {0}")]
    Read(#[source] kube::Error),
    /// Writing the Lease failed.
    #[error("cannot write Lease {LEASE_NAME}: {0}")]
    Write(#[source] kube::Error),
    /// No answer in time.
    #[error("the API server did not answer within {seconds} s")]
    Deadline {
        /// How long it was waited for, whole seconds.
        seconds: u64,
    },
    /// Another process holds the Lease.
    #[error("Lease {LEASE_NAME} is held by {0}")]
    HeldBy(String),
}

/// One candidate.
pub struct Election {
    api: Api<Lease>,
    identity: String,
    observed: Option<Observed>,
    /// When the Lease was last written by this process.
    renewed: Option<Instant>,
}

struct Observed {
    resource_version: Option<String>,
    since: Instant,
}

impl Election {
    /// A candidate called `identity`, which must differ from every other's.
    pub fn new(client: kube::Client, namespace: &str, identity: String) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            identity,
            observed: None,
            renewed: None,
        }
    }

    /// Waits until this process leads; false when `stop` came first.
    pub async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        let mut told = String::new();
        loop {
            match self.try_within(REQUEST).await {
                Ok(()) => {
                    tracing::info!(identity = %self.identity, "leading");
                    return true;
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != told {
                        tracing::info!(identity = %self.identity, reason = %text, "standing by");
                        told = text;
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(jittered(RETRY)) => {}
            }
        }
    }

    /// Renews until `stop` (Ok) or until the Lease could not be renewed in time (Err: nothing may be written any more). One
    /// request without an answer is no such loss: there is time for another one.
    ///
    /// # Errors
    /// The reason of the last failed renewal.
    pub async fn hold(&mut self, stop: &CancellationToken) -> Result<(), LeaderError> {
        let mut pause = RETRY;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
            let started = Instant::now();
            let left = RENEW_DEADLINE.saturating_sub(self.silent_for());
            match self.try_within(REQUEST.min(left)).await {
                Ok(()) => pause = RETRY,
                Err(error @ LeaderError::HeldBy(_)) => return Err(error),
                Err(error) => {
                    // A request that took its time was pause enough.
                    pause = RETRY.saturating_sub(started.elapsed());
                    if self.silent_for().saturating_add(pause) >= RENEW_DEADLINE {
                        return Err(error);
                    }
                    tracing::warn!(%error, "could not renew the leader Lease; trying again");
                }
            }
        }
    }

    /// Gives the Lease up, so that a successor need not wait. Best effort: it expires anyway.
    pub async fn release(&mut self) {
        let done = tokio::time::timeout(REQUEST, async {
            let mut lease = self.api.get(LEASE_NAME).await.map_err(LeaderError::Read)?;
            if holder(&lease) == Some(self.identity.as_str()) {
                let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                self.api
                    .replace(LEASE_NAME, &post_params(), &lease)
                    .await
                    .map_err(LeaderError::Write)?;
            }
            Ok::<(), LeaderError>(())
        })
        .await;
        if let Ok(Err(error)) = done {
            tracing::warn!(%error, "could not release the leader Lease; it expires by itself");
        }
    }

    async fn try_within(&mut self, deadline: Duration) -> Result<(), LeaderError> {
        // The time before the request: the API server may have written it then.
        let asked = Instant::now();
        tokio::time::timeout(deadline, self.take_or_renew())
            .await
            .map_err(|_| LeaderError::Deadline {
                seconds: deadline.as_secs(),
            })??;
        self.renewed = Some(asked);
        Ok(())
    }

    /// Time since the last renewal, across calls of [`Election::hold`].
    fn silent_for(&self) -> Duration {
        self.renewed.map_or(Duration::MAX, |renewed| renewed.elapsed())
    }

    async fn take_or_renew(&mut self) -> Result<(), LeaderError> {
        let now = MicroTime(jiff::Timestamp::now());
        let Some(lease) = self.api.get_opt(LEASE_NAME).await.map_err(LeaderError::Read)? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE_NAME.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(now.clone(), Some(now), 0)),
            };
            self.api
                .create(&post_params(), &lease)
                .await
                .map_err(LeaderError::Write)?;
            return Ok(());
        };
        let holder = holder(&lease).unwrap_or_default().to_owned();
        let ours = holder == self.identity;
        if !ours && !holder.is_empty() && !self.expired(&lease) {
            return Err(LeaderError::HeldBy(holder));
        }
        let old = lease.spec.clone().unwrap_or_default();
        let transitions = old.lease_transitions.unwrap_or(0);
        let spec = if ours {
            self.spec(now, old.acquire_time, transitions)
        } else {
            self.spec(now.clone(), Some(now), transitions.saturating_add(1))
        };
        // The resourceVersion in the metadata makes the write fail when another candidate was faster.
        let lease = Lease {
            metadata: lease.metadata,
            spec: Some(spec),
        };
        self.api
            .replace(LEASE_NAME, &post_params(), &lease)
            .await
            .map_err(LeaderError::Write)?;
        Ok(())
    }

    fn expired(&mut self, lease: &Lease) -> bool {
        let version = lease.metadata.resource_version.clone();
        let duration = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LEASE_DURATION, Duration::from_secs);
        match &self.observed {
            Some(observed) if observed.resource_version == version => observed.since.elapsed() >= duration,
            _ => {
                self.observed = Some(Observed {
                    resource_version: version,
                    since: Instant::now(),
                });
                false
            }
        }
    }

    fn spec(&self, renew: MicroTime, acquire: Option<MicroTime>, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            renew_time: Some(renew),
            acquire_time: acquire,
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref())
}

fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(rand::rng().random_range(0.8..1.2))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    /// An API server that holds a Lease of `me`; it lets those requests hang for which `hangs` says so, by their number.
    fn server(hangs: fn(usize) -> bool) -> (Election, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&count);
        let service = service_fn(move |_: Request<Body>| {
            let number = seen.fetch_add(1, Ordering::SeqCst);
            async move {
                if hangs(number) {
                    std::future::pending::<()>().await;
                }
                let lease = serde_json::json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": LEASE_NAME, "resourceVersion": "1"},
                    "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}});
                Ok::<_, Infallible>(Response::new(Body::from(lease.to_string().into_bytes())))
            }
        });
        let client = kube::Client::new(service, "tailnet-system");
        (Election::new(client, "tailnet-system", "me".to_owned()), count)
    }

    #[tokio::test]
    async fn one_request_without_an_answer_is_no_loss() {
        // Taking it is two requests; the third hangs, all later ones are answered.
        let (mut election, count) = server(|number| number == 2);
        let stop = CancellationToken::new();
        assert!(election.acquire(&stop).await);
        let held = tokio::time::timeout(RENEW_DEADLINE + REQUEST, election.hold(&stop)).await;
        assert!(held.is_err(), "given up: {held:?}");
        assert!(count.load(Ordering::SeqCst) > 4, "renewed after the request that hung");
    }

    #[tokio::test]
    async fn silence_is_a_loss_before_another_may_take_over() {
        let (mut election, _) = server(|number| number >= 2);
        let stop = CancellationToken::new();
        let began = Instant::now();
        assert!(election.acquire(&stop).await);
        let held = tokio::time::timeout(LEASE_DURATION, election.hold(&stop)).await;
        assert!(matches!(held, Ok(Err(LeaderError::Deadline { .. }))), "{held:?}");
        assert!(
            began.elapsed() >= RENEW_DEADLINE,
            "given up with time left: {:?}",
            began.elapsed()
        );
    }
}
