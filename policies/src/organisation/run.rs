//! Asking the policies about one object.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::{Context, ExecutionError, Value};
use serde_json::Value as Json;
use tailnet_crds::structural::Step;

use super::Standing;
use super::document::{Document, MAX_MESSAGE_CHARS, Validation};
use super::expression::Expression;
use super::functions;
use super::meter::{self, TimeOfAll};
use super::scope::{Name, Subject, Unknown, seen};
use crate::finding::{Class, Severity};
use crate::report::{Draft, Notes, Report, Shown, Unchecked, cut};
use crate::request::Layer;
use crate::rules::organisation::TN009;

/// Asks every policy about the object, into findings of TN009.
pub(crate) fn run(subject: &Subject<'_>, drafts: &mut Vec<Draft>, notes: &mut Notes) {
    let policies = subject.snapshot.policies();
    if policies.is_empty() {
        return;
    }
    let time = TimeOfAll::start(subject.snapshot.clock());
    for (name, standing) in policies {
        ask(subject, name, standing, time, drafts, notes);
    }
}

/// Asks one policy.
pub(crate) fn ask(
    subject: &Subject<'_>,
    name: &str,
    standing: &Standing,
    time: TimeOfAll,
    drafts: &mut Vec<Draft>,
    notes: &mut Notes,
) {
    let mut asked = Asked {
        subject,
        policy: name,
        time,
        report: Report {
            rule: &TN009,
            drafts,
            notes,
        },
    };
    match standing {
        Ok(policy) => {
            let mut number = 1;
            for document in &policy.documents {
                asked.document(document, number);
                number += document.validations.len();
            }
        }
        Err(problem) => {
            let detail = format!(
                "the organisation's policy {name:?} cannot be used, so nothing passes it: {}; correct ConfigMap {}/{name}",
                cut(problem, 160),
                subject.snapshot.config().operator_namespace,
            );
            asked.report.add(Class::Forbidden, "spec", Shown::NOTHING, detail);
        }
    }
}

struct Asked<'a, 'r> {
    subject: &'a Subject<'a>,
    policy: &'a str,
    time: TimeOfAll,
    report: Report<'r>,
}

/// Why an expression gave no answer.
enum Failure {
    Limit(meter::Limit),
    Error(String),
}

impl Asked<'_, '_> {
    fn document(&mut self, document: &Document, first: usize) {
        let request = self.subject.request;
        if !document.is_about(request.kind, request.operation) {
            return;
        }
        let guard = request.layer == Layer::Guard;
        // The guard sees what is there, and neither how it came nor who brought it.
        if guard && document.is_about_one_operation(request.kind) {
            return;
        }
        let mut names: BTreeSet<Name> = BTreeSet::new();
        for (_, condition) in &document.conditions {
            if !self.can_decide(condition) {
                return;
            }
            names.extend(condition.uses.iter().copied());
        }
        let mut asked: Vec<(usize, &Validation)> = Vec::new();
        for (at, validation) in document.validations.iter().enumerate() {
            if self.can_decide(&validation.expression) {
                names.extend(validation.expression.uses.iter().copied());
                names.extend(
                    validation
                        .message_expression
                        .iter()
                        .flat_map(|message| message.uses.iter().copied()),
                );
                asked.push((first + at, validation));
            }
        }
        if asked.is_empty() {
            return;
        }
        // A message may use what the validation does not, and what is not known: it then falls back.
        let (context, steps) = self.subject.context(functions::root(), &names);
        meter::metered(self.time, &document.variables, || {
            // Where they are too many, the first question fails.
            let _ = meter::step(steps);
            for (name, condition) in &document.conditions {
                match truth(condition, &context) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(failure) => {
                        self.failed(document, &format!("matchCondition {name:?}"), "spec", failure);
                        return;
                    }
                }
            }
            for (number, validation) in asked {
                match truth(&validation.expression, &context) {
                    Ok(true) => {}
                    Ok(false) => self.refused(document, number, validation, &context),
                    Err(failure) => {
                        let what = format!("validation {number}");
                        self.failed(document, &what, &validation.field, failure);
                    }
                }
            }
        });
    }

    /// Whether this layer knows what the expression uses; notes what it does not.
    fn can_decide(&mut self, expression: &Expression) -> bool {
        match self.subject.request.layer {
            Layer::Webhook => {}
            Layer::Guard => {
                if expression.uses.contains(&Name::Request) || expression.uses.contains(&Name::OldObject) {
                    return false;
                }
            }
            Layer::Lint => {
                if expression.asks_for_user {
                    self.report.unchecked(Unchecked::Requester);
                    return false;
                }
            }
        }
        for name in &expression.uses {
            let unchecked = match self.subject.knows(*name) {
                Ok(()) => continue,
                Err(Unknown::Tailnet) => {
                    Unchecked::NoTailnet(self.subject.object.tailnet_name().unwrap_or_default().to_owned())
                }
                Err(Unknown::Others) => Unchecked::Incomplete(self.subject.request.kind),
                Err(Unknown::Namespaces) => Unchecked::Namespaces,
            };
            self.report.unchecked(unchecked);
            return false;
        }
        true
    }

    fn refused(&mut self, document: &Document, number: usize, validation: &Validation, context: &Context<'_>) {
        let made = validation
            .message_expression
            .as_ref()
            .and_then(|message| text(message, context));
        let detail = made
            .or_else(|| validation.message.clone())
            .unwrap_or_else(|| format!("the organisation's policy does not hold: {}", validation.source));
        let detail = cut(detail.trim_end_matches('.'), MAX_MESSAGE_CHARS);
        let fingerprint = self.fingerprint(&validation.expression, document);
        let id = format!("ORG/{}/{number}", self.policy);
        let draft = self
            .report
            .add(validation.class, &validation.field, Shown::NOTHING, detail);
        draft.severity = document.severity;
        draft.policy = Some(id.into());
        draft.fingerprint = Some(fingerprint);
    }

    fn failed(&mut self, document: &Document, what: &str, field: &str, failure: Failure) {
        let why = match failure {
            Failure::Limit(limit) => limit.text(),
            Failure::Error(error) => format!("fails: {error}"),
        };
        let detail = format!(
            "{what} of the organisation's policy {:?} {}; so it is not let through",
            self.policy,
            cut(&why, 160)
        );
        let draft = self.report.add(Class::Forbidden, field, Shown::NOTHING, detail);
        draft.severity = document.severity;
        if document.severity == Severity::Warn {
            draft.detail = draft.detail.replace("; so it is not let through", "");
        }
    }

    /// The values that the validation reads of the object: as long as they stay as they are, so does the verdict.
    fn fingerprint(&self, expression: &Expression, document: &Document) -> String {
        let object = seen(self.subject.request.kind, self.subject.value);
        let mut reads: Vec<&[Step]> = expression.reads.iter().map(Vec::as_slice).collect();
        for (_, condition) in &document.conditions {
            reads.extend(condition.reads.iter().map(Vec::as_slice));
        }
        reads.sort_unstable();
        reads.dedup();
        let values: Vec<Json> = reads.into_iter().map(|path| at(&object, path)).collect();
        Json::from(values).to_string()
    }
}

