//! The acting half: key, children in an order in which no step leaves an opening, prune, Pods, node names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::cert_manager::Certificate;
use tailnet_crds::names::{annotation, ingress as names};
use tailnet_crds::{ExposeMode, Kind, Tailnet, TailnetIngress};
use tailnet_policies::Object;
use tailnet_policies::names::{hostnames_of, tag_of};

use super::{IngressError, Issuance, Progress, workload};
use crate::children::{self, Applied, ChildError};
use crate::context::Context;
use crate::controllers::agent_nodes::{self, Renamed};
use crate::desired::tailnet_egress::{NODE_IDENTITY, identity_of, node_identity};
use crate::desired::tailnet_ingress::{CertificateSource, Surroundings, certificate_secret, desired, emptied};
use crate::keys::{self, KeyError, KeyOwner};
use crate::ownership::is_owned_by;
use crate::writes::is_forbidden;
use crate::{backends, hosts, trusted_ca};

/// How long an agent that is to let go of everything is waited for before its Pod is told to stop.
const PATIENCE: Duration = Duration::from_secs(15);

/// Makes everything that an accepted ingress asks for. Errors are collected: one of them does not stop what is independent.
pub(super) async fn act(context: &Context, ingress: &TailnetIngress, tailnet: &Tailnet, renamed: &Renamed) -> Progress {
    let mut progress = super::refused("", String::new());
    progress.refused = None;
    if let Err(error) = try_act(context, ingress, tailnet, renamed, &mut progress).await {
        progress.problems.push(error);
    }
    progress
}

async fn try_act(
    context: &Context,
    ingress: &TailnetIngress,
    tailnet: &Tailnet,
    renamed: &Renamed,
    progress: &mut Progress,
) -> Result<(), IngressError> {
    let object = Object::parse(Kind::TailnetIngress, &serde_json::to_value(ingress)?);
    let tag = tag_of(&object, Some(&tailnet.spec)).unwrap_or_default();
    let hostnames = hostnames_of(&object, Some(&tailnet.spec));
    let namespace = ingress.namespace().unwrap_or_default();
    let name = ingress.name_any();
    progress.tag.clone_from(&tag);
    progress.names = hosts::names_of_exposes(context, ingress, tailnet);
    progress.backends = ingress
        .spec
        .exposes
        .iter()
        .map(|expose| backends::resolve(context, &namespace, &expose.backend))
        .collect();
    let source = certificate_source(ingress, tailnet);
    progress.certificate_secret = source.as_ref().map(|source| certificate_secret(ingress, source));
    let ca_bundle = trusted_ca::joined(context, tailnet)?;
    let defaults = tailnet.spec.agent_defaults();

    // The key first: a Pod must never start with a key for another tag.
    let secret = names::auth_key_secret(&name);
    let tags = [tag.clone()];
    let key = match KeyOwner::of(ingress) {
        Some(owner) => Some(keys::ensure_preauth(context, tailnet, &owner, &secret, &tags).await),
        None => None,
    };
    let running = workload::deployment(context, ingress);
    let runs_as = running.as_ref().and_then(|deployment| {
        let template = &deployment.spec.as_ref()?.template;
        template
            .metadata
            .as_ref()?
            .annotations
            .as_ref()?
            .get(NODE_IDENTITY)
            .cloned()
    });
    let wanted_identity = node_identity(tailnet.spec.server.as_str(), &tag);
    let key_fits = matches!(key, Some(Ok(_))) || runs_as.as_ref() == Some(&wanted_identity);
    let granted = !matches!(key, Some(Err(KeyError::NotGranted { .. })));
    progress.key = key;
    if !granted {
        return Ok(());
    }
    // Without a key for the new node identity, the running agents keep the one they have: a reload would cut them off.
    let stored = stored_config(context, ingress).await?;
    let kept = stored
        .as_ref()
        .filter(|stored| is_own(ingress, stored))
        .and_then(identity_of)
        .filter(|_| !key_fits);
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
        names: &progress.names,
        backends: &progress.backends,
        certificate: source.as_ref(),
    };
    let wanted = desired(ingress, &around)?;
    progress.config_sha256 = Some(wanted.config_sha256.clone());

    match certify(context, ingress, wanted.certificate.clone()).await {
        Ok(issuance) => progress.issuance = issuance,
        Err(error) => progress.problems.push(error),
    }
    let stores = &context.stores;
    let reloaded = children::apply_to(context, stored, ingress, wanted.config_map.clone()).await?;
    // The policy before the Pods that it binds.
    children::apply(
        context,
        &stores.network_policies,
        ingress,
        wanted.network_policy.clone(),
    )
    .await?;
    if key_fits {
        children::apply(context, &stores.deployments, ingress, wanted.deployment.clone()).await?;
    }
    match &wanted.pod_disruption_budget {
        Some(budget) => {
            children::apply(context, &stores.pod_disruption_budgets, ingress, budget.clone()).await?;
        }
        None => {
            for stored in stores.pod_disruption_budgets.state() {
                children::delete(context, ingress, stored.as_ref()).await?;
            }
        }
    }
    let pods = workload::pods(context, ingress);
    let version = match &progress.certificate_secret {
        Some(secret) => secret_version(context, &namespace, secret).await?,
        None => None,
    };
    for pod in &pods {
        children::annotate_pod(context, pod, annotation::CONFIG_SHA256, &wanted.config_sha256).await?;
        if let Some(version) = &version {
            children::annotate_pod(context, pod, annotation::CERTIFICATE_VERSION, version).await?;
        }
    }
    if reloaded != Applied::Unchanged {
        context.agents.look_soon();
    }
    let owner = format!("TailnetIngress {namespace}/{name}");
    agent_nodes::rename(
        context,
        &ingress.spec.tailnet_ref.name,
        &owner,
        &pods,
        &tag,
        &hostnames,
        renamed,
    )
    .await;
    Ok(())
}

