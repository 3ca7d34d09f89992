//! Which name each node of an egress should have in Headscale.
//!
//! A new agent joins while its predecessor still holds the name, so Headscale calls it `name-1`; once the old node is
//! gone the operator gives the name back.

use std::collections::BTreeSet;

/// A node of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnNode {
    /// Headscale's id.
    pub id: String,
    /// Its MagicDNS label now.
    pub given_name: String,
}

/// The renames (id, new name) that are possible now: nodes with a wanted name keep it, the others take the first wanted
/// name that no node of the tailnet has. `taken` holds the given names of all nodes, our own included; `wanted` is
/// [`tailnet_policies::names::hostnames_of`].
pub fn renames(own: &[OwnNode], taken: &BTreeSet<String>, wanted: &[String]) -> Vec<(String, String)> {
    let mut free: Vec<&String> = wanted.iter().filter(|name| !taken.contains(*name)).collect();
    free.reverse();
    let mut misnamed: Vec<&OwnNode> = own.iter().filter(|node| !wanted.contains(&node.given_name)).collect();
    // Ids are decimal numbers: shorter is smaller. The oldest node gets the plainest name.
    misnamed.sort_by(|a, b| (a.id.len(), &a.id).cmp(&(b.id.len(), &b.id)));
    misnamed
        .into_iter()
        .filter_map(|node| Some((node.id.clone(), free.pop()?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(nodes: &[(&str, &str)]) -> Vec<OwnNode> {
        nodes
            .iter()
            .map(|(id, name)| OwnNode {
                id: (*id).to_owned(),
                given_name: (*name).to_owned(),
            })
            .collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_successor_waits_for_the_name_and_then_gets_it() {
        let nodes = own(&[("12", "team-a-1")]);
        assert_eq!(renames(&nodes, &set(&["team-a", "team-a-1"]), &names(&["team-a"])), []);
        assert_eq!(
            renames(&nodes, &set(&["team-a-1"]), &names(&["team-a"])),
            [("12".to_owned(), "team-a".to_owned())]
        );
        assert_eq!(
            renames(&own(&[("12", "team-a")]), &set(&["team-a"]), &names(&["team-a"])),
            []
        );
    }

    #[test]
    fn replicas_are_numbered_from_two_and_the_oldest_is_plain() {
        let nodes = own(&[("10", "a-1"), ("9", "a-3"), ("11", "a-2")]);
        let renames = renames(&nodes, &set(&["a-1", "a-2", "a-3"]), &names(&["a", "a-2"]));
        assert_eq!(renames, [("9".to_owned(), "a".to_owned())]);
    }

    #[test]
    fn a_foreign_node_with_the_name_is_left_alone() {
        assert_eq!(
            renames(&own(&[("5", "db-1")]), &set(&["db", "db-1"]), &names(&["db"])),
            []
        );
    }
}
