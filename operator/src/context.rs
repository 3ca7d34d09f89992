//! What every controller is given: the client, the settings, the stores, the queues.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use tailnet_crds::{Tailnet, TailnetEgress, TailnetGateway, TailnetIngress, TailnetSite};

use crate::access_policy::AccessPolicies;
use crate::agents::Agents;
use crate::backoff::Backoff;
use crate::claims::Keeper;
use crate::facts::Published;
use crate::guard::Guard;
use crate::headscale_clients::HeadscaleHub;
use crate::key_recovery::Recovered;
use crate::keys::Keys;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::organisation::Policies;
use crate::put_back::PutBack;
use crate::queue::Queue;
use crate::settings::Settings;

/// Shared by all controllers of the process.
pub struct Context {
    /// Client with the operator's own identity.
    pub client: Client,
    /// The command line.
    pub settings: Settings,
    /// Everything that is watched.
    pub stores: Stores,
    /// Where to ask for a reconcile.
    pub queues: Queues,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Failures in a row per object, all controllers; keys are `Kind/namespace/name`.
    pub backoff: Backoff,
    /// A working Headscale client per Tailnet, and what was last read with it.
    pub hub: HeadscaleHub,
    /// Every key that was made in Headscale.
    pub ledger: Ledger,
    /// What the ledger did not know.
    pub recovered: Recovered,
    /// Memory of the pre-auth keys.
    pub keys: Keys,
    /// Memory of the published facts.
    pub published: Published,
    /// The admission rules and what they know.
    pub guard: Guard,
    /// The claims record.
    pub claims: Keeper,
    /// The organisation's policies.
    pub policies: Policies,
    /// The access policies that this installation writes.
    pub access_policies: AccessPolicies,
    /// What the agents say.
    pub agents: Agents,
    /// Fields of children that the API server keeps changing.
    pub put_back: PutBack,
    /// When this process began to act.
    pub acting_since: OnceLock<Instant>,
}

/// Time after the start within which what is not known yet does not replace what an earlier process knew.
const SETTLING: Duration = Duration::from_secs(20);

impl Context {
    /// The operator's namespace.
    pub fn namespace(&self) -> &str {
        &self.settings.operator_namespace
    }

    /// What tells this installation from every other one: the UID of the operator's namespace. Empty while its watch has not
    /// listed it.
    pub fn installation(&self) -> String {
        let namespace = self.stores.namespaces.get(&ObjectRef::new(self.namespace()));
        namespace
            .and_then(|namespace| namespace.metadata.uid.clone())
            .unwrap_or_default()
    }

    /// How long observations may still be missing because the process has just started; None once they should be there.
    pub fn settling(&self) -> Option<Duration> {
        match self.acting_since.get() {
            None => Some(SETTLING),
            Some(since) => SETTLING.checked_sub(since.elapsed()).filter(|left| !left.is_zero()),
        }
    }

    /// Asks for a reconcile of everything that belongs to the Tailnet called `name` (the Tailnet itself excepted): after
    /// new facts, new keys, a changed Tailnet.
    pub fn enqueue_members(&self, name: &str) {
        self.queues.names.push(ObjectRef::new(name));
        self.queues.policy.push(ObjectRef::new(name));
        for egress in self.stores.egresses.state() {
            if egress.spec.tailnet_ref.name == name {
                self.queues.egress.push(ObjectRef::from_obj(egress.as_ref()));
            }
        }
        for ingress in self.stores.ingresses.state() {
            if ingress.spec.tailnet_ref.name == name {
                self.queues.ingress.push(ObjectRef::from_obj(ingress.as_ref()));
            }
        }
        for site in self.stores.sites.state() {
            if site.spec.tailnet_ref.name == name {
                self.queues.site.push(ObjectRef::from_obj(site.as_ref()));
            }
        }
        for gateway in self.stores.gateways.state() {
            if gateway.spec.tailnet_ref.name == name {
                self.queues.gateway.push(ObjectRef::from_obj(gateway.as_ref()));
            }
        }
    }
}

/// Stores of the watched kinds. The five kinds and what agents consist of are watched everywhere, all else in the operator
/// namespace only.
pub struct Stores {
    /// All Tailnets.
    pub tailnets: Store<Tailnet>,
    /// All egresses, those in wrong namespaces included (they get `Accepted=False`).
    pub egresses: Store<TailnetEgress>,
    /// All ingresses.
    pub ingresses: Store<TailnetIngress>,
    /// All sites.
    pub sites: Store<TailnetSite>,
    /// All gateways.
    pub gateways: Store<TailnetGateway>,
    /// All Services of the operator namespace, foreign ones too.
    pub services: Store<Service>,
    /// What is kept of the Services of all other namespaces.
    pub backends: Store<Service>,
    /// All ConfigMaps of the operator namespace.
    pub config_maps: Store<ConfigMap>,
    /// Metadata of all namespaces.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Metadata of all Secrets of the operator namespace; contents are read one by one, when needed.
    pub secrets: Store<PartialObjectMeta<Secret>>,
    /// Our Deployments.
    pub deployments: Store<Deployment>,
    /// Our agents' Pods.
    pub pods: Store<Pod>,
    /// Our NetworkPolicies.
    pub network_policies: Store<NetworkPolicy>,
    /// Our PodDisruptionBudgets.
    pub pod_disruption_budgets: Store<PodDisruptionBudget>,
}

/// One queue per controller.
#[derive(Clone)]
pub struct Queues {
    /// `controllers::tailnet`.
    pub tailnet: Queue<Tailnet>,
    /// `controllers::tailnet_names`: claims and hosts file of a Tailnet.
    pub names: Queue<Tailnet>,
    /// `controllers::tailnet_policy`: the access policy of a Tailnet.
    pub policy: Queue<Tailnet>,
    /// `controllers::tailnet_egress`.
    pub egress: Queue<TailnetEgress>,
    /// `controllers::tailnet_ingress`.
    pub ingress: Queue<TailnetIngress>,
    /// `controllers::tailnet_site`.
    pub site: Queue<TailnetSite>,
    /// `controllers::accepted_only`.
    pub gateway: Queue<TailnetGateway>,
}
