//! DNS names that an egress or an ingress publishes.

use std::collections::BTreeMap;

use tailnet_crds::types::{FormatError, NameTemplate, Text};
use tailnet_crds::{ExposeMode, Kind, TailnetSpec};

use crate::claims::ClaimKey;
use crate::finding::{Class, Severity};
use crate::index::{IndexKey, canonical, read};
use crate::names;
use crate::object::Object;
use crate::report::{Report, cut, quoted};
use crate::request::Layer;
use crate::table::{CWGV, Check, Operations, Rule, WGV};
use crate::view::View;

/// Aliases of egress targets.
pub static TN206: Rule = Rule {
    id: "TN206",
    kinds: &[Kind::TailnetEgress],
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.targets[*].aliases[*]",
    message: "an alias is a DNS name of at least two labels that nobody else answers",
    why: "An alias is answered in the whole cluster with the Service's address. A name of the cluster's own domain or of the Headscale server \
          would cut the cluster or the operator off; an alias that is its own target's address would lead the agent back to itself; a name that \
          two objects have would have an answer that depends on chance.",
    example: "kind: TailnetEgress\nspec:\n  targets:\n    - name: api\n      address: 198.51.100.20\n      port: 443\n      aliases: [control.example.net]   # the host of Tailnet.spec.server",
    fix: "Use the name under which the remote service is known, and only one object per name.",
    check: Check::Cross(alias_names),
};

/// Published names of ingresses.
pub static TN304: Rule = Rule {
    id: "TN304",
    kinds: &[Kind::TailnetIngress],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: true,
    field: "spec.exposes[*].dnsLabel",
    message: "a published name or short name is nobody else's",
    why: "Names come from the Tailnet's templates, and a template without `{namespace}` lets two namespaces ask for one name: whoever gets it \
          receives the other's traffic and passwords. A name that a template gives in a namespace is kept for it, also while it does not ask: \
          with `{name}-{namespace}` the name `portal-team-a` is one of `team-a` where that namespace exists, and not one of namespace `a`. A gateway's static address for the name is only warned about, since published names win.",
    example: "kind: TailnetIngress\nmetadata: { name: web, namespace: team-b }\nspec:\n  exposes:\n    - name: web\n      dnsLabel: portal   # portal.lab.example.net is TailnetIngress team-a/portal's\n      alias: true",
    fix: "Choose another `dnsLabel`, or leave `alias` out.",
    check: Check::Cross(published_names),
};

/// Rendered names are DNS names.
pub static TN305: Rule = Rule {
    id: "TN305",
    kinds: &[Kind::TailnetIngress],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.exposes[*].dnsLabel",
    message: "the Tailnet's templates give every expose a valid DNS name",
    why: "A name has at most 253 characters and a label at most 63; namespace and name together may be more. The dots of an object's name \
          become dashes, since `{name}` is one label.",
    example: "kind: TailnetIngress\nspec:\n  exposes:\n    - name: web\n      dnsLabel: a-name-of-more-than-sixty-three-characters-which-no-dns-label-can-have-at-all",
    fix: "Set a shorter `dnsLabel`.",
    check: Check::Cross(rendered_names),
};

/// Templates that the exposes need, and who may have short names.
pub static TN314: Rule = Rule {
    id: "TN314",
    kinds: &[Kind::TailnetIngress],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.exposes[*].alias, spec.exposes[*].mode",
    message: "an alias needs an alias template and a namespace that may use it; an http expose needs a name template",
    why: "An http expose is routed by its name, so without a template nobody could reach it. Short names are few and shared by all namespaces, \
          so the administrator says in `dns.aliasNamespaces` who may have them.",
    example: "kind: Tailnet\nspec:\n  dns: { ingressNameTemplate: \"{name}.{namespace}.lab.example.net\" }\n---\nkind: TailnetIngress\nspec:\n  exposes:\n    - { name: web, mode: http, port: 443, alias: true, backend: { service: web, port: 80 } }",
    fix: "Leave `alias` out, or have the administrator set `dns.ingressAliasTemplate` and `dns.aliasNamespaces`.",
    check: Check::Cross(templates_exist),
};

/// Why nobody may publish a name, whoever asks.
fn forbidden_name(name: &str, tailnet: Option<&TailnetSpec>, view: &View<'_>) -> Option<String> {
    let config = view.snapshot.config();
    if config.in_cluster_domain(name) {
        return Some(format!("is in the cluster's own domain {:?}", config.cluster_domain));
    }
    // Pods and resolvers read these in their own way: Services without the cluster's domain, loopback, reverse lookups.
    if let Some(last) = name
        .rsplit('.')
        .next()
        .filter(|last| ["svc", "localhost", "arpa"].contains(last))
    {
        return Some(format!(
            "ends in .{last}, which is not for hosts: use the name under which the service is known"
        ));
    }
    // The control server must stay reachable under its own name, for agents and for the operator.
    if let Some(server) = view.others(&IndexKey::ServerHost(name.to_owned())).next() {
        return Some(format!(
            "is the host of the server of {server}: nodes would no longer find it"
        ));
    }
    let reserved = tailnet?
        .reserved_names()
        .iter()
        .any(|reserved| canonical(reserved) == name);
    reserved.then(|| "is in dns.reservedNames of the Tailnet".to_owned())
}

