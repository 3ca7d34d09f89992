//! One small tailnet: Headscale, a router, an agent.

mod agent;
mod headscale;
mod netns;
mod process;
mod servers;

pub use agent::{Agent, Target, http_get, http_get_from};
pub use headscale::Headscale;
pub use netns::in_namespace;
pub use process::{Kept, signal};
pub use servers::*;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The route that the router offers; no address in it exists anywhere but on the tailnet.
pub const ROUTE: &str = "10.200.0.0/24";
/// An address in it.
pub const ROUTED: &str = "10.200.0.7";
/// The machine's own address on its only network; on no route.
pub const MACHINE: &str = "10.99.0.1";

/// Whether the large numbers are wanted.
pub fn long() -> bool {
    std::env::var_os("TAILNET_LONG_TESTS").is_some()
}

/// A tailnet with Headscale and a router, and a folder that goes with it.
pub struct World {
    pub dir: tempfile::TempDir,
    pub headscale: Headscale,
    peers: Vec<Kept>,
}

impl World {
    /// Headscale alone.
    pub async fn without_router() -> World {
        let dir = tempfile::tempdir().unwrap();
        let headscale = Headscale::start(dir.path()).await;
        World {
            dir,
            headscale,
            peers: Vec::new(),
        }
    }

    /// Headscale and a router for [`ROUTE`]; `own_ports` are carried from the router's own address as well, see the example
    /// `tailnet_peer`.
    pub async fn new(own_ports: &[&str]) -> World {
        let mut world = World::without_router().await;
        world.peer("router", ROUTE, own_ports).await;
        world
    }

    /// Starts another router.
    pub async fn peer(&mut self, name: &str, route: &str, own_ports: &[&str]) {
        let key = self.headscale.key("tag:router");
        let mut command = std::process::Command::new(example("tailnet_peer"));
        command
            .args([Headscale::URL, &key, name, route])
            .args(own_ports)
            .envs(self.headscale.env())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut peer = Kept::spawn(name, self.dir.path(), command);
        peer.wait_for_line("ready ").await;
        self.peers.push(peer);
    }

    /// Stops a router in its tracks; returns once every thread of it stands still.
    pub async fn freeze_peer(&self, index: usize) {
        let pid = self.peers[index].pid();
        signal(pid, nix::sys::signal::Signal::SIGSTOP);
        wait_for("the router stands still", Duration::from_secs(5), async || {
            let stopped = |task: std::io::Result<std::fs::DirEntry>| {
                let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
                stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('T'))
            };
            let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            tasks.all(|task| stopped(task) == Some(true)).then_some(())
        })
        .await;
    }

    pub fn thaw_peer(&self, index: usize) {
        signal(self.peers[index].pid(), nix::sys::signal::Signal::SIGCONT);
    }

    /// What a router has logged.
    pub fn peer_log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap()
    }
}

/// An example of this package, which cargo builds beside the tests.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo test -p tailnet-agent`, which builds it",
        path.display()
    );
    path
}

/// Asks every 50 ms until `ask` gives something; panics with `what` after `limit`.
pub async fn wait_for<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ask().await {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
