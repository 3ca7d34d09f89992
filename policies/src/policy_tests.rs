//! What rules of a policy allow, as far as that is certain without Headscale: for the `tests` of a base document, and for
//! grants that are wider than an ingress asks for.
//!
//! Three answers: yes, no, and "only Headscale knows" (which node has which address, user or second tag). Only certain
//! failures are told.

use std::net::IpAddr;

use ipnet::IpNet;
use tailnet_headscale::document::{Grant, Policy, Posture, Test};

use crate::base::without_port;
use crate::facts::Facts;

/// A certain answer, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    No,
    Unknown,
    Yes,
}

impl Answer {
    fn of(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// Ports of one protocol.
#[derive(Clone, Debug)]
struct Ports {
    /// None: every protocol.
    protocol: Option<String>,
    first: i64,
    last: i64,
}

/// One rule: who may reach what on which ports.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Where it stands, `grants[2]`.
    pub(crate) place: String,
    /// Sources.
    pub(crate) src: Vec<String>,
    /// Destinations, without ports.
    pub(crate) dst: Vec<String>,
    /// None: ports that cannot be read here.
    ports: Option<Vec<Ports>>,
}

impl Rule {
    /// A rule for one TCP port.
    pub(crate) fn tcp(src: Vec<String>, dst: Vec<String>, port: i64) -> Self {
        Self {
            place: "generated".to_owned(),
            src,
            dst,
            ports: Some(vec![Ports {
                protocol: Some("tcp".to_owned()),
                first: port,
                last: port,
            }]),
        }
    }

