//! Names of objects and of what is made from them.

use tailnet_crds::Kind;
use tailnet_crds::types::{Dns1035Label, FormatError};

use crate::finding::Severity;
use crate::object::{Object, Spec};
use crate::report::Report;
use crate::table::{CWGV, Check, Operations, Rule};

/// Names fit what is made of them.
pub static TN003: Rule = Rule {
    id: "TN003",
    kinds: &[
        Kind::Tailnet,
        Kind::TailnetEgress,
        Kind::TailnetIngress,
        Kind::TailnetGateway,
    ],
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "metadata.name, spec.clusterName, spec.targets[*].name, spec.exposes[*].name",
    message: "names are short enough for what is made of them; targets and exposes are DNS-1035 labels",
    why: "The name of an object becomes a node's name, a label value and part of its children's names, which have at most 63 characters. A \
          target becomes a Service, whose name begins with a letter.",
    example: "kind: TailnetEgress\nspec:\n  targets:\n    - { name: 1-db, address: 192.0.2.10, port: 5432 }",
    fix: "Use a short name of lower-case letters, digits and dashes that begins with a letter.",
    check: Check::Object(child_names),
};

/// Longest name of an egress or ingress: it is a node's name, behind which `-2` must fit. The schema says the same.
const MAX_NODE_NAME: usize = 60;
/// Longest name of a Tailnet: a label value.
const MAX_TAILNET_NAME: usize = 63;

fn child_names(object: &Object, report: &mut Report<'_>) {
    let max = match object.kind {
        Kind::Tailnet => Some(MAX_TAILNET_NAME),
        Kind::TailnetEgress | Kind::TailnetIngress => Some(MAX_NODE_NAME),
        // A gateway's is TN501; nothing is named after a site.
        Kind::TailnetGateway | Kind::TailnetSite => None,
    };
    if let Some(max) = max
        && object.name.len() > max
    {
        let said = report.said(object.kind, "", 0);
        report.invalid("metadata.name", &object.name, said);
    }
    let label = |path: String, text: &tailnet_crds::types::Text<Dns1035Label>, report: &mut Report<'_>| {
        if let Err(FormatError::Unreadable(_)) = text.parse() {
            let said = report.said(object.kind, &path.replace(|c: char| c.is_ascii_digit(), ""), 0);
            report.invalid(path, text.as_str(), said);
        }
    };
    match &object.spec {
        Ok(Spec::Egress(spec)) => {
            for (at, target) in spec.targets.iter().enumerate() {
                label(format!("spec.targets[{at}].name"), &target.name, report);
            }
        }
        Ok(Spec::Ingress(spec)) => {
            for (at, expose) in spec.exposes.iter().enumerate() {
                label(format!("spec.exposes[{at}].name"), &expose.name, report);
            }
        }
        Ok(Spec::Tailnet(spec)) => {
            if let Some(cluster) = &spec.cluster_name
                && let Err(FormatError::Unreadable(_)) = cluster.parse()
            {
                let said = report.said(object.kind, "spec.clusterName", 0);
                report.invalid("spec.clusterName", cluster.as_str(), said);
            }
        }
        Ok(Spec::Gateway(spec)) => {
            for (at, forward) in spec.forwards.iter().enumerate() {
                label(format!("spec.forwards[{at}].name"), &forward.name, report);
            }
        }
        _ => {}
    }
}
