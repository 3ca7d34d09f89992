use super::*;
use serde_json::{Value, json};
use tailnet_crds::agent::{AgentNode, DialResult};
use tailnet_headscale::document::Document;

const TARGET: Target<'_> = Target {
    name: "db",
    address: "192.0.2.10",
    port: 5432,
    tag: "tag:egress-a",
    siblings: &[],
    policy: None,
};

fn nodes(list: Value) -> Vec<Node> {
    serde_json::from_value(list).unwrap()
}

fn router(advertised: &[&str], approved: &[&str], primary: &[&str], online: bool) -> Vec<Node> {
    nodes(json!([{
        "id": "3", "givenName": "rt1", "online": online, "ipAddresses": ["100.64.0.3"],
        "availableRoutes": advertised, "approvedRoutes": approved, "subnetRoutes": primary,
    }]))
}

fn agent(routed: bool, dial: Option<(bool, &str)>) -> AgentStatus {
    AgentStatus {
        node: Some(AgentNode {
            id: "9".into(),
            name: "a".into(),
            online: true,
            ..AgentNode::default()
        }),
        targets: vec![AgentTarget {
            name: "db".into(),
            listening: true,
            routed,
            router: routed.then(|| "rt1".to_owned()),
            last_dial: dial.map(|(ok, class)| DialResult {
                at: "2026-11-30T00:00:00Z".into(),
                ok,
                error_class: (!ok).then(|| class.to_owned()),
                message: None,
            }),
            ..AgentTarget::default()
        }],
        ..AgentStatus::default()
    }
}

