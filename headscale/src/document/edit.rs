//! Adding entries to a policy document: insertions into its own bytes, so that comments, order and layout of what people
//! wrote stay as they are.
//!
//! Nothing is removed. The only bytes that are replaced are a `null` where a block is to be, and a test that waits for its
//! nodes, which becomes a comment that holds it.

use std::ops::Range;

use super::keys::Level;
use super::tree::{self, Member, Node, Value};
use super::{ParseError, Position};

/// Most characters of one comment.
const MAX_COMMENT: usize = 300;

/// Entries of one origin, with a comment line above them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// What the comment says; it may be any text, since it is made fit for one line.
    pub comment: String,
    /// JSON text of each entry: a list element, or `"key": value`. One line each.
    pub entries: Vec<String>,
}

/// A test that would make Headscale refuse the document today.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingTest {
    /// Position in its list.
    pub index: usize,
    /// What it waits for.
    pub why: String,
}

/// What is added to a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Additions {
    /// Comment lines before everything else.
    pub header: Vec<String>,
    /// Into `tagOwners`.
    pub tag_owners: Vec<Group>,
    /// Into `autoApprovers.routes`.
    pub routes: Vec<Group>,
    /// Into `grants`. With a group that has no entries, an empty list is written where there is none.
    pub grants: Vec<Group>,
    /// Entries of `tests` that become comments.
    pub waiting_tests: Vec<WaitingTest>,
    /// Entries of `sshTests` that become comments.
    pub waiting_ssh_tests: Vec<WaitingTest>,
}

/// Why nothing can be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The document is no HuJSON.
    #[error("is no HuJSON: {0}")]
    Parse(#[from] ParseError),
    /// A block has another type than it must have.
    #[error("{position}: {path} must be {expected}, is {found}")]
    Type {
        /// Where.
        position: Position,
        /// The block.
        path: &'static str,
        /// The right type.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A block stands there twice: nobody can say which one counts.
    #[error("{position}: {key} is there twice (case does not matter)")]
    Twice {
        /// Where the second one is.
        position: Position,
        /// The key.
        key: &'static str,
    },
}

/// `text` with `additions`.
///
/// # Errors
/// See [`EditError`].
pub fn add(text: &str, additions: &Additions) -> Result<String, EditError> {
    let root = tree::parse(text)?;
    let mut edit = Edit {
        text,
        edits: Vec::new(),
    };
    match &root {
        Some(node) if node.value != Value::Null => edit.root(node, additions)?,
        blank => {
            let body = format!("{{\n{}}}", edit.blocks(&Blocks::default(), additions, "  ", "  "));
            match blank {
                Some(null) => edit.edits.push((null.at..null.end, body)),
                None => {
                    let gap = if text.is_empty() || text.ends_with('\n') {
                        ""
                    } else {
                        "\n"
                    };
                    edit.edits.push((text.len()..text.len(), format!("{gap}{body}\n")));
                }
            }
        }
    }
    let header: String = additions
        .header
        .iter()
        .map(|line| format!("// {}\n", one_line(line)))
        .collect();
    Ok(header + &edit.finish())
}

/// The blocks of a document that entries go into, as far as they are there.
#[derive(Default)]
struct Blocks<'n> {
    tag_owners: Option<&'n Node>,
    auto_approvers: Option<&'n Node>,
    routes: Option<&'n Node>,
    grants: Option<&'n Node>,
    tests: Option<&'n Node>,
    ssh_tests: Option<&'n Node>,
}

struct Edit<'t> {
    text: &'t str,
    /// What takes the place of which bytes; an empty range is an insertion.
    edits: Vec<(Range<usize>, String)>,
}

