//! The status of an egress: conditions, nodes and targets from what was seen.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tailnet_crds::agent::AgentStatus;
use tailnet_crds::conditions::condition::{
    ACCEPTED, DNS_READY, KEY_READY, POLICY_READY, READY, ROUTES_READY, WORKLOAD_READY,
};
use tailnet_crds::conditions::reason;
use tailnet_crds::types::NodeStatus;
use tailnet_crds::{Tailnet, TailnetEgress, TailnetEgressStatus, TargetState, TargetStatus};
use tailnet_headscale::Node;
use tailnet_policies::facts::Posture;

use super::workload::{self, Workload};
use super::{EgressError, Progress};
use crate::agents::Observation;
use crate::children::ChildError;
use crate::context::Context;
use crate::facts;
use crate::headscale_clients::Observed;
use crate::hosts::{self, Published};
use crate::keys::KeyError;
use crate::status::{Conditions, Truth};
use crate::target_state::{AgentView, Target, Way, classify};

/// Most characters of one target's message in a condition.
const EXCERPT: usize = 300;

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

    key(&mut conditions, progress);
    workload_condition(
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
        policy(&mut conditions, observed.as_deref(), &tag, &targets);
        routes(&mut conditions, &targets, reachable);
    }
    dns(&mut conditions, context, egress, tailnet);
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

/// One running agent.
struct Seen {
    /// Its Pod.
    pod: String,
    /// It is the node of a former tag or login server, until a newer Pod takes its place.
    former: bool,
    /// What it last said; None before the first answer.
    said: Option<Observation>,
}

impl Seen {
    fn status(&self) -> Option<&AgentStatus> {
        match &self.said {
            Some(Observation::Status(status)) => Some(status),
            Some(Observation::Failed(_)) | None => None,
        }
    }
}

/// What each Pod's agent last said, `identity` being the node identity that the object asks for. Pods on their way out do not
/// count, and while one is ready, those of the same identity that are not ready (yet) carry no connections and do not count
/// either.
fn seen(context: &Context, pods: &[Arc<Pod>], identity: Option<&str>) -> Vec<Seen> {
    let running: Vec<&Arc<Pod>> = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"))
        .collect();
    let is_former = |pod: &Pod| identity.is_some_and(|wanted| workload::node_identity(pod) != Some(wanted));
    let any_ready = |former: bool| {
        running
            .iter()
            .any(|pod| is_former(pod) == former && workload::is_ready(pod))
    };
    let (ready, former_ready) = (any_ready(false), any_ready(true));
    running
        .into_iter()
        .map(|pod| (pod, is_former(pod)))
        .filter(|(pod, former)| !(if *former { former_ready } else { ready }) || workload::is_ready(pod))
        .map(|(pod, former)| Seen {
            pod: pod.name_any(),
            former,
            said: pod.uid().and_then(|uid| context.agents.of(&uid)),
        })
        .collect()
}

fn key(conditions: &mut Conditions, progress: &Progress) {
    match &progress.key {
        Some(Ok(key)) => conditions.set(
            KEY_READY,
            Truth::True,
            reason::KEY_READY_REASON,
            format!(
                "pre-auth key {} for {} is valid until {}",
                key.prefix,
                key.tags.join(", "),
                key.expires_at
            ),
        ),
        Some(Err(error)) => conditions.set(KEY_READY, key_truth(error), error.reason(), error.to_string()),
        None => conditions.keep(KEY_READY, reason::UNKNOWN, "the key was not looked at"),
    }
}

fn key_truth(error: &KeyError) -> Truth {
    match error {
        KeyError::Api { .. } => Truth::Unknown,
        _ => Truth::False,
    }
}

/// An agent whose node was deleted in Headscale. Its session there stays open, so it calls itself online until it asks, which
/// is up to a minute later; its connections are dead at once.
fn vanished_node(context: &Context, egress: &TailnetEgress, seen: &[Seen]) -> Option<String> {
    seen.iter().filter(|seen| !seen.former).find_map(|seen| {
        let node = seen.status()?.node.as_ref()?;
        context
            .hub
            .has_vanished(&egress.spec.tailnet_ref.name, &node.id, Timestamp::now())
            .then(|| {
                format!(
                    "Headscale has deleted node {} ({}) of agent {}; the agent joins again by itself within a minute",
                    node.name, node.id, seen.pod
                )
            })
    })
}

/// An agent whose node has, in Headscale, not the tag that it joined with.
fn other_tags(nodes: &[Node], progress: &Progress, seen: &[Seen]) -> Option<String> {
    progress.node_identity.as_ref()?;
    let tag = &progress.tag;
    seen.iter().filter(|seen| !seen.former).find_map(|seen| {
        let own = seen.status()?.node.as_ref()?;
        let node = nodes.iter().find(|node| node.id.as_str() == own.id)?;
        (!node.tags.contains(tag)).then(|| {
            format!(
                "node {} of agent {} has the tags [{}] in Headscale instead of {tag}: give it back (headscale nodes tag --identifier {} --tags {tag}) or delete the Pod",
                node.given_name,
                seen.pod,
                node.tags.join(", "),
                node.id
            )
        })
    })
}

