//! An API server with our CRDs and a real Headscale, and operators beside them that have exactly the rights that their
//! role gives them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, Resource};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_e2e::{Account, Cluster, Process, binaries, health, wait_for};
use tailnet_operator::rbac;

pub const NAMESPACE: &str = "tailnet-system";
const ACCOUNT: &str = "tailnet-operator";
/// What the operator is, as the audit log calls it.
pub const USER: &str = "system:serviceaccount:tailnet-system:tailnet-operator";
pub const TAILNET: &str = "demo";
pub const HOSTS: &str = "tailnet-hosts";

/// The shared API server with our CRDs, the operator namespace, and the operator's ServiceAccount with its roles.
pub fn cluster() -> &'static Cluster {
    Cluster::shared_api_prepared(prepare)
}

/// Installs CRDs, the operator namespace, ServiceAccount and roles.
pub fn prepare(cluster: &Cluster) -> Result<()> {
    cluster.install_crds()?;
    cluster.install_account(&Account {
        namespace: NAMESPACE,
        name: ACCOUNT,
        cluster_role: ACCOUNT,
        cluster_rules: rbac::cluster_rules(),
        namespace_rules: rbac::namespace_rules(),
    })
}

/// The name of the ClusterRole in the chart whose bindings say where ingress objects are served.
const INGRESS_ROLE: &str = "tailnet-operator-ingress";

/// Lets the operator serve ingress objects of `namespace`, as the chart's `ingressNamespaces` does; all but `without` of the
/// rights in (group, resource, verb).
pub fn grant(cluster: &Cluster, namespace: &str, without: Option<(&str, &str, &str)>) -> Result<()> {
    let mut rules = rbac::ingress_rules();
    for rule in &mut rules {
        let is = |list: &Option<Vec<String>>, word: &str| list.iter().flatten().any(|found| found == word);
        if let Some((group, resource, verb)) = without
            && is(&rule.api_groups, group)
            && is(&rule.resources, resource)
        {
            rule.verbs.retain(|found| found != verb);
        }
    }
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    apply(
        cluster,
        &[
            json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": INGRESS_ROLE}, "rules": rules}),
            json!({
                "apiVersion": version, "kind": "RoleBinding", "metadata": {"name": INGRESS_ROLE, "namespace": namespace},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": INGRESS_ROLE},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
            }),
        ],
    )
}

/// `kubectl apply --server-side` of all documents at once.
pub fn apply(cluster: &Cluster, documents: &[Value]) -> Result<()> {
    cluster.apply_all(documents)
}

/// The cluster without objects of ours, with a fresh Tailnet [`TAILNET`], its bootstrap key and its CA.
pub fn start_over(cluster: &Cluster) -> Result<Kube> {
    let kube = Kube::new(cluster)?;
    for kind in Kind::ALL {
        cluster
            .kubectl(&["delete", kind.plural(), "--all", "--all-namespaces", "--timeout=30s"])?
            .success()?;
    }
    // What the ledger still knows would be another test's keys.
    cluster
        .kubectl(&[
            "delete",
            "secret,configmap,lease",
            "-n",
            NAMESPACE,
            "-l",
            "app.kubernetes.io/managed-by=tailnet-operator",
        ])?
        .success()?;
    cluster
        .kubectl(&["delete", "lease", "-n", NAMESPACE, "--all"])?
        .success()?;
    wait_for(
        "the children of the last test are gone",
        Duration::from_secs(60),
        || {
            for kind in [
                "service",
                "deployment",
                "networkpolicy",
                "poddisruptionbudget",
                "replicaset",
                "pod",
            ] {
                let names = cluster.kubectl(&["get", kind, "-n", NAMESPACE, "-o", "name"])?;
                ensure!(names.success()?.is_empty(), "{}", names.success()?);
            }
            Ok(())
        },
    )?;
    let headscale = cluster.headscale()?;
    // Keys that the last operator left: their ledger is gone, so nobody else would end them.
    let client = headscale.client()?;
    for key in kube.block_on(client.preauth_keys())? {
        kube.block_on(client.expire_preauth_key(&key.id))?;
    }
    apply(
        cluster,
        &[
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "headscale-bootstrap", "namespace": NAMESPACE}, "stringData": {"apiKey": headscale.admin_key()?}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "headscale-ca", "namespace": NAMESPACE}, "data": {"ca.crt": headscale.ca_pem()?}}),
            tailnet(cluster, TAILNET)?,
        ],
    )?;
    Ok(kube)
}

