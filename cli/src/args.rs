//! Flags and their help.

use clap::{Parser, Subcommand};

use crate::audit::AuditArgs;
use crate::doctor::DoctorArgs;
use crate::lint::LintArgs;
use crate::policy::PolicyArgs;
use crate::why::WhyArgs;

/// Checks manifests of tailnet-operator (tsunaro.io) before they reach a cluster, and says why a connection does not work.
///
/// As a kubectl plugin it is called `kubectl tailnet`. `lint`, `policy` and `audit` need no cluster, unless --cluster asks for one.
#[derive(Debug, Parser)]
#[command(name = "kubectl-tailnet", bin_name = "kubectl tailnet", version = tailnet_process::VERSION, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check files with the same rules as the admission webhook, offline.
    ///
    /// All given files together are the cluster: an object that refers to a Tailnet, or would overlap another object, is
    /// checked against what the files hold. Objects of other API groups are passed over. What only a cluster knows
    /// (Services, namespaces, Headscale's state) is checked with --cluster.
    ///
    /// Exit status: 0 nothing is denied (there may be warnings), 1 something is denied, 2 wrong usage, or a file or the
    /// cluster that cannot be read.
    #[command(after_help = "Examples:\n  \
        kubectl tailnet lint deploy/\n  \
        kustomize build . | kubectl tailnet lint -\n  \
        helm template my-release ./my-chart | kubectl tailnet lint -\n  \
        kubectl tailnet lint --cluster --policies policies/ deploy/\n  \
        git worktree add /tmp/before origin/main && kubectl tailnet lint --old /tmp/before/deploy deploy/\n  \
        kubectl tailnet lint -o sarif deploy/ > lint.sarif\n  \
        kubectl tailnet lint -o json deploy/ | jq '.[] | select(.severity == \"deny\")'\n  \
        kubectl tailnet lint --explain TN403")]
    Lint(LintArgs),
    /// Say who was refused what, which rules refuse most, and which bypasses happened.
    ///
    /// Reads the audit stream of the webhook (its output in `kubectl logs`, or the file of --audit-log) and the audit log of
    /// the API server; each line says which of the two it is of, other lines are passed over. A decision that is in both
    /// counts once. Lines that are broken are counted and named on standard error.
    ///
    /// Exit status: 0 everything was read, broken lines or not; 2 wrong usage or a file that cannot be read.
    #[command(after_help = "Examples:\n  \
        kubectl logs -n tailnet-system -l app.kubernetes.io/component=webhook --tail=-1 | kubectl tailnet audit\n  \
        kubectl tailnet audit --since 7d --decision deny,bypass /var/log/kubernetes/audit.log*\n  \
        kubectl tailnet audit -o html audit.jsonl.gz > decisions.html\n  \
        kubectl tailnet audit -o json --user 'system:serviceaccount:flux-system:*' audit.log | jq .refusals")]
    Audit(AuditArgs),
    /// Say why an object does not work: the first broken link of its chain, whose turn it is, and the next command.
    ///
    /// The chain of an egress: operator, accepted, tailnet, key, node, route, grant, dns, agent, backend. Other kinds have
    /// the links that the operator reports. Nothing is written. It needs the right to read the object; what else may not be
    /// read (Tailnets; Leases, ConfigMaps and Pods of the operator's namespace) is left out, and a note says so.
    ///
    /// Exit status: 0 every link holds, 1 one does not or nobody knows, 2 wrong usage, or the object cannot be read.
    #[command(after_help = "Examples:\n  \
        kubectl tailnet why tailnetegress/team-a\n  \
        kubectl tailnet why egress team-a --target remote-db --probe\n  \
        kubectl tailnet why tailnet/demo -o json | jq -r '.broken.next[]'")]
    Why(WhyArgs),
    /// Check an installation from outside, and print what is fine and what is not.
    ///
    /// CRDs, operator, webhook (a wrong and a right object are tried as dry runs, nothing is stored), Tailnets with the age of
    /// what is known of Headscale, other objects, NetworkPolicy, DNS, cert-manager. What may not be read, or cannot be known
    /// from outside, is said to be so.
    ///
    /// Exit status: 0 nothing fails, 1 something does, 2 wrong usage, or the cluster does not answer.
    #[command(after_help = "Examples:\n  \
        kubectl tailnet doctor\n  \
        kubectl tailnet doctor --operator-namespace network\n  \
        kubectl tailnet doctor -o json | jq '.checks[] | select(.state == \"fail\")'")]
    Doctor(DoctorArgs),
    /// Show the access policy that the operator writes: the document, its difference to the live one, and which rule lets
    /// somebody through.
    ///
    /// Works offline from files: the Tailnet, the ConfigMap with its base document, and the objects. With --cluster, what the
    /// cluster has is taken too.
    #[command(after_help = "Examples:\n  \
        kubectl tailnet policy render deploy/ > policy.hujson\n  \
        headscale policy get > live.hujson && kubectl tailnet policy diff --live live.hujson deploy/\n  \
        kubectl tailnet policy diff --cluster\n  \
        kubectl tailnet policy why tag:egress-team-a 192.0.2.10:5432 --cluster\n  \
        kubectl tailnet policy why ann@ tag:ingress-team-a-portal:443 --live live.hujson")]
    Policy(PolicyArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
