//! How far the way to an egress target goes, from what Headscale and the agents say. Pure.
//!
//! In the order of the way: is there a prefix that covers the address (the router's turn), is it approved (the
//! administrator's), does a live router serve it, may this node see it (the policy's turn), does the agent get through.

use std::net::IpAddr;

use ipnet::IpNet;
use tailnet_crds::agent::{AgentStatus, AgentTarget};
use tailnet_crds::{TargetState, TargetStatus};
use tailnet_headscale::Node;
use tailnet_headscale::document::Policy;
use tailnet_policies::certainly_denied;

/// The target of the CR.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its name.
    pub name: &'a str,
    /// IP literal or DNS name.
    pub address: &'a str,
    /// Remote port.
    pub port: i32,
    /// The tag of the agents' nodes.
    pub tag: &'a str,
    /// Addresses of all targets of the CR: what one router still has to have approved is named in one command.
    pub siblings: &'a [IpAddr],
    /// Headscale's live policy; None when it cannot be read.
    pub policy: Option<&'a Policy>,
}

/// One running agent.
#[derive(Clone, Debug)]
pub enum AgentView<'a> {
    /// It answered, and its configuration is the newest.
    Current(&'a AgentStatus),
    /// It answered, and has not loaded the newest configuration yet.
    Behind,
    /// It has not answered (yet).
    Silent,
    /// It is the node of a former tag or login server.
    Former,
}

/// The verdict on one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The state.
    pub state: TargetState,
    /// The node that routes, or is, the target.
    pub router: Option<String>,
    /// What is wrong, and whose turn it is; None when nothing is.
    pub message: Option<String>,
}

impl Way {
    fn new(state: TargetState, router: Option<&str>, message: impl Into<String>) -> Self {
        Self {
            state,
            router: router.map(str::to_owned),
            message: Some(message.into()),
        }
    }
}

/// Headscale's side of the way.
enum Headscale {
    /// It ends there.
    Ends(Way),
    /// A node serves it.
    Serves { router: String },
    /// A DNS name: only the agent knows its addresses.
    Name,
}