impl Edit<'_> {
    fn root(&mut self, root: &Node, additions: &Additions) -> Result<(), EditError> {
        let members = self.object(root, "the document")?;
        let mut blocks = Blocks {
            tag_owners: self.block(members, Level::Top, "tagOwners")?,
            auto_approvers: self.block(members, Level::Top, "autoApprovers")?,
            routes: None,
            grants: self.block(members, Level::Top, "grants")?,
            tests: self.block(members, Level::Top, "tests")?,
            ssh_tests: self.block(members, Level::Top, "sshTests")?,
        };
        if let Some(node) = blocks.auto_approvers.filter(|node| node.value != Value::Null) {
            let inner = self.object(node, "autoApprovers")?;
            blocks.routes = self.block(inner, Level::AutoApprovers, "routes")?;
        }
        for (node, waiting, path) in [
            (blocks.tests, &additions.waiting_tests, "tests"),
            (blocks.ssh_tests, &additions.waiting_ssh_tests, "sshTests"),
        ] {
            if let Some(node) = node.filter(|node| node.value != Value::Null) {
                self.set_aside(node, waiting, path)?;
            }
        }
        self.fill_object(blocks.tag_owners, "tagOwners", &additions.tag_owners)?;
        self.fill_object(blocks.routes, "autoApprovers.routes", &additions.routes)?;
        self.fill_list(blocks.grants, "grants", &additions.grants)?;
        let unit = self.unit(root);
        // A new `routes` in an `autoApprovers` that is there.
        if blocks.routes.is_none()
            && !additions.routes.is_empty()
            && let Some(node) = blocks.auto_approvers
        {
            let indent = self.child_indent(node, &unit);
            let body = keyed("routes", '{', &additions.routes, &indent, &unit, '}');
            if node.value == Value::Null {
                let close = self.line_indent(node.at);
                self.edits.push((node.at..node.end, format!("{{\n{body}{close}}}")));
            } else {
                self.insert(node, &body);
            }
        }
        let indent = self.child_indent(root, &unit);
        let body = self.blocks(&blocks, additions, &indent, &unit);
        if !body.is_empty() {
            self.insert(root, &body);
        }
        Ok(())
    }

    /// The text of the blocks that are not there.
    fn blocks(&self, there: &Blocks<'_>, additions: &Additions, indent: &str, unit: &str) -> String {
        let mut body = String::new();
        if there.tag_owners.is_none() && !additions.tag_owners.is_empty() {
            body += &keyed("tagOwners", '{', &additions.tag_owners, indent, unit, '}');
        }
        if there.auto_approvers.is_none() && !additions.routes.is_empty() {
            let inner = format!("{indent}{unit}");
            let routes = keyed("routes", '{', &additions.routes, &inner, unit, '}');
            body += &format!("{indent}\"autoApprovers\": {{\n{routes}{indent}}},\n");
        }
        if there.grants.is_none() && !additions.grants.is_empty() {
            body += &keyed("grants", '[', &additions.grants, indent, unit, ']');
        }
        body
    }

    fn object<'n>(&self, node: &'n Node, path: &'static str) -> Result<&'n [Member], EditError> {
        match &node.value {
            Value::Object(members) => Ok(members),
            _ => Err(self.wrong_type(node, path, "an object")),
        }
    }

    fn wrong_type(&self, node: &Node, path: &'static str, expected: &'static str) -> EditError {
        EditError::Type {
            position: Position::of(self.text, node.at),
            path,
            expected,
            found: node.kind(),
        }
    }

    /// The value of the key that Headscale reads as `key`.
    fn block<'n>(&self, members: &'n [Member], level: Level, key: &'static str) -> Result<Option<&'n Node>, EditError> {
        let mut found = members
            .iter()
            .filter(|member| level.canonical(&member.key) == Some(key));
        let first = found.next().map(|member| &member.node);
        match found.next() {
            Some(second) => Err(EditError::Twice {
                position: Position::of(self.text, second.at),
                key,
            }),
            None => Ok(first),
        }
    }

    fn fill_object(&mut self, node: Option<&Node>, path: &'static str, groups: &[Group]) -> Result<(), EditError> {
        let Some(node) = node else { return Ok(()) };
        match node.value {
            Value::Object(_) | Value::Null => self.fill_container(node, groups, '{', '}'),
            _ => return Err(self.wrong_type(node, path, "an object")),
        }
        Ok(())
    }

    fn fill_list(&mut self, node: Option<&Node>, path: &'static str, groups: &[Group]) -> Result<(), EditError> {
        let Some(node) = node else { return Ok(()) };
        match node.value {
            Value::Array(_) | Value::Null => self.fill_container(node, groups, '[', ']'),
            _ => return Err(self.wrong_type(node, path, "a list")),
        }
        Ok(())
    }

    fn fill_container(&mut self, node: &Node, groups: &[Group], open: char, close: char) {
        if groups.is_empty() {
            return;
        }
        let unit = self.unit(node);
        if node.value == Value::Null {
            let indent = self.line_indent(node.at);
            let body = lines(groups, &format!("{indent}{unit}"));
            self.edits
                .push((node.at..node.end, format!("{open}\n{body}{indent}{close}")));
            return;
        }
        let body = lines(groups, &self.child_indent(node, &unit));
        if !body.is_empty() {
            self.insert(node, &body);
        }
    }

    /// Puts whole lines behind the last child of a list or an object.
    fn insert(&mut self, node: &Node, body: &str) {
        let close = node.end - 1;
        let last = match &node.value {
            Value::Array(items) => items.last().map(|item| item.end),
            Value::Object(members) => members.last().map(|member| member.node.end),
            _ => None,
        };
        if let Some(end) = last
            && self.comma_after(end).is_none()
        {
            self.edits.push((end..end, ",".to_owned()));
        }
        let line = self.text[..close].rfind('\n').map_or(0, |at| at + 1);
        if line > node.at && self.text[line..close].trim().is_empty() {
            self.edits.push((line..line, body.to_owned()));
        } else {
            let indent = self.line_indent(node.at);
            self.edits.push((close..close, format!("\n{body}{indent}")));
        }
    }

    /// Turns the named elements of a list into comments.
    fn set_aside(&mut self, node: &Node, waiting: &[WaitingTest], path: &'static str) -> Result<(), EditError> {
        let Value::Array(items) = &node.value else {
            return Err(self.wrong_type(node, path, "a list"));
        };
        for test in waiting {
            let Some(item) = items.get(test.index) else { continue };
            // Neither the reason nor a text in the test may end the comment.
            let said = format!("{}: {}", one_line(&test.why), item.to_json()).replace("*/", "*\\/");
            self.edits.push((item.at..item.end, format!("/* {said} */")));
            if let Some(comma) = self.comma_after(item.end) {
                self.edits.push((comma..comma + 1, String::new()));
            }
        }
        Ok(())
    }

    /// The offset of the comma that follows, white space and comments aside.
    fn comma_after(&self, end: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let mut at = end;
        loop {
            match bytes.get(at)? {
                b',' => return Some(at),
                byte if byte.is_ascii_whitespace() => at += 1,
                b'/' => {
                    let rest = &self.text[at..];
                    at += match bytes.get(at + 1)? {
                        b'/' => rest.find('\n')?,
                        _ => rest.get(2..)?.find("*/")? + 4,
                    };
                }
                _ => return None,
            }
        }
    }

    /// White space at the beginning of the line of an offset.
    fn line_indent(&self, at: usize) -> String {
        let line = self.text[..at].rfind('\n').map_or(0, |found| found + 1);
        self.text[line..at]
            .chars()
            .take_while(|c| matches!(c, ' ' | '\t'))
            .collect()
    }

    /// One step of indentation as the document has it.
    fn unit(&self, node: &Node) -> String {
        let tabs = self.text[node.at..node.end].contains("\n\t");
        if tabs { "\t" } else { "  " }.to_owned()
    }

    /// Indentation of a container's children: that of its first child, if that begins a line.
    fn child_indent(&self, node: &Node, unit: &str) -> String {
        let first = match &node.value {
            Value::Array(items) => items.first().map(|item| item.at),
            Value::Object(members) => members.first().map(|member| member.at),
            _ => None,
        };
        if let Some(at) = first {
            let line = self.text[..at].rfind('\n').map_or(0, |found| found + 1);
            if line > node.at && self.text[line..at].trim().is_empty() {
                return self.text[line..at].to_owned();
            }
        }
        format!("{}{unit}", self.line_indent(node.at))
    }

    fn finish(mut self) -> String {
        // Insertions at one place stay in the order in which they were made.
        self.edits.sort_by_key(|(range, _)| range.start);
        let added: usize = self.edits.iter().map(|(_, text)| text.len()).sum();
        let mut result = String::with_capacity(self.text.len() + added);
        let mut at = 0;
        for (range, text) in &self.edits {
            result.push_str(&self.text[at..range.start]);
            result.push_str(text);
            at = range.end;
        }
        result.push_str(&self.text[at..]);
        result
    }
}

