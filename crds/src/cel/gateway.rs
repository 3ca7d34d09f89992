//! Rules of TailnetGateway.

use super::common::*;
use super::{CelRule, Reason};
use crate::Kind;

const KIND: Kind = Kind::TailnetGateway;

macro_rules! ipv4_net {
    () => {
        concat!("isCIDR(", n!(), ") && cidr(", n!(), ").ip().family() == 4")
    };
}

macro_rules! ipv4_net_usable {
    () => {
        concat!(
            "!(",
            ipv4_net!(),
            ") || (cidr(",
            n!(),
            ").prefixLength() > 1 && !['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/4', '100.64.0.0/10', '255.255.255.255/32'].exists(r, ",
            "cidr(r).containsCIDR(cidr(",
            n!(),
            ")) || cidr(",
            n!(),
            ").containsCIDR(cidr(r))))"
        )
    };
}

const NOT_IPV4_NET: &str = "is not an IPv4 CIDR such as 192.0.2.0/24";
const UNUSABLE_NET: &str = "is the whole address space or half of it, or overlaps unspecified, loopback, link-local, multicast or broadcast addresses or the tailnet's own range";
const NOT_IP: &str = "is not an IPv4 or IPv6 address";
const NOT_UNICAST: &str =
    "is not the address of one host: it is unspecified, loopback, link-local, multicast or broadcast";

macro_rules! unicast {
    () => {
        "!isIP(self) || (ip(self).isGlobalUnicast() && !self.startsWith('0.'))"
    };
}

const NOT_PINNED: &str = "has no full version tag or digest: write something like :v1.2.3 or @sha256:...";
const FIXED: &str = "is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again";
const UNSUPPORTED: &str = "is not supported: leave it out, or keep suspend: true";

const IPV6: &str = "is IPv6, which is not supported: write an IPv4 address, or keep suspend: true";

/// Whether an address of an active gateway is IPv4, as far as it can be read.
macro_rules! ipv4_or_suspended {
    ($field:literal) => {
        concat!(
            "self.suspend || !isIP(self.",
            $field,
            ") || ip(self.",
            $field,
            ").family() == 4"
        )
    };
}

/// Whether the object may still change `field`, which is required.
macro_rules! fixed {
    ($field:literal) => {
        concat!(
            "!has(oldSelf.status) || !has(oldSelf.status.activatedAt) || self.spec.",
            $field,
            " == oldSelf.spec.",
            $field
        )
    };
}

/// Whether the object may still change `field` of `parent`, which is optional: adding and removing are changes too.
macro_rules! fixed_optional {
    ($field:literal) => {
        concat!(
            "!has(oldSelf.status) || !has(oldSelf.status.activatedAt) || (has(self.spec.",
            $field,
            ") == has(oldSelf.spec.",
            $field,
            ") && (!has(self.spec.",
            $field,
            ") || self.spec.",
            $field,
            " == oldSelf.spec.",
            $field,
            "))"
        )
    };
}

const fn fixed(rule: &'static str, field_path: &'static str) -> CelRule {
    CelRule::new("TN505", KIND, "", rule, FIXED)
        .at(field_path)
        .because(Reason::Forbidden)
}

const fn unsupported(rule: &'static str, field_path: &'static str) -> CelRule {
    CelRule::new("TN506", KIND, "spec", rule, UNSUPPORTED)
        .at(field_path)
        .because(Reason::Forbidden)
}

