use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_headscale::document::{Document, Policy, Posture};

use super::*;
use crate::snapshot::{Config, Snapshot};

pub(super) const BASE: &str = r#"{
  // people
  "groups": { "group:ops": ["ann@"] },
  "tagOwners": { "tag:router": ["group:ops"] },
  "grants": [
    { "src": ["group:ops"], "dst": ["*"], "ip": ["*"] },
  ],
}
"#;

pub(super) fn owner() -> Owner {
    Owner {
        installation: "uid-1".to_owned(),
        tailnet: "demo".to_owned(),
    }
}

pub(super) fn tailnet(change: impl FnOnce(&mut Value)) -> Value {
    let mut value = json!({
        "metadata": { "name": "demo", "uid": "t" },
        "spec": {
            "server": "https://control.example.net",
            "apiSecretRef": { "name": "bootstrap" },
            "policy": {
                "baseConfigMap": "base", "tagOwners": ["group:ops"], "routeApprovers": ["tag:router"],
                "ingressSourceAllowlist": ["*"],
            },
        },
    });
    change(&mut value["spec"]);
    value
}

pub(super) fn snapshot(base: &str) -> Snapshot {
    let mut snapshot = Snapshot::closed(Config::default());
    snapshot.set_services_known(true);
    snapshot.upsert(Kind::Tailnet, tailnet(|_| {}));
    snapshot.set_base_document("base", Some(base));
    snapshot
}

pub(super) fn egress(name: &str, targets: Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "tailnet-system", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "tailnetRef": { "name": "demo" }, "consumerNamespaces": ["team-a"], "targets": targets },
    })
}

pub(super) fn ingress(namespace: &str, name: &str, from: Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}") },
        "spec": { "tailnetRef": { "name": "demo" }, "allowFrom": from, "exposes": [
            { "name": "web", "port": 443, "backend": { "service": "web", "port": 80 } },
            { "name": "ssh", "port": 22, "backend": { "service": "web", "port": 22 } },
        ] },
    })
}

pub(super) fn with_backend(snapshot: &mut Snapshot, namespace: &str) {
    snapshot.upsert_service(json!({
        "metadata": { "name": "web", "namespace": namespace },
        "spec": { "selector": { "a": "b" }, "ports": [{ "port": 80 }, { "port": 22 }] },
    }));
}

pub(super) fn site(name: &str, prefixes: Value) -> Value {
    json!({ "metadata": { "name": name, "uid": name }, "spec": { "tailnetRef": { "name": "demo" }, "prefixes": prefixes } })
}

pub(super) fn full(base: &str) -> Snapshot {
    let mut snapshot = snapshot(base);
    snapshot.upsert(
        Kind::TailnetEgress,
        egress(
            "team-a",
            json!([
                { "name": "db", "address": "192.0.2.10", "port": 5432 },
                { "name": "db-ssh", "address": "192.0.2.10", "port": 22 },
                { "name": "api", "address": "198.51.100.20", "port": 443 },
                { "name": "api-2", "address": "2001:db8::20", "port": 443 },
                { "name": "named", "address": "db.site.example.net", "port": 1 },
                { "name": "node", "address": "100.64.0.9", "port": 443 },
            ]),
        ),
    );
    with_backend(&mut snapshot, "team-b");
    snapshot.upsert(
        Kind::TailnetIngress,
        ingress("team-b", "portal", json!(["group:ops", "ann@"])),
    );
    snapshot.upsert(Kind::TailnetSite, site("lab", json!(["10.20.0.0/16", "192.0.2.10/32"])));
    snapshot
}

pub(super) fn ask<'a>(owner: &'a Owner, live: Option<&'a str>) -> Ask<'a> {
    Ask {
        tailnet: "demo",
        owner: Some(owner),
        live,
        registered: None,
    }
}

pub(super) fn rendered(snapshot: &Snapshot, live: Option<&str>) -> Rendered {
    render(snapshot, ask(&owner(), live)).unwrap()
}

pub(super) fn policy(text: &str) -> Policy {
    let document = Document::parse(text).unwrap();
    assert_eq!(document.problems(), [], "{text}");
    document.policy().clone()
}