/// The names that a gateway's zone keeps for itself.
fn zone_conflicts(
    name: &str,
    shown: &str,
    path: &str,
    object: &Object,
    view: &View<'_>,
    report: &mut Report<'_>,
) -> bool {
    let Some(tailnet) = object.tailnet_name() else {
        return false;
    };
    let of = |key: fn(String, String) -> IndexKey| view.others(&key(tailnet.to_owned(), name.to_owned())).next();
    if let Some(gateway) = of(IndexKey::Apex) {
        let detail = format!("is the apex of a zone of {gateway}, which is the gateway itself");
        report
            .add(Class::Duplicate, path, shown, detail)
            .held_by(gateway.reference());
        return true;
    }
    if let Some(gateway) = of(IndexKey::StaticTarget) {
        let detail = format!("is a static record with a target (CNAME) of {gateway}, beside which there is no address");
        report
            .add(Class::Duplicate, path, shown, detail)
            .held_by(gateway.reference());
        return true;
    }
    if let Some(gateway) = of(IndexKey::StaticAddress) {
        let detail = format!("is a static record of {gateway}, which this name replaces");
        report.add(Class::Duplicate, path, shown, detail).warn();
    }
    false
}

fn alias_names(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.egress() else { return };
    view.need(
        &[
            Kind::TailnetEgress,
            Kind::TailnetIngress,
            Kind::TailnetGateway,
            Kind::Tailnet,
        ],
        report,
    );
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let tailnet = match spec.targets.iter().any(|target| !target.aliases.is_empty()) {
        true => view.tailnet(report).map(|(_, tailnet)| tailnet),
        false => None,
    };
    for (of, target) in spec.targets.iter().enumerate() {
        for (at, alias) in target.aliases.iter().enumerate() {
            let path = format!("spec.targets[{of}].aliases[{at}]");
            let shown = alias.as_str();
            if let Err(FormatError::Unreadable(problem)) = alias.parse() {
                let said = report.said(object.kind, "spec.targets[].aliases[]", 0);
                report.invalid(path, shown, format!("{said}: it {}", cut(&problem, 80)));
                continue;
            }
            let Some(name) = read(alias) else { continue };
            if name.labels().count() < 2 {
                let said = report.said(object.kind, "spec.targets[].aliases[]", 0);
                report.invalid(path, shown, format!("{said}, such as api.example.net"));
                continue;
            }
            let name = name.to_string();
            if let Some(first) = seen.get(&name) {
                let said = report.said(object.kind, "spec.targets[].aliases", 0);
                report.duplicate(path, shown, format!("{said}: it is {first} too"));
                continue;
            }
            seen.insert(name.clone(), path.clone());
            if read(&target.address).is_some_and(|address| address.to_string() == name) {
                let said = report.said(object.kind, "spec.targets[]", 0);
                report.invalid(path, shown, format!("{said}: the agent would be led back to itself"));
                continue;
            }
            if let Some(problem) = forbidden_name(&name, tailnet, view) {
                report.forbidden(path, shown, problem);
                continue;
            }
            let tailnet = &spec.tailnet_ref.name;
            if let Some(holder) = view.winner(
                &IndexKey::Name(tailnet.clone(), name.clone()),
                &ClaimKey::Name(name.clone()),
            ) {
                view.held(
                    report,
                    path,
                    shown,
                    &holder,
                    format!("is a name of {holder}: a name has one answer"),
                );
                continue;
            }
            zone_conflicts(&name, shown, &path, object, view, report);
        }
    }
}

