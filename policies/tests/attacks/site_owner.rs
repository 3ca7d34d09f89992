//! Whoever writes sites: networks of others and what is reserved.

use serde_json::json;
use tailnet_crds::Kind;

use crate::world::{OPERATOR, World, site, tailnet, with};

#[test]
fn a_site_does_not_grow_into_another_or_into_what_is_reserved() {
    let kind = Kind::TailnetSite;
    let mut world = World::new(tailnet());
    assert!(world.ask(kind, site("a", &["10.0.0.0/24"])));
    assert!(world.ask(kind, site("b", &["10.0.1.0/24"])));
    for prefixes in [
        &["10.0.0.0/23"][..],
        &["10.0.0.0/24", "10.0.1.7/32"],
        &["10.0.0.0/24", "10.0.1.0/25"],
        &["10.0.0.0/24", "10.96.0.0/16"],
        &["10.0.0.0/24", "10.64.0.0/10"],
        &["10.0.0.0/24", "::ffff:10.0.1.0/120"],
        &["10.0.0.0/24", "010.0.1.0/24"],
        &["10.0.0.0/24", "10.0.1.1/24"],
    ] {
        assert!(!world.ask(kind, site("a", prefixes)), "{prefixes:?}");
    }
    // Nothing in between gives it: empty out, fill up.
    assert!(world.ask(kind, site("a", &["192.0.2.0/24"])));
    assert!(!world.ask(kind, site("a", &["10.0.0.0/23"])));
    assert!(world.ask(kind, site("c", &["10.0.0.0/24"])));
    assert!(
        !world.ask(kind, site("a", &["10.0.0.0/24"])),
        "the former owner came back"
    );
    // Past the webhook it has no effect.
    world.force(kind, site("a", &["10.0.0.0/22"]));
    assert!(!world.has_effect(&(kind, None, "a".into())));
    assert!(world.has_effect(&(kind, None, "b".into())) && world.has_effect(&(kind, None, "c".into())));
}

#[test]
fn who_is_made_a_router_late_takes_no_tag_of_an_incumbent() {
    let mut world = World::new(tailnet());
    assert!(world.ask(Kind::TailnetSite, site("old", &["192.0.2.0/24"])));
    let egress = json!({ "metadata": { "name": "e", "namespace": OPERATOR }, "spec": {
        "tailnetRef": { "name": "corp" }, "tag": "tag:mine", "consumerNamespaces": ["a"],
        "targets": [{ "name": "t", "address": "192.0.2.1", "port": 1 }],
    } });
    let of_egress = (Kind::TailnetEgress, Some(OPERATOR.to_owned()), "e".to_owned());
    assert!(world.ask(Kind::TailnetEgress, egress));
    let routed = with(
        site("old", &["192.0.2.0/24"]),
        "/spec/advertisedBy",
        json!(["tag:mine"]),
    );
    assert!(!world.ask(Kind::TailnetSite, routed.clone()));
    world.force(Kind::TailnetSite, routed);
    assert!(world.has_effect(&of_egress), "the egress was there first");
    assert!(!world.has_effect(&(Kind::TailnetSite, None, "old".to_owned())));
    // Who holds a router's tag since before loses it to nobody who comes with it.
    world.delete(&of_egress, false);
    assert!(world.has_effect(&(Kind::TailnetSite, None, "old".to_owned())));
}
