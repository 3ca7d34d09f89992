//! An event of the API server's audit log as [`Record`]s: our annotations where the webhook was asked; else what the API
//! server's answer says, since schema, CEL rules and policies refuse before the webhook is asked, and an unreachable webhook
//! refuses too.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use tailnet_crds::audit::{
    Decision, Endpoint, MUTATE, VALIDATE, VALIDATE_DELETE, VALIDATE_ORGANISATION, VALIDATE_POLICY, annotation,
};
use tailnet_crds::{GROUP, Kind};

use super::record::{Layer, Record, Target};

/// Start of every `apiVersion` of such events.
pub const VERSIONS: &str = "audit.k8s.io/";

/// An event, as far as it matters here. Objects in it are passed over.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
    request_received_timestamp: Timestamp,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    groups: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    api_group: Option<String>,
    #[serde(default)]
    subresource: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    #[serde(default)]
    name: String,
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Debug, Deserialize)]
struct Cause {
    #[serde(default)]
    field: String,
}

/// What an event holds.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// Decisions: of the rules, and of the defaults where they were asked.
    Records(Vec<Record>),
    /// A write on our kinds that was stored although no rule was asked.
    Unasked,
    /// Nothing about admission of our kinds.
    Other,
}

/// Reads an event.
pub fn read(text: &str) -> Result<Found, String> {
    let event: Event = serde_json::from_str(text).map_err(|error| format!("is no audit event: {error}"))?;
    if !["ResponseComplete", "Panic"].contains(&event.stage.as_str()) {
        return Ok(Found::Other);
    }
    let Some(object) = event.object_ref.as_ref() else {
        return Ok(Found::Other);
    };
    let ours = object.api_group.as_deref() == Some(GROUP);
    let part = object.subresource.as_deref().filter(|part| !part.is_empty());
    let kind = match Kind::ALL
        .into_iter()
        .find(|kind| ours && kind.plural() == object.resource)
    {
        Some(kind) => kind.as_str(),
        // A ConfigMap with a base document or an organisation's policy; others the webhook is not asked about.
        None if [VALIDATE_POLICY, VALIDATE_ORGANISATION].iter().any(|entry| {
            event
                .annotations
                .contains_key(&format!("{entry}/{}", annotation::DECISION))
        }) =>
        {
            "ConfigMap"
        }
        None => return Ok(Found::Other),
    };
    let status = event.response_status.as_ref();
    let code = status.map_or(0, |status| status.code);
    let verb = match event.verb.as_str() {
        "create" => "CREATE",
        // An apply of something new is a patch that creates.
        "patch" if code == 201 => "CREATE",
        "update" | "patch" => "UPDATE",
        "delete" | "deletecollection" => "DELETE",
        _ => return Ok(Found::Other),
    };
    let base = base(&event, object, kind, verb);
    if let Some(part) = part {
        return Ok(of_part(status, base, part));
    }
    let mut records = Vec::new();
    if let Some(record) = annotated(&event, MUTATE, Endpoint::Mutate, &base) {
        records.push(record);
    }
    let asked = [VALIDATE, VALIDATE_DELETE, VALIDATE_POLICY, VALIDATE_ORGANISATION]
        .iter()
        .find_map(|entry| annotated(&event, entry, Endpoint::Validate, &base));
    match asked.or_else(|| status.and_then(|status| unannotated(status, base))) {
        Some(record) => records.push(record),
        None if (200..300).contains(&code) && verb != "DELETE" => return Ok(Found::Unasked),
        None if records.is_empty() => return Ok(Found::Other),
        None => {}
    }
    Ok(Found::Records(records))
}

/// Of a write on a part (`status`) only a policy's refusal counts: the webhook is not asked about parts, and the operator
/// writes status all the time.
fn of_part(status: Option<&Status>, base: Record, part: &str) -> Found {
    let refused = status.and_then(|status| unannotated(status, base));
    match refused.filter(|record| record.layer == Layer::Policy) {
        Some(mut record) => {
            record.target.kind = format!("{}/{part}", record.target.kind);
            Found::Records(vec![record])
        }
        None => Found::Other,
    }
}

