//! The operator's metrics. Names are an interface: [`METRICS`] lists them for the reference page.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;
use tailnet_crds::Kind;

/// Name as scraped, type, labels and meaning of every metric of this process.
pub const METRICS: &[(&str, &str, &str, &str)] = &[
    (
        "tailnet_operator_build_info",
        "gauge",
        "version",
        "Version and commit of this process; always 1",
    ),
    (
        "tailnet_operator_leader",
        "gauge",
        "",
        "1 while this process acts, 0 while it stands by",
    ),
    (
        "tailnet_operator_reconcile_duration_seconds",
        "histogram",
        "kind",
        "Time of one reconcile",
    ),
    (
        "tailnet_operator_reconcile_errors_total",
        "counter",
        "kind",
        "Reconciles that failed and are retried",
    ),
    (
        "tailnet_operator_writes_total",
        "counter",
        "kind",
        "Objects created, changed or deleted, by their kind",
    ),
    (
        "tailnet_operator_agent_polls_total",
        "counter",
        "result",
        "Reads of an agent's status: ok or failed",
    ),
    (
        "tailnet_resource_ready",
        "gauge",
        "kind, namespace, name",
        "1 while the resource's Ready condition is True",
    ),
    (
        "tailnet_resource_condition",
        "gauge",
        "kind, namespace, name, type, status",
        "1 for the status (True, False, Unknown) that the condition has, 0 for the others",
    ),
];

/// Label `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabel {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    kind: &'static str,
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    kind: &'static str,
    namespace: String,
    name: String,
    r#type: String,
    status: &'static str,
}

/// The metrics that the controllers write; register once, then share.
pub struct Metrics {
    leader: Gauge,
    durations: Family<KindLabel, Histogram, fn() -> Histogram>,
    errors: Family<KindLabel, Counter>,
    writes: Family<KindLabel, Counter>,
    polls: Family<ResultLabel, Counter>,
    ready: Family<ResourceLabels, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
    /// Which condition types each resource has shown, so that a deleted resource's series can go.
    shown: Mutex<HashSet<(ResourceLabels, String)>>,
}

/// Buckets from 1 ms to 30 s.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];

impl Metrics {
    /// New metrics and the registry that shows them.
    pub fn new() -> (Self, Registry) {
        let metrics = Self {
            leader: Gauge::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            errors: Family::default(),
            writes: Family::default(),
            polls: Family::default(),
            ready: Family::default(),
            conditions: Family::default(),
            shown: Mutex::default(),
        };
        let mut registry = Registry::default();
        let build = Family::<VersionLabel, Gauge>::default();
        build
            .get_or_create(&VersionLabel {
                version: tailnet_process::version(),
            })
            .set(1);
        let resources = registry.sub_registry_with_prefix("tailnet_resource");
        resources.register(
            "ready",
            "1 while the resource's Ready condition is True",
            metrics.ready.clone(),
        );
        resources.register(
            "condition",
            "1 for the status (True, False, Unknown) that the condition has, 0 for the others",
            metrics.conditions.clone(),
        );
        let own = registry.sub_registry_with_prefix("tailnet_operator");
        own.register("build_info", "Version and commit of this process; always 1", build);
        own.register(
            "leader",
            "1 while this process acts, 0 while it stands by",
            metrics.leader.clone(),
        );
        own.register(
            "reconcile_duration_seconds",
            "Time of one reconcile",
            metrics.durations.clone(),
        );
        own.register(
            "reconcile_errors",
            "Reconciles that failed and are retried",
            metrics.errors.clone(),
        );
        own.register(
            "writes",
            "Objects created, changed or deleted, by their kind",
            metrics.writes.clone(),
        );
        own.register(
            "agent_polls",
            "Reads of an agent's status: ok or failed",
            metrics.polls.clone(),
        );
        (metrics, registry)
    }

    /// Whether this process acts.
    pub fn leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    /// One reconcile of `kind` took `duration`.
    pub fn reconciled(&self, kind: &str, duration: Duration, failed: bool) {
        let label = KindLabel { kind: kind.to_owned() };
        self.durations.get_or_create(&label).observe(duration.as_secs_f64());
        // Created at the first reconcile, so that an alert on a rate has a zero to start from.
        let errors = self.errors.get_or_create(&label);
        if failed {
            errors.inc();
        }
    }

