//! The wire form: AdmissionReview in, AdmissionReview out. Nothing else knows it.
//!
//! What the API server makes of an answer shaped this file: a wrong uid or an HTTP error is a *failed call*; only the first
//! refusing webhook's status reaches the user; an audit annotation whose key has a slash is dropped; a warning over 256
//! characters is cut.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use json_patch::PatchOperation;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use tailnet_crds::audit::annotation as audit_key;
pub use tailnet_crds::audit::{Decision, Endpoint, Reason};
use tailnet_crds::names::annotation;
use tailnet_crds::{GROUP, Kind, VERSION};
use tailnet_policies::{Finding, Layer, Operation, Outcome, Request, Requester};

use crate::bypass::Identity;
pub use crate::subject::Subject;
use crate::subject::UserInfo;

/// The only version that is spoken.
pub const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Longest warning, in characters; the API server cuts at 256.
const WARNING_CHARACTERS: usize = 240;
/// Longest audit annotation, in bytes.
const ANNOTATION_BYTES: usize = 4096;

/// A question that rules can decide.
#[derive(Debug)]
pub struct Question {
    /// Who and what.
    pub subject: Subject,
    /// What the rules are asked.
    pub request: Request,
    /// Whether the object asks to skip the rules.
    pub asks_for_bypass: bool,
    /// Who asks, as authorizers want it.
    pub identity: Identity,
}

/// A ConfigMap that says by its labels that it is ours to check.
#[derive(Debug)]
pub struct ConfigMapQuestion {
    /// Who and what.
    pub subject: Subject,
    /// The ConfigMap as it would be stored.
    pub new: Value,
    /// The stored ConfigMap of an update.
    pub old: Option<Value>,
}

