//! Publishing what was read of a Headscale server: facts ConfigMaps for the admission rules, a Lease as their heartbeat.
//!
//! The ConfigMaps are written only when their content changes, the Lease after every successful read. Format and names:
//! [`tailnet_policies::facts`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tailnet_crds::Tailnet;
use tailnet_crds::names::tailnet::{facts_config_map, facts_lease};
use tailnet_crds::names::{annotation, label};
use tailnet_headscale::Node;
use tailnet_headscale::document::Posture as LivePosture;
use tailnet_policies::facts::{self, Chunk, DATA_KEY, Facts, NodeFacts, PolicyFacts, Posture, RouteFacts};

use crate::access_policy::foreign_owner;
use crate::children::{self, ChildError};
use crate::context::Context;
use crate::headscale_clients::Observed;
use crate::ownership::{is_owned_by, owned_by_tailnet, tailnet_labels};
use crate::settings::FIELD_MANAGER;
use crate::writes::{patch_params, post_params};

/// `holderIdentity` of the heartbeat Lease.
const HOLDER: &str = FIELD_MANAGER;

/// Why the facts are not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A chunk.
    #[error(transparent)]
    Chunk(#[from] ChildError),
    /// More than readers join.
    #[error(
        "the facts of this Headscale take {count} ConfigMaps, more than {} are not read; it has too many nodes",
        facts::MAX_CHUNKS
    )]
    TooLarge {
        /// Number of chunks.
        count: usize,
    },
    /// Somebody else's Lease has the name.
    #[error("Lease {name} exists and is not ours; it is left alone: remove it")]
    ForeignLease {
        /// Its name.
        name: String,
    },
    /// The heartbeat.
    #[error("cannot {verb} Lease {name}: {source}")]
    Lease {
        /// `read`, `create` or `change`.
        verb: &'static str,
        /// Its name.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
}

/// What was published last, by Tailnet.
#[derive(Default)]
pub struct Published {
    facts: Mutex<HashMap<String, Facts>>,
    /// UIDs of our Leases.
    leases: Mutex<HashMap<String, String>>,
}

impl Published {
    /// Forgets a Tailnet that is gone.
    pub fn forget(&self, tailnet: &str) {
        self.facts.lock().remove(tailnet);
        self.leases.lock().remove(tailnet);
    }
}

/// The facts in an observation of the server of `tailnet`.
pub fn of(context: &Context, tailnet: &str, observed: &Observed) -> Facts {
    let mut facts = from_observed(observed);
    let live = observed.policy_text.as_ref().map(|policy| policy.text.as_str());
    facts.policy.foreign_owner = foreign_owner(context, tailnet, live).map(|owner| owner.to_string());
    facts
}

/// The facts in an observation, without those that depend on who asks.
fn from_observed(observed: &Observed) -> Facts {
    let mut facts = Facts {
        version: facts::FORMAT_VERSION,
        server_version: observed.server_version.clone(),
        read_at: observed.read_at.to_string(),
        policy: policy_facts(observed),
        nodes: observed.nodes.iter().map(node_facts).collect(),
        routes: observed.nodes.iter().flat_map(route_facts).collect(),
    };
    facts.normalize();
    facts
}

fn policy_facts(observed: &Observed) -> PolicyFacts {
    let policy = &observed.policy;
    PolicyFacts {
        present: observed.policy_text.is_some(),
        tag_owners: policy.tag_owners.clone(),
        groups: policy.groups.keys().cloned().collect(),
        hosts: policy.hosts.clone(),
        auto_approver_routes: policy.auto_approvers.routes.clone(),
        auto_approver_exit_nodes: policy.auto_approvers.exit_node.clone(),
        default_posture: posture(observed),
        foreign_owner: None,
    }
}

/// What the live policy allows without a rule. A text that cannot be read says nothing, and Headscale goes on with the
/// last one that it understood: Deny is the careful answer.
pub fn posture(observed: &Observed) -> Posture {
    match (observed.policy.posture(), &observed.policy_error) {
        (LivePosture::AllowAll, None) => Posture::AllowAll,
        _ => Posture::Deny,
    }
}

fn node_facts(node: &Node) -> NodeFacts {
    let addresses: Vec<IpAddr> = node.ip_addresses.iter().filter_map(|a| a.parse().ok()).collect();
    // Headscale lists tagged nodes under a pseudo user.
    let user = node
        .user
        .as_ref()
        .filter(|_| node.tags.is_empty())
        .map(|user| user.name.clone());
    NodeFacts {
        id: node.id.to_string(),
        given_name: node.given_name.clone(),
        addresses,
        tags: node.tags.iter().cloned().collect(),
        user: user.filter(|name| !name.is_empty()),
    }
}

