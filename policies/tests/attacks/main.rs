//! Attempts to walk around the security rules: in steps, by spelling, by what was there before, by status, finalizers and announced
//! renames. A small world plays the API server (webhook, then store), the operator (record, then guard) and the garbage collector.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod site_owner;
mod status_writer;
mod tenant;
mod walks;
mod world;

use serde_json::json;
use tailnet_crds::Kind;
use tailnet_policies::Severity;

use world::{World, ingress, site, tailnet, with};

#[test]
fn the_world_lets_right_objects_in() {
    let mut world = World::new(tailnet());
    assert!(world.ask(
        Kind::TailnetIngress,
        with(ingress("team-a", "x", "a"), "/spec/tag", json!("tag:granted"))
    ));
    assert!(world.ask(Kind::TailnetIngress, ingress("team-b", "x", "b")));
    assert!(world.ask(Kind::TailnetSite, site("s", &["192.0.2.0/24"])));
    assert_eq!(world.effective().len(), 3);
    let outcome = world.verdict(Kind::TailnetIngress, &ingress("team-c", "x", "c"));
    assert!(
        outcome
            .findings
            .iter()
            .all(|finding| finding.severity == Severity::Warn),
        "{outcome:?}"
    );
}
