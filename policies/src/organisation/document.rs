//! The text of a policy: YAML documents in the shape of a ValidatingAdmissionPolicy's spec, or whole such objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value as Json;
use serde_saphyr::Spanned;
use tailnet_crds::structural::Step;
use tailnet_crds::{GROUP, Kind, VERSION};

use super::Problem;
use super::expression::{Expression, Fault, Surroundings, Wanted, compile, path_text};
use super::scope::Name;
use crate::finding::{Class, Severity};
use crate::request::Operation;

/// Longest expression, in characters.
pub const MAX_EXPRESSION_CHARS: usize = 4096;
/// Longest message, in characters; what a messageExpression makes is cut to it.
pub const MAX_MESSAGE_CHARS: usize = 240;
/// Most validations, and most conditions, of one document.
pub const MAX_VALIDATIONS: usize = 64;
/// Most variables of one document.
pub const MAX_VARIABLES: usize = 32;

/// One document, compiled.
#[derive(Debug)]
pub(crate) struct Document {
    /// What it is asked about.
    pub(crate) matches: Vec<(Kind, BTreeSet<&'static str>)>,
    pub(crate) conditions: Vec<(String, Expression)>,
    pub(crate) variables: Arc<[Variable]>,
    pub(crate) validations: Vec<Validation>,
    /// Deny, unless the policy only warns.
    pub(crate) severity: Severity,
}

/// A variable.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) expression: Expression,
}

/// One validation.
#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) expression: Expression,
    /// The expression's source, for the message when there is no other.
    pub(crate) source: String,
    pub(crate) message: Option<String>,
    pub(crate) message_expression: Option<Expression>,
    pub(crate) class: Class,
    /// The field to show.
    pub(crate) field: String,
}

impl Document {
    /// Whether it is to be asked about this.
    pub(crate) fn is_about(&self, kind: Kind, operation: Operation) -> bool {
        self.matches
            .iter()
            .any(|(of, operations)| *of == kind && operations.contains(word(operation)))
    }

    /// Whether it is only about new objects, or only about changes.
    pub(crate) fn is_about_one_operation(&self, kind: Kind) -> bool {
        self.matches
            .iter()
            .any(|(of, operations)| *of == kind && operations.len() == 1)
    }
}

fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Text {
    #[serde(default)]
    match_constraints: Option<MatchConstraints>,
    #[serde(default)]
    match_conditions: Vec<NamedText>,
    #[serde(default)]
    variables: Vec<NamedText>,
    #[serde(default)]
    validations: Vec<ValidationText>,
    #[serde(default)]
    validation_actions: Option<Vec<String>>,
    #[serde(default)]
    failure_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MatchConstraints {
    resource_rules: Vec<ResourceRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResourceRule {
    #[serde(default)]
    api_groups: Option<Vec<String>>,
    #[serde(default)]
    api_versions: Option<Vec<String>>,
    #[serde(default)]
    operations: Option<Vec<String>>,
    resources: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamedText {
    name: String,
    expression: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ValidationText {
    expression: Spanned<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    message_expression: Option<Spanned<String>>,
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Whole {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "metadata", default)]
    _metadata: Json,
    spec: Text,
}

/// Reads the documents under one key.
pub(crate) fn read(key: &str, text: &str, documents: &mut Vec<Document>, problems: &mut Vec<Problem>) {
    let texts = match parse(text) {
        Ok(texts) => texts,
        Err((line, message)) => {
            problems.push(Problem {
                key: key.to_owned(),
                document: None,
                path: String::new(),
                line,
                position: None,
                message,
            });
            return;
        }
    };
    let several = texts.len() > 1;
    for (at, text) in texts.into_iter().enumerate() {
        let mut reader = Reader {
            key,
            document: several.then_some(at + 1),
            problems,
        };
        if let Some(document) = reader.document(text) {
            documents.push(document);
        }
    }
}

fn parse(text: &str) -> Result<Vec<Text>, (Option<u64>, String)> {
    let fault = |error: serde_saphyr::Error| {
        let line = error.location().map(|at| at.line());
        let text = error.without_snippet().to_string();
        let first = text.lines().next().unwrap_or("is no YAML").to_owned();
        (line, first)
    };
    let values: Vec<Json> = serde_saphyr::from_multiple(text).map_err(fault)?;
    let whole = |value: &Json| value.get("kind").and_then(Json::as_str) == Some("ValidatingAdmissionPolicy");
    if values.iter().any(whole) {
        if !values.iter().all(whole) {
            return Err((
                None,
                "whole ValidatingAdmissionPolicies and bare specs do not go together under one key".to_owned(),
            ));
        }
        let policies: Vec<Whole> = serde_saphyr::from_multiple(text).map_err(fault)?;
        return Ok(policies.into_iter().map(|policy| policy.spec).collect());
    }
    serde_saphyr::from_multiple(text).map_err(fault)
}

struct Reader<'a> {
    key: &'a str,
    document: Option<usize>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem {
            key: self.key.to_owned(),
            document: self.document,
            path: path.into(),
            line: None,
            position: None,
            message: message.into(),
        });
    }

    fn compile(
        &mut self,
        path: &str,
        source: &Spanned<String>,
        around: &Surroundings<'_>,
        wanted: Wanted,
    ) -> Option<Expression> {
        match compile(&source.value, around, wanted) {
            Ok(expression) => Some(expression),
            Err(faults) => {
                self.problems
                    .extend(faults.into_iter().map(|Fault { position, message }| Problem {
                        key: self.key.to_owned(),
                        document: self.document,
                        path: path.to_owned(),
                        line: Some(source.referenced.line()),
                        position,
                        message,
                    }));
                None
            }
        }
    }

    fn bounded(&mut self, path: &str, count: usize, most: usize) {
        if count > most {
            self.problem(
                path,
                format!("has {count} entries, and {most} are allowed: split the policy"),
            );
        }
    }

    fn document(&mut self, text: Text) -> Option<Document> {
        let before = self.problems.len();
        let matches = self.matches(text.match_constraints.as_ref());
        let kinds: Vec<Kind> = matches.iter().map(|(kind, _)| *kind).collect();
        self.bounded("validations", text.validations.len(), MAX_VALIDATIONS);
        self.bounded("matchConditions", text.match_conditions.len(), MAX_VALIDATIONS);
        self.bounded("variables", text.variables.len(), MAX_VARIABLES);
        if self.problems.len() > before {
            return None;
        }
        if text.validations.is_empty() {
            self.problem(
                "validations",
                "there is none: a policy without validations refuses nothing",
            );
        }
        match text.failure_policy.as_deref() {
            None | Some("Fail") => {}
            Some(other) => self.problem(
                "failurePolicy",
                format!("{other:?} is not supported: what cannot be decided is refused (Fail)"),
            ),
        }
        let severity = match text.validation_actions.as_deref() {
            None => Severity::Deny,
            Some([only]) if only == "Deny" => Severity::Deny,
            Some([only]) if only == "Warn" => Severity::Warn,
            Some(_) => {
                self.problem("validationActions", "is either [Deny] or [Warn]");
                Severity::Deny
            }
        };

        let mut variables: Vec<(String, Expression)> = Vec::new();
        for (at, variable) in text.variables.iter().enumerate() {
            let path = format!("variables[{at}]");
            if !is_name(&variable.name) {
                self.problem(
                    format!("{path}.name"),
                    format!("{:?} is no name: letters, digits and _", variable.name),
                );
            }
            if variables.iter().any(|(name, _)| *name == variable.name) {
                self.problem(format!("{path}.name"), format!("{:?} stands twice", variable.name));
            }
            let around = Surroundings {
                kinds: &kinds,
                variables: &variables,
            };
            let path = format!("{path}.expression");
            match self.compile(&path, &variable.expression, &around, Wanted::Anything) {
                Some(expression) => variables.push((variable.name.clone(), expression)),
                // What refers to it would only be told that it is missing.
                None => return None,
            }
        }
        let mut conditions = Vec::new();
        // As in Kubernetes, conditions are decided before variables are there.
        let bare = Surroundings {
            kinds: &kinds,
            variables: &[],
        };
        for (at, condition) in text.match_conditions.iter().enumerate() {
            let path = format!("matchConditions[{at}].expression");
            if let Some(expression) = self.compile(&path, &condition.expression, &bare, Wanted::Boolean) {
                conditions.push((condition.name.clone(), expression));
            }
        }
        let around = Surroundings {
            kinds: &kinds,
            variables: &variables,
        };
        let mut validations = Vec::new();
        for (at, validation) in text.validations.iter().enumerate() {
            validations.extend(self.validation(at, validation, &around));
        }
        (self.problems.len() == before).then(|| Document {
            matches,
            conditions,
            variables: variables
                .into_iter()
                .map(|(_, expression)| Variable { expression })
                .collect(),
            validations,
            severity,
        })
    }

    fn validation(&mut self, at: usize, text: &ValidationText, around: &Surroundings<'_>) -> Option<Validation> {
        let path = format!("validations[{at}]");
        let class = match text.reason.as_deref() {
            None | Some("Invalid" | "RequestEntityTooLarge") => Class::Invalid,
            Some("Forbidden" | "Unauthorized") => Class::Forbidden,
            Some(other) => {
                self.problem(
                    format!("{path}.reason"),
                    format!("{other:?} is none of Invalid, Forbidden, Unauthorized, RequestEntityTooLarge"),
                );
                Class::Invalid
            }
        };
        if let Some(message) = &text.message {
            let length = message.chars().count();
            if message.trim().is_empty() || message.trim().contains('\n') || length > MAX_MESSAGE_CHARS {
                self.problem(
                    format!("{path}.message"),
                    format!("is to be one line of at most {MAX_MESSAGE_CHARS} characters"),
                );
            }
        }
        let expression = self.compile(&format!("{path}.expression"), &text.expression, around, Wanted::Boolean);
        let message_expression = match &text.message_expression {
            Some(source) => Some(self.compile(&format!("{path}.messageExpression"), source, around, Wanted::Text)?),
            None => None,
        };
        let expression = expression?;
        Some(Validation {
            field: field_of(&expression),
            source: text.expression.value.split_whitespace().collect::<Vec<_>>().join(" "),
            message: text.message.as_ref().map(|message| message.trim().to_owned()),
            message_expression,
            class,
            expression,
        })
    }

    fn matches(&mut self, constraints: Option<&MatchConstraints>) -> Vec<(Kind, BTreeSet<&'static str>)> {
        let both = || BTreeSet::from(["CREATE", "UPDATE"]);
        let Some(constraints) = constraints else {
            return Kind::ALL.map(|kind| (kind, both())).to_vec();
        };
        let mut matches: Vec<(Kind, BTreeSet<&'static str>)> = Vec::new();
        for (at, rule) in constraints.resource_rules.iter().enumerate() {
            let path = format!("matchConstraints.resourceRules[{at}]");
            let ours = |given: &Option<Vec<String>>, ours: &str| {
                given
                    .as_ref()
                    .is_none_or(|given| given.iter().any(|one| one == ours || one == "*"))
            };
            if !ours(&rule.api_groups, GROUP) {
                self.problem(
                    format!("{path}.apiGroups"),
                    format!("policies here are about {GROUP} only"),
                );
            }
            if !ours(&rule.api_versions, VERSION) {
                self.problem(format!("{path}.apiVersions"), format!("there is {VERSION} only"));
            }
            let mut operations = BTreeSet::new();
            for operation in rule.operations.iter().flatten() {
                match operation.as_str() {
                    "CREATE" => drop(operations.insert("CREATE")),
                    "UPDATE" => drop(operations.insert("UPDATE")),
                    "*" => operations.extend(both()),
                    other => self.problem(
                        format!("{path}.operations"),
                        format!("{other:?}: policies are asked about CREATE and UPDATE"),
                    ),
                }
            }
            if rule.operations.is_none() {
                operations = both();
            }
            for resource in &rule.resources {
                let kinds: Vec<Kind> = Kind::ALL
                    .into_iter()
                    .filter(|kind| resource == "*" || resource == kind.plural())
                    .collect();
                if kinds.is_empty() {
                    let known = Kind::ALL.map(Kind::plural);
                    self.problem(
                        format!("{path}.resources"),
                        format!("{resource:?} is none of {}", known.join(", ")),
                    );
                }
                for kind in kinds {
                    match matches.iter_mut().find(|(known, _)| *known == kind) {
                        Some((_, known)) => known.extend(operations.iter().copied()),
                        None => matches.push((kind, operations.clone())),
                    }
                }
            }
        }
        matches
    }
}

/// The field that a validation is about: the first one that it reads below spec, else the first one of all.
fn field_of(expression: &Expression) -> String {
    let first_is = |path: &&Vec<Step>, name: &str| path.first() == Some(&Step::Field(name.to_owned()));
    let whole = |path: &&Vec<Step>| path.len() > 1;
    let reads = || expression.reads.iter();
    let path = reads()
        .filter(whole)
        .find(|path| first_is(path, "spec"))
        .or_else(|| reads().filter(whole).find(|path| first_is(path, "metadata")));
    match path {
        Some(path) => path_text(path, ".").trim_start_matches('.').to_owned(),
        None if expression.uses.contains(&Name::Object) || expression.reads.is_empty() => "spec".to_owned(),
        None => "metadata".to_owned(),
    }
}

fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
