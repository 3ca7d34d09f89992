//! Which keys Headscale 0.29 knows at which level. It refuses a policy with any other.

/// A level of the document with a fixed set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Top,
    AutoApprovers,
    Acl,
    Grant,
    Ssh,
    Test,
    SshTest,
    NodeAttr,
}

impl Level {
    fn known(self) -> &'static [&'static str] {
        match self {
            Level::Top => &[
                "groups",
                "hosts",
                "tagOwners",
                "acls",
                "grants",
                "nodeAttrs",
                "autoApprovers",
                "ssh",
                "tests",
                "sshTests",
                "randomizeClientPort",
            ],
            Level::AutoApprovers => &["routes", "exitNode"],
            Level::Acl => &["action", "proto", "src", "dst"],
            Level::Grant => &["src", "dst", "ip", "app", "via"],
            Level::Ssh => &["action", "src", "dst", "users", "checkPeriod", "acceptEnv"],
            Level::Test => &["src", "proto", "accept", "deny"],
            Level::SshTest => &["src", "dst", "accept", "deny", "check"],
            Level::NodeAttr => &["target", "attr"],
        }
    }

    /// The canonical spelling of `key` at this level; None when Headscale does not know it.
    pub(super) fn canonical(self, key: &str) -> Option<&'static str> {
        self.known().iter().copied().find(|known| fold(known) == fold(key))
    }

    /// Whether Headscale skips `key` although it does not know it: notes inside an acls entry.
    pub(super) fn skipped(self, key: &str) -> bool {
        self == Level::Acl && key.starts_with('#')
    }

    /// The keys of this level, for a message.
    pub(super) fn list(self) -> String {
        self.known().join(", ")
    }
}

/// Headscale matches keys without regard to case, and its JSON reader drops `_` and `-` before it compares.
fn fold(key: &str) -> String {
    key.chars()
        .filter(|c| !matches!(c, '_' | '-'))
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_dashes_do_not_matter() {
        for spelled in ["tagOwners", "TagOwners", "TAGOWNERS", "tag_owners", "tag-owners"] {
            assert_eq!(Level::Top.canonical(spelled), Some("tagOwners"), "{spelled}");
        }
        assert_eq!(Level::Top.canonical("postures"), None);
        assert!(Level::Acl.skipped("#ha") && !Level::Grant.skipped("#ha"));
    }
}
