//! What the rules see of the cluster, kept by watches. Nothing here is read from an object's status: a tenant may write it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tailnet_crds::{GROUP, Kind, VERSION};
use tailnet_policies::snapshot::Snapshot;
use tokio::task::JoinSet;

use crate::clock::ApiClock;
use crate::metrics::Metrics;
use crate::organisation::Policies;
use crate::published::Published;
use crate::sync::Sync;
use crate::watches::{Key, Sink, Watch};

/// How often the ages of the facts are reckoned anew.
const AGES: Duration = Duration::from_secs(1);

/// The one snapshot, written by watches and read by admissions. A change takes microseconds; an evaluation holds the lock
/// for less than a millisecond.
#[derive(Debug)]
pub struct SharedSnapshot(RwLock<Snapshot>);

impl SharedSnapshot {
    /// Shares `snapshot`.
    pub fn new(snapshot: Snapshot) -> Self {
        Self(RwLock::new(snapshot))
    }

    /// Looks at it.
    pub fn read<T>(&self, look: impl FnOnce(&Snapshot) -> T) -> T {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes it.
    pub fn write<T>(&self, change: impl FnOnce(&mut Snapshot) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How to reach the objects of a kind.
pub fn api_resource(kind: Kind) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind.as_str()), kind.plural())
}

/// Names of all watches, as readiness and metrics show them.
pub fn watched() -> impl Iterator<Item = &'static str> {
    Kind::ALL
        .into_iter()
        .map(Kind::plural)
        .chain(["namespaces", "services", "configmaps", "leases"])
}

/// Starts all watches. They end when the returned set is dropped.
pub fn watch(
    client: &Client,
    operator_namespace: &str,
    snapshot: &Arc<SharedSnapshot>,
    sync: &Arc<Sync>,
    metrics: &Arc<Metrics>,
    clock: &ApiClock,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for kind in Kind::ALL {
        let sink = Ours {
            kind,
            snapshot: Arc::clone(snapshot),
        };
        // Untyped: an object that no longer fits its schema must not stop the watch of the others.
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &api_resource(kind));
        tasks.spawn(start(api, kind.plural(), sync, metrics).run(sink));
    }
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    tasks.spawn(start(namespaces, "namespaces", sync, metrics).run(Namespaces(Arc::clone(snapshot))));
    // Everywhere: an ingress may name any Service of its namespace. Of each only what rules ask for is kept.
    let services: Api<Service> = Api::all(client.clone());
    tasks.spawn(start(services, "services", sync, metrics).run(Services(Arc::clone(snapshot))));
    let published = Published::new(Arc::clone(snapshot), clock.clone());
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), operator_namespace);
    tasks.spawn(
        start(config_maps, "configmaps", sync, metrics).run(Policies::before(published.clone(), Arc::clone(snapshot))),
    );
    let leases: Api<Lease> = Api::namespaced(client.clone(), operator_namespace);
    tasks.spawn(start(leases, "leases", sync, metrics).run(published.clone()));
    tasks.spawn(async move {
        let mut tick = tokio::time::interval(AGES);
        loop {
            tick.tick().await;
            published.refresh_ages();
        }
    });
    tasks
}

fn start<K>(api: Api<K>, resource: &'static str, sync: &Arc<Sync>, metrics: &Arc<Metrics>) -> Watch<K> {
    let (sync, metrics) = (Arc::clone(sync), Arc::clone(metrics));
    Watch {
        api,
        config: Config::default(),
        resource,
        sync,
        metrics,
    }
}

struct Ours {
    kind: Kind,
    snapshot: Arc<SharedSnapshot>,
}

impl Sink<DynamicObject> for Ours {
    fn upsert(&mut self, object: &DynamicObject) {
        let value = without_managed_fields(object);
        self.snapshot.write(|snapshot| snapshot.upsert(self.kind, &value));
    }

    fn remove(&mut self, (namespace, name): &Key) {
        self.snapshot
            .write(|snapshot| snapshot.remove(self.kind, namespace.as_deref(), name));
    }

