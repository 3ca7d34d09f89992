//! `--cluster`: what is there now. Lists only, once, within a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Client, Config, ResourceExt};
use serde_json::Value;
use tailnet_crds::names::{self, label};
use tailnet_crds::{GROUP, Kind, VERSION};
use tailnet_policies::claims::{self, Claims};
use tailnet_policies::facts::{Chunk, Facts};
use tailnet_policies::snapshot::Labels;
use tailnet_policies::{Object, Snapshot, base, claim_parts, organisation};

use super::LintArgs;

/// Why the cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No usable kubeconfig.
    #[error("--cluster: there is no usable kubeconfig: {0}; set KUBECONFIG, or --kubeconfig and --context")]
    Kubeconfig(String),
    /// No client from it.
    #[error("--cluster: cannot connect: {0}")]
    Client(#[source] Box<kube::Error>),
    /// A list failed.
    #[error("--cluster: cannot list {resource}: {source}")]
    List {
        /// What was to be listed.
        resource: &'static str,
        /// The client's words.
        source: Box<kube::Error>,
    },
    /// It takes too long.
    #[error(
        "--cluster: the cluster could not be read within {0} s; check the connection, or give more time with --timeout"
    )]
    Deadline(u64),
    /// No thread or timer for the connection.
    #[error("--cluster: cannot start: {0}")]
    Runtime(#[from] std::io::Error),
}

/// What is there.
#[derive(Debug, Default)]
pub struct Live {
    objects: Vec<(Kind, Value)>,
    unknown: Vec<Kind>,
    namespaces: Option<Vec<(String, Labels)>>,
    services: Option<Vec<Value>>,
    facts: Vec<(String, Facts, Duration)>,
    claims: Vec<(String, Claims)>,
    policies: Vec<(String, BTreeMap<String, String>)>,
    base_documents: Option<Vec<(String, String)>>,
    /// What could not be read, for people.
    pub notes: Vec<String>,
}

impl Live {
    /// Puts everything into a snapshot; the objects by kind, namespace and name are what files are updates of.
    pub fn fill(self, snapshot: &mut Snapshot) -> BTreeMap<String, Value> {
        for kind in self.unknown {
            snapshot.set_complete(kind, false);
        }
        for (name, labels) in self.namespaces.into_iter().flatten() {
            snapshot.upsert_namespace_with(&name, labels);
        }
        if let Some(services) = self.services {
            snapshot.set_services_known(true);
            for service in &services {
                snapshot.upsert_service(service);
            }
        }
        for (tailnet, facts, age) in self.facts {
            snapshot.set_facts(&tailnet, Some(facts), age);
        }
        for (tailnet, claims) in self.claims {
            snapshot.set_claims(&tailnet, Some(claims));
        }
        if let Some(documents) = self.base_documents {
            snapshot.set_base_documents_known(true);
            for (name, text) in documents {
                snapshot.set_base_document(&name, Some(&text));
            }
        }
        for (name, data) in self.policies {
            snapshot.set_policy(&name, Some(Arc::new(organisation::standing(&name, &data))));
        }
        let mut before = BTreeMap::new();
        for (kind, object) in self.objects {
            snapshot.upsert(kind, &object);
            before.insert(super::key(&Object::parse(kind, &object)), object);
        }
        before
    }
}

/// Reads the cluster that the flags name.
pub fn read(args: &LintArgs) -> Result<Live, ClusterError> {
    // A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = async {
        let config = config(args).await?;
        let client = Client::try_from(config).map_err(|error| ClusterError::Client(Box::new(error)))?;
        read_with(&client, &args.operator_namespace).await
    };
    let read = runtime.block_on(async { tokio::time::timeout(args.timeout, work).await });
    // A name that is still being looked up must not hold the process.
    runtime.shutdown_background();
    read.map_err(|_| ClusterError::Deadline(args.timeout.as_secs()))?
}

async fn config(args: &LintArgs) -> Result<Config, ClusterError> {
    let refused = |error: &dyn std::fmt::Display| ClusterError::Kubeconfig(error.to_string());
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    match (&args.kubeconfig, &args.context) {
        (Some(file), _) => {
            let kubeconfig = Kubeconfig::read_from(file).map_err(|error| refused(&error))?;
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| refused(&error))
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| refused(&error)),
        (None, None) => Config::infer().await.map_err(|error| refused(&error)),
    }
}

/// A list, or why it is not to be had.
enum Listed<T> {
    Items(Vec<T>),
    Forbidden,
    NoSuchKind,
}

async fn list<K>(api: Api<K>, resource: &'static str) -> Result<Listed<K>, ClusterError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(Listed::Items(list.items)),
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 401 => Ok(Listed::Forbidden),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Listed::NoSuchKind),
        Err(source) => Err(ClusterError::List {
            resource,
            source: Box::new(source),
        }),
    }
}

