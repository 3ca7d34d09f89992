//! Checks an object against the structural schema of its kind without an API server: unknown fields, types, bounds,
//! required fields, enums, patterns. Rules in CEL are not run here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, PoisonError, RwLock};

use regex::Regex;
use serde_json::Value;

use crate::Kind;
use crate::crd::schema;

/// A place where an object does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    /// Where, as `spec.targets[2].address`.
    pub path: String,
    /// What is wrong.
    pub problem: SchemaProblem,
}

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaProblem {
    /// The schema has no such field. The names that it has there.
    UnknownField(Vec<String>),
    /// A required field is missing.
    Required,
    /// Another type is wanted.
    Type(String),
    /// A bound, enum or pattern is not kept; the text continues `must`.
    Value(String),
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            SchemaProblem::UnknownField(_) => write!(f, "{}: unknown field", self.path),
            SchemaProblem::Required => write!(f, "{}: Required value", self.path),
            SchemaProblem::Type(wanted) => write!(f, "{}: must be of type {wanted}", self.path),
            SchemaProblem::Value(text) => write!(f, "{}: must {text}", self.path),
        }
    }
}

/// Fields of `metadata`, those that people write first.
const METADATA: [&str; 15] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "generateName",
    "finalizers",
    "ownerReferences",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Every place where the object does not fit the schema of `kind`, in the object's order.
pub fn check(kind: Kind, object: &Value) -> Vec<SchemaError> {
    let mut errors = Vec::new();
    let schema = schema(kind);
    let Some(fields) = object.as_object() else {
        return vec![SchemaError {
            path: String::new(),
            problem: SchemaProblem::Type("object".to_owned()),
        }];
    };
    for name in fields.keys() {
        let known = ["apiVersion", "kind", "metadata", "spec", "status"];
        if !known.contains(&name.as_str()) {
            push(
                &mut errors,
                name,
                SchemaProblem::UnknownField(known.map(str::to_owned).to_vec()),
            );
        }
    }
    for name in fields
        .get("metadata")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, _)| name)
    {
        if !METADATA.contains(&name.as_str()) {
            let known = METADATA.iter().map(|name| (*name).to_owned()).collect();
            push(
                &mut errors,
                &format!("metadata.{name}"),
                SchemaProblem::UnknownField(known),
            );
        }
    }
    for name in ["spec", "status"] {
        match fields.get(name) {
            Some(value) => walk(&schema["properties"][name], value, name.to_owned(), &mut errors),
            None if name == "spec" => push(&mut errors, name, SchemaProblem::Required),
            None => {}
        }
    }
    errors
}

fn push(errors: &mut Vec<SchemaError>, path: &str, problem: SchemaProblem) {
    errors.push(SchemaError {
        path: path.to_owned(),
        problem,
    });
}

fn walk(schema: &'static Value, value: &Value, path: String, errors: &mut Vec<SchemaError>) {
    if schema.get("x-kubernetes-int-or-string").is_some() {
        match value {
            Value::Number(number) if number.is_i64() => check_number(schema, number.as_i64(), &path, errors),
            Value::String(text) => check_string(schema, text, &path, errors),
            _ => push(errors, &path, SchemaProblem::Type("integer or string".to_owned())),
        }
        return;
    }
    let wanted = schema["type"].as_str().unwrap_or("object");
    match (wanted, value) {
        ("object", Value::Object(fields)) => walk_object(schema, fields, &path, errors),
        ("array", Value::Array(items)) => {
            check_count(schema, "Items", items.len(), &path, errors);
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, format!("{path}[{index}]"), errors);
            }
            check_keys_unique(schema, items, &path, errors);
        }
        ("string", Value::String(text)) => check_string(schema, text, &path, errors),
        ("boolean", Value::Bool(_)) => {}
        ("integer", Value::Number(number)) if number.is_i64() => check_number(schema, number.as_i64(), &path, errors),
        ("number", Value::Number(_)) => {}
        _ => push(errors, &path, SchemaProblem::Type(wanted.to_owned())),
    }
}

fn walk_object(
    schema: &'static Value,
    fields: &serde_json::Map<String, Value>,
    path: &str,
    errors: &mut Vec<SchemaError>,
) {
    if let Some(values) = schema.get("additionalProperties") {
        check_count(schema, "Properties", fields.len(), path, errors);
        for (name, value) in fields {
            walk(values, value, format!("{path}[{name}]"), errors);
        }
        return;
    }
    let properties = schema["properties"].as_object();
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        match properties.and_then(|properties| properties.get(name)) {
            Some(property) => walk(property, value, path, errors),
            None => {
                let known = properties
                    .into_iter()
                    .flat_map(serde_json::Map::keys)
                    .cloned()
                    .collect();
                push(errors, &path, SchemaProblem::UnknownField(known));
            }
        }
    }
    let required = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    for name in required.filter(|name| !fields.contains_key(*name)) {
        push(errors, &format!("{path}.{name}"), SchemaProblem::Required);
    }
}

