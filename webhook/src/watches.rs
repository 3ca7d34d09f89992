//! One watch, kept alive: lists, follows, starts again after errors, and hands whole lists and single changes to a [`Sink`].

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tailnet_crds::Kind;
use tailnet_crds::crd::NOT_INSTALLED;

use crate::metrics::{Metrics, ResourceLabels};
use crate::sync::Sync;

/// First and longest wait before a broken watch starts again.
const RETRY: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(5));

/// Name and namespace of an object.
pub type Key = (Option<String>, String);

/// What a watch fills.
pub trait Sink<K>: Send {
    /// An object is new or has changed.
    fn upsert(&mut self, object: &K);
    /// An object is gone.
    fn remove(&mut self, key: &Key);
    /// The first whole list is in.
    fn synced(&mut self) {}
}

/// What one watch needs besides its sink.
pub struct Watch<K> {
    /// Which objects.
    pub api: Api<K>,
    /// Which of them.
    pub config: watcher::Config,
    /// Name in metrics, log and readiness.
    pub resource: &'static str,
    /// Where watches say that they have their first list.
    pub sync: Arc<Sync>,
    /// Where errors are counted.
    pub metrics: Arc<Metrics>,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Follows for ever.
    pub async fn run(self, mut sink: impl Sink<K>) {
        let mut events = watcher::watcher(self.api, self.config).boxed();
        // Resource versions by object: a list after a break hands on only what changed meanwhile.
        let mut known: HashMap<Key, Option<String>> = HashMap::new();
        let mut listed: HashMap<Key, Option<String>> = HashMap::new();
        let mut wait = RETRY.0;
        let mut synced = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    let (key, version) = identity(&object);
                    if known.get(&key) != Some(&version) {
                        sink.upsert(&object);
                        known.insert(key.clone(), version.clone());
                    }
                    listed.insert(key, version);
                }
                Ok(Event::InitDone) => {
                    known.retain(|key, _| {
                        let there = listed.contains_key(key);
                        if !there {
                            sink.remove(key);
                        }
                        there
                    });
                    listed.clear();
                    wait = RETRY.0;
                    if !synced {
                        synced = true;
                        sink.synced();
                        self.sync.synced(self.resource);
                    }
                }
                Ok(Event::Apply(object)) => {
                    let (key, version) = identity(&object);
                    sink.upsert(&object);
                    known.insert(key, version);
                    wait = RETRY.0;
                }
                Ok(Event::Delete(object)) => {
                    let (key, _) = identity(&object);
                    known.remove(&key);
                    sink.remove(&key);
                    wait = RETRY.0;
                }
                Err(error) => {
                    self.metrics
                        .watch_errors
                        .get_or_create(&ResourceLabels {
                            resource: self.resource,
                        })
                        .inc();
                    let error = words(self.resource, &error);
                    tracing::warn!(resource = self.resource, error, retry_in = ?wait, "watch broke; what is known stays in use");
                    let jitter = u64::from(jiff::Timestamp::now().subsec_nanosecond().unsigned_abs() % 200);
                    tokio::time::sleep(wait + Duration::from_millis(jitter)).await;
                    wait = (wait * 2).min(RETRY.1);
                }
            }
        }
    }
}

/// The error; of a kind of ours that the API server does not know, what to do. Its own words are then no more than "page not found".
fn words(resource: &str, error: &watcher::Error) -> String {
    let ours = Kind::ALL.into_iter().any(|kind| kind.plural() == resource);
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if ours && status.code == 404 =>
        {
            NOT_INSTALLED.to_owned()
        }
        error => error.to_string(),
    }
}

fn identity<K: Resource>(object: &K) -> (Key, Option<String>) {
    ((object.namespace(), object.name_any()), object.resource_version())
}

#[cfg(test)]
mod tests {
    use super::{NOT_INSTALLED, watcher, words};
    use kube::core::Status;

    fn answered(code: u16) -> watcher::Error {
        let status = Status::failure("404 page not found", "Failed to parse error data").with_code(code);
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_kind_that_is_not_installed_is_told_as_that() {
        assert_eq!(words("tailnets", &answered(404)), NOT_INSTALLED);
        assert!(words("tailnets", &answered(403)).contains("initial object list"));
        assert!(words("services", &answered(404)).contains("initial object list"));
    }
}
