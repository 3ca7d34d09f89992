//! What is refused at `kubectl apply`.

use anyhow::{Context, Result, ensure};
use tailnet_e2e::cluster::Cluster;

use super::account::{command, says};

/// A wrong manifest.
struct Wrong {
    /// What is wrong with it.
    title: &'static str,
    /// The manifest.
    yaml: &'static str,
    /// The rule that refuses it.
    rule: &'static str,
    /// What the message must name besides the rule.
    names: &'static [&'static str],
    /// Asked without the intention to change anything.
    dry_run: bool,
}

const WRONG: [Wrong; 3] = [
    Wrong {
        title: "An address that is none",
        yaml: "apiVersion: tsunaro.io/v1alpha1
kind: TailnetEgress
metadata: {name: typo, namespace: tailnet-system}
spec:
  tailnetRef: {name: demo}
  consumerNamespaces: [team-a]
  targets:
    - {name: typo-db, address: 10.0.0.300, port: 5432}
",
        rule: "TN203",
        names: &["spec.targets[0].address", "10.0.0.300"],
        dry_run: false,
    },
    Wrong {
        title: "An egress in a tenant's namespace",
        yaml: "apiVersion: tsunaro.io/v1alpha1
kind: TailnetEgress
metadata: {name: mine, namespace: team-b}
spec:
  tailnetRef: {name: demo}
  consumerNamespaces: [team-b]
  targets:
    - {name: my-db, address: 192.0.2.10, port: 5432}
",
        rule: "TN201",
        names: &["tailnet-system"],
        dry_run: false,
    },
    Wrong {
        title: "Somebody else's identity, only asked (nothing would be changed)",
        yaml: "apiVersion: tsunaro.io/v1alpha1
kind: TailnetEgress
metadata: {name: team-b, namespace: tailnet-system}
spec:
  tailnetRef: {name: demo}
  tag: tag:egress-team-a
  consumerNamespaces: [team-b]
  targets:
    - {name: other-db, address: 192.0.2.10, port: 5432}
",
        rule: "TN005",
        names: &["tag:egress-team-a", "team-a"],
        dry_run: true,
    },
];

/// Applies each and shows the refusal.
pub fn all(cluster: &Cluster) -> Result<()> {
    for wrong in &WRONG {
        println!("   {}:", wrong.title);
        let mut args = vec!["apply"];
        if wrong.dry_run {
            args.push("--dry-run=server");
        }
        args.extend(["-f", "-"]);
        command(&format!("kubectl {} <<YAML\n{}YAML", args.join(" "), wrong.yaml));
        let done = cluster.kubectl_with_input(&args, wrong.yaml)?;
        let said = done
            .failure()
            .with_context(|| format!("{} must be refused by {}", wrong.title, wrong.rule))?;
        says(said);
        for word in wrong.names.iter().chain([&wrong.rule]) {
            ensure!(
                said.contains(word),
                "{}: the refusal does not name {word}:\n{said}",
                wrong.title
            );
        }
    }
    Ok(())
}
