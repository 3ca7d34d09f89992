//! The agents of an egress as the cluster sees them.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::TailnetEgress;
use tailnet_crds::names::egress as names;

use crate::agents::Observation;
use crate::context::Context;
use crate::desired::tailnet_egress::NODE_IDENTITY;
use crate::ownership::{is_owned_by, labelled_egress};

/// The Deployment of `egress`, if it is its own.
pub(super) fn deployment(context: &Context, egress: &TailnetEgress) -> Option<Arc<Deployment>> {
    let uid = egress.uid()?;
    let reference = ObjectRef::new(&names::deployment(&egress.name_any())).within(context.namespace());
    context
        .stores
        .deployments
        .get(&reference)
        .filter(|deployment| is_owned_by(&deployment.metadata, &uid))
}

/// The Pods of `egress`, by name. A label is anybody's to set, so only those of its own namespace.
pub(super) fn pods(context: &Context, egress: &TailnetEgress) -> Vec<Arc<Pod>> {
    let wanted = ObjectRef::from_obj(egress);
    let mut pods: Vec<Arc<Pod>> = context
        .stores
        .pods
        .state()
        .into_iter()
        .filter(|pod| pod.namespace() == egress.namespace() && labelled_egress(pod.as_ref()).as_ref() == Some(&wanted))
        .collect();
    pods.sort_by_key(|pod| pod.name_any());
    pods
}

/// The node identity that the Pod's agent was made for.
pub(super) fn node_identity(pod: &Pod) -> Option<&str> {
    pod.annotations().get(NODE_IDENTITY).map(String::as_str)
}

/// Whether the Pod's Ready condition is True.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// How the agents are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// As many as asked for are available, all of the newest kind.
    Available { replicas: i32 },
    /// As many as asked for are available, but some are still of an older kind. `trouble`: why newer ones do not take their
    /// place.
    RollingOut { replicas: i32, trouble: Option<String> },
    /// Fewer are.
    Short {
        available: i32,
        replicas: i32,
        trouble: Option<String>,
    },
}

/// How the agents of `deployment` are. `observed` gives what an agent says, by Pod UID.
pub(crate) fn state(
    deployment: &Deployment,
    pods: &[Arc<Pod>],
    observed: impl Fn(&str) -> Option<Observation>,
) -> Workload {
    let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let seen = status.observed_generation >= deployment.metadata.generation;
    let available = status.available_replicas.unwrap_or(0);
    let updated = status.updated_replicas.unwrap_or(0);
    // As `kubectl rollout status` has it: a new Pod that does not become available counts as updated too.
    let rolled_out = seen
        && updated >= replicas
        && status.replicas.unwrap_or(0) <= updated
        && status.unavailable_replicas.unwrap_or(0) == 0;
    if available >= replicas && rolled_out {
        return Workload::Available { replicas };
    }
    let rolling = available >= replicas;
    let failure = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
        .and_then(|condition| condition.message.clone());
    let trouble = failure.or_else(|| {
        pods.iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            // While the old ones serve, only the new ones can be in trouble.
            .filter(|pod| !rolling || !is_ready(pod))
            .find_map(|pod| {
                pod_trouble(pod).or_else(|| match observed(&pod.uid()?)? {
                    Observation::Status(status) => {
                        let why = status.login_error.clone()?;
                        Some(format!(
                            "agent {} is not connected to the tailnet: {why}",
                            pod.name_any()
                        ))
                    }
                    Observation::Failed(_) => None,
                })
            })
    });
    if rolling {
        // Whatever it is: nothing came of it in the time that a rollout may take.
        let given_up = status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == "Progressing" && condition.status == "False" && seen)
            .and_then(|condition| condition.message.clone());
        return Workload::RollingOut {
            replicas,
            trouble: trouble.or(given_up),
        };
    }
    Workload::Short {
        available,
        replicas,
        trouble,
    }
}

fn pod_trouble(pod: &Pod) -> Option<String> {
    let name = pod.name_any();
    let status = pod.status.as_ref()?;
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        if matches!(reason, "ContainerCreating" | "PodInitializing") {
            return None;
        }
        let said = waiting
            .message
            .as_deref()
            .map(|message| format!(": {message}"))
            .unwrap_or_default();
        Some(format!("Pod {name}: {reason}{said}"))
    });
    waiting.or_else(|| ended(pod)).or_else(|| {
        let unscheduled = status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
        Some(format!(
            "Pod {name} is not scheduled: {}",
            unscheduled.message.as_deref().unwrap_or("no reason given")
        ))
    })
}

