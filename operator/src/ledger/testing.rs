//! Entries of the ledger for tests.

use jiff::{SignedDuration, Timestamp};

use super::{Existing, Intention, KeyKind, KeyOwner};

pub(crate) fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

pub(crate) fn intention(name: &str) -> Intention {
    Intention {
        kind: KeyKind::PreAuth,
        owner: KeyOwner {
            api_version: "tsunaro.io/v1alpha1".into(),
            kind: "TailnetEgress".into(),
            namespace: "tailnet-system".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        },
        tailnet: "corp".into(),
        server: "https://control.example.net".into(),
        // Each egress has its own tag.
        tags: vec![format!("tag:egress-{name}")],
        lifetime: SignedDuration::from_hours(168),
        installation: "uid-of-namespace".into(),
    }
}

pub(crate) fn existing(prefix: &str, expires_at: &str) -> Existing {
    Existing {
        kind: KeyKind::PreAuth,
        id: Some("7".into()),
        prefix: prefix.into(),
        owner: intention("a").owner,
        tailnet: "corp".into(),
        server: "https://control.example.net".into(),
        tags: vec!["tag:egress-a".into()],
        created_at: now(),
        expires_at: expires_at.parse().unwrap(),
    }
}