/// The value at a path; of the whole object or its metadata only what people write.
fn at(object: &Json, path: &[Step]) -> Json {
    let mut value = object;
    for step in path {
        let Step::Field(name) = step else { break };
        match value.get(name) {
            Some(field) => value = field,
            None => return Json::Null,
        }
    }
    let written = |metadata: &Json| {
        Json::from(
            ["labels", "annotations", "finalizers"]
                .map(|name| metadata.get(name).cloned().unwrap_or_default())
                .to_vec(),
        )
    };
    match path {
        [] => Json::from(vec![
            object.get("spec").cloned().unwrap_or_default(),
            object.get("metadata").map(written).unwrap_or_default(),
        ]),
        [Step::Field(only)] if only == "metadata" => written(value),
        _ => value.clone(),
    }
}

/// An expression's value; a panic of the interpreter is a failure like any other.
fn value(expression: &Expression, context: &Context<'_>) -> Result<Value, Failure> {
    let result = meter::step(1).and_then(|()| {
        catch_unwind(AssertUnwindSafe(|| expression.value(context)))
            .unwrap_or_else(|_| Err(ExecutionError::function_error("cel", "the interpreter failed")))
    });
    // Also when the failure was swallowed on the way.
    if let Some(limit) = meter::exceeded() {
        return Err(Failure::Limit(limit));
    }
    result.map_err(|error| Failure::Error(plain(&error)))
}

fn truth(expression: &Expression, context: &Context<'_>) -> Result<bool, Failure> {
    match value(expression, context)? {
        Value::Bool(truth) => Ok(truth),
        other => Err(Failure::Error(format!(
            "it gives a {} and not true or false",
            other.type_of()
        ))),
    }
}

/// The text that a messageExpression makes; None where it makes none.
fn text(expression: &Expression, context: &Context<'_>) -> Option<String> {
    match value(expression, context) {
        Ok(Value::String(text)) => {
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            (!line.is_empty()).then_some(line)
        }
        _ => None,
    }
}

/// The interpreter's words on one line, with a hint for the commonest mistake.
fn plain(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => {
            format!("there is no field or key {key:?} (ask with has() or [?{key:?}] first)")
        }
        ExecutionError::NoSuchOverload => "an operator or function is used on values that it does not take".to_owned(),
        other => {
            let text = other.to_string();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        }
    }
}
