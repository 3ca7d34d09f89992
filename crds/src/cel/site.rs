//! Rules of TailnetSite.

use super::common::*;
use super::{CelRule, Reason};
use crate::Kind;

const KIND: Kind = Kind::TailnetSite;

pub(super) static RULES: &[CelRule] = &[
    CelRule::new(
        "TN002",
        KIND,
        "spec",
        "self.tailnetRef == oldSelf.tailnetRef",
        IMMUTABLE,
    )
    .at(".tailnetRef")
    .because(Reason::Forbidden),
    CelRule::new("TN400", KIND, "spec.prefixes[]", cidr_readable!(), NOT_A_CIDR),
    CelRule::new("TN401", KIND, "spec.prefixes[]", cidr_canonical!(), NOT_CANONICAL).saying(write_cidr!()),
    CelRule::new(
        "TN404",
        KIND,
        "spec.prefixes[]",
        "!isCIDR(self) || cidr(self).prefixLength() > 1",
        "is the whole address space or half of it",
    ),
    CelRule::new(
        "TN404",
        KIND,
        "spec.prefixes[]",
        "!isCIDR(self) || cidr(self).prefixLength() <= 1 || !['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/4', \
         '100.64.0.0/10', '255.255.255.255/32', '::/128', '::1/128', 'fe80::/10', 'ff00::/8', 'fd7a:115c:a1e0::/48']\
         .exists(r, cidr(r).containsCIDR(cidr(self)) || cidr(self).containsCIDR(cidr(r)))",
        "overlaps unspecified, loopback, link-local, multicast or broadcast addresses or the tailnet's own range",
    ),
    CelRule::new(
        "TN401",
        KIND,
        "spec.prefixes",
        "self.all(a, self.exists_one(b, a == b))",
        "names a prefix twice",
    ),
    CelRule::new(
        "TN401",
        KIND,
        "spec.prefixes",
        "self.all(a, !isCIDR(a) || !self.exists(b, a != b && isCIDR(b) && cidr(a).containsCIDR(cidr(b))))",
        "has a prefix inside another: leave out the smaller one",
    ),
    CelRule::new("TN405", KIND, "spec.advertisedBy[]", tag_readable!(), NOT_A_TAG),
    CelRule::new(
        "TN405",
        KIND,
        "spec.advertisedBy",
        "self.all(a, self.exists_one(b, a == b))",
        "names a tag twice",
    ),
    CelRule::new("TN010", KIND, "spec.advertisedBy[]", tag_canonical!(), NOT_CANONICAL).saying(write_lower!()),
    CelRule::new("TN017", KIND, "spec.tailnetRef.name", object_name!(), NOT_AN_OBJECT),
];
