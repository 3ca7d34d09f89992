//! The ingress side: listeners on the tailnet, brought in line with configuration, certificate and node without touching a
//! connection that is still allowed.

mod backend;
mod carrier;
mod certificate;
mod expose;
mod http;
mod port;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tailnet_crds::agent::{AgentCertificate, AgentExpose, IngressExpose};
use tailnet_process::readiness::Condition;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::carrier::Carrier;
use self::certificate::{Certificate, Store};
pub(crate) use self::expose::Way;
use self::expose::{Expose, ways};
pub(crate) use self::http::HANDSHAKE_ERRORS;
use self::http::Site;
pub(crate) use self::http::request_log::ANSWERS;
use self::port::{Role, TailnetPort};
use crate::config_file::ConfigState;
use crate::destinations::Configured;
use crate::limits::Limit;
use crate::metrics::ResultLabel;

/// How often certificate, CA bundles and ports that could not be opened are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What the status tells of the ingress side. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Exposes {
    list: Arc<RwLock<Vec<Arc<Expose>>>>,
    certificate: Arc<Mutex<Option<AgentCertificate>>>,
}

impl Exposes {
    /// Every expose in force, in the configuration's order.
    pub fn status(&self) -> Vec<AgentExpose> {
        self.list.read().iter().map(|expose| expose.status()).collect()
    }

    /// The certificate; None while there is no http expose.
    pub fn certificate(&self) -> Option<AgentCertificate> {
        self.certificate.lock().clone()
    }

    fn all(&self) -> Vec<Arc<Expose>> {
        self.list.read().clone()
    }
}

/// Owns the listeners.
#[derive(Debug)]
pub(crate) struct Ingress {
    carrier: Carrier,
    exposes: Exposes,
    configured: Configured<Way>,
    per_expose: u32,
    certificate: Store,
    ports: HashMap<u16, TailnetPort>,
    /// Removed exposes that still have connections.
    leaving: Vec<Arc<Expose>>,
}

impl Ingress {
    pub(crate) fn new(
        carrier: Carrier,
        configured: Configured<Way>,
        exposes: Exposes,
        per_expose: u32,
        tls_dir: PathBuf,
    ) -> Ingress {
        Ingress {
            carrier,
            exposes,
            configured,
            per_expose,
            certificate: Store::new(tls_dir),
            ports: HashMap::new(),
            leaving: Vec::new(),
        }
    }

