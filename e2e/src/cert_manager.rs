//! A real cert-manager beside a cluster: its CRDs, and its controllers for Issuers and Certificates as one process in the box.
//!
//! It has no webhook (nothing checks or defaults an Issuer or Certificate beyond the schema) and no cainjector.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::boxed::client::Process;
use crate::cluster::Cluster;
use crate::tools::{self, Tool};
use crate::wait::wait_for;

/// Namespace of the Secrets of ClusterIssuers.
pub const NAMESPACE: &str = "cert-manager";

/// A running cert-manager; it ends when this is dropped.
#[derive(Debug)]
pub struct CertManager {
    /// Its process; the log is `logs/cert-manager.log`.
    pub process: Process,
}

impl CertManager {
    /// Builds cert-manager if need be, installs its CRDs, and starts it with the rights of the cluster admin.
    ///
    /// # Errors
    /// When a step fails.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        tools::ensure(&[Tool::CertManager])?;
        let crds = Tool::CertManager.files()?;
        let folder = crds.to_str().context("a path that is not UTF-8")?;
        cluster
            .kubectl(&["apply", "--server-side", "--force-conflicts", "-f", folder])?
            .success()
            .context("the CRDs of cert-manager")?;
        cluster
            .kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])?
            .success()?;
        cluster.apply_all(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})])?;
        let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
        let namespace = format!("--cluster-resource-namespace={NAMESPACE}");
        let process = cluster.spawn(
            "cert-manager",
            &Tool::CertManager.built()?,
            &[&kubeconfig, &namespace],
            &[],
        )?;
        Ok(Self { process })
    }

    /// A ClusterIssuer called `name` that signs with a new CA of its own, ready to be used.
    ///
    /// # Errors
    /// When it does not become ready within 60 seconds.
    pub fn ca_issuer(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let root = format!("{name}-root");
        let issuer = |name: &str, spec: Value| json!({"apiVersion": "cert-manager.io/v1", "kind": "ClusterIssuer", "metadata": {"name": name}, "spec": spec});
        cluster.apply_all(&[
            issuer(&root, json!({"selfSigned": {}})),
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {
                    "isCA": true, "commonName": name, "secretName": name, "privateKey": {"algorithm": "ECDSA"},
                    "issuerRef": {"name": root, "kind": "ClusterIssuer", "group": "cert-manager.io"},
                },
            }),
            issuer(name, json!({"ca": {"secretName": name}})),
        ])?;
        self.wait_ready(cluster, "clusterissuer", None, name)
    }

    /// Waits until a Certificate is issued.
    ///
    /// # Errors
    /// When it is not within 60 seconds, with its conditions and the end of cert-manager's log.
    pub fn wait_issued(&self, cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
        self.wait_ready(cluster, "certificate", Some(namespace), name)
    }

    fn wait_ready(&self, cluster: &Cluster, kind: &str, namespace: Option<&str>, name: &str) -> Result<()> {
        let kind = format!("{kind}.cert-manager.io");
        let mut args = vec!["get", &kind, name, "-o", "json"];
        args.extend(namespace.iter().flat_map(|namespace| ["-n", namespace]));
        wait_for(&format!("{kind} {name} is ready"), Duration::from_secs(60), || {
            let object: Value = serde_json::from_str(cluster.kubectl(&args)?.success()?)?;
            let conditions = &object["status"]["conditions"];
            let ready = |condition: &Value| {
                condition["type"] == "Ready"
                    && condition["status"] == "True"
                    && condition["observedGeneration"] == object["metadata"]["generation"]
            };
            ensure!(
                conditions.as_array().is_some_and(|all| all.iter().any(ready)),
                "{conditions}; end of its log:\n{}",
                self.process.log_tail(5)
            );
            Ok(())
        })
    }
}
