//! Owners, keys and entries of the ledger for tests.

use jiff::{SignedDuration, Timestamp};

use super::{Entry, Existing, Intention, KeyKind, KeyOwner, KeyStage};

/// The tag of egress `a`.
pub(crate) const TAG: &str = "tag:egress-a";
/// The prefix of its key.
pub(crate) const PREFIX: &str = "abcdefghijkl";
const SERVER: &str = "https://control.example.net";

pub(crate) fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

/// The egress of a name.
pub(crate) fn owner(name: &str) -> KeyOwner {
    KeyOwner {
        api_version: "tsunaro.io/v1alpha1".into(),
        kind: "TailnetEgress".into(),
        namespace: "tailnet-system".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    }
}

/// The key that the egress of a name is about to ask for; each has its own tag.
pub(crate) fn intention(name: &str) -> Intention {
    Intention {
        kind: KeyKind::PreAuth,
        owner: owner(name),
        tailnet: "corp".into(),
        server: SERVER.into(),
        tags: vec![format!("tag:egress-{name}")],
        lifetime: SignedDuration::from_hours(168),
        installation: "uid-of-namespace".into(),
    }
}

/// A key of egress `a` that was found.
pub(crate) fn existing(prefix: &str, expires_at: &str) -> Existing {
    Existing {
        kind: KeyKind::PreAuth,
        id: Some("7".into()),
        prefix: prefix.into(),
        owner: owner("a"),
        tailnet: "corp".into(),
        server: SERVER.into(),
        tags: vec![TAG.into()],
        created_at: now(),
        expires_at: expires_at.parse().unwrap(),
    }
}

/// The key of egress `a`, made an hour ago, valid for an hour more, retired ten seconds ago.
pub(crate) fn entry(stage: KeyStage) -> Entry {
    Entry {
        number: 3,
        kind: KeyKind::PreAuth,
        stage,
        id: (stage != KeyStage::Intended).then(|| "7".into()),
        prefix: (stage != KeyStage::Intended).then(|| PREFIX.into()),
        owner: owner("a"),
        tailnet: "corp".into(),
        server: SERVER.into(),
        tags: vec![TAG.into()],
        created_at: now() - SignedDuration::from_hours(1),
        expires_at: now() + SignedDuration::from_hours(1),
        retired_at: Some(now() - SignedDuration::from_secs(10)),
    }
}