pub(super) static RULES: &[CelRule] = &[
    CelRule::new(
        "TN501",
        KIND,
        "",
        "self.metadata.name.matches(r'^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",
        "the name is not a DNS-1035 label of at most 40 characters, so it cannot name the gateway's Service",
    ),
    fixed(fixed!("hostname"), ".spec.hostname"),
    fixed(fixed!("tags"), ".spec.tags"),
    fixed(fixed!("stateSecretRef"), ".spec.stateSecretRef"),
    fixed(fixed!("service.loadBalancerIP"), ".spec.service.loadBalancerIP"),
    fixed(
        fixed_optional!("service.loadBalancerClass"),
        ".spec.service.loadBalancerClass",
    ),
    fixed(fixed!("dns.zone"), ".spec.dns.zone"),
    fixed(fixed!("dns.serviceName"), ".spec.dns.serviceName"),
    fixed(fixed!("dns.serviceClusterIP"), ".spec.dns.serviceClusterIP"),
    fixed(fixed_optional!("dns.extraZones"), ".spec.dns.extraZones"),
    fixed(fixed_optional!("adoption"), ".spec.adoption"),
    CelRule::new(
        "TN002",
        KIND,
        "spec",
        "self.tailnetRef == oldSelf.tailnetRef",
        IMMUTABLE,
    )
    .at(".tailnetRef")
    .because(Reason::Forbidden),
    unsupported("self.suspend || !has(self.authKeySecretRef)", ".authKeySecretRef"),
    unsupported(
        "self.suspend || !has(self.forwards) || self.forwards.size() == 0",
        ".forwards",
    ),
    unsupported("self.suspend || !has(self.forwardImage)", ".forwardImage"),
    unsupported("self.suspend || !has(self.adoption)", ".adoption"),
    CelRule::new(
        "TN506",
        KIND,
        "spec",
        "self.suspend || self.replicas == 1",
        "is not supported: a gateway is one node, so write 1, or keep suspend: true",
    )
    .at(".replicas")
    .because(Reason::Forbidden),
    CelRule::new(
        "TN506",
        KIND,
        "spec",
        ipv4_or_suspended!("service.loadBalancerIP"),
        IPV6,
    )
    .at(".service.loadBalancerIP")
    .because(Reason::Forbidden),
    CelRule::new("TN506", KIND, "spec", ipv4_or_suspended!("dns.serviceClusterIP"), IPV6)
        .at(".dns.serviceClusterIP")
        .because(Reason::Forbidden),
    CelRule::new(
        "TN507",
        KIND,
        "spec",
        "!has(self.dns.extraZones) || !self.dns.extraZones.exists(z, self.service.loadBalancerIP in z.upstreams || self.dns.serviceClusterIP in z.upstreams)",
        "has the gateway's own address as an upstream",
    )
    .at(".dns.extraZones"),
    CelRule::new(
        "TN313",
        KIND,
        "spec.hostname",
        concat!(n!(), ".matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')"),
        NOT_A_LABEL,
    ),
    CelRule::new(
        "TN010",
        KIND,
        "spec.hostname",
        concat!(
            "self == ",
            n!(),
            " || !",
            n!(),
            ".matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')"
        ),
        NOT_CANONICAL,
    )
    .saying(write_lower!()),
    CelRule::new("TN004", KIND, "spec.tags[]", tag_readable!(), NOT_A_TAG),
    CelRule::new("TN010", KIND, "spec.tags[]", tag_canonical!(), NOT_CANONICAL).saying(write_lower!()),
    CelRule::new("TN502", KIND, "spec.image", image_pinned!(), NOT_PINNED),
    CelRule::new("TN502", KIND, "spec.dns.image", image_pinned!(), NOT_PINNED),
    CelRule::new(
        "TN503",
        KIND,
        "spec.routes.lan",
        "self.all(a, self.exists_one(b, a == b))",
        "names a network twice",
    ),
    CelRule::new("TN503", KIND, "spec.routes.lan[]", ipv4_net!(), NOT_IPV4_NET),
    CelRule::new("TN503", KIND, "spec.routes.lan[]", ipv4_net_usable!(), UNUSABLE_NET),
    CelRule::new("TN503", KIND, "spec.routes.lan[]", cidr_canonical!(), NOT_CANONICAL).saying(write_cidr!()),
    CelRule::new("TN503", KIND, "spec.service.tailnetLBCIDR", ipv4_net!(), NOT_IPV4_NET),
    CelRule::new(
        "TN503",
        KIND,
        "spec.service.tailnetLBCIDR",
        ipv4_net_usable!(),
        UNUSABLE_NET,
    ),
    CelRule::new(
        "TN503",
        KIND,
        "spec.service.tailnetLBCIDR",
        cidr_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_cidr!()),
    CelRule::new(
        "TN504",
        KIND,
        "spec.service",
        "!isIP(self.loadBalancerIP) || !isCIDR(self.tailnetLBCIDR) \
         || cidr(self.tailnetLBCIDR).containsIP(ip(self.loadBalancerIP))",
        "is outside tailnetLBCIDR",
    )
    .at(".loadBalancerIP"),
    CelRule::new("TN503", KIND, "spec.service.loadBalancerIP", ip_readable!(), NOT_IP),
    CelRule::new("TN503", KIND, "spec.service.loadBalancerIP", unicast!(), NOT_UNICAST),
    CelRule::new(
        "TN010",
        KIND,
        "spec.service.loadBalancerIP",
        ip_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_ip!()),
    CelRule::new("TN511", KIND, "spec.service.poolLabels", foreign_keys!(), OWN_KEY),
    CelRule::new(
        "TN507",
        KIND,
        "spec.dns.zone",
        concat!(name_readable!(), " || ", foreign!()),
        NOT_A_NAME,
    ),
    CelRule::new("TN010", KIND, "spec.dns.zone", name_canonical!(), NOT_CANONICAL).saying(write_name!()),
    CelRule::new("TN501", KIND, "spec.dns.serviceName", label_1035!(), NOT_A_1035_LABEL),
    CelRule::new("TN503", KIND, "spec.dns.serviceClusterIP", ip_readable!(), NOT_IP),
    CelRule::new("TN503", KIND, "spec.dns.serviceClusterIP", unicast!(), NOT_UNICAST),
    CelRule::new(
        "TN010",
        KIND,
        "spec.dns.serviceClusterIP",
        ip_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_ip!()),
    CelRule::new(
        "TN508",
        KIND,
        "spec.dns.staticRecords[]",
        "has(self.address) != has(self.target)",
        "has both or neither of address and target: write one",
    ),
    CelRule::new(
        "TN503",
        KIND,
        "spec.dns.staticRecords[].address",
        ip_readable!(),
        NOT_IP,
    ),
    CelRule::new(
        "TN010",
        KIND,
        "spec.dns.staticRecords[].address",
        ip_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_ip!()),
    CelRule::new("TN503", KIND, "spec.dns.wildcardAddress", ip_readable!(), NOT_IP),
    CelRule::new(
        "TN010",
        KIND,
        "spec.dns.wildcardAddress",
        ip_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_ip!()),
    CelRule::new(
        "TN507",
        KIND,
        "spec.dns",
        "!has(self.extraZones) || self.extraZones.all(z, z.zone != self.zone && !z.zone.endsWith('.' + self.zone) \
         && !self.zone.endsWith('.' + z.zone))",
        "overlaps the zone of the gateway",
    )
    .at(".extraZones"),
    CelRule::new(
        "TN507",
        KIND,
        "spec.dns.extraZones",
        "self.all(a, self.exists_one(b, a.zone == b.zone || a.zone.endsWith('.' + b.zone) || b.zone.endsWith('.' + a.zone)))",
        "has zones that overlap each other",
    ),
    CelRule::new(
        "TN507",
        KIND,
        "spec.dns.extraZones[].zone",
        concat!(name_readable!(), " || ", foreign!()),
        NOT_A_NAME,
    ),
    CelRule::new(
        "TN010",
        KIND,
        "spec.dns.extraZones[].zone",
        name_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_name!()),
    CelRule::new(
        "TN507",
        KIND,
        "spec.dns.extraZones[].upstreams[]",
        ip_readable!(),
        NOT_IP,
    ),
    CelRule::new(
        "TN507",
        KIND,
        "spec.dns.extraZones[].upstreams[]",
        unicast!(),
        NOT_UNICAST,
    ),
    CelRule::new(
        "TN010",
        KIND,
        "spec.dns.extraZones[].upstreams[]",
        ip_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_ip!()),
    CelRule::new(
        "TN507",
        KIND,
        "spec.dns.extraZones[].upstreams",
        "self.all(a, self.exists_one(b, a == b))",
        "names an upstream twice",
    ),
    CelRule::new("TN017", KIND, "spec.tailnetRef.name", object_name!(), NOT_AN_OBJECT),
    CelRule::new("TN017", KIND, "spec.stateSecretRef.name", object_name!(), NOT_AN_OBJECT),
    CelRule::new(
        "TN017",
        KIND,
        "spec.authKeySecretRef.name",
        object_name!(),
        NOT_AN_OBJECT,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.service.loadBalancerClass",
        r"self.matches(r'^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
        "is not a class such as example.com/internal",
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.service.poolLabels",
        concat!(
            r"self.all(k, k.matches(r'^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
            r" && self[k].matches(r'^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$'))"
        ),
        "is no label that Kubernetes can have: [DNS name/]name and value of letters, digits, dashes, dots and underscores, at most 63 characters each",
    ),
];
