//! Who gets room in the document.

use serde_json::{Value, json};
use tailnet_crds::Kind;

use super::room::MAX_BYTES;
use super::tests::{BASE, ask, egress, full, ingress, owner, policy, rendered, snapshot, tailnet, with_backend};
use super::*;

#[test]
fn one_namespace_cannot_use_up_the_room_of_all() {
    let mut snapshot = full(BASE);
    with_backend(&mut snapshot, "team-c");
    let users: Vec<String> = (0..64).map(|n| format!("{}{n}@example.com", "u".repeat(200))).collect();
    for number in 0..60 {
        snapshot.upsert(
            Kind::TailnetIngress,
            ingress("team-c", &format!("i{number:02}"), json!(users)),
        );
    }
    let rendered = rendered(&snapshot, None);
    assert!(!rendered.left_out.is_empty() && rendered.left_out.len() < 60);
    assert!(
        rendered
            .left_out
            .iter()
            .all(|left| left.object.namespace.as_deref() == Some("team-c"))
    );
    assert!(rendered.text.contains("from TailnetIngress team-b/portal"));
}

#[test]
fn owners_and_comments_count_too() {
    // Each tag has all owners behind it: what a namespace fills is mostly that.
    let mut snapshot = full(BASE);
    let owners: Vec<String> = (0..50).map(|n| format!("{}{n}@example.com", "o".repeat(100))).collect();
    snapshot.upsert(
        Kind::Tailnet,
        tailnet(|spec| spec["policy"]["tagOwners"] = json!(owners)),
    );
    with_backend(&mut snapshot, "team-c");
    let without = rendered(&snapshot, None).text.len();
    for number in 0..200 {
        snapshot.upsert(
            Kind::TailnetIngress,
            ingress("team-c", &format!("i{number:03}"), json!(["ann@"])),
        );
    }
    let rendered = rendered(&snapshot, None);
    assert!(!rendered.left_out.is_empty());
    let took = rendered.text.len() - without;
    assert!((450_000..=512 * 1024).contains(&took), "{took} bytes");
    for left in &rendered.left_out {
        let tag = format!("\"tag:ingress-team-c-{}", left.object.name);
        assert!(!rendered.text.contains(&tag), "{}", left.object);
    }
}

#[test]
fn who_comes_last_is_left_out_whatever_its_name() {
    let mut snapshot = full(BASE);
    with_backend(&mut snapshot, "team-c");
    let users: Vec<String> = (0..64).map(|n| format!("{}{n}@example.com", "u".repeat(200))).collect();
    let add = |snapshot: &mut crate::Snapshot, name: &str, created: &str| {
        let mut object = ingress("team-c", name, json!(users));
        object["metadata"]["creationTimestamp"] = json!(created);
        snapshot.upsert(Kind::TailnetIngress, object);
    };
    for number in 0..30 {
        add(&mut snapshot, &format!("m{number:02}"), "2026-01-01T00:00:00Z");
    }
    let before = rendered(&snapshot, None);
    assert_eq!(before.left_out, []);
    for number in 0..10 {
        add(&mut snapshot, &format!("a{number:02}"), "2026-03-01T00:00:00Z");
    }
    let after = rendered(&snapshot, Some(&before.text));
    assert!(!after.left_out.is_empty());
    assert!(
        after.left_out.iter().all(|left| left.object.name.starts_with('a')),
        "{:?}",
        after.left_out
    );
    assert!(sources_in(&after.text).is_superset(&sources_in(&before.text)));
}

/// A base document of about this size.
fn base(bytes: usize) -> String {
    format!("{BASE}/* {} */\n", "x".repeat(bytes - BASE.len()))
}

fn add(snapshot: &mut crate::Snapshot, name: &str, created: &str) {
    let targets: Vec<Value> = (0..20)
        .map(|n| json!({ "name": format!("{name}-{n}"), "address": format!("192.0.2.{}", n + 1), "port": 1000 + n }))
        .collect();
    let mut object = egress(name, json!(targets));
    object["metadata"]["creationTimestamp"] = json!(created);
    snapshot.upsert(Kind::TailnetEgress, object);
}

#[test]
fn where_all_is_full_the_newest_are_left_out_and_nobody_is_cut_off() {
    let mut snapshot = snapshot(&base(MAX_BYTES - 20_000));
    for number in 0..5 {
        add(&mut snapshot, &format!("m{number}"), "2026-01-01T00:00:00Z");
    }
    let before = rendered(&snapshot, None);
    assert_eq!(before.left_out, []);
    for number in 0..30 {
        add(
            &mut snapshot,
            &format!("a{number:02}"),
            &format!("2026-02-01T00:00:{number:02}Z"),
        );
    }
    let after = rendered(&snapshot, Some(&before.text));
    assert!(
        after.text.len() <= MAX_BYTES && after.text.len() > MAX_BYTES - 5_000,
        "{}",
        after.text.len()
    );
    let left: Vec<&str> = after.left_out.iter().map(|left| left.object.name.as_str()).collect();
    let newest: Vec<String> = (30 - left.len()..30).map(|number| format!("a{number:02}")).collect();
    assert_eq!(left, newest, "the newest");
    assert!(!left.is_empty() && left.len() < 30);
    assert!(
        after.left_out[0].why.contains("the policy is full"),
        "{:?}",
        after.left_out[0]
    );
    assert_eq!(rendered(&snapshot, Some(&after.text)), after, "and stays as it is");
    policy(&after.text);
    // The base grows: what is in force is not cut for that.
    snapshot.set_base_document("base", Some(&base(MAX_BYTES - 1_000)));
    let error = render(&snapshot, ask(&owner(), Some(&after.text))).unwrap_err();
    assert!(matches!(error, RenderError::TooLarge { .. }), "{error}");
}
