//! What the rules' verdict leaves an object in the document.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_headscale::document::Policy;

use super::tests::{BASE, egress, full, ingress, policy, rendered, site, snapshot, tailnet};
use super::*;
use crate::organisation;
use crate::snapshot::Snapshot;

/// `(src, dst, port)` of all grants.
fn reach(policy: &Policy) -> Vec<String> {
    let mut found = Vec::new();
    for grant in policy.grants.iter().flatten() {
        for (src, dst) in grant
            .src
            .iter()
            .flat_map(|src| grant.dst.iter().map(move |dst| (src, dst)))
        {
            found.extend(grant.ip.iter().map(|ip| format!("{src} {dst} {ip}")));
        }
    }
    found.sort();
    found
}

fn reaches(text: &str, what: &str) -> bool {
    reach(&policy(text)).contains(&what.to_owned())
}

fn target(name: &str, address: &str, port: u16) -> Value {
    json!({ "name": name, "address": address, "port": port })
}

/// Two egresses, a and b, the second of which has the Service `web`.
fn two() -> Snapshot {
    let mut snapshot = snapshot(BASE);
    let a = egress("a", json!([target("db", "192.0.2.10", 5432)]));
    snapshot.upsert(Kind::TailnetEgress, a);
    let b = egress("b", json!([target("web", "192.0.2.20", 443)]));
    snapshot.upsert(Kind::TailnetEgress, b);
    snapshot
}

/// The first egress as somebody changed it: younger, so that it loses what both want.
fn changed(targets: Value) -> Value {
    let mut a = egress("a", targets);
    a["metadata"]["creationTimestamp"] = json!("2026-02-01T00:00:00Z");
    a
}

fn org_policy(snapshot: &mut Snapshot, resource: &str, expression: &str) {
    let text = format!(
        "matchConstraints:\n  resourceRules:\n    - resources: [{resource}]\nvalidations:\n  - expression: {expression}\n"
    );
    let data = BTreeMap::from([("policy.yaml".to_owned(), text)]);
    let standing = organisation::standing("org", &data);
    assert!(standing.is_ok(), "{standing:?}");
    snapshot.set_policy("org", Some(Arc::new(standing)));
}

#[test]
fn a_port_more_with_somebody_elses_name_costs_no_port_that_is_in_force() {
    let mut snapshot = two();
    let before = rendered(&snapshot, None);
    // The same address gets a second port, under the name of a Service that b has.
    let both = json!([target("db", "192.0.2.10", 5432), target("web", "192.0.2.10", 443)]);
    snapshot.upsert(Kind::TailnetEgress, changed(both));
    assert_eq!(rendered(&snapshot, Some(&before.text)).text, before.text);
    // Without a live policy nothing is in force.
    let unknown = rendered(&snapshot, None).text;
    assert!(!reaches(&unknown, "tag:egress-a 192.0.2.10 tcp:5432"), "{unknown}");
    // Two addresses shared a rule; one of them goes from the spec, and the other gets a port.
    let mut snapshot = two();
    let a = json!([target("db", "192.0.2.10", 5432), target("db-2", "192.0.2.11", 5432)]);
    snapshot.upsert(Kind::TailnetEgress, egress("a", a));
    let before = rendered(&snapshot, None);
    let one = json!([target("db-2", "192.0.2.11", 5432), target("web", "192.0.2.11", 443)]);
    snapshot.upsert(Kind::TailnetEgress, changed(one));
    assert_eq!(
        rendered(&snapshot, Some(&before.text)).text,
        before.text,
        "what runs was made for both"
    );
}