/// A Tailnet of the cluster's Headscale.
pub fn tailnet(cluster: &Cluster, name: &str) -> Result<Value> {
    Ok(json!({
        "apiVersion": tailnet_crds::API_VERSION,
        "kind": "Tailnet",
        "metadata": {"name": name},
        "spec": {
            "server": cluster.headscale()?.url(),
            "api": {"caConfigMapRef": {"name": "headscale-ca"}},
            "apiSecretRef": {"name": "headscale-bootstrap", "key": "apiKey"},
            "dns": {"hostsConfigMap": HOSTS},
        },
    }))
}

/// An egress with targets given as (name, address, port).
pub fn egress(name: &str, targets: &[(&str, &str, u16)]) -> Value {
    let targets: Vec<Value> = targets
        .iter()
        .map(|(name, address, port)| json!({"name": name, "address": address, "port": port}))
        .collect();
    json!({
        "apiVersion": tailnet_crds::API_VERSION,
        "kind": "TailnetEgress",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "tailnetRef": {"name": TAILNET},
            "tag": format!("tag:egress-{name}"),
            "consumerNamespaces": ["team-a"],
            "targets": targets,
        },
    })
}

/// A client whose calls block.
pub struct Kube {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Kube {
    pub fn new(cluster: &Cluster) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let client = runtime.block_on(async { cluster.client() })?;
        Ok(Self { client, runtime })
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn cluster_api<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub fn find<K>(&self, name: &str) -> Result<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        Ok(self.block_on(self.api::<K>().get_opt(name))?)
    }

    pub fn get<K>(&self, name: &str) -> Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        self.find(name)?
            .with_context(|| format!("there is no {} {name}", K::kind(&())))
    }

    pub fn create<K>(&self, object: &Value) -> Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Serialize + DeserializeOwned + Debug,
    {
        let object: K = serde_json::from_value(object.clone())?;
        Ok(self.block_on(self.api::<K>().create(&PostParams::default(), &object))?)
    }

    pub fn list<K>(&self) -> Result<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        Ok(self.block_on(self.api::<K>().list(&ListParams::default()))?.items)
    }

    pub fn delete<K>(&self, name: &str) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        self.block_on(self.api::<K>().delete(name, &DeleteParams::background()))?;
        Ok(())
    }
}

/// The condition `type` of an object as (status, reason, message).
pub fn condition(object: &impl Serialize, r#type: &str) -> Option<(String, String, String)> {
    let object = serde_json::to_value(object).ok()?;
    let list = object.pointer("/status/conditions")?.as_array()?.clone();
    let found = list.into_iter().find(|condition| condition["type"] == r#type)?;
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

/// An operator process in the box.
pub struct Operator {
    pub process: Process,
    health: String,
}

impl Operator {
    /// Starts one that acts at once (no Lease), and waits until it is ready.
    pub fn start(cluster: &Cluster, name: &str) -> Result<Self> {
        let operator = Self::start_with(cluster, name, 19403, &["--leader-election", "false"])?;
        operator.wait_ready()?;
        Ok(operator)
    }

    /// Starts one with its health endpoint on `port`, without waiting for anything.
    pub fn start_with(cluster: &Cluster, name: &str, port: u16, more: &[&str]) -> Result<Self> {
        let binary = binaries::workspace("tailnet-operator", "tailnet-operator")?;
        let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)?;
        let kubeconfig = kubeconfig.to_str().context("a path in UTF-8")?;
        let health = format!("{}:{port}", cluster.node_address());
        let mut args = vec![
            "--agent-image",
            "docker.io/tsunaro/tailnet-operator:dev",
            "--health-listen",
            health.as_str(),
            "--facts-interval-seconds",
            "2",
            "--log-level",
            "info,tailnet_operator=debug",
        ];
        args.extend(more);
        let process = cluster.spawn(name, &binary, &args, &[("KUBECONFIG", kubeconfig), ("POD_NAME", name)])?;
        Ok(Self { process, health })
    }

    /// `GET path` of the health endpoint: code and text.
    pub fn health(&self, path: &str) -> Result<(u16, String)> {
        health::get(&self.health, path)
    }

    pub fn wait_ready(&self) -> Result<()> {
        health::wait_ready(&self.process, &self.health)
    }

    /// Whether this one acts, by its own metric.
    pub fn leads(&self) -> bool {
        self.health("/metrics")
            .is_ok_and(|(_, text)| text.lines().any(|line| line == "tailnet_operator_leader 1"))
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait(Duration::from_secs(10))?;
        Ok(())
    }

    /// SIGTERM; the exit must be clean and quick.
    pub fn stop(self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        let exit = self.process.wait(Duration::from_secs(20))?;
        ensure!(
            exit == tailnet_e2e::Exit::Code(0),
            "{exit:?}; log: {}",
            self.process.log_tail(5)
        );
        Ok(())
    }
}
