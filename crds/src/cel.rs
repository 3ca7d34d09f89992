//! The admission rules that the API server checks itself, as CEL in the schemas: they hold when the webhook is down.
//!
//! [`RULES`] is the one table. The generator writes every row into the schema of its kind as
//! `x-kubernetes-validations`; the rule table of the policies takes its wording from here, so that a user reads the
//! same text whoever refused.
//!
//! Two rows of one field never fail together: text that nobody can read fails the row of the field's format, text that
//! can be read in more than one way fails the TN010 row.

mod common;
mod egress;
mod gateway;
mod ingress;
mod site;
mod tailnet;

use serde_json::{Value, json};

use crate::Kind;

/// One rule of one place in one kind's schema.
#[derive(Clone, Copy, Debug)]
pub struct CelRule {
    /// Id of the admission rule, such as `TN203`.
    pub id: &'static str,
    /// Kind whose schema it is in.
    pub kind: Kind,
    /// Place in the schema, such as `spec.targets[].address`; empty for the object itself.
    pub path: &'static str,
    /// The expression; true is good.
    pub rule: &'static str,
    /// What is wrong, without the id: it continues `<field>: Invalid value: "…":`.
    pub message: &'static str,
    /// Expression for a message that names the way out, with `[ID]` where the id goes; `message` is what remains when
    /// it fails. It formats and never concatenates: the API server takes `string(ip(self))` for endless and refuses
    /// the schema for the cost of copying it.
    pub message_expression: Option<&'static str>,
    /// Class of the error.
    pub reason: Reason,
    /// Field below `path` that the error names, such as `.tailnetRef`.
    pub field_path: Option<&'static str>,
    /// Whether the value may be a URL with a password in it. The API server repeats the value of a field that breaks a
    /// rule of its own, but not an object's: so the rule is written into the object above, and quotes the value itself,
    /// where it has no `@`.
    pub careful: bool,
}

/// Class of an error. There is no `FieldValueDuplicate`: the API server then shows no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `Invalid value`.
    Invalid,
    /// `Forbidden`.
    Forbidden,
}

impl Reason {
    /// As the schema writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
        }
    }
}

impl CelRule {
    const fn new(id: &'static str, kind: Kind, path: &'static str, rule: &'static str, message: &'static str) -> Self {
        Self {
            id,
            kind,
            path,
            rule,
            message,
            message_expression: None,
            reason: Reason::Invalid,
            field_path: None,
            careful: false,
        }
    }

    const fn saying(mut self, expression: &'static str) -> Self {
        self.message_expression = Some(expression);
        self
    }

    const fn careful(mut self) -> Self {
        self.careful = true;
        self
    }

    const fn because(mut self, reason: Reason) -> Self {
        self.reason = reason;
        self
    }

    const fn at(mut self, field_path: &'static str) -> Self {
        self.field_path = Some(field_path);
        self
    }

    /// The message as the user sees it, `… [TN203]`.
    pub fn full_message(&self) -> String {
        format!("{} [{}]", self.message, self.id)
    }

    /// Place of the schema that the row is written into.
    pub fn schema_path(&self) -> &'static str {
        match self.path.rsplit_once('.') {
            Some((above, _)) if self.careful => above,
            _ => self.path,
        }
    }

    /// The row as an entry of `x-kubernetes-validations` of [`CelRule::schema_path`].
    pub fn to_schema(&self) -> Value {
        if let (true, Some((_, name))) = (self.careful, self.path.rsplit_once('.')) {
            return self.schema_above(name);
        }
        let mut entry = json!({ "rule": self.rule, "message": self.full_message() });
        if let Some(expression) = self.message_expression {
            entry["messageExpression"] = json!(expression.replace("[ID]", &format!("[{}]", self.id)));
        }
        if self.reason != Reason::Invalid {
            entry["reason"] = json!(self.reason.as_str());
        }
        if let Some(field_path) = self.field_path {
            entry["fieldPath"] = json!(field_path);
        }
        entry
    }

    /// The row for the object that has the field `name`.
    fn schema_above(&self, name: &str) -> Value {
        let value = format!("self.{name}");
        let message = self.full_message();
        json!({
            "rule": format!("!has({value}) || ({})", self.rule.replace("self", &value)),
            "message": message,
            "messageExpression": format!("{value}.contains('@') ? '{message}' : '\"%s\": {message}'.format([{value}])"),
            "fieldPath": format!(".{name}"),
        })
    }
}

/// Every rule, by kind and place.
pub static RULES: &[&[CelRule]] = &[
    tailnet::RULES,
    egress::RULES,
    ingress::RULES,
    site::RULES,
    gateway::RULES,
];

/// Every rule, by kind and place.
pub fn rules() -> impl Iterator<Item = &'static CelRule> {
    RULES.iter().copied().flatten()
}

/// What rule `id` says at `path` of `kind`, without the id; the first row's text where there are several.
pub fn detail(id: &str, kind: Kind, path: &str) -> Option<&'static str> {
    rules()
        .find(|rule| rule.id == id && rule.kind == kind && rule.path == path)
        .map(|rule| rule.message)
}
