//! The state of a site: who advertises its prefixes, whether they are approved and served. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tailnet_crds::SitePrefixStatus;
use tailnet_crds::conditions::reason;
use tailnet_headscale::Node;

/// Most routers that are named for one prefix.
const NAMED: usize = 32;

/// What was seen of one prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// For the status.
    pub status: SitePrefixStatus,
    /// Node id and name of a router that advertises it and has it not approved.
    pub unapproved: Option<(String, String)>,
    /// Its routers' node keys have all expired.
    pub expired: bool,
    /// A node that advertises it and has none of the tags.
    pub stranger: Option<String>,
}

/// The first thing that is missing, as (reason, message); None when the site works.
pub type Missing = Option<(&'static str, String)>;

/// Looks at one prefix. `tags` are those of its routers.
pub fn look(prefix: &str, tags: &BTreeSet<String>, nodes: &[Node], now: Timestamp) -> Seen {
    let has = |routes: &[String]| routes.iter().any(|route| route == prefix);
    let (mut routers, mut strangers) = (Vec::new(), Vec::new());
    for node in nodes.iter().filter(|node| has(&node.available_routes)) {
        match node.tags.iter().any(|tag| tags.contains(tag)) {
            true => routers.push(node),
            false => strangers.push(node),
        }
    }
    let is_primary = |node: &&Node| has(&node.subnet_routes);
    let has_expired = |node: &&Node| node.expiry.is_some_and(|end| end <= now);
    routers.sort_by_key(|node| (!is_primary(node), node.id.number()));
    let approved: Vec<&&Node> = routers.iter().filter(|node| has(&node.approved_routes)).collect();
    let serves = |node: &&&Node| is_primary(node) && node.online && !has_expired(node);
    Seen {
        status: SitePrefixStatus {
            prefix: prefix.chars().take(49).collect(),
            advertised: !routers.is_empty(),
            approved: !approved.is_empty(),
            serving: approved.iter().any(serves),
            routers: routers.iter().take(NAMED).map(|node| node.given_name.clone()).collect(),
        },
        unapproved: routers
            .iter()
            .find(|node| !has(&node.approved_routes))
            .map(|node| (node.id.to_string(), node.given_name.clone())),
        expired: !approved.is_empty() && approved.iter().all(|node| has_expired(node)),
        stranger: strangers.first().map(|node| node.given_name.clone()),
    }
}

/// What keeps the prefixes from being advertised.
pub fn unadvertised(seen: &[Seen], tags: &BTreeSet<String>) -> Missing {
    if tags.is_empty() {
        let message = "no tag says who the routers are: set spec.advertisedBy, or policy.routeApprovers of the Tailnet";
        return Some((reason::NOT_ADVERTISED, message.to_owned()));
    }
    let missing: Vec<&Seen> = seen.iter().filter(|seen| !seen.status.advertised).collect();
    let first = missing.first()?;
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    let stranger = first.stranger.as_ref().map(|name| {
        format!(
            " (node {name} advertises {}, but has none of these tags)",
            first.status.prefix
        )
    });
    Some((
        reason::NOT_ADVERTISED,
        format!(
            "no node with {} advertises {}: tailscale set --advertise-routes on the router{}",
            tags.join(" or "),
            named(&missing),
            stranger.unwrap_or_default()
        ),
    ))
}

/// What keeps the prefixes from being approved. `paste` is what the live policy lacks, `place` is where that belongs.
pub fn unapproved(seen: &[Seen], paste: &str, place: &str) -> Missing {
    let missing: Vec<&Seen> = seen
        .iter()
        .filter(|seen| seen.status.advertised && !seen.status.approved)
        .collect();
    let first = missing.first()?;
    let (id, router) = first.unapproved.clone().unwrap_or_default();
    let how = match paste.is_empty() {
        true => format!(
            "the policy has an approver for it, which Headscale asks at the next write of the policy and when the router advertises something new; or headscale nodes approve-routes for node {id}, with all its routes"
        ),
        false => {
            format!("add {paste} to {place}, or headscale nodes approve-routes for node {id}, with all its routes")
        }
    };
    Some((
        reason::NOT_APPROVED,
        format!("{} of router {router} is not approved: {how}", named(&missing)),
    ))
}

/// What keeps approved prefixes from being served.
pub fn unserved(seen: &[Seen]) -> Missing {
    if let Some(expired) = seen.iter().find(|seen| seen.expired) {
        let message = format!(
            "the node key of {} has expired, so {} leads nowhere: log the router in again",
            expired.status.routers.join(", "),
            expired.status.prefix
        );
        return Some((reason::ROUTER_EXPIRED, message));
    }
    let missing: Vec<&Seen> = seen
        .iter()
        .filter(|seen| seen.status.approved && !seen.status.serving)
        .collect();
    let first = missing.first()?;
    Some((
        reason::NOT_SERVING,
        format!(
            "no live router serves {}: start {}",
            named(&missing),
            first.status.routers.join(" or ")
        ),
    ))
}

fn named(seen: &[&Seen]) -> String {
    let names: Vec<&str> = seen.iter().take(5).map(|seen| seen.status.prefix.as_str()).collect();
    match seen.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const PREFIX: &str = "10.20.0.0/16";

    fn node(id: &str, change: impl FnOnce(&mut Value)) -> Node {
        let mut value = json!({
            "id": id, "givenName": format!("rt{id}"), "online": true, "tags": ["tag:router"],
            "availableRoutes": [PREFIX], "approvedRoutes": [PREFIX], "subnetRoutes": [],
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn seen(nodes: &[Node]) -> Seen {
        look(PREFIX, &tags(), nodes, "2026-06-01T00:00:00Z".parse().unwrap())
    }

    fn tags() -> BTreeSet<String> {
        BTreeSet::from(["tag:router".to_owned()])
    }

    #[test]
    fn the_primary_comes_first_and_serves() {
        let seen = seen(&[
            node("1", |_| {}),
            node("2", |node| node["subnetRoutes"] = json!([PREFIX])),
        ]);
        assert_eq!(seen.status.routers, ["rt2", "rt1"]);
        assert!(seen.status.advertised && seen.status.approved && seen.status.serving);
        let seen = [seen];
        assert_eq!(
            (unadvertised(&seen, &tags()), unapproved(&seen, "", ""), unserved(&seen)),
            (None, None, None)
        );
    }

    #[test]
    fn each_step_of_the_way_is_told() {
        let none = [seen(&[])];
        assert_eq!(unadvertised(&none, &tags()).unwrap().0, "NotAdvertised");
        let stranger = [seen(&[node("1", |node| node["tags"] = json!(["tag:other"]))])];
        let (_, message) = unadvertised(&stranger, &tags()).unwrap();
        assert!(
            message.contains("node rt1 advertises 10.20.0.0/16, but has none of these tags"),
            "{message}"
        );
        assert!(
            unadvertised(&none, &BTreeSet::new())
                .unwrap()
                .1
                .contains("advertisedBy")
        );
        let unapproved_one = [seen(&[node("7", |node| node["approvedRoutes"] = json!([]))])];
        let (reason, message) = unapproved(&unapproved_one, "\"x\": []", "Headscale's policy").unwrap();
        assert_eq!(reason, "NotApproved");
        assert!(
            message.contains("add \"x\": [] to Headscale's policy") && message.contains("node 7"),
            "{message}"
        );
        let offline = [seen(&[node("1", |node| {
            node["subnetRoutes"] = json!([PREFIX]);
            node["online"] = json!(false);
        })])];
        assert_eq!(unserved(&offline).unwrap().0, "NotServing");
        let standby_only = [seen(&[node("1", |_| {})])];
        assert_eq!(unserved(&standby_only).unwrap().0, "NotServing");
        let expired = [seen(&[node("1", |node| {
            node["subnetRoutes"] = json!([PREFIX]);
            node["expiry"] = json!("2026-05-31T00:00:00Z");
        })])];
        let (reason, message) = unserved(&expired).unwrap();
        assert_eq!(reason, "RouterExpired");
        assert!(message.contains("rt1"), "{message}");
    }

    #[test]
    fn another_spelling_or_a_wider_prefix_is_not_this_one() {
        let wide = [seen(&[node("1", |node| {
            node["availableRoutes"] = json!(["10.0.0.0/8"])
        })])];
        assert!(!wide[0].status.advertised);
    }
}
