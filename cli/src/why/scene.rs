//! What is read of the cluster before anything is judged.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde_json::Value;
use tailnet_crds::agent::AgentConfig;
use tailnet_crds::names::{self, label};
use tailnet_crds::{Kind, Scope};
use tailnet_policies::facts::Facts;

use super::args::{Subject, WhyArgs};
use super::probe::{self, Probe};
use crate::connect::{ConnectError, server_time};
use crate::{facts, kinds};

/// Why there is nothing to judge.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    /// No way to the cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The object is not there.
    #[error("there is no {kind} {name}{place}; {list} shows what there is")]
    NotFound {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// ` in namespace …`, or nothing.
        place: String,
        /// The command that lists.
        list: String,
    },
    /// The kind is not there.
    #[error(
        "the cluster does not know {0}: the CRDs are not installed; kubectl tailnet doctor says what else is missing"
    )]
    NoSuchKind(Kind),
    /// The object cannot be read.
    #[error("cannot read {kind} {name}: {source}")]
    Read {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The client's words.
        source: Box<kube::Error>,
    },
    /// --target names none.
    #[error("the egress has no target {wanted:?}; it has {present}")]
    NoSuchTarget {
        /// The name.
        wanted: String,
        /// What there is.
        present: String,
    },
}

/// The operator as its Lease shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Renewed lately by this holder.
    Leads(String),
    /// Last renewed so long ago.
    Silent(Duration),
    /// There is no Lease.
    Unseen,
    /// The Lease may not be read.
    Hidden,
}

/// A Lease that is older is nobody's: the operator renews every 2 s and another may take over after 15 s.
pub const LEASE_OLD: Duration = Duration::from_secs(60);

impl Operator {
    /// What the Lease says at `now`.
    pub fn of(lease: Option<&Lease>, now: Timestamp) -> Self {
        let Some(lease) = lease else {
            return Self::Unseen;
        };
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        match (facts::renewed(lease), holder.filter(|holder| !holder.is_empty())) {
            (Some(at), Some(holder)) if facts::age(at, now) < LEASE_OLD => Self::Leads(holder),
            (Some(at), _) => Self::Silent(facts::age(at, now)),
            (None, _) => Self::Unseen,
        }
    }
}

/// Everything that the chain is judged by.
#[derive(Debug)]
pub struct Scene {
    /// Kind of the object.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The object as the API server has it.
    pub object: Value,
    /// Its Tailnet; the object itself for one.
    pub tailnet: Option<Value>,
    /// Whether the Tailnet could not be read, so that its absence says nothing.
    pub tailnet_hidden: bool,
    /// Whether only one target of an egress is asked about.
    pub one_target: bool,
    /// What is known of Headscale.
    pub facts: Option<Facts>,
    /// The operator.
    pub operator: Operator,
    /// What the agents of an egress are told.
    pub config: Option<AgentConfig>,
    /// Names of the agents' Pods, with whether each is ready.
    pub pods: BTreeMap<String, bool>,
    /// What a probe found; None without `--probe`.
    pub probe: Option<Probe>,
    /// What could not be read.
    pub notes: Vec<String>,
}

impl Scene {
    /// Name of the Tailnet.
    pub fn tailnet_name(&self) -> &str {
        match self.kind {
            Kind::Tailnet => &self.name,
            _ => self.object["spec"]["tailnetRef"]["name"].as_str().unwrap_or_default(),
        }
    }
}

fn as_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

fn is(error: &kube::Error, codes: &[u16]) -> bool {
    matches!(error, kube::Error::Api(status) if codes.contains(&status.code))
}

/// Reads what there is; only the object itself must be readable.
pub async fn read(client: &Client, args: &WhyArgs, subject: &Subject) -> Result<Scene, SceneError> {
    let operator_namespace = args.cluster.operator_namespace.as_str();
    let Subject { kind, name } = subject.clone();
    let namespace = match (kind.scope(), &args.namespace) {
        (Scope::Cluster, _) => None,
        (_, Some(namespace)) => Some(namespace.clone()),
        (_, None) if kind == Kind::TailnetEgress => Some(operator_namespace.to_owned()),
        (_, None) => Some(client.default_namespace().to_owned()),
    };
    let object = object(client, kind, namespace.as_deref(), &name).await?;
    let mut scene = Scene {
        kind,
        namespace,
        name,
        object,
        tailnet: None,
        tailnet_hidden: false,
        one_target: args.target.is_some(),
        facts: None,
        operator: Operator::Hidden,
        config: None,
        pods: BTreeMap::new(),
        probe: None,
        notes: Vec::new(),
    };
    if let Some(wanted) = &args.target {
        keep_target(&mut scene.object, wanted)?;
    }
    tailnet(client, &mut scene).await;
    let now = server_time(client).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), operator_namespace);
    let lease = noted(
        leases.get_opt(names::OPERATOR_LEASE).await,
        "the operator's Lease",
        &mut scene.notes,
    );
    if let Some(lease) = lease {
        scene.operator = Operator::of(lease.as_ref(), now);
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), operator_namespace);
    let selector = ListParams::default().labels(&format!("{}={}", label::FACTS, scene.tailnet_name()));
    let found = noted(
        config_maps.list(&selector).await,
        "what is known of Headscale",
        &mut scene.notes,
    );
    if let Some(found) = found {
        scene.facts = facts::published(&found.items, &[], now)
            .pop()
            .and_then(|found| found.facts);
    }
    if kind == Kind::TailnetEgress {
        agents(client, &config_maps, &mut scene, args).await;
    }
    Ok(scene)
}

