//! Being a node of the tailnet: login, noticing that the node is lost, login again, logout.
//!
//! A node is lost when the login server has deleted it or its key has expired. Neither is told to a node whose session is
//! open, so the agent asks. A login server that cannot be reached loses nothing: connections go on without it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tailnet_crds::agent::AgentNode;
use tailnet_process::readiness::Condition;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tsnet::{Node, NodeConfig, Registration};

use crate::auth_key::{self, AuthKeyError};
use crate::backoff::{Backoff, jittered};
use crate::config_file::ConfigState;
use crate::metrics::{Metrics, ResultLabel, gauge};

/// How long one try to log in may take. Start to online is 2–7 s on a good day.
const LOGIN: Duration = Duration::from_secs(30);
/// How long the logout of a lost node may take; of the last one at the stop, too.
const LOGOUT: Duration = Duration::from_secs(5);
/// How often the node is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How long one question to the login server may take.
const ASK: Duration = Duration::from_secs(10);
/// A node that lasted this long starts the back-off anew.
const LASTED: Duration = Duration::from_secs(60);
/// Pause after the first login that failed; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two logins.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The agent's node, as the rest of the agent sees it. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Membership(Arc<State>);

#[derive(Debug, Default)]
struct State {
    node: ArcSwapOption<Node>,
    /// Counts the changes of `node`.
    changes: watch::Sender<u64>,
    seen: Mutex<Seen>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    node: Option<AgentNode>,
    login_error: Option<String>,
}

/// What the membership needs to know.
#[derive(Debug)]
pub struct Settings {
    /// File with the pre-auth key.
    pub auth_key_file: PathBuf,
    /// Time between two questions to the login server.
    pub probe_every: Duration,
    /// Take the subnet routes of other nodes.
    pub accept_routes: bool,
}

#[derive(Debug, thiserror::Error)]
enum LoginError {
    #[error(transparent)]
    Key(#[from] AuthKeyError),
    #[error("{0}")]
    Client(#[from] tsnet::Error),
}

/// Which login server, and under which name: a change of either needs a new login.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    hostname: String,
    control_url: String,
}

impl Identity {
    fn of(state: &ConfigState) -> Option<Identity> {
        let config = &state.loaded.as_ref()?.config;
        Some(Identity {
            hostname: config.hostname.clone(),
            control_url: config.control_url.clone(),
        })
    }
}

/// Why a joined node is given up.
#[derive(Debug)]
enum Leave {
    Stop,
    Lost(String),
    Reconfigured,
}

impl Membership {
    /// The node, while it is joined.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.0.node.load_full()
    }

    /// Wakes when [`Membership::node`] gives another node, or none any more.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn set_node(&self, node: Option<Node>) {
        self.0.node.store(node.map(Arc::new));
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// The node for the status; the last one while there is none.
    pub fn agent_node(&self) -> Option<AgentNode> {
        self.0.seen.lock().node.clone()
    }

    /// Why the node is not online, if it is not.
    pub fn login_error(&self) -> Option<String> {
        self.0.seen.lock().login_error.clone()
    }

