//! Rules of TailnetEgress.

use super::common::*;
use super::{CelRule, Reason};
use crate::Kind;

const KIND: Kind = Kind::TailnetEgress;

pub(super) static RULES: &[CelRule] = &[
    CelRule::new(
        "TN003",
        KIND,
        "",
        "self.metadata.name.size() <= 60",
        "the name is longer than 60 characters, so it cannot become a node's name",
    ),
    CelRule::new(
        "TN002",
        KIND,
        "spec",
        "self.tailnetRef == oldSelf.tailnetRef",
        IMMUTABLE,
    )
    .at(".tailnetRef")
    .because(Reason::Forbidden),
    CelRule::new("TN004", KIND, "spec.tag", tag_readable!(), NOT_A_TAG),
    CelRule::new("TN010", KIND, "spec.tag", tag_canonical!(), NOT_CANONICAL).saying(write_lower!()),
    CelRule::new(
        "TN209",
        KIND,
        "spec.consumerNamespaces",
        "self.size() > 0",
        "is empty, so nobody may connect: name at least one namespace",
    ),
    CelRule::new(
        "TN209",
        KIND,
        "spec.consumerNamespaces",
        "self.all(a, self.exists_one(b, a == b))",
        "names a namespace twice",
    ),
    CelRule::new(
        "TN209",
        KIND,
        "spec.consumerNamespaces[]",
        // The API server would repeat a password that was pasted here; the webhook does not.
        concat!(label_1123!(), " || self.contains('@')"),
        NOT_A_NAMESPACE,
    ),
    CelRule::new("TN003", KIND, "spec.targets[].name", label_1035!(), NOT_A_1035_LABEL),
    CelRule::new(
        "TN203",
        KIND,
        "spec.targets[].address",
        concat!(
            ip_readable!(),
            " || ",
            name_readable!(),
            " || (",
            foreign!(),
            " && !self.contains('@'))"
        ),
        "is not an IPv4 or IPv6 address or a DNS name",
    )
    .careful(),
    CelRule::new(
        "TN203",
        KIND,
        "spec.targets[].address",
        "!isIP(self) || (ip(self).isGlobalUnicast() && !self.startsWith('0.'))",
        "is not the address of one host: it is unspecified, loopback, link-local, multicast or broadcast",
    ),
    CelRule::new(
        "TN203",
        KIND,
        "spec.targets[].address",
        r"!self.matches(r'^(.*\.)?localhost$')",
        "is a loopback name: it would reach the agent itself",
    ),
    CelRule::new(
        "TN010",
        KIND,
        "spec.targets[].address",
        // A URL with a password is the first row's, which does not repeat it.
        concat!(
            "(",
            ip_canonical!(),
            ") && (self.contains('@') || ",
            name_canonical!(),
            ")"
        ),
        NOT_CANONICAL,
    )
    .saying(concat!(
        ip_readable!(),
        " ? (",
        write_ip!(),
        ") : (",
        write_name!(),
        ")"
    )),
    CelRule::new(
        "TN210",
        KIND,
        "spec.targets[].protocol",
        "self != 'UDP'",
        "is not built yet: use TCP",
    ),
    CelRule::new(
        "TN206",
        KIND,
        "spec.targets[].aliases[]",
        concat!(long_name_readable!(), " || ", foreign!()),
        "is not a DNS name of at least two labels",
    ),
    CelRule::new(
        "TN010",
        KIND,
        "spec.targets[].aliases[]",
        // Up to 2048 aliases: the budget has no room to ask again whether it is a name.
        name_spelled!(),
        NOT_CANONICAL,
    )
    .saying(write_name!()),
    CelRule::new(
        "TN206",
        KIND,
        "spec.targets[].aliases",
        "self.all(a, self.exists_one(b, a == b))",
        "names an alias twice",
    ),
    CelRule::new(
        "TN206",
        KIND,
        "spec.targets[]",
        "!has(self.aliases) || !(self.address in self.aliases)",
        "holds the target's own address",
    )
    .at(".aliases"),
    CelRule::new("TN012", KIND, "spec.agent.podLabels", foreign_keys!(), OWN_KEY),
    CelRule::new("TN012", KIND, "spec.agent.podAnnotations", foreign_keys!(), OWN_KEY),
    CelRule::new("TN017", KIND, "spec.tailnetRef.name", object_name!(), NOT_AN_OBJECT),
];
