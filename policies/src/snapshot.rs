//! What the rules know of the cluster: objects with indexes that are kept as objects come and go, so that a question
//! costs the same among ten objects and ten thousand.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;
use tailnet_crds::Kind;
use tailnet_crds::names::label::{OWNER_KIND, OWNER_NAME};

use crate::base::BaseDocument;
use crate::claims::{Claim, ClaimKey, Claims};
use crate::facts::{Facts, NodeFacts};
use crate::index::{IndexKey, index_keys, prefixes_of};
use crate::memo::Memo;
use crate::names;
use crate::object::Object;
use crate::organisation::{Clock, Policies, Standing};
use crate::prefixes::PrefixIndex;
use crate::shared_index::SharedIndex;
use crate::table::ALL;

/// What the rules must be told of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Namespace of the operator, of the egress objects and of all children.
    pub operator_namespace: String,
    /// DNS domain of the cluster, canonical.
    pub cluster_domain: String,
    /// Service ranges of the cluster, as far as known.
    pub service_cidrs: Vec<IpNet>,
    /// Pod ranges of the cluster, as far as known.
    pub pod_cidrs: Vec<IpNet>,
}

impl Config {
    /// Whether a canonical name is the cluster's domain or inside it.
    pub fn in_cluster_domain(&self, name: &str) -> bool {
        let rest = name.strip_suffix(&self.cluster_domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            operator_namespace: "tailnet-system".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            service_cidrs: Vec::new(),
            pod_cidrs: Vec::new(),
        }
    }
}

/// What is behind a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Pods that its selector finds in its own namespace.
    #[default]
    Pods,
    /// Addresses that somebody writes (no selector): they may be anybody's.
    Addresses,
    /// A DNS name (type ExternalName): it may be anybody's.
    Name,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, if it has one.
    pub name: Option<Box<str>>,
    /// Its number.
    pub number: i64,
}

/// A Service as far as rules ask for it: all Services of the cluster are kept, so as little of each as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceInfo {
    /// What is behind it.
    pub backing: Backing,
    /// Its ports.
    pub ports: Box<[ServicePort]>,
    /// Kind and name of the controlling owner, when it is one of our objects.
    pub owner: Option<(String, String)>,
    /// Kind and name of the object of ours that it says to belong to: its controlling owner, else by its labels (what a
    /// gateway made has no owner, since it stays when the gateway goes).
    pub belongs_to: Option<(String, String)>,
}

impl ServiceInfo {
    /// Reads a core/v1 Service.
    pub fn parse(service: &Value) -> Self {
        let owner = service
            .pointer("/metadata/ownerReferences")
            .and_then(Value::as_array)
            .and_then(|owners| {
                owners.iter().find_map(|owner| {
                    let text = |key: &str| owner.get(key).and_then(Value::as_str);
                    let ours = text("apiVersion")?.split('/').next() == Some("tsunaro.io");
                    let controls = owner.get("controller").and_then(Value::as_bool) == Some(true);
                    (ours && controls).then_some((text("kind")?.to_owned(), text("name")?.to_owned()))
                })
            });
        let label = |key: &str| {
            let labels = service.pointer("/metadata/labels")?;
            labels.get(key)?.as_str().map(str::to_owned)
        };
        let belongs_to = owner.clone().or_else(|| label(OWNER_KIND).zip(label(OWNER_NAME)));
        let selects = service
            .pointer("/spec/selector")
            .and_then(Value::as_object)
            .is_some_and(|selector| !selector.is_empty());
        let backing = match service.pointer("/spec/type").and_then(Value::as_str) {
            Some("ExternalName") => Backing::Name,
            _ if selects => Backing::Pods,
            _ => Backing::Addresses,
        };
        let ports = service
            .pointer("/spec/ports")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|port| {
                Some(ServicePort {
                    name: port.get("name").and_then(Value::as_str).map(Box::from),
                    number: port.get("port")?.as_i64()?,
                })
            })
            .collect();
        Self {
            owner,
            belongs_to,
            backing,
            ports,
        }
    }
}

