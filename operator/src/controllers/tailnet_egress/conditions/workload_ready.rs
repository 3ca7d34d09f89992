//! `WorkloadReady`: are the agents there, and are they who they should be.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use tailnet_crds::conditions::condition::WORKLOAD_READY;
use tailnet_crds::conditions::reason;

use super::super::workload::{self, Workload};
use super::super::{EgressError, Progress};
use super::agents::Seen;
use crate::children::ChildError;
use crate::context::Context;
use crate::status::{Conditions, Truth};

#[allow(clippy::too_many_arguments)] // Private, called once: a struct would only move the list.
pub(super) fn workload_ready(
    conditions: &mut Conditions,
    context: &Context,
    progress: &Progress,
    deployment: Option<&Deployment>,
    pods: &[Arc<Pod>],
    seen: &[Seen],
    vanished: Option<String>,
    other_tags: Option<String>,
) {
    let mut set = |truth, reason, message: String| conditions.set(WORKLOAD_READY, truth, reason, message);
    // What a person must resolve goes before what is retried.
    let worst = progress.problems.iter().min_by_key(|problem| match problem {
        EgressError::Child(ChildError::Foreign { .. }) => 0,
        EgressError::Ca(_) => 1,
        _ => 2,
    });
    if let Some(problem) = worst {
        let reason = match problem {
            EgressError::Child(ChildError::Foreign { .. }) => reason::CHILD_NOT_OURS,
            EgressError::Ca(_) => reason::CA_NOT_FOUND,
            _ => reason::API_SERVER_ERROR,
        };
        return set(Truth::False, reason, problem.to_string());
    }
    let Some(deployment) = deployment else {
        return set(
            Truth::False,
            reason::PROGRESSING,
            "the agents' Deployment is not there yet; it is made once there is a key".to_owned(),
        );
    };
    // Those that are replaced anyway need not take it.
    let mut wanted = seen.iter().filter(|seen| !seen.former);
    let refused = wanted.find_map(|seen| Some((&seen.pod, seen.status()?.config_error.clone()?)));
    if let Some((pod, why)) = refused {
        return set(
            Truth::False,
            reason::CONFIG_REFUSED,
            format!("agent {pod} did not take its newest configuration: {why}"),
        );
    }
    if let Some(message) = vanished {
        return set(Truth::False, reason::UNAVAILABLE, message);
    }
    if let Some(message) = other_tags {
        return set(Truth::False, reason::NODE_TAG_DIFFERS, message);
    }
    match workload::state(deployment, pods, |uid| context.agents.of(uid)) {
        Workload::Available { replicas } => {
            set(
                Truth::True,
                reason::AVAILABLE,
                format!("{replicas} of {replicas} agents are available"),
            );
        }
        Workload::RollingOut { replicas, trouble } => {
            let former = !seen.is_empty() && seen.iter().all(|seen| seen.former);
            let (truth, message) = rolling_out(replicas, trouble, former);
            set(truth, reason::ROLLING_OUT, message);
        }
        Workload::Short {
            available,
            replicas,
            trouble,
        } => {
            let why = trouble.map(|trouble| format!("; {trouble}")).unwrap_or_default();
            set(
                Truth::False,
                reason::UNAVAILABLE,
                format!("{available} of {replicas} agents are available{why}"),
            );
        }
    }
}

/// What `replicas` agents are worth while others are to replace them. `former`: none of them is the node that the object asks
/// for.
fn rolling_out(replicas: i32, trouble: Option<String>, former: bool) -> (Truth, String) {
    let who = if former {
        format!("the {replicas} agents that are available are still nodes of the former tag or login server")
    } else {
        format!("{replicas} agents are available while others replace them")
    };
    match trouble {
        Some(trouble) => (Truth::False, format!("{who}; the new ones do not get there: {trouble}")),
        None => (Truth::from(!former), who),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_of_another_node_or_in_trouble_is_not_ready() {
        assert_eq!(rolling_out(1, None, false).0, Truth::True);
        assert_eq!(rolling_out(1, None, true).0, Truth::False);
        let (truth, message) = rolling_out(1, Some("Pod p: CrashLoopBackOff".to_owned()), false);
        assert_eq!(truth, Truth::False);
        assert!(message.ends_with("CrashLoopBackOff"), "{message}");
    }
}
