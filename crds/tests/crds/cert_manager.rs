//! cert-manager's generated types: the Certificate that an ingress needs can be written and read.

use kube::Resource;
use serde_json::json;
use tailnet_crds::cert_manager::{Certificate, CertificateSpec};

#[test]
fn a_certificate_of_an_ingress() {
    let spec: CertificateSpec = serde_json::from_value(json!({
        "secretName": "portal-tls",
        "dnsNames": ["portal.team-a.lab.example.net"],
        "issuerRef": { "name": "apps-ca", "kind": "ClusterIssuer", "group": "cert-manager.io" },
    }))
    .expect("a spec");
    assert_eq!(spec.issuer_ref.name, "apps-ca");
    let certificate = Certificate::new("portal", spec);
    assert_eq!(Certificate::api_version(&()), "cert-manager.io/v1");
    assert_eq!(Certificate::plural(&()), "certificates");
    let written = serde_json::to_value(&certificate).expect("JSON");
    assert_eq!(
        written["spec"],
        json!({
            "dnsNames": ["portal.team-a.lab.example.net"],
            "issuerRef": { "group": "cert-manager.io", "kind": "ClusterIssuer", "name": "apps-ca" },
            "secretName": "portal-tls",
        })
    );
    let status = json!({ "conditions": [{ "type": "Ready", "status": "True", "reason": "Issued", "message": "", "lastTransitionTime": "2026-11-30T12:00:00Z" }], "notAfter": "2027-02-28T12:00:00Z" });
    let mut stored = written;
    stored["status"] = status;
    let read: Certificate = serde_json::from_value(stored).expect("a Certificate");
    assert!(read.status.is_some_and(|status| status.not_after.is_some()));
}
