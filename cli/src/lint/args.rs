//! Flags of `lint`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use tailnet_crds::names::DEFAULT_OPERATOR_NAMESPACE;

use crate::connect::seconds;

/// Flags of `lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    /// Files, directories (all .yaml, .yml and .json files below them), or - for standard input.
    #[arg(value_name = "FILE|DIR|-", required_unless_present = "explain")]
    pub paths: Vec<PathBuf>,
    /// How findings are printed: text has a line per finding; json is one array of {file, line, kind, namespace, name, rule, severity, field, message}; sarif is SARIF 2.1.0 for code scanning; github has workflow commands that become annotations of a pull request.
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Output,
    /// The files as they were before, a file or a directory: an object that is there too is checked as an update of it.
    #[arg(long, value_name = "FILE|DIR")]
    pub old: Vec<PathBuf>,
    /// The organisation's policies in CEL, a file or a directory: ConfigMaps with the label tsunaro.io/admission-policy, or bare policy documents.
    #[arg(long, value_name = "FILE|DIR")]
    pub policies: Vec<PathBuf>,
    /// Read the cluster of the current context too: its objects, namespaces, Services, policies and what is known of Headscale. Files are checked as updates of what is there. Nothing is written.
    #[arg(long)]
    pub cluster: bool,
    /// Context of the kubeconfig for --cluster instead of the current one.
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub context: Option<String>,
    /// Kubeconfig file for --cluster instead of the usual ones (KUBECONFIG, ~/.kube/config, service account).
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Longest time for reading the cluster, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds, requires = "cluster")]
    pub timeout: Duration,
    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// Namespace in which the operator is installed.
    #[arg(long, value_name = "NAME", env = "OPERATOR_NAMESPACE", default_value = DEFAULT_OPERATOR_NAMESPACE)]
    pub operator_namespace: String,
    /// DNS domain of the cluster.
    #[arg(long, value_name = "NAME", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Service range of the cluster, for warnings about targets and sites inside it. May be repeated.
    #[arg(long = "service-cidr", value_name = "CIDR")]
    pub service_cidrs: Vec<IpNet>,
    /// Pod range of the cluster, as --service-cidr.
    #[arg(long = "pod-cidr", value_name = "CIDR")]
    pub pod_cidrs: Vec<IpNet>,
    /// Explain a rule instead: why it exists, an example that breaks it, and how to put that right.
    #[arg(long, value_name = "RULE", conflicts_with = "paths")]
    pub explain: Option<String>,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A line per finding.
    Text,
    /// One JSON array.
    Json,
    /// SARIF 2.1.0.
    Sarif,
    /// Workflow commands of GitHub Actions.
    Github,
}
