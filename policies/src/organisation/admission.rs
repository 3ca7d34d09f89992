//! The verdict on a ConfigMap that is a policy: it compiles, or is refused with every fault; and whom of those who exist it
//! would refuse.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tailnet_crds::Kind;
use tailnet_crds::names::label::ADMISSION_POLICY;

use super::meter::TimeOfAll;
use super::run::ask;
use super::scope::{Subject, as_json};
use super::{Policy, Problem};
use crate::finding::{Class, Outcome, Severity};
use crate::report::{Draft, Notes, Report, Shown, cut, list};
use crate::request::Request;
use crate::rules::organisation::TN009;
use crate::snapshot::Snapshot;

/// Most faults that are shown one by one.
const MOST: usize = 10;
/// Longest text of a fault.
const MAX_FAULT: usize = 200;

/// Whether a ConfigMap says that it is a policy.
pub fn is_labelled(config_map: &Json) -> bool {
    let labels = config_map.pointer("/metadata/labels");
    labels
        .and_then(|labels| labels.get(ADMISSION_POLICY))
        .and_then(Json::as_str)
        == Some("true")
}

/// Texts of a ConfigMap by key.
pub fn data_of(config_map: &Json) -> BTreeMap<String, String> {
    let data = config_map.get("data").and_then(Json::as_object);
    data.into_iter()
        .flatten()
        .filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned())))
        .collect()
}

/// The verdict on a ConfigMap of the operator namespace that is, or was, a policy by its label; anything else is let
/// through. `old` is the stored one of an update: a text that stays as it is, is not refused for what was wrong with it.
pub fn evaluate_config_map(new: &Json, old: Option<&Json>, snapshot: &Snapshot) -> Outcome {
    let namespace = new.pointer("/metadata/namespace").and_then(Json::as_str);
    if namespace != Some(snapshot.config().operator_namespace.as_str()) {
        return Outcome::default();
    }
    let (is, was) = (is_labelled(new), old.is_some_and(is_labelled));
    if !is && !was {
        return Outcome::default();
    }
    let mut drafts = Vec::new();
    let mut report = Report {
        rule: &TN009,
        drafts: &mut drafts,
        notes: &mut Notes::new(),
    };
    let name = new.pointer("/metadata/name").and_then(Json::as_str).unwrap_or_default();
    let data = data_of(new);
    if !is {
        let detail = format!("policy {name:?} is no longer in force: the label {ADMISSION_POLICY} is gone");
        let field = format!("metadata.labels[{ADMISSION_POLICY}]");
        report.add(Class::Required, field, Shown::NOTHING, detail).warn();
    } else {
        match Policy::compile(name, &data) {
            Err(problems) => {
                let same = was && old.is_some_and(|old| data_of(old) == data);
                tell(&problems, same, &mut report);
            }
            Ok(policy) => refusals(policy, snapshot, &mut report),
        }
    }
    let mut findings: Vec<_> = drafts.into_iter().map(Draft::finish).collect();
    findings.sort_by_key(|finding| finding.severity);
    Outcome {
        findings,
        ..Outcome::default()
    }
}

fn tell(problems: &[Problem], same: bool, report: &mut Report<'_>) {
    for (at, problem) in problems.iter().take(MOST).enumerate() {
        let place = problem
            .position
            .map_or_else(String::new, |(line, column)| format!("line {line}, column {column}: "));
        let mut detail = format!("{place}{}", cut(&problem.message, MAX_FAULT));
        if at + 1 == MOST && problems.len() > MOST {
            detail.push_str(&format!("; and {} more faults", problems.len() - MOST));
        }
        let draft = report.add(Class::Invalid, problem.field(), Shown::NOTHING, detail);
        if same {
            draft.warn();
        }
    }
}

/// Warns of the objects that exist and that the policy refuses: they would be frozen.
fn refusals(policy: Policy, snapshot: &Snapshot, report: &mut Report<'_>) {
    let name = policy.name().to_owned();
    let standing = Ok(policy);
    let time = TimeOfAll::start(snapshot.clock());
    let (mut refused, mut words) = (Vec::new(), None);
    let mut asked_all = true;
    'kinds: for kind in Kind::ALL {
        for object in snapshot
            .list(kind)
            .filter(|object| object.spec.is_ok() && !object.deleting)
        {
            if time.is_over() {
                asked_all = false;
                break 'kinds;
            }
            let value = as_json(object);
            let request = Request::guard(kind, value.clone());
            let subject = Subject {
                request: &request,
                value: &value,
                object,
                old: None,
                snapshot,
            };
            let mut drafts = Vec::new();
            ask(&subject, &name, &standing, time, &mut drafts, &mut Notes::new());
            let mut denials = drafts.into_iter().filter(|draft| draft.severity == Severity::Deny);
            if let Some(first) = denials.next() {
                words.get_or_insert(first.detail);
                refused.push(object.to_string());
            }
        }
    }
    let incomplete = if asked_all {
        ""
    } else {
        " (not all objects could be asked in time)"
    };
    if let Some(words) = words {
        let detail = format!(
            "{} objects that exist are not accepted any more: {} ({}){incomplete}; what runs keeps running and is changed no more",
            refused.len(),
            list(&refused),
            cut(&words, 100),
        );
        report.add(Class::Forbidden, "data", Shown::NOTHING, detail).warn();
    } else if !asked_all {
        let detail = "not all objects that exist could be asked in time: some may not be accepted any more";
        report.add(Class::Forbidden, "data", Shown::NOTHING, detail).warn();
    }
}
