//! The organisation's policies: ConfigMaps of the operator namespace with the label, compiled into the snapshot.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use tailnet_crds::names::label::ADMISSION_POLICY;
use tailnet_policies::organisation;

use crate::snapshot::SharedSnapshot;
use crate::watches::{Key, Sink};

/// Time since the process began to be asked for it: what the time limit of policies is measured by.
pub fn clock() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// Hands every ConfigMap on, and keeps those that are policies in the snapshot.
pub struct Policies<S> {
    snapshot: Arc<SharedSnapshot>,
    known: BTreeSet<String>,
    others: S,
}

impl<S> Policies<S> {
    /// None known yet; `others` is told of every ConfigMap too.
    pub fn before(others: S, snapshot: Arc<SharedSnapshot>) -> Self {
        Self {
            snapshot,
            known: BTreeSet::new(),
            others,
        }
    }

    fn out_of_force(&mut self, name: &str) {
        if self.known.remove(name) {
            tracing::warn!(policy = name, "an organisation's policy is no longer in force");
            self.snapshot.write(|snapshot| snapshot.set_policy(name, None));
        }
    }
}

impl<S: Sink<ConfigMap>> Sink<ConfigMap> for Policies<S> {
    fn upsert(&mut self, object: &ConfigMap) {
        let name = object.name_any();
        if object.labels().get(ADMISSION_POLICY).map(String::as_str) == Some("true") {
            // Outside the lock: it takes a while.
            let standing = organisation::standing(&name, &object.data.clone().unwrap_or_default());
            match &standing {
                Ok(policy) => tracing::info!(
                    policy = name,
                    validations = policy.validations(),
                    "an organisation's policy is in force"
                ),
                Err(problem) => tracing::error!(
                    policy = name,
                    problem,
                    "an organisation's policy cannot be used: nothing passes it until it is corrected"
                ),
            }
            self.known.insert(name.clone());
            self.snapshot
                .write(|snapshot| snapshot.set_policy(&name, Some(Arc::new(standing))));
        } else {
            self.out_of_force(&name);
        }
        self.others.upsert(object);
    }

    fn remove(&mut self, key: &Key) {
        self.out_of_force(&key.1);
        self.others.remove(key);
    }

    fn synced(&mut self) {
        self.others.synced();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;
    use tailnet_policies::snapshot::{Config, Snapshot};

    use super::Policies;
    use crate::clock::ApiClock;
    use crate::published::Published;
    use crate::snapshot::SharedSnapshot;
    use crate::watches::Sink;

    #[test]
    fn the_label_decides_what_is_in_force() {
        let snapshot = Arc::new(SharedSnapshot::new(Snapshot::new(Config::default())));
        let mut policies = Policies::before(
            Published::new(Arc::clone(&snapshot), ApiClock::default()),
            Arc::clone(&snapshot),
        );
        let config_map = |label: &str, text: &str| -> ConfigMap {
            serde_json::from_value(json!({
                "metadata": {"name": "p", "labels": {"tsunaro.io/admission-policy": label}}, "data": {"policy.yaml": text},
            }))
            .expect("a ConfigMap")
        };
        let state = |snapshot: &SharedSnapshot| {
            snapshot.read(|snapshot| snapshot.policies().get("p").map(|standing| standing.is_ok()))
        };
        policies.upsert(&config_map("true", "validations: [{expression: 'true'}]"));
        assert_eq!(state(&snapshot), Some(true));
        policies.upsert(&config_map("true", "validations: [{expression: 'tru'}]"));
        assert_eq!(state(&snapshot), Some(false), "what does not compile stays in the way");
        policies.upsert(&config_map("false", "validations: [{expression: 'true'}]"));
        assert_eq!(state(&snapshot), None);
        policies.upsert(&config_map("true", "validations: [{expression: 'true'}]"));
        policies.remove(&(None, "p".to_owned()));
        assert_eq!(state(&snapshot), None);
    }
}