fn state_of(nodes: &[Node], agents: &[AgentView<'_>]) -> TargetState {
    classify(TARGET, Some(nodes), agents, None).state
}

const NET: &str = "192.0.2.0/24";

#[test]
fn each_step_of_the_way_names_whose_turn_it_is() {
    let ok = agent(true, None);
    let ok = [AgentView::Current(&ok)];
    assert_eq!(classify(TARGET, None, &ok, None).state, TargetState::Unknown);

    let way = classify(TARGET, Some(&router(&[], &[], &[], true)), &ok, None);
    assert_eq!(way.state, TargetState::NotAdvertised);
    assert!(way.message.unwrap().contains("--advertise-routes=192.0.2.10/32"));

    let way = classify(TARGET, Some(&router(&[NET], &[], &[], true)), &ok, None);
    assert_eq!(
        (way.state, way.router.as_deref()),
        (TargetState::NotApproved, Some("rt1"))
    );
    assert!(way.message.unwrap().contains("--identifier 3 --routes 192.0.2.0/24)"));
    // Headscale replaces what is approved by what is named.
    let siblings = [
        "192.0.2.10".parse().unwrap(),
        "10.1.0.1".parse().unwrap(),
        "10.9.0.1".parse().unwrap(),
    ];
    let target = Target {
        siblings: &siblings,
        ..TARGET
    };
    let several = router(
        &[NET, "10.1.0.0/16", "0.0.0.0/0", "203.0.113.0/24"],
        &["203.0.113.0/24"],
        &[],
        true,
    );
    let message = classify(target, Some(&several), &ok, None).message.unwrap();
    assert!(
        message.contains("--routes 203.0.113.0/24,192.0.2.0/24,10.1.0.0/16)"),
        "{message}"
    );

    assert_eq!(
        state_of(&router(&[NET], &[NET], &[], false), &ok),
        TargetState::NotServing
    );
    assert_eq!(
        state_of(&router(&[NET], &[NET], &[NET], false), &ok),
        TargetState::NotServing
    );
    // Approved long ago, withdrawn since.
    assert_eq!(
        state_of(&router(&[], &[NET], &[], true), &ok),
        TargetState::NotAdvertised
    );

    let serving = router(&[NET], &[NET], &[NET], true);
    let way = classify(TARGET, Some(&serving), &ok, None);
    assert_eq!(
        way,
        Way {
            state: TargetState::Routed,
            router: Some("rt1".into()),
            message: None
        }
    );

    let no_grant = agent(false, None);
    let way = classify(TARGET, Some(&serving), &[AgentView::Current(&no_grant)], None);
    assert_eq!(way.state, TargetState::NoGrant);
    assert!(
        way.message
            .unwrap()
            .contains(r#"{"src": ["tag:egress-a"], "dst": ["192.0.2.10"], "ip": ["tcp:5432"]}"#)
    );

    let failed = agent(true, Some((false, "timeout")));
    let way = classify(TARGET, Some(&serving), &[AgentView::Current(&failed)], None);
    assert_eq!(
        (way.state, way.router.as_deref()),
        (TargetState::DialFailed, Some("rt1"))
    );
    assert!(way.message.unwrap().contains("timeout"));
    let recovered = agent(true, Some((true, "")));
    assert_eq!(
        state_of(&serving, &[AgentView::Current(&recovered)]),
        TargetState::Routed
    );
}

#[test]
fn the_longest_prefix_and_a_live_primary_win() {
    let ok = agent(true, None);
    let two = nodes(json!([
        { "id": "1", "givenName": "wide", "online": true, "availableRoutes": ["192.0.0.0/16"], "approvedRoutes": ["192.0.0.0/16"], "subnetRoutes": ["192.0.0.0/16"] },
        { "id": "2", "givenName": "narrow", "online": true, "availableRoutes": [NET], "approvedRoutes": [NET], "subnetRoutes": [NET] },
    ]));
    let mut seen = ok.clone();
    seen.targets[0].router = None;
    let way = classify(TARGET, Some(&two), &[AgentView::Current(&seen)], None);
    assert_eq!(way.router.as_deref(), Some("narrow"));
    let standby = nodes(json!([
        { "id": "1", "givenName": "dead", "online": false, "availableRoutes": [NET], "approvedRoutes": [NET], "subnetRoutes": [] },
        { "id": "2", "givenName": "alive", "online": true, "availableRoutes": [NET], "approvedRoutes": [NET], "subnetRoutes": [NET] },
    ]));
    assert_eq!(state_of(&standby, &[AgentView::Current(&ok)]), TargetState::Routed);
}

#[test]
fn an_exit_node_is_no_route() {
    let ok = agent(true, None);
    let exit = router(&["0.0.0.0/0"], &["0.0.0.0/0"], &["0.0.0.0/0"], true);
    assert_eq!(state_of(&exit, &[AgentView::Current(&ok)]), TargetState::NotAdvertised);
}

#[test]
fn a_tailnet_node_needs_no_route_but_must_be_there() {
    let ok = agent(true, None);
    let target = Target {
        address: "100.64.0.3",
        ..TARGET
    };
    let up = classify(
        target,
        Some(&router(&[], &[], &[], true)),
        &[AgentView::Current(&ok)],
        None,
    );
    assert_eq!(up.state, TargetState::Routed);
    let down = classify(
        target,
        Some(&router(&[], &[], &[], false)),
        &[AgentView::Current(&ok)],
        None,
    );
    assert_eq!(
        (down.state, down.router.as_deref()),
        (TargetState::NotServing, Some("rt1"))
    );
}

#[test]
fn names_are_the_agents_to_resolve() {
    let serving = router(&[NET], &[NET], &[NET], true);
    let target = Target {
        address: "db.corp.example",
        ..TARGET
    };
    let state =
        |agent: &AgentStatus, target| classify(target, Some(&serving), &[AgentView::Current(agent)], None).state;
    assert_eq!(state(&agent(true, None), target), TargetState::Routed);
    assert_eq!(state(&agent(false, None), target), TargetState::NotAdvertised);
    assert_eq!(
        state(&agent(false, Some((false, "resolve"))), target),
        TargetState::DialFailed
    );
    let mut unresolved = agent(false, None);
    unresolved.targets[0].route_error = Some("lookup db.corp.example: no such host".into());
    let way = classify(target, Some(&serving), &[AgentView::Current(&unresolved)], None);
    assert_eq!(way.state, TargetState::DialFailed);
    assert!(way.message.unwrap().contains("no such host"));
    let peer = Target {
        address: "rt1.ts.example",
        ..TARGET
    };
    assert_eq!(state(&agent(false, None), peer), TargetState::NoGrant);
}

#[test]
fn the_worst_replica_decides() {
    let serving = router(&[NET], &[NET], &[NET], true);
    let (good, bad) = (agent(true, None), agent(false, None));
    assert_eq!(
        state_of(&serving, &[AgentView::Current(&good), AgentView::Current(&bad)]),
        TargetState::NoGrant
    );
    assert_eq!(
        state_of(&serving, &[AgentView::Current(&good), AgentView::Silent]),
        TargetState::Routed
    );
}

#[test]
fn a_reload_does_not_make_known_targets_unknown() {
    let serving = router(&[NET], &[NET], &[NET], true);
    let before = TargetStatus {
        name: "db".into(),
        service: None,
        port: 5432,
        state: TargetState::Routed,
        router: Some("rt1".into()),
        message: None,
        last_transition_time: None,
    };
    let way = classify(TARGET, Some(&serving), &[AgentView::Behind], Some(&before));
    assert_eq!(way.state, TargetState::Routed);
    assert_eq!(
        classify(TARGET, Some(&serving), &[AgentView::Behind], None).state,
        TargetState::Unknown
    );
    assert_eq!(
        classify(TARGET, Some(&serving), &[], Some(&before)).state,
        TargetState::Unknown
    );
    assert_eq!(
        classify(TARGET, Some(&serving), &[AgentView::Silent], Some(&before)).state,
        TargetState::Unknown
    );
}

#[test]
fn an_agent_that_is_not_connected_says_why() {
    let serving = router(&[NET], &[NET], &[NET], true);
    let mut offline = agent(true, None);
    offline.node = None;
    offline.login_error = Some("authkey expired".into());
    let way = classify(TARGET, Some(&serving), &[AgentView::Current(&offline)], None);
    assert_eq!(way.state, TargetState::Unknown);
    assert!(way.message.unwrap().contains("authkey expired"));
}

#[test]
fn a_route_in_the_netmap_is_no_grant_for_every_address_and_port_in_it() {
    let serving = router(&[NET], &[NET], &[NET], true);
    let ok = agent(true, None);
    let state = |policy: &str, address| {
        let document = Document::parse(policy).unwrap();
        let target = Target {
            address,
            policy: Some(document.policy()),
            ..TARGET
        };
        classify(target, Some(&serving), &[AgentView::Current(&ok)], None)
    };
    let one = r#"{"grants": [{"src": ["tag:egress-a"], "dst": ["192.0.2.10"], "ip": ["tcp:5432"]}]}"#;
    assert_eq!(state(one, "192.0.2.10").state, TargetState::Routed);
    let way = state(one, "192.0.2.11");
    assert_eq!(way.state, TargetState::NoGrant);
    assert!(way.message.unwrap().contains("port 5432 of it"));
    assert_eq!(
        state(&one.replace("5432", "443"), "192.0.2.10").state,
        TargetState::NoGrant
    );
}

#[test]
fn agents_of_a_former_identity_say_nothing_of_the_new_one() {
    let before = TargetStatus {
        name: "db".to_owned(),
        service: None,
        port: 5432,
        state: TargetState::Routed,
        router: Some("rt1".to_owned()),
        message: None,
        last_transition_time: None,
    };
    let served = router(&[NET], &[NET], &[NET], true);
    let way = classify(TARGET, Some(&served), &[AgentView::Former], Some(&before));
    assert_eq!(way.state, TargetState::Unknown);
    assert!(way.message.unwrap().contains("former tag"));
}
