//! Who fails closed, and from when on.
//!
//! The chart's first installation cannot make its webhook answer before it makes objects: Helm goes on at once, also with
//! objects of our kinds in the same release. So it installs the checking entry with failurePolicy Ignore then, and the
//! webhook sets Fail as soon as the API server has reached it. From there on it is Fail: what would be written unchecked
//! while the webhook is away is refused.
//!
//! An Ignore after that is somebody's decision, in an emergency, because the API server does not reach the webhook. It stays
//! until the API server does so again, however long this process runs and is ready, and through restarts of it: an annotation
//! says that the entry has been Fail before. Whether the API server comes through only the API server can tell ([`reach`]).

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use tailnet_crds::names::annotation::FAILED_CLOSED;
use tailnet_crds::names::field_manager::WEBHOOK_ARMING as FIELD_MANAGER;
use tailnet_process::Readiness;
use tokio_util::sync::CancellationToken;

use crate::clock::moment::pause;
use crate::configuration::VALIDATE;
use crate::reach::{self, Reach};

/// In a first installation a webhook that has been ready for this long counts as reached: whatever keeps the API server away
/// from it must not keep admission open for good.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often readiness is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time between two looks at the configuration.
const PERIOD: Duration = Duration::from_secs(60);
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Reading or writing the configuration may not take longer.
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
    /// The API server took too long.
    #[error("the API server did not answer within {} s", DEADLINE.as_secs())]
    Deadline,
}

/// Keeps the checking entry of one configuration at failurePolicy Fail.
pub struct Arming {
    /// API server.
    pub client: Client,
    /// Name of the ValidatingWebhookConfiguration.
    pub name: String,
    /// Namespace of the operator: the API server is asked about a ConfigMap there.
    pub namespace: String,
    /// Of this process.
    pub readiness: Readiness,
    /// 1 while the entry is Ignore.
    pub open: Gauge,
}

/// What a configuration says about the checking entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// There is none, or it is Fail.
    Closed,
    /// Ignore, and it has never been anything else: a first installation.
    NotYetClosed,
    /// Ignore, after it had been Fail.
    Opened,
}

/// Why the entry is open, and what has been seen since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Evidence {
    entry: Entry,
    /// Questions in a row that were answered.
    reached: u32,
}

impl Evidence {
    fn of(entry: Entry) -> Self {
        Self { entry, reached: 0 }
    }

    /// Answers in a row that it takes. Who opens the entry may have a way to the webhook that works every other time.
    fn needed(self) -> u32 {
        match self.entry {
            Entry::Closed | Entry::NotYetClosed => 1,
            Entry::Opened => 3,
        }
    }

    /// Between two questions.
    fn pause(self) -> Duration {
        match self.entry {
            Entry::Closed | Entry::NotYetClosed => Duration::from_secs(1),
            Entry::Opened => Duration::from_secs(5),
        }
    }

    fn saw(&mut self, reach: &Reach) {
        match reach {
            Reach::Reached => self.reached += 1,
            Reach::Not(_) => self.reached = 0,
        }
    }

    fn is_enough(self, long_ready: bool) -> bool {
        self.reached >= self.needed() || (long_ready && self.entry == Entry::NotYetClosed)
    }
}