/// The record without a decision.
fn base(event: &Event, object: &ObjectRef, kind: &str, verb: &str) -> Record {
    let user = event.impersonated_user.as_ref().unwrap_or(&event.user);
    // At level Metadata a create has no name in its reference; a refusal still names it.
    let details = event
        .response_status
        .as_ref()
        .and_then(|status| status.details.as_ref());
    let named = object.name.as_deref().filter(|name| !name.is_empty());
    let name = named
        .or(details.map(|details| details.name.as_str()))
        .unwrap_or_default();
    let query = event.request_uri.split_once('?').map_or("", |(_, query)| query);
    Record {
        time: event.request_received_timestamp,
        review: String::new(),
        endpoint: Endpoint::Validate,
        layer: Layer::Webhook,
        decision: Decision::Allow,
        reason: None,
        user: user.username.clone(),
        groups: user.groups.clone(),
        verb: verb.to_owned(),
        target: Target {
            kind: kind.to_owned(),
            namespace: object.namespace.clone().filter(|namespace| !namespace.is_empty()),
            name: name.to_owned(),
        },
        dry_run: query.split('&').any(|pair| pair == "dryRun=All"),
        rules: Vec::new(),
        warned: Vec::new(),
        bypassed: Vec::new(),
        fields: Vec::new(),
        latency_ms: None,
        lost_before: 0,
    }
}

/// What our webhook's entry `entry` noted.
fn annotated(event: &Event, entry: &str, endpoint: Endpoint, base: &Record) -> Option<Record> {
    let text = |key: &str| event.annotations.get(&format!("{entry}/{key}"));
    let list = |key: &str| -> Vec<String> {
        text(key).map_or_else(Vec::new, |text| text.split(',').map(str::to_owned).collect())
    };
    let decision = text(annotation::DECISION)?.parse().ok()?;
    Some(Record {
        endpoint,
        decision,
        review: text(annotation::REVIEW).cloned().unwrap_or_default(),
        reason: text(annotation::REASON).cloned(),
        rules: list(annotation::RULES),
        warned: list(annotation::WARNED_RULES),
        bypassed: list(annotation::BYPASSED_RULES),
        fields: list(annotation::FIELDS),
        ..base.clone()
    })
}

/// What the API server's own answer says, where our rules were not asked.
fn unannotated(status: &Status, mut record: Record) -> Option<Record> {
    let message = status.message.as_str();
    if message.contains(&format!("failed calling webhook \"{VALIDATE}\"")) {
        record.layer = Layer::Server;
        record.decision = Decision::Error;
        record.reason = Some("webhook-not-reached".to_owned());
        return Some(record);
    }
    if let Some((_, rest)) = message.split_once("ValidatingAdmissionPolicy '")
        && let Some((policy, _)) = rest.split_once('\'')
    {
        record.layer = Layer::Policy;
        record.decision = Decision::Deny;
        record.reason = Some(policy.to_owned());
        record.rules = rule_ids(message);
        return Some(record);
    }
    if status.code == 422 {
        record.layer = Layer::Schema;
        record.decision = Decision::Deny;
        record.rules = rule_ids(message);
        let causes = status.details.iter().flat_map(|details| &details.causes);
        for cause in causes {
            if !cause.field.is_empty() && !record.fields.contains(&cause.field) {
                record.fields.push(cause.field.clone());
            }
        }
        return Some(record);
    }
    None
}