/// What a body is.
#[derive(Debug)]
pub enum Envelope {
    /// For the rules.
    Question(Box<Question>),
    /// A ConfigMap, for the rules about those.
    ConfigMap(Box<ConfigMapQuestion>),
    /// Readable, but nothing that rules are about: allowed.
    Foreign {
        /// Who and what.
        subject: Box<Subject>,
        /// Why rules have no say.
        why: &'static str,
    },
    /// The uid is known, the rest cannot be decided: refused.
    Unsupported {
        /// Who and what, as far as it can be read; the uid always.
        subject: Box<Subject>,
        /// What is wrong, for the user.
        message: String,
    },
    /// Not even the uid can be read: no answer can be right.
    Unreadable(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Wire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    uid: String,
    kind: GroupVersionKind,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    operation: String,
    #[serde(default)]
    user_info: UserInfo,
    /// Read for their presence only.
    #[serde(default)]
    object: Option<IgnoredAny>,
    #[serde(default)]
    old_object: Option<IgnoredAny>,
    #[serde(default)]
    dry_run: Option<bool>,
}

/// The objects of a review. They are read last: what rules have nothing to say about never becomes a tree.
#[derive(Deserialize)]
struct Objects {
    request: ObjectPair,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectPair {
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    old_object: Option<Value>,
}

#[derive(Deserialize)]
struct GroupVersionKind {
    #[serde(default)]
    group: String,
    version: String,
    kind: String,
}

/// Reads a body: the envelope first, the object only as JSON, so that an object that fits no type still gets its answer.
pub fn parse(body: &[u8]) -> Envelope {
    let objects = || match serde_json::from_slice::<Objects>(body) {
        Ok(objects) => Ok(objects.request),
        Err(error) => Err(without_envelope(body, &format!("the objects cannot be read: {error}"))),
    };
    let review: Review = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => return without_envelope(body, &format!("the AdmissionReview cannot be read: {error}")),
    };
    if review.api_version != API_VERSION || review.kind != KIND {
        let (version, kind) = (review.api_version, review.kind);
        return without_envelope(
            body,
            &format!("got {version:?} {kind:?}, this webhook speaks {API_VERSION} {KIND} only"),
        );
    }
    let Some(wire) = review.request else {
        return Envelope::Unreadable("the AdmissionReview has no request".to_owned());
    };
    let identity = Identity {
        username: wire.user_info.username.unwrap_or_default(),
        uid: wire.user_info.uid.unwrap_or_default(),
        groups: wire.user_info.groups.unwrap_or_default(),
        extra: wire.user_info.extra.unwrap_or_default(),
    };
    let subject = Subject {
        uid: wire.uid,
        user: identity.username.clone(),
        groups: identity.groups.clone(),
        verb: wire.operation,
        kind: wire.kind.kind,
        namespace: wire.namespace.filter(|namespace| !namespace.is_empty()),
        name: wire.name.unwrap_or_default(),
        dry_run: wire.dry_run.unwrap_or_default(),
    };
    if subject.uid.is_empty() {
        return Envelope::Unreadable("the request has no uid".to_owned());
    }
    let foreign = |subject: Subject, why| Envelope::Foreign {
        subject: Box::new(subject),
        why,
    };
    let whole = wire.sub_resource.as_deref().is_none_or(str::is_empty);
    let written = ["CREATE", "UPDATE"].contains(&subject.verb.as_str());
    if wire.kind.group.is_empty() && subject.kind == "ConfigMap" && whole && written {
        if wire.object.is_none() {
            return Envelope::Unsupported {
                subject: Box::new(subject),
                message: "a ConfigMap that is not in the request cannot be decided".to_owned(),
            };
        }
        return match objects() {
            Ok(pair) => Envelope::ConfigMap(Box::new(ConfigMapQuestion {
                subject,
                new: pair.object.unwrap_or_default(),
                old: pair.old_object,
            })),
            Err(envelope) => envelope,
        };
    }
    if wire.kind.group != GROUP {
        return foreign(subject, "another API group");
    }
    if !whole {
        return foreign(subject, "a subresource");
    }
    let Ok(kind) = subject.kind.parse::<Kind>() else {
        return foreign(subject, "a kind without rules");
    };
    if wire.kind.version != VERSION {
        let message = format!(
            "{} {GROUP}/{} is not known to this webhook, it knows {VERSION}",
            kind, wire.kind.version
        );
        return Envelope::Unsupported {
            subject: Box::new(subject),
            message,
        };
    }
    let operation = match (subject.verb.as_str(), wire.object, wire.old_object) {
        ("CREATE", Some(_), _) => Operation::Create,
        ("UPDATE", Some(_), Some(_)) => Operation::Update,
        ("DELETE", ..) => Operation::Delete,
        ("CREATE" | "UPDATE", ..) => {
            let message = format!("a {} without its objects cannot be decided", subject.verb);
            return Envelope::Unsupported {
                subject: Box::new(subject),
                message,
            };
        }
        _ => return foreign(subject, "an operation without rules"),
    };
    let (new, old) = match (operation, objects()) {
        (_, Err(envelope)) => return envelope,
        (Operation::Create, Ok(pair)) => (pair.object, None),
        (Operation::Update, Ok(pair)) => (pair.object, pair.old_object),
        // object is null on DELETE; rules about deletions look at what goes.
        (Operation::Delete, Ok(pair)) => (None, pair.old_object),
    };
    let asks_for_bypass = new
        .as_ref()
        .and_then(|object| object.pointer("/metadata/annotations"))
        .is_some_and(|all| {
            all.get(annotation::VALIDATION).and_then(Value::as_str) == Some(annotation::VALIDATION_DISABLED)
        });
    let requester = Requester {
        username: subject.user.clone(),
        groups: subject.groups.clone(),
        may_bypass: None,
    };
    let request = Request {
        kind,
        operation,
        name: subject.name.clone(),
        namespace: subject.namespace.clone(),
        old,
        new,
        requester: Some(requester),
        dry_run: subject.dry_run,
        layer: Layer::Webhook,
    };
    Envelope::Question(Box::new(Question {
        subject,
        request,
        asks_for_bypass,
        identity,
    }))
}

fn without_envelope(body: &[u8], message: &str) -> Envelope {
    match crate::subject::find(body) {
        Some(subject) => Envelope::Unsupported {
            subject: Box::new(subject),
            message: message.to_owned(),
        },
        None => Envelope::Unreadable(message.to_owned()),
    }
}

/// An answer, ready to send.
#[derive(Debug)]
pub struct Answer {
    /// What was decided.
    pub decision: Decision,
    /// Why no rule decided.
    pub reason: Option<Reason>,
    /// The AdmissionReview.
    pub review: Value,
}

fn review(response: Map<String, Value>) -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
}

fn response(uid: &str, allowed: bool, decision: Decision) -> Map<String, Value> {
    let mut response = Map::new();
    response.insert("uid".to_owned(), json!(uid));
    response.insert("allowed".to_owned(), json!(allowed));
    let annotations = json!({audit_key::DECISION: decision.as_str(), audit_key::REVIEW: uid});
    response.insert("auditAnnotations".to_owned(), annotations);
    response
}

/// The answer of the rules.
pub fn verdict(question: &Question, outcome: &Outcome) -> Answer {
    answer(&question.subject, GROUP, question.request.new.as_ref(), outcome)
}

/// The answer of the rules about ConfigMaps.
pub fn config_map_verdict(question: &ConfigMapQuestion, outcome: &Outcome) -> Answer {
    answer(&question.subject, "", Some(&question.new), outcome)
}