#[allow(clippy::too_many_arguments)] // Private, called once: a struct would only move the list.
fn workload_condition(
    conditions: &mut Conditions,
    context: &Context,
    progress: &Progress,
    deployment: Option<&k8s_openapi::api::apps::v1::Deployment>,
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

#[allow(clippy::too_many_arguments)] // Private, called once: a struct would only move the list.
fn targets(
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

/// What the targets' states rest on. What agents of a former node identity reach says nothing of the one that is asked for.
fn views<'a>(seen: &'a [Seen], config_sha256: Option<&str>) -> Vec<AgentView<'a>> {
    let any_wanted = seen.iter().any(|seen| !seen.former);
    seen.iter()
        .filter(|seen| !(any_wanted && seen.former))
        .map(|seen| match seen.status() {
            _ if seen.former => AgentView::Former,
            Some(status) if config_sha256.is_some_and(|wanted| wanted != status.config_sha256) => AgentView::Behind,
            Some(status) => AgentView::Current(status),
            None => AgentView::Silent,
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

fn unaccepted_targets(
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

fn policy(conditions: &mut Conditions, observed: Option<&Observed>, tag: &str, targets: &[TargetStatus]) {
    let mut set = |truth, reason, message: String| conditions.set(POLICY_READY, truth, reason, message);
    let Some(observed) = observed else {
        return set(
            Truth::Unknown,
            reason::CONTROL_PLANE_UNREACHABLE,
            "Headscale's policy has not been read yet".to_owned(),
        );
    };
    if let Some(error) = &observed.policy_error {
        return set(
            Truth::Unknown,
            reason::POLICY_UNREADABLE,
            format!("Headscale's policy cannot be read: {error}"),
        );
    }
    let allow_all = facts::posture(observed) == Posture::AllowAll;
    // Before the grants: Headscale refuses a policy with a grant for a tag that has no owner.
    if !allow_all && !observed.policy.tag_owners.contains_key(tag) {
        let message = format!(
            "{tag} has no owner in Headscale's policy, so no rule can name it: add \"{tag}\": [] to its tagOwners, and a grant"
        );
        return set(Truth::False, reason::TAG_NOT_OWNED, message);
    }
    let without = in_state(targets, TargetState::NoGrant);
    if !without.is_empty() {
        return set(Truth::False, TargetState::NoGrant.as_str(), without);
    }
    if allow_all {
        let message = "Headscale's policy has no rules, so every node reaches every other";
        return set(Truth::True, reason::ALLOW_ALL, message.to_owned());
    }
    if targets.iter().all(|target| target.state == TargetState::Unknown) {
        let message = "no agent has said yet which targets the policy lets it reach";
        return set(Truth::Unknown, reason::UNKNOWN, message.to_owned());
    }
    set(
        Truth::True,
        reason::GRANTED,
        format!("{tag} has an owner, and no routed target is without a grant"),
    );
}

fn routes(conditions: &mut Conditions, targets: &[TargetStatus], reachable: bool) {
    let mut set = |truth, reason: &str, message: String| conditions.set(ROUTES_READY, truth, reason, message);
    if !reachable {
        let message = "Headscale cannot be reached now; the states of the targets are those of the last read";
        return set(Truth::Unknown, reason::CONTROL_PLANE_UNREACHABLE, message.to_owned());
    }
    for state in [
        TargetState::NotAdvertised,
        TargetState::NotApproved,
        TargetState::NotServing,
        TargetState::DialFailed,
    ] {
        let named = in_state(targets, state);
        if !named.is_empty() {
            return set(Truth::False, state.as_str(), named);
        }
    }
    let unknown = in_state(targets, TargetState::Unknown);
    if !unknown.is_empty() {
        return set(Truth::Unknown, reason::UNKNOWN, unknown);
    }
    set(
        Truth::True,
        reason::ROUTED,
        format!("a live router serves each of {} targets", targets.len()),
    );
}

/// The targets in `state` with the beginning of their messages: `db: …; api: …`.
fn in_state(targets: &[TargetStatus], state: TargetState) -> String {
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

fn dns(conditions: &mut Conditions, context: &Context, egress: &TailnetEgress, tailnet: Option<&Tailnet>) {
    let mut set = |truth, reason, message: String| conditions.set(DNS_READY, truth, reason, message);
    let aliases: usize = egress.spec.targets.iter().map(|target| target.aliases.len()).sum();
    if aliases == 0 {
        return set(Truth::True, reason::NO_NAMES, "no target has an alias".to_owned());
    }
    let Some(tailnet) = tailnet else {
        return set(
            Truth::False,
            reason::TAILNET_NOT_FOUND,
            "aliases are published nowhere: there is no Tailnet, and the hosts ConfigMap goes with it".to_owned(),
        );
    };
    match hosts::published(context, tailnet) {
        Published::NotConfigured => set(
            Truth::False,
            reason::NO_HOSTS_CONFIG_MAP,
            format!(
                "aliases are published nowhere: set spec.dns.hostsConfigMap of Tailnet {}",
                tailnet.name_any()
            ),
        ),
        Published::Missing { name } => {
            set(
                Truth::False,
                reason::NOT_PUBLISHED,
                format!("ConfigMap {name} with the hosts file is not there yet"),
            );
        }
        Published::Foreign { name, holder } => set(
            Truth::False,
            reason::HOSTS_NOT_OURS,
            format!(
                "ConfigMap {name} is not ours (it belongs to {holder}) and is left alone: remove it, or name another one in spec.dns.hostsConfigMap"
            ),
        ),
        Published::Ours { name, text } => {
            let missing = hosts::unpublished(context, egress, &text);
            if missing.is_empty() {
                set(
                    Truth::True,
                    reason::PUBLISHED,
                    match aliases {
                        1 => format!("1 alias is in ConfigMap {name}"),
                        _ => format!("{aliases} aliases are in ConfigMap {name}"),
                    },
                );
            } else {
                set(
                    Truth::False,
                    reason::NOT_PUBLISHED,
                    format!(
                        "not in ConfigMap {name} yet, or held by another object: {}",
                        missing.join(", ")
                    ),
                );
            }
        }
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

/// The agents' nodes, by id, with Headscale's word where it has one.
fn node_statuses(seen: &[Seen], nodes: Option<&[Node]>) -> Vec<NodeStatus> {
    let mut found: BTreeMap<(usize, String), NodeStatus> = BTreeMap::new();
    for node in seen.iter().filter_map(|seen| seen.status()?.node.as_ref()) {
        let known = nodes.and_then(|nodes| nodes.iter().find(|known| known.id.as_str() == node.id));
        let status = NodeStatus {
            id: node.id.clone(),
            name: known.map_or_else(|| node.name.clone(), |known| known.given_name.clone()),
            ipv4: node.ipv4.clone(),
            ipv6: node.ipv6.clone(),
            online: known.map_or(node.online, |known| known.online),
        };
        found.insert((node.id.len(), node.id.clone()), status);
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tailnet_crds::agent::AgentNode;

    fn seen(former: bool, config: &str) -> Seen {
        let status = AgentStatus {
            config_sha256: config.to_owned(),
            node: Some(AgentNode {
                id: "9".to_owned(),
                ..AgentNode::default()
            }),
            ..AgentStatus::default()
        };
        Seen {
            pod: "p".to_owned(),
            former,
            said: Some(Observation::Status(Box::new(status))),
        }
    }

    #[test]
    fn only_agents_of_the_wanted_identity_speak_for_the_targets() {
        assert!(matches!(views(&[seen(true, "a")], Some("a"))[..], [AgentView::Former]));
        let both = [seen(true, "a"), seen(false, "a")];
        assert!(matches!(views(&both, Some("a"))[..], [AgentView::Current(_)]));
        let silent = Seen {
            said: None,
            ..seen(false, "a")
        };
        assert!(matches!(
            views(&[seen(true, "a"), silent], Some("a"))[..],
            [AgentView::Silent]
        ));
        assert!(matches!(views(&[seen(false, "b")], Some("a"))[..], [AgentView::Behind]));
    }

    #[test]
    fn a_rollout_of_another_node_or_in_trouble_is_not_ready() {
        assert_eq!(rolling_out(1, None, false).0, Truth::True);
        assert_eq!(rolling_out(1, None, true).0, Truth::False);
        let (truth, message) = rolling_out(1, Some("Pod p: CrashLoopBackOff".to_owned()), false);
        assert_eq!(truth, Truth::False);
        assert!(message.ends_with("CrashLoopBackOff"), "{message}");
    }

    #[test]
    fn a_tag_that_was_changed_in_headscale_is_named() {
        let nodes: Vec<Node> = serde_json::from_value(json!([
            { "id": "9", "givenName": "team-a", "online": true, "tags": ["tag:other"] },
        ]))
        .unwrap();
        let mut progress = super::super::refused("", String::new());
        progress.tag = "tag:a".to_owned();
        let asked = |progress: &Progress, former| other_tags(&nodes, progress, &[seen(former, "a")]);
        assert_eq!(asked(&progress, false), None, "what runs is kept as it is");
        progress.node_identity = Some("i".to_owned());
        assert_eq!(asked(&progress, true), None, "it is replaced anyway");
        let message = asked(&progress, false).unwrap();
        assert!(message.contains("--identifier 9 --tags tag:a"), "{message}");
        progress.tag = "tag:other".to_owned();
        assert_eq!(asked(&progress, false), None);
    }
}