/// `"key": { … },` over several lines.
fn keyed(key: &str, open: char, groups: &[Group], indent: &str, unit: &str, close: char) -> String {
    let body = lines(groups, &format!("{indent}{unit}"));
    format!("{indent}\"{key}\": {open}\n{body}{indent}{close},\n")
}

fn lines(groups: &[Group], indent: &str) -> String {
    let mut text = String::new();
    for group in groups {
        text += &format!("{indent}// {}\n", one_line(&group.comment));
        for entry in &group.entries {
            text += &format!("{indent}{entry},\n");
        }
    }
    text
}

/// Fit for a comment: what could end the line, or be shown as if it did, becomes a space.
pub fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\u{2028}' | '\u{2029}' | '\u{85}' => ' ',
            c if c.is_control() => ' ',
            c => c,
        })
        .take(MAX_COMMENT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;
    use proptest::prelude::*;

    fn group(comment: &str, entries: &[&str]) -> Group {
        Group {
            comment: comment.to_owned(),
            entries: entries.iter().map(|entry| (*entry).to_owned()).collect(),
        }
    }

    fn all() -> Additions {
        Additions {
            header: vec!["ours".to_owned()],
            tag_owners: vec![group("from E a", &[r#""tag:a": ["group:ops"]"#])],
            routes: vec![group("from E a", &[r#""192.0.2.10/32": ["tag:router"]"#])],
            grants: vec![group(
                "from E a",
                &[r#"{ "src": ["tag:a"], "dst": ["192.0.2.10"], "ip": ["tcp:5432"] }"#],
            )],
            ..Additions::default()
        }
    }

    const BASE: &str = r#"// people
{
  "groups": { "group:ops": ["ann@"] }, // who
  "TagOwners": {
    "tag:router": ["group:ops"] // no comma
  },
  "autoApprovers": { "exitNode": ["group:ops"] },
  /* rules */
  "grants": [
    { "src": ["group:ops"], "dst": ["*"], "ip": ["*"] }, // all
    // last word
  ],
  "nodeAttrs": [],
}
"#;

    #[test]
    fn what_people_wrote_stays_byte_for_byte() {
        let text = add(BASE, &all()).unwrap();
        insta::assert_snapshot!(text);
        let mut rest = text.as_str();
        // Where a comma is needed, it is put in.
        for line in BASE
            .lines()
            .filter(|line| !line.contains("exitNode") && !line.contains("no comma"))
        {
            let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is gone"));
            rest = &rest[at + line.len()..];
        }
        let document = Document::parse(&text).unwrap();
        assert_eq!(document.problems(), []);
        let policy = document.policy();
        assert_eq!(policy.tag_owners.len(), 2);
        assert_eq!(policy.auto_approvers.routes["192.0.2.10/32"], ["tag:router"]);
        assert_eq!(policy.auto_approvers.exit_node, ["group:ops"]);
        assert_eq!(policy.grants.as_ref().unwrap().len(), 2);
    }

    #[test]
    fn every_layout_takes_additions() {
        for base in [
            "",
            "// nothing yet",
            "null",
            "/* x */ null // y",
            "{}",
            "{ }",
            "{\n}\n",
            "{\"grants\":[],\"tagOwners\":{},\"autoApprovers\":{\"routes\":{}}}",
            "{\"grants\":null,\"tagOwners\":null,\"autoApprovers\":null}",
            "{\"auto_approvers\":{\"Routes\":null}}",
            "{\"acls\": [] /* x, */ }",
            "{\"acls\": [] // x,\n }",
            "{\n\t\"grants\": [\n\t\t{\"src\":[\"*\"],\"dst\":[\"*\"],\"ip\":[\"*\"]}\n\t],\n}",
            "{\r\n  \"grants\": [\r\n  ]\r\n}\r\n",
            "{\"tests\": [], \"grants\": [{\"src\":[\"*\"],\"dst\":[\"*\"],\"ip\":[\"*\"]}, /* ] */ ]}",
        ] {
            let text = add(base, &all()).unwrap_or_else(|error| panic!("{base:?}: {error}"));
            let document = Document::parse(&text).unwrap_or_else(|error| panic!("{base:?}: {error}\n{text}"));
            assert_eq!(document.problems(), [], "{base:?}\n{text}");
            let policy = document.policy();
            assert!(policy.tag_owners.contains_key("tag:a"), "{base:?}\n{text}");
            assert!(
                policy.auto_approvers.routes.contains_key("192.0.2.10/32"),
                "{base:?}\n{text}"
            );
            let grants = policy.grants.as_ref().unwrap();
            assert_eq!(grants.last().unwrap().dst, ["192.0.2.10"], "{base:?}\n{text}");
        }
    }

    #[test]
    fn nothing_added_changes_nothing() {
        for base in [BASE, "{}", "{ \"acls\": [] }"] {
            assert_eq!(add(base, &Additions::default()).unwrap(), base);
        }
        assert_eq!(add("", &Additions::default()).unwrap(), "{\n}\n");
    }

    #[test]
    fn an_empty_group_closes_a_document_without_rules() {
        let close = Additions {
            grants: vec![group("kept closed", &[])],
            ..Additions::default()
        };
        let text = add("{}", &close).unwrap();
        assert_eq!(
            Document::parse(&text).unwrap().policy().grants.as_deref(),
            Some(&[][..])
        );
    }

    #[test]
    fn what_cannot_be_added_to_is_told() {
        for (base, told) in [
            (
                "{\n \"grants\": 7 }",
                "line 2, column 12: grants must be a list, is a number",
            ),
            ("[]", "line 1, column 1: the document must be an object, is a list"),
            (
                "{\"tagOwners\": {}, \"TAG_OWNERS\": {}}",
                "line 1, column 19: tagOwners is there twice (case does not matter)",
            ),
            ("{", "is no HuJSON: line 1"),
        ] {
            let error = add(base, &all()).unwrap_err().to_string();
            assert!(error.starts_with(told), "{base:?}: {error}");
        }
    }

    #[test]
    fn waiting_tests_become_comments_that_hold_them() {
        let base = r#"{
  "grants": [],
  "tests": [
    { "src": "tag:new", "accept": ["*/ x:1"] }, // first
    { "src": "ann@", "deny": ["db:22"] },
    { "src": "tag:new", // inside
      "deny": ["db:22"] }
  ],
}"#;
        let waiting = |index| WaitingTest {
            index,
            why: "no node has tag:new */ yet\n".to_owned(),
        };
        let additions = Additions {
            waiting_tests: vec![waiting(0), waiting(2), waiting(9)],
            ..Additions::default()
        };
        let text = add(base, &additions).unwrap();
        let document = Document::parse(&text).unwrap();
        assert_eq!(document.problems(), []);
        assert_eq!(document.policy().tests.len(), 1);
        assert_eq!(document.policy().tests[0].src, "ann@");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn comments_stay_on_their_line() {
        let evil = Additions {
            header: vec!["x\n{ \"acls\": [] }".to_owned()],
            grants: vec![group("a\r\n\"b\": 1,\u{2028}\u{85}*/", &[])],
            ..Additions::default()
        };
        let text = add("{ \"grants\": [] }", &evil).unwrap();
        let document = Document::parse(&text).unwrap();
        assert_eq!(document.problems(), []);
        assert_eq!(document.policy().acls, None);
        assert!(text.lines().next().unwrap().starts_with("// x "), "{text}");
    }

    proptest! {
        #[test]
        fn additions_never_break_a_document(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "\"grants\": []", "\"grants\": null", "\"acls\": [ ]", "\"tagOwners\": {\"tag:b\": []}", "\"hosts\": {}",
                    "\"autoApprovers\": {\"exitNode\": []}", "\"autoApprovers\": {\"routes\": {\"10.0.0.0/8\": []} /* c */}",
                    "\"tests\": [{\"src\": \"a@\"}]",
                ]),
                0..5,
            ),
            gap in prop::sample::select(vec!["", " ", "\n", "\n\t", " // c,\n", " /* , */ "]),
            trailing in any::<bool>(),
            comment in "\\PC{0,20}",
        ) {
            let mut seen: Vec<&str> = Vec::new();
            for piece in pieces {
                let key = piece.split(':').next().unwrap();
                if !seen.iter().any(|known| known.split(':').next().unwrap() == key) {
                    seen.push(piece);
                }
            }
            let joined = seen.join(&format!("{gap},{gap}"));
            let end = if trailing && !seen.is_empty() { "," } else { "" };
            let base = format!("{gap}{{{gap}{joined}{gap}{end}{gap}}}{gap}");
            let before = Document::parse(&base).unwrap();
            let mut additions = all();
            additions.grants[0].comment = comment;
            additions.waiting_tests = vec![WaitingTest { index: 0, why: "w".to_owned() }];
            let text = add(&base, &additions).unwrap();
            let after = Document::parse(&text).unwrap();
            prop_assert_eq!(after.problems(), []);
            let (before, after) = (before.policy(), after.policy());
            prop_assert_eq!(after.grants.as_ref().unwrap().len(), before.grants.iter().flatten().count() + 1);
            prop_assert_eq!(after.tag_owners.len(), before.tag_owners.len() + 1);
            prop_assert_eq!(after.auto_approvers.routes.len(), before.auto_approvers.routes.len() + 1);
            prop_assert_eq!(&after.acls, &before.acls);
            prop_assert_eq!(after.tests.len(), 0);
        }
    }
}
