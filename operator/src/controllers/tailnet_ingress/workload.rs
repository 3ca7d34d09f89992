//! The agents of an ingress as the cluster sees them.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::TailnetIngress;
use tailnet_crds::agent::AgentStatus;
use tailnet_crds::names::ingress as names;

use super::Progress;
use crate::agents::Observation;
use crate::context::Context;
use crate::controllers::tailnet_egress::workload::is_ready;
use crate::ownership::{is_owned_by, labelled_ingress};

/// The Deployment of `ingress`, if it is its own.
pub(super) fn deployment(context: &Context, ingress: &TailnetIngress) -> Option<Arc<Deployment>> {
    let uid = ingress.uid()?;
    let namespace = ingress.namespace().unwrap_or_default();
    let reference = ObjectRef::new(&names::deployment(&ingress.name_any())).within(&namespace);
    context
        .stores
        .deployments
        .get(&reference)
        .filter(|deployment| is_owned_by(&deployment.metadata, &uid))
}

/// The Pods of `ingress`, by name. A label is anybody's to set, so only those of its own namespace.
pub(crate) fn pods(context: &Context, ingress: &TailnetIngress) -> Vec<Arc<Pod>> {
    let wanted = ObjectRef::from_obj(ingress);
    let namespace = ingress.namespace();
    let mut pods: Vec<Arc<Pod>> = context
        .stores
        .pods
        .state()
        .into_iter()
        .filter(|pod| pod.namespace() == namespace && labelled_ingress(pod.as_ref()).as_ref() == Some(&wanted))
        .collect();
    pods.sort_by_key(|pod| pod.name_any());
    pods
}

/// What each running agent last said, with the name of its Pod. Pods on their way out do not count, and while one is ready,
/// those that are not do not either.
pub(super) fn seen(context: &Context, pods: &[Arc<Pod>]) -> Vec<(String, AgentStatus)> {
    let running: Vec<&Arc<Pod>> = running(pods).collect();
    let any_ready = running.iter().any(|pod| is_ready(pod));
    running
        .into_iter()
        .filter(|pod| !any_ready || is_ready(pod))
        .filter_map(|pod| match context.agents.of(&pod.uid()?)? {
            Observation::Status(status) => Some((pod.name_any(), *status)),
            Observation::Failed(_) => None,
        })
        .collect()
}

/// Headscale's ids of the nodes whose Pods are ready, as the agents tell them.
pub(crate) fn ready_nodes(context: &Context, ingress: &TailnetIngress) -> BTreeSet<String> {
    pods(context, ingress)
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod))
        .filter_map(|pod| match context.agents.of(&pod.uid()?)? {
            Observation::Status(status) => Some(status.node?.id),
            Observation::Failed(_) => None,
        })
        .collect()
}

/// Whether every agent that runs and is not on its way out says that it has the configuration with this sha256.
pub(super) fn all_have(context: &Context, pods: &[Arc<Pod>], sha256: &str) -> bool {
    running(pods).all(|pod| {
        let said = pod.uid().and_then(|uid| context.agents.of(&uid));
        matches!(said, Some(Observation::Status(status)) if status.config_sha256 == sha256)
    })
}

/// Pods that run and are not on their way out.
fn running(pods: &[Arc<Pod>]) -> impl Iterator<Item = &Arc<Pod>> {
    pods.iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"))
}

/// Whether a running agent has not loaded the newest configuration yet.
pub(super) fn any_behind(context: &Context, ingress: &TailnetIngress, progress: &Progress) -> bool {
    let Some(wanted) = &progress.config_sha256 else {
        return false;
    };
    seen(context, &pods(context, ingress))
        .iter()
        .any(|(_, status)| status.config_sha256 != *wanted)
}
