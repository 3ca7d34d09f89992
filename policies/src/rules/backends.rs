//! The Services behind an ingress.

use tailnet_crds::{IntOrString, Kind};

use crate::finding::{Class, Severity};
use crate::object::Object;
use crate::report::{Report, Shown, Unchecked, cut, list, quoted};
use crate::snapshot::{Backing, ServiceInfo};
use crate::table::{Check, Operations, Rule, WG};
use crate::view::View;

const INGRESS: &[Kind] = &[Kind::TailnetIngress];

/// Backends exist.
pub static TN307: Rule = Rule {
    id: "TN307",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Warn,
    security: false,
    field: "spec.exposes[*].backend.service, spec.exposes[*].backend.port",
    message: "the backend's Service and its port exist",
    why: "Objects may arrive in any order, so a Service that is not there yet is only said. Until it is there, peers connect to the agent and \
          the agent has nobody to connect to.",
    example: "kind: TailnetIngress\nmetadata: { name: portal, namespace: team-a }\nspec:\n  exposes: [{ name: web, port: 5432, backend: { service: wbe, port: 8080 } }]   # the Service is called web",
    fix: "Create the Service in the namespace of the ingress, or write its name and one of its ports as `kubectl get service` shows them.",
    check: Check::Cross(backends_exist),
};

/// Tenants' backends are Pods of theirs.
pub static TN316: Rule = Rule {
    id: "TN316",
    kinds: INGRESS,
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Deny,
    security: true,
    field: "spec.exposes[*].backend.service",
    message: "the backend of an ingress outside the operator namespace is a Service with a selector, not of type ExternalName",
    why: "A Service without a selector, or of type ExternalName, leads wherever its author writes: into another namespace past its NetworkPolicies, to the \
          API server, or out of the cluster. Whoever may write one would publish on the tailnet what is not theirs. A Service that becomes such a one \
          later takes the effect of the ingress away.",
    example: "kind: TailnetIngress\nmetadata: { name: portal, namespace: team-a }\nspec:\n  exposes: [{ name: web, port: 443, backend: { service: partner, port: 443 } }]   # Service partner is of type ExternalName",
    fix: "Give the Service a selector for Pods of its namespace; what lies elsewhere an administrator exposes from the operator namespace.",
    check: Check::Cross(backends_are_own_pods),
};

/// The Services that an ingress names, with the position of the expose: those of its own namespace, elsewhere only for the
/// administrator (TN306). Nothing is said of Services that the author may not see.
fn backends<'v>(
    object: &Object,
    view: &'v View<'_>,
    report: &mut Report<'_>,
) -> Vec<(usize, String, String, Option<&'v ServiceInfo>)> {
    let Some(spec) = object.ingress() else {
        return Vec::new();
    };
    if !view.snapshot.services_known() {
        report.unchecked(Unchecked::Services);
        return Vec::new();
    }
    let own = object.namespace.as_deref().unwrap_or_default();
    let mut backends = Vec::new();
    for (at, expose) in spec.exposes.iter().enumerate() {
        let namespace = expose.backend.namespace.as_deref().unwrap_or(own);
        if namespace == own || view.in_operator_namespace() {
            let service = &expose.backend.service;
            let found = view.snapshot.service(namespace, service);
            backends.push((at, namespace.to_owned(), service.clone(), found));
        }
    }
    backends
}

fn backends_exist(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    for (at, namespace, service, found) in backends(object, view, report) {
        let Some(info) = found else {
            let detail = format!(
                "there is no Service of this name in namespace {} yet: connections fail until there is",
                quoted(&namespace)
            );
            report.add(
                Class::NotFound,
                format!("spec.exposes[{at}].backend.service"),
                &service,
                detail,
            );
            continue;
        };
        let Some(expose) = object.ingress().and_then(|spec| spec.exposes.get(at)) else {
            continue;
        };
        let (known, shown) = match &expose.backend.port {
            IntOrString::Int(number) => (
                info.ports.iter().any(|port| port.number == i64::from(*number)),
                Shown::from(i64::from(*number)),
            ),
            IntOrString::String(name) => (
                info.ports.iter().any(|port| port.name.as_deref() == Some(name)),
                Shown::from(name),
            ),
        };
        // An ExternalName Service need not list ports: every port of the name is reached.
        if known || (info.ports.is_empty() && info.backing == Backing::Name) {
            continue;
        }
        let ports: Vec<String> = info
            .ports
            .iter()
            .map(|port| match &port.name {
                Some(name) => format!("{} ({name})", port.number),
                None => port.number.to_string(),
            })
            .collect();
        let detail = format!(
            "Service {} has no such port, it has {}",
            cut(&service, 63),
            list(&ports)
        );
        report.add(
            Class::NotFound,
            format!("spec.exposes[{at}].backend.port"),
            shown,
            detail,
        );
    }
}

fn backends_are_own_pods(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    if view.in_operator_namespace() {
        return;
    }
    for (at, _, service, found) in backends(object, view, report) {
        let what = match found.map(|info| info.backing) {
            Some(Backing::Name) => "is of type ExternalName",
            Some(Backing::Addresses) => "has no selector",
            Some(Backing::Pods) | None => continue,
        };
        let detail =
            format!("{what}, so it can lead anywhere: an ingress of a namespace leads to Pods of that namespace only");
        report.forbidden(format!("spec.exposes[{at}].backend.service"), &service, detail);
    }
}
