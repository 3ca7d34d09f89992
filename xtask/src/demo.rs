//! `cargo xtask demo`: the whole path on a real cluster, from nothing to a query that runs and wrong manifests that are refused.

mod account;
mod install;
mod manifests;
mod refused;
mod remote;
mod works;

use std::time::Duration;

use anyhow::{Context, Result};
use tailnet_e2e::cluster::{Cluster, Options};
use tailnet_e2e::prerequisites::{self, Need};
use tailnet_e2e::tools::{self, Tool};

use self::account::{Account, says};
use crate::image;
use crate::workspace::Workspace;

/// Name of the demo's cluster.
const NAME: &str = "demo";
/// The operator's namespace.
const OPERATOR: &str = "tailnet-system";
/// The namespace whose Pods may connect.
const TEAM: &str = "team-a";
/// A namespace whose Pods may not.
const STRANGER: &str = "team-b";
/// The Pod that connects, in both namespaces.
const CLIENT: &str = "client";

/// Longest wait for anything in the cluster.
const PATIENCE: Duration = Duration::from_secs(120);

/// Flags of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Take down the demo that is running, and do nothing else
    #[arg(long)]
    down: bool,
    /// Take everything down at the end instead of leaving it for you to look around
    #[arg(long, conflicts_with = "down")]
    once: bool,
    /// With the image that `cargo xtask image` makes for somebody's cluster, which takes minutes to build
    #[arg(long, conflicts_with = "down")]
    release: bool,
}

/// Runs the demo.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let running = Cluster::list().iter().any(|state| state.name == NAME);
    if args.down && !running {
        println!("no demo is running");
        return Ok(());
    }
    if running {
        let took = Cluster::find(NAME)?.down()?;
        println!("the demo that was running is down ({:.1} s)", took.as_secs_f64());
    }
    if args.down {
        return Ok(());
    }
    prerequisites::ensure_present(&[Need::Api, Need::Node, Need::Site, Need::Image])?;
    tools::ensure(&Tool::CLUSTER)?;
    let archive = image::build(workspace, image::Purpose::release(args.release))?;

    let mut account = Account::begin(
        "tailnet-operator: from nothing to a query over the tailnet, and three manifests that are refused",
    );
    let cluster = account.step(
        "A Kubernetes cluster with one node, DNS and NetworkPolicy, and a Headscale server beside it",
        || {
            let cluster = Cluster::up(Options {
                detached: !args.once,
                ..Options::full(NAME)
            })?;
            says(&format!(
                "Kubernetes {}, Headscale {} at {}",
                Tool::KubeApiserver.version()?,
                Tool::Headscale.version()?,
                cluster.headscale()?.url()
            ));
            image::load(&cluster, &archive)?;
            says(&format!("image {} loaded", image::REFERENCE));
            Ok(cluster)
        },
    )?;
    let told = tell(workspace, &cluster, &mut account);
    if let Err(error) = told {
        let logs = cluster
            .keep_namespace(OPERATOR, NAME)
            .and_then(|()| cluster.keep_logs(NAME));
        let error = match logs {
            Ok(folder) => error.context(format!("the demo failed; logs are kept in {}", folder.display())),
            Err(_) => error.context("the demo failed"),
        };
        if !args.once {
            look_around(&cluster);
        }
        return Err(error);
    }
    account.summary();
    if args.once {
        let took = cluster.down()?;
        println!("\nEverything is down again ({:.1} s).", took.as_secs_f64());
    } else {
        look_around(&cluster);
    }
    Ok(())
}

fn tell(workspace: &Workspace, cluster: &Cluster, account: &mut Account) -> Result<()> {
    let site = remote::policy_and_site(cluster, account)?.keep();
    account.step("Headscale approves the router's routes", || remote::approve(cluster))?;
    let stanza = account.step("helm install", || install::helm(workspace, cluster))?;
    account.step(
        "kubectl apply: which tailnet, and what Pods of team-a may reach in it",
        || install::connect(workspace, cluster),
    )?;
    account.step("The cluster's DNS forwards the alias to our resolver", || {
        install::dns(cluster, &stanza)
    })?;
    account.step("Clients in team-a and team-b", || {
        works::clients(cluster, &site.ca_pem()?)
    })?;
    account.step("A Pod of team-a queries the database behind the router", || {
        works::query(cluster)
    })?;
    account.step(
        "It also calls the API there by its own name, with its own certificate",
        || works::https(cluster),
    )?;
    account.step("A Pod of team-b may not", || works::stranger(cluster))?;
    account.step(
        "Three wrong manifests are refused, each with field, reason and fix",
        || refused::all(cluster),
    )
}

/// How to look around, and how to end it.
fn look_around(cluster: &Cluster) {
    println!("\nIt is still running. Look around:");
    println!("  export KUBECONFIG={}", cluster.kubeconfig().display());
    if let Ok(kubectl) = Tool::Kubectl.path() {
        println!("  alias kubectl={}", kubectl.display());
    }
    println!("  kubectl get tailnet,tailnetegress -A");
    println!("  kubectl -n {OPERATOR} describe tailnetegress team-a");
    println!("  kubectl -n {TEAM} exec -it {CLIENT} -- sh");
    println!("Take it down:\n  cargo xtask demo --down");
}

/// Shows a kubectl command, runs it, shows what it printed, and gives that back.
fn kubectl(cluster: &Cluster, args: &[&str]) -> Result<String> {
    account::command(&format!("kubectl {}", args.join(" ")));
    let done = cluster.kubectl(args)?;
    let text = done.success().with_context(|| format!("kubectl {}", args.join(" ")))?;
    says(text);
    Ok(text.to_owned())
}
