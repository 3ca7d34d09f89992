//! What people may set on agent Pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::references::LocalRef;

/// Settings of agent Pods. On a Tailnet they are the default of all its agents; on a CR they override field by field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentSettings {
    /// CPU and memory of the agent container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Node labels that the Pod needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints that the Pod tolerates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Affinity of the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Priority class of the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// How replicas spread over the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Further labels of the Pod. Keys of the operator are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Further annotations of the Pod. Keys of the operator are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// Secrets with registry credentials, in the agent's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Option<Vec<LocalRef>>,
    /// How much the agent logs. `info` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
}

impl AgentSettings {
    /// These settings with every field that `over` sets taken from `over`.
    pub fn overridden_by(&self, over: Option<&Self>) -> Self {
        let Some(over) = over.cloned() else { return self.clone() };
        let base = self.clone();
        Self {
            resources: over.resources.or(base.resources),
            node_selector: over.node_selector.or(base.node_selector),
            tolerations: over.tolerations.or(base.tolerations),
            affinity: over.affinity.or(base.affinity),
            priority_class_name: over.priority_class_name.or(base.priority_class_name),
            topology_spread_constraints: over.topology_spread_constraints.or(base.topology_spread_constraints),
            pod_labels: over.pod_labels.or(base.pod_labels),
            pod_annotations: over.pod_annotations.or(base.pod_annotations),
            image_pull_secrets: over.image_pull_secrets.or(base.image_pull_secrets),
            log_level: over.log_level.or(base.log_level),
        }
    }

    /// Names of the fields that are set, as written in YAML.
    pub fn fields_set(&self) -> Vec<&'static str> {
        [
            ("resources", self.resources.is_some()),
            ("nodeSelector", self.node_selector.is_some()),
            ("tolerations", self.tolerations.is_some()),
            ("affinity", self.affinity.is_some()),
            ("priorityClassName", self.priority_class_name.is_some()),
            ("topologySpreadConstraints", self.topology_spread_constraints.is_some()),
            ("podLabels", self.pod_labels.is_some()),
            ("podAnnotations", self.pod_annotations.is_some()),
            ("imagePullSecrets", self.image_pull_secrets.is_some()),
            ("logLevel", self.log_level.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, set)| set.then_some(name))
        .collect()
    }
}

/// How much a process logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// And what may become a failure.
    Warn,
    /// And what happens.
    #[default]
    Info,
    /// And how.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// As written in YAML and in log filters.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