#[test]
fn everything_that_objects_need_and_nothing_else() {
    let rendered = rendered(&full(BASE), None);
    insta::assert_snapshot!(rendered.text);
    assert_eq!(rendered.left_out, []);
    assert_eq!(
        rendered.sources.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "TailnetEgress tailnet-system/team-a",
            "TailnetIngress team-b/portal",
            "TailnetSite lab"
        ]
    );
    assert_eq!(sources_in(&rendered.text), rendered.sources);
    assert_eq!(owner_of(&rendered.text), Some(owner()));
    assert_eq!(rendered.posture, Posture::Deny);
    assert_eq!(rendered.sha256, sha256_hex(&rendered.text));
}

#[test]
fn the_order_of_arrival_leaves_no_trace_and_the_live_document_none_either() {
    let first = rendered(&full(BASE), None);
    let mut other = Snapshot::closed(Config::default());
    other.set_services_known(true);
    other.upsert(Kind::TailnetSite, site("lab", json!(["10.20.0.0/16", "192.0.2.10/32"])));
    other.upsert(
        Kind::TailnetIngress,
        ingress("team-b", "portal", json!(["ann@", "group:ops"])),
    );
    with_backend(&mut other, "team-b");
    let source = full(BASE);
    let egress = source
        .get(Kind::TailnetEgress, Some("tailnet-system"), "team-a")
        .unwrap();
    other.replace(egress.as_ref().clone());
    other.set_base_document("base", Some(BASE));
    other.upsert(Kind::Tailnet, tailnet(|_| {}));
    assert_eq!(rendered(&other, Some(&first.text)).text, first.text);
}

#[test]
fn the_base_wins() {
    let base = r#"{
  "TagOwners": { "tag:egress-team-a": ["bob@"], "tag:router": [] },
  "auto-approvers": { "routes": { "2001:DB8::20/128": [], "192.0.2.10/32": ["bob@"] } },
  "groups": { "group:ops": ["ann@"] },
}"#;
    let policy = policy(&rendered(&full(base), None).text);
    assert_eq!(policy.tag_owners["tag:egress-team-a"], ["bob@"]);
    assert_eq!(policy.auto_approvers.routes["192.0.2.10/32"], ["bob@"]);
    assert!(
        !policy.auto_approvers.routes.contains_key("2001:db8::20/128"),
        "the same key in another spelling"
    );
    assert_eq!(policy.auto_approvers.routes["198.51.100.20/32"], ["tag:router"]);
}

#[test]
fn an_object_with_an_undefined_name_loses_its_own_rules_only() {
    let mut snapshot = full(BASE);
    with_backend(&mut snapshot, "team-c");
    for (name, from) in [
        ("a", "group:opps"),
        ("b", "alias"),
        ("c", "tag:nobody"),
        ("d", "autogroup:internet"),
    ] {
        snapshot.upsert(Kind::TailnetIngress, ingress("team-c", name, json!(["ann@", from])));
    }
    let rendered = rendered(&snapshot, None);
    let told: Vec<String> = rendered
        .left_out
        .iter()
        .map(|left| format!("{}: {}", left.object, left.why))
        .collect();
    for (at, start) in [
        "TailnetIngress team-c/a: group:opps is a group that the document does not define",
        "TailnetIngress team-c/b: alias is no host that the document defines",
        "TailnetIngress team-c/c: tag:nobody is a tag without an owner",
        "TailnetIngress team-c/d: autogroup:internet is no autogroup that can be a source",
    ]
    .iter()
    .enumerate()
    {
        assert!(told[at].starts_with(start), "{told:?}");
    }
    let policy = policy(&rendered.text);
    let dst: Vec<_> = policy
        .grants
        .iter()
        .flatten()
        .flat_map(|grant| grant.dst.clone())
        .collect();
    assert!(!dst.iter().any(|dst| dst.contains("team-c")), "{dst:?}");
    assert!(
        dst.iter()
            .any(|dst| dst == "tag:ingress-team-b-portal" || dst.starts_with("tag:ingress-team-b-portal-")),
        "{dst:?}"
    );
}

