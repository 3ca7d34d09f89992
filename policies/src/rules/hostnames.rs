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
          namespaces, such as `portal-team-a` in `team-a` and `a`, is kept for the longer one; one that is a replica's of another namespace, such as \
          `web-a-2` where there are the namespaces `a` and `a-2`, is kept for that: choices in `a-2` could not be told from it, so leave the host name to the default there.",
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
        let detail = match other {
            Reading::Choice(other) => format!(
                "reads as a name of namespace {}, and is kept for it: choose another name that ends in -{}",
                cut(&other, 63),
                cut(namespace, 63)
            ),
            Reading::Replica(Some(other)) => format!(
                "reads as the name of a further replica in namespace {}, and is kept for it: leave it out for the default",
                cut(&other, 63)
            ),
            Reading::Replica(None) => {
                "reads as the name of a further replica of a longer name: choose a shorter one".to_owned()
            }
        };
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

/// As what else a chosen name reads.
enum Reading {
    /// The choice or default of another namespace.
    Choice(String),
    /// A further replica of an object of another namespace; None where a long name was cut for its number, so that nobody
    /// can tell whose.
    Replica(Option<String>),
}

/// The other namespace whose choice or default a chosen name rather is: `portal-team-a` ends in `-a` too, but where there is
/// a namespace `team-a` it is of that one. What an object has already it keeps.
fn namespace_of(chosen: &str, own: &str, cluster: Option<&str>, view: &View<'_>) -> Option<Reading> {
    let key = ClaimKey::Hostname(chosen.to_owned());
    let has = match view.layer() {
        Layer::Webhook => !view.is_new(&key),
        Layer::Guard => view.holds(&key),
        Layer::Lint => false,
    };
    if has {
        return None;
    }
    let exists = |namespace: &str| view.snapshot.has_namespace(namespace) == Some(true);
    let longer = splits(chosen)
        .map(|(_, namespace)| namespace)
        .find(|namespace| namespace.len() > own.len() && exists(namespace));
    if let Some(namespace) = longer.map(str::to_owned) {
        return Some(Reading::Choice(namespace));
    }
    let of_other = |namespace: &str| namespace != own && exists(namespace);
    if let Some(namespace) = namespace_of_default(chosen, cluster, of_other) {
        return Some(Reading::Choice(namespace));
    }
    // The replicas of an object cannot choose, so these names are theirs, whoever asks first.
    let first = names::first_of_replica(chosen)?;
    let of_choice = splits(first)
        .map(|(_, namespace)| namespace)
        .find(|namespace| of_other(namespace));
    match of_choice
        .map(str::to_owned)
        .or_else(|| namespace_of_default(first, cluster, of_other))
    {
        Some(namespace) => Some(Reading::Replica(Some(namespace))),
        None => names::may_be_cut(chosen).then_some(Reading::Replica(None)),
    }
}

/// `(portal-team, a)` and `(portal, team-a)` of `portal-team-a`; the longest second part first.
fn splits(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices('-').map(|(at, _)| (&text[..at], &text[at + 1..]))
}

/// The namespace, of those that `counts`, in which a host name with a hash at its end is some object's default.
fn namespace_of_default(hostname: &str, cluster: Option<&str>, counts: impl Fn(&str) -> bool) -> Option<String> {
    let plain = match cluster {
        Some(cluster) => hostname.strip_prefix(cluster)?.strip_prefix('-')?,
        None => hostname,
    };
    let (rest, _) = plain.rsplit_once('-')?;
    splits(rest)
        .find(|(name, namespace)| {
            counts(namespace) && names::default_ingress_hostname(cluster, namespace, name) == hostname
        })
        .map(|(_, namespace)| namespace.to_owned())
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
