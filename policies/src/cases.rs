//! The fixtures in `cases/<RULE>/`: each file is a test by being there, in the pure rules, through the webhook's router and
//! against a real API server.
//!
//! A file is `accept-<what>.yaml` (the rule finds nothing, nothing denies), `warn-<what>.yaml` (the rule warns, nothing denies) or
//! `deny-<what>.yaml` (the rule denies). Its YAML documents have one key each:
//!
//! * `cluster` (optional): what is there before. `objects` (our kinds, in the order in which they are to be created),
//!   `namespaces` (names; absent = not known), `services` (core/v1 Services; absent = not known), `configMaps` (base documents
//!   in the operator namespace; absent = not known), `facts` and `claims` by Tailnet (`facts.<tailnet>.ageSeconds` beside the
//!   fields of [`Facts`]), `policies` (data of the organisation's policies, by name), `namespaceLabels` (by namespace), and
//!   `config` (`operatorNamespace`, `clusterDomain`, `serviceCIDRs`, `podCIDRs`).
//! * `user` (optional): `username` and `groups` of who asks, and whether it `mayBypass` rules.
//! * `old` (optional): the stored object; makes the request an UPDATE.
//! * `operation: delete` (optional): `object` is the stored object, and is to be deleted.
//! * `object`: the object that is asked about: of our kinds, or a ConfigMap with a base document.
//! * `expect`, last: the exact findings, one text each, as [`lines`] writes them.
//!
//! A case of a rule that only lint has is asked as lint ([`Case::layer`]).
//!
//! Run the tests with `UPDATE_CASES=1` to have the `expect` documents written; read the difference before you keep it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tailnet_crds::Kind;

use crate::claims::Claims;
use crate::facts::Facts;
use crate::finding::{Outcome, Severity};
use crate::organisation;
use crate::request::{Layer, Operation, Request, Requester};
use crate::snapshot::{Config, Snapshot};

/// What the file's name promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The rule finds nothing, and nothing denies.
    Accept,
    /// The rule warns and nothing denies.
    Warn,
    /// The rule denies.
    Deny,
}

/// One fixture.
#[derive(Clone, Debug)]
pub struct Case {
    /// The rule, from the folder's name.
    pub rule: String,
    /// `TN203/deny-loopback`.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What the file's name promises.
    pub promise: Promise,
    /// What is there before.
    pub cluster: Cluster,
    /// Who asks.
    pub user: Option<User>,
    /// The stored object.
    pub old: Option<Value>,
    /// Whether the object, which is stored, is to be deleted.
    pub deletes: bool,
    /// The object.
    pub object: Value,
    /// Its kind; None for a ConfigMap.
    pub kind: Option<Kind>,
    /// The exact findings.
    pub expect: Vec<String>,
}

/// What is there before.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cluster {
    /// Objects of our kinds.
    pub objects: Vec<Value>,
    /// Names of all namespaces.
    pub namespaces: Option<Vec<String>>,
    /// All Services.
    pub services: Option<Vec<Value>>,
    /// All ConfigMaps of the operator namespace.
    pub config_maps: Option<Vec<Value>>,
    /// What is known of servers, by Tailnet.
    pub facts: BTreeMap<String, CaseFacts>,
    /// Recorded claims, by Tailnet.
    pub claims: BTreeMap<String, Claims>,
    /// The organisation's policies: data of each ConfigMap, by its name.
    pub policies: BTreeMap<String, BTreeMap<String, String>>,
    /// Labels of namespaces that have some, by name; makes namespaces known.
    pub namespace_labels: BTreeMap<String, BTreeMap<String, String>>,
    /// The installation.
    pub config: CaseConfig,
}

/// Facts with their age.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseFacts {
    /// How long ago the server was read.
    #[serde(default)]
    pub age_seconds: u64,
    /// The facts.
    #[serde(flatten)]
    pub facts: Facts,
}

/// The installation; what is absent has its default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaseConfig {
    /// Namespace of the operator.
    #[serde(rename = "operatorNamespace")]
    pub operator_namespace: Option<String>,
    /// DNS domain of the cluster.
    #[serde(rename = "clusterDomain")]
    pub cluster_domain: Option<String>,
    /// Service ranges.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Vec<ipnet::IpNet>,
    /// Pod ranges.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<ipnet::IpNet>,
}

