//! A tenant, who may write ingresses in its own namespaces: in steps, by spelling, by what was there before, by finalizers, by
//! namespaces made anew and by announced renames.

use ipnet::IpNet;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_crds::types::Principal;
use tailnet_policies::names;

use crate::world::{OPERATOR, World, ingress, of_ingress, tailnet, with};

#[test]
fn a_foreign_tag_is_not_taken_in_steps() {
    let kind = Kind::TailnetIngress;
    let plain = || ingress("team-b", "x", "b");
    let mut world = World::new(tailnet());
    for tag in [
        "tag:router",
        "tag:granted",
        "TAG:granted",
        "tag:Router",
        " tag:router",
        "tag:egress-a",
        "tag:ingress-team-a-x",
    ] {
        assert!(
            !world.ask(kind, with(plain(), "/spec/tag", json!(tag))),
            "{tag:?} at creation"
        );
    }
    assert!(world.ask(kind, plain()));
    for tag in ["tag:router", "tag:granted"] {
        assert!(
            !world.ask(kind, with(plain(), "/spec/tag", json!(tag))),
            "{tag} by an update"
        );
        // Together with something else that changes, or with an annotation that only looks helpful.
        let mut more = with(plain(), "/spec/tag", json!(tag));
        more["metadata"]["annotations"] =
            json!({ "tsunaro.io/validation": "disabled", "tsunaro.io/takes-over": "TailnetIngress/team-a/x" });
        assert!(!world.ask(kind, more), "{tag} with annotations");
    }
    assert!(world.has_effect(&of_ingress("team-b", "x")));
}

#[test]
fn what_came_in_before_the_tailnet_has_no_effect_and_no_way_to_get_one() {
    let kind = Kind::TailnetIngress;
    let mut world = World::new(tailnet());
    world.delete(&(Kind::Tailnet, None, "corp".into()), false);
    let early = with(ingress("team-b", "x", "b"), "/spec/tag", json!("tag:router"));
    assert!(world.ask(kind, early.clone()), "without the Tailnet nobody can say");
    let wide = with(ingress("team-b", "y", "y"), "/spec/allowFrom", json!(["*"]));
    assert!(world.ask(kind, wide.clone()));
    assert!(world.ask(Kind::Tailnet, tailnet()));
    for name in ["x", "y"] {
        assert!(!world.has_effect(&of_ingress("team-b", name)), "{name}");
    }
    // The ratchet lets other changes pass, and gives no effect by that.
    assert!(world.ask(kind, with(early.clone(), "/spec/exposes/0/port", json!(5433))));
    assert!(world.ask(kind, with(wide.clone(), "/spec/exposes/0/port", json!(5433))));
    for name in ["x", "y"] {
        assert!(!world.has_effect(&of_ingress("team-b", name)), "{name} after an update");
    }
    // What is taken out does not come back.
    assert!(world.ask(kind, ingress("team-b", "x", "b")));
    assert!(world.has_effect(&of_ingress("team-b", "x")));
    assert!(!world.ask(kind, early));
    assert!(world.ask(kind, ingress("team-b", "y", "y")));
    assert!(!world.ask(kind, wide));
}

#[test]
fn the_ratchet_excuses_an_old_source_once() {
    let kind = Kind::TailnetIngress;
    let mut world = World::new(tailnet());
    let own = |sources: Value| with(ingress("team-b", "x", "b"), "/spec/allowFrom", sources);
    assert!(world.ask(kind, own(json!(["alice@", "10.1.0.0/16"]))));
    let mut smaller = tailnet();
    smaller["spec"]["policy"]["ingressSourceAllowlist"] = json!(["group:a"]);
    assert!(world.ask(Kind::Tailnet, smaller));
    assert!(!world.has_effect(&of_ingress("team-b", "x")));
    for worse in [
        json!(["alice@", "10.1.0.0/16", "bob@"]),
        json!(["alice@", "alice@", "10.1.0.0/16"]),
        json!(["alice@", "10.1.0.0/15"]),
        json!(["alice@", "*"]),
        json!(["Alice@", "10.1.0.0/16"]),
    ] {
        assert!(!world.ask(kind, own(worse.clone())), "{worse}");
    }
    assert!(
        world.ask(kind, own(json!(["10.1.0.0/16", "group:a", "alice@"]))),
        "moved, and something allowed added"
    );
    assert!(!world.has_effect(&of_ingress("team-b", "x")));
    assert!(world.ask(kind, own(json!(["group:a"]))));
    assert!(world.has_effect(&of_ingress("team-b", "x")));
    assert!(!world.ask(kind, own(json!(["group:a", "alice@"]))));
}

