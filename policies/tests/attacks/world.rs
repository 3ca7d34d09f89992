//! The API server (webhook, then store), the operator (record, then guard) and the garbage collector; and objects to attack with.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_policies::{Config, Layer, Operation, Outcome, Request, Snapshot, evaluate, resolve_claims, with_defaults};

pub const OPERATOR: &str = "tailnet-system";

pub type Key = (Kind, Option<String>, String);

/// A cluster with its operator.
pub struct World {
    pub snapshot: Snapshot,
    pub stored: BTreeMap<Key, Value>,
    seconds: u32,
}

pub fn key(kind: Kind, object: &Value) -> Key {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    (kind, text("/metadata/namespace"), text("/metadata/name").unwrap())
}

impl World {
    pub fn new(tailnet: Value) -> Self {
        let mut world = Self {
            snapshot: Snapshot::closed(Config::default()),
            stored: BTreeMap::new(),
            seconds: 0,
        };
        assert!(world.ask(Kind::Tailnet, tailnet), "the Tailnet is refused");
        world
    }

    fn now(&mut self) -> String {
        self.seconds += 1;
        format!(
            "2026-01-01T{:02}:{:02}:{:02}Z",
            self.seconds / 3600,
            self.seconds / 60 % 60,
            self.seconds % 60
        )
    }

    pub fn verdict(&self, kind: Kind, object: &Value) -> Outcome {
        let old = self.stored.get(&key(kind, object)).cloned();
        let mut request = Request::for_object(kind, object.clone(), Layer::Webhook);
        if let Some(old) = old {
            request.operation = Operation::Update;
            request.old = Some(old);
        }
        evaluate(&request, &self.snapshot)
    }

    /// Create or update through the webhook: whether it was let in.
    pub fn ask(&mut self, kind: Kind, object: Value) -> bool {
        let namespace = object
            .pointer("/metadata/namespace")
            .and_then(Value::as_str)
            .map(str::to_owned);
        let mut object = with_defaults(kind, namespace.as_deref(), &object, &self.snapshot);
        self.carry_over(kind, &mut object);
        if self.verdict(kind, &object).denied() {
            return false;
        }
        self.force(kind, object);
        true
    }

    /// What the server keeps of the stored object whatever is sent.
    fn carry_over(&self, kind: Kind, object: &mut Value) {
        if let Some(old) = self.stored.get(&key(kind, object)) {
            for field in ["uid", "creationTimestamp", "deletionTimestamp"] {
                object["metadata"][field] = old["metadata"][field].clone();
            }
        }
    }

    /// Stores it past the webhook: what came in while the configuration was not there yet.
    pub fn force(&mut self, kind: Kind, mut object: Value) {
        self.carry_over(kind, &mut object);
        if object["metadata"]["uid"].is_null() {
            let now = self.now();
            object["metadata"]["uid"] = json!(format!("uid-{}", self.seconds));
            object["metadata"]["creationTimestamp"] = json!(now);
        }
        self.snapshot.upsert(kind, &object);
        self.stored.insert(key(kind, &object), object);
        self.settle();
    }

    /// Deletes it; one that a finalizer holds stays, with a deletionTimestamp.
    pub fn delete(&mut self, key: &Key, held: bool) {
        let Some(mut object) = self.stored.remove(key) else {
            return;
        };
        if held {
            object["metadata"]["deletionTimestamp"] = json!(self.now());
            self.snapshot.upsert(key.0, &object);
            self.stored.insert(key.clone(), object);
        } else {
            self.snapshot.remove(key.0, key.1.as_deref(), &key.2);
        }
        self.settle();
    }

    /// The operator's record.
    pub fn settle(&mut self) {
        let now = self.now();
        for (tailnet, claims) in resolve_claims(&self.snapshot, &now) {
            self.snapshot.set_claims(&tailnet, Some(claims));
        }
    }

    /// Whether the operator acts on it.
    pub fn has_effect(&self, key: &Key) -> bool {
        let Some(object) = self.stored.get(key) else {
            return false;
        };
        let deleting = !object["metadata"]["deletionTimestamp"].is_null();
        let outcome = evaluate(&Request::guard(key.0, object.clone()), &self.snapshot);
        let known = outcome.findings.iter().all(|finding| finding.rule != "TN001");
        !deleting && known && !outcome.denied()
    }

    pub fn effective(&self) -> Vec<Key> {
        self.stored
            .keys()
            .filter(|key| key.0 != Kind::Tailnet && self.has_effect(key))
            .cloned()
            .collect()
    }
}

pub fn tailnet() -> Value {
    json!({ "metadata": { "name": "corp" }, "spec": {
        "server": "https://control.example.net", "apiSecretRef": { "name": "x" }, "reservedNetworks": ["10.96.0.0/12"],
        "dns": { "ingressNameTemplate": "{name}.example.net", "ingressAliasTemplate": "{name}.go.example.net", "reservedNames": ["vault.example.net"] },
        "tagGrants": [{ "namespaces": ["team-a"], "tags": ["tag:granted"] }],
        "policy": { "baseConfigMap": "p", "routeApprovers": ["tag:router"], "ingressSourceAllowlist": ["group:a", "10.0.0.0/8", "alice@"] },
    } })
}

pub fn ingress(namespace: &str, name: &str, label: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": namespace }, "spec": {
        "tailnetRef": { "name": "corp" }, "allowFrom": ["group:a"],
        "exposes": [{ "name": "x", "dnsLabel": label, "port": 5432, "backend": { "service": "x", "port": 1 } }],
    } })
}

pub fn site(name: &str, prefixes: &[&str]) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "tailnetRef": { "name": "corp" }, "prefixes": prefixes } })
}

pub fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[field] = value;
    object
}

pub fn of_ingress(namespace: &str, name: &str) -> Key {
    (Kind::TailnetIngress, Some(namespace.to_owned()), name.to_owned())
}
