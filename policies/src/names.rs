//! Default tags and host names, and the DNS names that an ingress publishes: computed here once, for the defaults, the
//! rules, the claims and the operator.

use sha2::{Digest, Sha256};
use tailnet_crds::types::{DnsLabel, DnsName, Format, FormatError, NameTemplate, Tag, Text};
use tailnet_crds::{TailnetIngressSpec, TailnetSpec};

use crate::index::{canonical, read};
use crate::object::{Object, Spec};

/// Longest DNS label.
const MAX_LABEL: usize = 63;
/// Characters of a hash in a name.
const HASH: usize = 5;

/// The default tag of a TailnetEgress: `tag:egress-<name>`; where the name has a dot, dots become dashes and a hash follows.
/// With `spec.clusterName` of the Tailnet: `tag:<cluster>-egress-<name>`.
pub fn default_egress_tag(cluster: Option<&str>, name: &str) -> String {
    let hash = name.contains('.').then(|| hash(&[name]));
    tag(cluster, &["egress", name], hash.as_deref())
}

/// The default tag of a TailnetIngress: `tag:ingress-<namespace>-<name>`; where either has a dash or a dot, a hash of both
/// follows, so that no two objects meet. With `spec.clusterName` of the Tailnet: `tag:<cluster>-ingress-…`.
pub fn default_ingress_tag(cluster: Option<&str>, namespace: &str, name: &str) -> String {
    tag(
        cluster,
        &["ingress", namespace, name],
        pair_hash(namespace, name).as_deref(),
    )
}

/// The default host name of a TailnetIngress: `<name>-<namespace>`, with a hash as in [`default_ingress_tag`], at most 63
/// characters. With `spec.clusterName` of the Tailnet: `<cluster>-<name>-<namespace>`.
pub fn default_ingress_hostname(cluster: Option<&str>, namespace: &str, name: &str) -> String {
    let plain = joined(cluster, &[name, namespace]);
    let hash = pair_hash(namespace, name).or_else(|| (plain.len() > MAX_LABEL).then(|| hash(&[namespace, name])));
    bounded(&plain, hash.as_deref(), MAX_LABEL)
}

/// The default host name of a TailnetEgress: its name, as a label. With `spec.clusterName`: `<cluster>-<name>`.
pub fn default_egress_hostname(cluster: Option<&str>, name: &str) -> String {
    let plain = joined(cluster, &[name]);
    let hash = (name.contains('.') || plain.len() > MAX_LABEL).then(|| hash(&[name]));
    bounded(&plain, hash.as_deref(), MAX_LABEL)
}

/// Most replicas of an object.
const MAX_REPLICAS: i32 = 5;

/// The host name of whose further replica a host name is, if it reads as one.
pub(crate) fn first_of_replica(hostname: &str) -> Option<&str> {
    let (first, number) = hostname.rsplit_once('-')?;
    (2..=MAX_REPLICAS)
        .any(|replica| number == replica.to_string())
        .then_some(first)
}

/// Whether a replica's host name is so long that its first part may have been cut for the number.
pub(crate) fn may_be_cut(hostname: &str) -> bool {
    hostname.len() == MAX_LABEL
}

/// Host names of all replicas: `name`, `name-2`, `name-3` ….
pub fn replica_hostnames(first: &str, replicas: i32) -> Vec<String> {
    let mut names = vec![first.to_owned()];
    for replica in 2..=replicas.clamp(1, MAX_REPLICAS) {
        let suffix = format!("-{replica}");
        let room = MAX_LABEL.saturating_sub(suffix.len());
        names.push(format!("{}{suffix}", head(first, room)));
    }
    names
}

/// The tag that an egress or ingress has: its own, canonical, else the default. None for other kinds and without a name.
pub fn tag_of(object: &Object, tailnet: Option<&TailnetSpec>) -> Option<String> {
    match &object.spec {
        Ok(Spec::Egress(spec)) => spec.tag.as_ref().map(canonical),
        Ok(Spec::Ingress(spec)) => spec.tag.as_ref().map(canonical),
        _ => None,
    }
    .or_else(|| default_tag_of(object, tailnet))
}

/// The default tag of an egress or ingress. None for other kinds and without a name.
pub fn default_tag_of(object: &Object, tailnet: Option<&TailnetSpec>) -> Option<String> {
    let cluster = cluster_name(tailnet);
    if object.name.is_empty() {
        return None;
    }
    match &object.spec {
        Ok(Spec::Egress(_)) => Some(default_egress_tag(cluster.as_deref(), &object.name)),
        Ok(Spec::Ingress(_)) => {
            let namespace = object.namespace.as_deref().unwrap_or_default();
            Some(default_ingress_tag(cluster.as_deref(), namespace, &object.name))
        }
        _ => None,
    }
}

