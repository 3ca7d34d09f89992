//! From the tree to [`Policy`]. Reading never stops at a fault: what can be read is read, every fault becomes a problem.

use std::collections::{BTreeMap, HashMap};

use super::keys::Level;
use super::tree::{Member, Node, Value};
use super::{Acl, AutoApprovers, Grant, NodeAttr, Policy, Position, Problem, ProblemKind, SshRule, SshTest, Test};

pub(super) struct Reader<'t> {
    text: &'t str,
    pub(super) problems: Vec<Problem>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            problems: Vec::new(),
        }
    }

    pub(super) fn policy(&mut self, root: &Node) -> Policy {
        let mut policy = Policy::default();
        let top = self.level(root, Level::Top, "");
        for (key, node) in top {
            match key {
                "groups" => policy.groups = self.map_of_lists(node, key),
                "hosts" => policy.hosts = self.map_of_texts(node, key),
                "tagOwners" => policy.tag_owners = self.map_of_lists(node, key),
                "autoApprovers" => policy.auto_approvers = self.auto_approvers(node, key),
                "acls" => policy.acls = self.entries(node, key, Self::acl),
                "grants" => policy.grants = self.entries(node, key, Self::grant),
                "ssh" => policy.ssh = self.entries(node, key, Self::ssh).unwrap_or_default(),
                "tests" => policy.tests = self.entries(node, key, Self::test).unwrap_or_default(),
                "sshTests" => policy.ssh_tests = self.entries(node, key, Self::ssh_test).unwrap_or_default(),
                "nodeAttrs" => policy.node_attrs = self.entries(node, key, Self::node_attr).unwrap_or_default(),
                // The only key left.
                _ => policy.randomize_client_port = self.flag(node, key),
            }
        }
        policy
    }

    fn auto_approvers(&mut self, node: &Node, path: &str) -> AutoApprovers {
        let mut read = AutoApprovers::default();
        for (key, node) in self.level(node, Level::AutoApprovers, path) {
            let path = format!("{path}.{key}");
            match key {
                "routes" => read.routes = self.map_of_lists(node, &path),
                _ => read.exit_node = self.list(node, &path),
            }
        }
        read
    }

    fn acl(&mut self, node: &Node, path: &str) -> Acl {
        let mut read = Acl::default();
        for (key, node) in self.level(node, Level::Acl, path) {
            let path = format!("{path}.{key}");
            match key {
                "action" => read.action = self.text(node, &path).unwrap_or_default(),
                "proto" => read.proto = self.text(node, &path),
                "src" => read.src = self.list(node, &path),
                _ => read.dst = self.list(node, &path),
            }
        }
        read
    }

    fn grant(&mut self, node: &Node, path: &str) -> Grant {
        let mut read = Grant::default();
        for (key, node) in self.level(node, Level::Grant, path) {
            let path = format!("{path}.{key}");
            match key {
                "src" => read.src = self.list(node, &path),
                "dst" => read.dst = self.list(node, &path),
                "ip" => read.ip = self.list(node, &path),
                "via" => read.via = self.list(node, &path),
                _ => {
                    for member in self.members(node, &path).into_iter().flatten() {
                        read.app.insert(member.key.clone(), member.node.to_json());
                    }
                }
            }
        }
        read
    }

    fn ssh(&mut self, node: &Node, path: &str) -> SshRule {
        let mut read = SshRule::default();
        for (key, node) in self.level(node, Level::Ssh, path) {
            let path = format!("{path}.{key}");
            match key {
                "action" => read.action = self.text(node, &path).unwrap_or_default(),
                "src" => read.src = self.list(node, &path),
                "dst" => read.dst = self.list(node, &path),
                "users" => read.users = self.list(node, &path),
                "acceptEnv" => read.accept_env = self.list(node, &path),
                _ => read.check_period = self.text(node, &path),
            }
        }
        read
    }

    fn test(&mut self, node: &Node, path: &str) -> Test {
        let mut read = Test::default();
        for (key, node) in self.level(node, Level::Test, path) {
            let path = format!("{path}.{key}");
            match key {
                "src" => read.src = self.text(node, &path).unwrap_or_default(),
                "proto" => read.proto = self.text(node, &path),
                "accept" => read.accept = self.list(node, &path),
                _ => read.deny = self.list(node, &path),
            }
        }
        read
    }

    fn ssh_test(&mut self, node: &Node, path: &str) -> SshTest {
        let mut read = SshTest::default();
        for (key, node) in self.level(node, Level::SshTest, path) {
            let path = format!("{path}.{key}");
            match key {
                "src" => read.src = self.text(node, &path).unwrap_or_default(),
                "dst" => read.dst = self.list(node, &path),
                "accept" => read.accept = self.list(node, &path),
                "deny" => read.deny = self.list(node, &path),
                _ => read.check = self.list(node, &path),
            }
        }
        read
    }

    fn node_attr(&mut self, node: &Node, path: &str) -> NodeAttr {
        let mut read = NodeAttr::default();
        for (key, node) in self.level(node, Level::NodeAttr, path) {
            let path = format!("{path}.{key}");
            match key {
                "target" => read.target = self.list(node, &path),
                _ => read.attr = self.list(node, &path),
            }
        }
        read
    }

    /// The members of an object with a fixed set of keys, under their canonical names. Of two spellings of one key the
    /// first counts.
    fn level<'n>(&mut self, node: &'n Node, level: Level, path: &str) -> Vec<(&'static str, &'n Node)> {
        let mut seen: Vec<(&'static str, &'n Node)> = Vec::new();
        let Value::Object(members) = &node.value else {
            self.wrong_type(node, path, "an object");
            return seen;
        };
        let mut skipped: Vec<&str> = Vec::new();
        for member in members {
            let here = join(path, &member.key);
            match level.canonical(&member.key) {
                Some(key) if seen.iter().any(|(known, _)| *known == key) => {
                    self.problem(member.at, here, ProblemKind::DuplicateKey);
                }
                Some(key) => seen.push((key, &member.node)),
                None if level.skipped(&member.key) => {
                    if skipped.contains(&member.key.as_str()) {
                        self.problem(member.at, here, ProblemKind::DuplicateKey);
                    }
                    skipped.push(&member.key);
                }
                None => self.problem(member.at, here, ProblemKind::UnknownKey { known: level.list() }),
            }
        }
        seen
    }

    /// The members of an object with free keys, the first of equal ones; None for null and for anything but an object.
    fn members<'n>(&mut self, node: &'n Node, path: &str) -> Option<Vec<&'n Member>> {
        let members = match &node.value {
            Value::Object(members) => members,
            Value::Null => return None,
            _ => {
                self.wrong_type(node, path, "an object");
                return None;
            }
        };
        let mut seen: HashMap<&str, ()> = HashMap::new();
        let mut kept = Vec::with_capacity(members.len());
        for member in members {
            if seen.insert(&member.key, ()).is_some() {
                self.problem(member.at, join(path, &member.key), ProblemKind::DuplicateKey);
            } else {
                kept.push(member);
            }
        }
        Some(kept)
    }

    fn map_of_lists(&mut self, node: &Node, path: &str) -> BTreeMap<String, Vec<String>> {
        let members = self.members(node, path).unwrap_or_default();
        members
            .into_iter()
            .map(|m| (m.key.clone(), self.list(&m.node, &join(path, &m.key))))
            .collect()
    }

    fn map_of_texts(&mut self, node: &Node, path: &str) -> BTreeMap<String, String> {
        let members = self.members(node, path).unwrap_or_default();
        let pairs = members
            .into_iter()
            .filter_map(|m| Some((m.key.clone(), self.text(&m.node, &join(path, &m.key))?)));
        pairs.collect()
    }

    /// A list of entries; None for null, which Headscale reads as "not there".
    fn entries<T>(&mut self, node: &Node, path: &str, read: fn(&mut Self, &Node, &str) -> T) -> Option<Vec<T>> {
        match &node.value {
            Value::Array(items) => Some(
                items
                    .iter()
                    .enumerate()
                    .map(|(i, item)| read(self, item, &format!("{path}[{i}]")))
                    .collect(),
            ),
            Value::Null => None,
            _ => {
                self.wrong_type(node, path, "a list");
                // Whatever it is, it is not absent: an unreadable list of rules must not look like "allow all".
                Some(Vec::new())
            }
        }
    }

    fn list(&mut self, node: &Node, path: &str) -> Vec<String> {
        match &node.value {
            Value::Array(items) => items
                .iter()
                .enumerate()
                .filter_map(|(i, item)| match &item.value {
                    Value::Text(text) => Some(text.clone()),
                    _ => {
                        self.wrong_type(item, &format!("{path}[{i}]"), "a string");
                        None
                    }
                })
                .collect(),
            Value::Null => Vec::new(),
            _ => {
                self.wrong_type(node, path, "a list of strings");
                Vec::new()
            }
        }
    }

    fn text(&mut self, node: &Node, path: &str) -> Option<String> {
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            Value::Null => None,
            _ => {
                self.wrong_type(node, path, "a string");
                None
            }
        }
    }

    fn flag(&mut self, node: &Node, path: &str) -> bool {
        match node.value {
            Value::Bool(value) => value,
            Value::Null => false,
            _ => {
                self.wrong_type(node, path, "true or false");
                false
            }
        }
    }

    fn wrong_type(&mut self, node: &Node, path: &str, expected: &'static str) {
        self.problem(
            node.at,
            path.to_owned(),
            ProblemKind::WrongType {
                expected,
                found: node.kind(),
            },
        );
    }

    fn problem(&mut self, at: usize, path: String, kind: ProblemKind) {
        self.problems.push(Problem {
            position: Position::of(self.text, at),
            path,
            kind,
        });
    }
}

/// `path.key`, with keys that are no plain words in brackets: `tagOwners["tag:a"]`.
fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match (path.is_empty(), plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}
