//! The access-policy document (HuJSON): reading it completely, with positions for every fault.
//!
//! What Headscale refuses about the form (unknown keys, duplicate keys, wrong types) is a [`Problem`]; whether names are
//! defined and rules make sense is not judged here.

pub mod diff;
pub mod edit;
mod keys;
mod places;
mod read;
mod tree;

pub use places::{route_lines, rule_lines};

use std::collections::BTreeMap;
use std::fmt;

use tree::Value;

/// A place in the text, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl Position {
    fn of(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// The text is not HuJSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {message}")]
pub struct ParseError {
    /// Where.
    pub position: Position,
    /// What, in the parser's words.
    pub message: String,
}

/// A fault of form that makes Headscale refuse the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub position: Position,
    /// Path of the key or value, e.g. `grants[2].ip`.
    pub path: String,
    /// What.
    pub kind: ProblemKind,
}

/// Kinds of [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The key is there twice (for Headscale `TagOwners` is the same key as `tagOwners`).
    DuplicateKey,
    /// Headscale does not know the key.
    UnknownKey {
        /// The keys that it knows at this level.
        known: String,
    },
    /// The value has another type.
    WrongType {
        /// The right type, e.g. `a list`.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() {
            "the document"
        } else {
            &self.path
        };
        write!(f, "{}: {path}: ", self.position)?;
        match &self.kind {
            ProblemKind::DuplicateKey => f.write_str("the key is there twice (case does not matter)"),
            ProblemKind::UnknownKey { known } => write!(f, "Headscale does not know this key; it knows {known}"),
            ProblemKind::WrongType { expected, found } => write!(f, "must be {expected}, is {found}"),
        }
    }
}

/// What a tailnet allows when no rule says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posture {
    /// No `acls` and no `grants`: everybody may reach everything.
    AllowAll,
    /// Rules exist (even an empty list): what they do not allow is denied.
    Deny,
}

/// The whole policy. `acls` and `grants` are None when absent or null, which is not the same as empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// `group:x` to members.
    pub groups: BTreeMap<String, Vec<String>>,
    /// Alias to address or CIDR.
    pub hosts: BTreeMap<String, String>,
    /// `tag:x` to owners.
    pub tag_owners: BTreeMap<String, Vec<String>>,
    /// Whose routes are approved without a person.
    pub auto_approvers: AutoApprovers,
    /// Rules in the old form.
    pub acls: Option<Vec<Acl>>,
    /// Rules.
    pub grants: Option<Vec<Grant>>,
    /// SSH rules.
    pub ssh: Vec<SshRule>,
    /// Assertions that Headscale checks on every write.
    pub tests: Vec<Test>,
    /// The same for SSH.
    pub ssh_tests: Vec<SshTest>,
    /// Attributes of nodes.
    pub node_attrs: Vec<NodeAttr>,
    /// See Tailscale.
    pub randomize_client_port: bool,
}

impl Policy {
    /// What holds without rules.
    pub fn posture(&self) -> Posture {
        if self.acls.is_none() && self.grants.is_none() {
            Posture::AllowAll
        } else {
            Posture::Deny
        }
    }
}

/// `autoApprovers`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoApprovers {
    /// Prefix to approvers; a key covers itself and more specific prefixes.
    pub routes: BTreeMap<String, Vec<String>>,
    /// Approvers of exit nodes.
    pub exit_node: Vec<String>,
}

/// One entry of `acls`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// `accept`.
    pub action: String,
    /// Protocol; None = TCP, UDP and ICMP.
    pub proto: Option<String>,
    /// Sources.
    pub src: Vec<String>,
    /// Destinations with ports, `tag:b:443`.
    pub dst: Vec<String>,
}

/// One entry of `grants`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grant {
    /// Sources.
    pub src: Vec<String>,
    /// Destinations without ports.
    pub dst: Vec<String>,
    /// Ports, `tcp:443`.
    pub ip: Vec<String>,
    /// Application capabilities.
    pub app: BTreeMap<String, serde_json::Value>,
    /// Tags of the routers to be used.
    pub via: Vec<String>,
}

/// One entry of `ssh`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SshRule {
    /// `accept` or `check`.
    pub action: String,
    /// Sources.
    pub src: Vec<String>,
    /// Destinations.
    pub dst: Vec<String>,
    /// Login users.
    pub users: Vec<String>,
    /// `12h` or `always`.
    pub check_period: Option<String>,
    /// Names of environment variables.
    pub accept_env: Vec<String>,
}

/// One entry of `tests`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Test {
    /// One source.
    pub src: String,
    /// Protocol; None = TCP.
    pub proto: Option<String>,
    /// `host:port` that must be reachable.
    pub accept: Vec<String>,
    /// `host:port` that must not be.
    pub deny: Vec<String>,
}

/// One entry of `sshTests`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SshTest {
    /// One source.
    pub src: String,
    /// Destinations.
    pub dst: Vec<String>,
    /// Login users that must be let in.
    pub accept: Vec<String>,
    /// Login users that must not be.
    pub deny: Vec<String>,
    /// Login users that must be asked.
    pub check: Vec<String>,
}

/// One entry of `nodeAttrs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAttr {
    /// Nodes.
    pub target: Vec<String>,
    /// Attributes.
    pub attr: Vec<String>,
}

/// One of the rules that let traffic through, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// An entry of `grants`.
    Grant(usize),
    /// An entry of `acls`.
    Acl(usize),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grant(at) => write!(f, "grants[{at}]"),
            Self::Acl(at) => write!(f, "acls[{at}]"),
        }
    }
}

/// A document that is HuJSON; its [`Document::problems`] say whether it is also a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    policy: Policy,
    problems: Vec<Problem>,
    blank: bool,
}

impl Document {
    /// Reads `text`. A byte order mark is not JSON and is an error, as it is for Headscale.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut reader = read::Reader::new(text);
        let root = tree::parse(text)?;
        let blank = root.as_ref().is_none_or(|node| node.value == Value::Null);
        let policy = match &root {
            Some(node) if !blank => reader.policy(node),
            _ => Policy::default(),
        };
        let mut problems = reader.problems;
        problems.sort_by_key(|p| p.position);
        Ok(Self {
            policy,
            problems,
            blank,
        })
    }

    /// What it says.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Faults of form, by position; Headscale refuses a document that has any.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether it holds nothing at all (white space, comments, `null`): Headscale takes that as "no policy".
    pub fn is_blank(&self) -> bool {
        self.blank
    }
}

#[cfg(test)]
mod tests;
