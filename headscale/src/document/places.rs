//! Where the rules of a document stand.

use super::keys::Level;
use super::tree::{self, Member, Node, Value};
use super::{ParseError, Rule};

/// The line (from 1) of every entry of `grants` and `acls`.
///
/// # Errors
/// The text is no HuJSON.
pub fn rule_lines(text: &str) -> Result<Vec<(Rule, usize)>, ParseError> {
    let mut found = Vec::new();
    let lines = Lines::of(text);
    for member in top(text)? {
        let rule: fn(usize) -> Rule = match Level::Top.canonical(&member.key) {
            Some("grants") => Rule::Grant,
            Some("acls") => Rule::Acl,
            _ => continue,
        };
        if let Value::Array(items) = &member.node.value {
            found.extend(
                items
                    .iter()
                    .enumerate()
                    .map(|(at, item)| (rule(at), lines.line(item.at))),
            );
        }
    }
    Ok(found)
}

/// The line (from 1) of every key of `autoApprovers.routes`.
///
/// # Errors
/// The text is no HuJSON.
pub fn route_lines(text: &str) -> Result<Vec<(String, usize)>, ParseError> {
    let mut found = Vec::new();
    let lines = Lines::of(text);
    let of = |members: Vec<Member>, level: Level, key: &str| -> Vec<Member> {
        members
            .into_iter()
            .filter(|member| level.canonical(&member.key) == Some(key))
            .flat_map(|member| inner(member.node))
            .collect()
    };
    let approvers = of(top(text)?, Level::Top, "autoApprovers");
    for route in of(approvers, Level::AutoApprovers, "routes") {
        let line = lines.line(route.at);
        found.push((route.key, line));
    }
    Ok(found)
}

fn top(text: &str) -> Result<Vec<Member>, ParseError> {
    Ok(tree::parse(text)?.map(inner).unwrap_or_default())
}

/// The members of an object; of anything else none.
fn inner(node: Node) -> Vec<Member> {
    match node.value {
        Value::Object(members) => members,
        _ => Vec::new(),
    }
}

/// Where lines end.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line (from 1) of a byte.
    fn line(&self, at: usize) -> usize {
        self.0.partition_point(|newline| *newline < at) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_rules() {
        let text = "{\n  \"Grants\": [\n    {},\n\n    {}],\n  \"acls\": [{}]\n}";
        assert_eq!(
            rule_lines(text).unwrap(),
            [(Rule::Grant(0), 3), (Rule::Grant(1), 5), (Rule::Acl(0), 6)]
        );
        assert_eq!(rule_lines("").unwrap(), []);
        assert_eq!(rule_lines("[]").unwrap(), []);
    }

    #[test]
    fn lines_of_routes() {
        let text = "{\n  \"auto-approvers\": { \"exitNode\": [],\n    \"Routes\": {\n      \"10.0.0.0/8\": [],\n      // x\n      \"2001:db8::/32\":\n[] } } }";
        let route = |prefix: &str, line| (prefix.to_owned(), line);
        assert_eq!(
            route_lines(text).unwrap(),
            [route("10.0.0.0/8", 4), route("2001:db8::/32", 6)]
        );
        assert_eq!(route_lines("{ \"routes\": { \"10.0.0.0/8\": [] } }").unwrap(), []);
    }
}
