//! Tests of the base document that Headscale cannot run yet.
//!
//! Headscale 0.29 refuses every policy whose `tests` or `sshTests` name somebody who has no node. A fresh tailnet could never
//! get its first policy, so such tests are set aside in the rendered document until the nodes are there.

use std::collections::BTreeSet;

use tailnet_headscale::document::edit::WaitingTest;
use tailnet_headscale::document::{Policy, SshTest, Test};

use crate::base::without_port;
use crate::facts::Facts;

/// Who has a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Tags of nodes.
    pub tags: BTreeSet<String>,
    /// Names and e-mail addresses of the users of untagged nodes.
    pub users: BTreeSet<String>,
    /// Whether e-mail addresses are among the users; else one says nothing.
    pub knows_emails: bool,
}

impl Registered {
    /// As far as the facts tell: they have no e-mail addresses.
    pub fn from_facts(facts: &Facts) -> Self {
        Self {
            tags: facts.nodes.iter().flat_map(|node| node.tags.iter().cloned()).collect(),
            users: facts.nodes.iter().filter_map(|node| node.user.clone()).collect(),
            knows_emails: false,
        }
    }

    /// Whether it is certain that nobody with this name has a node.
    fn lacks(&self, name: &str, policy: &Policy) -> bool {
        if name.starts_with("tag:") {
            return !self.tags.contains(name);
        }
        if name.starts_with("group:") {
            let members = policy.groups.get(name);
            return members.is_some_and(|members| members.iter().all(|member| self.lacks(member, policy)));
        }
        match name.split_once('@') {
            Some((user, "")) => !self.users.contains(user) && !self.users.contains(name),
            Some(_) if self.knows_emails => !self.users.contains(name),
            _ => false,
        }
    }
}

/// The tests (by position) and the SSH tests that wait, of a base document.
pub(super) struct Waiting {
    pub(super) tests: Vec<WaitingTest>,
    pub(super) ssh_tests: Vec<WaitingTest>,
}

impl Waiting {
    /// Those that name somebody without a node. `live`: a test that is in force there stays, if it is the only difference,
    /// since an agent that restarts must not cost every node a new policy.
    pub(super) fn of(base: &Policy, registered: Option<&Registered>) -> Self {
        let Some(registered) = registered else {
            return Self {
                tests: Vec::new(),
                ssh_tests: Vec::new(),
            };
        };
        let absent = |names: Vec<&str>| {
            names
                .into_iter()
                .find(|name| registered.lacks(name, base))
                .map(|name| format!("waits until a node has {name}"))
        };
        Self {
            tests: positions(&base.tests, |test| absent(names(test))),
            ssh_tests: positions(&base.ssh_tests, |test| absent(ssh_names(test))),
        }
    }

    /// Without those that the live policy runs.
    pub(super) fn at_rest(&self, base: &Policy, live: &Policy) -> Self {
        let keep = |waiting: &[WaitingTest], runs: &dyn Fn(usize) -> bool| {
            waiting.iter().filter(|test| !runs(test.index)).cloned().collect()
        };
        Self {
            tests: keep(&self.tests, &|at| {
                base.tests.get(at).is_some_and(|test| live.tests.contains(test))
            }),
            ssh_tests: keep(&self.ssh_tests, &|at| {
                base.ssh_tests.get(at).is_some_and(|test| live.ssh_tests.contains(test))
            }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tests.is_empty() && self.ssh_tests.is_empty()
    }

    /// `tests[2] waits until a node has tag:ci`
    pub(super) fn told(&self) -> Vec<String> {
        let tests = self
            .tests
            .iter()
            .map(|test| format!("tests[{}] {}", test.index, test.why));
        let ssh = self
            .ssh_tests
            .iter()
            .map(|test| format!("sshTests[{}] {}", test.index, test.why));
        tests.chain(ssh).collect()
    }
}

fn positions<T>(tests: &[T], absent: impl Fn(&T) -> Option<String>) -> Vec<WaitingTest> {
    tests
        .iter()
        .enumerate()
        .filter_map(|(index, test)| {
            Some(WaitingTest {
                index,
                why: absent(test)?,
            })
        })
        .collect()
}

fn names(test: &Test) -> Vec<&str> {
    let destinations = test.accept.iter().chain(&test.deny).map(|dst| without_port(dst));
    std::iter::once(test.src.as_str()).chain(destinations).collect()
}

fn ssh_names(test: &SshTest) -> Vec<&str> {
    let destinations = test.dst.iter().map(String::as_str);
    std::iter::once(test.src.as_str()).chain(destinations).collect()
}