    /// Follows configuration, certificate and node until `stop`; then stops accepting and returns.
    pub(crate) async fn run(
        mut self,
        mut config: watch::Receiver<ConfigState>,
        loaded: Condition,
        bound: Condition,
        stop: CancellationToken,
    ) {
        let mut node_changes = self.carrier.membership.changes();
        let mut last = None;
        loop {
            let state = config.borrow_and_update().clone();
            self.count(&state);
            match state.loaded {
                Some(config) => {
                    loaded.met();
                    if last.as_ref() != Some(&config.sha256) {
                        self.configure(&config.config.exposes);
                        last = Some(config.sha256.clone());
                    }
                    match self.listen().await {
                        Ok(()) => bound.met(),
                        Err(why) => bound.missing(why),
                    }
                }
                None => loaded.missing(state.error.unwrap_or_else(|| "no configuration has been read".into())),
            }
            tokio::select! {
                () = stop.cancelled() => break,
                changed = config.changed() => if changed.is_err() { break },
                _ = node_changes.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        for (_, port) in self.ports.drain() {
            port.stop().await;
        }
        self.carrier.draining.cancel();
    }

    /// Makes the exposes as `wanted` says.
    fn configure(&mut self, wanted: &[IngressExpose]) {
        let old: HashMap<String, Arc<Expose>> = self
            .exposes
            .all()
            .into_iter()
            .map(|expose| (expose.name.clone(), expose))
            .collect();
        let now: Vec<Arc<Expose>> = wanted
            .iter()
            .map(|spec| match old.get(&spec.name) {
                Some(expose) => {
                    if expose.spec() != *spec {
                        tracing::info!(target_name = spec.name, port = spec.port, "expose changed");
                        expose.set_spec(spec.clone());
                    }
                    expose.clone()
                }
                None => {
                    let limit = Limit::new(self.per_expose);
                    Arc::new(Expose::new(spec.clone(), limit, self.carrier.dial_timeout))
                }
            })
            .collect();
        // What is accepted from here on goes by `wanted`, and whatever else is open has to end.
        self.configured.set(ways(wanted));
        let gone = old
            .into_values()
            .filter(|expose| !wanted.iter().any(|spec| spec.name == expose.name));
        self.leaving.extend(gone);
        *self.exposes.list.write() = now;
    }

    /// Brings ports, backends and certificate in line. Repeating it changes nothing but what failed before.
    async fn listen(&mut self) -> Result<(), String> {
        let exposes = self.exposes.all();
        let certificate = self.certificate(&exposes);
        for expose in &exposes {
            expose.upstreams.follow(&expose.spec());
        }
        let roles = roles(&exposes, certificate.as_ref());
        let node = self.carrier.membership.node();
        let unwanted: Vec<u16> = self
            .ports
            .iter()
            .filter(|(port, open)| !roles.contains_key(port) || !open.is_of(node.as_deref()))
            .map(|(port, _)| *port)
            .collect();
        for port in unwanted {
            if let Some(open) = self.ports.remove(&port) {
                tracing::info!(port, "stopped listening");
                open.stop().await;
            }
        }
        let mut failed = BTreeMap::new();
        for (port, role) in roles {
            if let Some(open) = self.ports.get(&port) {
                open.set_role(role);
                continue;
            }
            let Some(node) = &node else {
                failed.insert(port, "the agent has not joined the tailnet".to_owned());
                continue;
            };
            match TailnetPort::open(node, port, role, self.carrier.clone()) {
                Ok(open) => {
                    tracing::info!(port, "listening on the tailnet");
                    self.ports.insert(port, open);
                }
                Err(error) => {
                    failed.insert(port, format!("cannot listen on port {port}: {error}"));
                }
            }
        }
        for expose in &exposes {
            let state = state(&expose.spec(), certificate.as_deref(), &failed, &self.certificate);
            expose.set_listening(state);
        }
        self.forget_finished();
        let missing: Vec<String> = exposes
            .iter()
            .filter_map(|expose| Some(format!("{}: {}", expose.name, expose.error()?)))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(missing.join("; "))
        }
    }

    fn certificate(&mut self, exposes: &[Arc<Expose>]) -> Option<Arc<Certificate>> {
        let names: Vec<String> = exposes
            .iter()
            .filter_map(|expose| expose.spec().http)
            .flat_map(|http| http.names)
            .collect();
        if names.is_empty() {
            *self.exposes.certificate.lock() = None;
            self.carrier.metrics.certificate_not_after.set(0);
            return None;
        }
        let certificate = self.certificate.look(&names, Timestamp::now());
        *self.exposes.certificate.lock() = Some(self.certificate.status());
        self.carrier
            .metrics
            .certificate_not_after
            .set(self.certificate.not_after());
        certificate
    }

    /// Drops the metrics of removed exposes once their last connection is over.
    fn forget_finished(&mut self) {
        let current = self.exposes.all();
        self.leaving.retain(|expose| {
            let back = current.iter().any(|now| now.name == expose.name);
            if expose.usage.open() > 0 && !back {
                return true;
            }
            if !back {
                self.carrier.metrics.forget(&expose.name);
            }
            false
        });
    }

    fn count(&self, state: &ConfigState) {
        for (result, count) in [("ok", state.taken), ("refused", state.refused)] {
            let label = ResultLabel { result };
            let gauge = crate::metrics::gauge(count);
            self.carrier.metrics.configs.get_or_create(&label).set(gauge);
        }
    }
}

/// What each port is for. An http port without a certificate for any of its names is none.
fn roles(exposes: &[Arc<Expose>], certificate: Option<&Arc<Certificate>>) -> BTreeMap<u16, Role> {
    let mut roles = BTreeMap::new();
    let mut sites: BTreeMap<u16, HashMap<String, Arc<Expose>>> = BTreeMap::new();
    for expose in exposes {
        let spec = expose.spec();
        let Some(http) = &spec.http else {
            roles.insert(spec.port, Role::Tcp(expose.clone()));
            continue;
        };
        for name in &http.names {
            if certificate.is_some_and(|certificate| certificate.covers(name)) {
                sites.entry(spec.port).or_default().insert(name.clone(), expose.clone());
            }
        }
    }
    for (port, names) in sites {
        if let Some(certificate) = certificate {
            let certificate = certificate.clone();
            roles.insert(port, Role::Http(Arc::new(Site { certificate, names })));
        }
    }
    roles
}

/// Whether peers can connect to all of an expose, or why not.
fn state(
    spec: &IngressExpose,
    certificate: Option<&Certificate>,
    failed: &BTreeMap<u16, String>,
    store: &Store,
) -> Result<(), String> {
    if let Some(http) = &spec.http {
        let uncovered: Vec<&str> = http
            .names
            .iter()
            .map(String::as_str)
            .filter(|name| !certificate.is_some_and(|certificate| certificate.covers(name)))
            .collect();
        if !uncovered.is_empty() {
            let why = store.status().problem.map_or_else(
                || "there is none".to_owned(),
                |problem| format!("{}: {}", problem.cause.as_str(), problem.message),
            );
            return Err(format!("no certificate for {}: {why}", uncovered.join(", ")));
        }
    }
    failed.get(&spec.port).map_or(Ok(()), |why| Err(why.clone()))
}
