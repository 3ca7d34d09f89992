//! The people's part of a policy: a ConfigMap in the operator namespace, key [`KEY`], with an access policy in HuJSON.
//!
//! The form (HuJSON, keys, types) is `tailnet-headscale`'s to judge; whether the names in it are defined is judged here.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use tailnet_headscale::document::{Document, ParseError, Policy};

use crate::finding::Severity;

/// Key of the ConfigMap's data.
pub const KEY: &str = "policy.hujson";

/// Autogroups that Headscale takes somewhere.
const AUTOGROUPS: [&str; 6] = ["member", "tagged", "danger-all", "internet", "self", "nonroot"];

/// One base document, read.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseDocument {
    text: String,
    document: Result<Document, ParseError>,
}

/// One fault of a base document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Deny: Headscale would refuse the document. Warn: it is right only together with something outside it.
    pub severity: Severity,
    /// The offending text; None where a place says more.
    pub value: Option<String>,
    /// Where and what: `line 3, column 5: grantz: …`, `grants[2].src[0]: …`.
    pub detail: String,
    /// The same without a line: the fault stays the same when lines above it come and go.
    pub identity: String,
}

/// What a text is used as; decides how it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Who, or a destination without port.
    Name,
    /// A destination with a port behind the last colon.
    WithPort,
}

impl BaseDocument {
    /// Reads a text; a text that is no HuJSON is a fault.
    pub fn read(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            document: Document::parse(text),
        }
    }

    /// The text, as it stands in the ConfigMap.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The document, or why it is none.
    ///
    /// # Errors
    /// It is no HuJSON.
    pub fn document(&self) -> Result<&Document, &ParseError> {
        self.document.as_ref()
    }

    /// The policy, as far as it can be read; None when it is no HuJSON.
    pub fn policy(&self) -> Option<&Policy> {
        self.document.as_ref().ok().map(Document::policy)
    }

    /// All faults, by place. `tags` have an owner although the document does not say so: tags of objects, approvers, granted
    /// tags, for which the operator writes the owners.
    pub fn faults(&self, tags: &BTreeSet<String>) -> Vec<Fault> {
        let document = match &self.document {
            Ok(document) => document,
            Err(error) => {
                return vec![Fault {
                    severity: Severity::Deny,
                    value: None,
                    detail: format!("is no HuJSON: {error}"),
                    identity: format!("is no HuJSON: {}", error.message),
                }];
            }
        };
        let mut faults: Vec<Fault> = document
            .problems()
            .iter()
            .map(|problem| {
                let detail = problem.to_string();
                let identity = detail
                    .split_once(": ")
                    .map_or_else(|| detail.clone(), |(_, rest)| rest.to_owned());
                Fault {
                    severity: Severity::Deny,
                    value: None,
                    detail,
                    identity,
                }
            })
            .collect();
        let policy = document.policy();
        faults.extend(definitions(policy));
        for (path, text, place) in references(policy) {
            if let Some((severity, problem)) = problem_of(text, place, policy, tags) {
                faults.push(fault(severity, &path, text, &problem));
            }
        }
        faults
    }
}

fn fault(severity: Severity, path: &str, text: &str, problem: &str) -> Fault {
    let detail = format!("{path}: {problem}");
    Fault {
        severity,
        value: Some(text.to_owned()),
        identity: format!("{detail} {text}"),
        detail,
    }
}

/// Faults of what the document defines itself.
fn definitions(policy: &Policy) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut deny = |path: &str, text: &str, problem: &str| faults.push(fault(Severity::Deny, path, text, problem));
    for (group, members) in &policy.groups {
        if !group.starts_with("group:") {
            deny("groups", group, "a group's name begins with \"group:\"");
        }
        for (at, member) in members.iter().enumerate().filter(|(_, member)| !member.contains('@')) {
            let path = format!("groups[{group:?}][{at}]");
            deny(&path, member, "a member of a group is a user, with an @ in the name");
        }
    }
    for (name, address) in &policy.hosts {
        if address.parse::<IpAddr>().is_err() && address.parse::<IpNet>().is_err() {
            deny(&format!("hosts[{name:?}]"), address, "a host is an address or a CIDR");
        }
    }
    for tag in policy.tag_owners.keys().filter(|tag| !tag.starts_with("tag:")) {
        deny("tagOwners", tag, "a tag's name begins with \"tag:\"");
    }
    for prefix in policy.auto_approvers.routes.keys() {
        if prefix.parse::<IpNet>().is_err() {
            deny(
                "autoApprovers.routes",
                prefix,
                "a route is a CIDR with its length, such as 10.0.0.0/8",
            );
        }
    }
    faults
}