fn answer(subject: &Subject, group: &str, object: Option<&Value>, outcome: &Outcome) -> Answer {
    let mut warnings = Vec::new();
    // Also on denial: who fixes the error should not meet the warning only then.
    outcome
        .warnings()
        .for_each(|finding| push_warning(&mut warnings, &finding.to_string()));
    outcome.notes.iter().for_each(|note| push_warning(&mut warnings, note));
    let decision = match (outcome.denied(), outcome.bypassed.is_empty(), warnings.is_empty()) {
        (true, ..) => Decision::Deny,
        (false, false, _) => Decision::Bypass,
        (false, true, false) => Decision::Warn,
        (false, true, true) => Decision::Allow,
    };
    // A bypass is never silent: what was skipped is said, and where.
    outcome
        .bypassed
        .iter()
        .for_each(|finding| push_warning(&mut warnings, &format!("skipped: {finding}")));
    let mut response = response(&subject.uid, decision != Decision::Deny, decision);
    if decision == Decision::Deny {
        response.insert("status".to_owned(), denial(subject, group, object, outcome));
    }
    if !warnings.is_empty() {
        response.insert("warnings".to_owned(), json!(warnings));
    }
    let annotations = &mut response["auditAnnotations"];
    for (key, value) in [
        (audit_key::RULES, ids(outcome.denials())),
        (audit_key::WARNED_RULES, ids(outcome.warnings())),
        (audit_key::BYPASSED_RULES, ids(outcome.bypassed.iter())),
        (audit_key::FIELDS, fields(outcome)),
    ] {
        if !value.is_empty() {
            annotations[key] = json!(cut_bytes(&value.join(","), ANNOTATION_BYTES));
        }
    }
    Answer {
        decision,
        reason: None,
        review: review(response),
    }
}

/// Ids of the rules and policies of findings, each once, in order.
pub fn ids<'f>(findings: impl Iterator<Item = &'f Finding>) -> Vec<&'f str> {
    let mut ids: Vec<_> = findings.map(Finding::id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Field paths of all findings, each once, in the order of the findings.
pub fn fields(outcome: &Outcome) -> Vec<&str> {
    let mut seen = HashSet::new();
    let findings = outcome.findings.iter().chain(&outcome.bypassed);
    findings
        .map(|finding| finding.field.as_str())
        .filter(|field| seen.insert(*field))
        .collect()
}

/// 422 Invalid with every denial as a cause: kubectl prints the causes, other clients the message.
fn denial(subject: &Subject, group: &str, object: Option<&Value>, outcome: &Outcome) -> Value {
    let lines: Vec<_> = outcome.denials().map(ToString::to_string).collect();
    let causes: Vec<_> = outcome
        .denials()
        .map(|finding| json!({"reason": finding.class.cause_reason(), "message": finding.message(), "field": finding.field}))
        .collect();
    let mut name = subject.name.as_str();
    if name.is_empty() {
        name = object
            .and_then(|object| object.pointer("/metadata/generateName"))
            .and_then(Value::as_str)
            .unwrap_or_default();
    }
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "reason": "Invalid", "code": 422, "message": lines.join("\n"),
        "details": {"group": group, "kind": subject.kind, "name": name, "causes": causes},
    })
}

/// The answer of `/mutate`: the defaults, or nothing when nothing changes.
pub fn mutation(question: &Question, patch: &[PatchOperation]) -> Answer {
    if patch.is_empty() {
        return Answer {
            decision: Decision::Allow,
            reason: None,
            review: review(response(&question.subject.uid, true, Decision::Allow)),
        };
    }
    let mut response = response(&question.subject.uid, true, Decision::Patch);
    // Serializing paths and values that came from JSON cannot fail.
    let text = serde_json::to_vec(patch).unwrap_or_else(|_| b"[]".to_vec());
    response.insert("patchType".to_owned(), json!("JSONPatch"));
    response.insert("patch".to_owned(), json!(STANDARD.encode(text)));
    Answer {
        decision: Decision::Patch,
        reason: None,
        review: review(response),
    }
}

/// Allowed, because rules have no say.
pub fn foreign(uid: &str, why: &str) -> Answer {
    let mut response = response(uid, true, Decision::Allow);
    tracing::debug!(uid, why, "let through: nothing that rules are about");
    response["auditAnnotations"][audit_key::REASON] = json!(Reason::NoRules.as_str());
    Answer {
        decision: Decision::Allow,
        reason: Some(Reason::NoRules),
        review: review(response),
    }
}

/// HTTP code and Kubernetes StatusReason of a refusal without a decision.
fn status_of(reason: Reason) -> (u16, &'static str) {
    match reason {
        Reason::TooLarge => (413, "RequestEntityTooLarge"),
        Reason::Deadline => (504, "Timeout"),
        Reason::Panic | Reason::NoRules => (500, "InternalError"),
        Reason::Version | Reason::Unreadable => (400, "BadRequest"),
    }
}