fn route_facts(node: &Node) -> Vec<RouteFacts> {
    let prefixes = |list: &[String]| -> BTreeSet<IpNet> { list.iter().filter_map(|p| p.parse().ok()).collect() };
    let (advertised, approved) = (prefixes(&node.available_routes), prefixes(&node.approved_routes));
    let primary = prefixes(&node.subnet_routes);
    advertised
        .union(&approved)
        .map(|prefix| RouteFacts {
            prefix: *prefix,
            node_id: node.id.to_string(),
            advertised: advertised.contains(prefix),
            approved: approved.contains(prefix),
            primary: primary.contains(prefix),
        })
        .collect()
}

/// Publishes `observed`: chunks when they differ from what is stored, then the heartbeat. Gives the facts (with the time of
/// the read that first saw them) and the names of their ConfigMaps.
///
/// # Errors
/// See [`PublishError`].
pub async fn publish(
    context: &Context,
    tailnet: &Tailnet,
    observed: &Observed,
) -> Result<(Facts, Vec<String>), PublishError> {
    let name = tailnet.name_any();
    let mut facts = of(context, &name, observed);
    let stored = stored_chunks(context, &name);
    let before = context.published.facts.lock().get(&name).cloned();
    let before =
        before.or_else(|| Facts::from_chunks(&stored.iter().map(|(_, chunk)| chunk.clone()).collect::<Vec<_>>()).ok());
    if let Some(before) = before.filter(|before| before.same_content(&facts)) {
        facts = before;
    }
    let chunks = facts.to_chunks();
    if chunks.len() > facts::MAX_CHUNKS {
        return Err(PublishError::TooLarge { count: chunks.len() });
    }
    for chunk in &chunks {
        children::apply(
            context,
            &context.stores.config_maps,
            tailnet,
            config_map(context, tailnet, chunk),
        )
        .await?;
    }
    for (config_map, chunk) in &stored {
        if chunk.index >= chunks.len() {
            children::delete(context, tailnet, config_map.as_ref()).await?;
        }
    }
    heartbeat(context, tailnet, observed.read_at).await?;
    context.published.facts.lock().insert(name.clone(), facts.clone());
    let names = chunks
        .iter()
        .map(|chunk| facts_config_map(&name, chunk.index))
        .collect();
    Ok((facts, names))
}

fn stored_chunks(context: &Context, tailnet: &str) -> Vec<(std::sync::Arc<ConfigMap>, Chunk)> {
    let read = |config_map: std::sync::Arc<ConfigMap>| {
        let (labels, annotations) = (config_map.labels(), config_map.annotations());
        let name = config_map.name_any();
        // One that somebody damaged is written anew, like one that is missing.
        let (of, chunk) = Chunk::of_config_map(&name, labels, annotations, config_map.data.as_ref()).ok()??;
        (of == tailnet).then_some((config_map, chunk))
    };
    context
        .stores
        .config_maps
        .state()
        .into_iter()
        .filter_map(read)
        .collect()
}

fn config_map(context: &Context, tailnet: &Tailnet, chunk: &Chunk) -> ConfigMap {
    let name = tailnet.name_any();
    let mut labels = tailnet_labels(&name);
    labels.insert(label::FACTS.to_owned(), name.clone());
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(facts_config_map(&name, chunk.index)),
            namespace: Some(context.namespace().to_owned()),
            labels: Some(labels),
            annotations: Some(BTreeMap::from([
                (annotation::FACTS_CHUNKS.to_owned(), chunk.count.to_string()),
                (annotation::FACTS_SHA256.to_owned(), chunk.sha256.clone()),
            ])),
            owner_references: owned_by_tailnet(tailnet).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(DATA_KEY.to_owned(), chunk.text.clone())])),
        ..ConfigMap::default()
    }
}

