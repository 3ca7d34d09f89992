//! Flags of `why`.

use clap::{Args, ValueEnum};
use tailnet_crds::{Kind, Scope};

use crate::connect::ClusterArgs;
use crate::kinds;

/// Flags of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The object: tailnet/demo, tailnetegress/team-a, egress team-a. Kinds are named as kubectl takes them, with or without the `tailnet` in front.
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    pub object: Vec<String>,
    /// Namespace of the object. An egress lies in the operator's namespace, which is its default; for an ingress it is that of the kubeconfig's context.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// How the answer is printed: text for people; json is one object {kind, namespace, name, works, sentence, broken, links, notes}.
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Output,
    /// Look at this target of an egress only.
    #[arg(long, value_name = "NAME")]
    pub target: Option<String>,
    /// Also connect to the targets of an egress now, through each of its agents: a port-forward to the agent's own port for the target, so nothing can be reached that is not a target, and no NetworkPolicy stands in the way. Opens one connection per agent and target, and sends nothing over it. Needs the right to create and get pods/portforward in the operator's namespace.
    #[arg(long)]
    pub probe: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// How the answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// What `why` is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

/// Why the command line names no object.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Neither KIND/NAME nor KIND NAME.
    #[error("name one object as KIND/NAME, such as tailnetegress/team-a")]
    Shape,
    /// Not one of our kinds.
    #[error(
        "{0:?} is none of our kinds: tailnet (tn), tailnetegress (tneg), tailnetingress (tning), tailnetsite (tnsite), tailnetgateway (tngw)"
    )]
    Kind(String),
    /// --namespace for a kind without.
    #[error("a {0} has no namespace: leave --namespace away")]
    Namespace(Kind),
    /// --target or --probe for another kind.
    #[error("--target and --probe are for a TailnetEgress")]
    NoTargets,
}

impl WhyArgs {
    /// The object that is meant.
    pub fn subject(&self) -> Result<Subject, SubjectError> {
        let (kind, name) = match self.object.as_slice() {
            [one] => one.split_once('/').ok_or(SubjectError::Shape)?,
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => return Err(SubjectError::Shape),
        };
        if name.is_empty() || name.contains('/') {
            return Err(SubjectError::Shape);
        }
        let kind = kinds::parse(kind).ok_or_else(|| SubjectError::Kind(kind.to_owned()))?;
        if kind.scope() == Scope::Cluster && self.namespace.is_some() {
            return Err(SubjectError::Namespace(kind));
        }
        if kind != Kind::TailnetEgress && (self.probe || self.target.is_some()) {
            return Err(SubjectError::NoTargets);
        }
        Ok(Subject {
            kind,
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        why: WhyArgs,
    }

    fn subject(line: &[&str]) -> Result<Subject, SubjectError> {
        CommandLine::parse_from([&["why"], line].concat()).why.subject()
    }

    #[test]
    fn objects_are_named_as_kubectl_takes_them() {
        let egress = Subject {
            kind: Kind::TailnetEgress,
            name: "team-a".to_owned(),
        };
        assert_eq!(subject(&["tneg/team-a"]), Ok(egress.clone()));
        assert_eq!(subject(&["TailnetEgress", "team-a", "--probe"]), Ok(egress));
        assert_eq!(subject(&["tneg"]), Err(SubjectError::Shape));
        assert_eq!(subject(&["tneg/"]), Err(SubjectError::Shape));
        assert_eq!(subject(&["pod/a"]), Err(SubjectError::Kind("pod".to_owned())));
        assert_eq!(
            subject(&["tn/demo", "-n", "x"]),
            Err(SubjectError::Namespace(Kind::Tailnet))
        );
        assert_eq!(subject(&["tn/demo", "--probe"]), Err(SubjectError::NoTargets));
    }
}
