//! `--cluster`: what is there now. Lists only, once, within a deadline.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tailnet_crds::Kind;
use tailnet_crds::names::rendered_policy::{COMPRESSED, LEFT_OUT, LIVE, RENDERED};
use tailnet_crds::names::{self, label};
use tailnet_policies::claims::{self, Claims};
use tailnet_policies::facts::Facts;
use tailnet_policies::snapshot::Labels;
use tailnet_policies::{Object, Snapshot, base, claim_parts, organisation};

use super::LintArgs;
use crate::connect::{self, ConnectError};
use crate::{facts, kinds};

/// Why the cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No way to it.
    #[error("--cluster: {0}")]
    Connect(#[from] ConnectError),
    /// A list failed.
    #[error("--cluster: cannot list {resource}: {source}")]
    List {
        /// What was to be listed.
        resource: &'static str,
        /// The client's words.
        source: Box<kube::Error>,
    },
}

/// Which cluster, and how.
#[derive(Clone, Debug)]
pub struct Access {
    /// `--context`.
    pub context: Option<String>,
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--timeout`.
    pub timeout: Duration,
    /// `--operator-namespace`.
    pub operator_namespace: String,
}

impl Access {
    /// As `lint` was asked.
    pub fn of(args: &LintArgs) -> Self {
        Self {
            context: args.context.clone(),
            kubeconfig: args.kubeconfig.clone(),
            timeout: args.timeout,
            operator_namespace: args.operator_namespace.clone(),
        }
    }
}

/// The rendered policy of a Tailnet and the live one, as the operator published them.
#[derive(Clone, Debug)]
pub struct RenderedPolicy {
    /// Name of the Tailnet.
    pub tailnet: String,
    /// The rendered document; empty when it cannot be read.
    pub rendered: String,
    /// The live one; None when Headscale has none.
    pub live: Result<Option<String>, NotPublished>,
}

/// Why a text that the operator has is not to be had from its ConfigMap.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotPublished {
    /// The operator says that it did not fit.
    #[error("ConfigMap {config_map} has no room for {key}")]
    LeftOut {
        /// Name of the ConfigMap.
        config_map: String,
        /// Its key.
        key: &'static str,
    },
    /// The archive cannot be unpacked.
    #[error("ConfigMap {config_map}: {key} cannot be unpacked: {source}")]
    Damaged {
        /// Name of the ConfigMap.
        config_map: String,
        /// Its key.
        key: &'static str,
        /// The decoder's words.
        source: Arc<std::io::Error>,
    },
}

/// What is there.
#[derive(Debug, Default)]
pub struct Live {
    /// The published access policies.
    pub rendered_policies: Vec<RenderedPolicy>,
    objects: Vec<(Kind, Value)>,
    unknown: Vec<Kind>,
    namespaces: Option<Vec<(String, Labels)>>,
    services: Option<Vec<Value>>,
    facts: Vec<(String, Facts, Duration)>,
    claims: Vec<(String, Claims)>,
    policies: Vec<(String, BTreeMap<String, String>)>,
    base_documents: Option<Vec<(String, String)>>,
    /// What an access policy rests on and is not known, for people.
    pub unlisted: Vec<String>,
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
pub fn read(args: &Access) -> Result<Live, ClusterError> {
    connect::with_client(
        args.kubeconfig.as_deref(),
        args.context.as_deref(),
        args.timeout,
        async |client| read_with(&client, &args.operator_namespace).await,
    )
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
        match list(kinds::api(client, kind, None), kind.plural()).await? {
            Listed::Items(items) => live.objects.extend(items.into_iter().map(|mut object| {
                object.metadata.managed_fields = None;
                let value = serde_json::to_value(&object).unwrap_or_default();
                (kind, value)
            })),
            Listed::Forbidden => {
                live.unknown.push(kind);
                live.unlisted.push(kind.plural().to_owned());
                live.notes.push(format!(
                    "this user may not list {}: the files alone are known",
                    kind.plural()
                ));
            }
            Listed::NoSuchKind => {
                live.unlisted.push(kind.plural().to_owned());
                live.notes.push(format!(
                    "the cluster does not have {} (are the CRDs installed?)",
                    kind.plural()
                ));
            }
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
    // Of all namespaces: a Service that is not listed would be taken for one that does not exist.
    let services: Api<Service> = Api::all(client.clone());
    match list(services, "services").await? {
        Listed::Items(items) => {
            let values = items
                .iter()
                .map(|service| serde_json::to_value(service).unwrap_or_default());
            live.services = Some(values.collect());
        }
        _ => {
            live.unlisted.push("services".to_owned());
            live.notes
                .push("this user may not list Services of all namespaces: they are not checked".to_owned());
        }
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), operator_namespace);
    match list(config_maps, "configmaps").await? {
        Listed::Items(items) => {
            let leases: Api<Lease> = Api::namespaced(client.clone(), operator_namespace);
            let leases = match list(leases, "leases").await? {
                Listed::Items(leases) => leases,
                _ => {
                    live.notes.push(format!(
                        "this user may not list Leases of {operator_namespace}: what is known of Headscale counts as old as its last change"
                    ));
                    Vec::new()
                }
            };
            published(&mut live, &items, &leases);
        }
        _ => {
            live.unlisted
                .push(format!("configmaps of namespace {operator_namespace}"));
            live.notes.push(format!(
                "this user may not list ConfigMaps of {operator_namespace}: neither the organisation's policies nor what is known of Headscale is checked"
            ));
        }
    }
    // The organisation's policies may ask for the labels of a namespace.
    if live.namespaces.is_none() && !live.policies.is_empty() {
        live.unlisted.push("namespaces".to_owned());
    }
    Ok(live)
}

/// Most bytes of an unpacked text: somebody's own archive must not fill the memory.
const MAX_UNPACKED: u64 = 16 * 1024 * 1024;

/// A text of the ConfigMap with a rendered policy, or what its compressed form holds; None when there is neither.
fn document(config_map: &ConfigMap, key: &'static str) -> Result<Option<String>, NotPublished> {
    let text = |key: &str| config_map.data.as_ref().and_then(|data| data.get(key));
    if let Some(text) = text(key) {
        return Ok(Some(text.clone()));
    }
    let config_map_name = || config_map.name_any();
    let archives = config_map.binary_data.as_ref();
    let Some(bytes) = archives.and_then(|data| data.get(&format!("{key}{COMPRESSED}"))) else {
        return match text(LEFT_OUT).is_some_and(|keys| keys.lines().any(|left_out| left_out == key)) {
            true => Err(NotPublished::LeftOut {
                config_map: config_map_name(),
                key,
            }),
            false => Ok(None),
        };
    };
    let mut text = String::new();
    let decoder = flate2::read::GzDecoder::new(bytes.0.as_slice());
    match decoder.take(MAX_UNPACKED).read_to_string(&mut text) {
        Ok(_) => Ok(Some(text)),
        Err(source) => Err(NotPublished::Damaged {
            config_map: config_map_name(),
            key,
            source: Arc::new(source),
        }),
    }
}

/// What stands in the ConfigMaps of the operator namespace.
fn published(live: &mut Live, config_maps: &[ConfigMap], leases: &[Lease]) {
    let documents = live.base_documents.get_or_insert_default();
    let mut claims_parts: BTreeMap<String, Vec<Claims>> = BTreeMap::new();
    for config_map in config_maps {
        let name = config_map.name_any();
        let data = config_map.data.clone().unwrap_or_default();
        let labels = config_map.labels();
        if let Some(tailnet) = labels.get(label::TAILNET)
            && names::tailnet::rendered_policy_config_map(tailnet) == name
        {
            live.rendered_policies.push(RenderedPolicy {
                tailnet: tailnet.clone(),
                rendered: document(config_map, RENDERED).ok().flatten().unwrap_or_default(),
                live: document(config_map, LIVE),
            });
        }
        documents.extend(data.get(base::KEY).map(|text| (name.clone(), text.clone())));
        if labels.get(label::ADMISSION_POLICY).map(String::as_str) == Some("true") {
            live.policies.push((name, data));
        } else if let Some((tailnet, _)) = names::tailnet::claims_part_of(&name)
            && let Some(text) = data.get(claims::DATA_KEY)
        {
            match Claims::from_json(text) {
                Ok(part) => claims_parts.entry(tailnet.to_owned()).or_default().push(part),
                Err(_) => {
                    live.unlisted.push(format!("claims in ConfigMap {name}"));
                    live.notes.push(format!(
                        "ConfigMap {name} cannot be read: who holds which name in Tailnet {tailnet} is not known"
                    ));
                }
            }
        }
    }
    for (tailnet, parts) in claims_parts {
        live.claims.push((tailnet, claim_parts::merged(&parts)));
    }
    for found in facts::published(config_maps, leases, Timestamp::now()) {
        match found.facts {
            Some(facts) => live.facts.push((found.tailnet, facts, found.age)),
            None => live.notes.push(format!(
                "what is known of Headscale for Tailnet {} cannot be read: not checked",
                found.tailnet
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_that_is_not_published_is_not_taken_for_none() {
        let config_map = |data: Value| -> ConfigMap {
            serde_json::from_value(json!({ "metadata": { "name": "tailnet-rendered-policy-demo" }, "data": data }))
                .unwrap()
        };
        let with_archive = |bytes: Vec<u8>| ConfigMap {
            binary_data: Some(BTreeMap::from([("live.hujson.gz".to_owned(), ByteString(bytes))])),
            ..config_map(json!({}))
        };
        let live = |config_map: &ConfigMap| document(config_map, LIVE).map_err(|error| error.to_string());
        assert_eq!(
            live(&config_map(json!({ "live.hujson": "{}" }))),
            Ok(Some("{}".to_owned()))
        );
        assert_eq!(
            live(&config_map(json!({ "left-out": "overwritten.hujson\n" }))),
            Ok(None)
        );
        assert_eq!(
            live(&config_map(json!({ "left-out": "overwritten.hujson\nlive.hujson\n" }))),
            Err("ConfigMap tailnet-rendered-policy-demo has no room for live.hujson".to_owned())
        );
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"{ }").unwrap();
        let archive = encoder.finish().unwrap();
        assert_eq!(live(&with_archive(archive.clone())), Ok(Some("{ }".to_owned())));
        let damaged = live(&with_archive(archive[..archive.len() - 9].to_vec())).unwrap_err();
        assert!(damaged.contains("live.hujson cannot be unpacked"), "{damaged}");
    }
}
