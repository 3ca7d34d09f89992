//! Flags of `policy`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use ipnet::IpNet;
use tailnet_crds::names::DEFAULT_OPERATOR_NAMESPACE;

/// Flags of `policy`.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PolicyCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Print the policy that the operator would write: the base document plus what the objects need.
    ///
    /// Of files alone it is the policy of those files: a set that lacks objects gives a document without their entries.
    ///
    /// Exit status: 0, or 2 when nothing can be rendered, or when something that it rests on could not be listed.
    Render(Source),
    /// Print the difference between the live policy and the one that the operator would write.
    ///
    /// The live one is the file of --live (as `headscale policy get` prints it), or with --cluster the one that the operator
    /// read last.
    ///
    /// Exit status: 0 no difference, 1 a difference, 2 it cannot be told.
    Diff(Source),
    /// Say which rule lets SRC reach DST:PORT over TCP, and from which object or which line of the base document it is.
    ///
    /// The rules are those of the policy that the operator would write; with --live and without files, those of that file.
    ///
    /// Exit status: 0 allowed (or allowed as far as can be told without Headscale), 1 refused, 2 it cannot be told.
    Why(WhyArgs),
}

/// Flags of `policy why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Who: a user (ann@), group:NAME, tag:NAME, a host of the policy, or an address.
    pub src: String,
    /// What: tag:NAME:PORT, HOST:PORT or ADDRESS:PORT, an IPv6 address in square brackets.
    #[arg(value_name = "DST:PORT")]
    pub dst: String,
    /// Where the policy comes from.
    #[command(flatten)]
    pub source: Source,
}

/// Where the policy comes from.
#[derive(Debug, Args)]
pub struct Source {
    /// Files, directories (all .yaml, .yml and .json files below them), or - for standard input: the Tailnet, the ConfigMap with its base document, and the objects.
    #[arg(value_name = "FILE|DIR|-")]
    pub paths: Vec<PathBuf>,
    /// The Tailnet; needed where there are several with a spec.policy.
    #[arg(long, value_name = "NAME")]
    pub tailnet: Option<String>,
    /// The live policy, as `headscale policy get` prints it.
    #[arg(long, value_name = "FILE")]
    pub live: Option<PathBuf>,
    /// Take the objects of the cluster of the current context too; files replace what is there. Nothing is written.
    #[arg(long)]
    pub cluster: bool,
    /// Context of the kubeconfig for --cluster instead of the current one.
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub context: Option<String>,
    /// Kubeconfig file for --cluster instead of the usual ones (KUBECONFIG, ~/.kube/config, service account).
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Longest time for reading the cluster, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = crate::connect::seconds, requires = "cluster")]
    pub timeout: Duration,
    /// The organisation's policies in CEL, a file or a directory: ConfigMaps with the label tsunaro.io/admission-policy, or bare policy documents. Those among the files and in the cluster count too.
    #[arg(long, value_name = "FILE|DIR")]
    pub policies: Vec<PathBuf>,
    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// Namespace in which the operator is installed.
    #[arg(long, value_name = "NAME", env = "OPERATOR_NAMESPACE", default_value = DEFAULT_OPERATOR_NAMESPACE)]
    pub operator_namespace: String,
    /// DNS domain of the cluster, as the operator was given it.
    #[arg(long, value_name = "NAME", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Service range of the cluster, as the operator was given it: a gateway that does not fit it has no entries. May be repeated.
    #[arg(long = "service-cidr", value_name = "CIDR")]
    pub service_cidrs: Vec<IpNet>,
}
