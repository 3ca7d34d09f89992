//! Readiness as a set of named conditions. A process is ready when every one is met; what is missing is told by name, with
//! the reason and for how long, because "503" alone helps nobody.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The conditions of one process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<Vec<State>>>);

#[derive(Debug)]
struct State {
    name: String,
    /// Why the condition is not met; `None` when it is.
    missing: Option<String>,
    since: Instant,
}

/// A condition that is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The condition's name, e.g. `caches`.
    pub name: String,
    /// What it waits for.
    pub reason: String,
    /// How long it has not been met.
    pub since: Duration,
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}: {} (for {} s)",
            self.name,
            self.reason,
            self.since.as_secs()
        )
    }
}

/// The handle with which the owner of one condition says whether it is met. Clones are the same condition.
#[derive(Debug, Clone)]
pub struct Condition {
    readiness: Readiness,
    index: usize,
}

impl Readiness {
    /// No condition yet. A process without any condition is *not* ready: it has not come far enough to know what it needs.
    pub fn new() -> Self {
        Self::default()
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        // A panic elsewhere cannot leave a half-written state: every change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a condition that is not met yet; `reason` says what it waits for.
    pub fn condition(&self, name: impl Into<String>, reason: impl Into<String>) -> Condition {
        let mut states = self.states();
        states.push(State {
            name: name.into(),
            missing: Some(reason.into()),
            since: Instant::now(),
        });
        Condition {
            readiness: self.clone(),
            index: states.len() - 1,
        }
    }

    /// Makes the process unready for good, because it is about to stop.
    pub fn stopping(&self) {
        let _never_met = self.condition("stopping", "the process received a stop signal and drains");
    }

    /// The conditions that are not met, in the order in which they were added.
    pub fn missing(&self) -> Vec<Missing> {
        let states = self.states();
        if states.is_empty() {
            let reason = "the process has not started its parts yet".to_owned();
            return vec![Missing {
                name: "start".to_owned(),
                reason,
                since: Duration::ZERO,
            }];
        }
        states
            .iter()
            .filter_map(|state| {
                let reason = state.missing.clone()?;
                Some(Missing {
                    name: state.name.clone(),
                    reason,
                    since: state.since.elapsed(),
                })
            })
            .collect()
    }

    /// Whether every condition is met.
    pub fn is_ready(&self) -> bool {
        self.missing().is_empty()
    }
}

impl Condition {
    /// The condition is met.
    pub fn met(&self) {
        self.change(None);
    }

    /// The condition is not met (any more), and why.
    pub fn missing(&self, reason: impl Into<String>) {
        self.change(Some(reason.into()));
    }

    /// Whether the condition is met.
    pub fn is_met(&self) -> bool {
        self.readiness
            .states()
            .get(self.index)
            .is_some_and(|state| state.missing.is_none())
    }

    fn change(&self, missing: Option<String>) {
        if let Some(state) = self.readiness.states().get_mut(self.index) {
            if state.missing.is_some() != missing.is_some() {
                state.since = Instant::now();
                match &missing {
                    None => tracing::info!(condition = state.name, "readiness condition is met"),
                    Some(reason) => tracing::warn!(
                        condition = state.name,
                        reason,
                        "readiness condition is not met any more"
                    ),
                }
            }
            state.missing = missing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Readiness;

    #[test]
    fn ready_when_all_are_met_and_not_before() {
        let readiness = Readiness::new();
        assert!(!readiness.is_ready(), "a process without conditions has not started");
        let certificate = readiness.condition("certificate", "no certificate yet");
        let caches = readiness.condition("caches", "Tailnet, TailnetEgress");
        certificate.met();
        assert!(certificate.is_met() && !readiness.is_ready());
        let missing = readiness.missing();
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].to_string(), "caches: Tailnet, TailnetEgress (for 0 s)");
        caches.met();
        assert!(readiness.is_ready());
        caches.missing("the watch of Tailnet broke");
        assert!(!readiness.is_ready());
        caches.met();
        readiness.stopping();
        assert_eq!(readiness.missing()[0].name, "stopping");
    }

    #[test]
    fn a_changed_reason_keeps_the_time() {
        let readiness = Readiness::new();
        let condition = readiness.condition("a", "first");
        std::thread::sleep(std::time::Duration::from_millis(20));
        condition.missing("second");
        let missing = readiness.missing();
        assert_eq!(missing[0].reason, "second");
        assert!(missing[0].since >= std::time::Duration::from_millis(20));
    }
}