/// The ids in brackets that end our messages: `[TN203]`.
fn rule_ids(message: &str) -> Vec<String> {
    let mut ids: Vec<String> = message
        .split('[')
        .skip(1)
        .filter_map(|rest| rest.split_once(']'))
        .map(|(inside, _)| inside)
        .filter(|inside| {
            inside
                .strip_prefix("TN")
                .is_some_and(|digits| digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .map(str::to_owned)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tailnet_crds::audit::{Decision, Endpoint};

    use super::{Found, read, rule_ids};
    use crate::audit::record::{Layer, Record};

    /// An event as kube-apiserver 1.37 writes it, at level Metadata.
    fn event() -> Value {
        json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "a1", "stage": "ResponseComplete",
            "requestURI": "/apis/tsunaro.io/v1alpha1/namespaces/tailnet-system/tailnetegresses?dryRun=All&fieldManager=kubectl",
            "verb": "create", "user": {"username": "admin", "groups": ["system:masters"]},
            "impersonatedUser": {"username": "alice", "groups": ["team-a"]},
            "sourceIPs": ["192.0.2.1"], "userAgent": "kubectl",
            "objectRef": {"resource": "tailnetegresses", "namespace": "tailnet-system", "apiGroup": "tsunaro.io", "apiVersion": "v1alpha1"},
            "responseStatus": {"metadata": {}, "status": "Failure", "message": "…", "reason": "Invalid", "code": 422,
                "details": {"name": "remote", "group": "tsunaro.io", "kind": "TailnetEgress", "causes": [{"field": "spec.x"}, {"field": "spec.x"}]}},
            "requestReceivedTimestamp": "2026-11-30T12:00:00.123456Z", "stageTimestamp": "2026-11-30T12:00:00.200000Z",
            "annotations": {
                "authorization.k8s.io/decision": "allow",
                "validate.tsunaro.io/decision": "deny", "validate.tsunaro.io/review-uid": "r1",
                "validate.tsunaro.io/rules": "TN201,TN203", "validate.tsunaro.io/warned-rules": "TN001",
                "validate.tsunaro.io/fields": "metadata.namespace,spec.targets[0].address",
                "mutate.tsunaro.io/decision": "patch", "mutate.tsunaro.io/review-uid": "r0",
            },
        })
    }

    fn records(event: &Value) -> Vec<Record> {
        match read(&event.to_string()).unwrap() {
            Found::Records(records) => records,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn annotations_become_records_of_both_endpoints() {
        let records = records(&event());
        assert_eq!(
            (records[0].endpoint, records[0].decision),
            (Endpoint::Mutate, Decision::Patch)
        );
        let denied = &records[1];
        assert_eq!(
            (denied.endpoint, denied.decision, denied.layer),
            (Endpoint::Validate, Decision::Deny, Layer::Webhook)
        );
        assert_eq!((denied.user.as_str(), denied.review.as_str()), ("alice", "r1"));
        assert_eq!(denied.target.to_string(), "TailnetEgress tailnet-system/remote");
        assert_eq!(denied.rules, ["TN201", "TN203"]);
        assert_eq!(denied.warned, ["TN001"]);
        assert_eq!(denied.fields, ["metadata.namespace", "spec.targets[0].address"]);
        assert!(denied.dry_run);
    }

    #[test]
    fn what_the_schema_refuses_is_a_refusal_with_rules_and_fields() {
        let mut event = event();
        event["annotations"] = json!({"authorization.k8s.io/decision": "allow"});
        event["responseStatus"]["message"] = json!(
            "TailnetEgress \"remote\" is invalid: [spec.x: Invalid value: \"a\": must be b [TN203], spec.y: Required [TN204]]"
        );
        let records = records(&event);
        assert_eq!((records[0].layer, records[0].decision), (Layer::Schema, Decision::Deny));
        assert_eq!(records[0].rules, ["TN203", "TN204"]);
        assert_eq!(records[0].fields, ["spec.x"]);
    }

    #[test]
    fn an_unreachable_webhook_and_a_policy_are_told_apart() {
        let mut event = event();
        event["annotations"] = json!({});
        event["responseStatus"] = json!({"code": 500, "message": "Internal error occurred: failed calling webhook \"validate.tsunaro.io\": failed to call webhook: connection refused"});
        let down = &records(&event)[0];
        assert_eq!((down.layer, down.decision), (Layer::Server, Decision::Error));
        event["responseStatus"] = json!({"code": 422, "message": "tailnets \"a\" is forbidden: ValidatingAdmissionPolicy 'status-is-ours' with binding 'b' denied request: no"});
        let policy = &records(&event)[0];
        assert_eq!(
            (policy.layer, policy.reason.as_deref()),
            (Layer::Policy, Some("status-is-ours"))
        );
    }

    #[test]
    fn other_events_are_none_of_ours() {
        let changed = |pointer: &str, value: Value| {
            let mut event = event();
            *event.pointer_mut(pointer).unwrap() = value;
            read(&event.to_string()).unwrap()
        };
        assert_eq!(changed("/stage", json!("RequestReceived")), Found::Other);
        assert_eq!(changed("/verb", json!("list")), Found::Other);
        assert_eq!(changed("/objectRef/apiGroup", json!("apps")), Found::Other);
        assert_eq!(changed("/objectRef/resource", json!("pods")), Found::Other);
        let mut status = event();
        status["objectRef"]["subresource"] = json!("status");
        assert_eq!(read(&status.to_string()), Ok(Found::Other));
        let mut forbidden = event();
        forbidden["annotations"] = json!({});
        forbidden["responseStatus"] = json!({"code": 403, "message": "may not create"});
        assert_eq!(read(&forbidden.to_string()), Ok(Found::Other));
        let mut unasked = forbidden.clone();
        unasked["responseStatus"] = json!({"code": 201});
        assert_eq!(read(&unasked.to_string()), Ok(Found::Unasked));
        unasked["verb"] = json!("delete");
        assert_eq!(
            read(&unasked.to_string()),
            Ok(Found::Other),
            "most deletes have no rules"
        );
        assert!(read("{\"kind\":\"Event\"}").is_err());
    }

    #[test]
    fn of_a_status_only_what_a_policy_refuses_counts() {
        let mut event = event();
        event["objectRef"]["subresource"] = json!("status");
        event["verb"] = json!("patch");
        event["annotations"] = json!({});
        for other in [
            json!({"code": 200}),
            json!({"code": 422, "message": "is invalid"}),
            json!({"code": 409}),
        ] {
            event["responseStatus"] = other;
            assert_eq!(read(&event.to_string()), Ok(Found::Other));
        }
        event["responseStatus"] = json!({"code": 403, "message": "tailnets.tsunaro.io \"corp\" is forbidden: ValidatingAdmissionPolicy 'tailnet-status' with binding 'tailnet-status' denied request: no"});
        let refused = &records(&event)[0];
        assert_eq!((refused.layer, refused.decision), (Layer::Policy, Decision::Deny));
        assert_eq!(refused.target.kind, "TailnetEgress/status");
    }

    #[test]
    fn a_policy_in_a_config_map_is_a_decision_and_another_config_map_is_not() {
        let mut event = event();
        event["objectRef"] =
            json!({"resource": "configmaps", "namespace": "tailnet-system", "name": "owners", "apiVersion": "v1"});
        assert_eq!(
            read(&event.to_string()),
            Ok(Found::Other),
            "annotations of an entry that is not asked about ConfigMaps"
        );
        event["annotations"] =
            json!({"validate-policy.tsunaro.io/decision": "deny", "validate-policy.tsunaro.io/rules": "TN009"});
        let refused = &records(&event)[0];
        assert_eq!(
            (refused.decision, refused.target.to_string().as_str()),
            (Decision::Deny, "ConfigMap tailnet-system/owners")
        );
        event["annotations"] = json!({"validate-organisation-policy.tsunaro.io/decision": "warn"});
        assert_eq!(records(&event)[0].decision, Decision::Warn);
        event["annotations"] = json!({});
        assert_eq!(read(&event.to_string()), Ok(Found::Other));
    }

    #[test]
    fn an_apply_that_creates_is_a_create() {
        let mut event = event();
        event["verb"] = json!("patch");
        assert_eq!(records(&event)[1].verb, "UPDATE");
        event["responseStatus"]["code"] = json!(201);
        assert_eq!(records(&event)[1].verb, "CREATE");
    }

    #[test]
    fn only_our_ids_count() {
        assert_eq!(
            rule_ids("a [TN203] [tn204] [TN20] [TN2055] [x] [TN001] [TN203] [TN"),
            ["TN001", "TN203"]
        );
    }
}
