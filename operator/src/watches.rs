//! One watch per kind, shared by everything in the process: it feeds a store and tells listeners which object changed.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tailnet_crds::GROUP;
use tailnet_crds::crd::NOT_INSTALLED;
use tokio_util::sync::CancellationToken;

/// Called with the changed object (its last state when it was deleted) after the store has the change.
pub type Listener<K> = Box<dyn Fn(&K) + Send + Sync>;

/// A watch that is set up but not yet running.
pub struct Watch<K: Resource<DynamicType: Hash + Eq + Clone + Default> + Clone + 'static> {
    store: Store<K>,
    writer: reflector::store::Writer<K>,
    listeners: Vec<Listener<K>>,
    /// Takes out of an object what nobody in the process reads.
    trim: fn(&mut K),
}

impl<K> Default for Watch<K>
where
    K: Resource<DynamicType: Hash + Eq + Clone + Default> + Clone + 'static,
{
    fn default() -> Self {
        let (store, writer) = reflector::store();
        Self {
            store,
            writer,
            listeners: Vec::new(),
            trim: |_| {},
        }
    }
}

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    /// The store that this watch feeds.
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// Keeps of every object only what `trim` leaves: for kinds of which there are many.
    pub fn trimmed(mut self, trim: fn(&mut K)) -> Self {
        self.trim = trim;
        self
    }

    /// Adds a listener; they are called in order.
    pub fn listen(&mut self, listener: impl Fn(&K) + Send + Sync + 'static) {
        self.listeners.push(Box::new(listener));
    }
}

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Runs the watch until `stop`; of a `PartialObjectMeta` only metadata cross the wire. Broken connections, 410 and 5xx are retried with back-off by the watcher.
    pub async fn run(self, api: Api<K>, config: watcher::Config, stop: CancellationToken) {
        self.drive(watcher(api, config).default_backoff(), stop).await;
    }
}

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    async fn drive(
        self,
        events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
        stop: CancellationToken,
    ) {
        let Self {
            store,
            writer,
            listeners,
            trim,
        } = self;
        let kind = K::kind(&());
        // Managed fields are the larger half of small objects and nobody here reads them.
        let events = events
            .modify(move |object| {
                object.managed_fields_mut().clear();
                trim(object);
            })
            .reflect(writer);
        let mut events = std::pin::pin!(events.take_until(stop.cancelled()));
        let mut before: HashMap<ObjectRef<K>, Arc<K>> = HashMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => {
                    before = store
                        .state()
                        .into_iter()
                        .map(|o| (ObjectRef::from_obj(o.as_ref()), o))
                        .collect();
                }
                Ok(watcher::Event::InitApply(_)) => {}
                Ok(watcher::Event::InitDone) => {
                    // The store changes as a whole at the end of a list: only now may a listener look at it, and
                    // what vanished while the watch was broken is told as well.
                    for object in store.state() {
                        before.remove(&ObjectRef::from_obj(object.as_ref()));
                        listeners.iter().for_each(|listener| listener(&object));
                    }
                    for object in std::mem::take(&mut before).values() {
                        listeners.iter().for_each(|listener| listener(object));
                    }
                }
                Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) => {
                    listeners.iter().for_each(|listener| listener(&object));
                }
                Err(error) => {
                    let error = words(&K::group(&()), &error);
                    tracing::warn!(%kind, error, "watch interrupted; it is retried with back-off");
                }
            }
        }
    }
}

/// The error; of a kind of ours that the API server does not know, what to do. Its own words are then no more than "page not found".
fn words(group: &str, error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if group == GROUP && status.code == 404 =>
        {
            NOT_INSTALLED.to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUP, NOT_INSTALLED, watcher, words};
    use kube::core::Status;

    #[test]
    fn a_kind_that_is_not_installed_is_told_as_that() {
        let answered = |code| {
            let status = Status::failure("404 page not found", "Failed to parse error data").with_code(code);
            watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
        };
        assert_eq!(words(GROUP, &answered(404)), NOT_INSTALLED);
        assert!(words(GROUP, &answered(403)).contains("initial object list"));
        assert!(words("apps", &answered(404)).contains("initial object list"));
    }
}
