//! Whether Headscale takes a name in a generated entry.

use std::collections::BTreeSet;

use tailnet_headscale::document::Policy;

use crate::base;

/// Autogroups that may be the source of a grant.
const SOURCES: [&str; 3] = ["member", "tagged", "danger-all"];

/// Why Headscale would refuse `name` as the source of a grant. `tags` have an owner in the rendered policy.
pub(super) fn source_problem(name: &str, policy: &Policy, tags: &BTreeSet<String>) -> Option<String> {
    if let Some(autogroup) = name.strip_prefix("autogroup:") {
        return (!SOURCES.contains(&autogroup)).then(|| "is no autogroup that can be a source".to_owned());
    }
    base::name_problem(name, policy, tags)
}

/// Why Headscale would refuse `name` as the owner of a tag.
pub(super) fn owner_problem(name: &str, policy: &Policy, tags: &BTreeSet<String>) -> Option<String> {
    if name.contains('@') {
        return None;
    }
    if name.starts_with("group:") || name.starts_with("tag:") {
        return base::name_problem(name, policy, tags);
    }
    Some("cannot own a tag: write a user (alice@), a group or a tag".to_owned())
}
