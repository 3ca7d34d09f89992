//! What the process is told on its command line or by its environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::headscale_clients::HeadscaleSettings;

pub use tailnet_crds::names::field_manager::OPERATOR as FIELD_MANAGER;

/// `imagePullPolicy` of the agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    /// Ask the registry at every start.
    Always,
    /// Only when the node does not have the image.
    IfNotPresent,
    /// The image must be on the node.
    Never,
}

impl PullPolicy {
    /// The word as Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        }
    }
}

/// The operator's own flags; logging flags are the process crate's.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Namespace of the operator: egress agents, their Services, keys, claims and facts live here
    #[arg(long, env = "OPERATOR_NAMESPACE", default_value = "tailnet-system")]
    pub operator_namespace: String,

    /// Image of the agents, as in a Pod spec (normally the operator's own image)
    #[arg(long, env = "AGENT_IMAGE")]
    pub agent_image: String,

    /// When the node pulls the agent image
    #[arg(long, env = "AGENT_IMAGE_PULL_POLICY", value_enum, default_value_t = PullPolicy::IfNotPresent)]
    pub agent_image_pull_policy: PullPolicy,

    /// PEM bundle that is trusted for every Tailnet, in addition to its own caConfigMapRef
    #[arg(long, env = "TRUSTED_CA_FILE")]
    pub trusted_ca_file: Option<PathBuf>,

    /// Address of /healthz, /readyz and /metrics (plain HTTP); `[::]` means 0.0.0.0 where the kernel has no IPv6
    #[arg(long, env = "HEALTH_LISTEN", default_value = "[::]:9403")]
    pub health_listen: SocketAddr,

    /// The cluster's DNS domain; aliases inside it are refused
    #[arg(long, env = "CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// A Service range of this cluster: a gateway's addresses must fit it (repeatable, or separated by commas)
    #[arg(long, env = "SERVICE_CIDRS", value_delimiter = ',', value_name = "CIDR")]
    pub service_cidr: Vec<IpNet>,

    /// Namespace whose Pods may scrape the agents' metrics besides the operator (none by default)
    #[arg(long, env = "MONITORING_NAMESPACE")]
    pub monitoring_namespace: Option<String>,

    /// Take the Lease `tailnet-operator` before acting, so that several replicas can run; one of them acts
    #[arg(long, env = "LEADER_ELECTION", default_value_t = true, action = clap::ArgAction::Set)]
    pub leader_election: bool,

    /// Be ready only once the API server has reached the webhook: the chart sets it, so that whoever waits for this
    /// Deployment finds admission at work. Asked once, at start, with a dry run that the webhook denies
    #[arg(long, env = "WAIT_FOR_ADMISSION", default_value_t = false, action = clap::ArgAction::Set)]
    pub wait_for_admission: bool,

    /// Name of this process in the Lease; must differ between replicas (normally the Pod's name)
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,

    /// Seconds after which an object is looked at again although nothing happened
    #[arg(long, env = "RESYNC_SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(10..=86_400))]
    pub resync_seconds: u64,

    /// Seconds between two reads of an agent's status document
    #[arg(long, env = "AGENT_POLL_SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub agent_poll_seconds: u64,

    /// Headscale and its keys.
    #[command(flatten)]
    pub headscale: HeadscaleSettings,
}

impl Settings {
    /// `--resync-seconds` as a duration.
    pub fn resync(&self) -> Duration {
        Duration::from_secs(self.resync_seconds)
    }

    /// `--agent-poll-seconds` as a duration.
    pub fn agent_poll(&self) -> Duration {
        Duration::from_secs(self.agent_poll_seconds)
    }
}
