//! Where the rules of a document stand.

use super::keys::Level;
use super::tree::{self, Value};
use super::{ParseError, Rule};

/// The line (from 1) of every entry of `grants` and `acls`.
///
/// # Errors
/// The text is no HuJSON.
pub fn rule_lines(text: &str) -> Result<Vec<(Rule, usize)>, ParseError> {
    let mut found = Vec::new();
    let Some(root) = tree::parse(text)? else {
        return Ok(found);
    };
    let Value::Object(members) = &root.value else {
        return Ok(found);
    };
    let starts: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |at: usize| starts.partition_point(|newline| *newline < at) + 1;
    for member in members {
        let rule: fn(usize) -> Rule = match Level::Top.canonical(&member.key) {
            Some("grants") => Rule::Grant,
            Some("acls") => Rule::Acl,
            _ => continue,
        };
        if let Value::Array(items) = &member.node.value {
            found.extend(items.iter().enumerate().map(|(at, item)| (rule(at), line(item.at))));
        }
    }
    Ok(found)
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
    }
}