#[test]
fn what_a_security_rule_withdraws_is_gone_and_what_is_frozen_gets_nothing_new() {
    let mut snapshot = full(BASE);
    let before = rendered(&snapshot, None);
    // TN201: an egress in a tenant's namespace is frozen.
    let mut elsewhere = egress("other", json!([{ "name": "x", "address": "192.0.2.77", "port": 1 }]));
    elsewhere["metadata"]["namespace"] = json!("team-a");
    snapshot.upsert(Kind::TailnetEgress, elsewhere);
    let after = policy(&rendered(&snapshot, Some(&before.text)).text);
    assert!(!after.auto_approvers.routes.contains_key("192.0.2.77/32"));
    assert!(
        !after
            .grants
            .iter()
            .flatten()
            .any(|grant| grant.dst.contains(&"192.0.2.77".to_owned()))
    );
    // The same egress as before, frozen by a fault that it got: what is in force stays, the new target gets nothing.
    snapshot.upsert(
        Kind::TailnetEgress,
        egress(
            "team-a",
            json!([
                { "name": "db", "address": "192.0.2.10", "port": 5432 },
                { "name": "db-ssh", "address": "192.0.2.10", "port": 22 },
                { "name": "bad", "address": "169.254.169.254", "port": 80 },
            ]),
        ),
    );
    let frozen = policy(&rendered(&snapshot, Some(&before.text)).text);
    let dst: Vec<_> = frozen
        .grants
        .iter()
        .flatten()
        .flat_map(|grant| grant.dst.clone())
        .collect();
    assert!(dst.contains(&"192.0.2.10".to_owned()), "{dst:?}");
    assert!(!dst.contains(&"169.254.169.254".to_owned()), "{dst:?}");
    assert!(!frozen.auto_approvers.routes.contains_key("169.254.169.254/32"));
    // Withdrawn: the tag is a router's.
    let mut stolen = egress(
        "team-a",
        json!([{ "name": "db", "address": "192.0.2.10", "port": 5432 }]),
    );
    stolen["spec"]["tag"] = json!("tag:router");
    snapshot.upsert(Kind::TailnetEgress, stolen);
    let withdrawn = policy(&rendered(&snapshot, Some(&before.text)).text);
    assert!(
        !withdrawn
            .grants
            .iter()
            .flatten()
            .any(|grant| grant.dst.contains(&"192.0.2.10".to_owned()))
    );
}

#[test]
fn the_last_deletion_does_not_open_the_tailnet() {
    let base = "{ \"groups\": { \"group:ops\": [\"ann@\"] } }";
    let mut snapshot = snapshot(base);
    let none = rendered(&snapshot, None);
    assert_eq!(
        (none.posture, &none.open),
        (Posture::AllowAll, &None),
        "nobody has closed it"
    );
    snapshot.upsert(
        Kind::TailnetEgress,
        egress("a", json!([{ "name": "db", "address": "192.0.2.10", "port": 5432 }])),
    );
    let one = rendered(&snapshot, Some(&none.text));
    assert_eq!(one.posture, Posture::Deny);
    snapshot.remove(Kind::TailnetEgress, Some("tailnet-system"), "a");
    let last = rendered(&snapshot, Some(&one.text));
    assert_eq!(last.posture, Posture::Deny);
    assert_eq!(policy(&last.text).grants.as_deref(), Some(&[][..]));
    let (open, sha256) = last.open.clone().unwrap();
    assert_eq!((open.as_str(), sha256), (none.text.as_str(), none.sha256));
    assert_eq!(rendered(&snapshot, Some(&last.text)), last, "and stays as it is");
}

#[test]
fn a_tag_that_the_base_still_names_keeps_an_owner() {
    let base = r#"{ "grants": [{ "src": ["tag:egress-a"], "dst": ["*"], "ip": ["*"] }, { "src": ["tag:typo"], "dst": ["*"], "ip": ["*"] }] }"#;
    let mut snapshot = snapshot(base);
    snapshot.upsert(
        Kind::TailnetEgress,
        egress("a", json!([{ "name": "db", "address": "192.0.2.10", "port": 1 }])),
    );
    let with = rendered(&snapshot, None);
    snapshot.remove(Kind::TailnetEgress, Some("tailnet-system"), "a");
    let without = policy(&rendered(&snapshot, Some(&with.text)).text);
    assert!(without.tag_owners.contains_key("tag:egress-a"));
    assert!(
        !without.tag_owners.contains_key("tag:typo"),
        "what never was is Headscale's to refuse"
    );
}

