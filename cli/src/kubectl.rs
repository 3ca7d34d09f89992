//! How commands are told: with the flags that lead to the same cluster.

use crate::connect::ClusterArgs;

/// Writes kubectl commands for the cluster that was asked.
#[derive(Clone, Debug, Default)]
pub struct Kubectl {
    flags: String,
}

impl Kubectl {
    /// For the cluster that `args` name.
    pub fn new(args: &ClusterArgs) -> Self {
        let mut flags = String::new();
        if let Some(file) = &args.kubeconfig {
            flags.push_str(&format!(" --kubeconfig {}", quoted(&file.display().to_string())));
        }
        if let Some(context) = &args.context {
            flags.push_str(&format!(" --context {}", quoted(context)));
        }
        Self { flags }
    }

    /// `kubectl REST`
    pub fn run(&self, rest: &str) -> String {
        format!("kubectl{} {rest}", self.flags)
    }

    /// `kubectl -n NAMESPACE REST`
    pub fn run_in(&self, namespace: &str, rest: &str) -> String {
        format!("kubectl{} -n {} {rest}", self.flags, quoted(namespace))
    }

    /// `kubectl tailnet REST` with the operator's namespace where it is not the usual one.
    pub fn plugin(&self, operator_namespace: &str, rest: &str) -> String {
        let namespace = if operator_namespace == tailnet_crds::names::DEFAULT_OPERATOR_NAMESPACE {
            String::new()
        } else {
            format!(" --operator-namespace {}", quoted(operator_namespace))
        };
        format!("kubectl tailnet {rest}{}{namespace}", self.flags)
    }
}

/// `text` as one word of a shell.
pub fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@+%".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{Kubectl, quoted};

    #[test]
    fn words_of_a_shell() {
        assert_eq!(quoted("tag:egress-a"), "tag:egress-a");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(Kubectl::default().run_in("ns", "get pods"), "kubectl -n ns get pods");
        assert_eq!(
            Kubectl::default().plugin("tailnet-system", "doctor"),
            "kubectl tailnet doctor"
        );
        assert_eq!(
            Kubectl::default().plugin("ops", "doctor"),
            "kubectl tailnet doctor --operator-namespace ops"
        );
    }
}
