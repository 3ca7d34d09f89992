//! What a test may ask about an egress: its conditions, its children, its keys in Headscale.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::Value;
use tailnet_crds::{Tailnet, TailnetEgress};
use tailnet_e2e::{Cluster, wait_for};
use tailnet_headscale::PreAuthKeyInfo;

use crate::operating::{Kube, TAILNET, condition};

/// How long a state may take to show.
pub const SOON: Duration = Duration::from_secs(30);

/// Waits until the egress has the condition with this status and reason; gives the egress.
pub fn wait_condition(kube: &Kube, name: &str, r#type: &str, status: &str, reason: &str) -> Result<TailnetEgress> {
    wait_for(&format!("{name}: {type}={status}/{reason}"), SOON, || {
        let egress: TailnetEgress = kube.get(name)?;
        let found = condition(&egress, r#type);
        let generation = egress
            .status
            .as_ref()
            .and_then(|status| status.conditions.first()?.observed_generation);
        ensure!(
            generation == egress.metadata.generation,
            "status is of generation {generation:?}; {found:?}"
        );
        ensure!(
            found.as_ref().is_some_and(|(is, why, _)| is == status && why == reason),
            "{found:?}"
        );
        Ok(egress)
    })
}

pub fn wait_tailnet_ready(kube: &Kube) -> Result<()> {
    wait_for("the Tailnet is reachable", SOON, || {
        let tailnet: Tailnet = kube.block_on(kube.cluster_api::<Tailnet>().get(TAILNET))?;
        let found = condition(&tailnet, "APIKeyReady");
        ensure!(
            found.as_ref().is_some_and(|(status, _, _)| status == "True"),
            "{found:?}"
        );
        Ok(())
    })
}

pub fn owner(meta: &ObjectMeta) -> Option<String> {
    let owner = meta
        .owner_references
        .as_ref()?
        .iter()
        .find(|owner| owner.controller == Some(true))?;
    Some(owner.uid.clone())
}

pub fn config(kube: &Kube, egress: &str) -> Result<Value> {
    let config_map: ConfigMap = kube.get(&format!("tailnet-egress-{egress}-config"))?;
    let data = config_map.data.context("data")?;
    Ok(serde_json::from_str(data.get("config.json").context("config.json")?)?)
}

/// Listen port by target, as the agents are told.
pub fn listen_ports(kube: &Kube, egress: &str) -> Result<BTreeMap<String, u64>> {
    let config = config(kube, egress)?;
    let targets = config["targets"].as_array().context("targets")?;
    targets
        .iter()
        .map(|target| {
            let name = target["name"].as_str().context("name")?.to_owned();
            Ok((name, target["listenPort"].as_u64().context("listenPort")?))
        })
        .collect()
}

/// Waits until all children of `egress` are there and belong together.
pub fn wait_complete(kube: &Kube, name: &str) -> Result<()> {
    wait_for(&format!("all children of {name} are there"), SOON, || {
        let egress: TailnetEgress = kube.get(name)?;
        let uid = egress.uid().context("uid")?;
        let base = format!("tailnet-egress-{name}");
        ensure!(
            owner(&kube.get::<Secret>(&format!("{base}-authkey"))?.metadata).as_ref() == Some(&uid),
            "Secret"
        );
        ensure!(
            owner(&kube.get::<ConfigMap>(&format!("{base}-config"))?.metadata).as_ref() == Some(&uid),
            "ConfigMap"
        );
        ensure!(
            owner(&kube.get::<Deployment>(&base)?.metadata).as_ref() == Some(&uid),
            "Deployment"
        );
        ensure!(
            owner(&kube.get::<NetworkPolicy>(&base)?.metadata).as_ref() == Some(&uid),
            "NetworkPolicy"
        );
        let ports = listen_ports(kube, name)?;
        for target in &egress.spec.targets {
            let service: Service = kube.get(target.name.as_str())?;
            ensure!(
                owner(&service.metadata).as_ref() == Some(&uid),
                "Service {}",
                target.name
            );
            let port = service
                .spec
                .and_then(|spec| spec.ports?.into_iter().next())
                .context("port")?;
            let listen = ports.get(target.name.as_str()).copied().context("listen port")?;
            ensure!(
                port.target_port == Some(IntOrString::Int(i32::try_from(listen)?)),
                "{port:?} and {listen}"
            );
            ensure!(port.port == target.port, "{port:?}");
        }
        let wanted: Vec<&str> = egress.spec.targets.iter().map(|target| target.name.as_str()).collect();
        for service in kube.list::<Service>()? {
            let ours = owner(&service.metadata).as_ref() == Some(&uid);
            ensure!(
                !ours || wanted.contains(&service.name_any().as_str()),
                "Service {} too many",
                service.name_any()
            );
        }
        Ok(())
    })
}

/// The keys in Headscale that still open the tailnet for `tag`.
pub fn live_keys(kube: &Kube, cluster: &Cluster, tag: &str) -> Result<Vec<PreAuthKeyInfo>> {
    let client = cluster.headscale()?.client()?;
    let keys = kube.block_on(client.preauth_keys())?;
    let now = jiff::Timestamp::now();
    Ok(keys
        .into_iter()
        .filter(|key| key.acl_tags.iter().any(|found| found == tag))
        .filter(|key| key.expiration.is_some_and(|end| end > now))
        .collect())
}
