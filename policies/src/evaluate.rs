//! Running the table over one request.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::defaults;
use crate::finding::{Finding, ObjectRef, Outcome, Severity};
use crate::object::Object;
use crate::organisation;
use crate::ratchet;
use crate::report::{Draft, Notes, Report, Unchecked};
use crate::request::{Layer, Operation, Request};
use crate::rules::{bypass, shape};
use crate::snapshot::Snapshot;
use crate::table::{Check, Layers, RULES, Rule};
use crate::view::View;

/// The verdict of all rules on one request. Pure: the same request and snapshot give the same verdict.
pub fn evaluate(request: &Request, snapshot: &Snapshot) -> Outcome {
    evaluate_ignoring(request, snapshot, &[])
}

/// [`evaluate`] as if the named objects were not there: for a second look after a live read has shown that the holder on
/// which a denial rests is gone.
pub fn evaluate_ignoring(request: &Request, snapshot: &Snapshot, ignored: &[ObjectRef]) -> Outcome {
    if request.operation == Operation::Delete {
        return going(request, snapshot, ignored);
    }
    let Some(new_value) = &request.new else {
        return Outcome::default();
    };
    let new = read(request, new_value);
    let old = request.old.as_ref().map(|value| read(request, value));

    if let (Some(old), Some(old_value)) = (&old, &request.old)
        && old.deleting
    {
        return terminating(request, old_value, new_value, snapshot);
    }

    let mut notes = Notes::new();
    let mut drafts = run(request, &new, old.as_ref(), snapshot, ignored, &mut notes);
    let ask = |value, object, old, drafts: &mut Vec<Draft>, notes: &mut Notes| {
        let subject = organisation::Subject {
            request,
            value,
            object,
            old,
            snapshot,
        };
        organisation::run(&subject, drafts, notes);
    };
    if new.spec.is_ok() {
        ask(new_value, &new, request.old.as_ref(), &mut drafts, &mut notes);
    }
    if request.layer == Layer::Lint {
        // The API server checks the schema itself; offline it is checked here, and says more than the engine's first fault.
        drafts.retain(|draft| draft.rule != shape::TN014.id);
        shape::schema(request.kind, new_value, &mut drafts, &mut notes);
        bypass::in_lint(
            &new,
            &mut Report {
                rule: &bypass::TN008,
                drafts: &mut drafts,
                notes: &mut notes,
            },
        );
    }
    if let (Operation::Update, Some(old), Some(old_value)) = (request.operation, &old, &request.old) {
        // The old object is asked as one that exists: what it holds it has not lost by this request.
        let mut before = run(request, old, Some(old), snapshot, ignored, &mut Notes::new());
        if old.spec.is_ok() && drafts.iter().any(|draft| draft.policy.is_some()) {
            ask(old_value, old, Some(old_value), &mut before, &mut Notes::new());
        }
        ratchet::lower(&mut drafts, &before);
        if ratchet::untouched(old_value, new_value) {
            for draft in &mut drafts {
                draft.warn();
            }
        }
    }
    let bypassed = bypass::let_past(&mut drafts, &new, request);
    Outcome {
        bypassed: bypassed.into_iter().map(Draft::finish).collect(),
        ..outcome(drafts, notes)
    }
}

/// What is to be said of a deletion. It is never denied: whoever may delete an object may.
fn going(request: &Request, snapshot: &Snapshot, ignored: &[ObjectRef]) -> Outcome {
    let Some(old) = request.old.as_ref().map(|value| read(request, value)) else {
        return Outcome::default();
    };
    if old.spec.is_err() || old.deleting {
        return Outcome::default();
    }
    let mut notes = Notes::new();
    let mut drafts = run(request, &old, None, snapshot, ignored, &mut notes);
    for draft in &mut drafts {
        draft.warn();
    }
    outcome(drafts, notes)
}

