//! References to other objects.
//!
//! None has a schema default, because all of them also occur inside list items, where a default makes every
//! `kubectl apply` report a change. The accessors apply the documented ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names the Tailnet that an object belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetRef {
    /// Name of the Tailnet.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Names an object of a known kind in a known namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// One key of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret's data. `apiKey` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

impl SecretKeyRef {
    /// The key, `apiKey` when absent.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("apiKey")
    }
}

/// One key of a ConfigMap that holds a CA bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the ConfigMap's data. `ca.crt` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

impl ConfigMapKeyRef {
    /// The key, `ca.crt` when absent.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("ca.crt")
    }
}

/// A cert-manager issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// Name of the issuer.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Kind of the issuer. `ClusterIssuer` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: Option<String>,
    /// API group of the issuer. `cert-manager.io` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub group: Option<String>,
}

impl IssuerRef {
    /// The kind, `ClusterIssuer` when absent.
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("ClusterIssuer")
    }

    /// The API group, `cert-manager.io` when absent.
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or("cert-manager.io")
    }

    /// Whether both name the same issuer, with defaults applied.
    pub fn same_as(&self, other: &Self) -> bool {
        self.name == other.name && self.kind() == other.kind() && self.group() == other.group()
    }
}