#[test]
fn what_runs_was_made_for_the_former_spec() {
    let mut snapshot = two();
    let before = rendered(&snapshot, None);
    let moved = json!([target("db", "192.0.2.99", 5432), target("web", "192.0.2.99", 443)]);
    snapshot.upsert(Kind::TailnetEgress, changed(moved.clone()));
    let frozen = rendered(&snapshot, Some(&before.text));
    assert_eq!(frozen.text, before.text);
    // It is put right: now the new spec holds.
    let right = egress("a", json!([target("db", "192.0.2.99", 5432)]));
    snapshot.upsert(Kind::TailnetEgress, right);
    let after = rendered(&snapshot, Some(&frozen.text)).text;
    assert!(reaches(&after, "tag:egress-a 192.0.2.99 tcp:5432"), "{after}");
    assert!(
        !after.contains("192.0.2.10/32") && !after.contains("\"192.0.2.10\""),
        "{after}"
    );

    // The former tag is in force too, unless it has become somebody else's.
    let mut other_tag = changed(moved);
    other_tag["spec"]["tag"] = json!("tag:renamed");
    snapshot.upsert(Kind::TailnetEgress, other_tag);
    let renamed = rendered(&snapshot, Some(&before.text)).text;
    assert!(reaches(&renamed, "tag:egress-a 192.0.2.10 tcp:5432"), "{renamed}");
    assert!(policy(&renamed).tag_owners.contains_key("tag:egress-a"), "{renamed}");
    let mut taker = egress("c", json!([target("c", "192.0.2.30", 1)]));
    taker["spec"]["tag"] = json!("tag:egress-a");
    snapshot.upsert(Kind::TailnetEgress, taker);
    let taken = rendered(&snapshot, Some(&before.text)).text;
    assert!(reaches(&taken, "tag:egress-a 192.0.2.30 tcp:1"), "{taken}");
    assert!(!reaches(&taken, "tag:egress-a 192.0.2.10 tcp:5432"), "{taken}");
}

#[test]
fn an_ingress_and_a_site_keep_what_is_in_force_too() {
    let mut snapshot = full(BASE);
    let before = rendered(&snapshot, None);
    org_policy(&mut snapshot, "'*'", "object.metadata.?labels[?'ok'].hasValue()");
    assert_eq!(rendered(&snapshot, Some(&before.text)).text, before.text, "they exist");
    let mut portal = ingress("team-b", "portal", json!(["group:ops", "tag:router"]));
    portal["spec"]["exposes"][1]["port"] = json!(23);
    snapshot.upsert(Kind::TailnetIngress, portal);
    snapshot.upsert(Kind::TailnetSite, site("lab", json!(["10.21.0.0/16"])));
    let after = rendered(&snapshot, Some(&before.text)).text;
    assert_eq!(after, before.text);
    // A name that nobody defines any more would make Headscale refuse everything.
    let without_group = BASE
        .replace("\"groups\": { \"group:ops\": [\"ann@\"] },", "")
        .replace("group:ops", "eve@");
    snapshot.set_base_document("base", Some(&without_group));
    let lost = rendered(&snapshot, Some(&before.text));
    assert!(
        lost.left_out.iter().any(|left| left.why.contains("group:ops")),
        "{:?}",
        lost.left_out
    );
    assert!(!lost.text.contains("group:ops"), "{}", lost.text);
    assert!(
        reach(&policy(&lost.text))
            .iter()
            .any(|reach| reach.starts_with("ann@ ") && reach.ends_with("tcp:443")),
        "{}",
        lost.text
    );
    // The former prefix of a site is another one's now.
    snapshot.set_base_document("base", Some(BASE));
    let mut other = site("other", json!(["10.20.0.0/16"]));
    other["metadata"]["labels"] = json!({ "ok": "" });
    other["spec"]["advertisedBy"] = json!(["tag:branch"]);
    snapshot.upsert(Kind::TailnetSite, other);
    let routes = policy(&rendered(&snapshot, Some(&before.text)).text)
        .auto_approvers
        .routes;
    assert!(!routes.contains_key("10.20.0.0/16"), "{routes:?}");
}

#[test]
fn what_a_security_rule_is_against_now_is_not_kept() {
    let mut snapshot = full(BASE);
    let before = rendered(&snapshot, None).text;
    org_policy(&mut snapshot, "'*'", "object.metadata.?labels[?'ok'].hasValue()");
    let portal = ingress("team-b", "portal", json!(["ann@"]));
    snapshot.upsert(Kind::TailnetIngress, portal);
    snapshot.upsert(Kind::TailnetSite, site("lab", json!(["10.21.0.0/16"])));
    let sources = |text: &str| -> Vec<String> {
        let all = reach(&policy(text)).into_iter();
        let portal = all.filter(|reach| reach.contains("portal") && reach.ends_with("tcp:443"));
        portal
            .map(|reach| reach.split(' ').next().unwrap().to_owned())
            .collect()
    };
    let kept = rendered(&snapshot, Some(&before)).text;
    assert_eq!(sources(&kept), ["ann@", "group:ops"], "{kept}");
    // The administrator takes the group from the allowlist (TN301), and reserves the network (TN402).
    let narrower = tailnet(|spec| {
        spec["policy"]["ingressSourceAllowlist"] = json!(["ann@"]);
        spec["reservedNetworks"] = json!(["10.20.0.0/16"]);
    });
    snapshot.upsert(Kind::Tailnet, narrower);
    let text = rendered(&snapshot, Some(&before)).text;
    assert_eq!(sources(&text), ["ann@"], "{text}");
    let routes = policy(&text).auto_approvers.routes;
    assert!(!routes.contains_key("10.20.0.0/16"), "{text}");
}

