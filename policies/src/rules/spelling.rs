//! Spellings that two parsers read differently.

use tailnet_crds::types::{Cidr, Format, FormatError, Spelling, Text};

use crate::finding::Severity;
use crate::object::{Object, Spec};
use crate::report::{Report, quoted_up_to};
use crate::table::{ALL, CWGV, Check, Operations, Rule};

/// Values are written in their canonical form.
pub static TN010: Rule = Rule {
    id: "TN010",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: CWGV,
    severity: Severity::Deny,
    security: false,
    field: "every tag, DNS name, address, network, principal, URL and image",
    message: "values are written in the one spelling that every parser reads alike",
    why: "`010.0.0.1` is 10.0.0.1 for one parser and 8.0.0.1 for another; `::ffff:10.0.0.1` is 10.0.0.1 to a kernel and not to a filter that \
          compares text. Whoever writes one and means the other walks around a rule. So upper case, leading zeros, short, hexadecimal and octal \
          forms, IPv4 inside IPv6, zones, white space, trailing dots and characters outside ASCII are refused, and the message names the \
          canonical form. Names of groups, users and hosts are case-sensitive in Headscale and stay as they are.",
    example: "kind: TailnetEgress\nspec:\n  targets:\n    - name: db\n      address: 010.0.0.1\n      port: 5432\n      aliases: [DB.example.net.]",
    fix: "Write the form that the message names: `10.0.0.1`, `db.example.net`.",
    check: Check::Object(canonical_spelling),
};

/// What is said of a network with bits behind its prefix: an error of its own (TN105, TN401, TN503), in whichever spelling of
/// the address.
pub(crate) fn host_bits(text: &Text<Cidr>) -> Option<String> {
    match text.parse() {
        Err(
            error @ FormatError::NotCanonical {
                spelling: Spelling::HostBits,
                ..
            },
        ) => Some(error.to_string()),
        _ => None,
    }
}

/// Gets every value of a spec that has a format.
struct Visitor<'v, 'r> {
    report: &'v mut Report<'r>,
}

impl Visitor<'_, '_> {
    fn one<T: Format>(&mut self, text: &Text<T>, path: impl FnOnce() -> String) {
        let Err(FormatError::NotCanonical { spelling, canonical }) = text.parse() else {
            return;
        };
        // Of a network that is another rule's to say (`host_bits`); of a principal it is no error of its own.
        if spelling == Spelling::HostBits && T::NAME == Cidr::NAME {
            return;
        }
        let detail = format!(
            "is not in canonical form ({spelling}): write {}",
            quoted_up_to(&canonical, 100)
        );
        self.report.invalid(path(), text.as_str(), detail);
    }

    fn opt<T: Format>(&mut self, text: Option<&Text<T>>, path: &str) {
        if let Some(text) = text {
            self.one(text, || path.to_owned());
        }
    }

    fn all<T: Format>(&mut self, texts: &[Text<T>], path: &str) {
        for (at, text) in texts.iter().enumerate() {
            self.one(text, || format!("{path}[{at}]"));
        }
    }
}

