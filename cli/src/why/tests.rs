use std::collections::BTreeMap;

use serde_json::{Value, json};
use tailnet_crds::agent::{AgentNode, AgentStatus, AgentTarget, DialResult, FORMAT_VERSION};
use tailnet_crds::{Kind, Team};
use tailnet_policies::facts::{Facts, NodeFacts, RouteFacts};

use super::link::Link;
use super::probe::{Agent, Probe};
use super::*;

fn condition(r#type: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": r#type, "status": status, "reason": reason, "message": message, "observedGeneration": 2})
}

fn ready_tailnet() -> Value {
    json!({
        "metadata": {"name": "demo", "generation": 2},
        "spec": {"server": "https://control.example.net", "apiSecretRef": {"name": "headscale-api"}},
        "status": {"conditions": [
            condition("Accepted", "True", "Valid", ""),
            condition("Reachable", "True", "Reachable", ""),
            condition("APIKeyReady", "True", "APIKeyReady", ""),
            condition("SplitDNS", "Unknown", "CannotVerify", "nobody can tell"),
            condition("Ready", "True", "Ready", ""),
        ]},
    })
}

/// An egress of two targets; all is well.
fn scene() -> Scene {
    let object = json!({
        "metadata": {"name": "team-a", "generation": 2},
        "spec": {"tailnetRef": {"name": "demo"}, "tag": "tag:egress-team-a", "targets": [
            {"name": "db", "address": "192.0.2.10", "port": 5432},
            {"name": "web", "address": "198.51.100.20", "port": 443},
        ]},
        "status": {
            "conditions": [
                condition("Accepted", "True", "Valid", "all rules are kept"),
                condition("KeyReady", "True", "KeyReady", ""),
                condition("WorkloadReady", "True", "Available", ""),
                condition("PolicyReady", "True", "Granted", ""),
                condition("RoutesReady", "True", "Routed", ""),
                condition("DNSReady", "True", "NoNames", ""),
                condition("Ready", "True", "Ready", ""),
            ],
            "nodes": [{"id": "7", "name": "team-a", "ipv4": "100.64.0.7", "online": true}],
            "targets": [
                {"name": "db", "state": "Routed", "router": "depot"},
                {"name": "web", "state": "Routed", "router": "depot"},
            ],
        },
    });
    let route = |prefix: &str, approved: bool| RouteFacts {
        prefix: prefix.parse().unwrap(),
        node_id: "3".to_owned(),
        advertised: true,
        approved,
        primary: approved,
    };
    Scene {
        kind: Kind::TailnetEgress,
        namespace: Some("tailnet-system".to_owned()),
        name: "team-a".to_owned(),
        object,
        tailnet: Some(ready_tailnet()),
        tailnet_hidden: false,
        one_target: false,
        facts: Some(Facts {
            nodes: vec![NodeFacts {
                id: "7".to_owned(),
                tags: ["tag:other".to_owned()].into(),
                ..NodeFacts::default()
            }],
            routes: vec![
                route("10.9.0.0/16", true),
                route("192.0.2.0/24", false),
                route("198.51.100.0/24", false),
            ],
            ..Facts::default()
        }),
        operator: Operator::Leads("tailnet-operator-x".to_owned()),
        config: None,
        pods: BTreeMap::from([("agent-1".to_owned(), true)]),
        probe: None,
        notes: Vec::new(),
    }
}

fn ask(scene: Scene) -> Answer {
    answer(scene, Kubectl::default(), "tailnet-system")
}