/// An object that is being deleted keeps its spec; anything else about it may change.
fn terminating(request: &Request, old: &Value, new: &Value, snapshot: &Snapshot) -> Outcome {
    let mut drafts = Vec::new();
    let mut notes = Notes::new();
    let defaulted = defaults::applied_to_any(request.kind, request.namespace.as_deref(), old, snapshot);
    if old.get("spec") != new.get("spec") && defaulted.get("spec") != new.get("spec") {
        shape::frozen(&mut Report {
            rule: &shape::TN015,
            drafts: &mut drafts,
            notes: &mut notes,
        });
    }
    outcome(drafts, notes)
}

/// The object, with the request's own name and namespace where the object does not say.
fn read(request: &Request, value: &Value) -> Object {
    let mut object = Object::parse(request.kind, value);
    if object.name.is_empty() {
        object.name.clone_from(&request.name);
    }
    if object.namespace.is_none() {
        object.namespace.clone_from(&request.namespace);
    }
    object
}

fn run(
    request: &Request,
    object: &Object,
    old: Option<&Object>,
    snapshot: &Snapshot,
    ignored: &[ObjectRef],
    notes: &mut Notes,
) -> Vec<Draft> {
    let view = View::new(snapshot, object, old, request.layer, ignored);
    run_some(request, object, &view, notes, |_| true)
}

/// The rules that `wanted` names, as far as they apply.
fn run_some(
    request: &Request,
    object: &Object,
    view: &View<'_>,
    notes: &mut Notes,
    wanted: impl Fn(&Rule) -> bool,
) -> Vec<Draft> {
    let mut drafts = Vec::new();
    if let Err(error) = &object.spec {
        shape::misfit(
            error,
            &mut Report {
                rule: &shape::TN014,
                drafts: &mut drafts,
                notes,
            },
        );
        return drafts;
    }
    for rule in RULES
        .iter()
        .copied()
        .filter(|rule| wanted(rule) && applies(rule, request))
    {
        let mut report = Report {
            rule,
            drafts: &mut drafts,
            notes,
        };
        match rule.check {
            Check::Object(check) => check(object, &mut report),
            Check::Cross(check) => check(object, view, &mut report),
            Check::Transition(check) => {
                if let (Some(old), Operation::Update) = (view.old(), request.operation) {
                    check(old, object, &mut report);
                }
            }
            Check::Requester(check) => {
                if let Some(requester) = &request.requester {
                    check(requester, object, &mut report);
                }
            }
            Check::Engine => {}
        }
    }
    drafts
}

/// The guard's denials of an object of the snapshot.
pub(crate) fn verdict_of(object: &Object, snapshot: &Snapshot) -> Vec<Finding> {
    verdict_by(object, snapshot, |_| true)
}

/// [`verdict_of`] by the rules that `wanted` names alone.
pub(crate) fn verdict_by(object: &Object, snapshot: &Snapshot, wanted: impl Fn(&Rule) -> bool) -> Vec<Finding> {
    let request = Request {
        kind: object.kind,
        operation: Operation::Create,
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        old: None,
        new: None,
        requester: None,
        dry_run: false,
        layer: Layer::Guard,
    };
    let view = View::new(snapshot, object, None, request.layer, &[]);
    let mut drafts = run_some(&request, object, &view, &mut Notes::new(), wanted);
    bypass::let_past(&mut drafts, object, &request);
    drafts
        .into_iter()
        .filter(|draft| draft.severity == Severity::Deny)
        .map(Draft::finish)
        .collect()
}

/// The denials of the organisation's policies of an object of the snapshot, as in the guard.
pub(crate) fn organisation_denials(object: &Object, snapshot: &Snapshot) -> Vec<Finding> {
    if snapshot.policies().is_empty() || object.spec.is_err() {
        return Vec::new();
    }
    let value = organisation::as_stored(object);
    let request = Request::guard(object.kind, value);
    let Some(value) = &request.new else { return Vec::new() };
    let subject = organisation::Subject {
        request: &request,
        value,
        object,
        old: None,
        snapshot,
    };
    let mut drafts = Vec::new();
    organisation::run(&subject, &mut drafts, &mut Notes::new());
    // The annotation that asks to be let past skips none of them.
    let denials = drafts.into_iter().filter(|draft| draft.severity == Severity::Deny);
    denials.map(Draft::finish).collect()
}

