//! What the running agents of an egress say.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailnet_crds::TailnetEgress;
use tailnet_crds::agent::AgentStatus;
use tailnet_crds::types::NodeStatus;
use tailnet_headscale::Node;

use super::super::Progress;
use super::super::workload;
use crate::agents::Observation;
use crate::context::Context;
use crate::target_state::AgentView;

/// One running agent.
pub(super) struct Seen {
    /// Its Pod.
    pub(super) pod: String,
    /// It is the node of a former tag or login server, until a newer Pod takes its place.
    pub(super) former: bool,
    /// What it last said; None before the first answer.
    pub(super) said: Option<Observation>,
}

impl Seen {
    pub(super) fn status(&self) -> Option<&AgentStatus> {
        match &self.said {
            Some(Observation::Status(status)) => Some(status),
            Some(Observation::Failed(_)) | None => None,
        }
    }
}

/// What each Pod's agent last said, `identity` being the node identity that the object asks for. Pods on their way out do not
/// count, and while one is ready, those of the same identity that are not ready (yet) carry no connections and do not count
/// either.
pub(super) fn seen(context: &Context, pods: &[Arc<Pod>], identity: Option<&str>) -> Vec<Seen> {
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

/// An agent whose node was deleted in Headscale. Its session there stays open, so it calls itself online until it asks, which
/// is up to a minute later; its connections are dead at once.
pub(super) fn vanished_node(context: &Context, egress: &TailnetEgress, seen: &[Seen]) -> Option<String> {
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
pub(super) fn other_tags(nodes: &[Node], progress: &Progress, seen: &[Seen]) -> Option<String> {
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

/// What the targets' states rest on. What agents of a former node identity reach says nothing of the one that is asked for.
pub(super) fn views<'a>(seen: &'a [Seen], config_sha256: Option<&str>) -> Vec<AgentView<'a>> {
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

/// The agents' nodes, by id, with Headscale's word where it has one.
pub(super) fn node_statuses(seen: &[Seen], nodes: Option<&[Node]>) -> Vec<NodeStatus> {
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
    fn a_tag_that_was_changed_in_headscale_is_named() {
        let nodes: Vec<Node> = serde_json::from_value(json!([
            { "id": "9", "givenName": "team-a", "online": true, "tags": ["tag:other"] },
        ]))
        .unwrap();
        let mut progress = super::super::super::refused("", String::new());
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