#[test]
fn tests_wait_for_their_nodes_and_do_not_flap() {
    let base = r#"{
  "groups": { "group:ops": ["ann@"] },
  "grants": [],
  "tests": [
    { "src": "tag:ci", "deny": ["192.0.2.1:1"] },
    { "src": "192.0.2.9", "deny": ["192.0.2.1:1"] },
    { "src": "group:ops", "deny": ["192.0.2.1:1"] },
    { "src": "bob@example.com", "deny": ["192.0.2.1:1"] },
  ],
}"#;
    let snapshot = snapshot(base);
    let owner = owner();
    let render = |registered: Option<&Registered>, live: Option<&str>| {
        render(
            &snapshot,
            Ask {
                registered,
                ..ask(&owner, live)
            },
        )
        .unwrap()
    };
    let nobody = Registered::default();
    let fresh = render(Some(&nobody), None);
    assert_eq!(
        fresh.waiting,
        [
            "tests[0] waits until a node has tag:ci",
            "tests[2] waits until a node has group:ops"
        ]
    );
    assert_eq!(policy(&fresh.text).tests.len(), 2);
    assert_eq!(render(None, None).waiting, [""; 0], "nothing is set aside on a guess");
    let all = Registered {
        tags: ["tag:ci".to_owned()].into(),
        users: ["ann".to_owned()].into(),
        knows_emails: false,
    };
    let complete = render(Some(&all), Some(&fresh.text));
    assert_eq!(policy(&complete.text).tests.len(), 4);
    // The node goes: no new policy for that alone.
    assert_eq!(render(Some(&nobody), Some(&complete.text)).text, complete.text);
    // Something else changes: now the tests would keep everybody out.
    assert_eq!(render(Some(&nobody), Some("{}")).text, fresh.text);
    let emails = Registered {
        knows_emails: true,
        ..all
    };
    assert_eq!(
        render(Some(&emails), None).waiting,
        ["tests[3] waits until a node has bob@example.com"]
    );
}

#[test]
fn nothing_can_be_smuggled_in_through_names() {
    let mut snapshot = full(BASE);
    let evil = "x\n] , \"acls\": [{\"action\":\"accept\",\"src\":[\"*\"],\"dst\":[\"*:*\"]}], \"y\": [\"*/";
    let mut object = egress(evil, json!([{ "name": evil, "address": "192.0.2.66", "port": 1 }]));
    object["spec"]["tag"] = json!("tag:egress-evil");
    snapshot.upsert(Kind::TailnetEgress, object);
    let mut object = site(evil, json!(["10.99.0.0/16"]));
    object["spec"]["description"] = json!(evil);
    object["spec"]["owner"] = json!(evil);
    snapshot.upsert(Kind::TailnetSite, object);
    with_backend(&mut snapshot, "team-d");
    snapshot.upsert(Kind::TailnetIngress, ingress("team-d", "a", json!([evil, "ann@"])));
    let text = rendered(&snapshot, None).text;
    let policy = policy(&text);
    assert_eq!(policy.acls, None, "{text}");
    assert!(
        !policy
            .grants
            .iter()
            .flatten()
            .any(|grant| grant.src.iter().any(|src| src.contains("acls")))
    );
}

#[test]
fn why_names_the_rule_and_its_origin() {
    let text = rendered(&full(BASE), None).text;
    let ask = |src: &str, dst: &str| -> Vec<String> {
        why(&text, &Question::new(src, dst).unwrap())
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    let told = ask("tag:egress-team-a", "192.0.2.10:5432");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("allowed by grants["), "{told:?}");
    assert!(
        told[0].ends_with("generated for TailnetEgress tailnet-system/team-a"),
        "{told:?}"
    );
    let line: usize = told[0]
        .split("line ")
        .nth(1)
        .unwrap()
        .split(')')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(text.lines().nth(line - 1).unwrap().contains("192.0.2.10"), "{told:?}");
    assert_eq!(ask("tag:egress-team-a", "192.0.2.10:443"), [""; 0]);
    let told = ask("ann@", "192.0.2.10:443");
    assert!(
        told[0].starts_with("allowed by grants[0]") && told[0].ends_with("written in the base document"),
        "{told:?}"
    );
    assert!(Question::new("a@", "192.0.2.1").is_err() && Question::new("a@", "tag:web").is_err());
    let open = why("{}", &Question::new("a@", "[2001:db8::1]:1").unwrap()).unwrap();
    assert!(open[0].to_string().contains("neither acls nor grants"), "{}", open[0]);
}

