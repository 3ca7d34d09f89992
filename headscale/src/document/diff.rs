//! The difference between two policies: as lines for people, as a count of entries for a status.

use std::collections::BTreeSet;
use std::time::Duration;

use similar::TextDiff;

use super::Policy;

/// Lines around a change.
const CONTEXT: usize = 2;
/// Longest time that is spent on a small difference; afterwards it may be a larger one than needed.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Number of entries that one policy has and the other has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Only the new one has them.
    pub added: usize,
    /// Only the old one has them.
    pub removed: usize,
}

/// The difference as a unified diff, empty when the texts are equal.
pub fn unified(old: &str, new: &str, old_name: &str, new_name: &str) -> String {
    if old == new {
        return String::new();
    }
    TextDiff::configure()
        .timeout(TIMEOUT)
        .diff_lines(old, new)
        .unified_diff()
        .context_radius(CONTEXT)
        .header(old_name, new_name)
        .to_string()
}

/// Lines of `old` that `new` does not have any more, without comments and empty lines.
pub fn lost_lines(old: &str, new: &str) -> Vec<String> {
    let kept: BTreeSet<&str> = new.lines().map(str::trim).collect();
    old.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//") && !kept.contains(line))
        .map(str::to_owned)
        .collect()
}

/// The difference in entries: order and layout do not count.
pub fn counts(old: &Policy, new: &Policy) -> Counts {
    let (old, new) = (entries(old), entries(new));
    Counts {
        added: new.difference(&old).count(),
        removed: old.difference(&new).count(),
    }
}

/// Everything that a policy says, one text each.
fn entries(policy: &Policy) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (name, members) in &policy.groups {
        all.insert(format!("groups {name} {members:?}"));
    }
    for (name, address) in &policy.hosts {
        all.insert(format!("hosts {name} {address}"));
    }
    for (tag, owners) in &policy.tag_owners {
        all.insert(format!("tagOwners {tag} {owners:?}"));
    }
    for (prefix, approvers) in &policy.auto_approvers.routes {
        all.insert(format!("routes {prefix} {approvers:?}"));
    }
    for approver in &policy.auto_approvers.exit_node {
        all.insert(format!("exitNode {approver}"));
    }
    all.extend(policy.acls.iter().flatten().map(|acl| format!("{acl:?}")));
    all.extend(policy.grants.iter().flatten().map(|grant| format!("{grant:?}")));
    all.extend(policy.ssh.iter().map(|rule| format!("{rule:?}")));
    all.extend(policy.tests.iter().map(|test| format!("{test:?}")));
    all.extend(policy.ssh_tests.iter().map(|test| format!("{test:?}")));
    all.extend(policy.node_attrs.iter().map(|attr| format!("{attr:?}")));
    if policy.randomize_client_port {
        all.insert("randomizeClientPort".to_owned());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    #[test]
    fn entries_are_counted_whatever_their_order() {
        let policy = |text: &str| Document::parse(text).unwrap().policy().clone();
        let old = policy(
            r#"{"tagOwners":{"tag:a":[],"tag:b":[]},"grants":[{"src":["a@"],"dst":["*"],"ip":["*"]},{"src":["b@"],"dst":["*"],"ip":["*"]}]}"#,
        );
        let new = policy(
            r#"{"grants":[{"src":["b@"],"dst":["*"],"ip":["*"]},{"src":["a@"],"dst":["*"],"ip":["*"]},{"src":["c@"],"dst":["*"],"ip":["*"]}],
            "tagOwners":{"tag:b":["x@"],"tag:a":[]}}"#,
        );
        assert_eq!(counts(&old, &new), Counts { added: 2, removed: 1 });
        assert_eq!(counts(&old, &old), Counts::default());
    }

    #[test]
    fn lines() {
        let diff = unified("{\n  \"a\": 1,\n}\n", "{\n  \"a\": 2,\n}\n", "live", "rendered");
        assert!(diff.starts_with("--- live\n+++ rendered\n@@"), "{diff}");
        assert!(diff.contains("-  \"a\": 1,\n+  \"a\": 2,\n"), "{diff}");
        assert_eq!(unified("x", "x", "a", "b"), "");
        assert_eq!(
            lost_lines("{\n // c\n  \"a\": 1,\n  \"b\": 2,\n}", "{\n\"b\": 2,\n}"),
            ["\"a\": 1,"]
        );
    }
}
