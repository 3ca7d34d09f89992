//! `cargo xtask cluster`: a cluster to try things on.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use tailnet_e2e::cluster::{Cluster, Options, Tier};
use tailnet_e2e::images;
use tailnet_e2e::site::{self, SiteSpec, postgres};
use tailnet_e2e::tools::Tool;

use crate::image;
use crate::workspace::Workspace;

/// Flags of `cargo xtask cluster`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Bring one up; it lives on when this command ends
    Up {
        /// Name to find it by
        #[arg(default_value = "dev")]
        name: String,
        /// Only API server, etcd and controller manager (and Headscale): no Pods, up in a few seconds
        #[arg(long)]
        api_only: bool,
        /// Do not build and load our image
        #[arg(long)]
        without_image: bool,
        /// With the image that `cargo xtask image` makes for somebody's cluster, which takes minutes to build
        #[arg(long, conflicts_with_all = ["api_only", "without_image"])]
        release: bool,
    },
    /// Take one down
    Down {
        /// Its name
        #[arg(default_value = "dev")]
        name: String,
    },
    /// Add a remote network: a router of the tailnet, and behind it PostgreSQL, an HTTPS and an echo server. It goes with the cluster
    Site {
        /// Name of the site and of its router in Headscale, a DNS label
        #[arg(default_value = "branch")]
        name: String,
        /// Name of the cluster
        #[arg(long, default_value = "dev")]
        cluster: String,
    },
    /// List what is running, with memory and how to look around
    Status,
}

/// Runs it.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    match &args.command {
        Command::Up {
            name,
            api_only,
            without_image,
            release,
        } => {
            let image = (!api_only && !without_image).then(|| image::Purpose::release(*release));
            up(workspace, name, *api_only, image)
        }
        Command::Down { name } => {
            let took = Cluster::find(name)?.down()?;
            println!("cluster {name} is down ({:.1} s)", took.as_secs_f64());
            Ok(())
        }
        Command::Site { name, cluster } => add_site(cluster, name),
        Command::Status => status(workspace),
    }
}

fn up(workspace: &Workspace, name: &str, api_only: bool, image: Option<image::Purpose>) -> Result<()> {
    if Cluster::list().iter().any(|state| state.name == name) {
        bail!(
            "cluster {name} is running already; `cargo xtask cluster status` shows it, `cargo xtask cluster down {name}` ends it"
        );
    }
    let archive = image.map(|purpose| image::build(workspace, purpose)).transpose()?;
    let options = if api_only {
        Options::api(name).with_headscale()
    } else {
        Options::full(name)
    };
    let cluster = Cluster::up(Options {
        detached: true,
        ..options
    })?;
    if let Some(archive) = archive {
        image::load(&cluster, &archive)?;
    }
    for (step, at) in cluster.timings() {
        println!("{:>6.1} s  {step}", at.as_secs_f64());
    }
    println!();
    describe(workspace, &cluster)
}

fn add_site(cluster: &str, name: &str) -> Result<()> {
    ensure!(
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
        "{name:?} is no name of a site: lower-case letters, digits and dashes"
    );
    let cluster = Cluster::find(cluster)?;
    let site = cluster.site(SiteSpec::new(name))?.keep();
    let client = cluster.headscale()?.client()?;
    let nodes = tokio::runtime::Runtime::new()?.block_on(client.nodes())?;
    let router = nodes
        .iter()
        .find(|node| node.given_name == name)
        .with_context(|| format!("router {name} is not in Headscale"))?;
    println!(
        "router {name} (tag:router) advertises {}; only the tailnet leads there",
        site::ROUTES.join(" and ")
    );
    println!(
        "  PostgreSQL {}, database {}, user {}, password {}",
        site::POSTGRES,
        postgres::DATABASE,
        postgres::USER,
        postgres::PASSWORD
    );
    println!("  HTTPS      {}, as {}; its CA:", site::HTTPS, site::HTTPS_NAME);
    println!("{}", site.ca_pem()?.trim_end());
    println!("  echo       {}", site::ECHO);
    println!("approve its routes:");
    println!(
        "  headscale nodes approve-routes --identifier {} --routes {}",
        router.id,
        site::ROUTES.join(",")
    );
    Ok(())
}

