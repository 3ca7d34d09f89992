//! What may happen to entries.

use super::super::testing::{existing, intention, now};
use super::*;

#[test]
fn a_key_that_exists_is_entered_once() {
    let mut ledger = Document::default();
    let found = existing("abcdefghijkl", "2026-12-07T12:00:00.123456Z");
    assert!(ledger.adopt(found.clone()));
    let entry = ledger.entries[0].clone();
    assert_eq!(
        (entry.stage, entry.id.as_deref(), entry.retired_at),
        (KeyStage::Active, Some("7"), None)
    );
    assert!(!ledger.adopt(found), "known by its prefix");
    let intended = ledger.intend(intention("b"), 6, now()).unwrap();
    assert_ne!(intended.number, entry.number, "numbers are not used twice");
    let of_intention = existing("bcdefghijklm", &intended.expires_at.to_string());
    assert!(
        !ledger.adopt(of_intention.clone()),
        "an intention finds its key by itself"
    );
    let api = Existing {
        kind: KeyKind::Api,
        ..of_intention
    };
    assert!(ledger.adopt(api), "a key of another kind is another key");
    assert_eq!(ledger.entries.len(), 3);
}

#[test]
fn an_intention_is_recognizable_by_its_end() {
    let mut ledger = Document::default();
    let ends: std::collections::BTreeSet<_> = (0..50)
        .map(|i| ledger.intend(intention(&i.to_string()), 6, now()).unwrap().expires_at)
        .collect();
    assert_eq!(
        ends.len(),
        50,
        "no two of 50 keys made in one instant end at the same time"
    );
    for end in ends {
        assert_eq!(end.subsec_nanosecond() % 1000, 0, "databases keep microseconds");
        assert!(end.subsec_nanosecond() > 0);
        assert_eq!(end.as_second(), now().as_second() + 168 * 3600);
    }
}

#[test]
fn the_hourly_limit_is_per_owner() {
    let mut ledger = Document::default();
    for minute in 0..3 {
        ledger
            .intend(intention("a"), 3, now() + SignedDuration::from_mins(minute))
            .unwrap();
    }
    let refused = ledger
        .intend(intention("a"), 3, now() + SignedDuration::from_mins(30))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "3 keys were already made for TailnetEgress tailnet-system/a within an hour; the next one may be made at 2026-11-30T13:00:00Z"
    );
    ledger.intend(intention("b"), 3, now()).unwrap();
    ledger
        .intend(intention("a"), 3, now() + SignedDuration::from_mins(61))
        .unwrap();
    assert_eq!(ledger.entries.len(), 5);
}

#[test]
fn a_try_that_made_no_key_does_not_count() {
    let mut ledger = Document::default();
    for minute in 0..10 {
        let entry = ledger
            .intend(intention("a"), 2, now() + SignedDuration::from_mins(minute))
            .unwrap();
        ledger.not_made(entry.number);
    }
    assert_eq!((ledger.entries.len(), ledger.recent_mints.len()), (0, 0));
    // One that may have been made counts, also when it never shows up.
    for _ in 0..2 {
        let entry = ledger.intend(intention("a"), 2, now()).unwrap();
        ledger.drop_entry(entry.number);
    }
    assert!(ledger.intend(intention("a"), 2, now()).is_err());
    ledger.not_made(999);
    assert_eq!(ledger.recent_mints.len(), 2, "an unknown entry takes nothing back");
}

#[test]
fn a_server_by_another_url_keeps_its_entries() {
    let mut ledger = Document::default();
    for name in ["a", "b"] {
        ledger.intend(intention(name), 6, now()).unwrap();
    }
    ledger.entries[1].tailnet = "other".into();
    let slashed = "https://control.example.net:443/";
    assert_eq!(ledger.on_server("corp", slashed, KeyKind::PreAuth).count(), 1);
    ledger.readdress("corp", slashed, "https://headscale.svc");
    assert_eq!(
        ledger
            .on_server("corp", "https://headscale.svc", KeyKind::PreAuth)
            .count(),
        1
    );
    assert_eq!(ledger.on_server("corp", slashed, KeyKind::PreAuth).count(), 0);
    assert_eq!(ledger.entries[1].server, "https://control.example.net");
}

#[test]
fn a_full_ledger_takes_no_more() {
    let mut ledger = Document::default();
    for i in 0..MAX_ENTRIES {
        ledger.intend(intention(&i.to_string()), 6, now()).unwrap();
    }
    assert_eq!(
        ledger.intend(intention("one-more"), 6, now()),
        Err(IntentionError::Full)
    );
    for entry in &mut ledger.entries {
        (entry.id, entry.prefix, entry.retired_at) =
            (Some("4294967296".into()), Some("abcdefghijkl".into()), Some(now()));
    }
    let size = serde_json::to_vec(&ledger).unwrap().len();
    assert!(size < 1_000_000, "{size} bytes do not fit into a Secret");
}