/// Whatever is let in means something that the list allows.
#[test]
fn no_spelling_leads_past_the_allowlist() {
    let texts = [
        "*",
        " *",
        "*\u{200b}",
        "＊",
        "group:a",
        "GROUP:a",
        "group:A",
        "group:a ",
        "group:\u{430}",
        "group:b",
        "groupːa",
        "alice@",
        "Alice@",
        "ALICE@",
        "alice",
        "alice@example.com",
        "bob@",
        "autogroup:danger-all",
        "autogroup:DANGER-ALL",
        "Autogroup:member",
        "autogroup:member",
        "0.0.0.0/0",
        "::/0",
        "0/0",
        "10.0.0.0/8",
        "10.0.0.0/7",
        "10.1.2.3",
        "010.1.2.3",
        "0x0a.1.2.3",
        "10.1.2",
        "::ffff:10.1.2.3",
        "::ffff:a01:203",
        "::ffff:10.0.0.0/104",
        "::ffff:0:0/96",
        "10.0.0.1/8",
        "10.0.0.0/08",
        "10.0.0.0/8\n",
        "11.0.0.0/8",
        "8.0.0.0/5",
        "tag:router",
        "tag:ROUTER",
        "svc:x",
        "1.2.3.4%eth0",
        "fd7a:115c:a1e0::/48",
        "a@b@c",
        "host-1",
        "",
        "10.255.255.255/32",
        "9.255.255.255",
        "１０.0.0.1",
        "10。0。0。1",
    ];
    let outer: IpNet = "10.0.0.0/8".parse().unwrap();
    for text in texts {
        let world = World::new(tailnet());
        let object = with(ingress("team-b", "x", "b"), "/spec/allowFrom", json!([text]));
        if world.verdict(Kind::TailnetIngress, &object).denied() {
            continue;
        }
        let inside = match text
            .parse::<Principal>()
            .unwrap_or_else(|error| panic!("{text:?} is let in: {error}"))
        {
            Principal::Ip(address) => outer.contains(&address.addr()),
            Principal::Cidr(cidr) => outer.contains(&cidr.net()),
            _ => ["group:a", "alice@"].contains(&text),
        };
        assert!(inside, "{text:?} is let in");
    }
}

#[test]
fn no_spelling_leads_to_a_name_that_another_has() {
    for label in [
        "portal",
        "Portal",
        "PORTAL",
        "portal.",
        " portal",
        "ｐortal",
        "portaℓ",
        "p\u{ad}ortal",
        "vault",
        "VAULT",
        "porta\u{301}l",
    ] {
        let mut world = World::new(tailnet());
        assert!(world.ask(Kind::TailnetIngress, ingress("team-a", "x", "portal")));
        assert!(
            !world.ask(Kind::TailnetIngress, ingress("team-b", "y", label)),
            "{label:?}"
        );
        // By an update, and by the alias.
        assert!(world.ask(Kind::TailnetIngress, ingress("team-b", "y", "other")));
        assert!(
            !world.ask(Kind::TailnetIngress, ingress("team-b", "y", label)),
            "{label:?}"
        );
        // Nor as an alias of an egress.
        let egress = json!({ "metadata": { "name": "e", "namespace": OPERATOR }, "spec": {
            "tailnetRef": { "name": "corp" }, "consumerNamespaces": ["a"],
            "targets": [{ "name": "t", "address": "192.0.2.1", "port": 1, "aliases": [format!("{label}.example.net")] }],
        } });
        assert!(!world.ask(Kind::TailnetEgress, egress), "{label:?}");
    }
}