fn published_names(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    view.need(
        &[
            Kind::TailnetEgress,
            Kind::TailnetIngress,
            Kind::TailnetGateway,
            Kind::Tailnet,
        ],
        report,
    );
    let Some((tailnet_name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let mut seen: Vec<String> = Vec::new();
    for published in names::published(object, tailnet) {
        let name = published.name;
        // Exposes on different ports may share a name (TN303 has the rest): one finding is enough.
        if seen.contains(&name) {
            continue;
        }
        seen.push(name.clone());
        let field = if published.alias { "alias" } else { "dnsLabel" };
        let path = format!("spec.exposes[{}].{field}", published.expose);
        if let Some(problem) = forbidden_name(&name, Some(tailnet), view) {
            report.forbidden(path, name.as_str(), problem);
            continue;
        }
        if let Some(namespace) = namespace_of(&name, object, tailnet, view) {
            let detail = format!(
                "reads as a name of namespace {} by the Tailnet's templates, and is kept for it: choose another dnsLabel",
                cut(&namespace, 63)
            );
            report.forbidden(path, name.as_str(), detail);
            continue;
        }
        let index = IndexKey::Name(tailnet_name.to_owned(), name.clone());
        if let Some(holder) = view.winner(&index, &ClaimKey::Name(name.clone())) {
            let remedy = if published.alias {
                "leave alias out or choose another dnsLabel"
            } else {
                "choose another dnsLabel"
            };
            view.held(
                report,
                path,
                name.as_str(),
                &holder,
                format!("is a name of {holder}: {remedy}"),
            );
            continue;
        }
        zone_conflicts(&name, &name, &path, object, view, report);
    }
}

/// The other namespace whose name this rather is: some template gives it there too, and that namespace is the longer reading
/// (`portal-team-a` is of `team-a` and not of `a`), or the only one, where this object has the name by a template without
/// `{namespace}`. So nobody keeps a name from a namespace by how it is spelled. What an object has already it keeps, and
/// the administrator names what he likes.
fn namespace_of(name: &str, object: &Object, tailnet: &TailnetSpec, view: &View<'_>) -> Option<String> {
    let key = ClaimKey::Name(name.to_owned());
    let has = match view.layer() {
        Layer::Webhook => !view.is_new(&key),
        Layer::Guard => view.holds(&key),
        Layer::Lint => false,
    };
    if has || view.in_operator_namespace() {
        return None;
    }
    let dns = tailnet.dns.as_ref()?;
    let templates: Vec<NameTemplate> = [dns.ingress_name_template.as_ref(), dns.ingress_alias_template.as_ref()]
        .into_iter()
        .flatten()
        .filter_map(read)
        .collect();
    let own = object.namespace.as_deref().unwrap_or_default();
    let of = object.tailnet_name().unwrap_or_default();
    let readings: Vec<&str> = templates
        .iter()
        .flat_map(|template| template.namespaces_in(name, of))
        .collect();
    let own_length = if readings.contains(&own) { own.len() } else { 0 };
    readings
        .into_iter()
        .filter(|namespace| *namespace != own && namespace.len() > own_length)
        .filter(|namespace| view.snapshot.has_namespace(namespace) == Some(true))
        .max_by_key(|namespace| namespace.len())
        .map(str::to_owned)
}

fn rendered_names(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    for (at, expose) in spec.exposes.iter().enumerate() {
        if let Some(label) = &expose.dns_label
            && let Err(FormatError::Unreadable(problem)) = label.parse()
        {
            report.invalid(format!("spec.exposes[{at}].dnsLabel"), label.as_str(), problem);
        }
    }
    let Some((_, tailnet)) = view.tailnet(report) else {
        return;
    };
    for unpublished in names::rendered(object, tailnet).into_iter().filter_map(Result::err) {
        let Some(expose) = spec.exposes.get(unpublished.expose) else {
            continue;
        };
        if expose.dns_label.as_ref().is_some_and(|label| read(label).is_none()) {
            continue;
        }
        let label = expose
            .dns_label
            .as_ref()
            .map_or_else(|| spec.dns_label(&object.name, expose), |label| label.as_str().into());
        let template = if unpublished.alias {
            "ingressAliasTemplate"
        } else {
            "ingressNameTemplate"
        };
        let problem = unpublished.error.to_string();
        let detail = format!(
            "the name that dns.{template} makes of it {}: set a dnsLabel that fits",
            cut(&problem, 80)
        );
        report.invalid(
            format!("spec.exposes[{}].dnsLabel", unpublished.expose),
            &*label,
            detail,
        );
    }
}

fn templates_exist(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.ingress() else { return };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let dns = tailnet.dns.as_ref();
    let has = |template: Option<&Text<NameTemplate>>| template.is_some_and(|template| read(template).is_some());
    let has_names = has(dns.and_then(|dns| dns.ingress_name_template.as_ref()));
    let has_aliases = has(dns.and_then(|dns| dns.ingress_alias_template.as_ref()));
    let namespace = object.namespace.as_deref().unwrap_or_default();
    for (at, expose) in spec.exposes.iter().enumerate() {
        if expose.mode() == ExposeMode::Http && !has_names {
            let detail = format!(
                "an http expose is found by its name, and Tailnet {} has no dns.ingressNameTemplate",
                quoted(name)
            );
            report.invalid(format!("spec.exposes[{at}].mode"), "http", detail);
        }
        if !expose.alias() {
            continue;
        }
        let path = format!("spec.exposes[{at}].alias");
        if !has_aliases {
            let detail = format!(
                "Tailnet {} has no dns.ingressAliasTemplate to make a short name of: leave alias out",
                quoted(name)
            );
            report.invalid(path, &serde_json::Value::Bool(true), detail);
        } else if let Some(allowed) = dns.and_then(|dns| dns.alias_namespaces.as_ref())
            && !allowed.iter().any(|allowed| allowed == namespace)
        {
            let detail = format!(
                "namespace {} may not have short names, dns.aliasNamespaces of the Tailnet allows {}",
                quoted(namespace),
                crate::report::list(allowed)
            );
            report.forbidden(path, &serde_json::Value::Bool(true), detail);
        }
    }
}