#[test]
fn a_policy_of_the_organisation_lets_nothing_new_in() {
    let mut snapshot = full(BASE);
    let before = rendered(&snapshot, None);
    // The existing ones break it as well: what runs goes on.
    org_policy(
        &mut snapshot,
        "tailnetegresses, tailnetsites",
        "object.metadata.?labels[?'ok'].hasValue()",
    );
    let refused = egress("new", json!([target("new", "192.0.2.77", 77)]));
    snapshot.upsert(Kind::TailnetEgress, refused);
    snapshot.upsert(Kind::TailnetSite, site("new", json!(["10.77.0.0/16"])));
    let text = rendered(&snapshot, Some(&before.text)).text;
    assert!(!reaches(&text, "tag:egress-new 192.0.2.77 tcp:77"), "{text}");
    let routes = policy(&text).auto_approvers.routes;
    assert!(
        !routes.contains_key("192.0.2.77/32") && !routes.contains_key("10.77.0.0/16"),
        "{text}"
    );
    assert_eq!(
        reach(&policy(&text)),
        reach(&policy(&before.text)),
        "who is in force stays in force"
    );
    let mut allowed = egress("new", json!([target("new", "192.0.2.77", 77)]));
    allowed["metadata"]["labels"] = json!({ "ok": "" });
    snapshot.upsert(Kind::TailnetEgress, allowed);
    let text = rendered(&snapshot, Some(&before.text)).text;
    assert!(reaches(&text, "tag:egress-new 192.0.2.77 tcp:77"), "{text}");
}

fn gateway() -> Value {
    json!({
        "metadata": { "name": "gw", "uid": "gw", "creationTimestamp": "2025-01-01T00:00:00Z" },
        "spec": {
            "suspend": false, "tailnetRef": { "name": "demo" }, "hostname": "gw", "tags": ["tag:router"],
            "stateSecretRef": { "name": "gw-state" }, "image": "ghcr.io/tailscale/tailscale:v1.102.4",
            "routes": { "lan": ["203.0.113.0/24"], "advertiseEgressTargets": true },
            "service": { "loadBalancerIP": "198.51.100.17", "tailnetLBCIDR": "198.51.100.0/24" },
            "dns": {
                "zone": "prod-1.tailnet.example.internal", "serviceName": "gw-dns", "serviceClusterIP": "10.96.0.54",
                "image": "docker.io/coredns/coredns:1.14.7",
            },
        },
    })
}

#[test]
fn a_gateway_is_approved_for_no_egress_that_is_refused() {
    let mut snapshot = two();
    snapshot.upsert(Kind::TailnetGateway, gateway());
    let before = rendered(&snapshot, None).text;
    let approved = |text: &str| -> Vec<String> {
        let lines: Vec<&str> = text.lines().collect();
        let by_gateway = lines.iter().enumerate().filter(|(_, line)| line.contains("/32\": ["));
        let named = by_gateway.filter(|(at, _)| {
            lines[..*at]
                .iter()
                .rev()
                .find(|line| line.contains("// from"))
                .unwrap()
                .contains("TailnetGateway gw")
        });
        named
            .map(|(_, line)| line.trim().split('"').nth(1).unwrap().to_owned())
            .collect()
    };
    assert_eq!(approved(&before), ["192.0.2.10/32", "192.0.2.20/32"], "{before}");
    // Withdrawn: its tag is a router's.
    let mut stolen = egress("stolen", json!([target("stolen", "192.0.2.66", 1)]));
    stolen["spec"]["tag"] = json!("tag:router");
    snapshot.upsert(Kind::TailnetEgress, stolen);
    // Frozen and new: TN201.
    let mut elsewhere = egress("elsewhere", json!([target("x", "192.0.2.67", 1)]));
    elsewhere["metadata"]["namespace"] = json!("team-a");
    snapshot.upsert(Kind::TailnetEgress, elsewhere);
    // A node's own address is no route.
    let node = egress("node", json!([target("node", "100.64.0.9", 1)]));
    snapshot.upsert(Kind::TailnetEgress, node);
    // Frozen and in force: what is in force.
    let moved = json!([target("db", "192.0.2.99", 5432), target("web", "192.0.2.99", 443)]);
    snapshot.upsert(Kind::TailnetEgress, changed(moved));
    let after = rendered(&snapshot, Some(&before)).text;
    assert_eq!(approved(&after), ["192.0.2.10/32", "192.0.2.20/32"], "{after}");
    assert!(
        !policy(&after).auto_approvers.routes.contains_key("100.64.0.9/32"),
        "{after}"
    );

    // The same where others write the policy.
    let spec = crate::Object::parse(Kind::Tailnet, &tailnet(|_| {}));
    let gateway = snapshot.get(Kind::TailnetGateway, None, "gw").unwrap();
    let live = policy("{ \"grants\": [] }");
    let paste = missing_entries(gateway, spec.tailnet().unwrap(), &snapshot, &live);
    let named = |address: &str| paste.routes.iter().any(|route| route.contains(address));
    assert!(
        named("192.0.2.20/32") && !named("192.0.2.66") && !named("192.0.2.67") && !named("192.0.2.99"),
        "{paste}"
    );
}

