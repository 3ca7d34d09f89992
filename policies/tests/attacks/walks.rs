//! All parties at once, in random walks: two tenants and an administrator, over few names, also past the webhook.

use std::collections::BTreeMap;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::{Object, names};

use crate::world::{Key, OPERATOR, World, ingress, key, site, tailnet, with};

/// Steps of two tenants and an administrator over few names, so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Ask(Kind, Value),
    Force(Kind, Value),
    Delete(usize, bool),
}

fn objects() -> impl Strategy<Value = (Kind, Value)> {
    let namespaces = prop::sample::select(vec!["team-a", "team-b", OPERATOR]);
    let label = prop::sample::select(vec!["one", "two", "Two", "three", "vault"]);
    let tag = prop::option::weighted(
        0.4,
        prop::sample::select(vec!["tag:one", "tag:two", "tag:TWO", "tag:granted", "tag:router"]),
    );
    let source = prop::sample::select(vec!["group:a", "10.1.0.0/16", "::ffff:10.1.0.0/112", "*", "bob@"]);
    let takes_over = prop::option::weighted(
        0.3,
        prop::sample::select(vec![
            "TailnetIngress/team-a/x",
            "TailnetIngress/team-b/y",
            "TailnetEgress/tailnet-system/x",
            "TailnetSite/x",
        ]),
    );
    let name = prop::sample::select(vec!["x", "y", "z"]);
    let prefix = prop::sample::select(vec![
        "10.0.0.0/24",
        "10.0.0.0/23",
        "10.0.1.0/24",
        "10.0.1.128/25",
        "10.96.0.0/16",
        "010.0.0.0/24",
        "fd00::/64",
    ]);
    (0..3u8, namespaces, label, tag, source, takes_over, name, prefix, any::<bool>()).prop_map(
        |(kind, namespace, label, tag, source, takes_over, name, prefix, more)| {
            let (kind, mut object) = match kind {
                0 => {
                    let mut object = with(ingress(namespace, name, label), "/spec/allowFrom", json!([source]));
                    object["spec"]["exposes"][0]["alias"] = json!(more);
                    (Kind::TailnetIngress, object)
                }
                1 => {
                    let aliases = if more { vec![format!("{label}.example.net")] } else { Vec::new() };
                    let object = json!({ "metadata": { "name": name, "namespace": OPERATOR }, "spec": {
                        "tailnetRef": { "name": "corp" }, "consumerNamespaces": ["a"],
                        "targets": [{ "name": label.to_lowercase(), "address": "192.0.2.1", "port": 1, "aliases": aliases }],
                    } });
                    (Kind::TailnetEgress, object)
                }
                _ => (Kind::TailnetSite, site(name, &[prefix])),
            };
            if let Some(tag) = tag {
                match kind {
                    Kind::TailnetSite => object["spec"]["advertisedBy"] = json!([tag]),
                    _ => object["spec"]["tag"] = json!(tag),
                }
            }
            if let Some(of) = takes_over {
                object["metadata"]["annotations"] = json!({ "tsunaro.io/takes-over": of });
            }
            (kind, object)
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => objects().prop_map(|(kind, object)| Step::Ask(kind, object)),
        2 => objects().prop_map(|(kind, object)| Step::Force(kind, object)),
        2 => (0..8usize, any::<bool>()).prop_map(|(at, held)| Step::Delete(at, held)),
    ];
    prop::collection::vec(step, 1..30)
}

/// What an object with effect has for itself.
fn holdings(key: &Key, world: &World) -> Vec<String> {
    let object = Object::parse(key.0, &world.stored[key]);
    let corp = world.snapshot.get(Kind::Tailnet, None, "corp").unwrap();
    let spec = corp.tailnet().unwrap();
    let mut all: Vec<String> = names::tag_of(&object, Some(spec)).into_iter().collect();
    all.extend(
        names::hostnames_of(&object, Some(spec))
            .into_iter()
            .map(|name| format!("node {name}")),
    );
    all.extend(
        names::published(&object, spec)
            .into_iter()
            .map(|published| format!("name {}", published.name)),
    );
    if let Some(egress) = object.egress() {
        for target in &egress.targets {
            all.push(format!("service {}", target.name));
            all.extend(target.aliases.iter().map(|alias| format!("name {alias}")));
        }
    }
    all.sort();
    all.dedup();
    all
}

fn prefixes(key: &Key, world: &World) -> Vec<IpNet> {
    let prefixes = world.stored[key]
        .pointer("/spec/prefixes")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    prefixes
        .iter()
        .map(|prefix| prefix.as_str().unwrap().parse().unwrap())
        .collect()
}

/// A case that failed is kept beside this file.
fn config() -> ProptestConfig {
    let long = std::env::var_os("TAILNET_LONG_TESTS").is_some();
    ProptestConfig {
        cases: if long { 1500 } else { 40 },
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever anybody does in whatever order, also past the webhook: nothing with effect breaks a security rule, no two
    /// share anything, and nobody loses what he has by what another one writes.
    #[test]
    fn nobody_takes_anything_from_anybody(steps in steps()) {
        let mut world = World::new(tailnet());
        for step in steps {
            let before = world.effective();
            let touched = match &step {
                Step::Ask(kind, object) | Step::Force(kind, object) => Some(key(*kind, object)),
                Step::Delete(at, _) => world.stored.keys().filter(|key| key.0 != Kind::Tailnet).nth(*at).cloned(),
            };
            match step.clone() {
                Step::Ask(kind, object) => {
                    world.ask(kind, object);
                }
                Step::Force(kind, object) => world.force(kind, object),
                Step::Delete(_, held) => {
                    if let Some(key) = &touched {
                        world.delete(key, held);
                    }
                }
            }
            let effective = world.effective();
            for key in &before {
                let own = touched.as_ref() == Some(key);
                prop_assert!(own || effective.contains(key), "{key:?} lost by {step:?}");
            }
            let mut seen: BTreeMap<String, &Key> = BTreeMap::new();
            for key in &effective {
                for holding in holdings(key, &world) {
                    if let Some(other) = seen.insert(holding.clone(), key) {
                        prop_assert!(false, "{holding} is of {other:?} and {key:?} after {step:?}");
                    }
                }
                let reserved: IpNet = "10.96.0.0/12".parse().unwrap();
                for own in prefixes(key, &world) {
                    prop_assert!(!own.contains(&reserved) && !reserved.contains(&own));
                    for other in effective.iter().filter(|other| *other != key).flat_map(|other| prefixes(other, &world)) {
                        prop_assert!(!own.contains(&other) && !other.contains(&own), "{own} and {other}");
                    }
                }
                if key.0 == Kind::TailnetIngress && key.1.as_deref() != Some(OPERATOR) {
                    let object = &world.stored[key];
                    let tag = object.pointer("/spec/tag").and_then(Value::as_str).unwrap_or("tag:ingress-");
                    let granted = key.1.as_deref() == Some("team-a") && tag == "tag:granted";
                    prop_assert!(granted || tag.starts_with("tag:ingress-"), "{object}");
                }
                if key.0 == Kind::TailnetIngress {
                    let sources = world.stored[key].pointer("/spec/allowFrom").and_then(Value::as_array).unwrap();
                    prop_assert!(sources.iter().all(|source| source == "group:a" || source == "10.1.0.0/16"), "{sources:?}");
                }
            }
        }
    }
}