#[test]
fn an_alias_that_was_given_up_belongs_to_the_next() {
    let kind = Kind::TailnetIngress;
    let alias = |namespace: &str, on: Value| {
        with(
            ingress(namespace, "x", &format!("l-{namespace}")),
            "/spec/exposes/0/alias",
            on,
        )
    };
    let mut taken = alias("team-b", json!(true));
    taken["spec"]["exposes"][0]["dnsLabel"] = json!("l-team-a");
    let mut world = World::new(tailnet());
    assert!(world.ask(kind, alias("team-a", json!(true))));
    assert!(!world.ask(kind, taken.clone()));
    let mut moved = alias("team-a", json!(true));
    moved["spec"]["exposes"][0]["dnsLabel"] = json!("elsewhere");
    assert!(world.ask(kind, moved));
    assert!(world.ask(kind, taken));
    assert!(
        !world.ask(kind, alias("team-a", json!(true))),
        "the former owner came back"
    );
    assert!(world.has_effect(&of_ingress("team-b", "x")));
}

#[test]
fn a_finalizer_of_a_tenant_holds_nothing() {
    let kind = Kind::TailnetIngress;
    let mut world = World::new(tailnet());
    assert!(world.ask(kind, ingress("team-a", "x", "portal")));
    let held = of_ingress("team-a", "x");
    world.delete(&held, true);
    assert!(!world.has_effect(&held));
    assert!(
        world.ask(kind, ingress("team-b", "y", "portal")),
        "what is going is in nobody's way"
    );
    assert!(world.has_effect(&of_ingress("team-b", "y")));
    // It is not brought back to life: neither its spec nor, by an annotation, its name.
    assert!(!world.ask(kind, ingress("team-a", "x", "other")));
    let mut announced = world.stored[&held].clone();
    announced["metadata"]["annotations"] = json!({ "tsunaro.io/takes-over": "TailnetIngress/team-b/y" });
    world.ask(kind, announced);
    assert!(!world.has_effect(&held) && world.has_effect(&of_ingress("team-b", "y")));
    // Gone and made anew, it is the younger one.
    world.delete(&held, false);
    assert!(!world.ask(kind, ingress("team-a", "x", "portal")));
    world.force(kind, ingress("team-a", "x", "portal"));
    assert!(!world.has_effect(&held) && world.has_effect(&of_ingress("team-b", "y")));
}

/// The namespace went with everything in it, and somebody made one of that name.
#[test]
fn a_namespace_made_anew_inherits_no_claims() {
    let kind = Kind::TailnetIngress;
    let mut world = World::new(tailnet());
    assert!(world.ask(kind, ingress("team-a", "x", "portal")));
    world.delete(&of_ingress("team-a", "x"), false);
    assert!(world.ask(kind, ingress("team-b", "y", "portal")));
    assert!(!world.ask(kind, ingress("team-a", "x", "portal")));
    // While the record still names the old one: the UID tells them apart.
    let mut world = World::new(tailnet());
    assert!(world.ask(kind, ingress("team-a", "x", "portal")));
    let record = world.snapshot.claims("corp").cloned();
    world.delete(&of_ingress("team-a", "x"), false);
    assert!(world.ask(kind, ingress("team-b", "y", "portal")));
    world.force(kind, ingress("team-a", "x", "portal"));
    world.snapshot.set_claims("corp", record);
    world.settle();
    assert!(world.has_effect(&of_ingress("team-b", "y")) && !world.has_effect(&of_ingress("team-a", "x")));
}

#[test]
fn an_announced_rename_gives_a_tenant_nothing_of_another() {
    let kind = Kind::TailnetIngress;
    let announcing = |name: &str, label: &str, of: &str| {
        let mut object = ingress("team-b", name, label);
        object["metadata"]["annotations"] = json!({ "tsunaro.io/takes-over": of });
        object
    };
    let mut world = World::new(tailnet());
    assert!(world.ask(kind, ingress("team-a", "x", "portal")));
    assert!(world.ask(kind, ingress("team-b", "own", "own")));
    for of in [
        "TailnetIngress/team-a/x",
        "tailnetingress/team-a/x",
        "TailnetIngress/team-a/x/",
        "TailnetIngress/team-b/own",
        "TailnetIngress/team-b/../team-a/x",
        "TailnetIngress/x",
        "TailnetSite/x",
        "TailnetIngress/team-b/not-there",
    ] {
        assert!(!world.ask(kind, announcing("y", "portal", of)), "{of}");
    }
    // One that waits for its own predecessor gets that one's name and no other.
    assert!(world.ask(kind, announcing("next", "own", "TailnetIngress/team-b/own")));
    assert!(!world.has_effect(&of_ingress("team-b", "next")));
    assert!(!world.ask(kind, announcing("next", "portal", "TailnetIngress/team-b/own")));
    world.delete(&of_ingress("team-b", "own"), false);
    assert!(world.has_effect(&of_ingress("team-b", "next")));
    assert!(world.has_effect(&of_ingress("team-a", "x")));
    // A queue before a name of another namespace, from before the rule: when the holder goes, it gets nothing.
    world.force(kind, announcing("camper", "portal", "TailnetIngress/team-a/x"));
    world.delete(&of_ingress("team-a", "x"), false);
    assert!(!world.has_effect(&of_ingress("team-b", "camper")));
}

