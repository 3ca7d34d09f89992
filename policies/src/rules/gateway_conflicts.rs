//! The gateway among the other objects of the cluster.

use ipnet::IpNet;
use tailnet_crds::types::Text;
use tailnet_crds::{DeletionPolicy, Kind, PolicyMode};

use crate::claims::ClaimKey;
use crate::finding::{Class, ObjectRef, Severity};
use crate::index::{IndexKey, canonical, network, read};
use crate::object::Object;
use crate::prefixes::overlap;
use crate::report::{Report, Shown, Unchecked, quoted};
use crate::rules::shared_objects;
use crate::table::{Check, Layers, Operations, Rule, WG, WGV};
use crate::view::View;

const GATEWAY: &[Kind] = &[Kind::TailnetGateway];

/// What a gateway has is its own.
pub static TN509: Rule = Rule {
    id: "TN509",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.service.loadBalancerIP, spec.dns.serviceClusterIP, spec.dns.serviceName, spec.stateSecretRef, metadata.name, spec.dns.zone",
    message: "a gateway's addresses, Services and state Secret are nobody else's; a zone is shared only on purpose",
    why: "Two gateways with one address or one Service would answer in turns, and with one state Secret they would be one node twice, of which each \
          throws the other out. An existing Service is never taken over. Two gateways for one zone \
          are how a gateway is replaced, so that is only said; host names are TN313's.",
    example: "kind: TailnetGateway\nmetadata: { name: b }\nspec:\n  service: { loadBalancerIP: 198.51.100.17 }   # TailnetGateway a has it",
    fix: "Choose free addresses and names.",
    check: Check::Cross(gateway_is_exclusive),
};

/// Addresses fit the cluster's ranges.
pub static TN510: Rule = Rule {
    id: "TN510",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: WG,
    severity: Severity::Deny,
    security: false,
    field: "spec.dns.serviceClusterIP, spec.service.loadBalancerIP",
    message: "serviceClusterIP is in the cluster's Service range, loadBalancerIP is not",
    why: "The API server refuses a ClusterIP outside its range, so the gateway would stay without its DNS Service. A LoadBalancer address inside it \
          would be the address of some Service.",
    example: "kind: TailnetGateway\nspec:\n  dns: { serviceClusterIP: 192.0.2.54 }   # the Service range is 10.96.0.0/12",
    fix: "Choose a free address of the Service range for `serviceClusterIP`, one of the pool for `loadBalancerIP`.",
    check: Check::Cross(addresses_fit_ranges),
};

/// Routes keep off reserved networks.
pub static TN512: Rule = Rule {
    id: "TN512",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.routes.lan[*], spec.service.tailnetLBCIDR",
    message: "a gateway's routes do not overlap the Tailnet's reservedNetworks; a site of another router is only shared on purpose",
    why: "Reserved networks are the administrator's. A network that is a site of other routers is served by this gateway as a standby, which is \
          how a router is replaced, so that is only said.",
    example: "kind: Tailnet\nspec: { reservedNetworks: [192.0.2.0/24] }\n---\nkind: TailnetGateway\nspec:\n  routes: { lan: [192.0.2.0/25] }",
    fix: "Leave the network out of the gateway, or out of `spec.reservedNetworks`.",
    check: Check::Cross(routes_are_free),
};

/// The wildcard needs a CoreDNS that keeps to the closest encloser.
pub static TN513: Rule = Rule {
    id: "TN513",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.dns.wildcardAddress",
    message: "wildcardAddress goes with CoreDNS 1.14.7 or later",
    why: "Older versions answer some names below the zone by the wildcard although a record of theirs, or a name between, should keep it away.",
    example: "kind: TailnetGateway\nspec:\n  dns: { image: docker.io/coredns/coredns:1.14.6, wildcardAddress: 198.51.100.80 }",
    fix: "Use `docker.io/coredns/coredns:1.14.7` or later.",
    check: Check::Object(wildcard_needs_version),
};

/// What a deletion will do is said when it is decided.
pub static TN514: Rule = Rule {
    id: "TN514",
    kinds: GATEWAY,
    operations: Operations::UPDATE,
    layers: Layers::WEBHOOK,
    severity: Severity::Warn,
    security: false,
    field: "spec.deletionPolicy",
    message: "a change of deletionPolicy says what a deletion will now do",
    why: "deletionPolicy is the only record of consent to the teardown of a gateway.",
    example: "kind: TailnetGateway\nspec:\n  deletionPolicy: Delete   # was Retain",
    fix: "Nothing, when that is meant.",
    check: Check::Transition(deletion_policy_changes),
};

