//! The nodes of an egress or ingress in Headscale: they get their names back.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use parking_lot::Mutex;
use tailnet_headscale::Id;

use crate::agents::Observation;
use crate::context::Context;
use crate::desired::node_names::{OwnNode, renames};

/// How long a node that was renamed (or could not be) is left alone: Headscale's list must be read again first.
const RENAME_PAUSE: Duration = Duration::from_secs(60);

/// Nodes that were renamed, or could not be, and until when they are left alone.
#[derive(Default)]
pub(crate) struct Renamed(Mutex<HashMap<String, Instant>>);

/// Gives nodes their names back that had to start as `name-1` while their predecessor was there. Best effort: the name is
/// a comfort, the connection does not depend on it. `owner` is for the log.
pub(crate) async fn rename(
    context: &Context,
    tailnet: &str,
    owner: &str,
    pods: &[Arc<Pod>],
    tag: &str,
    hostnames: &[String],
    renamed: &Renamed,
) {
    let (Some(client), Some(observed)) = (context.hub.client(tailnet), context.hub.facts(tailnet)) else {
        return;
    };
    let ours: BTreeSet<String> = pods
        .iter()
        .filter_map(|pod| match context.agents.of(&pod.uid()?)? {
            Observation::Status(status) => Some(status.node?.id),
            Observation::Failed(_) => None,
        })
        .collect();
    let own: Vec<OwnNode> = observed
        .nodes
        .iter()
        .filter(|node| ours.contains(node.id.as_str()) && node.tags.iter().any(|found| found == tag))
        .map(|node| OwnNode {
            id: node.id.to_string(),
            given_name: node.given_name.clone(),
        })
        .collect();
    let taken: BTreeSet<String> = observed.nodes.iter().map(|node| node.given_name.clone()).collect();
    for (id, name) in renames(&own, &taken, hostnames) {
        {
            let mut renamed = renamed.0.lock();
            let now = Instant::now();
            renamed.retain(|_, until| *until > now);
            if renamed.contains_key(&id) {
                continue;
            }
            renamed.insert(id.clone(), now + RENAME_PAUSE);
        }
        match client.rename_node(&Id::new(&id), &name).await {
            Ok(_) => tracing::info!(owner, node = id, name, "node renamed"),
            Err(error) => tracing::warn!(owner, node = id, name, %error, "node not renamed; tried again later"),
        }
    }
}
