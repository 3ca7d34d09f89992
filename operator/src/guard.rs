//! The admission rules once more, before the operator acts: the same table, over a snapshot fed by the same watches as the
//! controllers' stores.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;
use tailnet_crds::Kind;
use tailnet_crds::conditions::reason;
use tailnet_crds::names::annotation::TAKES_OVER;
use tailnet_policies::base;
use tailnet_policies::claims::Claims;
use tailnet_policies::facts::Facts;
use tailnet_policies::{Config, Finding, ObjectRef, Outcome, RefKind, Request, Snapshot, evaluate};

use tokio::sync::Notify;

use crate::organisation;
use crate::settings::Settings;

pub use tailnet_policies::Verdict;

/// Kind, namespace and name.
type Key = (Kind, Option<String>, String);

/// What decides whether an object reads differently to the rules: not its status, which the operator itself writes.
/// Neither labels nor annotations change the generation, and the organisation's policies read both.
#[derive(PartialEq, Eq)]
struct Fingerprint {
    uid: Option<String>,
    generation: Option<i64>,
    deleting: bool,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// The snapshot behind one lock; a verdict takes microseconds.
pub struct Guard {
    snapshot: Mutex<Snapshot>,
    /// Counts changes of what claims depend on.
    changes: AtomicU64,
    wake: Notify,
    /// The organisation's policies as they are in the snapshot, by name.
    policies: Mutex<HashMap<String, BTreeMap<String, String>>>,
    seen: Mutex<HashMap<Key, Fingerprint>>,
}

impl Guard {
    /// Knows nothing yet.
    pub fn new(settings: &Settings) -> Self {
        let mut snapshot = Snapshot::new(Config {
            operator_namespace: settings.operator_namespace.clone(),
            cluster_domain: settings.cluster_domain.clone(),
            service_cidrs: settings.service_cidr.clone(),
            // They serve warnings only, which are the webhook's to give.
            pod_cidrs: Vec::new(),
        });
        snapshot.set_services_known(true);
        snapshot.set_base_documents_known(true);
        snapshot.set_clock(clock);
        Self {
            snapshot: Mutex::new(snapshot),
            changes: AtomicU64::new(1),
            wake: Notify::new(),
            policies: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// Says that every kind has been listed.
    pub fn complete(&self) {
        let mut snapshot = self.snapshot.lock();
        for kind in Kind::ALL {
            snapshot.set_complete(kind, true);
        }
        self.changed();
    }

    /// Takes over the state of one of our objects; `exists` is false for the last state of a deleted one.
    pub fn object<K: Resource + Serialize>(&self, kind: Kind, object: &K, exists: bool) {
        let key = (kind, object.namespace(), object.name_any());
        let mut seen = self.seen.lock();
        if exists {
            let meta = object.meta();
            let fingerprint = Fingerprint {
                uid: meta.uid.clone(),
                generation: meta.generation,
                deleting: meta.deletion_timestamp.is_some(),
                labels: meta.labels.clone(),
                annotations: meta.annotations.clone(),
            };
            if seen.get(&key) == Some(&fingerprint) {
                return;
            }
            seen.insert(key, fingerprint);
        } else {
            seen.remove(&key);
        }
        let mut snapshot = self.snapshot.lock();
        if exists {
            match serde_json::to_value(object) {
                Ok(value) => snapshot.upsert(kind, &value),
                Err(error) => {
                    tracing::error!(%kind, name = object.name_any(), %error, "object cannot be written as JSON")
                }
            }
        } else {
            snapshot.remove(kind, object.namespace().as_deref(), &object.name_any());
        }
        self.changed();
    }

    /// Takes over the state of a Service, of any namespace. Says whether anything that a rule reads is different now.
    pub fn service(&self, service: &Service, exists: bool) -> bool {
        let mut snapshot = self.snapshot.lock();
        let different = if exists {
            match serde_json::to_value(service) {
                Ok(value) => snapshot.upsert_service(&value),
                Err(error) => {
                    tracing::error!(name = service.name_any(), %error, "Service cannot be written as JSON");
                    false
                }
            }
        } else {
            snapshot.remove_service(&service.namespace().unwrap_or_default(), &service.name_any())
        };
        if different {
            self.changed();
        }
        different
    }

    /// Takes over the state of a ConfigMap of the operator namespace: it may hold the people's part of a policy. Says
    /// whether such a part is different now.
    pub fn config_map(&self, config_map: &ConfigMap, exists: bool) -> bool {
        let name = config_map.name_any();
        let text = config_map.data.as_ref().and_then(|data| data.get(base::KEY));
        let text = text.filter(|_| exists).map(String::as_str);
        let mut snapshot = self.snapshot.lock();
        let different =
            (text.is_some() || snapshot.base_document(&name).is_some()) && snapshot.set_base_document(&name, text);
        if different {
            self.changed();
        }
        different
    }

    /// Takes over the state of a ConfigMap of the operator namespace that may be one of the organisation's policies. Says
    /// whether other policies are in force now.
    pub fn policy(&self, config_map: &ConfigMap, exists: bool) -> bool {
        let name = config_map.name_any();
        let mut texts = self.policies.lock();
        if !(exists && organisation::is_policy(config_map)) {
            if texts.remove(&name).is_none() {
                return false;
            }
            self.snapshot.lock().set_policy(&name, None);
        } else {
            let data = config_map.data.clone().unwrap_or_default();
            if texts.get(&name) == Some(&data) {
                return false;
            }
            let standing = tailnet_policies::organisation::standing(&name, &data);
            if let Err(problem) = &standing {
                tracing::error!(
                    policy = name,
                    problem,
                    "an organisation's policy cannot be used: nothing passes it until it is corrected"
                );
            }
            self.snapshot.lock().set_policy(&name, Some(Arc::new(standing)));
            texts.insert(name, data);
        }
        self.changed();
        true
    }

    /// Takes over the labels of a namespace. Says whether a verdict may be another one now.
    pub fn namespace(&self, namespace: &PartialObjectMeta<Namespace>, exists: bool) -> bool {
        let name = namespace.name_any();
        let mut snapshot = self.snapshot.lock();
        if !exists {
            snapshot.remove_namespace(&name);
            return false;
        }
        let labels = namespace.labels();
        if snapshot.namespace_labels(&name) == Some(labels) {
            return false;
        }
        snapshot.set_namespace_labels(&name, labels.clone());
        let matters = !snapshot.policies().is_empty();
        drop(snapshot);
        if matters {
            // Who may have what rests on the policies too.
            self.changed();
        }
        matters
    }

    /// Takes over what is known of the Headscale server of a Tailnet.
    pub fn facts(&self, tailnet: &str, facts: Option<Facts>, age: Duration) {
        self.snapshot.lock().set_facts(tailnet, facts, age);
        self.changed();
    }

    /// Takes over the recorded claims of a Tailnet.
    pub fn claims(&self, tailnet: &str, claims: Option<Claims>) {
        self.snapshot.lock().set_claims(tailnet, claims);
    }

    /// Asks the snapshot something.
    pub fn with<T>(&self, ask: impl FnOnce(&Snapshot) -> T) -> T {
        ask(&self.snapshot.lock())
    }

    /// Number of changes so far.
    pub fn version(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.wake.notify_one();
    }

    /// Asks for a settlement although no object changed: somebody may have touched a record.
    pub fn look_at_records(&self) {
        self.wake.notify_one();
    }

    /// Waits for a change since the last call. For one waiter only.
    pub async fn changed_since_settle(&self) {
        self.wake.notified().await;
    }

    /// The verdict on `object` as it is stored. An object that cannot be written as JSON is frozen by the caller's error.
    ///
    /// # Errors
    /// The serializer's.
    pub fn verdict<K: Serialize>(&self, kind: Kind, object: &K) -> Result<(Verdict, Outcome), serde_json::Error> {
        let request = Request::guard(kind, serde_json::to_value(object)?);
        let outcome = evaluate(&request, &self.snapshot.lock());
        Ok((Verdict::of(&outcome), outcome))
    }
}

/// Time since the process began to be asked for it: what the time limit of policies is measured by.
fn clock() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// The reason of `Accepted=False` for a frozen object: whether it waits for a holder that its annotation announces, is
/// kept out by another one, has a tag without owner, or breaks a rule.
pub fn frozen_reason(object: &impl Resource, findings: &[Finding]) -> &'static str {
    let mut holders = findings.iter().filter_map(|finding| finding.holder.as_ref()).peekable();
    if holders.peek().is_none() {
        let unowned = findings.iter().all(|finding| finding.rule == "TN006");
        return if unowned {
            reason::TAG_NOT_OWNED
        } else {
            reason::INVALID
        };
    }
    let announced = object
        .meta()
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(TAKES_OVER));
    let is_announced = |holder: &ObjectRef| announced.is_some_and(|name| *name == takes_over_name(holder));
    // Another fault would remain when the holder is gone.
    if findings
        .iter()
        .all(|finding| finding.holder.as_ref().is_some_and(is_announced))
    {
        reason::WAITING_FOR_HOLDER
    } else {
        reason::HELD_BY_OTHER
    }
}

/// What the annotation must say to name this holder: `<Kind>/<namespace>/<name>`, or `<Kind>/<name>`.
fn takes_over_name(holder: &ObjectRef) -> String {
    let kind = match holder.kind {
        RefKind::Ours(kind) => kind.as_str(),
        RefKind::Service => "Service",
    };
    match &holder.namespace {
        Some(namespace) => format!("{kind}/{namespace}/{}", holder.name),
        None => format!("{kind}/{}", holder.name),
    }
}

/// The findings as one message: `spec.tag: Forbidden: "tag:x": … [TN005]; …`.
pub fn message(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};
    use tailnet_crds::{Tailnet, TailnetEgress, TailnetGateway, TailnetIngress};

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        settings: Settings,
    }

    fn guard() -> Guard {
        let arguments = [
            "test",
            "--agent-image",
            "image",
            "--service-cidr",
            "10.96.0.0/12,fd00:96::/108",
        ];
        let guard = Guard::new(&CommandLine::parse_from(arguments).settings);
        guard.complete();
        let tailnet: Tailnet = serde_json::from_value(json!({
            "metadata": { "name": "demo", "uid": "t", "generation": 1 },
            "spec": {
                "server": "https://control.example.net",
                "apiSecretRef": { "name": "bootstrap" },
                "policy": { "baseConfigMap": "base", "routeApprovers": ["tag:router"] },
            },
        }))
        .unwrap();
        guard.object(Kind::Tailnet, &tailnet, true);
        guard
    }

    fn egress(change: impl Fn(&mut Value)) -> TailnetEgress {
        let mut value = json!({
            "apiVersion": "tsunaro.io/v1alpha1",
            "kind": "TailnetEgress",
            "metadata": { "name": "a", "namespace": "tailnet-system", "uid": "a", "generation": 1 },
            "spec": {
                "tailnetRef": { "name": "demo" },
                "consumerNamespaces": ["team-a"],
                "targets": [{ "name": "db", "address": "192.0.2.10", "port": 5432 }],
            },
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn rules(verdict: &Verdict) -> Vec<&'static str> {
        match verdict {
            Verdict::Valid => Vec::new(),
            Verdict::Freeze(findings) | Verdict::Withdraw(findings) => findings.iter().map(|f| f.rule).collect(),
        }
    }

    #[test]
    fn a_security_rule_withdraws_and_any_other_freezes() {
        let guard = guard();
        let verdict = |egress: &TailnetEgress| {
            guard.object(Kind::TailnetEgress, egress, true);
            let verdict = guard.verdict(Kind::TailnetEgress, egress).unwrap().0;
            guard.object(Kind::TailnetEgress, egress, false);
            verdict
        };
        assert_eq!(verdict(&egress(|_| {})), Verdict::Valid);
        let stolen = verdict(&egress(|value| value["spec"]["tag"] = json!("tag:router")));
        assert!(matches!(stolen, Verdict::Withdraw(_)), "{stolen:?}");
        assert_eq!(rules(&stolen), ["TN005"]);
        let elsewhere = verdict(&egress(|value| value["metadata"]["namespace"] = json!("team-a")));
        assert!(matches!(elsewhere, Verdict::Freeze(_)), "{elsewhere:?}");
        assert!(rules(&elsewhere).contains(&"TN201"));
        let taken: Service = serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "tailnet-system" }, "spec": { "ports": [{ "port": 1 }] },
        }))
        .unwrap();
        guard.service(&taken, true);
        let held = verdict(&egress(|_| {}));
        assert!(matches!(held, Verdict::Freeze(_)), "{held:?}");
        assert_eq!(rules(&held), ["TN202"]);
        guard.service(&taken, false);
        assert_eq!(verdict(&egress(|_| {})), Verdict::Valid);
    }

    /// Policies read labels and annotations, which change no generation; a status is the operator's own.
    #[test]
    fn changed_metadata_is_seen_and_a_changed_status_is_not() {
        let guard = guard();
        let version = |change: &dyn Fn(&mut Value)| {
            guard.object(Kind::TailnetEgress, &egress(change), true);
            guard.version()
        };
        let first = version(&|_| {});
        assert_eq!(
            version(&|value| value["status"] = json!({ "observedGeneration": 1 })),
            first
        );
        let labelled = version(&|value| value["metadata"]["labels"] = json!({ "owner": "ann" }));
        assert!(labelled > first, "a label");
        let annotated = version(&|value| value["metadata"]["annotations"] = json!({ "ticket": "7" }));
        assert!(annotated > labelled, "an annotation, and a label that is gone");
    }

    fn ingress(annotation: Value) -> TailnetIngress {
        serde_json::from_value(json!({
            "metadata": { "name": "portal", "namespace": "team-a", "uid": "p", "generation": 1, "annotations": annotation },
            "spec": {
                "tailnetRef": { "name": "demo" },
                "allowFrom": [],
                "exposes": [{ "name": "web", "port": 443, "backend": { "service": "web", "port": 80 } }],
            },
        }))
        .unwrap()
    }

    fn web(spec: Value) -> Service {
        serde_json::from_value(json!({ "metadata": { "name": "web", "namespace": "team-a" }, "spec": spec })).unwrap()
    }

    #[test]
    fn a_backend_that_leads_anywhere_later_withdraws_whatever_the_annotation_says() {
        let guard = guard();
        let asks = json!({ "tsunaro.io/validation": "disabled" });
        let verdict = |guard: &Guard| guard.verdict(Kind::TailnetIngress, &ingress(asks.clone())).unwrap().0;
        let right = web(json!({ "selector": { "app": "web" }, "ports": [{ "port": 80 }] }));
        assert!(guard.service(&right, true));
        assert_eq!(verdict(&guard), Verdict::Valid);
        // What no rule reads wakes nobody.
        let version = guard.version();
        let mut labelled = right.clone();
        labelled.metadata.labels = Some(BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        assert!(!guard.service(&labelled, true));
        assert_eq!(guard.version(), version);
        let elsewhere = web(json!({ "type": "ExternalName", "externalName": "db.team-b.svc" }));
        assert!(guard.service(&elsewhere, true));
        let now = verdict(&guard);
        assert!(matches!(now, Verdict::Withdraw(_)), "{now:?}");
        assert_eq!(rules(&now), ["TN316"]);
        assert!(guard.service(&right, true));
        assert_eq!(verdict(&guard), Verdict::Valid);
    }

    #[test]
    fn the_annotation_skips_what_is_no_security_rule() {
        let guard = guard();
        let verdict = |egress: &TailnetEgress| guard.verdict(Kind::TailnetEgress, egress).unwrap();
        let wrong = |value: &mut Value| value["spec"]["targets"][0]["address"] = json!("169.254.169.254");
        assert!(matches!(verdict(&egress(wrong)).0, Verdict::Freeze(_)));
        let asks = |value: &mut Value| {
            wrong(value);
            value["metadata"]["annotations"] = json!({ "tsunaro.io/validation": "disabled" });
        };
        let (skipped, outcome) = verdict(&egress(asks));
        assert_eq!(skipped, Verdict::Valid);
        let skipped: Vec<_> = outcome.bypassed.iter().map(|finding| finding.rule).collect();
        assert_eq!(skipped, ["TN203"]);
        let stolen = verdict(&egress(|value| {
            asks(value);
            value["spec"]["tag"] = json!("tag:router");
        }));
        assert!(matches!(stolen.0, Verdict::Withdraw(_)), "{stolen:?}");
    }

    #[test]
    fn a_gateway_past_the_webhook_must_fit_the_service_ranges_too() {
        let guard = guard();
        let verdict = |cluster_ip: &str, load_balancer_ip: &str| {
            let gateway = json!({
                "metadata": { "name": "gw", "uid": "g", "generation": 1 },
                "spec": {
                    "tailnetRef": { "name": "demo" }, "hostname": "gw", "tags": ["tag:fabric"],
                    "stateSecretRef": { "name": "gw-state" }, "image": "ghcr.io/tailscale/tailscale:v1.102.4",
                    "routes": { "lan": ["192.0.2.0/24"] },
                    "service": { "loadBalancerIP": load_balancer_ip, "tailnetLBCIDR": "198.51.100.0/24" },
                    "dns": {
                        "zone": "prod-1.tailnet.example.internal", "serviceName": "gw-dns", "serviceClusterIP": cluster_ip,
                        "image": "docker.io/coredns/coredns:1.14.7",
                    },
                },
            });
            let gateway: TailnetGateway = serde_json::from_value(gateway).unwrap();
            guard.verdict(Kind::TailnetGateway, &gateway).unwrap().0
        };
        assert_eq!(verdict("10.96.0.54", "198.51.100.17"), Verdict::Valid);
        for wrong in [
            verdict("192.0.2.54", "198.51.100.17"),
            verdict("10.96.0.54", "10.96.0.17"),
        ] {
            assert!(matches!(wrong, Verdict::Freeze(_)), "{wrong:?}");
            assert_eq!(rules(&wrong), ["TN510"]);
        }
    }

    #[test]
    fn a_tag_without_owner_has_a_reason_of_its_own() {
        let guard = Guard::new(&CommandLine::parse_from(["test", "--agent-image", "image"]).settings);
        guard.complete();
        let tailnet: Tailnet = serde_json::from_value(json!({
            "metadata": { "name": "demo", "uid": "t", "generation": 1 },
            "spec": { "server": "https://control.example.net", "apiSecretRef": { "name": "bootstrap" } },
        }))
        .unwrap();
        guard.object(Kind::Tailnet, &tailnet, true);
        let mut facts = Facts::default();
        facts.policy.present = true;
        guard.facts("demo", Some(facts), Duration::ZERO);
        let mine = egress(|_| {});
        match guard.verdict(Kind::TailnetEgress, &mine).unwrap().0 {
            Verdict::Freeze(findings) => assert_eq!(frozen_reason(&mine, &findings), reason::TAG_NOT_OWNED),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_operators_own_status_writes_decide_nothing_anew() {
        let guard = guard();
        guard.object(Kind::TailnetEgress, &egress(|_| {}), true);
        let version = guard.version();
        let told = egress(|value| value["status"] = json!({ "nodes": [] }));
        guard.object(Kind::TailnetEgress, &told, true);
        assert_eq!(guard.version(), version);
        let changed = egress(|value| value["metadata"]["generation"] = json!(2));
        guard.object(Kind::TailnetEgress, &changed, true);
        assert!(guard.version() > version);
    }

    #[test]
    fn who_announces_a_take_over_waits_for_the_holder() {
        let held = |guard: &Guard, annotation: Value| {
            let mine = egress(|value| {
                value["metadata"]["name"] = json!("b");
                value["metadata"]["uid"] = json!("b");
                value["metadata"]["creationTimestamp"] = json!("2026-02-01T00:00:00Z");
                value["metadata"]["annotations"] = annotation.clone();
                value["spec"]["tag"] = json!("tag:shared");
                value["spec"]["targets"][0]["name"] = json!("other");
            });
            guard.object(Kind::TailnetEgress, &mine, true);
            match guard.verdict(Kind::TailnetEgress, &mine).unwrap().0 {
                Verdict::Valid => panic!("two egresses with one tag"),
                Verdict::Freeze(findings) | Verdict::Withdraw(findings) => frozen_reason(&mine, &findings),
            }
        };
        let guard = guard();
        let holder = egress(|value| {
            value["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            value["spec"]["tag"] = json!("tag:shared");
        });
        guard.object(Kind::TailnetEgress, &holder, true);
        assert_eq!(held(&guard, json!({})), reason::HELD_BY_OTHER);
        let announced = json!({ TAKES_OVER: "TailnetEgress/tailnet-system/a" });
        assert_eq!(held(&guard, announced), reason::WAITING_FOR_HOLDER);
        let another = json!({ TAKES_OVER: "TailnetEgress/tailnet-system/c" });
        assert_ne!(held(&guard, another), reason::WAITING_FOR_HOLDER);
    }
}