/// Refused, because nothing could be decided.
pub fn failure(uid: &str, why: Reason, message: &str) -> Answer {
    let (code, reason) = status_of(why);
    let mut response = response(uid, false, Decision::Error);
    response["auditAnnotations"][audit_key::REASON] = json!(why.as_str());
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "reason": reason, "code": code, "message": message,
    });
    response.insert("status".to_owned(), status);
    Answer {
        decision: Decision::Error,
        reason: Some(why),
        review: review(response),
    }
}

/// Allowed without defaults, because they could not be worked out: `/validate` has the last word in any case.
pub fn unmutated(uid: &str, why: Reason, message: &str) -> Answer {
    let mut response = response(uid, true, Decision::Error);
    response["auditAnnotations"][audit_key::REASON] = json!(why.as_str());
    let mut warnings = Vec::new();
    push_warning(&mut warnings, message);
    response.insert("warnings".to_owned(), json!(warnings));
    Answer {
        decision: Decision::Error,
        reason: Some(why),
        review: review(response),
    }
}

/// Adds a warning, as several when it is long: cut at a word, the rest marked as continued.
fn push_warning(warnings: &mut Vec<String>, text: &str) {
    // A warning is an HTTP header in the end.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut rest = text.as_str();
    let mut continued = "";
    while !rest.is_empty() {
        let room = WARNING_CHARACTERS - continued.chars().count();
        let end = rest.char_indices().nth(room).map_or(rest.len(), |(end, _)| end);
        let end = if end == rest.len() {
            end
        } else {
            rest[..end].rfind(' ').filter(|space| *space > 0).unwrap_or(end)
        };
        let (piece, tail) = rest.split_at(end);
        warnings.push(format!("{continued}{piece}"));
        rest = tail.trim_start();
        continued = "… ";
    }
}

fn cut_bytes(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::{Envelope, WARNING_CHARACTERS, parse, push_warning};

    fn warnings(text: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        push_warning(&mut warnings, text);
        warnings
    }

    #[test]
    fn long_warnings_become_several_at_a_word() {
        assert_eq!(warnings("short\nand two lines"), ["short and two lines"]);
        let long = vec!["wörd"; 100].join(" ");
        let pieces = warnings(&long);
        assert_eq!(pieces.len(), 3);
        assert!(pieces.iter().all(|piece| piece.chars().count() <= WARNING_CHARACTERS));
        assert!(pieces[1].starts_with("… wörd"));
        let joined = pieces
            .iter()
            .map(|piece| piece.trim_start_matches("… "))
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(joined, long, "nothing is lost");
        let unbroken = "x".repeat(1000);
        assert!(
            warnings(&unbroken)
                .iter()
                .all(|piece| piece.chars().count() <= WARNING_CHARACTERS)
        );
    }

    #[test]
    fn foreign_things_are_let_through_and_half_things_are_not() {
        let body = |group: &str, version: &str, kind: &str, sub: &str, operation: &str, object: &str| {
            format!(
                r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","kind":{{"group":"{group}","version":"{version}","kind":"{kind}"}},"subResource":"{sub}","operation":"{operation}","object":{object}}}}}"#
            )
        };
        let ours = |sub: &str, operation: &str, object: &str| {
            parse(body("tsunaro.io", "v1alpha1", "TailnetSite", sub, operation, object).as_bytes())
        };
        assert!(matches!(
            parse(body("", "v1", "Pod", "", "CREATE", "{}").as_bytes()),
            Envelope::Foreign { .. }
        ));
        assert!(matches!(
            parse(body("tsunaro.io", "v1", "Other", "", "CREATE", "{}").as_bytes()),
            Envelope::Foreign { .. }
        ));
        assert!(matches!(
            ours("status", "UPDATE", "{}"),
            Envelope::Foreign {
                why: "a subresource",
                ..
            }
        ));
        assert!(matches!(ours("", "CONNECT", "{}"), Envelope::Foreign { .. }));
        assert!(matches!(ours("", "CREATE", "{}"), Envelope::Question(_)));
        assert!(matches!(ours("", "DELETE", "null"), Envelope::Question(_)));
        assert!(matches!(ours("", "CREATE", "null"), Envelope::Unsupported { .. }));
        assert!(
            matches!(ours("", "UPDATE", "{}"), Envelope::Unsupported { .. }),
            "no old object"
        );
        let newer = body("tsunaro.io", "v2", "TailnetSite", "", "CREATE", "{}");
        assert!(matches!(parse(newer.as_bytes()), Envelope::Unsupported { .. }));
        assert!(matches!(parse(b"{}"), Envelope::Unreadable(_)));
        assert!(matches!(
            parse(br#"{"request":{"uid":"u"}}"#),
            Envelope::Unsupported { .. }
        ));
    }
}
