//! Rules of TailnetIngress.

use super::common::*;
use super::{CelRule, Reason};
use crate::Kind;

const KIND: Kind = Kind::TailnetIngress;

macro_rules! label_readable {
    () => {
        concat!(n!(), ".matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')")
    };
}

macro_rules! label_canonical {
    () => {
        concat!("self == ", n!(), " || !", label_readable!())
    };
}

macro_rules! duration_readable {
    () => {
        "self.matches(r'^([0-9]{1,5}(h|m|s|ms)){1,4}$')"
    };
}

const NOT_A_DURATION: &str = "is not a duration such as 600s, 1h30m or 500ms";
const TOO_LONG: &str = "is longer than 24h";

macro_rules! duration_short {
    () => {
        concat!("!", duration_readable!(), " || duration(self) <= duration('24h')")
    };
}

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
    CelRule::new("TN313", KIND, "spec.hostname", label_readable!(), NOT_A_LABEL),
    CelRule::new("TN010", KIND, "spec.hostname", label_canonical!(), NOT_CANONICAL).saying(write_lower!()),
    CelRule::new("TN003", KIND, "spec.exposes[].name", label_1035!(), NOT_A_1035_LABEL),
    CelRule::new("TN003", KIND, "spec.exposes[].dnsLabel", label_readable!(), NOT_A_LABEL),
    CelRule::new(
        "TN010",
        KIND,
        "spec.exposes[].dnsLabel",
        label_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_lower!()),
    CelRule::new(
        "TN303",
        KIND,
        "spec.exposes",
        "self.all(e, has(e.mode) && e.mode == 'http' || self.exists_one(f, f.port == e.port))",
        "a tcp expose shares its port with another expose: give it a port of its own",
    ),
    CelRule::new(
        "TN303",
        KIND,
        "spec.exposes",
        "self.all(e, !has(e.mode) || e.mode != 'http' || self.exists_one(f, f.port == e.port \
         && (has(f.dnsLabel) ? f.dnsLabel : f.name) == (has(e.dnsLabel) ? e.dnsLabel : e.name)))",
        "two http exposes on one port have the same name: give one another dnsLabel",
    ),
    CelRule::new(
        "TN308",
        KIND,
        "spec.exposes[]",
        "!has(self.backend.tls) || has(self.mode) && self.mode == 'http'",
        "is for http exposes only: set mode: http, or leave TLS to the client",
    )
    .at(".backend.tls"),
    CelRule::new(
        "TN308",
        KIND,
        "spec.exposes[].backend.tls.serverName",
        concat!("self == ", n!(), " && !self.endsWith('.') && ", name_readable!()),
        "is not a DNS name in lower case without trailing dot",
    ),
    CelRule::new(
        "TN312",
        KIND,
        "spec.exposes[]",
        "!has(self.timeouts) || has(self.mode) && self.mode == 'http'",
        "is for http exposes only: a tcp expose carries bytes for as long as both sides like",
    )
    .at(".timeouts"),
    CelRule::new(
        "TN312",
        KIND,
        "spec.exposes[].timeouts.request",
        duration_readable!(),
        NOT_A_DURATION,
    ),
    CelRule::new(
        "TN312",
        KIND,
        "spec.exposes[].timeouts.request",
        duration_short!(),
        TOO_LONG,
    ),
    CelRule::new(
        "TN312",
        KIND,
        "spec.exposes[].timeouts.backendRequest",
        duration_readable!(),
        NOT_A_DURATION,
    ),
    CelRule::new(
        "TN312",
        KIND,
        "spec.exposes[].timeouts.backendRequest",
        duration_short!(),
        TOO_LONG,
    ),
    CelRule::new(
        "TN312",
        KIND,
        "spec.exposes[].timeouts",
        "!has(self.request) || !has(self.backendRequest) \
         || !self.request.matches(r'^([0-9]{1,5}(h|m|s|ms)){1,4}$') \
         || !self.backendRequest.matches(r'^([0-9]{1,5}(h|m|s|ms)){1,4}$') \
         || duration(self.backendRequest) <= duration(self.request)",
        "is longer than request",
    )
    .at(".backendRequest"),
    CelRule::new(
        "TN309",
        KIND,
        "spec.tls",
        "!(has(self.secretRef) && has(self.issuerRef))",
        "has both secretRef and issuerRef: choose one",
    ),
    CelRule::new("TN012", KIND, "spec.agent.podLabels", foreign_keys!(), OWN_KEY),
    CelRule::new("TN012", KIND, "spec.agent.podAnnotations", foreign_keys!(), OWN_KEY),
    CelRule::new("TN017", KIND, "spec.tailnetRef.name", object_name!(), NOT_AN_OBJECT),
    CelRule::new(
        "TN017",
        KIND,
        "spec.exposes[].backend.service",
        label_1035!(),
        "is not the name of a Service: write at most 63 lower-case letters, digits and dashes, beginning with a letter",
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.exposes[].backend.namespace",
        label_1123!(),
        NOT_A_NAMESPACE,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.exposes[].backend.tls.caConfigMapRef.name",
        object_name!(),
        NOT_AN_OBJECT,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.exposes[].backend.tls.caConfigMapRef.key",
        data_key!(),
        NOT_A_KEY,
    ),
    CelRule::new("TN017", KIND, "spec.tls.secretRef.name", object_name!(), NOT_AN_OBJECT),
    CelRule::new("TN017", KIND, "spec.tls.issuerRef.name", object_name!(), NOT_AN_OBJECT),
    CelRule::new("TN017", KIND, "spec.tls.issuerRef.kind", object_kind!(), NOT_A_KIND),
    CelRule::new("TN017", KIND, "spec.tls.issuerRef.group", object_name!(), NOT_A_GROUP),
];