fn status(workspace: &Workspace) -> Result<()> {
    let running = Cluster::list();
    if running.is_empty() {
        println!("no cluster is running; `cargo xtask cluster up` brings one up");
    }
    for state in running {
        let cluster = Cluster::find(&state.name)?;
        describe(workspace, &cluster)?;
        let memory = cluster.memory()?;
        let total: u64 = memory.iter().map(|usage| usage.proportional).sum();
        println!("  memory     {} MiB in {} programs", total / 1024, memory.len());
        println!();
    }
    Ok(())
}

/// How to use a cluster: every line that is a command can be copied into a shell.
fn describe(workspace: &Workspace, cluster: &Cluster) -> Result<()> {
    let tier = match cluster.tier() {
        Tier::Api => "API server without nodes",
        Tier::Full => "one node",
    };
    println!("cluster {} ({tier})", cluster.name());
    println!("  files in {}; logs/ has every program's log", cluster.dir().display());
    println!("  export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("  alias kubectl={}", Tool::Kubectl.path()?.display());
    let headscale = match cluster.headscale() {
        Ok(headscale) => headscale,
        Err(_) => {
            println!("  no Headscale");
            println!("  cargo xtask cluster down {}", cluster.name());
            return Ok(());
        }
    };
    println!(
        "  alias headscale='{} --config {}'",
        Tool::Headscale.path()?.display(),
        headscale.dir().join("config.yaml").display()
    );
    println!(
        "  Headscale: {} for Pods and routers, {} for this machine; its CA: {}",
        headscale.url(),
        headscale.host_url(),
        headscale.ca_file().display()
    );
    if cluster.tier() == Tier::Full {
        println!("  alias helm={}", Tool::Helm.path()?.display());
        match image::loaded(cluster) {
            Some(image) => install(workspace, &image, &headscale.ca_file())?,
            None => println!("  our image is not loaded, so the chart cannot be installed"),
        }
        println!("A remote network with a router, to connect to:");
        println!("  cargo xtask cluster site --cluster {}", cluster.name());
    }
    println!("Take it down:");
    println!("  cargo xtask cluster down {}", cluster.name());
    Ok(())
}

/// The commands that install the chart and connect it to the cluster's Headscale.
fn install(workspace: &Workspace, image: &str, ca: &Path) -> Result<()> {
    let (repository, tag) = image.rsplit_once(':').context("an image has a tag")?;
    let (resolver, resolver_tag) = images::COREDNS.rsplit_once(':').context("an image has a tag")?;
    let seeds = workspace.root.join("crds/seeds");
    println!("Install the chart (image {image} is on the node):");
    println!(
        "  helm install tailnet-operator {} --namespace tailnet-system --create-namespace --wait \\",
        workspace.root.join("chart").display()
    );
    println!("    --set image.repository={repository} --set-string image.tag={tag} --set image.pullPolicy=Never \\");
    println!("    --set-file trustedCA={}", ca.display());
    println!("  for aliases, also: --set resolver.enabled=true --set resolver.replicas=1 \\");
    println!(
        "    --set resolver.image.repository={resolver} --set-string resolver.image.tag={resolver_tag} --set resolver.image.pullPolicy=Never"
    );
    println!("Connect it to Headscale:");
    println!("  kubectl -n tailnet-system create secret generic headscale-bootstrap \\");
    println!("    --from-literal=apiKey=\"$(headscale apikeys create --expiration 24h)\"");
    println!("  kubectl apply -f {}", seeds.join("blog-tailnet.yaml").display());
    Ok(())
}