/// Changes the condition `type`.
fn set(scene: &mut Scene, r#type: &str, status: &str, reason: &str, message: &str) {
    let list = scene.object["status"]["conditions"].as_array_mut().unwrap();
    let found = list.iter_mut().find(|known| known["type"] == r#type).unwrap();
    *found = condition(r#type, status, reason, message);
}

#[test]
fn a_chain_that_holds_is_said_to_hold() {
    let answer = ask(scene());
    assert_eq!(answer.works, Some(true), "{answer:?}");
    assert_eq!(
        answer.sentence,
        "TailnetEgress tailnet-system/team-a works: every link holds."
    );
    let names: Vec<&str> = answer.links.iter().map(|link| link.link.as_str()).collect();
    let chain = [
        "operator", "accepted", "tailnet", "key", "node", "route", "grant", "dns", "agent", "backend",
    ];
    assert_eq!(names, chain);
}

#[test]
fn the_first_broken_link_is_told_with_the_exact_command() {
    let mut scene = scene();
    set(
        &mut scene,
        "DNSReady",
        "False",
        "NoHostsConfigMap",
        "aliases are published nowhere",
    );
    scene.object["status"]["targets"][1] =
        json!({"name": "web", "state": "NotApproved", "router": "depot", "message": "the route is not approved"});
    let answer = ask(scene);
    assert_eq!(
        answer.sentence,
        "TailnetEgress tailnet-system/team-a does not work: its first broken link is route of target web (NotApproved): the route is not approved. It is the turn of the tailnet admin."
    );
    let broken = answer.broken.unwrap();
    assert_eq!(broken.turn, Some(Team::TailnetAdmin));
    // What is approved stays, and what the other target needs is in it.
    assert_eq!(
        broken.next,
        ["headscale nodes approve-routes --identifier 3 --routes 10.9.0.0/16,198.51.100.0/24,192.0.2.0/24"]
    );
    let dns = answer.links.iter().find(|link| link.link == "dns").unwrap();
    assert_eq!(dns.turn, Some(Team::Platform));
    assert!(
        dns.next[0].starts_with("kubectl patch tailnet demo --type=merge"),
        "{:?}",
        dns.next
    );
}

#[test]
fn a_status_that_is_behind_is_nobodys_verdict() {
    let mut behind = scene();
    behind.object["metadata"]["generation"] = json!(3);
    let answer = ask(behind);
    assert_eq!(answer.works, None);
    assert!(
        answer.sentence.ends_with("It goes on by itself: wait."),
        "{}",
        answer.sentence
    );

    let mut silent = scene();
    silent.operator = Operator::Silent(super::scene::LEASE_OLD * 2);
    let answer = ask(silent);
    assert!(
        answer.sentence.contains("operator (OperatorSilent)"),
        "{}",
        answer.sentence
    );
    assert_eq!(answer.broken.unwrap().turn, Some(Team::Platform));
}

#[test]
fn what_is_wrong_with_the_tailnet_comes_before_what_follows_from_it() {
    let mut scene = scene();
    let tailnet = scene.tailnet.as_mut().unwrap();
    tailnet["status"]["conditions"][2] = condition("APIKeyReady", "False", "APIKeyRefused", "Headscale refuses it");
    set(&mut scene, "KeyReady", "False", "ControlPlaneUnreachable", "");
    let broken = ask(scene).broken.unwrap();
    assert_eq!(
        (broken.link.as_str(), broken.reason.as_str()),
        ("tailnet", "APIKeyRefused")
    );
    assert_eq!(
        broken.next,
        [
            "kubectl -n tailnet-system create secret generic headscale-api --from-literal=apiKey=\"$(headscale apikeys create --expiration 90d)\" --dry-run=client -o yaml | kubectl apply -f -"
        ]
    );
}

#[test]
fn no_owner_of_the_tag_comes_before_grants() {
    let mut scene = scene();
    set(
        &mut scene,
        "PolicyReady",
        "False",
        "TagNotOwned",
        "tag:egress-team-a has no owner",
    );
    scene.object["status"]["targets"][0] = json!({"name": "db", "state": "NoGrant", "message": "no rule"});
    let answer = ask(scene);
    let broken: Vec<&str> = answer
        .links
        .iter()
        .filter(|link| link.state == State::Broken)
        .map(|link| link.reason.as_str())
        .collect();
    assert_eq!(broken, ["TagNotOwned", "NoGrant"]);
    let grant = answer.links.iter().find(|link| link.reason == "NoGrant").unwrap();
    assert_eq!(
        grant.next[1],
        r#"# add to "grants": {"src":["tag:egress-team-a"],"dst":["192.0.2.10"],"ip":["tcp:5432"]}"#
    );
}

#[test]
fn a_probe_is_newer_than_the_status() {
    let dial = |ok: bool| DialResult {
        at: "now".to_owned(),
        ok,
        error_class: (!ok).then(|| "refused".to_owned()),
        message: None,
    };
    let agent = |online: bool, db: bool| Agent {
        status: Ok(AgentStatus {
            version: FORMAT_VERSION,
            node: Some(AgentNode {
                online,
                ..AgentNode::default()
            }),
            targets: vec![AgentTarget::default()],
            login_error: (!online).then(|| "authkey expired".to_owned()),
            ..AgentStatus::default()
        }),
        dials: BTreeMap::from([("db".to_owned(), Ok(dial(db))), ("web".to_owned(), Ok(dial(true)))]),
    };
    let mut well = scene();
    well.object["status"]["targets"][0] = json!({"name": "db", "state": "DialFailed", "message": "it was so"});
    set(&mut well, "RoutesReady", "False", "DialFailed", "db: it was so");
    set(&mut well, "Ready", "False", "DialFailed", "RoutesReady: db: it was so");
    well.probe = Some(Probe {
        agents: BTreeMap::from([("agent-1".to_owned(), agent(true, true))]),
    });
    assert_eq!(ask(well).works, Some(true));

    // One replica of two does not get there.
    let mut half = scene();
    half.probe = Some(Probe {
        agents: BTreeMap::from([
            ("a".to_owned(), agent(true, true)),
            ("b".to_owned(), agent(true, false)),
        ]),
    });
    let broken = ask(half).broken.unwrap();
    assert_eq!(
        (broken.name().as_str(), broken.turn),
        ("backend of target db", Some(Team::Application))
    );
    assert!(broken.message.ends_with("agent b: refused"), "{}", broken.message);
    assert_eq!(broken.next[1], "nc -vz 192.0.2.10 5432");

    let mut offline = scene();
    offline.probe = Some(Probe {
        agents: BTreeMap::from([("a".to_owned(), agent(false, true))]),
    });
    let broken = ask(offline).broken.unwrap();
    assert!(broken.message.ends_with("authkey expired"), "{}", broken.message);
}

#[test]
fn notes_are_not_faults_and_kinds_without_work_say_so() {
    let mut tailnet = scene();
    tailnet.kind = Kind::Tailnet;
    tailnet.namespace = None;
    tailnet.name = "demo".to_owned();
    tailnet.object = ready_tailnet();
    assert_eq!(ask(tailnet).works, Some(true), "SplitDNS can never be known");

    let mut site = scene();
    site.kind = Kind::TailnetSite;
    site.namespace = None;
    site.name = "depot".to_owned();
    site.object = json!({"metadata": {"generation": 2}, "spec": {"tailnetRef": {"name": "demo"}}, "status": {"conditions": [
        condition("Accepted", "True", "Valid", ""),
        condition("Ready", "False", "NotImplemented", "nothing else is done"),
    ]}});
    let answer = ask(site);
    assert_eq!(answer.broken.as_ref().unwrap().link, "ready");
    assert_eq!(answer.broken.unwrap().turn, None);
}

/// An ingress of two exposes; all is well.
fn ingress_scene() -> Scene {
    Scene {
        kind: Kind::TailnetIngress,
        namespace: Some("shop".to_owned()),
        name: "portal".to_owned(),
        object: json!({
            "metadata": {"name": "portal", "namespace": "shop", "generation": 2},
            "spec": {"tailnetRef": {"name": "demo"}, "tls": {"secretRef": {"name": "portal-cert"}}, "exposes": [
                {"name": "web", "mode": "http", "port": 443, "backend": {"service": "front", "port": 80}},
                {"name": "echo", "port": 7000, "backend": {"service": "echo", "port": 7000}},
            ]},
            "status": {
                "conditions": [
                    condition("Accepted", "True", "Valid", "all rules are kept"),
                    condition("KeyReady", "True", "KeyReady", ""),
                    condition("CertificateReady", "True", "CertificateReady", ""),
                    condition("WorkloadReady", "True", "Available", ""),
                    condition("PolicyReady", "True", "Granted", ""),
                    condition("DNSReady", "True", "Published", ""),
                    condition("Ready", "True", "Ready", ""),
                ],
                "exposes": [
                    {"name": "web", "state": "Serving", "url": "https://portal.example.net/", "names": []},
                    {"name": "echo", "state": "Serving", "url": "tcp://portal.example.net:7000", "names": []},
                ],
            },
        }),
        ..scene()
    }
}

#[test]
fn an_ingress_is_asked_along_its_conditions_and_exposes() {
    let answer = ask(ingress_scene());
    assert_eq!(answer.works, Some(true), "{answer:?}");
    let names: Vec<&str> = answer.links.iter().map(|link| link.link.as_str()).collect();
    let chain = [
        "operator",
        "accepted",
        "tailnet",
        "key",
        "certificate",
        "agent",
        "grant",
        "dns",
        "backend",
        "backend",
    ];
    assert_eq!(names, chain);

    let mut certificate = ingress_scene();
    set(
        &mut certificate,
        "CertificateReady",
        "False",
        "NotIssued",
        "Secret portal-cert: there is none",
    );
    let text = text(&ask(certificate));
    assert!(text.contains("kubectl -n shop create secret tls portal-cert"), "{text}");

    let mut rights = ingress_scene();
    set(
        &mut rights,
        "KeyReady",
        "False",
        "NamespaceNotGranted",
        "the operator may not",
    );
    let broken = ask(rights).broken.unwrap();
    assert_eq!((broken.link.as_str(), broken.turn), ("key", Some(Team::Platform)));
    assert!(broken.next[0].contains("add shop to ingressNamespaces"), "{broken:?}");

    let mut backend = ingress_scene();
    backend.object["status"]["exposes"][1] =
        json!({"name": "echo", "state": "NoBackend", "message": "Service shop/echo does not exist"});
    set(
        &mut backend,
        "Ready",
        "False",
        "NoBackend",
        "echo: Service shop/echo does not exist",
    );
    let broken = ask(backend).broken.unwrap();
    assert_eq!(broken.name(), "backend of expose echo");
    assert_eq!(broken.next, ["kubectl -n shop get service echo -o wide"]);

    let mut silent = ingress_scene();
    silent.object["status"]["exposes"] = json!([]);
    set(&mut silent, "Ready", "Unknown", "Unknown", "no agent has said yet");
    let broken = ask(silent).broken.unwrap();
    assert_eq!(
        (broken.name().as_str(), broken.reason.as_str()),
        ("agent of expose web", "Unknown")
    );
}

#[test]
fn nothing_in_the_answer_moves_the_terminal() {
    let mut scene = scene();
    set(&mut scene, "KeyReady", "False", "MintFailed", "evil \u{1b}[2J words");
    let text = text(&ask(scene));
    assert!(!text.contains('\u{1b}') && text.contains("\\u{1b}[2J"), "{text}");
    assert!(text.contains("BROKEN  key"), "{text}");
}

#[test]
fn what_others_write_is_no_word_of_a_command() {
    let commands = |scene: &Scene, reason: &str, target: Option<&str>| {
        let next = Next {
            scene,
            kubectl: Kubectl::default(),
            operator_namespace: "tailnet-system",
        };
        let mut link = Link::new(Kind::TailnetEgress, "accepted", State::Broken, reason, "");
        link.target = target.map(str::to_owned);
        next.commands(&link)
    };
    let takes_over = |named: &str| {
        let mut scene = scene();
        scene.object["metadata"]["annotations"] = json!({"tsunaro.io/takes-over": named});
        commands(&scene, "WaitingForHolder", None)
    };
    assert_eq!(
        takes_over("TailnetEgress/tailnet-system/old"),
        ["kubectl -n tailnet-system delete tailnetegresses old"]
    );
    assert_eq!(takes_over("Tailnet/old"), ["kubectl delete tailnets old"]);
    let describe = "kubectl -n tailnet-system describe tailnetegress team-a";
    for kind in [
        "$(reboot)",
        "pods,nodes",
        "x;reboot",
        "Namespace",
        "",
        "-A --all tailnets",
    ] {
        assert_eq!(takes_over(&format!("{kind}/a/old")), [describe], "{kind}");
        assert_eq!(takes_over(&format!("{kind}/old")), [describe], "{kind}");
    }
    assert_eq!(takes_over("Tailnet/$(reboot)"), ["kubectl delete tailnets '$(reboot)'"]);

    let mut odd = scene();
    let tailnet = odd.tailnet.as_mut().expect("a Tailnet");
    tailnet["spec"]["dns"] = json!({"hostsConfigMap": "it's\"}"});
    assert_eq!(
        commands(&odd, "NoHostsConfigMap", None),
        [r#"kubectl patch tailnet demo --type=merge -p '{"spec":{"dns":{"hostsConfigMap":"it'\''s\"}"}}}'"#]
    );
    odd.object["status"]["targets"][0]["router"] = json!("depot:\nreboot");
    let lines = commands(&odd, "NotServing", Some("db"));
    assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:?}");
}
