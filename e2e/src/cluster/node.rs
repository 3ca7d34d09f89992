//! The node: containerd, kubelet, kube-proxy (nftables) and kube-router (NetworkPolicy).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::Api;
use serde_json::json;

use super::Cluster;
use super::control_plane::{DNS, NODE, PODS, SERVICES};
use super::daemons::Daemons;
use crate::boxed::cgroups;
use crate::boxed::slot::BoxState;
use crate::tools::Tool;
use crate::{command, images, runtime, wait};

/// Addresses of this node's Pods: the first /24 of [`PODS`].
const NODE_PODS: &str = "10.244.0.0/24";

fn socket(state: &BoxState) -> PathBuf {
    state.dir.join("containerd.sock")
}

/// Starts containerd.
///
/// # Errors
/// When its files cannot be written or it does not start.
pub fn start_containerd(state: &BoxState, daemons: &Daemons) -> Result<()> {
    let dir = state.dir.display();
    let cni = state.dir.join("cni");
    std::fs::create_dir_all(&cni)?;
    let bridge = json!({
        "cniVersion": "0.4.0",
        "name": "box",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": NODE_PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    std::fs::write(cni.join("10-box.conflist"), serde_json::to_string_pretty(&bridge)?)?;
    // restrict_oom_score_adj: without CAP_SYS_RESOURCE runc fails otherwise ("can't get final child's PID from pipe").
    // unprivileged ports: CoreDNS listens on 53 without any capability. The opt plugin would create /opt/containerd on the machine.
    let config = format!(
        r#"version = 2
root = "{dir}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{dir}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{dir}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"#,
        pause = images::PAUSE,
    );
    let file = state.dir.join("containerd.toml");
    std::fs::write(&file, config)?;
    daemons.start(
        "containerd",
        vec![
            "containerd".to_owned(),
            "--config".to_owned(),
            file.display().to_string(),
        ],
        &[],
    )
}

/// Imports an image archive.
///
/// # Errors
/// When containerd refuses it, with its text.
pub fn load_image(state: &BoxState, archive: &Path) -> Result<()> {
    let mut ctr = std::process::Command::new("ctr");
    ctr.arg("--address")
        .arg(socket(state))
        .args(["--namespace", "k8s.io", "images", "import"])
        .arg(archive);
    command::output(&mut ctr, "", Duration::from_secs(120))?
        .success()
        .with_context(|| format!("importing {}", archive.display()))?;
    Ok(())
}

/// Waits for containerd, then imports `archives`.
///
/// # Errors
/// When containerd does not answer within 30 seconds or refuses an archive.
pub fn import_at_start(state: &BoxState, archives: &[PathBuf]) -> Result<()> {
    let socket = socket(state);
    wait::wait_for("containerd answers", Duration::from_secs(30), || {
        std::os::unix::net::UnixStream::connect(&socket).map(drop)
    })?;
    archives.iter().try_for_each(|archive| load_image(state, archive))
}

fn kubelet_config(state: &BoxState) -> serde_json::Value {
    let pki = |name: &str| state.dir.join("pki").join(name).display().to_string();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": pki("ca.crt")}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", cgroups::name(state.n)),
        "failCgroupV1": false,
        "containerRuntimeEndpoint": format!("unix://{}", socket(state).display()),
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "failSwapOn": false,
        "allowedUnsafeSysctls": ["net.ipv4.ip_forward"],
        "tlsCertFile": pki("kubelet.crt"),
        "tlsPrivateKeyFile": pki("kubelet.key"),
        // The disk is the machine's own and fuller than an eviction manager likes.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    })
}

/// Starts kubelet and kube-proxy.
///
/// # Errors
/// When a program is not built or does not start.
pub fn start(state: &BoxState, daemons: &Daemons) -> Result<()> {
    let file = state.dir.join("kubelet.json");
    std::fs::write(&file, serde_json::to_string_pretty(&kubelet_config(state))?)?;
    let kubeconfig = |user: &str| {
        format!(
            "--kubeconfig={}",
            state.dir.join(format!("{user}.kubeconfig")).display()
        )
    };
    let host = format!("--hostname-override={NODE}");
    daemons.start(
        "kubelet",
        vec![
            Tool::Kubelet.built()?.display().to_string(),
            format!("--config={}", file.display()),
            kubeconfig("kubelet"),
            host.clone(),
            format!("--node-ip={}", state.node_address()),
        ],
        &[],
    )?;
    let mut proxy = vec![
        Tool::KubeProxy.built()?.display().to_string(),
        kubeconfig("proxy"),
        format!("--cluster-cidr={PODS}"),
        host.clone(),
    ];
    proxy.extend(
        [
            "--proxy-mode=nftables",
            // The connection-tracking limits are the whole machine's.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        ]
        .map(str::to_owned),
    );
    daemons.start("kube-proxy", proxy, &[])?;
    Ok(())
}

/// Starts kube-router, which enforces NetworkPolicy. It ends at once when the node is not registered yet.
///
/// # Errors
/// When the program is not built or does not start.
pub fn start_policies(state: &BoxState, daemons: &Daemons) -> Result<()> {
    let router = vec![
        Tool::KubeRouter.built()?.display().to_string(),
        "--run-router=false".to_owned(),
        "--run-firewall=true".to_owned(),
        "--run-service-proxy=false".to_owned(),
        format!("--kubeconfig={}", state.dir.join("admin.kubeconfig").display()),
        format!("--hostname-override={NODE}"),
        format!("--service-cluster-ip-range={SERVICES}"),
    ];
    daemons.start("kube-router", router, &[])
}

/// Waits until the node is Ready.
///
/// # Errors
/// When it is not within `deadline`.
pub fn wait_ready(cluster: &Cluster, deadline: Duration) -> Result<()> {
    let client = cluster.harness_client()?;
    runtime::block_on(async move {
        let nodes: Api<Node> = Api::all(client);
        wait::wait_for_async("the node is Ready", deadline, || async {
            let node = nodes.get(NODE).await.map_err(|error| error.to_string())?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            match conditions.iter().find(|condition| condition.type_ == "Ready") {
                Some(ready) if ready.status == "True" => Ok(()),
                Some(ready) => Err(ready.message.clone().unwrap_or_default()),
                None => Err("no Ready condition".to_owned()),
            }
        })
        .await
    })?
}

/// Waits until Pods can be made in the default namespace.
///
/// # Errors
/// When there is no default ServiceAccount within `deadline`.
pub fn wait_default_service_account(cluster: &Cluster, deadline: Duration) -> Result<()> {
    let client = cluster.harness_client()?;
    runtime::block_on(async move {
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        wait::wait_for_async("the default ServiceAccount exists", deadline, || async {
            accounts.get("default").await.map(drop)
        })
        .await
    })?
}