/// Every place that names somebody or something.
fn references(policy: &Policy) -> Vec<(String, &str, Place)> {
    fn all<'p>(found: &mut Vec<(String, &'p str, Place)>, path: &str, texts: &'p [String], place: Place) {
        let named = texts.iter().enumerate();
        found.extend(named.map(|(at, text)| (format!("{path}[{at}]"), text.as_str(), place)));
    }
    let found = &mut Vec::new();
    for (tag, owners) in &policy.tag_owners {
        all(found, &format!("tagOwners[{tag:?}]"), owners, Place::Name);
    }
    for (prefix, approvers) in &policy.auto_approvers.routes {
        all(
            found,
            &format!("autoApprovers.routes[{prefix:?}]"),
            approvers,
            Place::Name,
        );
    }
    all(
        found,
        "autoApprovers.exitNode",
        &policy.auto_approvers.exit_node,
        Place::Name,
    );
    for (at, acl) in policy.acls.iter().flatten().enumerate() {
        all(found, &format!("acls[{at}].src"), &acl.src, Place::Name);
        all(found, &format!("acls[{at}].dst"), &acl.dst, Place::WithPort);
    }
    for (at, grant) in policy.grants.iter().flatten().enumerate() {
        all(found, &format!("grants[{at}].src"), &grant.src, Place::Name);
        all(found, &format!("grants[{at}].dst"), &grant.dst, Place::Name);
        all(found, &format!("grants[{at}].via"), &grant.via, Place::Name);
    }
    for (at, rule) in policy.ssh.iter().enumerate() {
        all(found, &format!("ssh[{at}].src"), &rule.src, Place::Name);
        all(found, &format!("ssh[{at}].dst"), &rule.dst, Place::Name);
    }
    for (at, test) in policy.tests.iter().enumerate() {
        found.push((format!("tests[{at}].src"), test.src.as_str(), Place::Name));
        all(found, &format!("tests[{at}].accept"), &test.accept, Place::WithPort);
        all(found, &format!("tests[{at}].deny"), &test.deny, Place::WithPort);
    }
    for (at, test) in policy.ssh_tests.iter().enumerate() {
        found.push((format!("sshTests[{at}].src"), test.src.as_str(), Place::Name));
        all(found, &format!("sshTests[{at}].dst"), &test.dst, Place::Name);
    }
    for (at, attr) in policy.node_attrs.iter().enumerate() {
        all(found, &format!("nodeAttrs[{at}].target"), &attr.target, Place::Name);
    }
    std::mem::take(found)
}

/// The part of a destination before its port.
pub(crate) fn without_port(text: &str) -> &str {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    host.strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(host)
}

/// Tags that the document names without defining them.
pub(crate) fn tags_named(policy: &Policy) -> BTreeSet<String> {
    references(policy)
        .into_iter()
        .map(|(_, text, place)| match place {
            Place::Name => text,
            Place::WithPort => without_port(text),
        })
        .filter(|name| name.starts_with("tag:") && !policy.tag_owners.contains_key(*name))
        .map(str::to_owned)
        .collect()
}

/// Why Headscale does not take `name` where a name without port may stand; `tags` have an owner besides those of the document.
pub(crate) fn name_problem(name: &str, policy: &Policy, tags: &BTreeSet<String>) -> Option<String> {
    problem_of(name, Place::Name, policy, tags).map(|(_, problem)| problem)
}

