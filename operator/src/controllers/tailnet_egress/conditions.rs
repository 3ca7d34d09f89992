//! The status of an egress: conditions, nodes and targets from what was seen.

mod agents;
mod dns_ready;
mod policy_ready;
mod routes_ready;
mod targets;
mod workload_ready;

use std::time::Duration;

use jiff::Timestamp;
use tailnet_crds::conditions::condition::{
    ACCEPTED, DNS_READY, KEY_READY, POLICY_READY, READY, ROUTES_READY, WORKLOAD_READY,
};
use tailnet_crds::conditions::reason;
use tailnet_crds::{Tailnet, TailnetEgress, TailnetEgressStatus};

use super::{Progress, workload};
use crate::agents::Observation;
use crate::context::Context;
use crate::controllers::key_ready;
use crate::status::{Conditions, Truth};

use agents::{node_statuses, other_tags, seen, vanished_node};
use dns_ready::dns_ready;
use policy_ready::policy_ready;
use routes_ready::routes_ready;
use targets::{targets, unaccepted_targets};
use workload_ready::workload_ready;

/// The status to write, and the time after which a kept observation must be looked at again.
pub(super) fn status(
    context: &Context,
    egress: &TailnetEgress,
    tailnet: Option<&Tailnet>,
    progress: &Progress,
    now: Timestamp,
) -> (TailnetEgressStatus, Option<Duration>) {
    let before = egress.status.clone().unwrap_or_default();
    let mut conditions = Conditions::new(egress.metadata.generation, &before.conditions, now);
    let deployment = workload::deployment(context, egress);
    match &progress.refused {
        None => conditions.set(ACCEPTED, Truth::True, reason::VALID, "all rules are kept"),
        Some((reason::CLAIMS_NOT_RECORDED, message)) => {
            conditions.set(ACCEPTED, Truth::Unknown, reason::CLAIMS_NOT_RECORDED, message);
        }
        Some((reason, message)) => conditions.set(ACCEPTED, Truth::False, reason, message),
    }
    if progress.refused.is_some() && deployment.is_none() {
        let nothing = match egress.metadata.deletion_timestamp {
            Some(_) => "nothing is there any more: the object is being deleted",
            None => "nothing is made until the object is accepted",
        };
        for r#type in [KEY_READY, WORKLOAD_READY, POLICY_READY, ROUTES_READY, DNS_READY] {
            conditions.set(r#type, Truth::Unknown, reason::NOT_ACCEPTED, nothing);
        }
        ready(&mut conditions);
        let targets = unaccepted_targets(context, egress, nothing, &before.targets, now);
        return (
            TailnetEgressStatus {
                conditions: conditions.finish(),
                nodes: Vec::new(),
                targets,
            },
            None,
        );
    }

    let settling = context.settling();
    let pods = workload::pods(context, egress);
    let seen = seen(context, &pods, progress.node_identity.as_deref());
    let observed = context.hub.facts(&egress.spec.tailnet_ref.name);
    let reachable = context.hub.client(&egress.spec.tailnet_ref.name).is_some();
    let nodes = observed.as_ref().map(|observed| observed.nodes.as_slice());

    key_ready::set(&mut conditions, progress.key.as_ref());
    workload_ready(
        &mut conditions,
        context,
        progress,
        deployment.as_deref(),
        &pods,
        &seen,
        vanished_node(context, egress, &seen),
        nodes.and_then(|nodes| other_tags(nodes, progress, &seen)),
    );
    let mut kept = false;
    let targets = targets(
        context,
        egress,
        progress,
        observed.as_deref(),
        &seen,
        &before.targets,
        settling.is_some(),
        now,
        &mut kept,
    );
    let tag = tag_for_messages(egress, progress);
    if kept || (settling.is_some() && observed.is_none()) {
        kept = true;
        conditions.keep(POLICY_READY, reason::UNKNOWN, "the operator has just started");
        conditions.keep(ROUTES_READY, reason::UNKNOWN, "the operator has just started");
    } else {
        policy_ready(&mut conditions, observed.as_deref(), &tag, &targets);
        routes_ready(&mut conditions, &targets, reachable);
    }
    dns_ready(&mut conditions, context, egress, tailnet);
    ready(&mut conditions);
    let nodes = node_statuses(&seen, nodes);
    let nodes = if nodes.is_empty() && settling.is_some() {
        before.nodes
    } else {
        nodes
    };
    let status = TailnetEgressStatus {
        conditions: conditions.finish(),
        nodes,
        targets,
    };
    (status, settling.filter(|_| kept))
}

/// Whether a running agent has not loaded the newest configuration yet.
pub(super) fn any_behind(context: &Context, egress: &TailnetEgress, progress: &Progress) -> bool {
    let Some(wanted) = &progress.config_sha256 else {
        return false;
    };
    let pods = workload::pods(context, egress);
    seen(context, &pods, progress.node_identity.as_deref())
        .iter()
        .filter(|seen| !seen.former)
        .any(|seen| matches!(&seen.said, Some(Observation::Status(status)) if status.config_sha256 != *wanted))
}

fn tag_for_messages(egress: &TailnetEgress, progress: &Progress) -> String {
    if progress.tag.is_empty() {
        egress
            .spec
            .tag
            .as_ref()
            .map(|tag| tag.as_str().to_owned())
            .unwrap_or_default()
    } else {
        progress.tag.clone()
    }
}

fn ready(conditions: &mut Conditions) {
    let order = [
        ACCEPTED,
        KEY_READY,
        WORKLOAD_READY,
        POLICY_READY,
        ROUTES_READY,
        DNS_READY,
    ];
    match conditions.first_not_true(&order).cloned() {
        None => conditions.set(
            READY,
            Truth::True,
            reason::READY_REASON,
            "every target is routed, granted and listened for",
        ),
        Some(first) => {
            let truth = if first.status == "Unknown" {
                Truth::Unknown
            } else {
                Truth::False
            };
            let reason = if first.type_ == ACCEPTED {
                reason::NOT_ACCEPTED
            } else {
                first.reason.as_str()
            };
            conditions.set(READY, truth, reason, format!("{}: {}", first.type_, first.message));
        }
    }
}