#[test]
fn what_others_have_to_add_is_text_to_paste() {
    let snapshot = full(BASE);
    let tailnet = tailnet(|spec| {
        spec.as_object_mut().unwrap().remove("policy");
    });
    let tailnet = crate::Object::parse(Kind::Tailnet, &tailnet);
    let live = policy(
        r#"{ "tagOwners": { "tag:router": [] }, "autoApprovers": { "routes": { "10.0.0.0/8": ["tag:branch"] } }, "grants": [] }"#,
    );
    let paste = |kind, namespace: Option<&str>, name| {
        let object = snapshot.get(kind, namespace, name).unwrap();
        missing_entries(object, tailnet.tailnet().unwrap(), &snapshot, &live).to_string()
    };
    assert_eq!(
        paste(Kind::TailnetEgress, Some("tailnet-system"), "team-a"),
        r#""tagOwners": { "tag:egress-team-a": [] }; "grants": [ { "src": ["tag:egress-team-a"], "dst": ["192.0.2.10"], "ip": ["tcp:22", "tcp:5432"] }, { "src": ["tag:egress-team-a"], "dst": ["100.64.0.9", "198.51.100.20", "2001:db8::20"], "ip": ["tcp:443"] } ]"#
    );
    let mut branch = site("branch", json!(["10.30.0.0/16", "192.168.7.0/24"]));
    branch["spec"]["advertisedBy"] = json!(["tag:branch"]);
    let branch = crate::Object::parse(Kind::TailnetSite, &branch);
    assert_eq!(
        missing_entries(&branch, tailnet.tailnet().unwrap(), &snapshot, &live).to_string(),
        r#""tagOwners": { "tag:branch": [] }; "autoApprovers": { "routes": { "192.168.7.0/24": ["tag:branch"] } }"#
    );
}

#[test]
fn without_a_usable_base_nothing_is_rendered() {
    let ask = |snapshot: &Snapshot| render(snapshot, ask(&owner(), None)).unwrap_err().to_string();
    let mut snapshot = full(BASE);
    snapshot.set_base_document("base", None);
    assert_eq!(
        ask(&snapshot),
        "there is no ConfigMap base with the key policy.hujson in namespace tailnet-system"
    );
    snapshot.set_base_document("base", Some("{ \"grants\": [ }"));
    assert!(ask(&snapshot).starts_with("ConfigMap base, key policy.hujson: is no HuJSON: line 1, column 15"));
    snapshot.set_base_document("base", Some("{ \"grants\": [], \"Grants\": [] }"));
    assert!(ask(&snapshot).contains("the key is there twice"));
    snapshot.upsert(
        Kind::Tailnet,
        tailnet(|spec| {
            spec.as_object_mut().unwrap().remove("policy");
        }),
    );
    assert_eq!(ask(&snapshot), "Tailnet demo has no spec.policy");
    // A key that this version does not know passes; Headscale decides.
    let mut snapshot = full("{ \"postures\": { \"a\": 1 } }");
    snapshot.set_base_document("base", Some("{ \"postures\": { \"a\": 1 } }"));
    assert!(rendered(&snapshot, None).text.contains("\"postures\": { \"a\": 1 }"));
}

#[test]
fn two_thousand_egresses_fit_and_are_quick() {
    let mut snapshot = snapshot(BASE);
    for number in 0..2000_u32 {
        let targets: Vec<Value> = (0..5)
            .map(|target| {
                let address = format!("10.{}.{}.{}", number / 250, number % 250, target + 1);
                json!({ "name": format!("e{number}-t{target}"), "address": address, "port": 5000 + target })
            })
            .collect();
        snapshot.upsert(
            Kind::TailnetEgress,
            egress(&format!("egress-{number:04}"), json!(targets)),
        );
    }
    let start = std::time::Instant::now();
    let rendered = rendered(&snapshot, None);
    println!(
        "2,000 egresses with 5 targets: {} bytes in {:?}",
        rendered.text.len(),
        start.elapsed()
    );
    assert_eq!(rendered.sources.len(), 2000);
    assert!(rendered.text.len() < MAX_BYTES, "{}", rendered.text.len());
    assert_eq!(policy(&rendered.text).grants.unwrap().len(), 10_001);
}