/// Somebody approves the routes.
pub static TN516: Rule = Rule {
    id: "TN516",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Warn,
    security: false,
    field: "spec.tags",
    message: "one of the gateway's tags is in routeApprovers, where this installation owns the policy",
    why: "The rendered policy approves the routes of nodes whose tag is in `policy.routeApprovers`. Without one every route waits for approval by \
          hand (`RoutesInSync=False/NotApproved`).",
    example: "kind: Tailnet\nspec:\n  policy: { baseConfigMap: tailnet-policy, routeApprovers: [\"tag:router\"] }\n---\nkind: TailnetGateway\nspec:\n  tags: [\"tag:fabric\"]",
    fix: "Add the tag to `spec.policy.routeApprovers` of the Tailnet.",
    check: Check::Cross(routes_are_approved),
};

fn gateway_is_exclusive(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    view.need(&[Kind::TailnetGateway, Kind::TailnetEgress], report);
    let old = view.old().and_then(|old| old.gateway());
    let addresses = [
        (
            "spec.service.loadBalancerIP",
            &spec.service.load_balancer_ip,
            old.map(|old| &old.service.load_balancer_ip),
            IndexKey::LoadBalancer as fn(std::net::IpAddr) -> IndexKey,
        ),
        (
            "spec.dns.serviceClusterIP",
            &spec.dns.service_cluster_ip,
            old.map(|old| &old.dns.service_cluster_ip),
            IndexKey::ClusterIp as fn(std::net::IpAddr) -> IndexKey,
        ),
    ];
    for (field, text, old, key) in addresses {
        let Some(address) = read(text) else { continue };
        let had = old.and_then(read) == Some(address);
        if let Some(other) = view
            .others(&key(address.addr()))
            .find(|other| view.comes_after(had, other))
        {
            view.held(
                report,
                field,
                text.as_str(),
                &other,
                format!("is an address of {other}: choose a free one"),
            );
        }
    }
    shared_objects::of_gateway(object, view, report);
    own_services(object, report);
    let namespace = &view.snapshot.config().operator_namespace;
    if !view.snapshot.services_known() {
        report.unchecked(Unchecked::Services);
    }
    let services = [
        ("metadata.name", object.name.clone()),
        ("metadata.name", format!("{}-headless", object.name)),
        ("spec.dns.serviceName", canonical(&spec.dns.service_name)),
    ];
    for (field, service) in services.into_iter().filter(|_| !object.name.is_empty()) {
        let key = ClaimKey::Service(service.clone());
        if let Some(holder) = view.winner(&IndexKey::Service(service.clone()), &key) {
            view.held(
                report,
                field,
                service.as_str(),
                &holder,
                format!("is the name of a Service of {holder}: choose another"),
            );
        } else if let Some(info) = view.snapshot.service(namespace, &service) {
            // Gateways do not own their Services (they stay when the CR goes); a Service of a known owner is another's.
            let reference = ObjectRef::service(namespace, &service);
            let foreign = info.belongs_to.as_ref() != Some(&(object.kind.as_str().to_owned(), object.name.clone()));
            if foreign && !view.is_ignored(&reference) {
                let detail = format!(
                    "{reference} exists and is not of this gateway; it is never taken over, choose another name"
                );
                report
                    .add(Class::Duplicate, field, service.as_str(), detail)
                    .held_by(reference);
            }
        }
    }
    let Some(tailnet) = object.tailnet_name() else { return };
    let zones = std::iter::once(("spec.dns.zone".to_owned(), &spec.dns.zone)).chain(
        spec.dns
            .extra_zones
            .iter()
            .enumerate()
            .map(|(at, extra)| (format!("spec.dns.extraZones[{at}].zone"), &extra.zone)),
    );
    for (path, zone) in zones {
        if let Some(other) = view.others(&IndexKey::Apex(tailnet.to_owned(), canonical(zone))).next() {
            let detail = format!("is served by {other} too: right while one replaces the other");
            report.duplicate(path, zone.as_str(), detail).warn();
        }
    }
}

/// The Services that are made for one gateway are three.
fn own_services(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let cluster_ip = read(&spec.dns.service_cluster_ip);
    if cluster_ip.is_some() && cluster_ip == read(&spec.service.load_balancer_ip) {
        let detail =
            "is spec.service.loadBalancerIP too: one is an address of the Service range, the other of the pool";
        report.duplicate(
            "spec.dns.serviceClusterIP",
            spec.dns.service_cluster_ip.as_str(),
            detail,
        );
    }
    let name = canonical(&spec.dns.service_name);
    if !object.name.is_empty() && (name == object.name || name == format!("{}-headless", object.name)) {
        let detail = "is the name of another Service of this gateway: choose one such as <name>-dns";
        report.duplicate("spec.dns.serviceName", name.as_str(), detail);
    }
}