fn canonical_spelling(object: &Object, report: &mut Report<'_>) {
    let mut v = Visitor { report };
    match &object.spec {
        Ok(Spec::Tailnet(spec)) => {
            v.one(&spec.server, || "spec.server".into());
            v.opt(spec.cluster_name.as_ref(), "spec.clusterName");
            v.opt(
                spec.api.as_ref().and_then(|api| api.endpoint.as_ref()),
                "spec.api.endpoint",
            );
            if let Some(dns) = &spec.dns {
                v.opt(dns.ingress_name_template.as_ref(), "spec.dns.ingressNameTemplate");
                v.opt(dns.ingress_alias_template.as_ref(), "spec.dns.ingressAliasTemplate");
                v.all(&dns.reserved_names, "spec.dns.reservedNames");
            }
            for (at, grant) in spec.tag_grants.iter().enumerate() {
                v.all(&grant.tags, &format!("spec.tagGrants[{at}].tags"));
            }
            if let Some(policy) = &spec.policy {
                v.all(&policy.tag_owners, "spec.policy.tagOwners");
                v.all(&policy.route_approvers, "spec.policy.routeApprovers");
                v.all(&policy.ingress_source_allowlist, "spec.policy.ingressSourceAllowlist");
            }
            v.all(&spec.reserved_networks, "spec.reservedNetworks");
        }
        Ok(Spec::Egress(spec)) => {
            v.opt(spec.tag.as_ref(), "spec.tag");
            for (at, target) in spec.targets.iter().enumerate() {
                v.one(&target.name, || format!("spec.targets[{at}].name"));
                v.one(&target.address, || format!("spec.targets[{at}].address"));
                v.all(&target.aliases, &format!("spec.targets[{at}].aliases"));
            }
        }
        Ok(Spec::Ingress(spec)) => {
            v.opt(spec.tag.as_ref(), "spec.tag");
            v.opt(spec.hostname.as_ref(), "spec.hostname");
            v.all(&spec.allow_from, "spec.allowFrom");
            for (at, expose) in spec.exposes.iter().enumerate() {
                v.one(&expose.name, || format!("spec.exposes[{at}].name"));
                v.opt(expose.dns_label.as_ref(), &format!("spec.exposes[{at}].dnsLabel"));
                if let Some(tls) = &expose.backend.tls {
                    v.one(&tls.server_name, || {
                        format!("spec.exposes[{at}].backend.tls.serverName")
                    });
                }
                if let Some(timeouts) = &expose.timeouts {
                    v.opt(
                        timeouts.request.as_ref(),
                        &format!("spec.exposes[{at}].timeouts.request"),
                    );
                    v.opt(
                        timeouts.backend_request.as_ref(),
                        &format!("spec.exposes[{at}].timeouts.backendRequest"),
                    );
                }
            }
        }
        Ok(Spec::Site(spec)) => {
            v.all(&spec.prefixes, "spec.prefixes");
            v.all(&spec.advertised_by, "spec.advertisedBy");
        }
        Ok(Spec::Gateway(spec)) => {
            v.one(&spec.hostname, || "spec.hostname".into());
            v.all(&spec.tags, "spec.tags");
            v.one(&spec.image, || "spec.image".into());
            v.all(&spec.routes.lan, "spec.routes.lan");
            v.one(&spec.service.load_balancer_ip, || "spec.service.loadBalancerIP".into());
            v.one(&spec.service.tailnet_lb_cidr, || "spec.service.tailnetLBCIDR".into());
            v.one(&spec.dns.zone, || "spec.dns.zone".into());
            v.one(&spec.dns.service_name, || "spec.dns.serviceName".into());
            v.one(&spec.dns.service_cluster_ip, || "spec.dns.serviceClusterIP".into());
            v.one(&spec.dns.image, || "spec.dns.image".into());
            for (at, record) in spec.dns.static_records.iter().enumerate() {
                v.one(&record.name, || format!("spec.dns.staticRecords[{at}].name"));
                v.opt(
                    record.address.as_ref(),
                    &format!("spec.dns.staticRecords[{at}].address"),
                );
                v.opt(record.target.as_ref(), &format!("spec.dns.staticRecords[{at}].target"));
            }
            v.opt(spec.dns.wildcard_address.as_ref(), "spec.dns.wildcardAddress");
            for (at, extra) in spec.dns.extra_zones.iter().enumerate() {
                v.one(&extra.zone, || format!("spec.dns.extraZones[{at}].zone"));
                v.all(&extra.upstreams, &format!("spec.dns.extraZones[{at}].upstreams"));
            }
            for (at, forward) in spec.forwards.iter().enumerate() {
                v.one(&forward.name, || format!("spec.forwards[{at}].name"));
                v.one(&forward.address, || format!("spec.forwards[{at}].address"));
            }
            v.opt(spec.forward_image.as_ref(), "spec.forwardImage");
        }
        Err(_) => {}
    }
}
