//! The acting half: key, children in an order in which no step leaves an opening, prune, Pods, node names.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tailnet_crds::names::{annotation, egress as names};
use tailnet_crds::{Kind, Tailnet, TailnetEgress};
use tailnet_policies::Object;
use tailnet_policies::names::{hostnames_of, tag_of};

use super::{EgressError, Memory, Progress, workload};
use crate::children::{self, Applied};
use crate::context::Context;
use crate::controllers::agent_nodes;
use crate::desired::listen_ports::PortMemory;
use crate::desired::tailnet_egress::{Desired, Surroundings, desired, identity_of, port_memory};
use crate::keys::{self, KeyError, KeyOwner, KeyState};
use crate::ownership::is_owned_by;
use crate::server_identity;
use crate::trusted_ca;

/// Makes everything that an accepted egress asks for. Errors are collected: one of them does not stop what is independent.
pub(super) async fn act(context: &Context, egress: &TailnetEgress, tailnet: &Tailnet, memory: &Memory) -> Progress {
    let mut progress = Progress {
        refused: None,
        key: None,
        problems: Vec::new(),
        config_sha256: None,
        node_identity: None,
        tag: String::new(),
    };
    if let Err(error) = try_act(context, egress, tailnet, memory, &mut progress).await {
        progress.problems.push(error);
    }
    progress
}

async fn try_act(
    context: &Context,
    egress: &TailnetEgress,
    tailnet: &Tailnet,
    memory: &Memory,
    progress: &mut Progress,
) -> Result<(), EgressError> {
    let object = Object::parse(Kind::TailnetEgress, &serde_json::to_value(egress)?);
    let tag = tag_of(&object, Some(&tailnet.spec)).unwrap_or_default();
    let hostnames = hostnames_of(&object, Some(&tailnet.spec));
    progress.tag.clone_from(&tag);
    let ca_bundle = trusted_ca::joined(context, tailnet)?;
    let ports = known_ports(context, egress, memory);
    let name = egress.name_any();
    let defaults = tailnet.spec.agent_defaults();
    // The key first: a Pod must never start with a key for another tag.
    let secret = names::auth_key_secret(&name);
    let tags = [tag.clone()];
    let key = match KeyOwner::of(egress) {
        Some(owner) => Some(keys::ensure_preauth(context, tailnet, &owner, &secret, &tags).await),
        None => None,
    };
    let key_fits = matches!(key, Some(Ok(_))) || stored_key_fits(context, egress, tailnet, &secret, &tags);
    // Without a key for the new node identity, the running agents keep the one they have: a reload would cut them off.
    let stored = stored_config(context, egress);
    let kept = stored.as_deref().and_then(identity_of).filter(|_| !key_fits);
    let kept = kept.as_ref();
    let hostname = hostnames.first().map_or(name.as_str(), String::as_str);
    let around = Surroundings {
        operator_namespace: context.namespace(),
        image: &context.settings.agent_image,
        pull_policy: context.settings.agent_image_pull_policy.as_str(),
        monitoring_namespace: context.settings.monitoring_namespace.as_deref(),
        control_url: kept.map_or(tailnet.spec.server.as_str(), |kept| kept.control_url.as_str()),
        defaults: &defaults,
        ca_bundle: kept.map_or(ca_bundle.as_deref(), |kept| kept.ca_bundle.as_deref()),
        tag: &tag,
        hostname: kept.map_or(hostname, |kept| kept.hostname.as_str()),
        ports: &ports,
    };
    let wanted = desired(egress, &around)?;
    progress.config_sha256 = Some(wanted.config_sha256.clone());
    // Without a key for it, the Deployment is not changed, and its agents are who they were.
    progress.node_identity = key_fits.then(|| wanted.node_identity.clone());

    progress.key = key;

    let stores = &context.stores;
    let reloaded = children::apply(context, &stores.config_maps, egress, wanted.config_map.clone()).await?;
    remember_ports(context, egress, memory, &wanted);
    // The policy before the Pods that it protects.
    children::apply(context, &stores.network_policies, egress, wanted.network_policy.clone()).await?;
    if key_fits {
        children::apply(context, &stores.deployments, egress, wanted.deployment.clone()).await?;
    }
    for service in &wanted.services {
        // A name that is taken concerns one target only.
        if let Err(error) = children::apply(context, &stores.services, egress, service.clone()).await {
            progress.problems.push(error.into());
        }
    }
    if let Some(budget) = &wanted.pod_disruption_budget {
        children::apply(context, &stores.pod_disruption_budgets, egress, budget.clone()).await?;
    }
    prune(context, egress, &wanted).await?;
    let pods = workload::pods(context, egress);
    for pod in &pods {
        children::annotate_pod(context, pod, annotation::CONFIG_SHA256, &wanted.config_sha256).await?;
    }
    if reloaded != Applied::Unchanged {
        context.agents.look_soon();
    }
    agent_nodes::rename(
        context,
        &egress.spec.tailnet_ref.name,
        &format!("TailnetEgress {name}"),
        &pods,
        &tag,
        &hostnames,
        &memory.renamed,
    )
    .await;
    Ok(())
}