/// Whether a security rule leaves a stored object without effect, whoever else is there: it holds nothing then, and so
/// stands in nobody's way. The same question as in [`crate::wants`]; only the security rules are asked, since this is
/// asked of every object that conflicts with another one.
pub(crate) fn is_withdrawn(object: &Object, snapshot: &Snapshot) -> bool {
    if object.spec.is_err() {
        return false;
    }
    let view = View::judging(snapshot, object);
    let mut drafts = Vec::new();
    let mut notes = Notes::new();
    let security = RULES.iter().copied().filter(|rule| {
        rule.security
            && rule.kinds.contains(&object.kind)
            && rule.operations.has(Operation::Create)
            && rule.layers.has(Layers::GUARD)
    });
    for rule in security {
        let mut report = Report {
            rule,
            drafts: &mut drafts,
            notes: &mut notes,
        };
        match rule.check {
            Check::Object(check) => check(object, &mut report),
            Check::Cross(check) => check(object, &view, &mut report),
            // The guard knows neither a change nor who asks.
            Check::Transition(_) | Check::Requester(_) | Check::Engine => {}
        }
    }
    drafts
        .iter()
        .any(|draft| draft.severity == Severity::Deny && draft.holder.is_none())
}

fn applies(rule: &Rule, request: &Request) -> bool {
    let layer = match request.layer {
        Layer::Webhook => rule.layers.has(Layers::WEBHOOK),
        Layer::Guard => rule.layers.has(Layers::GUARD),
        // Who gives lint an old object wants to know what the webhook will say of the change.
        Layer::Lint => {
            rule.layers.has(Layers::LINT)
                || (request.old.is_some()
                    && rule.layers.has(Layers::WEBHOOK)
                    && matches!(rule.check, Check::Transition(_)))
        }
    };
    rule.kinds.contains(&request.kind) && rule.operations.has(request.operation) && layer
}

fn outcome(drafts: Vec<Draft>, mut notes: Notes) -> Outcome {
    let mut findings: Vec<Finding> = drafts.into_iter().map(Draft::finish).collect();
    // A missing Tailnet has a rule of its own (TN001), which names what was not checked.
    if let Some(missing) = findings.iter_mut().find(|finding| finding.rule == "TN001") {
        let mut silenced = BTreeSet::new();
        notes.retain(|reason, rules| {
            let missing = matches!(reason, Unchecked::NoTailnet(_));
            if missing {
                silenced.extend(rules.iter().copied());
            }
            !missing
        });
        if !silenced.is_empty() {
            missing
                .detail
                .push_str(&format!("; not checked yet: {}", join(&silenced)));
        }
    }
    findings.sort_by_cached_key(|finding| {
        let Finding {
            severity,
            field,
            rule,
            policy,
            value,
            detail,
            ..
        } = finding;
        (
            *severity,
            natural(field),
            *rule,
            policy.clone(),
            value.clone(),
            detail.clone(),
        )
    });
    findings.dedup();
    let notes = notes
        .into_iter()
        .map(|(reason, rules)| format!("not checked ({reason}): {}", join(&rules)))
        .collect();
    Outcome {
        findings,
        notes,
        bypassed: Vec::new(),
    }
}

fn join(rules: &BTreeSet<&'static str>) -> String {
    rules.iter().copied().collect::<Vec<_>>().join(" ")
}

/// Sort key of a path: `targets[2]` before `targets[10]`.
fn natural(path: &str) -> Vec<(String, u64)> {
    path.split('[')
        .map(|part| match part.split_once(']') {
            Some((index, rest)) => (rest.to_owned(), index.parse().unwrap_or(u64::MAX)),
            None => (part.to_owned(), 0),
        })
        .collect()
}