    /// Joins, and joins again, until `stop`; then leaves. `joined` is met while there is a node.
    pub async fn run(
        self,
        settings: Settings,
        mut config: watch::Receiver<ConfigState>,
        joined: Condition,
        metrics: Metrics,
        stop: CancellationToken,
    ) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let Some(identity) = wanted(&mut config, &stop).await else {
                return;
            };
            let Some(login) = login(&settings, &identity, &stop).await else {
                return;
            };
            let pause = match login {
                Ok(node) => {
                    metrics.logins.get_or_create(&ResultLabel { result: "ok" }).inc();
                    let since = Instant::now();
                    let leave = self
                        .stay(node, &settings, &identity, &mut config, &joined, &metrics, &stop)
                        .await;
                    if since.elapsed() > LASTED {
                        backoff.reset();
                    }
                    match leave {
                        Leave::Stop => return,
                        Leave::Reconfigured => Duration::ZERO,
                        Leave::Lost(why) => {
                            metrics.nodes_lost.inc();
                            tracing::warn!(why, "the node is lost; logging in again");
                            self.0.seen.lock().login_error = Some(why);
                            backoff.wait()
                        }
                    }
                }
                Err(error) => {
                    metrics.logins.get_or_create(&ResultLabel { result: "refused" }).inc();
                    let error = error.to_string();
                    let pause = backoff.wait();
                    tracing::warn!(error, retry_in_ms = millis(pause), "login failed");
                    joined.missing(error.clone());
                    self.0.seen.lock().login_error = Some(error);
                    pause
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Serves as `node` until there is a reason to leave, and leaves.
    #[allow(clippy::too_many_arguments)]
    async fn stay(
        &self,
        node: Node,
        settings: &Settings,
        identity: &Identity,
        config: &mut watch::Receiver<ConfigState>,
        joined: &Condition,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) -> Leave {
        self.look(&node, metrics).await;
        self.set_node(Some(node.clone()));
        joined.met();
        metrics.node_joined.set(1);
        if let Some(n) = self.agent_node() {
            tracing::info!(
                id = n.id,
                name = n.name,
                ipv4 = n.ipv4,
                control_url = identity.control_url,
                "joined the tailnet"
            );
        }
        let leave = self.watch(&node, settings, identity, config, metrics, stop).await;
        match &leave {
            Leave::Stop => {}
            Leave::Lost(why) => joined.missing(format!("the node is lost: {why}")),
            Leave::Reconfigured => joined.missing("logging in again: host name or login server have changed"),
        }
        self.set_node(None);
        metrics.node_joined.set(0);
        metrics.node_online.set(0);
        let logout = Instant::now();
        match node.close(LOGOUT).await {
            Ok(()) => tracing::info!(took_ms = millis(logout.elapsed()), "left the tailnet"),
            Err(error) => tracing::warn!(%error, "leaving the tailnet: the login server will remove the node later"),
        }
        if let Some(n) = &mut self.0.seen.lock().node {
            n.online = false;
        }
        leave
    }

    async fn watch(
        &self,
        node: &Node,
        settings: &Settings,
        identity: &Identity,
        config: &mut watch::Receiver<ConfigState>,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) -> Leave {
        let mut link = node.link();
        let mut look = tokio::time::interval(LOOK);
        let mut next_probe = Instant::now() + jittered(settings.probe_every);
        let mut doubts = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Leave::Stop,
                changed = config.changed() => {
                    if changed.is_err() {
                        return Leave::Stop;
                    }
                    if Identity::of(&config.borrow_and_update()).is_some_and(|now| now != *identity) {
                        tracing::warn!("host name or login server have changed; connections are reset by the new login");
                        return Leave::Reconfigured;
                    }
                }
                changed = link.changed() => {
                    if changed.is_err() {
                        return Leave::Lost("the tailnet client has stopped".into());
                    }
                    let now = link.borrow_and_update().clone();
                    tracing::debug!(state = now.state, error = now.error, "tailnet client");
                    if now.state == "NeedsLogin" {
                        next_probe = Instant::now();
                    }
                }
                _ = look.tick() => {
                    self.look(node, metrics).await;
                    if Instant::now() < next_probe {
                        continue;
                    }
                    match node.probe(ASK).await {
                        // A second answer, so that a server which is just starting does not cost the connections.
                        Ok(Registration::Lost(why)) if doubts > 0 => return Leave::Lost(why),
                        Ok(Registration::Lost(why)) => {
                            tracing::warn!(why, "the login server does not know this node; asking again");
                            doubts += 1;
                            next_probe = Instant::now();
                        }
                        Ok(Registration::Known) => {
                            doubts = 0;
                            next_probe = Instant::now() + jittered(settings.probe_every);
                        }
                        Err(error) => {
                            tracing::debug!(%error, "the login server could not be asked");
                            next_probe = Instant::now() + jittered(settings.probe_every);
                        }
                    }
                }
            }
        }
    }

    /// Takes the node's state over into the status and the metrics.
    async fn look(&self, node: &Node, metrics: &Metrics) {
        if let Some(resident) = crate::memory::resident() {
            metrics.resident.set(gauge(resident));
        }
        let status = match node.status(false).await {
            Ok(status) => status,
            Err(error) => {
                tracing::debug!(%error, "the tailnet client gives no status");
                return;
            }
        };
        metrics.node_online.set(i64::from(status.online));
        metrics.client_heap.set(gauge(status.heap_bytes));
        if status.netmap_age_ms >= 0 {
            metrics
                .netmap_age
                .set(Duration::from_millis(status.netmap_age_ms.unsigned_abs()).as_secs_f64());
        }
        let mut seen = self.0.seen.lock();
        seen.login_error = (!status.online).then(|| offline_reason(&status.state, &status.health));
        if let Some(own) = status.own {
            let address = |v6: bool| own.ips.iter().find(|ip| ip.contains(':') == v6).cloned();
            seen.node = Some(AgentNode {
                ipv4: address(false),
                ipv6: address(true),
                id: own.id,
                name: own.name,
                online: status.online,
            });
        }
    }
}

fn offline_reason(state: &str, health: &[String]) -> String {
    let mut text = format!("no connection to the login server (client state {state})");
    for line in health.iter().take(5) {
        text.push_str("; ");
        text.extend(line.chars().take(300));
    }
    text
}

/// Waits for a configuration; `None` when the agent stops.
async fn wanted(config: &mut watch::Receiver<ConfigState>, stop: &CancellationToken) -> Option<Identity> {
    loop {
        if let Some(identity) = Identity::of(&config.borrow_and_update()) {
            return Some(identity);
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            changed = config.changed() => changed.ok()?,
        }
    }
}

/// One try to log in; `None` when the agent stops. A node that may be half registered by then logs out.
async fn login(settings: &Settings, identity: &Identity, stop: &CancellationToken) -> Option<Result<Node, LoginError>> {
    let node = match new_node(settings, identity) {
        Ok(node) => node,
        Err(error) => return Some(Err(error)),
    };
    let result = tokio::select! {
        () = stop.cancelled() => None,
        result = node.up(LOGIN) => Some(result),
    };
    if let Some(Ok(())) = result {
        return Some(Ok(node));
    }
    if let Err(close) = node.close(LOGOUT).await {
        tracing::debug!(error = %close, "closing the client after a failed login");
    }
    Some(Err(result?.err()?.into()))
}

fn new_node(settings: &Settings, identity: &Identity) -> Result<Node, LoginError> {
    Ok(Node::new(&NodeConfig {
        hostname: identity.hostname.clone(),
        control_url: identity.control_url.clone(),
        auth_key: auth_key::read(&settings.auth_key_file)?,
        accept_routes: settings.accept_routes,
        ..NodeConfig::default()
    })?)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