/// Writes the time of the last successful read into the Lease.
async fn heartbeat(context: &Context, tailnet: &Tailnet, read_at: Timestamp) -> Result<(), PublishError> {
    let tailnet_name = tailnet.name_any();
    let name = facts_lease(&tailnet_name);
    let api: Api<Lease> = Api::namespaced(context.client.clone(), context.namespace());
    let failed = |verb: &'static str| {
        let name = name.clone();
        move |source: kube::Error| PublishError::Lease {
            verb,
            name,
            source: Box::new(source),
        }
    };
    let known = context.published.leases.lock().get(&tailnet_name).cloned();
    let uid = match known {
        Some(uid) => uid,
        None => match api.get_opt(&name).await.map_err(failed("read"))? {
            Some(lease) => {
                let ours = tailnet
                    .meta()
                    .uid
                    .as_deref()
                    .is_some_and(|uid| is_owned_by(&lease.metadata, uid));
                let uid = lease.metadata.uid.filter(|_| ours);
                uid.ok_or_else(|| PublishError::ForeignLease { name: name.clone() })?
            }
            None => {
                let lease = lease(context, tailnet, &name, read_at);
                let params = post_params();
                let created = api.create(&params, &lease).await.map_err(failed("create"))?;
                context
                    .published
                    .leases
                    .lock()
                    .insert(tailnet_name, created.uid().unwrap_or_default());
                return Ok(());
            }
        },
    };
    // The UID in the body makes the write fail on a Lease that took the place of ours.
    let patch = json!({ "metadata": { "uid": uid }, "spec": { "renewTime": MicroTime(read_at) } });
    let params = patch_params();
    match api.patch(&name, &params, &Patch::Merge(patch)).await {
        Ok(_) => {
            context.published.leases.lock().insert(tailnet_name, uid);
            Ok(())
        }
        Err(error) => {
            // Deleted or replaced: the next read starts from what is there.
            context.published.leases.lock().remove(&tailnet_name);
            Err(failed("change")(error))
        }
    }
}

fn lease(context: &Context, tailnet: &Tailnet, name: &str, read_at: Timestamp) -> Lease {
    let seconds = context.settings.headscale.facts_interval_seconds.saturating_mul(4);
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(context.namespace().to_owned()),
            labels: Some(tailnet_labels(&tailnet.name_any())),
            owner_references: owned_by_tailnet(tailnet).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(HOLDER.to_owned()),
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
            renew_time: Some(MicroTime(read_at)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailnet_headscale::PolicyText;

    fn observed(policy: Option<&str>) -> Observed {
        let node: Node = serde_json::from_str(
            r#"{"id":"3","givenName":"rt1","ipAddresses":["100.64.0.1","nonsense"],"online":true,"tags":["tag:router"],
                "user":{"id":"9","name":"tagged-devices"},"availableRoutes":["192.0.2.0/24"],
                "approvedRoutes":["192.0.2.0/24","10.0.0.0/8"],"subnetRoutes":["192.0.2.0/24"]}"#,
        )
        .unwrap();
        let person: Node =
            serde_json::from_str(r#"{"id":"1","givenName":"laptop","user":{"id":"1","name":"ann"}}"#).unwrap();
        let text = policy.map(|text| PolicyText {
            text: text.into(),
            updated_at: None,
        });
        Observed::new(
            "v0.29.3".into(),
            vec![node, person],
            text,
            "2026-11-30T12:00:00Z".parse().unwrap(),
        )
    }

    #[test]
    fn nodes_and_routes() {
        let facts = from_observed(&observed(None));
        assert_eq!(facts.nodes[0].user.as_deref(), Some("ann"));
        assert_eq!(
            (facts.nodes[1].user.as_deref(), facts.nodes[1].addresses.len()),
            (None, 1)
        );
        let told: Vec<_> = facts
            .routes
            .iter()
            .map(|r| (r.prefix.to_string(), r.advertised, r.approved, r.primary))
            .collect();
        assert_eq!(
            told,
            [
                ("10.0.0.0/8".into(), false, true, false),
                ("192.0.2.0/24".into(), true, true, true)
            ]
        );
        assert!(!facts.policy.present);
    }

    #[test]
    fn a_laptop_that_comes_or_goes_changes_no_facts() {
        let before = observed(None);
        let mut after = before.clone();
        after.nodes[1].online = !after.nodes[1].online;
        assert!(!before.same_content(&after), "the test changed something");
        assert_eq!(from_observed(&before).to_chunks(), from_observed(&after).to_chunks());
    }

    #[test]
    fn the_live_policy_and_its_posture() {
        let allow = from_observed(&observed(Some(
            r#"{"tagOwners":{"tag:a":["x@","a@"]},"groups":{"group:g":[]}}"#,
        )));
        assert_eq!(allow.policy.tag_owners["tag:a"], ["a@", "x@"]);
        assert!(allow.policy.groups.contains("group:g"));
        assert_eq!(allow.policy.default_posture, Posture::AllowAll);
        assert_eq!(from_observed(&observed(None)).policy.default_posture, Posture::AllowAll);
        assert_eq!(
            from_observed(&observed(Some(r#"{"grants":[]}"#)))
                .policy
                .default_posture,
            Posture::Deny
        );
        assert_eq!(
            from_observed(&observed(Some("{broken"))).policy.default_posture,
            Posture::Deny
        );
    }
}