fn problem_of(text: &str, place: Place, policy: &Policy, tags: &BTreeSet<String>) -> Option<(Severity, String)> {
    let name = match place {
        Place::Name => text,
        Place::WithPort => without_port(text),
    };
    let deny = |problem: &str| Some((Severity::Deny, problem.to_owned()));
    if let Some(autogroup) = name.strip_prefix("autogroup:") {
        if AUTOGROUPS.contains(&autogroup) {
            return None;
        }
        return deny("Headscale has no such autogroup");
    }
    if name.starts_with("group:") {
        return match policy.groups.contains_key(name) {
            true => None,
            false => deny("is a group that the document does not define"),
        };
    }
    if name.starts_with("tag:") {
        if policy.tag_owners.contains_key(name) || tags.contains(name) {
            return None;
        }
        let problem = "is a tag without an owner in tagOwners; right only if an object of this cluster uses it";
        return Some((Severity::Warn, problem.to_owned()));
    }
    if name.starts_with("svc:") || name.starts_with("ipset:") {
        return deny("is a kind of name that Headscale does not have");
    }
    let known = name == "*"
        || name.contains('@')
        || policy.hosts.contains_key(name)
        || name.parse::<IpAddr>().is_ok()
        || name.parse::<IpNet>().is_ok();
    match known {
        true => None,
        false => deny("is no host that the document defines; a user is written with an @"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        BaseDocument::read(text)
            .faults(&BTreeSet::from(["tag:egress-a".to_owned()]))
            .into_iter()
            .map(|fault| {
                let severity = if fault.severity == Severity::Deny {
                    "deny"
                } else {
                    "warn"
                };
                format!("{severity} {} {}", fault.detail, fault.value.unwrap_or_default())
            })
            .collect()
    }

    #[test]
    fn a_right_document_has_no_faults() {
        let text = r#"{
            // people
            "groups": { "group:ops": ["ann@", "bob@example.com"] },
            "hosts": { "db": "192.0.2.10", "lan": "10.0.0.0/8" },
            "tagOwners": { "tag:router": ["group:ops"] },
            "autoApprovers": { "routes": { "10.0.0.0/8": ["tag:router"] }, "exitNode": ["group:ops"] },
            "grants": [{ "src": ["group:ops", "tag:egress-a", "lan", "*"], "dst": ["db", "autogroup:internet", "2001:db8::/32"], "ip": ["*"] }],
            "acls": [{ "action": "accept", "src": ["ann@"], "dst": ["db:5432", "tag:router:22,80", "[2001:db8::1]:443", "*:*"] }],
            "tests": [{ "src": "ann@", "accept": ["db:5432"], "deny": ["192.0.2.10:22"] }],
        }"#;
        assert_eq!(faults(text), [""; 0]);
        assert_eq!(faults(""), [""; 0]);
    }

    #[test]
    fn what_is_not_defined_is_named_with_its_place() {
        let text = r#"{
            "groups": { "ops": ["ann@"], "group:x": ["tag:a"] },
            "hosts": { "db": "database" },
            "tagOwners": { "router": [] },
            "autoApprovers": { "routes": { "10.0.0.1": ["group:nobody"] } },
            "grants": [{ "src": ["group:opps", "alice", "autogroup:admin", "svc:web"], "dst": ["tag:new"], "ip": ["*"] }],
            "acls": [{ "action": "accept", "src": ["*"], "dst": ["nas:445"] }],
        }"#;
        assert_eq!(
            faults(text),
            [
                "deny groups[\"group:x\"][0]: a member of a group is a user, with an @ in the name tag:a",
                "deny groups: a group's name begins with \"group:\" ops",
                "deny hosts[\"db\"]: a host is an address or a CIDR database",
                "deny tagOwners: a tag's name begins with \"tag:\" router",
                "deny autoApprovers.routes: a route is a CIDR with its length, such as 10.0.0.0/8 10.0.0.1",
                "deny autoApprovers.routes[\"10.0.0.1\"][0]: is a group that the document does not define group:nobody",
                "deny acls[0].dst[0]: is no host that the document defines; a user is written with an @ nas:445",
                "deny grants[0].src[0]: is a group that the document does not define group:opps",
                "deny grants[0].src[1]: is no host that the document defines; a user is written with an @ alice",
                "deny grants[0].src[2]: Headscale has no such autogroup autogroup:admin",
                "deny grants[0].src[3]: is a kind of name that Headscale does not have svc:web",
                "warn grants[0].dst[0]: is a tag without an owner in tagOwners; right only if an object of this cluster uses it tag:new",
            ]
        );
    }

    #[test]
    fn a_fault_of_form_has_its_line_and_an_identity_without_it() {
        let read = |text| BaseDocument::read(text).faults(&BTreeSet::new());
        let (first, moved) = (read("{\"grantz\": []}"), read("{\n\n\"grantz\": []}"));
        assert!(first[0].detail.starts_with("line 1, column 2: grantz: "), "{first:?}");
        assert!(moved[0].detail.starts_with("line 3, column 1: grantz: "), "{moved:?}");
        assert_eq!(first[0].identity, moved[0].identity);
        assert!(read("{\"grants\": [")[0].detail.starts_with("is no HuJSON: line 1"));
    }
}