async fn object(client: &Client, kind: Kind, namespace: Option<&str>, name: &str) -> Result<Value, SceneError> {
    let api = kinds::api(client, kind, namespace);
    match api.get_opt(name).await {
        Ok(Some(mut object)) => {
            object.metadata.managed_fields = None;
            return Ok(as_value(&object));
        }
        Ok(None) => {}
        // An object that is not there is no error: this is the answer for a kind that is not.
        Err(error) if is(&error, &[404]) => return Err(SceneError::NoSuchKind(kind)),
        Err(source) => {
            return Err(SceneError::Read {
                kind,
                name: name.to_owned(),
                source: Box::new(source),
            });
        }
    }
    let of_namespace = namespace
        .map(|namespace| format!("-n {namespace} "))
        .unwrap_or_default();
    Err(SceneError::NotFound {
        kind,
        name: name.to_owned(),
        place: namespace.map(|n| format!(" in namespace {n}")).unwrap_or_default(),
        list: format!("kubectl {of_namespace}get {}", kind.plural()),
    })
}

/// Leaves only the target `wanted` in spec and status.
fn keep_target(object: &mut Value, wanted: &str) -> Result<(), SceneError> {
    let mut present = Vec::new();
    for part in ["spec", "status"] {
        if let Some(targets) = object
            .pointer_mut(&format!("/{part}/targets"))
            .and_then(Value::as_array_mut)
        {
            if part == "spec" {
                present.extend(targets.iter().filter_map(|t| t["name"].as_str()).map(str::to_owned));
            }
            targets.retain(|target| target["name"] == wanted);
        }
    }
    if present.iter().any(|name| name == wanted) {
        return Ok(());
    }
    Err(SceneError::NoSuchTarget {
        wanted: wanted.to_owned(),
        present: present.join(", "),
    })
}

async fn tailnet(client: &Client, scene: &mut Scene) {
    if scene.kind == Kind::Tailnet {
        scene.tailnet = Some(scene.object.clone());
        return;
    }
    let name = scene.tailnet_name().to_owned();
    let found = kinds::api(client, Kind::Tailnet, None).get_opt(&name).await;
    let found = noted(found, &format!("Tailnet {name}"), &mut scene.notes);
    scene.tailnet_hidden = found.is_none();
    scene.tailnet = found.flatten().map(|tailnet| as_value(&tailnet));
}

async fn agents(client: &Client, config_maps: &Api<ConfigMap>, scene: &mut Scene, args: &WhyArgs) {
    let name = names::egress::config_map(&scene.name);
    let config = noted(
        config_maps.get_opt(&name).await,
        "the agents' configuration",
        &mut scene.notes,
    );
    scene.config = config
        .flatten()
        .and_then(|map| serde_json::from_str(map.data?.get(names::egress::CONFIG_KEY)?).ok());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &args.cluster.operator_namespace);
    let selector = format!(
        "{}={},{}={}",
        label::OWNER_KIND,
        scene.kind,
        label::OWNER_NAME,
        scene.name
    );
    let found = pods.list(&ListParams::default().labels(&selector)).await;
    let Some(found) = noted(found, "the agents' Pods", &mut scene.notes) else {
        return;
    };
    let living: Vec<&Pod> = found
        .items
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .collect();
    scene.pods = living.iter().map(|pod| (pod.name_any(), is_ready(pod))).collect();
    if args.probe {
        let wanted: Vec<String> = scene.object["spec"]["targets"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|target| target["name"].as_str().map(str::to_owned))
            .collect();
        let running = living
            .iter()
            .filter(|pod| phase(pod) == Some("Running"))
            .map(|pod| pod.name_any());
        scene.probe = Some(probe::run(&pods, running.collect(), scene.config.as_ref(), &wanted).await);
    }
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What was read; None, with a note, when it could not be.
fn noted<T>(read: kube::Result<T>, what: &str, notes: &mut Vec<String>) -> Option<T> {
    match read {
        Ok(found) => Some(found),
        Err(error) if is(&error, &[401, 403]) => {
            notes.push(format!("you may not read {what}"));
            None
        }
        Err(error) => {
            notes.push(format!("cannot read {what}: {error}"));
            None
        }
    }
}
