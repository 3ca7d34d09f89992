//! A real Kubernetes cluster in a box.

mod access;
pub mod audit;
pub mod control_plane;
pub mod daemons;
mod dns;
pub mod kubectl;
pub mod memory;
pub mod namespace;
mod node;
mod owner;
pub mod product;
mod shared;
mod up;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::boxed::client::{Process, Starter};
use crate::boxed::slot::{self, BoxState};
use crate::command::Output;
use crate::headscale::Headscale;
use crate::{command, tools};
use daemons::Daemons;
use owner::Owner;

/// How much of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tier {
    /// etcd and API server: admission, schemas, reconcilers. Nothing runs Pods, and no Service address answers.
    Api,
    /// A whole node: Pods, Services, NetworkPolicy, DNS.
    Full,
}

/// What to bring up.
#[derive(Debug, Clone)]
pub struct Options {
    /// How much of a cluster.
    pub tier: Tier,
    /// Headscale in the box.
    pub headscale: bool,
    /// With [`Tier::Api`], the controller manager too: garbage collection by owner, deletion of namespaces, ServiceAccounts. Always there with [`Tier::Full`].
    pub controllers: bool,
    /// Empty or new folder for everything; a short one is made when absent.
    pub dir: Option<PathBuf>,
    /// Name to find it by, and of its kept logs.
    pub name: String,
    /// Lives on when this process ends; ended by [`Cluster::down`] on what [`Cluster::find`] returns.
    pub detached: bool,
}

impl Options {
    /// A whole node with Headscale.
    pub fn full(name: &str) -> Self {
        Self {
            tier: Tier::Full,
            headscale: true,
            controllers: true,
            dir: None,
            name: name.to_owned(),
            detached: false,
        }
    }

    /// API server, etcd and controller manager, without Headscale.
    pub fn api(name: &str) -> Self {
        Self {
            tier: Tier::Api,
            headscale: false,
            controllers: true,
            dir: None,
            name: name.to_owned(),
            detached: false,
        }
    }

    /// The same with Headscale.
    #[must_use]
    pub fn with_headscale(mut self) -> Self {
        self.headscale = true;
        self
    }
}

/// What is remembered of a cluster beside its box: `cluster.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    tier: Tier,
    headscale: bool,
    /// Milliseconds from the start to each step's end.
    timings: Vec<(String, u64)>,
}

const RECORD: &str = "cluster.json";

/// A running cluster. Dropping the one that [`Cluster::up`] returned takes it down, unless it was made detached.
#[derive(Debug)]
pub struct Cluster {
    state: BoxState,
    record: Record,
    daemons: Daemons,
    owner: Option<Owner>,
}

impl Cluster {
    /// Brings a cluster up. Missing servers are built and missing Debian packages installed first, visibly.
    ///
    /// # Errors
    /// When a step fails; what was begun is removed and the logs are kept (the text says where).
    pub fn up(options: Options) -> Result<Self> {
        up::up(options)
    }

