//! The cluster's DNS: CoreDNS as a Deployment, which also knows where Headscale is.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

use super::{Cluster, control_plane};
use crate::{headscale, images, runtime, wait};

/// The manifests. Headscale's name has a server block of its own because CoreDNS's `template` answers before its `hosts`.
fn manifests(cluster: &Cluster) -> String {
    include_str!("coredns.yaml")
        .replace("{headscale}", headscale::HOST)
        .replace("{node}", &cluster.node_address())
        .replace("{image}", images::COREDNS)
        .replace("{dns}", control_plane::DNS)
}

/// Creates everything of the cluster's DNS.
///
/// # Errors
/// When the API server refuses, with its text.
pub fn apply(cluster: &Cluster) -> Result<()> {
    cluster
        .kubectl_with_input(&["create", "--validate=false", "-f", "-"], &manifests(cluster))?
        .success()
        .context("creating the cluster's DNS")?;
    Ok(())
}

/// Waits until DNS answers.
///
/// # Errors
/// When it does not within `deadline`.
pub fn wait_ready(cluster: &Cluster, deadline: Duration) -> Result<()> {
    let client = cluster.harness_client()?;
    runtime::block_on(async move {
        let deployments: Api<Deployment> = Api::namespaced(client, "kube-system");
        wait::wait_for_async("CoreDNS is ready", deadline, || async {
            let status = deployments
                .get("coredns")
                .await
                .map_err(|error| error.to_string())?
                .status
                .unwrap_or_default();
            if status.ready_replicas == Some(1) {
                Ok(())
            } else {
                Err(format!("{} ready replicas", status.ready_replicas.unwrap_or(0)))
            }
        })
        .await
    })?
}