#[test]
fn no_spelling_takes_or_blocks_a_name_of_another_namespace() {
    let templates = |name: &str, alias: &str| {
        let mut tailnet = tailnet();
        tailnet["spec"]["dns"] = json!({ "ingressNameTemplate": name, "ingressAliasTemplate": alias });
        let mut world = World::new(tailnet);
        for namespace in ["team-a", "a", "x", OPERATOR] {
            world.snapshot.upsert_namespace(namespace);
        }
        world
    };
    let short = |namespace: &str, name: &str, label: Option<&str>| {
        let mut object = ingress(namespace, name, label.unwrap_or("l"));
        let expose = &mut object["spec"]["exposes"][0];
        expose["alias"] = json!(true);
        if label.is_none() {
            expose.as_object_mut().unwrap().remove("dnsLabel");
        }
        object
    };
    let victim = |world: &mut World, what: &str| {
        assert!(
            world.ask(Kind::TailnetIngress, ingress("team-a", "portal", "portal")),
            "{what}"
        );
        assert!(world.has_effect(&of_ingress("team-a", "portal")), "{what}");
    };
    // A dot in the name of an object is no further label.
    let mut world = templates("{name}.{namespace}.example.net", "{name}.example.net");
    assert!(world.ask(Kind::TailnetIngress, short("x", "portal.team-a", None)));
    victim(&mut world, "a dotted name came first");
    // The same past the webhook, and later than the incumbent.
    world.force(Kind::TailnetIngress, short("x", "portal.team-a.example.net", None));
    assert!(world.has_effect(&of_ingress("team-a", "portal")));
    // Without a dot in the template a name has two readings: it is the one of the longer namespace.
    let mut world = templates("{name}-{namespace}.example.net", "{name}.example.net");
    assert!(!world.ask(Kind::TailnetIngress, ingress("a", "x", "portal-team")));
    assert!(!world.ask(Kind::TailnetIngress, short("x", "y", Some("portal-team-a"))));
    assert!(!world.ask(Kind::TailnetIngress, short("x", "portal-team-a", None)));
    assert!(!world.ask(Kind::TailnetIngress, short("x", "portal.team-a", None)));
    assert!(world.ask(Kind::TailnetIngress, ingress("a", "x", "other")));
    assert!(
        !world.ask(Kind::TailnetIngress, ingress("a", "x", "portal-team")),
        "by an update"
    );
    victim(&mut world, "names that read two ways");
    // What slips in past the webhook takes nothing from who has it.
    world.force(Kind::TailnetIngress, ingress("a", "x", "portal-team"));
    world.force(Kind::TailnetIngress, short("x", "portal-team-a", None));
    assert!(world.has_effect(&of_ingress("team-a", "portal")));
    assert!(!world.has_effect(&of_ingress("a", "x")));
    assert!(!world.has_effect(&of_ingress("x", "portal-team-a")));
}

#[test]
fn an_incumbent_keeps_a_name_that_reads_otherwise_when_a_namespace_comes() {
    let mut tailnet = tailnet();
    tailnet["spec"]["dns"] = json!({ "ingressNameTemplate": "{name}-{namespace}.example.net" });
    let mut world = World::new(tailnet);
    world.snapshot.upsert_namespace("a");
    assert!(world.ask(Kind::TailnetIngress, ingress("a", "x", "portal-team")));
    world.snapshot.upsert_namespace("team-a");
    assert!(world.has_effect(&of_ingress("a", "x")));
    assert!(!world.ask(Kind::TailnetIngress, ingress("team-a", "portal", "portal")));
    let more = with(ingress("a", "x", "portal-team"), "/spec/exposes/0/port", json!(5433));
    assert!(world.ask(Kind::TailnetIngress, more), "and may be changed");
    assert!(world.has_effect(&of_ingress("a", "x")));
}