/// The state of `target`. `nodes` is the last node list of Headscale (None before the first); `before` is what the status
/// says now, which stays while agents load a new configuration.
pub fn classify(
    target: Target<'_>,
    nodes: Option<&[Node]>,
    agents: &[AgentView<'_>],
    before: Option<&TargetStatus>,
) -> Way {
    let Some(nodes) = nodes else {
        return Way::new(TargetState::Unknown, None, "Headscale has not been read yet");
    };
    match headscale_side(target, nodes) {
        Headscale::Ends(way) => way,
        Headscale::Serves { router } => agent_side(target, Some(&router), nodes, agents, before),
        Headscale::Name => agent_side(target, None, nodes, agents, before),
    }
}

fn headscale_side(target: Target<'_>, nodes: &[Node]) -> Headscale {
    let Ok(address) = target.address.parse::<IpAddr>() else {
        return Headscale::Name;
    };
    let is_it = |node: &&Node| node.ip_addresses.iter().any(|ip| ip.parse() == Ok(address));
    if let Some(node) = nodes.iter().find(is_it) {
        if node.online {
            return Headscale::Serves {
                router: node.given_name.clone(),
            };
        }
        let message = format!(
            "the tailnet node {} has this address and is offline: start it",
            node.given_name
        );
        return Headscale::Ends(Way::new(TargetState::NotServing, Some(&node.given_name), message));
    }
    // Longest prefix first. Exit routes are left out: agents do not use exit nodes.
    let mut covering: Vec<(IpNet, &Node, &str)> = nodes
        .iter()
        .flat_map(|node| node.available_routes.iter().map(move |route| (node, route.as_str())))
        .filter_map(|(node, route)| Some((route.parse::<IpNet>().ok()?, node, route)))
        .filter(|(prefix, _, _)| prefix.prefix_len() > 0 && prefix.contains(&address))
        .collect();
    covering.sort_by_key(|(prefix, node, _)| (std::cmp::Reverse(prefix.prefix_len()), node.id.number()));
    let has = |routes: &[String], route: &str| routes.iter().any(|found| found == route);
    if let Some((_, node, _)) = covering
        .iter()
        .find(|(_, node, route)| has(&node.subnet_routes, route) && node.online)
    {
        return Headscale::Serves {
            router: node.given_name.clone(),
        };
    }
    if let Some((_, node, route)) = covering
        .iter()
        .find(|(_, node, route)| has(&node.approved_routes, route))
    {
        let why = if node.online {
            "it is not the primary router and nobody else is"
        } else {
            "it is offline"
        };
        let message = format!(
            "router {} may serve {route}, but {why}: start the router",
            node.given_name
        );
        return Headscale::Ends(Way::new(TargetState::NotServing, Some(&node.given_name), message));
    }
    if let Some((_, node, route)) = covering.first() {
        let routes = routes_to_approve(node, route, target.siblings);
        let message = format!(
            "router {} advertises {route}, but the route is not approved: approve it with the others of this router (headscale nodes approve-routes --identifier {} --routes {}) or add its tag to autoApprovers of the policy",
            node.given_name,
            node.id,
            routes.join(",")
        );
        return Headscale::Ends(Way::new(TargetState::NotApproved, Some(&node.given_name), message));
    }
    let host = IpNet::from(address);
    let message = format!(
        "no router advertises a prefix with {address}: advertise one on the router (tailscale set --advertise-routes={host}, or the network around it)"
    );
    Headscale::Ends(Way::new(TargetState::NotAdvertised, None, message))
}

/// All routes that `node` should have approved from now on. The command replaces what is approved, so those that are must be
/// in it, and those of the other targets, or the next target's command would take this one's away.
fn routes_to_approve(node: &Node, route: &str, siblings: &[IpAddr]) -> Vec<String> {
    let mut routes = node.approved_routes.clone();
    let longest = |address: &IpAddr| {
        let covering = node
            .available_routes
            .iter()
            .filter_map(|route| Some((route.parse::<IpNet>().ok()?, route)))
            .filter(|(prefix, _)| prefix.prefix_len() > 0 && prefix.contains(address));
        covering
            .max_by_key(|(prefix, _)| prefix.prefix_len())
            .map(|(_, route)| route.as_str())
    };
    for wanted in std::iter::once(route).chain(siblings.iter().filter_map(longest)) {
        if !routes.iter().any(|known| known == wanted) {
            routes.push(wanted.to_owned());
        }
    }
    routes
}

fn agent_side(
    target: Target<'_>,
    router: Option<&str>,
    nodes: &[Node],
    agents: &[AgentView<'_>],
    before: Option<&TargetStatus>,
) -> Way {
    let unknown = |message: String| Way::new(TargetState::Unknown, router, message);
    let current: Vec<&AgentStatus> = agents
        .iter()
        .filter_map(|agent| match agent {
            AgentView::Current(status) => Some(*status),
            AgentView::Behind | AgentView::Silent | AgentView::Former => None,
        })
        .collect();
    if current.is_empty() {
        let behind = agents.iter().any(|agent| matches!(agent, AgentView::Behind));
        return match before {
            Some(before) if behind && before.state != TargetState::Unknown => Way {
                state: before.state,
                router: before.router.clone(),
                message: before.message.clone(),
            },
            _ if behind => unknown("the agents are loading the new configuration".to_owned()),
            _ if agents.iter().any(|agent| matches!(agent, AgentView::Former)) => unknown(
                "the agents that run are still nodes of the former tag or login server; the new ones do not run yet"
                    .to_owned(),
            ),
            _ if agents.is_empty() => unknown("no agent is running yet".to_owned()),
            _ => unknown("no agent answers on its status port".to_owned()),
        };
    }
    // The worst of the agents: a target that only some replicas reach fails for some connections.
    let ways = current.iter().map(|status| one_agent(target, router, nodes, status));
    ways.max_by_key(|way| badness(way.state))
        .unwrap_or_else(|| unknown("no agent is running yet".to_owned()))
}

fn badness(state: TargetState) -> u8 {
    match state {
        TargetState::Routed => 0,
        TargetState::Unknown => 1,
        TargetState::DialFailed => 2,
        _ => 3,
    }
}

fn one_agent(target: Target<'_>, router: Option<&str>, nodes: &[Node], status: &AgentStatus) -> Way {
    let unknown = |message: String| Way::new(TargetState::Unknown, router, message);
    let Some(node) = status.node.as_ref().filter(|node| node.online) else {
        let why = status.login_error.as_deref().unwrap_or("it is joining");
        return unknown(format!("the agent is not connected to the tailnet: {why}"));
    };
    let Some(seen) = status.targets.iter().find(|seen| seen.name == target.name) else {
        return unknown("the agent has not loaded this target yet".to_owned());
    };
    if !seen.listening {
        return unknown(format!(
            "agent {} could not open its listen port for this target; see its log",
            node.name
        ));
    }
    if let Some(error) = &seen.route_error {
        return Way::new(
            TargetState::DialFailed,
            router,
            format!("agent {} finds no address of {}: {error}", node.name, target.address),
        );
    }
    let resolves = seen
        .last_dial
        .as_ref()
        .is_none_or(|dial| dial.error_class.as_deref() != Some("resolve"));
    if !seen.routed && resolves {
        return match router {
            Some(router) => no_grant(target, router),
            None => unrouted_name(target, nodes),
        };
    }
    // A route in the netmap says only that something in its prefix may be reached.
    if let (Some(policy), Some(router), Ok(address), Ok(port)) = (
        target.policy,
        router,
        target.address.parse(),
        u16::try_from(target.port),
    ) && certainly_denied(policy, target.tag, address, port)
    {
        return no_grant(target, router);
    }
    let router = seen.router.as_deref().or(router);
    match failed_dial(seen) {
        Some(message) => Way::new(TargetState::DialFailed, router, message),
        None => Way {
            state: TargetState::Routed,
            router: router.map(str::to_owned),
            message: None,
        },
    }
}

fn no_grant(target: Target<'_>, router: &str) -> Way {
    let Target { address, port, tag, .. } = target;
    Way::new(
        TargetState::NoGrant,
        Some(router),
        format!(
            "node {router} serves {address}, but no rule of the policy lets {tag} reach port {port} of it: add a grant {{\"src\": [\"{tag}\"], \"dst\": [\"{address}\"], \"ip\": [\"tcp:{port}\"]}}"
        ),
    )
}

/// A DNS name whose address (as the agent resolves it) has no route in the agent's network map.
fn unrouted_name(target: Target<'_>, nodes: &[Node]) -> Way {
    let label = target.address.split('.').next().unwrap_or_default();
    match nodes.iter().find(|node| node.given_name == label) {
        Some(node) => Way::new(
            TargetState::NoGrant,
            Some(&node.given_name),
            format!(
                "{} looks like tailnet node {}, but no rule of the policy lets {} reach it: add a grant for tcp:{}",
                target.address, node.given_name, target.tag, target.port
            ),
        ),
        None => Way::new(
            TargetState::NotAdvertised,
            None,
            format!(
                "no route to the address of {}: no router advertises it, the route is not approved, or no rule of the policy lets {} reach it",
                target.address, target.tag
            ),
        ),
    }
}

/// What the last dial says, if it failed. Without its time, which would change the status with every try.
fn failed_dial(seen: &AgentTarget) -> Option<String> {
    let dial = seen.last_dial.as_ref().filter(|dial| !dial.ok)?;
    let class = dial.error_class.as_deref().unwrap_or("other");
    let hint = match class {
        "timeout" => "the host is down, or a firewall or the policy does not let this port through",
        "refused" => {
            "nothing listens on this port, or the router cannot reach the host (one in userspace answers so to every failure)"
        }
        "reset" => "the host broke the connection off",
        "resolve" => "the name cannot be resolved from the agent",
        "no-route" => "the route vanished",
        _ => "see the agent's log",
    };
    let said = dial
        .message
        .as_deref()
        .map(|text| format!(" ({text})"))
        .unwrap_or_default();
    Some(format!("the last connection failed, {class}: {hint}{said}"))
}

#[cfg(test)]
#[path = "target_state_tests.rs"]
mod tests;