/// The host names of all nodes of an egress or ingress.
pub fn hostnames_of(object: &Object, tailnet: Option<&TailnetSpec>) -> Vec<String> {
    let cluster = cluster_name(tailnet);
    if object.name.is_empty() {
        return Vec::new();
    }
    match &object.spec {
        Ok(Spec::Egress(spec)) => replica_hostnames(
            &default_egress_hostname(cluster.as_deref(), &object.name),
            spec.replicas,
        ),
        Ok(Spec::Ingress(spec)) => {
            let namespace = object.namespace.as_deref().unwrap_or_default();
            let first = spec.hostname.as_ref().map_or_else(
                || default_ingress_hostname(cluster.as_deref(), namespace, &object.name),
                canonical,
            );
            replica_hostnames(&first, spec.replicas)
        }
        _ => Vec::new(),
    }
}

/// The Tailnet's cluster name in canonical form.
pub fn cluster_name(tailnet: Option<&TailnetSpec>) -> Option<String> {
    let label: DnsLabel = read(tailnet?.cluster_name.as_ref()?)?;
    Some(label.to_string())
}

/// Whether two states of a Tailnet give every object the same tags, host names and DNS names.
pub(crate) fn are_alike(a: &TailnetSpec, b: &TailnetSpec) -> bool {
    let templates = |spec: &TailnetSpec| {
        let dns = spec.dns.as_ref()?;
        Some((dns.ingress_name_template.clone(), dns.ingress_alias_template.clone()))
    };
    a.cluster_name == b.cluster_name && templates(a).unwrap_or_default() == templates(b).unwrap_or_default()
}

/// A DNS name that an ingress publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Position of the expose.
    pub expose: usize,
    /// Whether it is the short name.
    pub alias: bool,
    /// The name, canonical.
    pub name: String,
}

/// Why an expose has no name although a template exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublished {
    /// Position of the expose.
    pub expose: usize,
    /// Whether it is the short name.
    pub alias: bool,
    /// What is wrong with the rendered name.
    pub error: FormatError,
}

/// The names that an ingress publishes in its Tailnet. Names that cannot be rendered are left out (rule TN305).
pub fn published(object: &Object, tailnet: &TailnetSpec) -> Vec<Published> {
    rendered(object, tailnet).into_iter().filter_map(Result::ok).collect()
}

/// Every name that the Tailnet's templates give to an ingress, or why there is none.
pub fn rendered(object: &Object, tailnet: &TailnetSpec) -> Vec<Result<Published, Unpublished>> {
    let (Some(spec), Some(dns)) = (object.ingress(), tailnet.dns.as_ref()) else {
        return Vec::new();
    };
    if object.name.is_empty() {
        return Vec::new();
    }
    let mut names = Vec::new();
    let mut render = |template: Option<&Text<NameTemplate>>, expose: usize, alias: bool| {
        let Some(template) = template.and_then(read) else {
            return;
        };
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let label = label_of(object, spec, expose);
        names.push(
            match canonical_name(template.render(&label, namespace, &spec.tailnet_ref.name)) {
                Ok(name) => Ok(Published { expose, alias, name }),
                Err(error) => Err(Unpublished { expose, alias, error }),
            },
        );
    };
    for (at, expose) in spec.exposes.iter().enumerate() {
        render(dns.ingress_name_template.as_ref(), at, false);
        if expose.alias() {
            render(dns.ingress_alias_template.as_ref(), at, true);
        }
    }
    names
}

/// `{name}` of an expose, canonical.
fn label_of(object: &Object, spec: &TailnetIngressSpec, expose: usize) -> String {
    let Some(expose) = spec.exposes.get(expose) else {
        return String::new();
    };
    match &expose.dns_label {
        Some(label) => canonical(label),
        None => spec.dns_label(&object.name, expose).into_owned(),
    }
}

fn canonical_name(name: Result<DnsName, FormatError>) -> Result<String, FormatError> {
    match name {
        Ok(name) => Ok(name.to_string()),
        Err(FormatError::NotCanonical { canonical, .. }) => Ok(canonical),
        Err(error) => Err(error),
    }
}

fn pair_hash(namespace: &str, name: &str) -> Option<String> {
    [namespace, name]
        .iter()
        .any(|part| part.contains(['-', '.']))
        .then(|| hash(&[namespace, name]))
}

/// `tag:` and the parts, dots as dashes; bounded to what a tag may have.
fn tag(cluster: Option<&str>, parts: &[&str], hash_text: Option<&str>) -> String {
    let max = Tag::MAX_LENGTH as usize - "tag:".len();
    let plain = joined(cluster, parts);
    let cut_hash = (hash_text.is_none() && plain.len() > max).then(|| hash(parts));
    format!("tag:{}", bounded(&plain, hash_text.or(cut_hash.as_deref()), max))
}