fn addresses_fit_ranges(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let ranges = &view.snapshot.config().service_cidrs;
    let inside = |text: &Text<_>| {
        read(text)
            .map(|address: tailnet_crds::types::IpAddress| ranges.iter().any(|range| range.contains(&address.addr())))
    };
    if ranges.is_empty() {
        return;
    }
    let shown = ranges.iter().map(IpNet::to_string).collect::<Vec<_>>();
    if inside(&spec.dns.service_cluster_ip) == Some(false) {
        let detail = format!(
            "is outside the cluster's Service range {}: choose a free address of it",
            crate::report::list(&shown)
        );
        report.invalid(
            "spec.dns.serviceClusterIP",
            spec.dns.service_cluster_ip.as_str(),
            detail,
        );
    }
    if inside(&spec.service.load_balancer_ip) == Some(true) {
        let detail = format!(
            "is inside the cluster's Service range {}: choose an address of the LoadBalancer pool",
            crate::report::list(&shown)
        );
        report.invalid(
            "spec.service.loadBalancerIP",
            spec.service.load_balancer_ip.as_str(),
            detail,
        );
    }
}

fn routes_are_free(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    view.need(&[Kind::TailnetSite], report);
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let reserved: Vec<IpNet> = tailnet.reserved_networks.iter().filter_map(network).collect();
    let tags: Vec<String> = spec.tags.iter().map(canonical).collect();
    let approvers: Vec<String> = tailnet
        .policy
        .iter()
        .flat_map(|policy| &policy.route_approvers)
        .map(canonical)
        .collect();
    let lan = spec
        .routes
        .lan
        .iter()
        .enumerate()
        .map(|(at, lan)| (format!("spec.routes.lan[{at}]"), lan));
    let pool = std::iter::once(("spec.service.tailnetLBCIDR".to_owned(), &spec.service.tailnet_lb_cidr));
    for (path, text) in lan.chain(pool) {
        let Some(own) = network(text) else { continue };
        if let Some(range) = reserved.iter().find(|range| overlap(range, &own)) {
            let detail = format!(
                "overlaps {range}, which Tailnet {} reserves: leave it out",
                quoted(name)
            );
            report.forbidden(path, text.as_str(), detail);
            continue;
        }
        for (theirs, site) in view.sites(name, own) {
            let Some(site_spec) = site.site() else { continue };
            let routers: Vec<String> = match site_spec.advertised_by.is_empty() {
                true => approvers.clone(),
                false => site_spec.advertised_by.iter().map(canonical).collect(),
            };
            if !routers.iter().any(|router| tags.contains(router)) {
                let detail =
                    format!("overlaps {theirs} of {site}, which other routers serve: this gateway is a standby");
                report.duplicate(&path, text.as_str(), detail).warn();
                break;
            }
        }
    }
}

fn wildcard_needs_version(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let Some(wildcard) = &spec.dns.wildcard_address else {
        return;
    };
    let Some(version) = read(&spec.dns.image).and_then(|image| image.version()) else {
        return;
    };
    if version < vec![1, 14, 7] {
        let detail = format!(
            "needs CoreDNS 1.14.7 or later, and dns.image is {}",
            crate::report::cut(spec.dns.image.as_str(), 100)
        );
        report.invalid("spec.dns.wildcardAddress", wildcard.as_str(), detail);
    }
}

fn deletion_policy_changes(old: &Object, new: &Object, report: &mut Report<'_>) {
    let (Some(before), Some(after)) = (old.gateway(), new.gateway()) else {
        return;
    };
    if before.deletion_policy == after.deletion_policy {
        return;
    }
    let (value, detail) = match after.deletion_policy {
        DeletionPolicy::Delete => (
            "Delete",
            "deleting this gateway will now delete its node in Headscale, its state Secret and its workload",
        ),
        DeletionPolicy::Retain => (
            "Retain",
            "deleting this gateway will now keep everything: node, state Secret and workload go on",
        ),
    };
    report.invalid("spec.deletionPolicy", value, detail);
}

fn routes_are_approved(object: &Object, view: &View<'_>, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    let Some((name, tailnet)) = view.tailnet(report) else {
        return;
    };
    let Some(policy) = &tailnet.policy else { return };
    let approvers: Vec<String> = policy.route_approvers.iter().map(canonical).collect();
    if spec.tags.iter().map(canonical).any(|tag| approvers.contains(&tag)) {
        return;
    }
    let mode = if policy.mode == PolicyMode::DryRun {
        " (now in DryRun)"
    } else {
        ""
    };
    let detail = format!(
        "none is in policy.routeApprovers of Tailnet {}{mode}: its routes wait for approval by hand",
        quoted(name)
    );
    report.add(
        Class::Invalid,
        "spec.tags",
        Shown::from(&serde_json::json!(spec.tags)),
        detail,
    );
}
