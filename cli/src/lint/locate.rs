//! A YAML document that remembers in which line each field stands.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A value of a document, with lines inside.
#[derive(Debug)]
pub enum Node {
    /// Null, a boolean, a number or a text.
    Scalar(Value),
    /// A list.
    List(Vec<Spanned<Node>>),
    /// Fields in their order, each with its name's line.
    Fields(Vec<(Spanned<String>, Spanned<Node>)>),
}

impl Node {
    /// The value without lines; lines by path (`spec.targets[2].address`) go to `lines`. The line of a field is that of
    /// its name, the line of a list entry that of its beginning.
    pub fn into_value(self, path: &str, lines: &mut HashMap<String, u64>) -> Value {
        match self {
            Self::Scalar(value) => value,
            Self::List(items) => items
                .into_iter()
                .enumerate()
                .map(|(at, item)| {
                    let path = format!("{path}[{at}]");
                    lines.insert(path.clone(), item.referenced.line());
                    item.value.into_value(&path, lines)
                })
                .collect(),
            Self::Fields(fields) => {
                let mut object = Map::new();
                for (name, node) in fields {
                    let path = if path.is_empty() {
                        name.value.clone()
                    } else {
                        format!("{path}.{}", name.value)
                    };
                    lines.insert(path.clone(), name.referenced.line());
                    if name.value.contains(['.', '/']) {
                        // As rules write keys of labels and annotations.
                        let parent = path.strip_suffix(&format!(".{}", name.value)).unwrap_or_default();
                        lines.insert(format!("{parent}[{}]", name.value), name.referenced.line());
                    }
                    object.insert(name.value, node.value.into_value(&path, lines));
                }
                Value::Object(object)
            }
        }
    }
}

/// The line of a field, or of the nearest field around it that is there.
pub fn line_of(lines: &HashMap<String, u64>, path: &str, otherwise: u64) -> u64 {
    let mut path = path;
    loop {
        if let Some(line) = lines.get(path) {
            return *line;
        }
        match path.rfind(['.', '[']) {
            Some(at) => path = &path[..at],
            None => return otherwise,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_path() {
        let text = "kind: A\nspec:\n  port: 1\n  list:\n    - name: x\n      on: true\n    - name: \"7\"\n---\n# the second\nkind: B\nspec: { a: 1.5, b: [ ~, -2 ] }\n";
        let documents: Vec<Spanned<Node>> = serde_saphyr::from_multiple(text).unwrap();
        let mut values = Vec::new();
        let mut all = Vec::new();
        for document in documents {
            let mut lines = HashMap::new();
            values.push(document.value.into_value("", &mut lines));
            all.push(lines);
        }
        assert_eq!(values[0]["spec"]["list"][1]["name"], "7");
        assert_eq!(values[1]["spec"]["b"][1], -2);
        assert_eq!(line_of(&all[0], "spec.list[1].name", 1), 7);
        assert_eq!(line_of(&all[0], "spec.list[1].missing.deeper", 1), 7);
        assert_eq!(line_of(&all[0], "metadata.name", 1), 1);
        assert_eq!(line_of(&all[1], "spec.b[1]", 9), 11);
    }
}