    /// The living cluster called `name`, whoever made it.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(name: &str) -> Result<Self> {
        let living = slot::living();
        let Some(state) = living.iter().find(|state| state.name == name) else {
            let names: Vec<_> = living.iter().map(|state| state.name.as_str()).collect();
            bail!(
                "no cluster {name} is running; running: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(" ")
                }
            );
        };
        Self::attach(state.clone())
    }

    /// All living clusters of this machine.
    pub fn list() -> Vec<BoxState> {
        slot::living()
    }

    fn attach(state: BoxState) -> Result<Self> {
        let text = std::fs::read_to_string(state.dir.join(RECORD))
            .with_context(|| format!("cluster {} is not up yet", state.name))?;
        let daemons = Daemons::new(Starter::inside(&state.dir), state.dir.join("daemons"))?;
        Ok(Self {
            record: serde_json::from_str(&text)?,
            daemons,
            owner: None,
            state,
        })
    }

    /// Takes the cluster down; when this returns, nothing of it is left. Returns how long it took.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn down(mut self) -> Result<Duration> {
        let start = Instant::now();
        self.end()?;
        Ok(start.elapsed())
    }

    fn end(&mut self) -> Result<()> {
        match self.owner.take() {
            Some(mut owner) => owner.end(),
            None => owner::end_foreign(&self.state),
        }
    }

    /// Name, number, folder and processes of the box.
    pub fn state(&self) -> &BoxState {
        &self.state
    }

    /// Name given at `up`.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Folder with everything of the cluster.
    pub fn dir(&self) -> &Path {
        &self.state.dir
    }

    /// Address of the node, the API server and Headscale: 172.31.N.2.
    pub fn node_address(&self) -> String {
        self.state.node_address()
    }

    /// Address of this machine as the box sees it: 172.31.N.1. A webhook that runs on the host is reached there.
    pub fn host_address(&self) -> String {
        self.state.host_address()
    }

    /// How much of a cluster this is.
    pub fn tier(&self) -> Tier {
        self.record.tier
    }

    /// Each step of `up` with the time from the start to its end.
    pub fn timings(&self) -> Vec<(&str, Duration)> {
        self.record
            .timings
            .iter()
            .map(|(name, millis)| (name.as_str(), Duration::from_millis(*millis)))
            .collect()
    }

    /// The cluster's long-running programs: `etcd`, `kube-apiserver`, `kubelet`, `headscale`, ...
    pub fn daemons(&self) -> &Daemons {
        &self.daemons
    }

    /// Starts programs inside the box (its network, its mounts, its names).
    pub fn inside(&self) -> Starter {
        Starter::inside(self.dir())
    }

    /// Starts programs in the host's namespaces; they end with the box.
    pub fn host(&self) -> Starter {
        Starter::host(self.dir())
    }

    /// Starts a program inside the box, with its output in `logs/NAME.log`. Killed when the handle is dropped.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, name: &str, binary: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Process> {
        Self::spawn_by(&self.inside(), name, binary, args, env)
    }

    /// Starts a program on the host, where it reaches the cluster over the link; see [`Cluster::spawn`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn_on_host(&self, name: &str, binary: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Process> {
        Self::spawn_by(&self.host(), name, binary, args, env)
    }

    fn spawn_by(starter: &Starter, name: &str, binary: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Process> {
        let mut argv = vec![binary.display().to_string()];
        argv.extend(args.iter().map(|arg| (*arg).to_owned()));
        starter.spawn(name, &argv, env)
    }

    /// Runs kubectl as cluster admin. A non-zero exit is in the [`Output`]: `.success()?` or `.failure()?` makes it an error.
    ///
    /// # Errors
    /// When kubectl cannot be run.
    pub fn kubectl(&self, args: &[&str]) -> Result<Output> {
        kubectl::run(&self.kubeconfig(), args, "")
    }

    /// Runs kubectl as cluster admin with `input` on its standard input (`-f -`).
    ///
    /// # Errors
    /// When kubectl cannot be run.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<Output> {
        kubectl::run(&self.kubeconfig(), args, input)
    }

    /// `kubectl apply -f -`: returns what kubectl printed, one line per object.
    ///
    /// # Errors
    /// When the API server refuses, with kubectl's text.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        self.kubectl_with_input(&["apply", "-f", "-"], manifests)?
            .success()
            .map(str::to_owned)
            .context("kubectl apply")
    }

    /// `kubectl apply -f -` that has to be refused: returns what kubectl printed on standard error.
    ///
    /// # Errors
    /// When it is accepted.
    pub fn apply_refused(&self, manifests: &str) -> Result<String> {
        self.kubectl_with_input(&["apply", "-f", "-"], manifests)?
            .failure()
            .map(str::to_owned)
            .context("kubectl apply")
    }

    /// Runs the pinned helm as cluster admin.
    ///
    /// # Errors
    /// When helm cannot be run. A non-zero exit is in the [`Output`].
    pub fn helm(&self, args: &[&str]) -> Result<Output> {
        let home = self.dir().join("helm");
        let mut command = std::process::Command::new(tools::Tool::Helm.built()?);
        command.args(args).env("KUBECONFIG", self.kubeconfig());
        for (variable, folder) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
        ] {
            command.env(variable, home.join(folder));
        }
        command::output(&mut command, "", Duration::from_secs(300))
    }

    /// Runs a command in a Pod and returns its standard output.
    ///
    /// # Errors
    /// When it fails, with both streams.
    pub fn pod_exec(&self, namespace: &str, pod: &str, argv: &[&str]) -> Result<String> {
        let done = self.pod_exec_output(namespace, pod, argv)?;
        done.success()
            .map(str::to_owned)
            .with_context(|| format!("in Pod {namespace}/{pod}: {}", argv.join(" ")))
    }

    /// Runs a command in a Pod, which may fail.
    ///
    /// # Errors
    /// When kubectl cannot be run.
    pub fn pod_exec_output(&self, namespace: &str, pod: &str, argv: &[&str]) -> Result<Output> {
        let mut args = vec!["exec", "-n", namespace, pod, "--"];
        args.extend(argv);
        self.kubectl(&args)
    }

    /// Imports an OCI archive into containerd; its index names the image (`io.containerd.image.name`). Use `imagePullPolicy: Never`.
    ///
    /// # Errors
    /// Without a node, or when containerd refuses the archive.
    pub fn load_image(&self, archive: &Path) -> Result<()> {
        ensure!(
            self.tier() == Tier::Full,
            "an API-only cluster has no containerd to load images into"
        );
        node::load_image(&self.state, archive)
    }

    /// All complete events of the audit log, oldest first: writes on our kinds with their objects, see [`audit::policy`].
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn audit_log(&self) -> Result<Vec<Value>> {
        audit::read(self.dir())
    }

    /// Ends the API server with SIGTERM, starts it again, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready within 60 seconds.
    pub fn restart_apiserver(&self) -> Result<()> {
        self.daemons.stop("kube-apiserver")?;
        self.daemons.start_again("kube-apiserver")?;
        self.wait_api_ready(Duration::from_secs(60))
    }

    /// Headscale in the box.
    ///
    /// # Errors
    /// When the cluster was brought up without it.
    pub fn headscale(&self) -> Result<Headscale> {
        ensure!(
            self.record.headscale,
            "cluster {} was brought up without Headscale (Options::headscale)",
            self.name()
        );
        Headscale::attach(&self.state, &self.daemons)
    }

    /// Copies all logs (daemons, spawned programs, audit) to `target/e2e-logs/LABEL` and returns that folder.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn keep_logs(&self, label: &str) -> Result<PathBuf> {
        crate::kept_logs::keep(self.dir(), label)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.owner.is_none() {
            return;
        }
        if std::thread::panicking() {
            let _ = self.keep_logs(&format!("{}-at-panic", self.name()));
        }
        if let Err(error) = self.end() {
            eprintln!("taking cluster {} down: {error:#}", self.name());
        }
    }
}
