//! The flags.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use ipnet::IpNet;
use tailnet_crds::names;
use tailnet_policies::Config;
use tailnet_process::{LogArgs, VERSION};

use crate::audit::Target;
use crate::configuration::DEFAULT_NAME;

/// The admission webhook of tailnet-operator.
///
/// Decides every CREATE and UPDATE of Tailnet, TailnetEgress, TailnetIngress, TailnetSite and TailnetGateway: fills in
/// defaults, refuses what breaks a rule with the field, the reason and the fix, and warns about the rest. It writes nothing
/// but its own CA (Secret tailnet-webhook-ca, unless --certificate-secret names another), the caBundle of the two webhook
/// configurations, and failurePolicy Fail where the chart's first installation has left Ignore.
///
/// It finds the API server by KUBECONFIG, ~/.kube/config or the Pod's service account. Run two or more replicas.
#[derive(Debug, Parser)]
#[command(name = "tailnet-webhook", version = VERSION, max_term_width = 110)]
pub struct Args {
    /// Namespace of the operator: TailnetEgress objects live there, and so do facts, claims and the CA Secret.
    #[arg(long, env = "OPERATOR_NAMESPACE", default_value = names::DEFAULT_OPERATOR_NAMESPACE)]
    pub operator_namespace: String,
    /// Address of the admission endpoint (TLS): /validate and /mutate. `[::]` means 0.0.0.0 where the kernel has no IPv6.
    #[arg(long, env = "LISTEN", default_value = "[::]:9443")]
    pub listen: SocketAddr,
    /// Address of /healthz, /readyz and /metrics (plain HTTP).
    #[arg(long, env = "HEALTH_LISTEN", default_value = "[::]:9401")]
    pub health_listen: SocketAddr,
    /// Name of the Service through which the API server reaches the webhook; the certificate is made for it.
    #[arg(long, env = "SERVICE_NAME", default_value = "tailnet-webhook")]
    pub service_name: String,
    /// A further DNS name or IP address for the certificate, where the API server calls a URL instead of the Service
    /// (repeatable, or separated by commas).
    #[arg(long, env = "SERVING_NAMES", value_delimiter = ',', value_name = "NAME")]
    pub serving_name: Vec<String>,
    /// Name of a Secret in the operator namespace that brings the serving certificate: tls.crt and tls.key for the Service's
    /// name NAME.NAMESPACE.svc (and every --serving-name), and ca.crt, which goes into the webhook configurations. cert-manager
    /// writes such Secrets. A change is followed within seconds. Without it the webhook makes and renews its own CA.
    #[arg(long, env = "CERTIFICATE_SECRET", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub certificate_secret: Option<String>,
    /// Name of the ValidatingWebhookConfiguration that gets the CA.
    #[arg(long, env = "VALIDATING_CONFIGURATION", default_value = DEFAULT_NAME)]
    pub validating_configuration: String,
    /// Name of the MutatingWebhookConfiguration that gets the CA.
    #[arg(long, env = "MUTATING_CONFIGURATION", default_value = DEFAULT_NAME)]
    pub mutating_configuration: String,
    /// DNS domain of the cluster: names inside it cannot be aliases.
    #[arg(long, env = "CLUSTER_DOMAIN", default_value = "cluster.local", value_parser = cluster_domain)]
    pub cluster_domain: String,
    /// A Service range of this cluster: targets and prefixes inside it get a warning, and a gateway's addresses must fit it
    /// (repeatable, or separated by commas).
    #[arg(long, env = "SERVICE_CIDRS", value_delimiter = ',', value_name = "CIDR")]
    pub service_cidr: Vec<IpNet>,
    /// A Pod range of this cluster, to warn about targets and prefixes inside it (repeatable, or separated by commas).
    #[arg(long, env = "POD_CIDRS", value_delimiter = ',', value_name = "CIDR")]
    pub pod_cidr: Vec<IpNet>,
    /// Where the audit stream goes, one JSON object per decision: a file, - for standard output (the log goes to standard
    /// error), or none.
    #[arg(long, env = "AUDIT_LOG", default_value = "-", value_name = "FILE|-|none")]
    pub audit_log: Target,
    /// After a stop signal, how long to keep serving while unready, so that no API server still calls a closed port.
    #[arg(long, env = "SHUTDOWN_DELAY", default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub shutdown_delay: Duration,
    /// Log flags.
    #[command(flatten)]
    pub log: LogArgs,
}

impl Args {
    /// What the rules must know of the installation.
    pub fn config(&self) -> Config {
        Config {
            operator_namespace: self.operator_namespace.clone(),
            cluster_domain: self.cluster_domain.clone(),
            service_cidrs: self.service_cidr.clone(),
            pod_cidrs: self.pod_cidr.clone(),
        }
    }

    /// Names of the serving certificate that we make: those by which it is called, and the Service's full name.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.called_names();
        if let Some(service) = names.first() {
            names.insert(1, format!("{service}.{}", self.cluster_domain));
        }
        names
    }

    /// Names by which API servers call: what a certificate must be valid for. The Service's is the first.
    pub fn called_names(&self) -> Vec<String> {
        let service = format!("{}.{}.svc", self.service_name, self.operator_namespace);
        std::iter::once(service)
            .chain(self.serving_name.iter().cloned())
            .collect()
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text
        .parse::<jiff::SignedDuration>()
        .map_err(|error| format!("{error}; write for example 10s"))?;
    Duration::try_from(parsed).map_err(|_| "must not be negative".to_owned())
}

fn cluster_domain(text: &str) -> Result<String, String> {
    let domain = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label = |label: &str| {
        let inner = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        inner && !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
    };
    let valid = domain.len() <= 253 && domain.split('.').all(label);
    if valid {
        Ok(domain)
    } else {
        Err("is not a DNS domain such as cluster.local".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory, Parser};

    use super::Args;
    use crate::audit::Target;

    #[test]
    fn flags_are_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_are_read() {
        let args = Args::parse_from([
            "tailnet-webhook",
            "--cluster-domain=Corp.Example.",
            "--service-cidr=10.96.0.0/16,fd00::/108",
            "--pod-cidr=10.244.0.0/16",
            "--audit-log=none",
            "--shutdown-delay=1m 5s",
            "--serving-name=127.0.0.1",
        ]);
        assert_eq!(args.config().cluster_domain, "corp.example");
        assert_eq!(args.config().service_cidrs.len(), 2);
        assert_eq!(args.audit_log, Target::None);
        assert_eq!(args.shutdown_delay, Duration::from_secs(65));
        assert_eq!(
            args.names(),
            [
                "tailnet-webhook.tailnet-system.svc",
                "tailnet-webhook.tailnet-system.svc.corp.example",
                "127.0.0.1"
            ]
        );
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            "--cluster-domain=a..b",
            "--pod-cidr=10.0.0.0/33",
            "--shutdown-delay=-3s",
            "--listen=9443",
        ] {
            assert!(Args::try_parse_from(["tailnet-webhook", wrong]).is_err(), "{wrong}");
        }
    }
}