/// How the agent of a Pod ended, now or before the restart from which it has not become ready.
fn ended(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let (container, end) = status.container_statuses.iter().flatten().find_map(|container| {
        let now = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        let before = container
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        let end = now.or(before.filter(|_| !container.ready))?;
        Some((container, end))
    })?;
    let why = end.reason.as_deref().unwrap_or("no reason given");
    Some(format!(
        "Pod {}: container {} ended with exit code {} ({why})",
        pod.name_any(),
        container.name,
        end.exit_code
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tailnet_crds::agent::AgentStatus;

    fn deployment(status: serde_json::Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": { "name": "d", "generation": 2 },
            "spec": { "replicas": 2, "selector": {}, "template": {} },
            "status": status,
        }))
        .unwrap()
    }

    fn pod(status: serde_json::Value) -> Vec<Arc<Pod>> {
        vec![Arc::new(
            serde_json::from_value(json!({ "metadata": { "name": "p", "uid": "u" }, "status": status })).unwrap(),
        )]
    }

    #[test]
    fn available_counts_even_while_rolling() {
        let rolling = Workload::RollingOut {
            replicas: 2,
            trouble: None,
        };
        let state_of = |status: serde_json::Value| state(&deployment(status), &[], |_| None);
        let full = json!({ "observedGeneration": 2, "replicas": 2, "availableReplicas": 2, "updatedReplicas": 2 });
        assert_eq!(state_of(full), Workload::Available { replicas: 2 });
        let old = json!({ "observedGeneration": 1, "replicas": 2, "availableReplicas": 2, "updatedReplicas": 2 });
        assert_eq!(state_of(old), rolling);
        let some = json!({ "observedGeneration": 2, "replicas": 3, "availableReplicas": 3, "updatedReplicas": 1 });
        assert_eq!(state_of(some), rolling);
        let last = json!({ "observedGeneration": 2, "replicas": 3, "availableReplicas": 3, "updatedReplicas": 2 });
        assert_eq!(state_of(last), rolling, "an old one is still there");
        let fewer = json!({ "observedGeneration": 2, "replicas": 3, "availableReplicas": 3, "updatedReplicas": 3 });
        assert_eq!(state_of(fewer), Workload::Available { replicas: 2 }, "scaled down");
    }

    #[test]
    fn a_new_pod_that_crashes_is_no_success() {
        let stuck = deployment(json!({
            "observedGeneration": 2, "replicas": 3, "availableReplicas": 2, "updatedReplicas": 2, "unavailableReplicas": 1,
            "conditions": [{ "type": "Progressing", "status": "False", "message": "has timed out progressing" }],
        }));
        let trouble = |pods: &[Arc<Pod>]| match state(&stuck, pods, |_| None) {
            Workload::RollingOut { replicas: 2, trouble } => trouble,
            other => panic!("{other:?}"),
        };
        let crashed = |ready: bool| {
            pod(json!({
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
                "containerStatuses": [{
                    "name": "agent", "image": "i", "imageID": "", "ready": ready, "restartCount": 3,
                    "state": { "running": {} },
                    "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
                }],
            }))
        };
        assert_eq!(
            trouble(&crashed(false)).as_deref(),
            Some("Pod p: container agent ended with exit code 137 (OOMKilled)")
        );
        assert_eq!(trouble(&crashed(true)).as_deref(), Some("has timed out progressing"));
    }

    #[test]
    fn the_trouble_is_named() {
        let short = deployment(json!({ "observedGeneration": 2, "availableReplicas": 1 }));
        let trouble = |pods: &[Arc<Pod>], says: Option<Observation>| match state(&short, pods, |_| says.clone()) {
            Workload::Short {
                available: 1,
                replicas: 2,
                trouble,
            } => trouble,
            other => panic!("{other:?}"),
        };
        let waiting = pod(json!({ "containerStatuses": [{
            "name": "agent", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } },
        }] }));
        assert_eq!(
            trouble(&waiting, None).as_deref(),
            Some("Pod p: ImagePullBackOff: no such image")
        );
        let pending =
            pod(json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "0/1 nodes" }] }));
        assert_eq!(
            trouble(&pending, None).as_deref(),
            Some("Pod p is not scheduled: 0/1 nodes")
        );
        let refused = AgentStatus {
            login_error: Some("authkey expired".into()),
            ..AgentStatus::default()
        };
        let says = Some(Observation::Status(Box::new(refused)));
        let text = trouble(&pod(json!({})), says).unwrap();
        assert!(text.ends_with("authkey expired"), "{text}");
        assert_eq!(trouble(&pod(json!({})), None), None);
    }
}
