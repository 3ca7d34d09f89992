//! Who fails closed, and from when on.
//!
//! The chart's first installation cannot make its webhook answer before it makes objects: Helm goes on at once, also with
//! objects of our kinds in the same release. So it installs the checking entry with failurePolicy Ignore then, and the
//! webhook sets Fail as soon as the API server has reached it. From there on it stays Fail, whoever changes it: what would be
//! written unchecked while the webhook is away is refused.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tailnet_crds::names::field_manager::WEBHOOK_ARMING as FIELD_MANAGER;
use tailnet_process::Readiness;
use tokio_util::sync::CancellationToken;

use crate::configuration::VALIDATE;

/// A webhook that has been ready for this long without a call counts as reached: whatever keeps the API server away from it
/// must not keep admission open for good.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often readiness is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time between two looks at the configuration.
const PERIOD: Duration = Duration::from_secs(60);
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// One look may not take longer.
const DEADLINE: Duration = Duration::from_secs(20);

/// Why the entry could not be set to Fail; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// Reading failed.
    #[error("cannot read ValidatingWebhookConfiguration {name}: {source}")]
    Read {
        /// Its name.
        name: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
    /// Writing failed.
    #[error("cannot set failurePolicy Fail in ValidatingWebhookConfiguration {name}: {source}")]
    Write {
        /// Its name.
        name: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
    /// The look took too long.
    #[error("the API server did not answer within {} s", DEADLINE.as_secs())]
    Deadline,
}

/// Keeps the checking entry of one configuration at failurePolicy Fail.
pub struct Arming {
    /// API server.
    pub client: Client,
    /// Name of the ValidatingWebhookConfiguration.
    pub name: String,
    /// Cancelled by the first call of an API server.
    pub reached: CancellationToken,
    /// Of this process.
    pub readiness: Readiness,
}

impl Arming {
    /// Waits until the API server has come through, then keeps the entry at Fail until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = self.keep() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn keep(&self) {
        self.wait_reached(PATIENCE).await;
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        // A broken watch is only a hint lost: the loop looks every minute anyhow.
        let mut changes = watcher(api, only).default_backoff().boxed();
        let mut wait = RETRY.0;
        loop {
            let look = tokio::time::timeout(DEADLINE, self.look()).await;
            match look.unwrap_or(Err(ArmError::Deadline)) {
                Ok(changed) => {
                    wait = RETRY.0;
                    if changed {
                        tracing::info!(
                            configuration = self.name,
                            "failurePolicy is Fail from now on: nothing is stored unchecked"
                        );
                    }
                    tokio::select! {
                        () = tokio::time::sleep(PERIOD) => {}
                        _ = changes.next() => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?wait, "admission may still be open while this webhook is away");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY.1);
                }
            }
        }
    }

    /// Returns at the first call, or when the process has been ready for `patience`.
    async fn wait_reached(&self, patience: Duration) {
        let long_ready = async {
            let mut since = None;
            loop {
                match (self.readiness.is_ready(), since) {
                    (false, _) => since = None,
                    (true, None) => since = Some(tokio::time::Instant::now()),
                    (true, Some(at)) if at.elapsed() >= patience => return,
                    (true, Some(_)) => {}
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = self.reached.cancelled() => {}
            () = long_ready => {}
        }
    }

    /// True when the entry had to be changed.
    async fn look(&self) -> Result<bool, ArmError> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let live = api.get_opt(&self.name).await.map_err(|source| ArmError::Read {
            name: self.name.clone(),
            source: Box::new(source),
        })?;
        let Some(live) = live.filter(is_open) else {
            return Ok(false);
        };
        // Taken over, then given back: a field without an owner has its default, which is Fail, and whoever applies the
        // chart next, also its first revision, meets no conflict.
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        for patch in [taken(&live), given_back(&live)] {
            api.patch(&self.name, &parameters, &Patch::Apply(&patch))
                .await
                .map_err(|source| ArmError::Write {
                    name: self.name.clone(),
                    source: Box::new(source),
                })?;
        }
        Ok(true)
    }
}

/// Whether the entry that checks lets everything through while the webhook is away.
fn is_open(live: &ValidatingWebhookConfiguration) -> bool {
    let mut entries = live.webhooks.iter().flatten();
    entries.any(|entry| entry.name == VALIDATE && entry.failure_policy.as_deref() == Some("Ignore"))
}

fn taken(live: &ValidatingWebhookConfiguration) -> Value {
    let mut patch = given_back(live);
    patch["webhooks"] = json!([{"name": VALIDATE, "failurePolicy": "Fail"}]);
    patch
}

/// What is ours of the configuration in the end: nothing.
fn given_back(live: &ValidatingWebhookConfiguration) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        // The uid keeps a configuration that was deleted a moment ago from being made anew.
        "metadata": {"name": live.name_any(), "uid": live.uid()},
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tailnet_process::Readiness;
    use tokio_util::sync::CancellationToken;

    use super::{Arming, PATIENCE, given_back, is_open, taken};
    use crate::configuration::{Parameters, VALIDATE, validating};

    #[test]
    fn only_the_checking_entry_counts() {
        let mut live = validating(&Parameters::service("tailnet-system", "tailnet-webhook"));
        live.metadata.uid = Some("u1".to_owned());
        assert!(!is_open(&live), "the others are Ignore for good");
        for entry in live.webhooks.iter_mut().flatten() {
            if entry.name == VALIDATE {
                entry.failure_policy = Some("Ignore".to_owned());
            }
        }
        assert!(is_open(&live));
        assert_eq!(
            taken(&live)["webhooks"],
            json!([{"name": VALIDATE, "failurePolicy": "Fail"}])
        );
        assert_eq!(
            given_back(&live)["metadata"],
            json!({"name": "tailnet-webhook", "uid": "u1"})
        );
        assert!(given_back(&live).get("webhooks").is_none());
    }

    fn arming(readiness: &Readiness) -> Arming {
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| async {
            Err::<axum::http::Response<kube::client::Body>, _>(std::io::Error::other("nobody is asked"))
        });
        Arming {
            client: kube::Client::new(service, "default"),
            name: "tailnet-webhook".to_owned(),
            reached: CancellationToken::new(),
            readiness: readiness.clone(),
        }
    }

    #[tokio::test]
    async fn a_call_or_a_long_readiness_count_as_reached() {
        let moment = Duration::from_millis(10);
        let readiness = Readiness::new();
        let condition = readiness.condition("caches", "not yet");
        let unready = arming(&readiness);
        let waited = tokio::time::timeout(Duration::from_secs(1), unready.wait_reached(moment)).await;
        assert!(waited.is_err(), "not ready, not called");
        unready.reached.cancel();
        let waited = tokio::time::timeout(Duration::from_secs(20), unready.wait_reached(PATIENCE)).await;
        assert!(waited.is_ok(), "called");

        condition.met();
        let ready = arming(&readiness);
        let waited = tokio::time::timeout(Duration::from_secs(1), ready.wait_reached(PATIENCE)).await;
        assert!(waited.is_err(), "ready for a short time only");
        let waited = tokio::time::timeout(Duration::from_secs(20), ready.wait_reached(moment)).await;
        assert!(waited.is_ok(), "ready for long");
    }
}
