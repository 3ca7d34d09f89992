//! The state of each target, as the agents and Headscale tell it.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tailnet_crds::{TailnetEgress, TargetState, TargetStatus};

use super::super::Progress;
use super::agents::{Seen, views};
use super::tag_for_messages;
use crate::context::Context;
use crate::headscale_clients::Observed;
use crate::target_state::{Target, Way, classify};

/// Most characters of one target's message in a condition.
const EXCERPT: usize = 300;

#[allow(clippy::too_many_arguments)] // Private, called once: a struct would only move the list.
pub(super) fn targets(
    context: &Context,
    egress: &TailnetEgress,
    progress: &Progress,
    observed: Option<&Observed>,
    seen: &[Seen],
    before: &[TargetStatus],
    settling: bool,
    now: Timestamp,
    kept: &mut bool,
) -> Vec<TargetStatus> {
    let tag = tag_for_messages(egress, progress);
    let nodes = observed.map(|observed| observed.nodes.as_slice());
    let policy = observed
        .filter(|observed| observed.policy_error.is_none())
        .map(|observed| &observed.policy);
    let views = views(seen, progress.config_sha256.as_deref());
    let addresses = egress.spec.targets.iter().map(|target| target.address.as_str());
    let siblings: Vec<IpAddr> = addresses.filter_map(|address| address.parse().ok()).collect();
    egress
        .spec
        .targets
        .iter()
        .map(|target| {
            let name = target.name.as_str();
            let old = before.iter().find(|old| old.name == name);
            let asked = Target {
                name,
                address: target.address.as_str(),
                port: target.port,
                tag: &tag,
                siblings: &siblings,
                policy,
            };
            let mut way = classify(asked, nodes, &views, old);
            if settling
                && way.state == TargetState::Unknown
                && let Some(old) = old.filter(|old| old.state != TargetState::Unknown)
            {
                *kept = true;
                way = Way {
                    state: old.state,
                    router: old.router.clone(),
                    message: old.message.clone(),
                };
            }
            target_status(context, name, target.port, way, old, now)
        })
        .collect()
}

fn target_status(
    context: &Context,
    name: &str,
    port: i32,
    way: Way,
    old: Option<&TargetStatus>,
    now: Timestamp,
) -> TargetStatus {
    let since = old
        .filter(|old| old.state == way.state)
        .and_then(|old| old.last_transition_time.clone());
    TargetStatus {
        name: name.to_owned(),
        service: Some(format!("{name}.{}.svc", context.namespace())),
        port,
        state: way.state,
        router: way.router,
        message: way.message.map(|message| message.chars().take(1024).collect()),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    }
}

pub(super) fn unaccepted_targets(
    context: &Context,
    egress: &TailnetEgress,
    message: &str,
    before: &[TargetStatus],
    now: Timestamp,
) -> Vec<TargetStatus> {
    egress
        .spec
        .targets
        .iter()
        .map(|target| {
            let way = Way {
                state: TargetState::Unknown,
                router: None,
                message: Some(message.to_owned()),
            };
            let name = target.name.as_str();
            target_status(
                context,
                name,
                target.port,
                way,
                before.iter().find(|old| old.name == name),
                now,
            )
        })
        .collect()
}

/// The targets in `state` with the beginning of their messages: `db: …; api: …`.
pub(super) fn in_state(targets: &[TargetStatus], state: TargetState) -> String {
    let named: Vec<String> = targets
        .iter()
        .filter(|target| target.state == state)
        .map(|target| {
            let message: String = target
                .message
                .as_deref()
                .unwrap_or_default()
                .chars()
                .take(EXCERPT)
                .collect();
            format!("{}: {message}", target.name)
        })
        .collect();
    named.join("; ")
}