    pub(crate) fn allows_port(&self, protocol: &str, port: i64) -> Answer {
        let Some(ports) = &self.ports else {
            return Answer::Unknown;
        };
        let fits = |ports: &Ports| {
            ports.protocol.as_ref().is_none_or(|own| own == protocol) && (ports.first..=ports.last).contains(&port)
        };
        Answer::of(ports.iter().any(fits))
    }
}

/// The rules of a policy that its own `tests` see: those with `via` are invisible to them.
pub(crate) fn rules_of(policy: &Policy) -> Vec<Rule> {
    let grants = policy.grants.iter().flatten().enumerate();
    let grants = grants
        .filter(|(_, grant)| grant.via.is_empty() && !grant.ip.is_empty())
        .map(|(at, grant)| grant_rule(at, grant));
    // An entry of acls has ports per destination: it is as many rules.
    let acls = policy.acls.iter().flatten().enumerate().flat_map(|(at, acl)| {
        acl.dst.iter().map(move |dst| Rule {
            place: format!("acls[{at}]"),
            src: acl.src.clone(),
            dst: vec![without_port(dst).to_owned()],
            ports: dst
                .rsplit_once(':')
                .and_then(|(_, ports)| port_list(ports, acl.proto.as_deref())),
        })
    });
    grants.chain(acls).collect()
}

fn grant_rule(at: usize, grant: &Grant) -> Rule {
    let ports = grant
        .ip
        .iter()
        .map(|text| grant_ports(text))
        .collect::<Option<Vec<_>>>();
    Rule {
        place: format!("grants[{at}]"),
        src: grant.src.clone(),
        dst: grant.dst.clone(),
        ports: ports.map(|ports| ports.concat()),
    }
}

/// The rules that work through certain routers.
pub(crate) fn grants_by_router(policy: &Policy) -> Vec<Rule> {
    let grants = policy.grants.iter().flatten().enumerate();
    grants
        .filter(|(_, grant)| !grant.via.is_empty() && !grant.ip.is_empty())
        .map(|(at, grant)| grant_rule(at, grant))
        .collect()
}

/// `*`, `443`, `80-90`, `tcp:443`, `tcp:1-5,9`.
fn grant_ports(text: &str) -> Option<Vec<Ports>> {
    match text.split_once(':') {
        Some((protocol, ports)) => port_list(ports, Some(protocol)),
        None => port_list(text, None),
    }
}

fn port_list(text: &str, protocol: Option<&str>) -> Option<Vec<Ports>> {
    // Protocols by number and anything else are Headscale's to read.
    if protocol.is_some_and(|protocol| !["tcp", "udp", "sctp", "icmp"].contains(&protocol)) {
        return None;
    }
    text.split(',')
        .map(|part| {
            let (first, last) = match part.split_once('-') {
                _ if part == "*" => (0, 65_535),
                Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
                None => (part.parse().ok()?, part.parse().ok()?),
            };
            Some(Ports {
                protocol: protocol.map(str::to_owned),
                first,
                last,
            })
        })
        .collect()
}

fn network(text: &str, policy: &Policy) -> Option<IpNet> {
    let text = policy.hosts.get(text).map_or(text, String::as_str);
    text.parse::<IpNet>()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Whether everything that `name` stands for is among what `entry` of a rule stands for.
pub(crate) fn within(name: &str, entry: &str, policy: &Policy) -> Answer {
    if name == entry {
        return Answer::Yes;
    }
    let (is_tag, is_user) = (name.starts_with("tag:"), name.contains('@'));
    match entry {
        // As a source it is the tailnet, not every address.
        "*" if is_tag || is_user || name.starts_with("group:") || name.starts_with("autogroup:") => return Answer::Yes,
        "*" => return Answer::Unknown,
        "autogroup:member" if is_user => return Answer::Yes,
        "autogroup:member" if is_tag => return Answer::No,
        "autogroup:tagged" if is_tag => return Answer::Yes,
        "autogroup:tagged" if is_user => return Answer::No,
        _ => {}
    }
    if let Some(members) = policy.groups.get(entry) {
        if is_user {
            let answers = members.iter().map(|member| same_user(member, name));
            return answers.max().unwrap_or(Answer::No);
        }
        if is_tag {
            return Answer::No;
        }
    }
    if entry.starts_with("tag:") && is_user {
        return Answer::No;
    }
    if entry.contains('@') && is_user {
        return same_user(entry, name);
    }
    if entry.contains('@') && is_tag {
        return Answer::No;
    }
    match (network(name, policy), network(entry, policy)) {
        (Some(name), Some(entry)) if entry.contains(&name) => Answer::Yes,
        (Some(name), Some(entry)) if !name.contains(&entry) => Answer::No,
        _ => Answer::Unknown,
    }
}

/// Whether two texts name the same user. Headscale looks `ann@` up as a user's name, and `ann@example.com` as an e-mail address
/// or a name: a user has both, and which belong together only Headscale knows.
fn same_user(one: &str, other: &str) -> Answer {
    if one == other {
        return Answer::Yes;
    }
    match (one.split_once('@'), other.split_once('@')) {
        (Some((_, "")), Some((_, ""))) => Answer::No,
        (Some((_, "")), _) | (_, Some((_, ""))) => Answer::Unknown,
        // The name may be one address, and the e-mail address another one of the same person.
        (Some((one, _)), Some((other, _))) if one.eq_ignore_ascii_case(other) => Answer::Unknown,
        _ => Answer::No,
    }
}

pub(crate) fn any(name: &str, entries: &[String], policy: &Policy) -> Answer {
    let answers = entries.iter().map(|entry| within(name, entry, policy));
    answers.max().unwrap_or(Answer::No)
}

/// As [`any`], of a destination: `*` there is every address.
pub(crate) fn reaches(name: &str, entries: &[String], policy: &Policy) -> Answer {
    match entries.iter().any(|entry| entry == "*") {
        true => Answer::Yes,
        false => any(name, entries, policy),
    }
}

/// Whether no rule of the live `policy` lets nodes whose only tag is `tag` reach TCP port `port` of `address`, for certain: what only
/// Headscale can tell (whose address it is, rules with `via`) counts as allowed.
pub fn certainly_denied(policy: &Policy, tag: &str, address: IpAddr, port: u16) -> bool {
    if policy.posture() == Posture::AllowAll {
        return false;
    }
    // As `any`, of nodes without a second tag.
    let among = |src: &[String]| {
        let answers = src.iter().map(|entry| match entry.starts_with("tag:") {
            true => Answer::of(entry == tag),
            false => within(tag, entry, policy),
        });
        answers.max().unwrap_or(Answer::No)
    };
    let by_router = policy.grants.iter().flatten().any(|grant| {
        // Who may use it is known, what its routers serve is not.
        !grant.via.is_empty() && among(&grant.src) != Answer::No
    });
    let address = address.to_string();
    let allowed = |rule: &Rule| {
        among(&rule.src)
            .min(reaches(&address, &rule.dst, policy))
            .min(rule.allows_port("tcp", i64::from(port)))
            != Answer::No
    };
    !by_router && !rules_of(policy).iter().any(allowed)
}

/// The tests of the base document that certainly fail, one sentence each.
pub(crate) fn failures(base: &Policy, generated: &[Rule], facts: Option<&Facts>) -> Vec<String> {
    let mut rules = rules_of(base);
    let allow_all = base.acls.is_none() && base.grants.is_none() && generated.is_empty();
    rules.extend(generated.iter().cloned());
    let mut failures = Vec::new();
    for (at, test) in base.tests.iter().enumerate() {
        let path = format!("tests[{at}]");
        let nobody = |name: &str| {
            let facts = facts.filter(|_| name.starts_with("tag:"))?;
            (!facts.nodes.iter().any(|node| node.tags.contains(name))).then(|| {
                format!(
                    "{path} cannot run: it names {name}, which no node has yet; the operator sets it aside until one has"
                )
            })
        };
        let named =
            std::iter::once(test.src.as_str()).chain(test.accept.iter().chain(&test.deny).map(|dst| without_port(dst)));
        if let Some(failure) = named.into_iter().find_map(nobody) {
            failures.push(failure);
            continue;
        }
        for (dst, wanted) in test
            .accept
            .iter()
            .map(|dst| (dst, true))
            .chain(test.deny.iter().map(|dst| (dst, false)))
        {
            let answer = match allow_all {
                true => Answer::Yes,
                false => allowed(test, dst, &rules, base),
            };
            match (answer, wanted) {
                (Answer::No, true) => failures.push(format!("{path} fails: no rule lets {} reach {dst}", test.src)),
                (Answer::Yes, false) => {
                    failures.push(format!("{path} fails: {} can reach {dst}, which it denies", test.src));
                }
                _ => {}
            }
        }
    }
    failures
}

fn allowed(test: &Test, dst: &str, rules: &[Rule], base: &Policy) -> Answer {
    let protocol = test
        .proto
        .as_deref()
        .filter(|protocol| !protocol.is_empty())
        .unwrap_or("tcp");
    let Some(port) = dst.rsplit_once(':').and_then(|(_, port)| port.parse::<i64>().ok()) else {
        return Answer::Unknown;
    };
    let name = without_port(dst);
    rules
        .iter()
        .map(|rule| {
            any(&test.src, &rule.src, base)
                .min(reaches(name, &rule.dst, base))
                .min(rule.allows_port(protocol, port))
        })
        .max()
        .unwrap_or(Answer::No)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tailnet_headscale::document::Document;

    use super::*;
    use crate::facts::NodeFacts;

    fn failing(text: &str, generated: &[Rule], tags: &[&str]) -> Vec<String> {
        let facts = Facts {
            nodes: vec![NodeFacts {
                tags: tags.iter().map(|tag| (*tag).to_owned()).collect::<BTreeSet<_>>(),
                ..NodeFacts::default()
            }],
            ..Facts::default()
        };
        failures(Document::parse(text).unwrap().policy(), generated, Some(&facts))
    }

    const BASE: &str = r#"{
        "groups": { "group:ops": ["ann@"] },
        "hosts": { "db": "192.0.2.10", "lan": "192.0.2.0/24" },
        "grants": [
            { "src": ["group:ops"], "dst": ["lan"], "ip": ["tcp:5432", "tcp:80-90,443"] },
            { "src": ["tag:ci"], "dst": ["*"], "ip": ["*"], "via": ["tag:router"] },
        ],
        "tests": [TEST],
    }"#;

    fn test(test: &str, generated: &[Rule]) -> Vec<String> {
        failing(&BASE.replace("TEST", test), generated, &["tag:ci"])
    }

    #[test]
    fn what_certainly_holds_or_is_not_certain_is_silent() {
        for right in [
            r#"{ "src": "ann@", "accept": ["db:5432", "192.0.2.7:85"], "deny": ["db:22", "198.51.100.1:443"] }"#,
            r#"{ "src": "bob@", "deny": ["db:5432"] }"#,
            r#"{ "src": "tag:ci", "deny": ["db:5432"] }"#,
            // A node with this address may be ann's.
            r#"{ "src": "100.64.0.7", "accept": ["db:5432"] }"#,
        ] {
            assert_eq!(test(right, &[]), [""; 0], "{right}");
        }
    }

    #[test]
    fn what_certainly_fails_is_told() {
        assert_eq!(
            test(r#"{ "src": "ann@", "accept": ["db:22"] }"#, &[]),
            ["tests[0] fails: no rule lets ann@ reach db:22"]
        );
        assert_eq!(
            test(r#"{ "src": "ann@", "deny": ["db:443"] }"#, &[]),
            ["tests[0] fails: ann@ can reach db:443, which it denies"]
        );
        assert_eq!(
            test(r#"{ "src": "bob@", "accept": ["db:5432"] }"#, &[]),
            ["tests[0] fails: no rule lets bob@ reach db:5432"]
        );
        // Rules with via are invisible to tests.
        assert_eq!(
            test(r#"{ "src": "tag:ci", "accept": ["db:5432"] }"#, &[]),
            ["tests[0] fails: no rule lets tag:ci reach db:5432"]
        );
        let own = Rule::tcp(vec!["tag:ci".into()], vec!["192.0.2.10".into()], 5432);
        assert_eq!(test(r#"{ "src": "tag:ci", "accept": ["db:5432"] }"#, &[own]), [""; 0]);
    }

    #[test]
    fn a_name_and_an_address_may_be_the_same_person() {
        let base = |group: &str, rule: &str, test: &str| {
            format!(
                r#"{{ "groups": {{ "group:ops": ["{group}"] }},
                    "grants": [{{ "src": ["{rule}"], "dst": ["192.0.2.10"], "ip": ["tcp:22"] }}],
                    "tests": [{{ "src": "{test}", "accept": ["192.0.2.10:22"] }}] }}"#
            )
        };
        // In a group and as a source by itself.
        for (one, other) in [
            ("ann@", "ann@example.com"),
            ("ann@example.com", "ann@"),
            ("ann@", "ann.smith@example.com"),
            ("ann@example.com", "Ann@corp.example.net"),
        ] {
            assert_eq!(
                failing(&base(one, "group:ops", other), &[], &[]),
                [""; 0],
                "{one} {other}"
            );
            assert_eq!(failing(&base("x@", one, other), &[], &[]), [""; 0], "{one} {other}");
        }
        for (one, other) in [("ann@", "bob@"), ("ann@example.com", "bob@example.com")] {
            for text in [base(one, "group:ops", other), base("x@", one, other)] {
                let told = format!("tests[0] fails: no rule lets {other} reach 192.0.2.10:22");
                assert_eq!(failing(&text, &[], &[]), [told], "{text}");
            }
        }
    }

    #[test]
    fn a_test_for_a_tag_without_a_node_cannot_run() {
        let told = test(r#"{ "src": "tag:new", "deny": ["db:22"] }"#, &[]);
        assert!(told[0].contains("it names tag:new, which no node has yet"), "{told:?}");
    }

    #[test]
    fn without_rules_everything_is_allowed() {
        let text = r#"{ "tests": [{ "src": "ann@", "accept": ["192.0.2.1:1"], "deny": ["192.0.2.1:2"] }] }"#;
        assert_eq!(
            failing(text, &[], &[]),
            ["tests[0] fails: ann@ can reach 192.0.2.1:2, which it denies"]
        );
    }

    #[test]
    fn a_tag_is_denied_only_for_certain() {
        let denied = |text: &str, address: &str, port| {
            let document = Document::parse(text).unwrap();
            certainly_denied(document.policy(), "tag:egress-a", address.parse().unwrap(), port)
        };
        let granted = |dst: &str, ip: &str| {
            format!(
                r#"{{ "hosts": {{ "lan": "192.0.2.0/24" }}, "grants": [{{ "src": ["tag:egress-a"], "dst": ["{dst}"], "ip": ["{ip}"] }}] }}"#
            )
        };
        // Another address, another port, another protocol behind the same router.
        assert!(denied(&granted("192.0.2.10", "tcp:5432"), "192.0.2.11", 5432));
        assert!(denied(&granted("192.0.2.10", "tcp:5432"), "192.0.2.10", 22));
        assert!(denied(&granted("192.0.2.10", "udp:5432"), "192.0.2.10", 5432));
        assert!(denied(
            r#"{ "grants": [{ "src": ["tag:b", "ann@", "autogroup:member"], "dst": ["*"], "ip": ["*"] }] }"#,
            "192.0.2.10",
            1
        ));
        assert!(denied(r#"{ "acls": [] }"#, "192.0.2.10", 1), "rules exist: none");
        for (text, address, port) in [
            (granted("192.0.2.10", "tcp:5432"), "192.0.2.10", 5432),
            (granted("lan", "*"), "192.0.2.200", 9),
            (granted("*", "tcp:80-90"), "198.51.100.1", 85),
            // Only Headscale knows whose address it is, or which protocol this number is.
            (granted("tag:db", "*"), "100.64.0.7", 5432),
            (granted("autogroup:internet", "*"), "192.0.2.10", 5432),
            (granted("192.0.2.10", "6:5432"), "192.0.2.10", 5432),
            (
                r#"{ "grants": [{ "src": ["*"], "dst": ["*"], "ip": ["*"], "via": ["tag:router"] }] }"#.to_owned(),
                "192.0.2.10",
                1,
            ),
            (
                r#"{ "acls": [{ "action": "accept", "src": ["autogroup:tagged"], "dst": ["192.0.2.10:*"] }] }"#
                    .to_owned(),
                "192.0.2.10",
                1,
            ),
            ("{}".to_owned(), "192.0.2.10", 1),
        ] {
            assert!(!denied(&text, address, port), "{text} {address}:{port}");
        }
    }

    #[test]
    fn old_style_rules_have_ports_per_destination() {
        let text = r#"{ "acls": [{ "action": "accept", "src": ["ann@"], "dst": ["192.0.2.1:22", "192.0.2.2:*"] }],
            "tests": [{ "src": "ann@", "accept": ["192.0.2.1:22", "192.0.2.2:9"], "deny": ["192.0.2.1:9"] }] }"#;
        assert_eq!(failing(text, &[], &[]), [""; 0]);
    }
}
