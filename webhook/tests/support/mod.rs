//! A router in this process, and reviews to send to it.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod tls_client;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine;
use http_body_util::BodyExt;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tailnet_crds::{API_VERSION, GROUP, Kind, VERSION};
use tailnet_policies::{Config, ObjectRef, Snapshot};
use tailnet_webhook::audit::{Audit, Target};
use tailnet_webhook::bypass::{Access, Identity};
use tailnet_webhook::live::{Live, Presence};
use tailnet_webhook::metrics::{Metrics, PREFIX};
use tailnet_webhook::router::{Reviewer, router};
use tailnet_webhook::snapshot::SharedSnapshot;
use tower::ServiceExt;

/// An API server that answers every live read the same way and remembers what was asked.
pub struct Script {
    pub presence: Presence,
    pub asked: Mutex<Vec<ObjectRef>>,
}

impl Script {
    pub fn always(presence: Presence) -> Arc<Self> {
        Arc::new(Self {
            presence,
            asked: Mutex::default(),
        })
    }
}

impl Live for Script {
    fn look<'a>(&'a self, holder: &'a ObjectRef) -> Pin<Box<dyn Future<Output = Presence> + Send + 'a>> {
        self.asked.lock().expect("not poisoned").push(holder.clone());
        Box::pin(async { self.presence })
    }
}

/// An API server that answers every question about who may skip rules the same way.
pub struct Says(pub Option<bool>);

impl Access for Says {
    fn may_bypass<'a>(&'a self, _who: &'a Identity) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(async { self.0 })
    }
}

pub struct Harness {
    pub snapshot: Arc<SharedSnapshot>,
    pub registry: Registry,
    pub live: Arc<Script>,
    pub router: Router,
}

impl Harness {
    pub fn new(snapshot: Snapshot) -> Self {
        Self::build(snapshot, Presence::Present, &Target::None, |reviewer| reviewer)
    }

    pub fn build(
        snapshot: Snapshot,
        presence: Presence,
        audit: &Target,
        with: impl FnOnce(Reviewer) -> Reviewer,
    ) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let metrics = Arc::new(Metrics::register(&mut registry));
        let snapshot = Arc::new(SharedSnapshot::new(snapshot));
        let live = Script::always(presence);
        let audit = Audit::open(audit, metrics.audit_lost.clone()).expect("audit stream");
        let reviewer = Reviewer::new(Arc::clone(&snapshot), live.clone(), audit, metrics);
        let router = router(Arc::new(with(reviewer)));
        Self {
            snapshot,
            registry,
            live,
            router,
        }
    }

    pub async fn send(&self, path: &str, body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(body.into())
            .expect("request");
        let response = self.router.clone().oneshot(request).await.expect("never fails");
        let status = response.status();
        (
            status,
            response.into_body().collect().await.expect("body").to_bytes().to_vec(),
        )
    }

    /// Sends a review and gives the `response` of the answer, after checking what every answer must have.
    pub async fn ask(&self, path: &str, review: &Value) -> Value {
        let (status, body) = self.send(path, review.to_string()).await;
        answer(status, &body, review["request"]["uid"].as_str().expect("uid"))
    }

    pub async fn validate(&self, review: &Value) -> Value {
        self.ask("/validate", review).await
    }

    pub fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encodes");
        text
    }
}

/// What holds for every answer.
pub fn answer(status: StatusCode, body: &[u8], uid: &str) -> Value {
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(body));
    let review: Value = serde_json::from_slice(body).expect("JSON");
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(review["kind"], "AdmissionReview");
    let response = &review["response"];
    assert_eq!(response["uid"], uid);
    if response["allowed"] == false {
        assert!(
            response["status"]["code"].as_u64().expect("a code") >= 400,
            "{response}"
        );
        assert!(!response["status"]["message"].as_str().expect("a message").is_empty());
        assert!(response.get("patch").is_none());
    }
    for warning in response["warnings"].as_array().unwrap_or(&Vec::new()) {
        let text = warning.as_str().expect("text");
        assert!(text.chars().count() < 256 && !text.contains('\n'), "{text}");
    }
    for (key, value) in response["auditAnnotations"].as_object().expect("annotations") {
        assert!(!key.contains('/') && value.is_string(), "{key}: {value}");
    }
    response.clone()
}