/// Where the certificate comes from; None without http exposes.
fn certificate_source(ingress: &TailnetIngress, tailnet: &Tailnet) -> Option<CertificateSource> {
    if !ingress
        .spec
        .exposes
        .iter()
        .any(|expose| expose.mode() == ExposeMode::Http)
    {
        return None;
    }
    let tls = ingress.spec.tls.as_ref();
    if let Some(secret) = tls.and_then(|tls| tls.secret_ref.as_ref()) {
        return Some(CertificateSource::Secret(secret.name.clone()));
    }
    let issuer = tls
        .and_then(|tls| tls.issuer_ref.as_ref())
        .or_else(|| tailnet.spec.default_issuer())?;
    Some(CertificateSource::Issuer(issuer.clone()))
}

/// Makes the Certificate, or removes one that is not wanted any more; gives cert-manager's word.
async fn certify(
    context: &Context,
    ingress: &TailnetIngress,
    wanted: Option<Certificate>,
) -> Result<Option<Issuance>, IngressError> {
    let namespace = ingress.namespace().unwrap_or_default();
    let api: Api<Certificate> = Api::namespaced(context.client.clone(), &namespace);
    let name = names::certificate(&ingress.name_any());
    let stored = match api.get(&name).await {
        Ok(stored) => Some(stored),
        // No such object, or (in other words) no such kind.
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(source) => {
            return Err(IngressError::Read {
                kind: "Certificate",
                name,
                source: Box::new(source),
            });
        }
    };
    let Some(wanted) = wanted else {
        if let Some(stored) = stored {
            children::delete(context, ingress, &stored).await?;
        }
        return Ok(None);
    };
    let ready = stored.as_ref().and_then(|stored| {
        let conditions = stored.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
        Some((ready.status.clone(), ready.reason.clone(), ready.message.clone()))
    });
    match children::apply_to(context, stored, ingress, wanted).await {
        Ok(_) => Ok(Some(Issuance::Says(ready))),
        // The kind is unknown: no object can be missing where one is created.
        Err(ChildError::Api {
            verb: "create", source, ..
        }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => Ok(Some(Issuance::NotInstalled)),
        Err(error) => Err(error.into()),
    }
}

/// Which version of the certificate's Secret there is. Only its metadata cross the wire.
async fn secret_version(context: &Context, namespace: &str, secret: &str) -> Result<Option<String>, IngressError> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let found = api
        .get_metadata_opt(secret)
        .await
        .map_err(|source| IngressError::Read {
            kind: "Secret",
            name: secret.to_owned(),
            source: Box::new(source),
        })?;
    Ok(found.and_then(|found| found.resource_version()))
}

