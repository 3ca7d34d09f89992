//! The egress object: where it lies, its Services and its consumers.

use std::collections::BTreeMap;

use tailnet_crds::Kind;
use tailnet_crds::Protocol;
use tailnet_crds::names::label::{OWNER_KIND, OWNER_NAME};
use tailnet_crds::types::DnsLabel;

use crate::claims::ClaimKey;
use crate::finding::{Class, ObjectRef, Severity};
use crate::index::{IndexKey, canonical, read};
use crate::object::Object;
use crate::report::{Report, Unchecked, cut};
use crate::table::{CWV, Check, Operations, Rule, WGV};
use crate::view::View;

const EGRESS: &[Kind] = &[Kind::TailnetEgress];

/// Egress objects lie in the operator namespace.
pub static TN201: Rule = Rule {
    id: "TN201",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "metadata.namespace",
    message: "a TailnetEgress lies in the operator namespace",
    why: "Its agents, keys and Services are made beside it. Whoever may read Secrets there holds its key, so that must not be a tenant's \
          namespace; tenants get access by `spec.consumerNamespaces`.",
    example: "kind: TailnetEgress\nmetadata: { name: team-a, namespace: team-a }",
    fix: "Create it in the operator namespace (`tailnet-system` unless installed otherwise) and name the tenant's namespace in \
          `spec.consumerNamespaces`. Lint knows the namespace by `--operator-namespace`.",
    check: Check::Cross(in_operator_namespace),
};

/// Target names are free Service names.
pub static TN202: Rule = Rule {
    id: "TN202",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.targets[*].name",
    message: "a target's name is a Service name that nobody else has",
    why: "Every target becomes a Service of that name in the operator namespace. A Service that is not ours is never taken over, and two \
          targets cannot share one.",
    example: "kind: TailnetEgress\nspec:\n  targets:\n    - { name: db, address: 192.0.2.10, port: 5432 }\n    - { name: db, address: 192.0.2.11, port: 5432 }",
    fix: "Give the target another name; consumers dial `<name>.<operator namespace>.svc`.",
    check: Check::Cross(target_names),
};

/// Consumers are namespaces.
pub static TN209: Rule = Rule {
    id: "TN209",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.consumerNamespaces",
    message: "consumerNamespaces names at least one namespace, each once",
    why: "The list becomes a NetworkPolicy. An empty one would be an egress that nobody may use; a namespace that does not exist gets access \
          as soon as somebody creates it, so that is said.",
    example: "kind: TailnetEgress\nspec:\n  consumerNamespaces: []",
    fix: "Name the namespaces whose Pods may connect.",
    check: Check::Cross(consumer_namespaces),
};

/// UDP is not built yet.
pub static TN210: Rule = Rule {
    id: "TN210",
    kinds: EGRESS,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.targets[*].protocol",
    message: "a target's protocol is TCP",
    why: "UDP is reserved in the schema so that manifests need not change later, but the agent does not carry it yet; accepting it would give \
          a Service that leads nowhere.",
    example: "kind: TailnetEgress\nspec:\n  targets:\n    - { name: dns, address: 192.0.2.53, port: 53, protocol: UDP }",
    fix: "Use TCP, or leave `protocol` out.",
    check: Check::Object(only_tcp),
};

fn in_operator_namespace(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    if view.in_operator_namespace() {
        return;
    }
    let wanted = &view.snapshot.config().operator_namespace;
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let detail = format!(
        "a TailnetEgress lies in the operator namespace {wanted:?}; tenants get access by spec.consumerNamespaces"
    );
    report.invalid("metadata.namespace", namespace, detail);
}

fn target_names(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    view.need(&[Kind::TailnetEgress, Kind::TailnetGateway], report);
    if !view.snapshot.services_known() {
        report.unchecked(Unchecked::Services);
    }
    let namespace = &view.snapshot.config().operator_namespace;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (at, target) in spec.targets.iter().enumerate() {
        let path = format!("spec.targets[{at}].name");
        // What is no label at all is TN003's.
        if read(&target.name).is_none() {
            continue;
        }
        let name = canonical(&target.name);
        if let Some(first) = seen.get(&name) {
            report.duplicate(
                path,
                target.name.as_str(),
                format!("is the name of spec.targets[{first}] too"),
            );
            continue;
        }
        seen.insert(name.clone(), at);
        let key = ClaimKey::Service(name.clone());
        if let Some(holder) = view.winner(&IndexKey::Service(name.clone()), &key) {
            let detail = format!("is the name of a Service of {holder}; choose another");
            view.held(report, path, target.name.as_str(), &holder, detail);
        } else if let Some(service) = view.snapshot.service(namespace, &name) {
            let reference = ObjectRef::service(namespace, &name);
            // Of this object, or of an egress that has the name no more (none does, see above): then it is on its way out, and
            // a new object need not wait for the garbage collection.
            let of_an_egress = service
                .owner
                .as_ref()
                .is_some_and(|(kind, _)| kind == Kind::TailnetEgress.as_str());
            if !of_an_egress && !view.is_ignored(&reference) {
                let detail = match &service.belongs_to {
                    Some((kind, owner)) if service.owner.is_none() && kind == Kind::TailnetEgress.as_str() => {
                        left_over(&reference, namespace, owner)
                    }
                    _ => format!(
                        "{reference} exists and is not of this object; it is never taken over, choose another name"
                    ),
                };
                report
                    .add(Class::Duplicate, path, target.name.as_str(), detail)
                    .held_by(reference);
            }
        }
    }
}

/// What is said of a Service that an egress called `owner` left: it has the labels of one and no owner.
fn left_over(service: &ObjectRef, namespace: &str, owner: &str) -> String {
    let (kind, owner) = (Kind::TailnetEgress.as_str(), cut(owner, 63));
    format!(
        "{service} is left by {kind} {owner} (--cascade=orphan), whose agents still run; remove it all: kubectl -n {namespace} delete \
         deploy,svc,netpol,pdb,cm,secret -l {OWNER_KIND}={kind},{OWNER_NAME}={owner}"
    )
}

fn consumer_namespaces(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    if spec.consumer_namespaces.is_empty() {
        let detail = report.said(object.kind, "spec.consumerNamespaces", 0);
        report.required("spec.consumerNamespaces", detail);
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, namespace) in spec.consumer_namespaces.iter().enumerate() {
        let path = format!("spec.consumerNamespaces[{at}]");
        if let Some(first) = seen.get(namespace.as_str()) {
            let said = report.said(object.kind, "spec.consumerNamespaces", 1);
            report.duplicate(
                path,
                namespace,
                format!("{said}: it is spec.consumerNamespaces[{first}] too"),
            );
            continue;
        }
        seen.insert(namespace, at);
        // A namespace's name is a label in exactly one spelling.
        if namespace.parse::<DnsLabel>().is_err() {
            let said = report.said(object.kind, "spec.consumerNamespaces[]", 0);
            report.invalid(path, namespace, said);
            continue;
        }
        match view.snapshot.has_namespace(namespace) {
            Some(true) => {}
            Some(false) => {
                let detail = "there is no namespace of this name; whoever creates it gets access";
                report.add(Class::NotFound, path, namespace, detail).warn();
            }
            None => report.unchecked(Unchecked::Namespaces),
        }
    }
}

fn only_tcp(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    for (at, target) in spec.targets.iter().enumerate() {
        if target.protocol() == Protocol::Udp {
            let detail = report.said(object.kind, "spec.targets[].protocol", 0);
            report.add(
                Class::NotSupported,
                format!("spec.targets[{at}].protocol"),
                "UDP",
                detail,
            );
        }
    }
}
