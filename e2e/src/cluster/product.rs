//! What our processes need of a cluster before they run beside it: our CRDs, a namespace, and ServiceAccounts that may do
//! exactly what their roles say.

use anyhow::Result;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};
use tailnet_crds::Kind;

use super::Cluster;

const RBAC: &str = "rbac.authorization.k8s.io";

/// A ServiceAccount with its rights.
#[derive(Debug, Clone)]
pub struct Account<'a> {
    /// Its namespace, where its Role is too.
    pub namespace: &'a str,
    /// Its name, and that of its Role.
    pub name: &'a str,
    /// Name of its ClusterRole.
    pub cluster_role: &'a str,
    /// What it may do in the whole cluster.
    pub cluster_rules: Vec<PolicyRule>,
    /// What it may do in its namespace.
    pub namespace_rules: Vec<PolicyRule>,
}

impl Account<'_> {
    /// The ServiceAccount, its roles and their bindings.
    fn documents(&self) -> Vec<Value> {
        let in_namespace = |name: &str| json!({"name": name, "namespace": self.namespace});
        let subjects = json!([{"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}]);
        let mut documents =
            vec![json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": in_namespace(self.name)})];
        let cluster = json!({"name": self.cluster_role});
        for (role, metadata, rules) in [
            ("ClusterRole", cluster, &self.cluster_rules),
            ("Role", in_namespace(self.name), &self.namespace_rules),
        ] {
            let version = format!("{RBAC}/v1");
            let reference = json!({"apiGroup": RBAC, "kind": role, "name": metadata["name"]});
            documents.push(json!({"apiVersion": version, "kind": role, "metadata": metadata, "rules": rules}));
            documents.push(json!({
                "apiVersion": version, "kind": format!("{role}Binding"), "metadata": metadata,
                "roleRef": reference, "subjects": subjects,
            }));
        }
        documents
    }
}

impl Cluster {
    /// `kubectl apply --server-side` of all documents at once; what others changed is overwritten.
    ///
    /// # Errors
    /// When the API server refuses one, with kubectl's text.
    pub fn apply_all(&self, documents: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": documents});
        let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.kubectl_with_input(&args, &list.to_string())?.success().map(drop)
    }

    /// Installs our CRDs and waits until the API server serves them.
    ///
    /// # Errors
    /// When it does not within 30 seconds.
    pub fn install_crds(&self) -> Result<()> {
        let crds: Vec<Value> = Kind::ALL
            .into_iter()
            .map(|kind| tailnet_crds::crd::crd_value(kind).clone())
            .collect();
        self.apply_all(&crds)?;
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"])?
            .success()
            .map(drop)
    }

    /// Makes a ServiceAccount with its rights, and its namespace if need be.
    ///
    /// # Errors
    /// When the API server refuses.
    pub fn install_account(&self, account: &Account<'_>) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": account.namespace}});
        self.apply_all(&[vec![namespace], account.documents()].concat())
    }
}
