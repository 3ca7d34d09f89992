//! Start and stop of the process: watches first (a standby is warm), then the Lease, then the controllers.
//!
//! A process that cannot reach the API server to renew the Lease drops all it was doing and stands by again, with nothing of
//! what it knew: an outage of the API server costs no restart, and so no growing pause of kubelet's.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client};
use tailnet_crds::{Tailnet, TailnetEgress, TailnetGateway, TailnetIngress, TailnetSite};
use tailnet_process::{Readiness, health, stop_signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::access_policy::AccessPolicies;
use crate::admission_probe;
use crate::agents::{self, Agents};
use crate::backends;
use crate::backoff::Backoff;
use crate::claims::Keeper;
use crate::context::{Context, Queues, Stores};
use crate::controllers;
use crate::facts::Published;
use crate::guard::Guard;
use crate::headscale_clients::HeadscaleHub;
use crate::key_recovery::Recovered;
use crate::keys::Keys;
use crate::leader::{Election, LeaderError};
use crate::ledger::Ledger;
use crate::listeners;
use crate::metrics::Metrics;
use crate::organisation::{self, Policies};
use crate::ownership::managed_selector;
use crate::put_back::PutBack;
use crate::queue::{Requests, queue};
use crate::settings::Settings;
use crate::watches::Watch;

/// Why the process cannot start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another TLS provider was installed before ours.
    #[error("a TLS crypto provider is already installed in this process")]
    CryptoProvider,
    /// Signal handlers.
    #[error(transparent)]
    Signals(#[from] tailnet_process::signals::SignalError),
    /// No usable configuration of the API server connection.
    #[error("cannot configure the connection to the API server (in a Pod: the service account; else KUBECONFIG): {0}")]
    Kubeconfig(#[source] kube::config::InferConfigError),
    /// The client could not be built from it.
    #[error("cannot build the API server client: {0}")]
    Client(#[source] kube::Error),
    /// The health endpoint.
    #[error(transparent)]
    Health(#[from] health::HealthError),
    /// The Lease was lost: another process may act now, so this one must not.
    #[error("leadership lost: {0}; ending so that two operators never act at once")]
    LeadershipLost(#[source] LeaderError),
    /// The Lease could not be renewed, and a part did not stop acting at once.
    #[error("leadership lost and parts did not stop within {} s; ending so that two operators never act at once", ABORT_DEADLINE.as_secs())]
    AbortDeadline,
    /// A part ended that runs for the life of the process.
    #[error("the part {0:?} ended unexpectedly")]
    PartEnded(String),
    /// After the stop signal the parts did not end in time.
    #[error("parts did not end within {} s of the stop signal", STOP_DEADLINE.as_secs())]
    StopDeadline,
}

/// Time for the reconciles that are under way at the stop signal.
const STOP_DEADLINE: Duration = Duration::from_secs(20);
/// Time for the parts to stop when the Lease could not be renewed: another process may take it soon after.
const ABORT_DEADLINE: Duration = Duration::from_secs(3);
/// How often the readiness condition of the caches is looked at.
const CACHE_CHECK: Duration = Duration::from_secs(5);
/// How often the controllers, before they start, look whether the caches are filled.
const START_CHECK: Duration = Duration::from_millis(100);
/// How long one store is given to say that it is filled; it knows, or it is not.
const STORE_ANSWER: Duration = Duration::from_millis(50);

/// All watches of the process.
#[derive(Default)]
pub(crate) struct Watches {
    pub(crate) tailnets: Watch<Tailnet>,
    pub(crate) egresses: Watch<TailnetEgress>,
    pub(crate) ingresses: Watch<TailnetIngress>,
    pub(crate) sites: Watch<TailnetSite>,
    pub(crate) gateways: Watch<TailnetGateway>,
    pub(crate) services: Watch<Service>,
    pub(crate) backends: Watch<Service>,
    pub(crate) config_maps: Watch<ConfigMap>,
    pub(crate) namespaces: Watch<PartialObjectMeta<Namespace>>,
    pub(crate) secrets: Watch<PartialObjectMeta<Secret>>,
    pub(crate) deployments: Watch<Deployment>,
    pub(crate) pods: Watch<Pod>,
    pub(crate) network_policies: Watch<NetworkPolicy>,
    pub(crate) pod_disruption_budgets: Watch<PodDisruptionBudget>,
}

/// The receiving ends of [`Queues`].
struct AllRequests {
    tailnet: Requests<Tailnet>,
    names: Requests<Tailnet>,
    policy: Requests<Tailnet>,
    egress: Requests<TailnetEgress>,
    ingress: Requests<TailnetIngress>,
    site: Requests<TailnetSite>,
    gateway: Requests<TailnetGateway>,
}

/// Runs the operator until SIGTERM or SIGINT.
///
/// # Errors
/// See [`StartError`]; after any of them the process must end.
pub async fn run(settings: Settings) -> Result<(), StartError> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| StartError::CryptoProvider)?;
    let stop = stop_signal()?;
    let config = kube::Config::infer().await.map_err(StartError::Kubeconfig)?;
    let (metrics, registry) = Metrics::new();
    let readiness = Readiness::new();
    let caches = readiness.condition("caches", "the watches have not listed their objects yet");
    let admission = settings
        .wait_for_admission
        .then(|| readiness.condition("admission", "the API server has not reached the webhook yet"));
    let endpoint = CancellationToken::new();
    let health = health::serve(
        settings.health_listen,
        readiness.clone(),
        Arc::new(registry),
        axum::Router::new(),
        endpoint.clone(),
    )
    .await?;
    tracing::info!(
        version = tailnet_process::version(),
        namespace = %settings.operator_namespace,
        agent_image = %settings.agent_image,
        "tailnet-operator starts"
    );
    if let Some(admission) = admission {
        let client = Client::try_from(config.clone()).map_err(StartError::Client)?;
        let namespace = settings.operator_namespace.clone();
        tokio::spawn(admission_probe::run(client, namespace, admission, stop.clone()));
    }
    let result = act(&settings, &config, Arc::new(metrics), caches, stop).await;
    readiness.stopping();
    endpoint.cancel();
    health.finished().await?;
    result
}

/// How a term ended: from standing by with empty caches to the end of acting.
enum Term {
    /// At the stop signal.
    Stopped,
    /// The API server did not answer for too long: whatever was going on was broken off, and a new term may begin.
    Silent,
}

/// Terms, one after the other, until the stop signal.
async fn act(
    settings: &Settings,
    config: &kube::Config,
    metrics: Arc<Metrics>,
    caches: tailnet_process::Condition,
    stop: CancellationToken,
) -> Result<(), StartError> {
    let identity = identity(settings);
    loop {
        // A client of its own: connections on which nothing comes any more stay behind.
        let client = Client::try_from(config.clone()).map_err(StartError::Client)?;
        match term(settings, client, &identity, &metrics, &caches, &stop).await? {
            Term::Stopped => return Ok(()),
            Term::Silent => metrics.forget_all(),
        }
    }
}

async fn term(
    settings: &Settings,
    client: Client,
    identity: &str,
    metrics: &Arc<Metrics>,
    caches: &tailnet_process::Condition,
    stop: &CancellationToken,
) -> Result<Term, StartError> {
    let (watches, requests, context) = assemble(settings.clone(), client, Arc::clone(metrics));
    let mut parts = JoinSet::new();
    watches.spawn(&context, &mut parts, stop);
    spawn_cache_check(&context, caches.clone(), &mut parts, stop);
    agents::spawn(&context, &mut parts, stop);

    let mut election = Election::new(context.client.clone(), context.namespace(), identity.to_owned());
    if context.settings.leader_election && !election.acquire(stop).await {
        return drain(parts).await.map(|()| Term::Stopped);
    }
    context.metrics.leading(true);
    spawn_controllers(&context, requests, &mut parts, stop);

    let lead = async {
        if context.settings.leader_election {
            election.hold(stop).await
        } else {
            stop.cancelled().await;
            Ok(())
        }
    };
    let result = tokio::select! {
        held = lead => held.map_err(StartError::LeadershipLost),
        Some(ended) = parts.join_next() => Err(StartError::PartEnded(part_name(ended))),
    };
    match result {
        Err(StartError::LeadershipLost(error)) if !matches!(error, LeaderError::HeldBy(_)) && !stop.is_cancelled() => {
            tracing::warn!(%error, "the leader Lease could not be renewed: nothing is written any more; standing by");
            context.metrics.leading(false);
            abort(parts).await?;
            return Ok(Term::Silent);
        }
        // No drain: whatever is under way must not go on writing beside a new leader.
        Err(error) if !stop.is_cancelled() => return Err(error),
        _ => {}
    }
    // What is under way still writes, so the Lease must not run out under it.
    let for_ever = CancellationToken::new();
    let drained = if context.settings.leader_election {
        drain_leading(parts, election.hold(&for_ever)).await
    } else {
        drain(parts).await
    };
    context.metrics.leading(false);
    if context.settings.leader_election && drained.is_ok() {
        election.release().await;
    }
    drained.map(|()| Term::Stopped)
}

/// Breaks all parts off where they are.
async fn abort(mut parts: JoinSet<&'static str>) -> Result<(), StartError> {
    tokio::time::timeout(ABORT_DEADLINE, parts.shutdown())
        .await
        .map_err(|_| StartError::AbortDeadline)
}

/// Waits for all parts after the stop signal.
async fn drain(mut parts: JoinSet<&'static str>) -> Result<(), StartError> {
    tokio::time::timeout(STOP_DEADLINE, async { while parts.join_next().await.is_some() {} })
        .await
        .map_err(|_| StartError::StopDeadline)
}

/// [`drain`] while `hold` renews the Lease; ends at once when that fails, as another process may act then.
async fn drain_leading(
    parts: JoinSet<&'static str>,
    hold: impl Future<Output = Result<(), LeaderError>>,
) -> Result<(), StartError> {
    let lost = async {
        match hold.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    tokio::select! {
        drained = drain(parts) => drained,
        error = lost => Err(StartError::LeadershipLost(error)),
    }
}

fn part_name(ended: Result<&'static str, tokio::task::JoinError>) -> String {
    match ended {
        Ok(name) => name.to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The name of this process in the Lease: what was configured, else random, since two processes must never share it.
fn identity(settings: &Settings) -> String {
    settings
        .identity
        .clone()
        .unwrap_or_else(|| format!("tailnet-operator-{:016x}", rand::random::<u64>()))
}

fn assemble(settings: Settings, client: Client, metrics: Arc<Metrics>) -> (Watches, AllRequests, Arc<Context>) {
    let mut watches = Watches::default();
    watches.backends = watches.backends.trimmed(backends::trim);
    let stores = Stores {
        tailnets: watches.tailnets.store(),
        egresses: watches.egresses.store(),
        ingresses: watches.ingresses.store(),
        sites: watches.sites.store(),
        gateways: watches.gateways.store(),
        services: watches.services.store(),
        backends: watches.backends.store(),
        config_maps: watches.config_maps.store(),
        namespaces: watches.namespaces.store(),
        secrets: watches.secrets.store(),
        deployments: watches.deployments.store(),
        pods: watches.pods.store(),
        network_policies: watches.network_policies.store(),
        pod_disruption_budgets: watches.pod_disruption_budgets.store(),
    };
    let (tailnet, tailnet_requests) = queue();
    let (names, names_requests) = queue();
    let (policy, policy_requests) = queue();
    let (egress, egress_requests) = queue();
    let (ingress, ingress_requests) = queue();
    let (site, site_requests) = queue();
    let (gateway, gateway_requests) = queue();
    let namespace = settings.operator_namespace.clone();
    let context = Arc::new(Context {
        guard: Guard::new(&settings),
        claims: Keeper::new(client.clone(), &namespace),
        hub: HeadscaleHub::default(),
        keys: Keys::default(),
        ledger: Ledger::new(client.clone(), &namespace),
        recovered: Recovered::default(),
        published: Published::default(),
        policies: Policies::default(),
        access_policies: AccessPolicies::default(),
        agents: Agents::default(),
        put_back: PutBack::default(),
        acting_since: OnceLock::new(),
        client,
        settings,
        stores,
        queues: Queues {
            tailnet,
            names,
            policy,
            egress,
            ingress,
            site,
            gateway,
        },
        metrics,
        backoff: Backoff::default(),
    });
    listeners::connect(&mut watches, &context);
    let requests = AllRequests {
        tailnet: tailnet_requests,
        names: names_requests,
        policy: policy_requests,
        egress: egress_requests,
        ingress: ingress_requests,
        site: site_requests,
        gateway: gateway_requests,
    };
    (watches, requests, context)
}

impl Watches {
    fn spawn(self, context: &Context, parts: &mut JoinSet<&'static str>, stop: &CancellationToken) {
        let client = &context.client;
        let namespace = context.namespace();
        let all = watcher::Config::default;
        let ours = || watcher::Config::default().labels(&managed_selector());
        macro_rules! watch {
            ($watch:expr, $api:expr, $config:expr, $name:literal) => {
                let run = $watch.run($api, $config, stop.clone());
                parts.spawn(async move {
                    run.await;
                    $name
                });
            };
        }
        watch!(self.tailnets, Api::all(client.clone()), all(), "watch of Tailnet");
        watch!(self.egresses, Api::all(client.clone()), all(), "watch of TailnetEgress");
        watch!(
            self.ingresses,
            Api::all(client.clone()),
            all(),
            "watch of TailnetIngress"
        );
        watch!(self.sites, Api::all(client.clone()), all(), "watch of TailnetSite");
        watch!(
            self.gateways,
            Api::all(client.clone()),
            all(),
            "watch of TailnetGateway"
        );
        watch!(
            self.services,
            Api::namespaced(client.clone(), namespace),
            all(),
            "watch of Service"
        );
        // Those of the operator namespace are watched whole, above.
        watch!(
            self.backends,
            Api::all(client.clone()),
            all().fields(&format!("metadata.namespace!={namespace}")),
            "watch of other namespaces' Services"
        );
        // Metadata only: the contents never are in this process's memory.
        watch!(
            self.secrets,
            Api::namespaced(client.clone(), namespace),
            all(),
            "watch of Secret"
        );
        watch!(
            self.config_maps,
            Api::namespaced(client.clone(), namespace),
            all(),
            "watch of ConfigMap"
        );
        // Labels only: policies may ask for them.
        watch!(self.namespaces, Api::all(client.clone()), all(), "watch of Namespace");
        watch!(
            self.deployments,
            Api::all(client.clone()),
            ours(),
            "watch of Deployment"
        );
        watch!(self.pods, Api::all(client.clone()), ours(), "watch of Pod");
        watch!(
            self.network_policies,
            Api::all(client.clone()),
            ours(),
            "watch of NetworkPolicy"
        );
        watch!(
            self.pod_disruption_budgets,
            Api::all(client.clone()),
            ours(),
            "watch of PodDisruptionBudget"
        );
    }
}

/// Keeps the readiness condition `caches` true to the stores: met once every watch has listed its objects.
fn spawn_cache_check(
    context: &Arc<Context>,
    caches: tailnet_process::Condition,
    parts: &mut JoinSet<&'static str>,
    stop: &CancellationToken,
) {
    let context = Arc::clone(context);
    let stop = stop.clone();
    parts.spawn(async move {
        loop {
            let missing = unsynced(&context.stores).await;
            if missing.is_empty() {
                caches.met();
                // A store that was filled once stays filled; a broken watch is retried and logged by itself.
                stop.cancelled().await;
            } else {
                caches.missing(format!(
                    "not listed yet: {} (are the CRDs and the RBAC installed?)",
                    missing.join(", ")
                ));
            }
            tokio::select! {
                () = stop.cancelled() => return "cache check",
                () = tokio::time::sleep(CACHE_CHECK) => {}
            }
        }
    });
}

async fn unsynced(stores: &Stores) -> Vec<&'static str> {
    async fn ready<K>(store: &Store<K>) -> bool
    where
        K: kube::runtime::reflector::Lookup<DynamicType: std::hash::Hash + Eq + Clone> + Clone + 'static,
    {
        tokio::time::timeout(STORE_ANSWER, store.wait_until_ready())
            .await
            .is_ok_and(|ready| ready.is_ok())
    }
    let mut missing = Vec::new();
    macro_rules! check {
        ($($store:ident: $name:literal),* $(,)?) => {
            $(if !ready(&stores.$store).await { missing.push($name); })*
        };
    }
    check!(
        tailnets: "Tailnet",
        egresses: "TailnetEgress",
        ingresses: "TailnetIngress",
        sites: "TailnetSite",
        gateways: "TailnetGateway",
        services: "Service",
        backends: "Service (all namespaces)",
        config_maps: "ConfigMap",
        namespaces: "Namespace",
        secrets: "Secret",
        deployments: "Deployment",
        pods: "Pod",
        network_policies: "NetworkPolicy",
        pod_disruption_budgets: "PodDisruptionBudget",
    );
    missing
}

/// Starts the controllers. They wait for all stores: a decision on half of the objects would be wrong.
fn spawn_controllers(
    context: &Arc<Context>,
    requests: AllRequests,
    parts: &mut JoinSet<&'static str>,
    stop: &CancellationToken,
) {
    let context = Arc::clone(context);
    let stop = stop.clone();
    parts.spawn(async move {
        while !unsynced(&context.stores).await.is_empty() {
            tokio::select! {
                () = stop.cancelled() => return "controllers",
                () = tokio::time::sleep(START_CHECK) => {}
            }
        }
        tracing::info!("caches are filled; controllers start");
        context.guard.complete();
        context.acting_since.get_or_init(Instant::now);
        let AllRequests {
            tailnet,
            names,
            policy,
            egress,
            ingress,
            site,
            gateway,
        } = requests;
        tokio::join!(
            controllers::tailnet::run(Arc::clone(&context), tailnet, stop.clone()),
            controllers::claims::run(Arc::clone(&context), stop.clone()),
            organisation::run(Arc::clone(&context), stop.clone()),
            controllers::headscale_changes::run(Arc::clone(&context), stop.clone()),
            controllers::tailnet_names::run(Arc::clone(&context), names, stop.clone()),
            controllers::tailnet_policy::run(Arc::clone(&context), policy, stop.clone()),
            controllers::tailnet_egress::run(Arc::clone(&context), egress, stop.clone()),
            controllers::tailnet_ingress::run(Arc::clone(&context), ingress, stop.clone()),
            controllers::tailnet_site::run(Arc::clone(&context), site, stop.clone()),
            controllers::accepted_only::run_gateway(Arc::clone(&context), gateway, stop.clone()),
        );
        "controllers"
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn part(milliseconds: u64) -> JoinSet<&'static str> {
        let mut parts = JoinSet::new();
        parts.spawn(async move {
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            "part"
        });
        parts
    }

    #[tokio::test]
    async fn the_lease_is_renewed_while_parts_still_write() {
        let renewals = AtomicU32::new(0);
        let hold = async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                renewals.fetch_add(1, Ordering::Relaxed);
            }
        };
        let drained = drain_leading(part(500), hold).await;
        assert!(drained.is_ok(), "{drained:?}");
        assert!(renewals.load(Ordering::Relaxed) >= 3, "{renewals:?}");
    }

    #[tokio::test]
    async fn what_is_broken_off_does_not_go_on() {
        let written = Arc::new(AtomicU32::new(0));
        let writes = Arc::clone(&written);
        let mut parts = part(15_000);
        parts.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                writes.fetch_add(1, Ordering::Relaxed);
            }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let broken_off = abort(parts).await;
        assert!(broken_off.is_ok(), "{broken_off:?}");
        let then = written.load(Ordering::Relaxed);
        assert!(then > 0);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(written.load(Ordering::Relaxed), then);
    }

    #[tokio::test]
    async fn a_lease_that_is_lost_ends_the_drain() {
        let hold = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Err(LeaderError::HeldBy("another".to_owned()))
        };
        let drained = drain_leading(part(15_000), hold).await;
        assert!(matches!(drained, Err(StartError::LeadershipLost(_))), "{drained:?}");
    }
}