#[test]
fn no_host_name_is_taken_that_is_another_namespaces() {
    let chosen =
        |namespace: &str, hostname: &str| with(ingress(namespace, "h", namespace), "/spec/hostname", json!(hostname));
    let mut world = World::new(tailnet());
    for namespace in ["team-a", "a", "b"] {
        world.snapshot.upsert_namespace(namespace);
    }
    let default = names::default_ingress_hostname(None, "team-a", "portal");
    let hash = default.rsplit('-').next().unwrap();
    world.snapshot.upsert_namespace(hash);
    for (namespace, hostname) in [
        ("a", "portal-team-a"),
        ("a", "Portal-Team-A"),
        ("b", "portal-team-a"),
        (hash, default.as_str()),
    ] {
        assert!(
            !world.ask(Kind::TailnetIngress, chosen(namespace, hostname)),
            "{hostname} from {namespace}"
        );
    }
    assert!(world.ask(Kind::TailnetIngress, ingress("team-a", "portal", "portal")));
    assert!(world.ask(Kind::TailnetIngress, chosen("team-a", "x-team-a")));
    assert!(world.ask(Kind::TailnetIngress, chosen("a", "portal-a")));
}

/// Replicas cannot choose: `web-a-2` is the second one's of `web` in `a`, whoever asks first.
#[test]
fn no_replica_loses_its_name_to_another_namespace() {
    let chosen =
        |namespace: &str, hostname: &str| with(ingress(namespace, "h", namespace), "/spec/hostname", json!(hostname));
    for cluster in [None, Some("prod")] {
        let mut tailnet = tailnet();
        if let Some(cluster) = cluster {
            tailnet["spec"]["clusterName"] = json!(cluster);
        }
        let mut world = World::new(tailnet);
        let dashed = names::default_ingress_hostname(cluster, "team-a", "portal");
        let of_dashed = format!("{}-2", dashed.rsplit('-').next().unwrap());
        let plain = names::default_ingress_hostname(cluster, "a", "web");
        for namespace in ["a", "a-2", "team-a", "2", of_dashed.as_str()] {
            world.snapshot.upsert_namespace(namespace);
        }
        let second = |first: &str| format!("{first}-2");
        for (namespace, hostname) in [
            ("a-2", second(&plain)),
            ("a-2", second(&plain).to_uppercase()),
            ("2", second(&plain)),
            // Also of a name that the others choose later.
            ("a-2", "x-a-2".to_owned()),
            ("2", second(&dashed)),
            (of_dashed.as_str(), second(&dashed)),
        ] {
            assert!(
                !world.ask(Kind::TailnetIngress, chosen(namespace, &hostname)),
                "{hostname} from {namespace}"
            );
            // In a step of its own.
            assert!(world.ask(Kind::TailnetIngress, ingress(namespace, "h", namespace)));
            assert!(
                !world.ask(Kind::TailnetIngress, chosen(namespace, &hostname)),
                "{hostname} from {namespace}, later"
            );
            world.delete(&of_ingress(namespace, "h"), false);
        }
        let replicas = |object: Value| with(object, "/spec/replicas", json!(5));
        for (namespace, object) in [
            ("a", replicas(ingress("a", "web", "web"))),
            ("team-a", replicas(ingress("team-a", "portal", "portal"))),
            (
                "a",
                replicas(with(ingress("a", "x", "x"), "/spec/hostname", json!("x-a"))),
            ),
        ] {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            assert!(world.ask(Kind::TailnetIngress, object), "{name}");
            assert!(world.has_effect(&of_ingress(namespace, &name)), "{name}");
        }
        // A name of its own it may choose where nobody else could have it, and the default always.
        assert!(world.ask(Kind::TailnetIngress, ingress("a-2", "web", "other")));
        assert!(world.ask(Kind::TailnetIngress, chosen("team-a", "x-team-a")));
    }
}
