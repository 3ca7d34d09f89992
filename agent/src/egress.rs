//! The egress side: one listener per target, brought in line with the configuration without touching a connection that is still allowed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::RwLock;
use tailnet_crds::agent::EgressTarget;
use tailnet_process::readiness::Condition;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config_file::ConfigState;
use crate::connection::Carrier;
use crate::destinations::Configured;
use crate::limits::Limit;
use crate::listener::Listening;
use crate::metrics::ResultLabel;
use crate::target::Target;

/// How often a port that could not be bound is tried again.
const REBIND: Duration = Duration::from_secs(2);

/// The targets in force, in the configuration's order. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Targets(Arc<RwLock<Vec<Arc<Target>>>>);

impl Targets {
    pub(crate) fn all(&self) -> Vec<Arc<Target>> {
        self.0.read().clone()
    }
}

/// Owns the listeners.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) carrier: Carrier,
    pub(crate) targets: Targets,
    pub(crate) per_target: u32,
    configured: Configured,
    listening: HashMap<String, Listening>,
    /// Removed targets that still have connections.
    leaving: Vec<Arc<Target>>,
}

impl Egress {
    pub(crate) fn new(carrier: Carrier, configured: Configured, targets: Targets, per_target: u32) -> Egress {
        Egress {
            carrier,
            targets,
            per_target,
            configured,
            listening: HashMap::new(),
            leaving: Vec::new(),
        }
    }

    /// Follows the configuration until `stop`; then stops accepting and returns.
    pub(crate) async fn run(
        mut self,
        mut config: watch::Receiver<ConfigState>,
        loaded: Condition,
        bound: Condition,
        stop: CancellationToken,
    ) {
        loop {
            let state = config.borrow_and_update().clone();
            self.count(&state);
            match &state.loaded {
                Some(config) => {
                    loaded.met();
                    self.apply(&config.config.targets).await;
                    match self.unbound() {
                        None => bound.met(),
                        Some(text) => bound.missing(text),
                    }
                }
                None => loaded.missing(state.error.unwrap_or_else(|| "no configuration has been read".into())),
            }
            tokio::select! {
                () = stop.cancelled() => break,
                changed = config.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(REBIND) => {}
            }
        }
        for (_, listening) in self.listening.drain() {
            listening.stop().await;
        }
    }

    /// Makes targets and listeners as `wanted` says. Repeating it changes nothing but what failed before.
    async fn apply(&mut self, wanted: &[EgressTarget]) {
        let old: HashMap<String, Arc<Target>> = self
            .targets
            .all()
            .into_iter()
            .map(|target| (target.name.clone(), target))
            .collect();
        // First: what is dialled from here on is of `wanted`, and whatever else is open has to end.
        self.configured.set(wanted);
        let mut now = Vec::with_capacity(wanted.len());
        for spec in wanted {
            let target = match old.get(&spec.name) {
                Some(target) => {
                    if target.spec() != *spec {
                        tracing::info!(
                            target_name = spec.name,
                            address = spec.address,
                            port = spec.port,
                            "target changed"
                        );
                        target.set_spec(spec.clone());
                    }
                    target.clone()
                }
                None => Arc::new(Target::new(spec.clone(), Limit::new(self.per_target))),
            };
            now.push(target);
        }
        self.stop_unwanted(wanted).await;
        self.start_missing(&now);
        let gone = old
            .into_values()
            .filter(|target| !wanted.iter().any(|spec| spec.name == target.name));
        self.leaving.extend(gone);
        *self.targets.0.write() = now;
        self.forget_finished();
    }

    /// Stops listeners whose target is gone or has another port, or whose task failed. Before any port is bound: a port may
    /// have passed from one target to another.
    async fn stop_unwanted(&mut self, wanted: &[EgressTarget]) {
        let ports: HashMap<&str, u16> = wanted
            .iter()
            .map(|spec| (spec.name.as_str(), spec.listen_port))
            .collect();
        let unwanted: Vec<String> = self
            .listening
            .iter()
            .filter(|(name, listening)| ports.get(name.as_str()) != Some(&listening.port) || listening.failed())
            .map(|(name, _)| name.clone())
            .collect();
        for name in unwanted {
            if let Some(listening) = self.listening.remove(&name) {
                tracing::info!(target_name = name, port = listening.port, "stopped listening");
                listening.stop().await;
            }
        }
    }

    fn start_missing(&mut self, targets: &[Arc<Target>]) {
        for target in targets {
            if self.listening.contains_key(&target.name) {
                continue;
            }
            let port = target.spec().listen_port;
            match Listening::start(port, target.clone(), self.carrier.clone()) {
                Ok(listening) => {
                    tracing::info!(target_name = target.name, port, "listening");
                    self.listening.insert(target.name.clone(), listening);
                }
                Err(error) => tracing::error!(%error, target_name = target.name, port, "cannot listen; trying again"),
            }
        }
    }

    /// Drops the metrics of removed targets once their last connection is over.
    fn forget_finished(&mut self) {
        let current = self.targets.all();
        self.leaving.retain(|target| {
            let back = current.iter().any(|now| now.name == target.name);
            if target.usage.open() > 0 && !back {
                return true;
            }
            if !back {
                self.carrier.metrics.forget(&target.name);
            }
            false
        });
    }

    fn unbound(&self) -> Option<String> {
        let missing: Vec<String> = self
            .targets
            .all()
            .iter()
            .filter(|target| !target.listening.load(Ordering::Relaxed))
            .map(|target| format!("{} (port {})", target.name, target.spec().listen_port))
            .collect();
        (!missing.is_empty()).then(|| format!("cannot listen for {}", missing.join(", ")))
    }

    fn count(&self, state: &ConfigState) {
        let metrics = &self.carrier.metrics;
        for (result, count) in [("ok", state.taken), ("refused", state.refused)] {
            metrics
                .configs
                .get_or_create(&ResultLabel { result })
                .set(crate::metrics::gauge(count));
        }
    }
}
