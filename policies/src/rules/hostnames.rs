//! Names of nodes in Headscale.

use tailnet_crds::Kind;
use tailnet_crds::types::{DnsLabel, FormatError, Text};

use crate::claims::ClaimKey;
use crate::finding::{Class, Severity};
use crate::index::{IndexKey, canonical, read};
use crate::names;
use crate::object::{Object, Spec};
use crate::report::{Report, cut, quoted};
use crate::request::Layer;
use crate::table::{CWGV, Check, Operations, Rule};
use crate::view::View;

/// Host names are one object's.
pub static TN313: Rule = Rule {
    id: "TN313",
    kinds: &[Kind::TailnetEgress, Kind::TailnetIngress, Kind::TailnetGateway],
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.hostname",
    message: "a host name is a DNS label that no other object has; a tenant's own choice ends in its namespace",
    why: "The host name is the node's name in Headscale and its MagicDNS name. When two nodes want one name, the second is called `name-1` \
          and keeps that name, so that whoever dials the name reaches the other one. Replicas add `-2`, `-3` to the name. A name that ends in two \
          namespaces, such as `portal-team-a` in `team-a` and `a`, is kept for the longer one.",
    example: "kind: TailnetIngress\nmetadata: { name: portal, namespace: team-a }\nspec:\n  hostname: vault",
    fix: "Leave `spec.hostname` out, or choose a free name that ends in `-<namespace>`.",
    check: Check::Cross(host_names),
};

fn host_names(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(tailnet) = object.tailnet_name() else { return };
    let own: Option<&Text<DnsLabel>> = match &object.spec {
        Ok(Spec::Ingress(spec)) => spec.hostname.as_ref(),
        Ok(Spec::Gateway(spec)) => Some(&spec.hostname),
        _ => None,
    };
    let field = if object.kind == Kind::TailnetEgress {
        "metadata.name"
    } else {
        "spec.hostname"
    };
    if let Some(text) = own {
        if let Err(FormatError::Unreadable(_)) = text.parse() {
            let said = report.said(object.kind, "spec.hostname", 0);
            report.invalid(field, text.as_str(), said);
            return;
        }
        tenants_choice(object, text, view, report);
    }
    view.need(
        &[Kind::TailnetEgress, Kind::TailnetIngress, Kind::TailnetGateway],
        report,
    );
    let hostnames = match object.kind {
        Kind::TailnetGateway => own.map(canonical).into_iter().collect(),
        _ => names::hostnames_of(object, view.tailnet_spec()),
    };
    for hostname in &hostnames {
        let key = ClaimKey::Hostname(hostname.clone());
        if let Some(holder) = view.winner(&IndexKey::Hostname(tailnet.to_owned(), hostname.clone()), &key) {
            let detail = format!("is the name of a node of {holder}: choose another");
            view.held(report, field, hostname.as_str(), &holder, detail);
        }
    }
    foreign_node(object, &hostnames, field, view, report);
}

/// A tenant may not look like somebody else's node.
fn tenants_choice(object: &Object, text: &Text<DnsLabel>, view: &View<'_>, report: &mut Report<'_>) {
    if object.kind != Kind::TailnetIngress || view.in_operator_namespace() || object.name.is_empty() {
        return;
    }
    let (Some(chosen), Some(namespace)) = (read(text), object.namespace.as_deref()) else {
        return;
    };
    let cluster = names::cluster_name(view.tailnet_spec());
    if let Some(other) = namespace_of(chosen.as_str(), namespace, cluster.as_deref(), view) {
        let detail = format!(
            "reads as a name of namespace {}, and is kept for it: choose another name that ends in -{}",
            cut(&other, 63),
            cut(namespace, 63)
        );
        report.forbidden("spec.hostname", text.as_str(), detail);
        return;
    }
    let default = names::default_ingress_hostname(cluster.as_deref(), namespace, &object.name);
    if chosen.as_str() == default
        || chosen
            .as_str()
            .strip_suffix(namespace)
            .is_some_and(|rest| rest.ends_with('-'))
    {
        return;
    }
    let detail = format!(
        "does not end in -{}: outside the operator namespace write such a name, or leave it out for {}",
        cut(namespace, 63),
        quoted(&default)
    );
    report.forbidden("spec.hostname", text.as_str(), detail);
}

/// The other namespace whose choice or default a chosen name rather is: `portal-team-a` ends in `-a` too, but where there is
/// a namespace `team-a` it is of that one. What an object has already it keeps.
fn namespace_of(chosen: &str, own: &str, cluster: Option<&str>, view: &View<'_>) -> Option<String> {
    let key = ClaimKey::Hostname(chosen.to_owned());
    let has = match view.layer() {
        Layer::Webhook => !view.is_new(&key),
        Layer::Guard => view.holds(&key),
        Layer::Lint => false,
    };
    if has {
        return None;
    }
    let splits = |text: &'_ str| -> Vec<(String, String)> {
        text.match_indices('-')
            .map(|(at, _)| (text[..at].to_owned(), text[at + 1..].to_owned()))
            .collect()
    };
    let exists = |namespace: &str| view.snapshot.has_namespace(namespace) == Some(true);
    let longer = splits(chosen)
        .into_iter()
        .map(|(_, namespace)| namespace)
        .find(|namespace| namespace.len() > own.len() && exists(namespace));
    longer.or_else(|| {
        // The default name of a namespace with a dash, or of an object with one, ends in a hash.
        let plain = match cluster {
            Some(cluster) => chosen.strip_prefix(cluster)?.strip_prefix('-')?,
            None => chosen,
        };
        let (rest, _) = plain.rsplit_once('-')?;
        splits(rest)
            .into_iter()
            .find(|(name, namespace)| {
                namespace != own
                    && exists(namespace)
                    && names::default_ingress_hostname(cluster, namespace, name) == chosen
            })
            .map(|(_, namespace)| namespace)
    })
}

/// A node of that name exists which is not this object's: it has neither its tag nor was made for it.
fn foreign_node(object: &Object, hostnames: &[String], field: &str, view: &View<'_>, report: &mut Report<'_>) {
    let Some(facts) = object.tailnet_name().and_then(|name| view.snapshot.facts(name)) else {
        return;
    };
    let tags: Vec<String> = match &object.spec {
        Ok(Spec::Gateway(spec)) => spec.tags.iter().map(canonical).collect(),
        _ => names::tag_of(object, view.tailnet_spec()).into_iter().collect(),
    };
    for hostname in hostnames {
        let foreign = facts
            .nodes_named(hostname)
            .find(|node| !node.tags.iter().any(|tag| tags.contains(tag)));
        if let Some(node) = foreign {
            let detail = format!(
                "node {} in Headscale has this name and is not this object's: this one would get another name",
                cut(&node.id, 20)
            );
            report.add(Class::Duplicate, field, hostname.as_str(), detail).warn();
        }
    }
}
