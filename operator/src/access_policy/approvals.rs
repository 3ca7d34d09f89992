//! Routes that an approver in the policy should have approved.
//!
//! Headscale applies `autoApprovers` when a policy is written and when a node advertises something new, and not at other
//! times. After a write, what it left is approved here: exact prefixes only, added to what is approved.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use tailnet_headscale::document::Policy;
use tailnet_headscale::{Client, Error, Id, Node};

/// Routes of nodes: (node id, route).
pub type Routes = BTreeSet<(String, String)>;

/// What was not approved before a write although the policy of then had an approver: a person took it away.
pub type Before = Routes;

/// (node id, route) of every route that is advertised, not approved, and has an approver in `policy`. `exact`: only where the
/// policy names that very prefix.
fn missing(nodes: &[Node], policy: &Policy, exact: bool) -> Routes {
    let approvers: Vec<(IpNet, &Vec<String>)> = policy
        .auto_approvers
        .routes
        .iter()
        .filter_map(|(prefix, by)| Some((prefix.parse().ok()?, by)))
        .collect();
    let mut found = BTreeSet::new();
    for node in nodes {
        for route in node
            .available_routes
            .iter()
            .filter(|route| !node.approved_routes.contains(route))
        {
            let Ok(prefix) = route.parse::<IpNet>() else { continue };
            // An exit route is never approved by a route's approver.
            let fits = |known: &IpNet| match exact {
                _ if prefix.prefix_len() == 0 => false,
                true => *known == prefix,
                false => known.contains(&prefix),
            };
            let by_tag = |by: &[String]| node.tags.iter().any(|tag| by.contains(tag));
            if approvers.iter().any(|(known, by)| fits(known) && by_tag(by)) {
                found.insert((node.id.to_string(), route.clone()));
            }
        }
    }
    found
}

/// What a person has taken the approval from, as far as the live policy tells.
pub fn taken_back(nodes: &[Node], live: &Policy) -> Before {
    missing(nodes, live, false)
}

/// One sentence per route of `before` that is approved now: by Headscale already, or `replayed`.
pub fn approved_again(nodes: &[Node], replayed: &Routes, before: &Before) -> Vec<String> {
    let mut told = Vec::new();
    for (id, route) in before {
        let Some(node) = nodes.iter().find(|node| node.id.as_str() == id) else {
            continue;
        };
        if node.approved_routes.contains(route) || replayed.contains(&(id.clone(), route.clone())) {
            told.push(format!(
                "{route} of router {} had not been approved, and writing the policy approved it: Headscale applies autoApprovers at every write. To keep it off, take the prefix out of the site, egress or base document, or stop advertising it",
                node.given_name
            ));
        }
    }
    told
}

/// Approves what Headscale left, and gives it.
///
/// # Errors
/// Headscale's.
pub async fn replay(client: &Client, nodes: &[Node], live: &Policy) -> Result<Routes, Error> {
    let missing = missing(nodes, live, true);
    let mut by_node: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, route) in missing.clone() {
        by_node.entry(id).or_default().push(route);
    }
    for (id, routes) in &by_node {
        let approved = nodes
            .iter()
            .find(|node| node.id.as_str() == id)
            .map(|node| node.approved_routes.clone())
            .unwrap_or_default();
        let mut all = approved;
        all.extend(routes.iter().cloned());
        tracing::info!(node = id, ?routes, "approving routes that the policy approves");
        client.approve_routes(&Id::new(id.clone()), &all).await?;
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailnet_headscale::document::Document;

    fn nodes() -> Vec<Node> {
        serde_json::from_value(serde_json::json!([
            { "id": "1", "givenName": "rt1", "tags": ["tag:router"], "availableRoutes": ["10.0.1.0/24", "10.0.2.0/24", "0.0.0.0/0"], "approvedRoutes": ["10.0.2.0/24"] },
            { "id": "2", "givenName": "pc", "tags": [], "availableRoutes": ["10.0.1.0/24"], "approvedRoutes": [] },
        ]))
        .unwrap()
    }

    fn policy(text: &str) -> Policy {
        Document::parse(text).unwrap().policy().clone()
    }

    #[test]
    fn only_exact_prefixes_of_tagged_routers_are_replayed() {
        let route = |id: &str, route: &str| (id.to_owned(), route.to_owned());
        let wide = policy(
            r#"{ "autoApprovers": { "routes": { "10.0.0.0/8": ["tag:router"], "0.0.0.0/0": ["tag:router"] } } }"#,
        );
        assert_eq!(taken_back(&nodes(), &wide), BTreeSet::from([route("1", "10.0.1.0/24")]));
        assert_eq!(
            missing(&nodes(), &wide, true),
            BTreeSet::new(),
            "neither a wider prefix nor an exit route"
        );
        let exact = policy(r#"{ "autoApprovers": { "routes": { "10.0.1.0/24": ["tag:router"] } } }"#);
        assert_eq!(
            missing(&nodes(), &exact, true),
            BTreeSet::from([route("1", "10.0.1.0/24")])
        );
        let other = policy(r#"{ "autoApprovers": { "routes": { "10.0.1.0/24": ["tag:other"] } } }"#);
        assert_eq!(missing(&nodes(), &other, true), BTreeSet::new());
    }

    #[test]
    fn what_comes_back_is_told_with_the_remedy() {
        let before = BTreeSet::from([
            ("1".to_owned(), "10.0.1.0/24".to_owned()),
            ("1".to_owned(), "10.0.2.0/24".to_owned()),
        ]);
        let told = approved_again(&nodes(), &Routes::new(), &before);
        assert_eq!(told.len(), 1);
        let replayed = Routes::from([("1".to_owned(), "10.0.1.0/24".to_owned())]);
        assert_eq!(approved_again(&nodes(), &replayed, &before).len(), 2);
        assert!(
            told[0].starts_with("10.0.2.0/24 of router rt1") && told[0].contains("take the prefix out"),
            "{told:?}"
        );
    }
}
