//! The links of an egress after its Tailnet: key, node, route, grant, names, agent, backend.

use serde_json::Value;
use tailnet_crds::TargetState;
use tailnet_crds::agent::DialResult;
use tailnet_crds::conditions::condition::{DNS_READY, KEY_READY, POLICY_READY, WORKLOAD_READY};
use tailnet_crds::conditions::reason;

use super::chain::link_of;
use super::link::{Link, Own, State};
use super::probe::{Probe, ProbeError};
use super::scene::Scene;

/// Reasons of `WorkloadReady` that are about what running agents do, not about whether they run.
const OF_THE_AGENT: [&str; 2] = [reason::CONFIG_REFUSED, reason::ROLLING_OUT];

/// Adds the links.
pub fn links(scene: &Scene, links: &mut Vec<Link>) {
    links.extend(link_of(scene.kind, &scene.object, KEY_READY, "key"));
    links.extend(node(scene));
    route(scene, links);
    grant(scene, links);
    links.extend(link_of(scene.kind, &scene.object, DNS_READY, "dns"));
    links.extend(agent(scene));
    backend(scene, links);
}

/// One target as spec and status have it.
struct Target<'a> {
    name: &'a str,
    state: &'a str,
    router: Option<&'a str>,
    message: &'a str,
}

fn targets(scene: &Scene) -> Vec<Target<'_>> {
    let list = |part: &str| scene.object[part]["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let told = list("status");
    list("spec")
        .iter()
        .filter_map(|target| target["name"].as_str())
        .map(|name| {
            let told = told.iter().find(|told| told["name"] == name).unwrap_or(&Value::Null);
            Target {
                name,
                state: told["state"].as_str().unwrap_or(TargetState::Unknown.as_str()),
                router: told["router"].as_str(),
                message: told["message"].as_str().unwrap_or_default(),
            }
        })
        .collect()
}