async fn read_with(client: &Client, operator_namespace: &str) -> Result<Live, ClusterError> {
    let mut live = Live::default();
    for kind in Kind::ALL {
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind.as_str()), kind.plural());
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        match list(api, kind.plural()).await? {
            Listed::Items(items) => live.objects.extend(items.into_iter().map(|mut object| {
                object.metadata.managed_fields = None;
                let value = serde_json::to_value(&object).unwrap_or_default();
                (kind, value)
            })),
            Listed::Forbidden => {
                live.unknown.push(kind);
                live.notes.push(format!(
                    "this user may not list {}: the files alone are known",
                    kind.plural()
                ));
            }
            Listed::NoSuchKind => live.notes.push(format!(
                "the cluster does not have {} (are the CRDs installed?)",
                kind.plural()
            )),
        }
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match list(namespaces, "namespaces").await? {
        Listed::Items(items) => {
            let named = |namespace: Namespace| (namespace.name_any(), namespace.metadata.labels.unwrap_or_default());
            live.namespaces = Some(items.into_iter().map(named).collect());
        }
        _ => live
            .notes
            .push("this user may not list namespaces: they are not checked".to_owned()),
    }
    let services: Api<Service> = Api::namespaced(client.clone(), operator_namespace);
    match list(services, "services").await? {
        Listed::Items(items) => {
            let values = items
                .iter()
                .map(|service| serde_json::to_value(service).unwrap_or_default());
            live.services = Some(values.collect());
        }
        _ => live.notes.push(format!(
            "this user may not list Services of {operator_namespace}: they are not checked"
        )),
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), operator_namespace);
    match list(config_maps, "configmaps").await? {
        Listed::Items(items) => {
            let leases: Api<Lease> = Api::namespaced(client.clone(), operator_namespace);
            let leases = match list(leases, "leases").await? {
                Listed::Items(leases) => leases,
                _ => Vec::new(),
            };
            published(&mut live, &items, &leases);
        }
        _ => live.notes.push(format!(
            "this user may not list ConfigMaps of {operator_namespace}: neither the organisation's policies nor what is known of Headscale is checked"
        )),
    }
    Ok(live)
}

/// What stands in the ConfigMaps of the operator namespace.
fn published(live: &mut Live, config_maps: &[ConfigMap], leases: &[Lease]) {
    let mut chunks: BTreeMap<String, Vec<Chunk>> = BTreeMap::new();
    let mut claims_parts: BTreeMap<String, Vec<Claims>> = BTreeMap::new();
    for config_map in config_maps {
        let name = config_map.name_any();
        let data = config_map.data.clone().unwrap_or_default();
        let labels = config_map.labels();
        let documents = live.base_documents.get_or_insert_default();
        documents.extend(data.get(base::KEY).map(|text| (name.clone(), text.clone())));
        if labels.get(label::ADMISSION_POLICY).map(String::as_str) == Some("true") {
            live.policies.push((name, data));
        } else if let Some((tailnet, _)) = names::tailnet::claims_part_of(&name) {
            if let Some(Ok(part)) = data.get(claims::DATA_KEY).map(|text| Claims::from_json(text)) {
                claims_parts.entry(tailnet.to_owned()).or_default().push(part);
            }
        } else if let Some(tailnet) = labels.get(label::FACTS) {
            let chunk = Chunk::of_config_map(&name, labels, config_map.annotations(), Some(&data));
            // One that is damaged is missing in its text: that is told below.
            let chunk = chunk.ok().flatten().map(|(_, chunk)| chunk);
            chunks.entry(tailnet.clone()).or_default().extend(chunk);
        }
    }
    for (tailnet, parts) in claims_parts {
        live.claims.push((tailnet, claim_parts::merged(&parts)));
    }
    let now = Timestamp::now();
    for (tailnet, chunks) in chunks {
        let Ok(facts) = Facts::from_chunks(&chunks) else {
            live.notes.push(format!(
                "what is known of Headscale for Tailnet {tailnet} cannot be read: not checked"
            ));
            continue;
        };
        let lease = names::tailnet::facts_lease(&tailnet);
        let renewed = leases
            .iter()
            .filter(|found| found.name_any() == lease)
            .filter_map(|lease| lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0))
            .next();
        let read_at: Option<Timestamp> = facts.read_at.parse().ok();
        let age = match renewed.max(read_at) {
            Some(at) => Duration::try_from(now.duration_since(at)).unwrap_or(Duration::ZERO),
            None => Duration::MAX,
        };
        live.facts.push((tailnet, facts, age));
    }
}