/// The ConfigMap of the ingress's agents, whoever it belongs to. ConfigMaps of other namespaces are not watched.
async fn stored_config(context: &Context, ingress: &TailnetIngress) -> Result<Option<ConfigMap>, IngressError> {
    let name = names::config_map(&ingress.name_any());
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &ingress.namespace().unwrap_or_default());
    api.get_opt(&name).await.map_err(|source| IngressError::Read {
        kind: "ConfigMap",
        name,
        source: Box::new(source),
    })
}

/// The same where the operator may have no rights: it then made none either.
async fn config_to_remove(context: &Context, ingress: &TailnetIngress) -> Result<Option<ConfigMap>, IngressError> {
    match stored_config(context, ingress).await {
        Err(IngressError::Read { source, .. }) if is_forbidden(&source) => Ok(None),
        other => other.map(|stored| stored.filter(|stored| is_own(ingress, stored))),
    }
}

fn is_own(ingress: &TailnetIngress, stored: &ConfigMap) -> bool {
    ingress.uid().is_some_and(|uid| is_owned_by(&stored.metadata, &uid))
}

/// Ends the service of an ingress that may have no effect, and removes everything of it. `since` tells when that began.
///
/// A Pod that is told to stop goes on serving for a while: it drains. So its agent is given a configuration without exposes
/// first, which closes every listener and connection; once it has that, its node goes and it is told to stop. One that does
/// not answer is waited for no longer than [`PATIENCE`]: without its node no peer reaches it.
pub(super) async fn withdraw(context: &Context, ingress: &TailnetIngress, since: Instant) -> Result<(), IngressError> {
    let stores = &context.stores;
    let pods = workload::pods(context, ingress);
    let runs = !pods.is_empty() || workload::deployment(context, ingress).is_some();
    let emptied = if runs {
        empty(context, ingress, &pods).await
    } else {
        Ok(None)
    };
    let empties = match &emptied {
        Ok(Some(sha256)) => since.elapsed() < PATIENCE && !workload::all_have(context, &pods, sha256),
        Ok(None) | Err(_) => false,
    };
    if !empties {
        // Not before: a peer drops a node that is gone, and then never hears that its connection was ended.
        if context.keys.mark_withdrawn(&ingress.uid().unwrap_or_default()) {
            let tailnet = &ingress.spec.tailnet_ref.name;
            context.queues.tailnet.push(ObjectRef::new(tailnet));
        }
        for deployment in stores.deployments.state() {
            children::delete(context, ingress, deployment.as_ref()).await?;
        }
    }
    for budget in stores.pod_disruption_budgets.state() {
        children::delete(context, ingress, budget.as_ref()).await?;
    }
    // The NetworkPolicy stays until the Pods are gone: it binds them while they drain.
    if !runs {
        for policy in stores.network_policies.state() {
            children::delete(context, ingress, policy.as_ref()).await?;
        }
        if let Some(config_map) = config_to_remove(context, ingress).await? {
            children::delete(context, ingress, &config_map).await?;
        }
    }
    match certify(context, ingress, None).await {
        Err(IngressError::Read { source, .. }) if is_forbidden(&source) => {}
        other => drop(other?),
    }
    emptied.map(drop)
}

/// Gives the agents a configuration without exposes; its sha256, or None where there is none of ours.
async fn empty(context: &Context, ingress: &TailnetIngress, pods: &[Arc<Pod>]) -> Result<Option<String>, IngressError> {
    let Some(stored) = config_to_remove(context, ingress).await? else {
        return Ok(None);
    };
    let Some((wanted, sha256)) = emptied(ingress, &stored)? else {
        return Ok(None);
    };
    children::apply_to(context, Some(stored), ingress, wanted).await?;
    for pod in pods {
        children::annotate_pod(context, pod, annotation::CONFIG_SHA256, &sha256).await?;
    }
    context.agents.look_soon();
    Ok(Some(sha256))
}
