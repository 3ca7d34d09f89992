//! cert-manager beside an API server issues, and its issuer is another one's CA.

use anyhow::Result;
use serde_json::{Value, json};
use tailnet_e2e::{CertManager, Cluster};

#[test]
fn cert_manager_issues_a_certificate_of_a_ca() -> Result<()> {
    let cluster = Cluster::shared_api();
    let cert_manager = CertManager::start(cluster)?;
    cert_manager.ca_issuer(cluster, "harness-ca")?;
    cluster.apply_all(&[json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "leaf", "namespace": "default"},
        "spec": {
            "secretName": "leaf", "dnsNames": ["leaf.example.net"], "privateKey": {"algorithm": "ECDSA"},
            "issuerRef": {"name": "harness-ca", "kind": "ClusterIssuer", "group": "cert-manager.io"},
        },
    })])?;
    cert_manager.wait_issued(cluster, "default", "leaf")?;
    let secret = |namespace: &str, name: &str| -> Result<Value> {
        let text = cluster.kubectl(&["get", "secret", name, "-n", namespace, "-o", "json"])?;
        Ok(serde_json::from_str(text.success()?)?)
    };
    let (leaf, ca) = (secret("default", "leaf")?, secret("cert-manager", "harness-ca")?);
    assert_eq!(leaf["type"], "kubernetes.io/tls");
    assert!(leaf["data"]["tls.key"].is_string());
    assert_eq!(leaf["data"]["ca.crt"], ca["data"]["tls.crt"]);
    assert_ne!(leaf["data"]["tls.crt"], ca["data"]["tls.crt"]);
    Ok(())
}
