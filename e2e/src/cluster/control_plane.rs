//! etcd, API server, controller manager and scheduler: their files and command lines.

use std::path::Path;

use anyhow::Result;

use super::audit;
use super::daemons::Daemons;
use crate::boxed::slot::BoxState;
use crate::pki::{self, Authority, Subject};
use crate::tools::Tool;

/// Address range of Services.
pub const SERVICES: &str = "10.96.0.0/16";
/// Address range of Pods.
pub const PODS: &str = "10.244.0.0/16";
/// Address of the cluster's DNS Service.
pub const DNS: &str = "10.96.0.10";
/// Name of the only node.
pub const NODE: &str = "node1";

/// Name of the cluster's CA; its files are `pki/ca.crt` and `pki/ca.key`.
pub const AUTHORITY: &str = "ca";

/// Address of the API server of a box, from inside and from the host.
pub fn server_url(state: &BoxState) -> String {
    format!("https://{}:6443", state.node_address())
}

/// Makes all certificates, keys and kubeconfigs of the cluster: `pki/`, `USER.kubeconfig`.
///
/// # Errors
/// When a file cannot be written.
pub fn write_credentials(state: &BoxState) -> Result<()> {
    let pki = state.dir.join("pki");
    let authority = Authority::create(&pki, AUTHORITY)?;
    pki::service_account_key(&pki)?;
    let node = state.node_address().parse()?;
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    authority.issue(
        "apiserver",
        &Subject {
            common_name: "kube-apiserver",
            names: names.map(str::to_owned).to_vec(),
            addresses: vec!["10.96.0.1".parse()?, "127.0.0.1".parse()?, node],
            ..Subject::default()
        },
    )?;
    authority.issue(
        "front",
        &Subject {
            common_name: "front-proxy",
            ..Subject::default()
        },
    )?;
    let server = server_url(state);
    let user = |name: &str, subject: &Subject<'_>| -> Result<()> {
        let pair = authority.issue(name, subject)?;
        pki::write_kubeconfig(
            &state.dir.join(format!("{name}.kubeconfig")),
            &server,
            authority.pem(),
            &pair,
        )
    };
    user(
        "admin",
        &Subject {
            common_name: "admin",
            organisation: Some("system:masters"),
            ..Subject::default()
        },
    )?;
    user(
        "controllers",
        &Subject {
            common_name: "system:kube-controller-manager",
            ..Subject::default()
        },
    )?;
    user(
        "scheduler",
        &Subject {
            common_name: "system:kube-scheduler",
            ..Subject::default()
        },
    )?;
    user(
        "proxy",
        &Subject {
            common_name: "system:kube-proxy",
            ..Subject::default()
        },
    )?;
    user(
        "kubelet",
        &Subject {
            common_name: &format!("system:node:{NODE}"),
            organisation: Some("system:nodes"),
            names: vec![NODE.to_owned()],
            addresses: vec![node],
        },
    )
}

fn arg(name: &str, value: &Path) -> String {
    format!("--{name}={}", value.display())
}

/// Starts etcd and the API server; the server retries until etcd answers.
///
/// # Errors
/// When a program is not built or does not start.
pub fn start_api(state: &BoxState, daemons: &Daemons) -> Result<()> {
    let dir = &state.dir;
    let mut etcd: Vec<String> = vec![
        Tool::Etcd.built()?.display().to_string(),
        arg("data-dir", &dir.join("etcd")),
    ];
    etcd.extend(
        [
            "--unsafe-no-fsync=true",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--log-level=warn",
        ]
        .map(str::to_owned),
    );
    daemons.start("etcd", etcd, &[])?;

    let policy = dir.join("audit-policy.json");
    std::fs::write(&policy, serde_json::to_string_pretty(&audit::policy())?)?;
    let pki = dir.join("pki");
    let file = |name: &str, path: &str| arg(name, &pki.join(path));
    let mut server = vec![
        Tool::KubeApiserver.built()?.display().to_string(),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--advertise-address={}", state.node_address()),
        file("client-ca-file", "ca.crt"),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("service-account-key-file", "sa.pub"),
        file("service-account-signing-key-file", "sa.key"),
        file("kubelet-client-certificate", "admin.crt"),
        file("kubelet-client-key", "admin.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        file("requestheader-client-ca-file", "ca.crt"),
        file("proxy-client-cert-file", "front.crt"),
        file("proxy-client-key-file", "front.key"),
        arg("audit-policy-file", &policy),
        arg("audit-log-path", &dir.join(audit::FILE)),
    ];
    server.extend(
        [
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            // The default order asks for the node's name first, which nothing resolves.
            "--kubelet-preferred-address-types=InternalIP",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            // A test that restarts the server does not want to wait for its polite goodbye.
            "--shutdown-delay-duration=0s",
        ]
        .map(str::to_owned),
    );
    daemons.start("kube-apiserver", server, &[])
}

/// Starts the controller manager: ServiceAccounts, garbage collection, namespaces, Deployments.
///
/// # Errors
/// When the program is not built or does not start.
pub fn start_controllers(state: &BoxState, daemons: &Daemons) -> Result<()> {
    let pki = state.dir.join("pki");
    let mut argv = vec![
        Tool::KubeControllerManager.built()?.display().to_string(),
        arg("kubeconfig", &state.dir.join("controllers.kubeconfig")),
        arg("service-account-private-key-file", &pki.join("sa.key")),
        arg("root-ca-file", &pki.join("ca.crt")),
        arg("cluster-signing-cert-file", &pki.join("ca.crt")),
        arg("cluster-signing-key-file", &pki.join("ca.key")),
        format!("--cluster-cidr={PODS}"),
    ];
    argv.extend(
        [
            "--use-service-account-credentials",
            "--leader-elect=false",
            // The default throttle makes the default ServiceAccount 5 s late.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--allocate-node-cidrs",
        ]
        .map(str::to_owned),
    );
    daemons.start("kube-controller-manager", argv, &[])
}

/// Starts the scheduler.
///
/// # Errors
/// When the program is not built or does not start.
pub fn start_scheduler(state: &BoxState, daemons: &Daemons) -> Result<()> {
    let kubeconfig = arg("kubeconfig", &state.dir.join("scheduler.kubeconfig"));
    daemons.start(
        "kube-scheduler",
        vec![
            Tool::KubeScheduler.built()?.display().to_string(),
            kubeconfig,
            "--leader-elect=false".to_owned(),
        ],
        &[],
    )
}