fn joined(cluster: Option<&str>, parts: &[&str]) -> String {
    cluster
        .into_iter()
        .chain(parts.iter().copied())
        .collect::<Vec<_>>()
        .join("-")
        .replace('.', "-")
}

/// The text with its hash behind, the text cut so that both fit.
fn bounded(plain: &str, hash: Option<&str>, max: usize) -> String {
    match hash {
        None => head(plain, max).to_owned(),
        Some(hash) => format!("{}-{hash}", head(plain, max - 1 - hash.len())),
    }
}

/// The first characters, without a dash at the end.
fn head(text: &str, max: usize) -> &str {
    let end = text.char_indices().nth(max).map_or(text.len(), |(at, _)| at);
    text[..end].trim_end_matches('-')
}

/// Letters and digits that stand for the parts; the parts cannot be shifted against each other.
fn hash(parts: &[&str]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.as_bytes());
        digest.update(b"/");
    }
    digest
        .finalize()
        .iter()
        .take(HASH)
        .map(|byte| char::from(LETTERS[usize::from(byte & 31)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_stay_plain() {
        assert_eq!(default_egress_tag(None, "team-a"), "tag:egress-team-a");
        assert_eq!(default_ingress_tag(None, "team", "portal"), "tag:ingress-team-portal");
        assert_eq!(default_ingress_hostname(None, "team", "portal"), "portal-team");
        assert_eq!(default_egress_tag(Some("prod"), "a"), "tag:prod-egress-a");
        assert_eq!(
            default_ingress_hostname(Some("prod"), "team", "portal"),
            "prod-portal-team"
        );
    }

    #[test]
    fn names_that_could_meet_are_kept_apart_by_a_hash() {
        assert_ne!(
            default_ingress_tag(None, "a-b", "c"),
            default_ingress_tag(None, "a", "b-c")
        );
        assert_ne!(
            default_ingress_hostname(None, "a-b", "c"),
            default_ingress_hostname(None, "b", "c-a")
        );
        assert_ne!(default_egress_tag(None, "a.b"), default_egress_tag(None, "a-b"));
    }

    #[test]
    fn every_default_is_valid_however_long_the_names() {
        let long = "x".repeat(253);
        let dotted = format!("{}.{}", "y".repeat(62), "z".repeat(60));
        for name in ["a", "a-b", "a.b", "1st", long.as_str(), dotted.as_str()] {
            for cluster in [None, Some("prod-1")] {
                default_egress_tag(cluster, name).parse::<Tag>().unwrap();
                default_ingress_tag(cluster, "team-a", name).parse::<Tag>().unwrap();
                default_ingress_hostname(cluster, "team-a", name)
                    .parse::<DnsLabel>()
                    .unwrap();
                let first = default_egress_hostname(cluster, name);
                for hostname in replica_hostnames(&first, 5) {
                    hostname.parse::<DnsLabel>().unwrap();
                }
            }
        }
    }

    #[test]
    fn replicas_count_from_two() {
        assert_eq!(replica_hostnames("a", 3), ["a", "a-2", "a-3"]);
        assert_eq!(replica_hostnames("a", -7), ["a"]);
    }

    #[test]
    fn templates_give_names_and_short_names() {
        let tailnet: TailnetSpec = serde_json::from_value(serde_json::json!({
            "server": "https://control.example.net", "apiSecretRef": { "name": "x" },
            "dns": { "ingressNameTemplate": "{name}.{namespace}.lab.example.net", "ingressAliasTemplate": "{name}.lab.example.net" }
        }))
        .unwrap();
        let object = Object::parse(
            tailnet_crds::Kind::TailnetIngress,
            &serde_json::json!({
                "metadata": { "name": "portal", "namespace": "team-a" },
                "spec": { "tailnetRef": { "name": "demo" }, "allowFrom": [], "exposes": [
                    { "name": "web", "dnsLabel": "Portal", "alias": true, "mode": "http", "port": 443, "backend": { "service": "a", "port": 1 } },
                    { "name": "admin", "mode": "http", "port": 443, "backend": { "service": "a", "port": 1 } },
                    { "name": "raw", "port": 5432, "backend": { "service": "a", "port": 1 } },
                ] },
            }),
        );
        let names: Vec<_> = published(&object, &tailnet)
            .into_iter()
            .map(|p| (p.expose, p.alias, p.name))
            .collect();
        assert_eq!(
            names,
            [
                (0, false, "portal.team-a.lab.example.net".to_owned()),
                (0, true, "portal.lab.example.net".to_owned()),
                (1, false, "admin.team-a.lab.example.net".to_owned()),
                (2, false, "portal.team-a.lab.example.net".to_owned()),
            ]
        );
    }
}