#[test]
fn stages() {
    let mut ledger = Document::default();
    let number = ledger.intend(intention("a"), 6, now()).unwrap().number;
    ledger.retire(number, now());
    assert_eq!(
        ledger.entries[0].stage,
        KeyStage::Intended,
        "a retired entry without an id would be taken for a key that is gone"
    );
    ledger.made(number, Some("7".into()), Some("abcdefghijkl".into()));
    ledger.retire(number, now());
    let retired = ledger.entries[0].clone();
    assert_eq!((retired.stage, retired.retired_at), (KeyStage::Retired, Some(now())));
    ledger.retire(number, now() + SignedDuration::from_hours(1));
    assert_eq!(ledger.entries[0], retired, "retiring twice keeps the first time");
    ledger.drop_entry(number);
    assert_eq!(ledger.entries, []);
    let vain = ledger.intend(intention("a"), 6, now()).unwrap().number;
    ledger.made_in_vain(vain, "8".into(), "bcdefghijklm".into());
    let found = ledger.entries.remove(0);
    assert_eq!((found.stage, found.retired_at), (KeyStage::Retired, None));
    assert_eq!(
        (found.id.as_deref(), found.prefix.as_deref()),
        (Some("8"), Some("bcdefghijklm"))
    );
    assert_ne!(
        ledger.intend(intention("a"), 6, now()).unwrap().number,
        number,
        "numbers are not used twice"
    );
}

#[test]
fn a_key_in_its_secret_completes_its_intention() {
    let mut ledger = Document::default();
    let other = ledger.intend(intention("b"), 6, now()).unwrap();
    let entry = ledger.intend(intention("a"), 6, now()).unwrap();
    let owner = entry.owner.clone();
    assert!(!ledger.has_key_in_use(&owner));
    assert!(ledger.found_in_secret(&owner, "7", "abcdefghijkl", other.expires_at));
    assert_eq!(
        (ledger.entries[0].stage, ledger.entries[1].stage),
        (KeyStage::Intended, KeyStage::Intended),
        "a key with another end is another key"
    );
    assert!(ledger.found_in_secret(&owner, "7", "abcdefghijkl", entry.expires_at));
    let completed = ledger.entries[1].clone();
    assert_eq!(
        (completed.stage, completed.id.as_deref(), completed.prefix.as_deref()),
        (KeyStage::Active, Some("7"), Some("abcdefghijkl"))
    );
    assert!(ledger.has_key_in_use(&owner) && !ledger.has_key_in_use(&other.owner));
    assert!(ledger.found_in_secret(&owner, "7", "abcdefghijkl", entry.expires_at));
    assert_eq!(ledger.entries[1], completed);
}

#[test]
fn a_key_on_its_way_out_that_is_in_a_secret_again_is_not_used() {
    let mut ledger = Document::default();
    let entry = ledger.intend(intention("a"), 6, now()).unwrap();
    ledger.made(entry.number, Some("7".into()), Some("abcdefghijkl".into()));
    ledger.retire(entry.number, now());
    let found = |ledger: &mut Document, prefix| ledger.found_in_secret(&entry.owner, "7", prefix, entry.expires_at);
    assert!(!found(&mut ledger, "abcdefghijkl"));
    ledger.entries[0].stage = KeyStage::Expired;
    assert!(!found(&mut ledger, "abcdefghijkl"));
    assert_eq!(ledger.entries[0].stage, KeyStage::Expired);
    assert!(found(&mut ledger, "zzzzzzzzzzzz"), "the ledger knows no such key");
}

#[test]
fn headscale_is_searched_after_a_loss_only() {
    let (start, second) = (now(), SignedDuration::from_secs(1));
    let whole = Document::default();
    assert!(!whole.search_due("corp", start));
    let mut ledger = Document::new(start);
    assert!(ledger.search_due("corp", start));
    ledger.searched("corp", start + second);
    assert!(!ledger.search_due("corp", start + second * 2));
    assert!(
        ledger.search_due("other", start + second * 2),
        "each Tailnet has its server"
    );
    // Keys whose answers were lost with the ledger have come by then, if they come at all.
    let settled = start + LOST_ANSWER;
    assert!(!ledger.search_due("corp", settled - second));
    assert!(ledger.search_due("corp", settled));
    ledger.searched("corp", settled);
    assert!(!ledger.search_due("corp", settled + SignedDuration::from_hours(1000)));
    let again = settled + SignedDuration::from_hours(1);
    ledger.lost(again);
    assert!(ledger.search_due("corp", again), "lost again");
    // A search that began before the loss says nothing of it.
    ledger.searched("corp", again - second);
    assert!(ledger.search_due("corp", again));
    ledger.searched("corp", again + LOST_ANSWER);
    let stored: Document = serde_json::from_str(&serde_json::to_string(&ledger).unwrap()).unwrap();
    assert_eq!(stored, ledger, "a restart does not forget it");
    assert!(!stored.search_due("corp", again + LOST_ANSWER * 2));
    ledger.forget("corp", "https://control.example.net");
    assert!(
        ledger.search_due("corp", again + LOST_ANSWER * 2),
        "it was on another server"
    );
}

#[test]
fn what_is_forgotten_is_of_one_tailnet_on_one_server() {
    let mut ledger = Document::default();
    for name in ["a", "b", "c"] {
        ledger.intend(intention(name), 6, now()).unwrap();
    }
    ledger.entries[1].tailnet = "other".into();
    ledger.entries[2].server = "https://other.example.net".into();
    ledger.forget("corp", "https://control.example.net:443/");
    let left: Vec<&str> = ledger.entries.iter().map(|entry| entry.owner.name.as_str()).collect();
    assert_eq!(left, ["b", "c"]);
}
