//! Which key of a server, and which node, belongs to an entry of the ledger.
//!
//! A key is known by its id and its prefix (and tags): a Headscale whose database was restored or built anew gives ids out
//! again, and what has the id of one of our keys may be somebody else's.

use jiff::Timestamp;
use tailnet_headscale::Node;
use tailnet_headscale::preauth_key::PreAuthKeyInfo;

use crate::ledger::Entry;

/// Whether `node` joined with the key of `entry`.
pub(super) fn joined_with(node: &Node, entry: &Entry) -> bool {
    node.pre_auth_key.as_ref().is_some_and(|key| is_made_as(key, entry))
}

/// The key of `entry` in a server's list.
pub(crate) fn made_key<'a>(listed: &'a [PreAuthKeyInfo], entry: &Entry) -> Option<&'a PreAuthKeyInfo> {
    listed
        .iter()
        .find(|key| is_made_as(key, entry) && key.acl_tags == entry.tags)
}

/// Whether `key` has id and prefix of the key that `entry` says was made.
fn is_made_as(key: &PreAuthKeyInfo, entry: &Entry) -> bool {
    entry.id.as_deref() == Some(key.id.as_str()) && entry.prefix.as_deref() == Some(key.prefix())
}

/// Whether `key`, whose answer was lost, is the one that `entry` intended.
pub(super) fn is_key_of(key: &PreAuthKeyInfo, entry: &Entry) -> bool {
    key.acl_tags == entry.tags && key.expiration.is_some_and(|end| same_instant(end, entry.expires_at))
}

/// Databases keep microseconds.
pub(super) fn same_instant(a: Timestamp, b: Timestamp) -> bool {
    a.as_microsecond() == b.as_microsecond()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::KeyStage;
    use crate::ledger::testing::{PREFIX, TAG, entry};

    #[test]
    fn an_id_that_is_given_out_again_is_not_our_key() {
        let key = |id: &str, prefix: &str, tag: &str| -> PreAuthKeyInfo {
            let text = format!(r#"{{"id":"{id}","key":"hskey-auth-{prefix}-***","aclTags":["{tag}"]}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let made = entry(KeyStage::Retired);
        let (foreign, retagged) = (key("7", "zzzzzzzzzzzz", TAG), key("7", PREFIX, "tag:b"));
        let (renumbered, ours) = (key("8", PREFIX, TAG), key("7", PREFIX, TAG));
        let listed = [foreign.clone(), retagged, renumbered];
        assert_eq!(made_key(&listed, &made), None);
        assert_eq!(made_key(std::slice::from_ref(&ours), &made), Some(&ours));
        assert_eq!(made_key(std::slice::from_ref(&ours), &entry(KeyStage::Intended)), None);

        let node = |key: &PreAuthKeyInfo| Node {
            pre_auth_key: Some(key.clone()),
            ..Node::default()
        };
        assert!(joined_with(&node(&ours), &made));
        assert!(!joined_with(&node(&foreign), &made), "a foreign node would be removed");
        assert!(!joined_with(&Node::default(), &entry(KeyStage::Intended)));
    }

    #[test]
    fn orphans_are_known_by_tags_and_end() {
        let key = |end: &str, tag: &str| -> PreAuthKeyInfo {
            serde_json::from_str(&format!(r#"{{"id":"7","expiration":"{end}","aclTags":["{tag}"]}}"#)).unwrap()
        };
        let mut wanted = entry(KeyStage::Intended);
        wanted.expires_at = "2026-12-07T12:00:00.123456Z".parse().unwrap();
        assert!(is_key_of(&key("2026-12-07T12:00:00.123456Z", TAG), &wanted));
        assert!(is_key_of(&key("2026-12-07T13:00:00.123456+01:00", TAG), &wanted));
        assert!(!is_key_of(&key("2026-12-07T12:00:00.123457Z", TAG), &wanted));
        assert!(!is_key_of(&key("2026-12-07T12:00:00.123456Z", "tag:b"), &wanted));
    }
}
