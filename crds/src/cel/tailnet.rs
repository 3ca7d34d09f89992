//! Rules of Tailnet.

use super::CelRule;
use super::common::*;
use crate::Kind;

const KIND: Kind = Kind::Tailnet;

/// Scheme, host and port, spelling aside.
macro_rules! url_readable {
    () => {
        concat!(
            n!(),
            r".matches(r'^https?://([a-z0-9]([a-z0-9.-]*[a-z0-9.])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/?$')"
        )
    };
}

/// http only to loopback, private and in-cluster hosts.
macro_rules! url_protected {
    () => {
        concat!(
            "!",
            url_readable!(),
            " || !",
            n!(),
            ".startsWith('http://') || ",
            n!(),
            r".matches(r'^http://(localhost|127\.[0-9.]+|10\.[0-9.]+|192\.168\.[0-9.]+|172\.(1[6-9]|2[0-9]|3[01])\.[0-9.]+",
            r"|\[::1\]|\[f[cd][0-9a-f:]+\]|[a-z][a-z0-9-]*|([a-z0-9-]+\.)+svc(\.[a-z0-9.-]+)?)(:[0-9]+)?/?$')"
        )
    };
}

const NOT_A_URL: &str = "is not an absolute https URL without user info, query and path";
const PLAIN: &str = "is plain http to a host that is neither loopback, private nor in-cluster: write https";

macro_rules! template_rest {
    () => {
        "self.replace('{name}', 'a').replace('{namespace}', 'a').replace('{tailnet}', 'a')"
    };
}

macro_rules! template_known {
    () => {
        concat!("!", template_rest!(), ".matches(r'[{}]')")
    };
}

macro_rules! template_valid {
    () => {
        concat!(
            "!self.contains('{name}') || !(",
            template_known!(),
            ") || (",
            template_rest!(),
            ".contains('.') && ",
            template_rest!(),
            ".matches(r'^",
            name_pattern!(),
            "$') && !",
            template_rest!(),
            r".matches(r'(^|\.)([0-9]+|0x[0-9a-f]*)$'))"
        )
    };
}

const NO_NAME: &str = "lacks the placeholder {name}";
const UNKNOWN_PLACEHOLDER: &str = "has an unknown placeholder: there are {name}, {namespace} and {tailnet}";
const NO_DNS_NAME: &str = "cannot give a valid DNS name";

pub(super) static RULES: &[CelRule] = &[
    CelRule::new(
        "TN003",
        KIND,
        "",
        "self.metadata.name.size() <= 63",
        "the name is longer than 63 characters, so it cannot be a label value",
    ),
    CelRule::new(
        "TN003",
        KIND,
        "spec.clusterName",
        concat!(n!(), ".matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')"),
        NOT_A_LABEL,
    ),
    CelRule::new("TN101", KIND, "spec.server", url_readable!(), NOT_A_URL).careful(),
    CelRule::new("TN101", KIND, "spec.server", url_protected!(), PLAIN),
    CelRule::new(
        "TN010",
        KIND,
        "spec.server",
        concat!("self == ", n!(), " || !", url_readable!()),
        NOT_CANONICAL,
    )
    .saying(write_lower!()),
    CelRule::new("TN101", KIND, "spec.api.endpoint", url_readable!(), NOT_A_URL).careful(),
    CelRule::new("TN101", KIND, "spec.api.endpoint", url_protected!(), PLAIN),
    CelRule::new(
        "TN010",
        KIND,
        "spec.api.endpoint",
        concat!("self == ", n!(), " || !", url_readable!()),
        NOT_CANONICAL,
    )
    .saying(write_lower!()),
    CelRule::new(
        "TN103",
        KIND,
        "spec.dns.ingressNameTemplate",
        "self.contains('{name}')",
        NO_NAME,
    ),
    CelRule::new(
        "TN103",
        KIND,
        "spec.dns.ingressNameTemplate",
        template_known!(),
        UNKNOWN_PLACEHOLDER,
    ),
    CelRule::new(
        "TN103",
        KIND,
        "spec.dns.ingressNameTemplate",
        template_valid!(),
        NO_DNS_NAME,
    ),
    CelRule::new(
        "TN103",
        KIND,
        "spec.dns.ingressAliasTemplate",
        "self.contains('{name}')",
        NO_NAME,
    ),
    CelRule::new(
        "TN103",
        KIND,
        "spec.dns.ingressAliasTemplate",
        template_known!(),
        UNKNOWN_PLACEHOLDER,
    ),
    CelRule::new(
        "TN103",
        KIND,
        "spec.dns.ingressAliasTemplate",
        template_valid!(),
        NO_DNS_NAME,
    ),
    CelRule::new("TN012", KIND, "spec.defaults.agent.podLabels", foreign_keys!(), OWN_KEY),
    CelRule::new(
        "TN012",
        KIND,
        "spec.defaults.agent.podAnnotations",
        foreign_keys!(),
        OWN_KEY,
    ),
    CelRule::new("TN105", KIND, "spec.reservedNetworks[]", cidr_readable!(), NOT_A_CIDR),
    CelRule::new(
        "TN105",
        KIND,
        "spec.reservedNetworks[]",
        cidr_canonical!(),
        NOT_CANONICAL,
    )
    .saying(write_cidr!()),
    CelRule::new("TN017", KIND, "spec.apiSecretRef.name", object_name!(), NOT_AN_OBJECT),
    CelRule::new("TN017", KIND, "spec.apiSecretRef.key", data_key!(), NOT_A_KEY),
    CelRule::new(
        "TN017",
        KIND,
        "spec.api.caConfigMapRef.name",
        object_name!(),
        NOT_AN_OBJECT,
    ),
    CelRule::new("TN017", KIND, "spec.api.caConfigMapRef.key", data_key!(), NOT_A_KEY),
    CelRule::new("TN017", KIND, "spec.dns.hostsConfigMap", object_name!(), NOT_AN_OBJECT),
    CelRule::new(
        "TN017",
        KIND,
        "spec.dns.aliasNamespaces[]",
        label_1123!(),
        NOT_A_NAMESPACE,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.policy.baseConfigMap",
        object_name!(),
        NOT_AN_OBJECT,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.tagGrants[].namespaces[]",
        label_1123!(),
        NOT_A_NAMESPACE,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.defaults.tls.issuerRef.name",
        object_name!(),
        NOT_AN_OBJECT,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.defaults.tls.issuerRef.kind",
        object_kind!(),
        NOT_A_KIND,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.defaults.tls.issuerRef.group",
        object_name!(),
        NOT_A_GROUP,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.defaults.tls.allowedIssuers[].name",
        object_name!(),
        NOT_AN_OBJECT,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.defaults.tls.allowedIssuers[].kind",
        object_kind!(),
        NOT_A_KIND,
    ),
    CelRule::new(
        "TN017",
        KIND,
        "spec.defaults.tls.allowedIssuers[].group",
        object_name!(),
        NOT_A_GROUP,
    ),
];