impl Arming {
    /// Waits until the API server comes through, then keeps the entry at Fail until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let long_ready = CancellationToken::new();
        let patience = async {
            self.wait_long_ready(PATIENCE).await;
            long_ready.cancel();
            std::future::pending().await
        };
        tokio::select! {
            () = self.keep(&long_ready) => {}
            () = patience => {}
            () = stop.cancelled() => {}
        }
    }

    async fn keep(&self, long_ready: &CancellationToken) {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        // A broken watch is only a hint lost: the loop looks every minute anyhow.
        let mut changes = watcher(api, only).default_backoff().boxed();
        let mut wait = RETRY.0;
        let mut evidence = Evidence::of(Entry::Closed);
        let mut told = None;
        loop {
            match within(self.read()).await {
                Ok(live) => {
                    wait = RETRY.0;
                    let entry = live.as_ref().map_or(Entry::Closed, entry);
                    self.open.set(i64::from(entry != Entry::Closed));
                    if evidence.entry != entry {
                        evidence = Evidence::of(entry);
                        told = None;
                        if entry == Entry::Opened {
                            tracing::warn!(
                                configuration = self.name,
                                "somebody has set failurePolicy Ignore: it stays until the API server reaches a webhook again"
                            );
                        }
                    }
                    let (Some(live), true) = (live, entry != Entry::Closed) else {
                        tokio::select! {
                            () = pause(PERIOD) => {}
                            _ = changes.next() => {}
                        }
                        continue;
                    };
                    // Asked after the entry was seen open: an answer of before says nothing about now.
                    let reach = reach::ask(&self.client, &self.namespace).await;
                    evidence.saw(&reach);
                    if evidence.is_enough(long_ready.is_cancelled()) {
                        if let Err(error) = within(self.close(&live)).await {
                            tracing::warn!(%error, "admission may still be open while this webhook is away");
                        } else {
                            tracing::info!(
                                configuration = self.name,
                                "failurePolicy is Fail from now on: nothing is stored unchecked"
                            );
                        }
                    } else if let Reach::Not(why) = reach
                        && told.as_ref() != Some(&why)
                    {
                        tracing::info!(why, "failurePolicy stays Ignore for now");
                        told = Some(why);
                    }
                    tokio::time::sleep(evidence.pause()).await;
                }
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?wait, "admission may still be open while this webhook is away");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY.1);
                }
            }
        }
    }

    /// Returns when the process has been ready for `patience`.
    async fn wait_long_ready(&self, patience: Duration) {
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
    }

    /// The configuration; one that is closed says so afterwards.
    async fn read(&self) -> Result<Option<ValidatingWebhookConfiguration>, ArmError> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let live = api.get_opt(&self.name).await.map_err(|source| ArmError::Read {
            name: self.name.clone(),
            source: Box::new(source),
        })?;
        if let Some(live) = &live
            && is_closed(live)
            && !is_marked(live)
        {
            self.apply(&given_back(live)).await?;
        }
        Ok(live)
    }

    /// Sets Fail.
    async fn close(&self, live: &ValidatingWebhookConfiguration) -> Result<(), ArmError> {
        // Taken over, then given back: a field without an owner has its default, which is Fail, and whoever applies the
        // chart next, also its first revision, meets no conflict.
        self.apply(&taken(live)).await?;
        self.apply(&given_back(live)).await
    }

    async fn apply(&self, patch: &Value) -> Result<(), ArmError> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let written = api.patch(&self.name, &parameters, &Patch::Apply(patch)).await;
        written.map(drop).map_err(|source| ArmError::Write {
            name: self.name.clone(),
            source: Box::new(source),
        })
    }
}

async fn within<T>(work: impl Future<Output = Result<T, ArmError>>) -> Result<T, ArmError> {
    let done = tokio::time::timeout(DEADLINE, work).await;
    done.unwrap_or(Err(ArmError::Deadline))
}

fn entry(live: &ValidatingWebhookConfiguration) -> Entry {
    match (is_open(live), is_marked(live)) {
        (false, _) => Entry::Closed,
        (true, false) => Entry::NotYetClosed,
        (true, true) => Entry::Opened,
    }
}

fn is_marked(live: &ValidatingWebhookConfiguration) -> bool {
    live.annotations()
        .get(FAILED_CLOSED)
        .is_some_and(|value| value == "true")
}

fn policy(live: &ValidatingWebhookConfiguration) -> Option<&str> {
    let mut entries = live.webhooks.iter().flatten();
    entries.find(|entry| entry.name == VALIDATE)?.failure_policy.as_deref()
}

fn is_closed(live: &ValidatingWebhookConfiguration) -> bool {
    policy(live) == Some("Fail")
}

/// Whether the entry that checks lets everything through while the webhook is away.
fn is_open(live: &ValidatingWebhookConfiguration) -> bool {
    policy(live) == Some("Ignore")
}

fn taken(live: &ValidatingWebhookConfiguration) -> Value {
    let mut patch = given_back(live);
    patch["webhooks"] = json!([{"name": VALIDATE, "failurePolicy": "Fail"}]);
    patch
}