fn node(scene: &Scene) -> Option<Link> {
    const NAME: &str = "node";
    let link = link_of(scene.kind, &scene.object, WORKLOAD_READY, NAME)?;
    if link.state.stops() && !OF_THE_AGENT.contains(&link.reason.as_str()) {
        return Some(link);
    }
    if let Some((pod, why)) = offline(scene.probe.as_ref()) {
        let message = format!("agent {pod} is not connected to the tailnet: {why}");
        return Some(Link::own(scene.kind, NAME, State::Broken, Own::NodeOffline, message));
    }
    let nodes = scene.object["status"]["nodes"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let named: Vec<String> = nodes
        .iter()
        .map(|node| {
            let word = |key: &str| node[key].as_str().unwrap_or("?");
            let online = if node["online"] == true { "online" } else { "offline" };
            format!("{} ({}) is {online}", word("name"), word("ipv4"))
        })
        .collect();
    let (state, message) = if nodes.is_empty() {
        (State::Unknown, "no agent has told which node it is yet".to_owned())
    } else if nodes.iter().any(|node| node["online"] == true) {
        (State::Ok, named.join(", "))
    } else {
        (
            State::Broken,
            format!("Headscale sees no node of the agents: {}", named.join(", ")),
        )
    };
    Some(match state {
        State::Ok => Link::new(scene.kind, NAME, state, reason::AVAILABLE, message),
        State::Unknown => Link::new(scene.kind, NAME, state, reason::UNKNOWN, message),
        _ => Link::own(scene.kind, NAME, state, Own::NodeOffline, message),
    })
}

/// An agent that says itself that its node is offline, and why.
fn offline(probe: Option<&Probe>) -> Option<(&str, &str)> {
    probe?.agents.iter().find_map(|(pod, agent)| {
        let status = agent.status.as_ref().ok()?;
        let online = status.node.as_ref().is_some_and(|node| node.online);
        (!online).then(|| (pod.as_str(), status.login_error.as_deref().unwrap_or("it is joining")))
    })
}

fn route(scene: &Scene, links: &mut Vec<Link>) {
    const NAME: &str = "route";
    let targets = targets(scene);
    let mut held = 0;
    for target in &targets {
        let state = match target.state {
            "NotAdvertised" | "NotApproved" | "NotServing" => State::Broken,
            "Unknown" => State::Unknown,
            _ => {
                held += 1;
                continue;
            }
        };
        links.push(Link::new(scene.kind, NAME, state, target.state, target.message).of_target(target.name));
    }
    if held > 0 {
        let mut routers: Vec<&str> = targets.iter().filter_map(|target| target.router).collect();
        routers.sort_unstable();
        routers.dedup();
        let by = if routers.is_empty() {
            String::new()
        } else {
            format!(" by {}", routers.join(", "))
        };
        let message = format!("{held} of {} targets are served{by}", targets.len());
        links.push(Link::new(scene.kind, NAME, State::Ok, reason::ROUTED, message));
    }
}

fn grant(scene: &Scene, links: &mut Vec<Link>) {
    const NAME: &str = "grant";
    let before = links.len();
    for target in targets(scene) {
        if target.state == TargetState::NoGrant.as_str() {
            let link = Link::new(scene.kind, NAME, State::Broken, reason::NO_GRANT, target.message);
            links.push(link.of_target(target.name));
        }
    }
    let named = links.len() > before;
    let policy = link_of(scene.kind, &scene.object, POLICY_READY, NAME);
    match policy {
        // The targets say it in more detail.
        Some(link) if named && link.reason == reason::NO_GRANT => {}
        // What makes every grant impossible comes first.
        Some(link) if named && link.state.stops() => links.insert(before, link),
        Some(link) if !named => links.push(link),
        _ => {}
    }
}

fn agent(scene: &Scene) -> Option<Link> {
    const NAME: &str = "agent";
    let link = link_of(scene.kind, &scene.object, WORKLOAD_READY, NAME)?;
    if link.state.stops() && OF_THE_AGENT.contains(&link.reason.as_str()) {
        return Some(link);
    }
    if let Some(error) = scene.probe.as_ref().and_then(not_probed) {
        return Some(Link::own(
            scene.kind,
            NAME,
            State::Unknown,
            Own::ProbeFailed,
            error.to_string(),
        ));
    }
    if scene.probe.as_ref().is_some_and(|probe| probe.agents.is_empty()) {
        let message = "no agent is running that could be asked";
        return Some(Link::own(scene.kind, NAME, State::Unknown, Own::ProbeFailed, message));
    }
    let ready = scene.pods.values().filter(|ready| **ready).count();
    let pods = match scene.pods.len() {
        0 => String::new(),
        all => format!("{ready} of {all} Pods are ready"),
    };
    if link.state.stops() && pods.is_empty() {
        return None;
    }
    Some(match link.state {
        State::Ok => Link::new(
            scene.kind,
            NAME,
            State::Ok,
            &link.reason,
            if pods.is_empty() { link.message } else { pods },
        ),
        // Told by `node` already; what is left to say is how many there are.
        _ => Link::new(scene.kind, NAME, State::Note, &link.reason, pods),
    })
}

/// The first agent that could not be asked.
fn not_probed(probe: &Probe) -> Option<&ProbeError> {
    probe.agents.values().find_map(|agent| agent.status.as_ref().err())
}

fn backend(scene: &Scene, links: &mut Vec<Link>) {
    const NAME: &str = "backend";
    let all = targets(scene);
    let before = links.len();
    let mut answered = 0;
    for target in &all {
        if let Some(probe) = &scene.probe {
            match probed(probe, target.name) {
                Probed::Answered => answered += 1,
                Probed::Failed(pod, dial) => {
                    let message = format!("the connection that was made now failed: {}", told(pod, dial));
                    let link = Link::new(scene.kind, NAME, State::Broken, reason::DIAL_FAILED, message);
                    links.push(link.of_target(target.name));
                }
                Probed::NotDone(error) => {
                    let link = Link::own(scene.kind, NAME, State::Unknown, Own::ProbeFailed, error.to_string());
                    links.push(link.of_target(target.name));
                }
                Probed::Nobody => {}
            }
        } else if target.state == TargetState::DialFailed.as_str() {
            let link = Link::new(scene.kind, NAME, State::Broken, reason::DIAL_FAILED, target.message);
            links.push(link.of_target(target.name));
        }
    }
    if scene.probe.is_some() {
        if answered > 0 {
            let message = format!("{answered} of {} targets answer now", all.len());
            links.push(Link::new(scene.kind, NAME, State::Ok, reason::ROUTED, message));
        }
    } else if links.len() == before {
        let routed = all
            .iter()
            .filter(|target| target.state == TargetState::Routed.as_str())
            .count();
        if routed > 0 {
            let message = "no connection has failed lately; --probe makes one now";
            links.push(Link::new(scene.kind, NAME, State::Ok, reason::ROUTED, message));
        }
    }
}

/// What the agents found out about one target.
enum Probed<'a> {
    Answered,
    Failed(&'a str, &'a DialResult),
    NotDone(&'a ProbeError),
    Nobody,
}

/// The worst that an agent found: a target that only some replicas reach fails for some connections.
fn probed<'a>(probe: &'a Probe, target: &str) -> Probed<'a> {
    let mut answered = false;
    let mut not_done = None;
    for (pod, agent) in &probe.agents {
        match agent.dials.get(target) {
            Some(Ok(dial)) if dial.ok => answered = true,
            Some(Ok(dial)) => return Probed::Failed(pod, dial),
            Some(Err(error)) => not_done = not_done.or(Some(error)),
            None => {}
        }
    }
    match not_done {
        Some(error) => Probed::NotDone(error),
        None if answered => Probed::Answered,
        None => Probed::Nobody,
    }
}

fn told(pod: &str, dial: &DialResult) -> String {
    let class = dial.error_class.as_deref().unwrap_or("other");
    let said = dial
        .message
        .as_deref()
        .map(|text| format!(" ({text})"))
        .unwrap_or_default();
    format!("agent {pod}: {class}{said}")
}