pub fn patch(response: &Value) -> Value {
    assert_eq!(response["patchType"], "JSONPatch");
    let text = base64::engine::general_purpose::STANDARD
        .decode(response["patch"].as_str().expect("patch"))
        .expect("base64");
    serde_json::from_slice(&text).expect("JSON")
}

/// A review as an API server sends it.
pub fn review(operation: &str, kind: Kind, object: Option<&Value>, old: Option<&Value>) -> Value {
    let subject = object.or(old).expect("an object");
    let gvk = json!({"group": GROUP, "version": VERSION, "kind": kind.as_str()});
    let gvr = json!({"group": GROUP, "version": VERSION, "resource": kind.plural()});
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": gvk, "resource": gvr, "requestKind": gvk, "requestResource": gvr,
            "name": subject["metadata"]["name"], "namespace": subject["metadata"]["namespace"],
            "operation": operation,
            "userInfo": {"username": "alice", "groups": ["team-a", "system:authenticated"]},
            "object": object, "oldObject": old, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}

/// A review of a ConfigMap: an UPDATE where there is an old one.
pub fn config_map_review(object: &Value, old: Option<&Value>) -> Value {
    let mut review = review(
        if old.is_some() { "UPDATE" } else { "CREATE" },
        Kind::Tailnet,
        Some(object),
        old,
    );
    for key in ["kind", "requestKind"] {
        review["request"][key] = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    }
    for key in ["resource", "requestResource"] {
        review["request"][key] = json!({"group": "", "version": "v1", "resource": "configmaps"});
    }
    review
}

pub fn object(kind: Kind, namespace: Option<&str>, name: &str, spec: Value) -> Value {
    let mut metadata = json!({"name": name, "uid": format!("uid-{name}"), "creationTimestamp": "2026-11-01T00:00:00Z"});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({"apiVersion": API_VERSION, "kind": kind.as_str(), "metadata": metadata, "spec": spec})
}

/// A snapshot in which everything is known: a Tailnet, its namespaces, no Services.
pub fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::closed(Config::default());
    for namespace in ["tailnet-system", "team-a"] {
        snapshot.upsert_namespace(namespace);
    }
    snapshot.set_services_known(true);
    let spec = json!({
        "server": "https://control.example.net", "apiSecretRef": {"name": "headscale-api"},
        "reservedNetworks": ["10.96.0.0/12"],
    });
    snapshot.upsert(Kind::Tailnet, object(Kind::Tailnet, None, "corp", spec));
    snapshot
}

/// A Tailnet about which there is nothing to say.
pub fn tailnet(name: &str) -> Value {
    let server = format!("https://{name}.example.net");
    object(
        Kind::Tailnet,
        None,
        name,
        json!({"server": server, "apiSecretRef": {"name": "headscale-api-2"}}),
    )
}

/// An egress that breaks no rule.
pub fn egress(name: &str) -> Value {
    let spec = json!({
        "tailnetRef": {"name": "corp"}, "tag": format!("tag:egress-{name}"), "consumerNamespaces": ["team-a"],
        "targets": [{"name": format!("{name}-db"), "address": "192.0.2.10", "port": 5432, "aliases": [format!("{name}.db.example.net")]}],
    });
    object(Kind::TailnetEgress, Some("tailnet-system"), name, spec)
}

pub fn site(name: &str, prefixes: &[&str]) -> Value {
    object(
        Kind::TailnetSite,
        None,
        name,
        json!({"tailnetRef": {"name": "corp"}, "prefixes": prefixes}),
    )
}

/// A review that is let in, as it is sent.
pub fn question() -> String {
    let site = site("lab", &["198.51.100.0/24"]);
    review("CREATE", Kind::TailnetSite, Some(&site), None).to_string()
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("file")
}