#[test]
fn a_live_policy_that_cannot_be_read_is_no_reason_to_write() {
    let snapshot = full(BASE);
    let owner = super::tests::owner();
    for (live, told) in [
        ("{ \"grants\": [ }", "line 1, column 15"),
        ("\u{feff}{ \"grants\": [] }", "line 1"),
        ("{ \"grants\": [], \"Grants\": [{}] }", "the key is there twice"),
        ("{ \"grants\": {} }", "must be a list"),
    ] {
        let error = render(&snapshot, super::tests::ask(&owner, Some(live))).unwrap_err();
        assert!(matches!(error, RenderError::LiveUnreadable { .. }), "{error:?}");
        let error = error.to_string();
        assert!(
            error.contains(told) && error.contains("headscale policy set"),
            "{error}"
        );
    }
    // A key of a newer Headscale, and a document that holds nothing, are no faults.
    for live in ["{ \"grants\": [], \"newKey\": 1 }", "// nothing\n", "null"] {
        render(&snapshot, super::tests::ask(&owner, Some(live))).unwrap();
    }
}

#[test]
fn a_comment_of_people_gives_an_object_nothing() {
    let base = r#"{
  "groups": { "group:ops": ["ann@"] },
  "grants": [
    // from TailnetEgress tailnet-system/a
    { "src": ["group:ops"], "dst": ["203.0.113.1"], "ip": ["tcp:1"] },
    { "src": ["tag:egress-b"], "dst": ["203.0.113.2"], "ip": ["tcp:2"] },
    { "src": ["tag:egress-a"], "dst": ["203.0.113.3"], "ip": ["*"] },
  ],
}"#;
    let mut snapshot = two();
    snapshot.set_base_document("base", Some(base));
    let before = rendered(&snapshot, None).text;
    let both = json!([target("db", "192.0.2.10", 5432), target("web", "192.0.2.10", 443)]);
    snapshot.upsert(Kind::TailnetEgress, changed(both));
    snapshot.set_base_document("base", Some(BASE));
    let after = rendered(&snapshot, Some(&before)).text;
    assert!(!after.contains("203.0.113."), "{after}");
    assert!(reaches(&after, "tag:egress-a 192.0.2.10 tcp:5432"), "{after}");
}

#[test]
fn policies_of_the_organisation_cost_little_where_all_is_in_force() {
    let mut snapshot = snapshot(BASE);
    for number in 0..2000 {
        let address = format!("10.{}.{}.", number / 250, number % 250);
        let targets: Vec<Value> = (1..=5)
            .map(|n| target(&format!("e{number}-{n}"), &format!("{address}{n}"), 5000 + n))
            .collect();
        snapshot.upsert(
            Kind::TailnetEgress,
            egress(&format!("egress-{number:04}"), json!(targets)),
        );
    }
    let timed = |snapshot: &Snapshot, live: Option<&str>| {
        let start = std::time::Instant::now();
        let text = rendered(snapshot, live).text;
        (text, start.elapsed())
    };
    let (text, without) = timed(&snapshot, None);
    // Each time it is asked it sees all others.
    org_policy(
        &mut snapshot,
        "tailnetegresses",
        "others.all(o, o.metadata.name != object.metadata.name)",
    );
    let (again, with) = timed(&snapshot, Some(&text));
    println!("2,000 egresses with 5 targets: {without:?} without policies, {with:?} with one, all in force");
    assert_eq!(again, text);
    assert!(with < without * 6, "{without:?} without policies, {with:?} with one");
}
