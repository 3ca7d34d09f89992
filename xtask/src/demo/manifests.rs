//! Manifests of the demo that are not the product's.

use serde_json::{Value, json};
use tailnet_e2e::images;
use tailnet_e2e::site::postgres;

use super::{CLIENT, OPERATOR};

/// A namespace that enforces the restricted Pod Security Standard.
pub fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    })
}

/// The site's CA, for clients that check the certificate of its API.
pub fn site_ca(namespace: &str, pem: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site-ca", "namespace": namespace}, "data": {"ca.crt": pem}})
}

/// A Pod with psql and curl that waits to be used.
pub fn client(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": CLIENT, "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": CLIENT,
                "image": images::TESTBOX,
                "imagePullPolicy": "Never",
                "env": [{"name": "PGPASSWORD", "value": postgres::PASSWORD}, {"name": "PGCONNECT_TIMEOUT", "value": "10"}],
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "site-ca", "mountPath": "/etc/site-ca", "readOnly": true}],
            }],
            "volumes": [{"name": "site-ca", "configMap": {"name": "site-ca"}}],
        },
    })
}

/// The bootstrap key where the seeds' Tailnet expects it.
pub fn bootstrap_key(key: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "headscale-bootstrap", "namespace": OPERATOR},
        "stringData": {"apiKey": key},
    })
}

/// Several objects as input for `kubectl apply -f -`.
pub fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
