//! PID 1 of the box: prepares mounts and the network, then starts programs as it is asked to.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

use super::server::{self, Children};
use super::{files, slot};
use crate::command;

/// Machine paths that the node's programs insist on; each is a folder of the box's own.
const FOLDERS: [&str; 4] = [
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
];

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("cannot mount {} over {}", from.display(), to.display()))
}

fn mounts(dir: &Path) -> Result<()> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), plain, None::<&str>).context("cannot mount /proc")?;
    // /run is the box's own. So are the parents of FOLDERS: making these on the machine's disk would leave them there.
    for folder in ["/run", "/var/lib", "/var/log"] {
        mount(
            Some("tmpfs"),
            folder,
            Some("tmpfs"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Some("mode=755"),
        )
        .with_context(|| format!("cannot mount {folder}"))?;
    }
    for folder in ["/run/netns", "/run/lock"] {
        fs::create_dir_all(folder)?;
    }
    // kubelet and containerd pass mounts on to Pods; they stay within the box because the whole tree was made private before.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SHARED,
        None::<&str>,
    )
    .context("cannot share the mounts inside the box")?;
    let overlay = dir.join(files::OVERLAY);
    for folder in FOLDERS {
        let own = overlay.join(folder.trim_start_matches('/'));
        fs::create_dir_all(&own)?;
        fs::create_dir_all(folder)?;
        bind(&own, Path::new(folder))?;
    }
    for file in ["/etc/hosts", "/etc/resolv.conf"] {
        bind(&overlay.join(file.trim_start_matches('/')), Path::new(file))?;
    }
    Ok(())
}

fn network(n: u8) -> Result<()> {
    let host = format!("172.31.{n}.1");
    command::run("ip", &["link", "set", "lo", "up"])?;
    command::run("ip", &["addr", "add", &format!("172.31.{n}.2/24"), "dev", "eth0"])?;
    command::run("ip", &["link", "set", "eth0", "up"])?;
    // A Service address needs a route before kube-proxy can rewrite it. There is no default route: nothing leaves the machine, and a site's
    // network is unreachable at once instead of after a timeout.
    command::run("ip", &["route", "add", "10.96.0.0/16", "via", &host])?;
    for name in ["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"] {
        let path = Path::new("/proc/sys").join(name);
        if path.exists() {
            fs::write(&path, "1").with_context(|| format!("cannot set {name}"))?;
        }
    }
    Ok(())
}

/// Names and resolver of the box; PID 1 mounts them over the machine's own.
///
/// # Errors
/// When the files cannot be written.
pub fn write_names(dir: &Path, hosts: &str, resolver: &str) -> Result<()> {
    let etc = dir.join(files::OVERLAY).join("etc");
    fs::create_dir_all(&etc)?;
    // Written in place: the mounts hold on to the files themselves.
    fs::write(etc.join("hosts"), hosts)?;
    fs::write(
        etc.join("resolv.conf"),
        format!("nameserver {resolver}\noptions timeout:2 attempts:2\n"),
    )?;
    Ok(())
}

/// Runs as PID 1 for ever.
///
/// # Errors
/// When a mount, the network or the socket cannot be made.
pub fn run(dir: &Path, n: u8) -> Result<()> {
    mounts(dir)?;
    network(n)?;
    let children = Arc::new(Children::default());
    let reaped = Arc::clone(&children);
    std::thread::spawn(move || reaped.reap(|_, _| {}));
    // The kernel kills everything here when PID 1 ends, so nothing has to be bound to a parent.
    server::serve(&dir.join(files::INIT_SOCKET), children, false)?.run();
    Ok(())
}

/// The address that [`slot::BoxState::node_address`] names, for use before there is a state.
pub fn node_address(n: u8) -> String {
    slot::BoxState {
        n,
        name: String::new(),
        dir: Path::new("").into(),
        supervisor: 0,
        init: 0,
    }
    .node_address()
}