/// What is ours of the configuration in the end: the annotation.
fn given_back(live: &ValidatingWebhookConfiguration) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        // The uid keeps a configuration that was deleted a moment ago from being made anew.
        "metadata": {"name": live.name_any(), "uid": live.uid(), "annotations": {FAILED_CLOSED: "true"}},
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
    use prometheus_client::metrics::gauge::Gauge;
    use serde_json::json;
    use tailnet_crds::names::annotation::FAILED_CLOSED;
    use tailnet_process::Readiness;

    use super::{Arming, Entry, Evidence, PATIENCE, Reach, entry, given_back, is_open, taken};
    use crate::configuration::{Parameters, VALIDATE, validating};

    fn live(policy: &str) -> ValidatingWebhookConfiguration {
        let mut live = validating(&Parameters::service("tailnet-system", "tailnet-webhook"));
        live.metadata.uid = Some("u1".to_owned());
        for entry in live.webhooks.iter_mut().flatten() {
            if entry.name == VALIDATE {
                entry.failure_policy = Some(policy.to_owned());
            }
        }
        live
    }

    #[test]
    fn only_the_checking_entry_counts() {
        assert!(!is_open(&live("Fail")), "the others are Ignore for good");
        let live = live("Ignore");
        assert!(is_open(&live));
        assert_eq!(
            taken(&live)["webhooks"],
            json!([{"name": VALIDATE, "failurePolicy": "Fail"}])
        );
        assert_eq!(
            given_back(&live)["metadata"],
            json!({"name": "tailnet-webhook", "uid": "u1", "annotations": {FAILED_CLOSED: "true"}})
        );
        assert!(given_back(&live).get("webhooks").is_none());
    }

    #[test]
    fn an_ignore_after_fail_is_somebodys() {
        assert_eq!(entry(&live("Fail")), Entry::Closed);
        assert_eq!(entry(&live("Ignore")), Entry::NotYetClosed);
        let mut opened = live("Ignore");
        opened.metadata.annotations = Some([(FAILED_CLOSED.to_owned(), "true".to_owned())].into());
        assert_eq!(entry(&opened), Entry::Opened);
    }

    #[test]
    fn what_somebody_opened_is_closed_by_answers_in_a_row_and_by_nothing_else() {
        let not = Reach::Not("the API server does not reach a webhook".to_owned());
        let mut first = Evidence::of(Entry::NotYetClosed);
        first.saw(&not);
        assert!(!first.is_enough(false));
        assert!(first.is_enough(true), "a first installation does not wait for ever");
        first.saw(&Reach::Reached);
        assert!(first.is_enough(false));

        let mut opened = Evidence::of(Entry::Opened);
        assert!(
            !opened.is_enough(true),
            "a webhook that is ready, and that nobody reaches"
        );
        for _ in 0..2 {
            opened.saw(&Reach::Reached);
            opened.saw(&Reach::Reached);
            assert!(!opened.is_enough(true));
            opened.saw(&not);
            assert!(!opened.is_enough(true), "it comes through every other time");
        }
        for _ in 0..3 {
            opened.saw(&Reach::Reached);
        }
        assert!(opened.is_enough(false));
    }

    fn arming(readiness: &Readiness) -> Arming {
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| async {
            Err::<axum::http::Response<kube::client::Body>, _>(std::io::Error::other("nobody is asked"))
        });
        Arming {
            client: kube::Client::new(service, "default"),
            name: "tailnet-webhook".to_owned(),
            namespace: "tailnet-system".to_owned(),
            readiness: readiness.clone(),
            open: Gauge::default(),
        }
    }

    #[tokio::test]
    async fn a_long_readiness_is_waited_for() {
        let moment = Duration::from_millis(10);
        let readiness = Readiness::new();
        let condition = readiness.condition("caches", "not yet");
        let arming = arming(&readiness);
        let waited = tokio::time::timeout(Duration::from_secs(1), arming.wait_long_ready(moment)).await;
        assert!(waited.is_err(), "not ready");
        condition.met();
        let waited = tokio::time::timeout(Duration::from_secs(1), arming.wait_long_ready(PATIENCE)).await;
        assert!(waited.is_err(), "ready for a short time only");
        let waited = tokio::time::timeout(Duration::from_secs(20), arming.wait_long_ready(moment)).await;
        assert!(waited.is_ok(), "ready for long");
    }
}