/// Facts with their age at the time of the question, and with what rules look up in them.
#[derive(Clone, Debug)]
pub struct AgedFacts {
    /// The facts.
    pub facts: Arc<Facts>,
    /// How long ago the server was last read successfully.
    pub age: Duration,
    advertised: PrefixIndex<()>,
    addresses: HashSet<IpAddr>,
    names: HashMap<String, Vec<usize>>,
}

impl AgedFacts {
    fn new(facts: Facts, age: Duration) -> Self {
        let mut advertised = PrefixIndex::default();
        // An exit node leads everywhere, which is not to lead to somewhere.
        for route in facts
            .routes
            .iter()
            .filter(|route| route.advertised && route.prefix.prefix_len() > 0)
        {
            advertised.insert(route.prefix, ());
        }
        let addresses = facts
            .nodes
            .iter()
            .flat_map(|node| node.addresses.iter().copied())
            .collect();
        let mut names: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, node) in facts.nodes.iter().enumerate() {
            names.entry(node.given_name.clone()).or_default().push(at);
        }
        Self {
            facts: Arc::new(facts),
            age,
            advertised,
            addresses,
            names,
        }
    }

    /// Whether a node advertises a route to the address, exit nodes aside.
    pub fn is_advertised(&self, address: IpAddr) -> bool {
        !self.advertised.overlapping(IpNet::from(address)).is_empty()
    }

    /// Whether a node has the tailnet address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// The nodes of a name.
    pub fn nodes_named(&self, name: &str) -> impl Iterator<Item = &NodeFacts> {
        self.names
            .get(name)
            .into_iter()
            .flatten()
            .filter_map(|at| self.facts.nodes.get(*at))
    }
}

#[derive(Clone, Debug)]
struct Stored {
    object: Arc<Object>,
    keys: Vec<IndexKey>,
    prefixes: Vec<IpNet>,
}

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

type Key = (Option<String>, String);

/// Objects of the cluster, or of the linted files, with their indexes. A copy shares what there is much of, until one of the
/// two changes it: it costs the same among ten objects and ten thousand.
#[derive(Clone, Debug)]
pub struct Snapshot {
    config: Config,
    objects: HashMap<Kind, Arc<BTreeMap<Key, Arc<Stored>>>>,
    /// Objects by key, the one with precedence first.
    index: SharedIndex,
    /// What follows from all the rest, found when it is asked for: whatever changes the rest forgets it.
    memo: Memo,
    prefixes: HashMap<String, Arc<PrefixIndex<Arc<Object>>>>,
    complete: BTreeSet<Kind>,
    namespaces: Option<Arc<BTreeSet<String>>>,
    namespace_labels: Arc<BTreeMap<String, Labels>>,
    services: Option<Arc<HashMap<(String, String), ServiceInfo>>>,
    base_documents: Option<HashMap<String, Arc<BaseDocument>>>,
    facts: HashMap<String, Arc<AgedFacts>>,
    claims: BTreeMap<String, Arc<Claims>>,
    /// What restored records reserve, by Tailnet; nothing but for a while after a restore.
    reserved: BTreeMap<String, Arc<[(ClaimKey, Claim)]>>,
    policies: Policies,
    clock: Option<Clock>,
}