fn check_count(schema: &'static Value, what: &str, count: usize, path: &str, errors: &mut Vec<SchemaError>) {
    let count = count as u64;
    if let Some(min) = schema[format!("min{what}")].as_u64().filter(|min| count < *min) {
        push(
            errors,
            path,
            SchemaProblem::Value(format!("have at least {min} entries")),
        );
    }
    if let Some(max) = schema[format!("max{what}")].as_u64().filter(|max| count > *max) {
        push(
            errors,
            path,
            SchemaProblem::Value(format!("have at most {max} entries")),
        );
    }
}

fn check_keys_unique(schema: &'static Value, items: &[Value], path: &str, errors: &mut Vec<SchemaError>) {
    let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() else {
        return;
    };
    let key_of = |item: &Value| {
        keys.iter()
            .filter_map(Value::as_str)
            .map(|key| item[key].clone())
            .collect::<Vec<_>>()
    };
    for (index, item) in items.iter().enumerate() {
        if items[..index].iter().any(|other| key_of(other) == key_of(item)) {
            push(
                errors,
                &format!("{path}[{index}]"),
                SchemaProblem::Value("not repeat a key".to_owned()),
            );
        }
    }
}

fn check_string(schema: &'static Value, text: &str, path: &str, errors: &mut Vec<SchemaError>) {
    let length = text.chars().count() as u64;
    if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
        push(
            errors,
            path,
            SchemaProblem::Value(format!("be at least {min} characters long")),
        );
    }
    if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
        push(
            errors,
            path,
            SchemaProblem::Value(format!("be at most {max} characters long")),
        );
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.iter().any(|value| value == text)
    {
        let values: Vec<_> = values.iter().filter_map(Value::as_str).collect();
        push(
            errors,
            path,
            SchemaProblem::Value(format!("be one of {}", values.join(", "))),
        );
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && !matches(pattern, text)
    {
        push(errors, path, SchemaProblem::Value(format!("match {pattern}")));
    }
}

/// Whether a text matches a pattern of a schema. There are few patterns, and compiling one takes longer than all else.
fn matches(pattern: &'static str, text: &str) -> bool {
    static COMPILED: LazyLock<RwLock<HashMap<&'static str, Option<Regex>>>> = LazyLock::new(RwLock::default);
    let known = |all: &HashMap<&str, Option<Regex>>| {
        let regex = all.get(pattern)?;
        Some(regex.as_ref().is_some_and(|regex| regex.is_match(text)))
    };
    if let Some(matches) = known(&COMPILED.read().unwrap_or_else(PoisonError::into_inner)) {
        return matches;
    }
    let mut all = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    all.entry(pattern).or_insert_with(|| Regex::new(pattern).ok());
    known(&all).unwrap_or_default()
}

fn check_number(schema: &'static Value, number: Option<i64>, path: &str, errors: &mut Vec<SchemaError>) {
    let Some(number) = number else { return };
    // Bounds may be written as 1 or 1.0.
    let limit = |keyword: &str| schema[keyword].as_f64();
    if let Some(min) = limit("minimum").filter(|min| (number as f64) < *min) {
        push(errors, path, SchemaProblem::Value(format!("be at least {min}")));
    }
    if let Some(max) = limit("maximum").filter(|max| (number as f64) > *max) {
        push(errors, path, SchemaProblem::Value(format!("be at most {max}")));
    }
}

/// A step of a path into an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A field, or a key of a map.
    Field(String),
    /// An entry of a list.
    Entry,
}

/// What the schema of `kind` does not have of a path: the position of the first unknown field and the names that there are
/// in its place. None when the path may exist. Metadata are not in the schema: everything there may exist.
pub fn unknown_step(kind: Kind, path: &[Step]) -> Option<(usize, Vec<String>)> {
    let top = ["apiVersion", "kind", "metadata", "spec", "status"];
    let mut here = match path.first()? {
        Step::Field(name) if ["spec", "status"].contains(&name.as_str()) => &schema(kind)["properties"][name],
        Step::Field(name) if top.contains(&name.as_str()) => return None,
        _ => return Some((0, top.map(str::to_owned).to_vec())),
    };
    for (at, step) in path.iter().enumerate().skip(1) {
        here = match step {
            Step::Entry => here.get("items")?,
            Step::Field(name) => {
                if let Some(values) = here.get("additionalProperties") {
                    values
                } else {
                    let fields = here.get("properties")?.as_object()?;
                    match fields.get(name) {
                        Some(field) => field,
                        None => return Some((at, fields.keys().cloned().collect())),
                    }
                }
            }
        };
    }
    None
}
