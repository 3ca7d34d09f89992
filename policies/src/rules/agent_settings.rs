//! Settings of agent Pods.

use tailnet_crds::Kind;
use tailnet_crds::names::label::RESERVED_PREFIXES;
use tailnet_crds::types::AgentSettings;

use crate::finding::Severity;
use crate::object::{Object, Spec};
use crate::quantities::Quantity;
use crate::report::{Report, Shown, cut};
use crate::table::{CWGV, Check, Operations, Rule};
use crate::view::View;

/// Agent settings.
pub static TN012: Rule = Rule {
    id: "TN012",
    kinds: &[Kind::Tailnet, Kind::TailnetEgress, Kind::TailnetIngress],
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.agent, spec.defaults.agent",
    message: "a tenant sets resources (with limits) and logLevel only; nobody sets labels or annotations of the operator",
    why: "An agent Pod runs with the operator's image and holds a key of the tailnet. Its node, tolerations, priority and pull secrets are the \
          administrator's. By the operator's labels Pods are found, NetworkPolicies select them and old ones are removed.",
    example: "kind: TailnetIngress\nmetadata: { name: portal, namespace: team-a }\nspec:\n  agent:\n    priorityClassName: system-cluster-critical",
    fix: "Leave the field out; the administrator sets it for all agents in `defaults.agent` of the Tailnet.",
    check: Check::Cross(agent_settings),
};

/// Largest memory limit of a tenant's agent; the agent's own bound is far below.
const MAX_MEMORY: Quantity = Quantity::units(1024 * 1024 * 1024);
/// Largest CPU limit of a tenant's agent.
const MAX_CPU: Quantity = Quantity::units(2);

fn agent_settings(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some((path, settings)) = settings_of(object) else {
        return;
    };
    own_keys(object, path, settings, report);
    if object.kind != Kind::TailnetIngress || view.in_operator_namespace() {
        return;
    }
    for field in settings.fields_set() {
        if !["resources", "logLevel"].contains(&field) {
            let detail = "is the administrator's outside the operator namespace: set resources and logLevel only";
            report.forbidden(format!("{path}.{field}"), Shown::NOTHING, detail);
        }
    }
    bounded_resources(path, settings, report);
}

/// The agent settings of an object, and where they are.
pub(crate) fn settings_of(object: &Object) -> Option<(&'static str, &AgentSettings)> {
    match &object.spec {
        Ok(Spec::Tailnet(spec)) => Some(("spec.defaults.agent", spec.defaults.as_ref()?.agent.as_ref()?)),
        Ok(Spec::Egress(spec)) => Some(("spec.agent", spec.agent.as_ref()?)),
        Ok(Spec::Ingress(spec)) => Some(("spec.agent", spec.agent.as_ref()?)),
        _ => None,
    }
}

fn own_keys(object: &Object, path: &str, settings: &AgentSettings, report: &mut Report<'_>) {
    for (field, map) in [
        ("podLabels", &settings.pod_labels),
        ("podAnnotations", &settings.pod_annotations),
    ] {
        for key in map.iter().flat_map(|map| map.keys()) {
            if RESERVED_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
                let said = report.said(object.kind, &format!("{path}.{field}"), 0);
                report.forbidden(format!("{path}.{field}"), key, said);
            }
        }
    }
}

/// Requests and limits of cpu and memory, within bounds: a tenant cannot fill nodes or the cluster's quota by an agent.
fn bounded_resources(path: &str, settings: &AgentSettings, report: &mut Report<'_>) {
    let Some(resources) = &settings.resources else { return };
    for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, amount) in amounts.iter().flatten() {
            let field = format!("{path}.resources.{kind}[{}]", cut(name, 63));
            let bound = match name.as_str() {
                "cpu" => (MAX_CPU, "2"),
                "memory" => (MAX_MEMORY, "1Gi"),
                _ => {
                    report.forbidden(
                        field,
                        amount.0.as_str(),
                        "an agent takes no such resource: set cpu and memory only",
                    );
                    continue;
                }
            };
            match Quantity::parse(&amount.0) {
                // No quantity at all: TN016.
                None => {}
                Some(value) if value > bound.0 => {
                    report.forbidden(
                        field,
                        amount.0.as_str(),
                        format!("is more than {}, the most for an agent of a tenant", bound.1),
                    );
                }
                Some(_) => {}
            }
        }
    }
}