/// Who asks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct User {
    /// Name.
    pub username: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Whether it may skip rules; None: nobody can tell.
    pub may_bypass: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Asked {
    Delete,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    cluster: Option<Cluster>,
    user: Option<User>,
    old: Option<Value>,
    operation: Option<Asked>,
    object: Option<Value>,
    expect: Option<Vec<String>>,
}

/// Why a fixture cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A folder or file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The path.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// The YAML does not fit.
    #[error("{path}: {problem}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        problem: String,
    },
    /// The file does not keep the format.
    #[error("{path}: {problem}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
}

/// The folder with the fixtures of this crate.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases")
}

/// All fixtures of a folder, by name; [`Case::layer`] says where each is to be asked.
pub fn load(directory: &Path) -> Result<Vec<Case>, CaseError> {
    let mut cases = Vec::new();
    for folder in entries(directory)? {
        for file in entries(&folder)? {
            cases.push(load_file(&file)?);
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, CaseError> {
    let error = |source| CaseError::Read {
        path: directory.to_owned(),
        source,
    };
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(error)? {
        entries.push(entry.map_err(error)?.path());
    }
    entries.sort();
    Ok(entries)
}

/// One fixture.
pub fn load_file(path: &Path) -> Result<Case, CaseError> {
    let format = |problem| CaseError::Format {
        path: path.to_owned(),
        problem,
    };
    let text = std::fs::read_to_string(path).map_err(|source| CaseError::Read {
        path: path.to_owned(),
        source,
    })?;
    let documents: Vec<Document> = serde_saphyr::from_multiple(&text).map_err(|error| CaseError::Yaml {
        path: path.to_owned(),
        problem: error.to_string(),
    })?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let promise = match stem.split('-').next() {
        Some("accept") => Promise::Accept,
        Some("warn") => Promise::Warn,
        Some("deny") => Promise::Deny,
        _ => return Err(format("the name begins with neither accept-, warn- nor deny-")),
    };
    let rule = path
        .parent()
        .and_then(Path::file_name)
        .and_then(|folder| folder.to_str())
        .ok_or_else(|| format("the file is in no folder that is named after a rule"))?;
    if documents.last().is_none_or(|document| document.expect.is_none()) {
        return Err(format("the last document is not expect:"));
    }
    let (mut cluster, mut user, mut old, mut operation, mut object, mut expect) = (None, None, None, None, None, None);
    for document in documents {
        cluster = document.cluster.or(cluster);
        user = document.user.or(user);
        old = document.old.or(old);
        operation = document.operation.or(operation);
        object = document.object.or(object);
        expect = document.expect.or(expect);
    }
    let object = object.ok_or_else(|| format("there is no document object:"))?;
    let kind = kind_of(&object);
    if kind.is_none() && object.get("kind").and_then(Value::as_str) != Some("ConfigMap") {
        return Err(format("the object is of none of our kinds, and no ConfigMap"));
    }
    let deletes = operation == Some(Asked::Delete);
    if deletes && (old.is_some() || kind.is_none()) {
        return Err(format("a deletion has no old object, and is of one of our kinds"));
    }
    Ok(Case {
        rule: rule.to_owned(),
        name: format!("{rule}/{stem}"),
        path: path.to_owned(),
        promise,
        cluster: cluster.unwrap_or_default(),
        user,
        old,
        deletes,
        object,
        kind,
        expect: expect.unwrap_or_default(),
    })
}

/// Kind of an object of ours.
pub fn kind_of(object: &Value) -> Option<Kind> {
    object.get("kind")?.as_str()?.parse().ok()
}

impl Case {
    /// Where the rule is to be asked: in the webhook, unless it is one of lint only.
    pub fn layer(&self) -> Layer {
        match crate::table::rule(&self.rule) {
            Some(rule) if !rule.layers.has(crate::table::Layers::WEBHOOK) => Layer::Lint,
            _ => Layer::Webhook,
        }
    }

    /// The snapshot that the fixture describes: what it does not list does not exist.
    pub fn snapshot(&self) -> Snapshot {
        let given = &self.cluster.config;
        let default = Config::default();
        let mut snapshot = Snapshot::closed(Config {
            operator_namespace: given.operator_namespace.clone().unwrap_or(default.operator_namespace),
            cluster_domain: given.cluster_domain.clone().unwrap_or(default.cluster_domain),
            service_cidrs: given.service_cidrs.clone(),
            pod_cidrs: given.pod_cidrs.clone(),
        });
        snapshot.set_namespaces(
            self.cluster
                .namespaces
                .as_ref()
                .map(|names| names.iter().cloned().collect()),
        );
        for (namespace, labels) in &self.cluster.namespace_labels {
            snapshot.upsert_namespace_with(namespace, labels.clone());
        }
        for (name, data) in &self.cluster.policies {
            snapshot.set_policy(name, Some(Arc::new(organisation::standing(name, data))));
        }
        if let Some(services) = &self.cluster.services {
            snapshot.set_services_known(true);
            for service in services {
                snapshot.upsert_service(service);
            }
        }
        if let Some(config_maps) = &self.cluster.config_maps {
            snapshot.set_base_documents_known(true);
            for config_map in config_maps {
                let text = config_map.pointer("/data").and_then(|data| data.get(crate::base::KEY));
                let name = config_map.pointer("/metadata/name").and_then(Value::as_str);
                snapshot.set_base_document(name.unwrap_or_default(), text.and_then(Value::as_str));
            }
        }
        let going = self.deletes.then_some(&self.object);
        for object in self.cluster.objects.iter().chain(&self.old).chain(going) {
            if let Some(kind) = kind_of(object) {
                snapshot.upsert(kind, object);
            }
        }
        for (tailnet, facts) in &self.cluster.facts {
            snapshot.set_facts(
                tailnet,
                Some(facts.facts.clone()),
                Duration::from_secs(facts.age_seconds),
            );
        }
        for (tailnet, claims) in &self.cluster.claims {
            snapshot.set_claims(tailnet, Some(claims.clone()));
        }
        snapshot
    }

    /// The request that the fixture describes: a DELETE where it says so, an UPDATE where there is an old object, else a
    /// CREATE. None for a ConfigMap, which has a way of its own ([`Case::outcome`]).
    pub fn request(&self, layer: Layer) -> Option<Request> {
        let requester = (layer == Layer::Webhook).then(|| {
            let user = self.user.clone().unwrap_or_default();
            Requester {
                username: user.username,
                groups: user.groups,
                may_bypass: user.may_bypass,
            }
        });
        let request = Request {
            requester,
            ..Request::for_object(self.kind?, self.object.clone(), layer)
        };
        Some(match (&self.old, self.deletes) {
            (_, true) => Request {
                operation: Operation::Delete,
                old: request.new,
                new: None,
                ..request
            },
            (Some(old), _) => Request {
                operation: Operation::Update,
                old: Some(old.clone()),
                ..request
            },
            (None, _) => request,
        })
    }

    /// The verdict on the fixture's question.
    pub fn outcome(&self, layer: Layer, snapshot: &Snapshot) -> Outcome {
        match self.request(layer) {
            Some(request) => crate::evaluate(&request, snapshot),
            None => crate::evaluate_config_map(&self.object, self.old.as_ref(), snapshot),
        }
    }
}

/// Whether a fixture says a note: one that Services, namespaces or a server are not known is left out, since most fixtures do
/// not list them.
fn is_said(note: &str) -> bool {
    !note.contains("of the cluster are not known") && !note.contains("has not been read yet")
}

/// Warnings as they come over the wire, where long ones are cut in parts: whole again.
pub fn whole_warnings<'w>(parts: impl IntoIterator<Item = &'w str>) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for part in parts {
        match (part.strip_prefix("… "), warnings.last_mut()) {
            (Some(rest), Some(last)) => *last = format!("{last} {rest}"),
            _ => warnings.push(part.to_owned()),
        }
    }
    warnings
}

/// A whole warning as the fixtures write it (see [`lines`]); None for what they leave out.
pub fn warning_line(warning: &str) -> Option<String> {
    if let Some(skipped) = warning.strip_prefix("skipped: ") {
        return is_said(warning).then(|| format!("skipped {skipped}"));
    }
    let kind = if warning.starts_with("not checked (") {
        "note"
    } else {
        "warn"
    };
    is_said(warning).then(|| format!("{kind} {warning}"))
}

/// The findings and notes of an outcome as the fixtures write them: `deny <field>: <message>`, `warn …`, `note …`,
/// `skipped …`.
pub fn lines(outcome: &Outcome) -> Vec<String> {
    let findings = outcome.findings.iter().map(|finding| match finding.severity {
        Severity::Deny => format!("deny {finding}"),
        Severity::Warn => format!("warn {finding}"),
    });
    let notes = outcome
        .notes
        .iter()
        .filter(|note| is_said(note))
        .map(|note| format!("note {note}"));
    let skipped = outcome.bypassed.iter().map(|finding| format!("skipped {finding}"));
    findings.chain(notes).chain(skipped).collect()
}
