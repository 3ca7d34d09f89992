//! Entries of the ledger for the tests of this folder.

use jiff::{SignedDuration, Timestamp};

use crate::ledger::{Entry, KeyKind, KeyOwner, KeyStage};

pub(super) const TAG: &str = "tag:egress-a";
pub(super) const PREFIX: &str = "abcdefghijkl";

pub(super) fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

pub(super) fn entry(stage: KeyStage) -> Entry {
    Entry {
        number: 3,
        kind: KeyKind::PreAuth,
        stage,
        id: (stage != KeyStage::Intended).then(|| "7".into()),
        prefix: (stage != KeyStage::Intended).then(|| PREFIX.into()),
        owner: KeyOwner {
            api_version: "tsunaro.io/v1alpha1".into(),
            kind: "TailnetEgress".into(),
            namespace: "tailnet-system".into(),
            name: "a".into(),
            uid: "u".into(),
        },
        tailnet: "corp".into(),
        server: "https://control.example.net".into(),
        tags: vec![TAG.into()],
        created_at: now() - SignedDuration::from_hours(1),
        expires_at: now() + SignedDuration::from_hours(1),
        retired_at: Some(now() - SignedDuration::from_secs(10)),
    }
}
