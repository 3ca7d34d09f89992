//! By what a key in Headscale is known as ours without the ledger.
//!
//! Headscale keeps neither a description nor a free field with a key; the end of validity is the only thing that we choose
//! and get back unchanged. Its microseconds are a hash of whom the key was made for: this installation (the UID of its
//! namespace), the Tailnet, the kind of key, its tags, the second. One foreign key in about 250 000 has them by chance
//! (`NONCES` of 999 999), of those that end at a whole microsecond at all; a pre-auth key must besides be as we make
//! them. A key that was expired in Headscale has lost its mark, since expiring sets its end.

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tailnet_headscale::{ApiKeyInfo, PreAuthKeyInfo};

use crate::ledger::KeyKind;

/// How many marks one second has, so that keys that are made at once end at different times.
const NONCES: u64 = 4;
/// Microseconds that a mark may be: 1 to this.
const MARKS: u64 = 999_999;

/// Whom keys are made for.
#[derive(Clone, Copy, Debug)]
pub struct Maker<'a> {
    /// UID of the operator's namespace.
    pub installation: &'a str,
    /// Name of the Tailnet.
    pub tailnet: &'a str,
    /// What the key opens.
    pub kind: KeyKind,
    /// Tags of a pre-auth key, sorted; none for an API key.
    pub tags: &'a [String],
}

impl Maker<'_> {
    /// An end of validity in the second of `about`, or in one soon after, that carries the mark and that `taken` does not
    /// have yet. Whole microseconds, never zero.
    pub fn end(&self, about: Timestamp, taken: impl Fn(Timestamp) -> bool) -> Timestamp {
        let first = rand::random::<u64>() % NONCES;
        (0..=i64::from(u16::MAX))
            .flat_map(|later| (0..NONCES).map(move |step| (later, (first + step) % NONCES)))
            .filter_map(|(later, nonce)| {
                let second = about.as_second().saturating_add(later);
                let nanoseconds = i32::try_from(self.micros(second, nonce).saturating_mul(1000)).ok()?;
                Timestamp::new(second, nanoseconds).ok()
            })
            .find(|end| !taken(*end))
            .unwrap_or(about)
    }

    /// Whether `end` carries the mark.
    fn made(&self, end: Timestamp) -> bool {
        let nanoseconds = u64::try_from(end.subsec_nanosecond()).unwrap_or(0);
        !self.installation.is_empty()
            && nanoseconds.is_multiple_of(1000)
            && (0..NONCES).any(|nonce| self.micros(end.as_second(), nonce) == nanoseconds / 1000)
    }

    fn micros(&self, second: i64, nonce: u64) -> u64 {
        let kind = match self.kind {
            KeyKind::Api => "api",
            KeyKind::PreAuth => "preauth",
        };
        let mut hash = Sha256::new();
        // No part may run into the next: none of them has a line break.
        hash.update(format!(
            "{}\n{}\n{kind}\n{}\n{second}\n{nonce}",
            self.installation,
            self.tailnet,
            self.tags.join(","),
        ));
        let first = hash
            .finalize()
            .iter()
            .take(8)
            .fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
        first % MARKS + 1
    }
}

/// Whether this installation made `key`, a pre-auth key on the server of `tailnet`.
pub fn is_own_preauth(installation: &str, tailnet: &str, key: &PreAuthKeyInfo) -> bool {
    let maker = Maker {
        installation,
        tailnet,
        kind: KeyKind::PreAuth,
        tags: &key.acl_tags,
    };
    key.reusable && key.ephemeral && !key.acl_tags.is_empty() && key.expiration.is_some_and(|end| maker.made(end))
}

/// Whether this installation made `key`, an API key of the server of `tailnet`.
pub fn is_own_api(installation: &str, tailnet: &str, key: &ApiKeyInfo) -> bool {
    let maker = Maker {
        installation,
        tailnet,
        kind: KeyKind::Api,
        tags: &[],
    };
    key.expiration.is_some_and(|end| maker.made(end))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn about() -> Timestamp {
        "2026-12-07T12:00:00Z".parse().unwrap()
    }

    fn preauth(end: Timestamp, tag: &str, ephemeral: bool) -> PreAuthKeyInfo {
        let text = format!(
            r#"{{"id":"7","key":"hskey-auth-abcdefghijkl-***","reusable":true,"ephemeral":{ephemeral},"expiration":"{end}","aclTags":["{tag}"]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_key_is_known_by_its_end_alone() {
        let tags = ["tag:a".to_owned()];
        let maker = Maker {
            installation: "uid-1",
            tailnet: "corp",
            kind: KeyKind::PreAuth,
            tags: &tags,
        };
        let mut ends = BTreeSet::new();
        for _ in 0..200 {
            let end = maker.end(about(), |end| ends.contains(&end));
            assert!(ends.insert(end), "no two keys end at the same time");
            assert!(end.as_second() - about().as_second() <= 60, "{end}");
            assert!(is_own_preauth("uid-1", "corp", &preauth(end, "tag:a", true)), "{end}");
        }
        // One in 250 000 of somebody else's keys has our mark by chance: three of 200 never do.
        let own = |installation, tailnet, tag, ephemeral| {
            ends.iter()
                .filter(|end| is_own_preauth(installation, tailnet, &preauth(**end, tag, ephemeral)))
                .count()
        };
        assert_eq!(own("uid-1", "corp", "tag:a", true), 200);
        assert!(own("uid-2", "corp", "tag:a", true) <= 3, "another installation's");
        assert!(own("uid-1", "other", "tag:a", true) <= 3, "another Tailnet's");
        assert!(own("uid-1", "corp", "tag:b", true) <= 3, "with other tags");
        assert_eq!(own("uid-1", "corp", "tag:a", false), 0, "we make ephemeral keys");
        assert_eq!(own("", "corp", "tag:a", true), 0, "of no known installation");
    }

    #[test]
    fn ends_of_other_makers_are_not_ours() {
        let keys = |micros: u64| -> ApiKeyInfo {
            let end = Timestamp::new(about().as_second(), i32::try_from(micros * 1000).unwrap()).unwrap();
            serde_json::from_str(&format!(
                r#"{{"id":"1","prefix":"hskey-api-abcdefghijkl-***","expiration":"{end}"}}"#
            ))
            .unwrap()
        };
        let own = (0..1_000_000)
            .step_by(499)
            .filter(|micros| is_own_api("uid-1", "corp", &keys(*micros)))
            .count();
        assert!(own <= 2, "{own} of 2005");
        let nanoseconds = Timestamp::new(about().as_second(), 123_456_789).unwrap();
        let by_hand: ApiKeyInfo =
            serde_json::from_str(&format!(r#"{{"id":"1","prefix":"x","expiration":"{nanoseconds}"}}"#)).unwrap();
        assert!(!is_own_api("uid-1", "corp", &by_hand));
    }
}