impl Snapshot {
    /// Knows nothing yet: every kind is incomplete, namespaces and Services are unknown.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            objects: HashMap::new(),
            index: SharedIndex::default(),
            memo: Memo::default(),
            prefixes: HashMap::new(),
            complete: BTreeSet::new(),
            namespaces: None,
            namespace_labels: Arc::default(),
            services: None,
            base_documents: None,
            facts: HashMap::new(),
            claims: BTreeMap::new(),
            reserved: BTreeMap::new(),
            policies: Policies::new(),
            clock: None,
        }
    }

    /// Like [`Snapshot::new`], with every kind complete: what is not given does not exist. For lint and tests.
    pub fn closed(config: Config) -> Self {
        let mut snapshot = Self::new(config);
        snapshot.complete.extend(ALL);
        snapshot
    }

    /// The installation.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Says whether all objects of a kind are in here. While not, rules that need them note that they did not look.
    pub fn set_complete(&mut self, kind: Kind, complete: bool) {
        self.memo.forget();
        if complete {
            self.complete.insert(kind);
        } else {
            self.complete.remove(&kind);
        }
    }

    /// Whether all objects of a kind are in here.
    pub fn is_complete(&self, kind: Kind) -> bool {
        self.complete.contains(&kind)
    }

    /// Adds or replaces an object.
    pub fn upsert(&mut self, kind: Kind, value: impl Borrow<Value>) {
        self.replace(Object::parse(kind, value.borrow()));
    }

    /// Adds or replaces an object that has been read already.
    pub(crate) fn replace(&mut self, object: Object) {
        let (kind, key) = (object.kind, (object.namespace.clone(), object.name.clone()));
        let before = self.take(kind, &key);
        let alike = match (before.as_deref().map(Object::tailnet), object.tailnet()) {
            (Some(Some(before)), Some(after)) => names::are_alike(before, after),
            _ => false,
        };
        self.put(Arc::new(object));
        if kind == Kind::Tailnet && !alike {
            self.reindex_members(&key.1);
        }
    }

    /// Removes an object; nothing happens when it is not there.
    pub fn remove(&mut self, kind: Kind, namespace: Option<&str>, name: &str) {
        let key = (namespace.map(str::to_owned), name.to_owned());
        if self.take(kind, &key).is_some() && kind == Kind::Tailnet {
            self.reindex_members(name);
        }
    }

    /// Removes all objects of a kind: a watch begins anew.
    pub fn clear(&mut self, kind: Kind) {
        let keys: Vec<Key> = self
            .objects
            .get(&kind)
            .map(|all| all.keys().cloned().collect())
            .unwrap_or_default();
        for (namespace, name) in keys {
            self.remove(kind, namespace.as_deref(), &name);
        }
    }

    /// An object.
    pub fn get(&self, kind: Kind, namespace: Option<&str>, name: &str) -> Option<&Arc<Object>> {
        let key = (namespace.map(str::to_owned), name.to_owned());
        self.objects.get(&kind)?.get(&key).map(|stored| &stored.object)
    }

    /// All objects of a kind, by namespace and name.
    pub fn list(&self, kind: Kind) -> impl Iterator<Item = &Arc<Object>> {
        self.objects
            .get(&kind)
            .into_iter()
            .flat_map(|all| all.values().map(|stored| &stored.object))
    }

    /// Number of objects of all kinds.
    pub fn len(&self) -> usize {
        self.objects.values().map(|all| all.len()).sum()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the names of all namespaces, or that they are not known.
    pub fn set_namespaces(&mut self, namespaces: Option<BTreeSet<String>>) {
        self.memo.forget();
        let names = namespaces.iter().flatten();
        let labels: BTreeMap<_, _> = names.map(|name| (name.clone(), Labels::new())).collect();
        self.namespace_labels = Arc::new(labels);
        self.namespaces = namespaces.map(Arc::new);
    }

    /// Adds a namespace; from then on namespaces count as known.
    pub fn upsert_namespace(&mut self, name: &str) {
        self.upsert_namespace_with(name, Labels::new());
    }

    /// Adds or replaces a namespace with its labels; from then on namespaces count as known.
    pub fn upsert_namespace_with(&mut self, name: &str, labels: Labels) {
        self.memo.forget();
        Arc::make_mut(self.namespaces.get_or_insert_default()).insert(name.to_owned());
        self.set_namespace_labels(name, labels);
    }

    /// Sets the labels of a namespace, without saying which namespaces there are.
    pub fn set_namespace_labels(&mut self, name: &str, labels: Labels) {
        self.memo.forget();
        Arc::make_mut(&mut self.namespace_labels).insert(name.to_owned(), labels);
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        self.memo.forget();
        if let Some(namespaces) = &mut self.namespaces {
            Arc::make_mut(namespaces).remove(name);
        }
        Arc::make_mut(&mut self.namespace_labels).remove(name);
    }

    /// Whether a namespace exists; None when namespaces are not known.
    pub fn has_namespace(&self, name: &str) -> Option<bool> {
        self.namespaces.as_ref().map(|namespaces| namespaces.contains(name))
    }

    /// Labels of a namespace; None when they are not known.
    pub fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.namespace_labels.get(name)
    }

    /// Says that the Services of the cluster are known (and there is none yet), or that they are not.
    pub fn set_services_known(&mut self, known: bool) {
        self.memo.forget();
        self.services = known.then(Arc::default);
    }

    /// Adds or replaces a core/v1 Service; from then on Services count as known. Says whether anything that a rule reads
    /// is different now.
    pub fn upsert_service(&mut self, service: impl Borrow<Value>) -> bool {
        let service = service.borrow();
        let text = |pointer: &str| {
            service
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let key = (text("/metadata/namespace"), text("/metadata/name"));
        let info = ServiceInfo::parse(service);
        let services = self.services.get_or_insert_default();
        if services.get(&key) == Some(&info) {
            return false;
        }
        Arc::make_mut(services).insert(key, info);
        self.memo.forget();
        true
    }

    /// Removes a Service. Says whether it was there.
    pub fn remove_service(&mut self, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        self.memo.forget();
        self.services
            .as_mut()
            .is_some_and(|services| Arc::make_mut(services).remove(&key).is_some())
    }

    /// Whether the Services of the cluster are known.
    pub fn services_known(&self) -> bool {
        self.services.is_some()
    }

    /// A Service; None when there is none or Services are not known.
    pub fn service(&self, namespace: &str, name: &str) -> Option<&ServiceInfo> {
        self.services.as_ref()?.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Says that the ConfigMaps of the operator namespace are known (and there is none with a policy yet), or that they are
    /// not.
    pub fn set_base_documents_known(&mut self, known: bool) {
        self.memo.forget();
        self.base_documents = known.then(HashMap::new);
    }

    /// Whether the ConfigMaps of the operator namespace are known.
    pub fn base_documents_known(&self) -> bool {
        self.base_documents.is_some()
    }

    /// Sets the base document of a ConfigMap of the operator namespace (key [`crate::base::KEY`]), None where there is none
    /// any more; from then on those ConfigMaps count as known. Says whether anything is different now.
    pub fn set_base_document(&mut self, config_map: &str, text: Option<&str>) -> bool {
        self.memo.forget();
        let documents = self.base_documents.get_or_insert_default();
        match text.map(BaseDocument::read) {
            Some(document) if documents.get(config_map).is_some_and(|known| **known == document) => false,
            Some(document) => {
                documents.insert(config_map.to_owned(), Arc::new(document));
                true
            }
            None => documents.remove(config_map).is_some(),
        }
    }

    /// The base document of a ConfigMap; None when there is none or ConfigMaps are not known.
    pub fn base_document(&self, config_map: &str) -> Option<&Arc<BaseDocument>> {
        self.base_documents.as_ref()?.get(config_map)
    }

    /// Sets what is known of the server of a Tailnet and how long ago it was read; None when nothing is.
    pub fn set_facts(&mut self, tailnet: &str, facts: Option<Facts>, age: Duration) {
        self.memo.forget();
        match facts {
            Some(facts) => {
                let aged = Arc::new(AgedFacts::new(facts, age));
                self.facts.insert(tailnet.to_owned(), aged);
            }
            None => {
                self.facts.remove(tailnet);
            }
        }
    }

    /// Sets the age of facts that have not changed; nothing happens when there are none.
    pub fn set_facts_age(&mut self, tailnet: &str, age: Duration) {
        if let Some(facts) = self.facts.get_mut(tailnet) {
            Arc::make_mut(facts).age = age;
        }
    }

    /// What is known of the server of a Tailnet.
    pub fn facts(&self, tailnet: &str) -> Option<&AgedFacts> {
        self.facts.get(tailnet).map(Arc::as_ref)
    }

    /// Sets the recorded claims of a Tailnet; None when there is no record.
    pub fn set_claims(&mut self, tailnet: &str, claims: Option<Claims>) {
        self.memo.forget();
        self.reserved.remove(tailnet);
        match claims {
            Some(claims) => {
                let reserved = claims.claims.iter().filter(|(_, claim)| claim.reserved_until.is_some());
                let reserved: Arc<[_]> = reserved
                    .filter_map(|(key, claim)| Some((key.parse().ok()?, claim.clone())))
                    .collect();
                if !reserved.is_empty() {
                    self.reserved.insert(tailnet.to_owned(), reserved);
                }
                self.claims.insert(tailnet.to_owned(), Arc::new(claims));
            }
            None => {
                self.claims.remove(tailnet);
            }
        }
    }

    /// The recorded claims of a Tailnet.
    pub fn claims(&self, tailnet: &str) -> Option<&Claims> {
        self.claims.get(tailnet).map(Arc::as_ref)
    }

    /// The recorded claims of all Tailnets.
    pub fn all_claims(&self) -> impl Iterator<Item = (&str, &Claims)> {
        self.claims
            .iter()
            .map(|(tailnet, claims)| (tailnet.as_str(), &**claims))
    }

    /// What restored records keep for holders that are not back, with the Tailnet of the record.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = (&str, &ClaimKey, &Claim)> {
        self.reserved
            .iter()
            .flat_map(|(tailnet, all)| all.iter().map(move |(key, claim)| (tailnet.as_str(), key, claim)))
    }

    /// Puts one of the organisation's policies in force, or takes it out of force. Compile it beforehand, by
    /// [`crate::organisation::standing`]: that may take a millisecond.
    pub fn set_policy(&mut self, name: &str, policy: Option<Arc<Standing>>) {
        self.memo.forget();
        match policy {
            Some(policy) => {
                self.policies.insert(name.to_owned(), policy);
            }
            None => {
                self.policies.remove(name);
            }
        }
    }

    /// Names and states of the organisation's policies.
    pub fn policies(&self) -> &BTreeMap<String, Arc<Standing>> {
        &self.policies
    }

    /// Sets the clock by which the time limit of the organisation's policies is measured: it only ever goes forward.
    /// Without one, steps alone are limited.
    pub fn set_clock(&mut self, clock: fn() -> Duration) {
        self.clock = Some(clock);
    }

    pub(crate) fn clock(&self) -> Option<Clock> {
        self.clock
    }

    /// What was found out since the last change.
    pub(crate) fn memo(&self) -> &Memo {
        &self.memo
    }

    /// The objects under an index key, the one with precedence first.
    pub(crate) fn indexed(&self, key: &IndexKey) -> &[Arc<Object>] {
        self.index.get(key)
    }

    /// Everything that refers to a Tailnet, and the Tailnet itself, in no order.
    pub fn members(&self, tailnet: &str) -> impl Iterator<Item = &Arc<Object>> {
        self.indexed(&IndexKey::Member(tailnet.to_owned())).iter()
    }

    /// The sites of a Tailnet whose prefixes overlap one, with those prefixes.
    pub(crate) fn sites_overlapping(&self, tailnet: &str, prefix: IpNet) -> Vec<(IpNet, &Arc<Object>)> {
        self.prefixes
            .get(tailnet)
            .map_or_else(Vec::new, |index| index.overlapping(prefix))
    }

    fn put(&mut self, object: Arc<Object>) {
        self.memo.forget();
        let tailnet = object
            .tailnet_name()
            .and_then(|name| self.get(Kind::Tailnet, None, name))
            .cloned();
        let spec = if object.kind == Kind::Tailnet {
            object.tailnet()
        } else {
            tailnet.as_ref().and_then(|t| t.tailnet())
        };
        let keys = index_keys(&object, spec);
        let prefixes = prefixes_of(&object);
        for key in &keys {
            self.index.edit(key, |holders| put_into(holders, &object));
        }
        if let Some(tailnet) = object.tailnet_name().filter(|_| !prefixes.is_empty()) {
            let index = Arc::make_mut(self.prefixes.entry(tailnet.to_owned()).or_default());
            for prefix in &prefixes {
                index.insert(*prefix, object.clone());
            }
        }
        let key = (object.namespace.clone(), object.name.clone());
        let all = self.objects.entry(object.kind).or_default();
        Arc::make_mut(all).insert(key, Arc::new(Stored { object, keys, prefixes }));
    }

    fn take(&mut self, kind: Kind, key: &Key) -> Option<Arc<Object>> {
        self.memo.forget();
        let all = self.objects.get_mut(&kind).filter(|all| all.contains_key(key))?;
        let stored = Arc::make_mut(all).remove(key)?;
        let object = Arc::clone(&stored.object);
        for key in &stored.keys {
            self.index.edit(key, |holders| take_from(holders, &object));
        }
        if !stored.prefixes.is_empty()
            && let Some(index) = object.tailnet_name().and_then(|tailnet| self.prefixes.get_mut(tailnet))
        {
            let index = Arc::make_mut(index);
            for prefix in &stored.prefixes {
                index.remove(*prefix, &object);
            }
        }
        Some(object)
    }

    /// Default tags, host names and rendered names follow the Tailnet's spec.
    fn reindex_members(&mut self, tailnet: &str) {
        let spec = self.get(Kind::Tailnet, None, tailnet).cloned();
        let spec = spec.as_deref().and_then(Object::tailnet);
        let members: Vec<Arc<Object>> = self.indexed(&IndexKey::Member(tailnet.to_owned())).to_vec();
        for member in members {
            if member.kind == Kind::Tailnet {
                continue;
            }
            let keys = index_keys(&member, spec);
            let key = (member.namespace.clone(), member.name.clone());
            let all = self.objects.get(&member.kind);
            let Some(stored) = all.and_then(|all| all.get(&key)).cloned() else {
                continue;
            };
            if stored.keys == keys {
                continue;
            }
            // Both are sorted.
            for gone in stored.keys.iter().filter(|key| keys.binary_search(key).is_err()) {
                self.index.edit(gone, |holders| take_from(holders, &member));
            }
            for new in keys.iter().filter(|key| stored.keys.binary_search(key).is_err()) {
                self.index.edit(new, |holders| put_into(holders, &member));
            }
            let stored = Stored {
                object: member,
                keys,
                prefixes: stored.prefixes.clone(),
            };
            let all = self.objects.entry(stored.object.kind).or_default();
            Arc::make_mut(all).insert(key, Arc::new(stored));
        }
        self.memo.forget();
    }
}

/// Adds an object to those under a key, in its place.
fn put_into(holders: &mut Vec<Arc<Object>>, object: &Arc<Object>) {
    let at = holders.partition_point(|holder| holder.precedence() < object.precedence());
    holders.insert(at, Arc::clone(object));
}

fn take_from(holders: &mut Vec<Arc<Object>>, object: &Arc<Object>) {
    let from = holders.partition_point(|holder| holder.precedence() < object.precedence());
    let at = holders[from..].iter().position(|holder| Arc::ptr_eq(holder, object));
    if let Some(at) = at {
        holders.remove(from + at);
    }
}
