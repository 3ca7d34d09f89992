//! What a deletion takes away from others. It is never refused, only said.

use ipnet::IpNet;
use tailnet_crds::{Kind, TailnetGatewaySpec};

use crate::finding::{Class, Severity};
use crate::index::{IndexKey, canonical, network, read};
use crate::object::Object;
use crate::report::{Report, Shown, cut, list};
use crate::table::{Check, Layers, Operations, Rule};
use crate::view::View;

/// Most objects that are named one by one.
const NAMED: usize = 20;

/// Nothing refers to a Tailnet that goes.
pub static TN109: Rule = Rule {
    id: "TN109",
    kinds: &[Kind::Tailnet],
    operations: Operations::DELETE,
    layers: Layers::WEBHOOK,
    severity: Severity::Warn,
    security: false,
    field: "metadata.name",
    message: "no object refers to a Tailnet that is deleted",
    why: "The objects stay, and what they run goes on as it is, but nothing changes any more: no key is renewed and no route or grant follows. They \
          come back to life with a Tailnet of the same name.",
    example: "kind: Tailnet\nmetadata: { name: corp }   # kubectl delete tailnet corp, while TailnetEgress team-a refers to it",
    fix: "Delete the objects first, or create the Tailnet again.",
    check: Check::Cross(nothing_refers_to_it),
};

/// Somebody else routes what a gateway routes.
pub static TN515: Rule = Rule {
    id: "TN515",
    kinds: &[Kind::TailnetGateway],
    operations: Operations::DELETE,
    layers: Layers::WEBHOOK,
    severity: Severity::Warn,
    security: false,
    field: "metadata.name",
    message: "a gateway that is deleted is not the only router of a site or of an egress target",
    why: "Connections through it break when it goes. With deletionPolicy Retain its node goes on, but nothing looks after it any more.",
    example: "kind: TailnetGateway\nmetadata: { name: prod-1-gw }   # kubectl delete tailnetgateway prod-1-gw, which alone routes TailnetSite lab",
    fix: "Let another gateway or router take the network over first.",
    check: Check::Cross(somebody_else_routes),
};

fn nothing_refers_to_it(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let members = view.snapshot.indexed(&IndexKey::Member(object.name.clone()));
    let mut members: Vec<String> = members
        .iter()
        .filter(|member| member.kind != Kind::Tailnet && !member.deleting)
        .map(|member| member.to_string())
        .collect();
    members.sort_unstable();
    if members.is_empty() {
        return;
    }
    let more = members.len().saturating_sub(NAMED);
    members.truncate(NAMED);
    // Several findings: a warning that is too long would be cut by the API server.
    let last = members.len().div_ceil(5) - 1;
    for (at, named) in members.chunks(5).enumerate() {
        let mut detail = format!("is still referred to by {}", list(named));
        if more > 0 && at == last {
            detail.push_str(&format!(" and {more} more"));
        }
        detail.push_str("; they stay as they are and take no change");
        report.invalid("metadata.name", &object.name, detail);
    }
}

/// What a gateway advertises.
fn routes(spec: &TailnetGatewaySpec) -> Vec<IpNet> {
    let lan = spec.routes.lan.iter().chain([&spec.service.tailnet_lb_cidr]);
    lan.filter_map(network).collect()
}

fn somebody_else_routes(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let (Some(spec), Some(tailnet)) = (object.gateway(), object.tailnet_name()) else {
        return;
    };
    view.need(&[Kind::TailnetGateway, Kind::TailnetSite, Kind::TailnetEgress], report);
    let own = routes(spec);
    let hostname = canonical(&spec.hostname);
    let mut others: Vec<IpNet> = view
        .snapshot
        .list(Kind::TailnetGateway)
        .filter(|other| !other.same_as(object) && !other.deleting && other.tailnet_name() == Some(tailnet))
        .filter_map(|other| other.gateway())
        .filter(|other| !other.suspend)
        .flat_map(routes)
        .collect();
    if let Some(known) = view.snapshot.facts(tailnet) {
        let own_nodes: Vec<&str> = known.nodes_named(&hostname).map(|node| node.id.as_str()).collect();
        let routes = known.facts.routes.iter();
        others.extend(
            routes
                .filter(|route| {
                    route.advertised && route.prefix.prefix_len() > 0 && !own_nodes.contains(&route.node_id.as_str())
                })
                .map(|route| route.prefix),
        );
    }
    let alone = |prefix: &IpNet| {
        own.iter().any(|route| route.contains(prefix)) && !others.iter().any(|route| route.contains(prefix))
    };
    let members = view.snapshot.indexed(&IndexKey::Member(tailnet.to_owned()));
    let mut lost: Vec<String> = Vec::new();
    for member in members.iter().filter(|member| !member.deleting) {
        if let Some(site) = member.site() {
            if let Some(prefix) = site.prefixes.iter().filter_map(network).find(alone) {
                lost.push(format!("{prefix} of {member}"));
            }
        } else if let Some(egress) = member.egress() {
            let target = egress.targets.iter().find_map(|target| {
                let address = read(&target.address)?.ip()?.addr();
                alone(&IpNet::from(address)).then_some(address)
            });
            lost.extend(target.map(|address| format!("{address} of {member}")));
        }
    }
    lost.sort_unstable();
    let more = lost.len().saturating_sub(NAMED);
    for lost in lost.iter().take(NAMED) {
        let detail = format!(
            "is the only router of {}: connections there break when it goes",
            cut(lost, 160)
        );
        report.invalid("metadata.name", &object.name, detail);
    }
    if more > 0 {
        let detail = format!("is the only router of {more} more sites or egress objects");
        report.add(Class::Invalid, "metadata.name", Shown::from(&object.name), detail);
    }
}