    /// One object of `kind` was written or deleted.
    pub fn wrote(&self, kind: &str) {
        self.writes.get_or_create(&KindLabel { kind: kind.to_owned() }).inc();
    }

    /// One read of an agent's status document.
    pub fn polled(&self, ok: bool) {
        self.polls
            .get_or_create(&ResultLabel {
                result: if ok { "ok" } else { "failed" },
            })
            .inc();
    }

    /// The conditions of one resource as (type, status).
    pub fn conditions<'a>(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        conditions: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        let resource = labels(kind, namespace, name);
        let mut shown = self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (r#type, current) in conditions {
            if r#type == "Ready" {
                self.ready.get_or_create(&resource).set(i64::from(current == "True"));
            }
            for status in ["True", "False", "Unknown"] {
                self.conditions
                    .get_or_create(&condition(&resource, r#type, status))
                    .set(i64::from(current == status));
            }
            shown.insert((resource.clone(), r#type.to_owned()));
        }
    }

    /// Drops the series of all resources: what goes while this process does not look would keep its own for ever.
    pub fn forget_all(&self) {
        self.shown
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clear();
        self.ready.clear();
        self.conditions.clear();
    }

    /// A resource is gone: so are its series.
    pub fn forget(&self, kind: Kind, namespace: Option<&str>, name: &str) {
        let resource = labels(kind, namespace, name);
        self.ready.remove(&resource);
        self.shown
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .retain(|(of, r#type)| {
                if *of != resource {
                    return true;
                }
                for status in ["True", "False", "Unknown"] {
                    self.conditions.remove(&condition(of, r#type, status));
                }
                false
            });
    }
}

fn labels(kind: Kind, namespace: Option<&str>, name: &str) -> ResourceLabels {
    ResourceLabels {
        kind: kind.as_str(),
        namespace: namespace.unwrap_or_default().to_owned(),
        name: name.to_owned(),
    }
}

fn condition(resource: &ResourceLabels, r#type: &str, status: &'static str) -> ConditionLabels {
    ConditionLabels {
        kind: resource.kind,
        namespace: resource.namespace.clone(),
        name: resource.name.clone(),
        r#type: r#type.to_owned(),
        status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn every_listed_metric_is_registered_and_no_other() {
        let (metrics, registry) = Metrics::new();
        metrics.leading(true);
        metrics.reconciled("TailnetEgress", Duration::from_millis(3), true);
        metrics.wrote("Service");
        metrics.polled(true);
        metrics.conditions(Kind::TailnetEgress, Some("tailnet-system"), "a", [("Ready", "True")]);
        let text = text(&registry);
        let mut found: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .map(|line| {
                let (name, r#type) = line.split_once(' ').unwrap();
                if r#type == "counter" {
                    format!("{name}_total {type}")
                } else {
                    format!("{name} {type}")
                }
            })
            .collect();
        found.sort();
        let mut listed: Vec<String> = METRICS
            .iter()
            .map(|(name, r#type, _, _)| format!("{name} {type}"))
            .collect();
        listed.sort();
        assert_eq!(found, listed);
    }

    #[test]
    fn a_deleted_resource_leaves_no_series() {
        let (metrics, registry) = Metrics::new();
        metrics.conditions(
            Kind::TailnetEgress,
            Some("ns"),
            "a",
            [("Ready", "False"), ("Accepted", "True")],
        );
        metrics.conditions(Kind::TailnetEgress, Some("ns"), "b", [("Ready", "True")]);
        assert!(
            text(&registry).contains(r#"type="Accepted",status="True"} 1"#),
            "{}",
            text(&registry)
        );
        metrics.forget(Kind::TailnetEgress, Some("ns"), "a");
        let text = text(&registry);
        assert!(!text.contains(r#"name="a""#), "{text}");
        assert!(
            text.contains(r#"tailnet_resource_ready{kind="TailnetEgress",namespace="ns",name="b"} 1"#),
            "{text}"
        );
    }
}