    fn synced(&mut self) {
        self.snapshot.write(|snapshot| snapshot.set_complete(self.kind, true));
    }
}

/// The object as JSON. Managed fields are often larger than the object, and no rule reads them.
fn without_managed_fields(object: &DynamicObject) -> Value {
    let mut metadata = object.metadata.clone();
    metadata.managed_fields = None;
    let mut value = object.data.clone();
    if !value.is_object() {
        value = json!({});
    }
    value["metadata"] = json!(metadata);
    value
}

struct Namespaces(Arc<SharedSnapshot>);

impl Sink<PartialObjectMeta<Namespace>> for Namespaces {
    fn upsert(&mut self, object: &PartialObjectMeta<Namespace>) {
        let labels = object.labels().clone();
        self.0
            .write(|snapshot| snapshot.upsert_namespace_with(&object.name_any(), labels));
    }

    fn remove(&mut self, (_, name): &Key) {
        self.0.write(|snapshot| snapshot.remove_namespace(name));
    }
}

struct Services(Arc<SharedSnapshot>);

impl Sink<Service> for Services {
    fn upsert(&mut self, object: &Service) {
        match serde_json::to_value(object) {
            Ok(value) => {
                self.0.write(|snapshot| snapshot.upsert_service(&value));
            }
            Err(error) => tracing::error!(service = object.name_any(), %error, "Service cannot be read as JSON"),
        }
    }

    fn remove(&mut self, (namespace, name): &Key) {
        self.0.write(|snapshot| {
            snapshot.remove_service(namespace.as_deref().unwrap_or_default(), name);
        });
    }

    fn synced(&mut self) {
        // No Service at all is knowledge too.
        self.0.write(|snapshot| {
            if !snapshot.services_known() {
                snapshot.set_services_known(true);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::api::DynamicObject;
    use serde_json::{Value, json};
    use tailnet_crds::Kind;
    use tailnet_policies::snapshot::{Config, Snapshot};

    use super::{Ours, SharedSnapshot, without_managed_fields};
    use crate::watches::Sink;

    fn object(name: &str, spec: Value) -> DynamicObject {
        let metadata = json!({"name": name, "managedFields": [{"manager": "kubectl"}], "labels": {"a": "b"}});
        let whole =
            json!({"apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetSite", "metadata": metadata, "spec": spec});
        serde_json::from_value(whole).expect("an object")
    }

    #[test]
    fn an_object_that_fits_no_type_stops_nothing() {
        let snapshot = Arc::new(SharedSnapshot::new(Snapshot::new(Config::default())));
        let mut sink = Ours {
            kind: Kind::TailnetSite,
            snapshot: Arc::clone(&snapshot),
        };
        for (name, spec) in [
            ("text", json!("odd")),
            ("number", json!({"prefixes": 7})),
            ("none", Value::Null),
        ] {
            sink.upsert(&object(name, spec));
        }
        sink.upsert(&object(
            "right",
            json!({"tailnetRef": {"name": "corp"}, "prefixes": ["192.0.2.0/24"]}),
        ));
        sink.synced();
        snapshot.read(|snapshot| {
            assert_eq!(snapshot.len(), 4);
            assert!(snapshot.is_complete(Kind::TailnetSite));
            let right = snapshot.get(Kind::TailnetSite, None, "right").expect("there");
            assert!(right.site().is_some());
        });
        sink.remove(&(None, "text".to_owned()));
        assert_eq!(snapshot.read(Snapshot::len), 3);
    }

    #[test]
    fn managed_fields_are_not_kept_and_the_rest_is() {
        let value = without_managed_fields(&object("a", json!({"x": 1})));
        assert!(value["metadata"].get("managedFields").is_none());
        assert_eq!(
            (&value["metadata"]["labels"]["a"], &value["spec"]["x"]),
            (&json!("b"), &json!(1))
        );
    }
}
