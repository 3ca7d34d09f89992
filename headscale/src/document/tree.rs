//! The document as an owned tree in which every value and every key knows its place in the text.

use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, ast, parse_to_ast};

use super::{ParseError, Position};

/// A value with the byte offsets of its beginning and its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<Member>),
}

/// One `key: value` with the byte offset of the key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) at: usize,
    pub(super) key: String,
    pub(super) node: Node,
}

impl Node {
    /// What the value is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        }
    }

    /// The value as plain JSON.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Number(n) => serde_json::from_str(n).unwrap_or_else(|_| n.clone().into()),
            Value::Text(t) => t.clone().into(),
            Value::Array(items) => items.iter().map(Node::to_json).collect(),
            Value::Object(members) => {
                serde_json::Value::Object(members.iter().map(|m| (m.key.clone(), m.node.to_json())).collect())
            }
        }
    }
}

/// HuJSON is JSON with comments and trailing commas; none of the parser's further liberties.
fn hujson() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// Parses `text`; None when it holds nothing but white space and comments.
pub(super) fn parse(text: &str) -> Result<Option<Node>, ParseError> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &hujson()).map_err(|e| ParseError {
        position: Position::of(text, e.range().start),
        message: e.kind().to_string().to_lowercase(),
    })?;
    Ok(parsed.value.map(own))
}

fn own(value: ast::Value<'_>) -> Node {
    let (at, end) = (value.range().start, value.range().end);
    let value = match value {
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::BooleanLit(b) => Value::Bool(b.value),
        ast::Value::NumberLit(n) => Value::Number(n.value.to_owned()),
        ast::Value::StringLit(s) => Value::Text(s.value.into_owned()),
        ast::Value::Array(array) => Value::Array(array.elements.into_iter().map(own).collect()),
        ast::Value::Object(object) => Value::Object(
            object
                .properties
                .into_iter()
                .map(|p| Member {
                    at: p.range.start,
                    key: p.name.into_string(),
                    node: own(p.value),
                })
                .collect(),
        ),
    };
    Node { at, end, value }
}