/// Renews the key of agents that run although their object is frozen: they must survive a restart. None when there are none,
/// or when their key is another server's.
pub(super) async fn keep_key(
    context: &Context,
    egress: &TailnetEgress,
    tailnet: &Tailnet,
) -> Option<Result<KeyState, KeyError>> {
    workload::deployment(context, egress)?;
    let owner = KeyOwner::of(egress)?;
    let secret = names::auth_key_secret(&egress.name_any());
    let stored = context
        .stores
        .secrets
        .get(&ObjectRef::new(&secret).within(context.namespace()))?;
    let state = KeyState::of(stored.meta())?;
    if !is_owned_by(stored.meta(), &owner.uid)
        || !server_identity::same(&state.server, tailnet.spec.api_endpoint().as_str())
    {
        return None;
    }
    Some(keys::ensure_preauth(context, tailnet, &owner, &secret, &state.tags).await)
}

/// Whether the stored Secret is the egress's own and holds a key for these tags on this server, as its annotations say.
fn stored_key_fits(
    context: &Context,
    egress: &TailnetEgress,
    tailnet: &Tailnet,
    secret: &str,
    tags: &[String],
) -> bool {
    let stored = context
        .stores
        .secrets
        .get(&ObjectRef::new(secret).within(context.namespace()))
        .filter(|stored| egress.uid().is_some_and(|uid| is_owned_by(stored.meta(), &uid)));
    let state = stored.and_then(|stored| KeyState::of(stored.meta()));
    state.is_some_and(|state| {
        state.tags == tags && server_identity::same(&state.server, tailnet.spec.api_endpoint().as_str())
    })
}

/// The configuration that the egress's agents have, if it is the egress's own.
fn stored_config(context: &Context, egress: &TailnetEgress) -> Option<Arc<ConfigMap>> {
    let uid = egress.uid()?;
    let name = ObjectRef::new(&names::config_map(&egress.name_any())).within(context.namespace());
    let stored = context.stores.config_maps.get(&name)?;
    is_owned_by(&stored.metadata, &uid).then_some(stored)
}

/// The ports that were given out: as last written, else as stored, else as the Services still say.
fn known_ports(context: &Context, egress: &TailnetEgress, memory: &Memory) -> PortMemory {
    let uid = egress.uid().unwrap_or_default();
    if let Some(ports) = memory.ports.lock().get(&uid) {
        return ports.clone();
    }
    let text = stored_config(context, egress).and_then(|stored| stored.data.as_ref()?.get(names::CONFIG_KEY).cloned());
    if let Some(ports) = text.as_deref().and_then(port_memory) {
        return ports;
    }
    let mut ports = PortMemory::default();
    for service in context.stores.services.state() {
        if !is_owned_by(&service.metadata, &uid) {
            continue;
        }
        let port = service
            .spec
            .as_ref()
            .and_then(|spec| spec.ports.as_ref()?.first()?.target_port.clone());
        let Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(port)) = port else {
            continue;
        };
        if let Ok(port) = u16::try_from(port) {
            ports.ports.insert(service.name_any(), port);
            ports.next = ports.next.max(port.saturating_add(1));
        }
    }
    ports
}

fn remember_ports(context: &Context, egress: &TailnetEgress, memory: &Memory, wanted: &Desired) {
    let text = wanted
        .config_map
        .data
        .as_ref()
        .and_then(|data| data.get(names::CONFIG_KEY));
    if let (Some(uid), Some(ports)) = (egress.uid(), text.and_then(|text| port_memory(text))) {
        let mut all = memory.ports.lock();
        all.insert(uid, ports);
        let stored = context.stores.egresses.state();
        if all.len() > stored.len() {
            // Some are of deleted objects.
            let alive: BTreeSet<String> = stored.iter().filter_map(|egress| egress.uid()).collect();
            all.retain(|uid, _| alive.contains(uid));
        }
    }
}

/// Removes children of this egress that its spec does not ask for any more.
async fn prune(context: &Context, egress: &TailnetEgress, wanted: &Desired) -> Result<(), EgressError> {
    let services: BTreeSet<String> = wanted.services.iter().map(ResourceExt::name_any).collect();
    for service in context.stores.services.state() {
        if !services.contains(&service.name_any()) {
            children::delete(context, egress, service.as_ref()).await?;
        }
    }
    let budget = wanted.pod_disruption_budget.as_ref().map(ResourceExt::name_any);
    for stored in context.stores.pod_disruption_budgets.state() {
        if Some(stored.name_any()) != budget {
            children::delete(context, egress, stored.as_ref()).await?;
        }
    }
    Ok(())
}

/// Removes everything of an egress that may have no effect. The configuration stays: it remembers the ports.
pub(super) async fn withdraw(context: &Context, egress: &TailnetEgress) -> Result<(), EgressError> {
    let stores = &context.stores;
    for service in stores.services.state() {
        children::delete(context, egress, service.as_ref()).await?;
    }
    for deployment in stores.deployments.state() {
        children::delete(context, egress, deployment.as_ref()).await?;
    }
    for budget in stores.pod_disruption_budgets.state() {
        children::delete(context, egress, budget.as_ref()).await?;
    }
    // The NetworkPolicy stays until the Pods are gone: it protects them while they drain.
    if workload::pods(context, egress).is_empty() {
        for policy in stores.network_policies.state() {
            children::delete(context, egress, policy.as_ref()).await?;
        }
    }
    Ok(())
}
