//! The CA certificates in the webhook configurations, by server-side apply with our own field manager: only
//! `webhooks[].clientConfig.caBundle` is ours, all else stays the chart's.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::trusted::{Others, Trusted, bundle, certificates};

/// Field manager of the caBundle fields.
pub const FIELD_MANAGER: &str = tailnet_crds::names::field_manager::WEBHOOK;

/// Why the CA could not be put into a configuration.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The configuration does not exist (yet).
    #[error("{kind} {name} does not exist yet; the chart installs it")]
    Absent {
        /// Kind of the configuration.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The configuration has no webhook entry.
    #[error("{kind} {name} has no webhooks; install it with the chart again")]
    Empty {
        /// Kind of the configuration.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Reading failed.
    #[error("cannot read {kind} {name}: {source}")]
    Read {
        /// Kind of the configuration.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
    /// Writing failed.
    #[error("cannot write the CA into {kind} {name}: {source}")]
    Write {
        /// Kind of the configuration.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
}

/// One configuration that carries our CA.
#[derive(Debug, Clone)]
pub struct Target {
    kind: &'static str,
    resource: ApiResource,
    name: String,
}

impl Target {
    /// The validating configuration `name`.
    pub fn validating(name: &str) -> Self {
        let resource = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
        Self {
            kind: "ValidatingWebhookConfiguration",
            resource,
            name: name.to_owned(),
        }
    }

    /// The mutating configuration `name`.
    pub fn mutating(name: &str) -> Self {
        let resource = ApiResource::erase::<MutatingWebhookConfiguration>(&());
        Self {
            kind: "MutatingWebhookConfiguration",
            resource,
            name: name.to_owned(),
        }
    }

    /// The API for this configuration.
    pub fn api(&self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.resource)
    }

    /// Name of the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes every entry carry `wanted`; true when something had to be written.
    ///
    /// What else an entry carries stays as long as `others` says. Where `strict`, it stays only beside all of `wanted`:
    /// whoever removed ours is not asked what they put there.
    pub async fn inject(
        &self,
        client: &Client,
        wanted: &[Trusted],
        others: &Others,
        strict: bool,
    ) -> Result<bool, InjectError> {
        let (kind, name) = (self.kind, self.name.clone());
        let api = self.api(client);
        let live = match api.get_opt(&self.name).await {
            Ok(Some(live)) => live,
            Ok(None) => return Err(InjectError::Absent { kind, name }),
            Err(source) => {
                return Err(InjectError::Read {
                    kind,
                    name,
                    source: Box::new(source),
                });
            }
        };
        let carried = merged(&live, wanted, strict, |found| {
            others.still_kept(self.kind, found, Instant::now())
        });
        let Some(patch) = patch(&self.resource, &live, &STANDARD.encode(bundle(&carried))) else {
            return Err(InjectError::Empty { kind, name });
        };
        // In any order: two replicas that want different ones first must not take turns in writing.
        let same = |entry: Vec<Trusted>| entry.len() == carried.len() && entry.iter().all(|one| carried.contains(one));
        if found(&live).into_iter().all(same) {
            return Ok(false);
        }
        // Forced: whoever else wrote a caBundle here would break the calls to this webhook.
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let written = api.patch(&self.name, &parameters, &Patch::Apply(&patch)).await;
        written.map(|_| true).map_err(|source| InjectError::Write {
            kind,
            name,
            source: Box::new(source),
        })
    }
}

/// The certificates of each entry.
fn found(live: &DynamicObject) -> Vec<Vec<Trusted>> {
    let read = |(_, bundle): (&str, Option<&str>)| {
        let text = STANDARD.decode(bundle.unwrap_or_default()).unwrap_or_default();
        certificates(&String::from_utf8_lossy(&text))
    };
    entries(live).map(read).collect()
}

/// What every entry shall carry: `wanted`, then what the entries carry besides and `keep` lets stay.
fn merged(
    live: &DynamicObject,
    wanted: &[Trusted],
    strict: bool,
    keep: impl FnOnce(Vec<Trusted>) -> Vec<Trusted>,
) -> Vec<Trusted> {
    let found = found(live);
    let complete = found.iter().all(|entry| wanted.iter().all(|one| entry.contains(one)));
    let mut others: Vec<Trusted> = Vec::new();
    if complete || !strict {
        for other in found.into_iter().flatten() {
            if !wanted.contains(&other) && !others.contains(&other) {
                others.push(other);
            }
        }
    }
    wanted.iter().cloned().chain(keep(others)).collect()
}

/// Name and caBundle of each entry.
fn entries(live: &DynamicObject) -> impl Iterator<Item = (&str, Option<&str>)> {
    let webhooks = live
        .data
        .get("webhooks")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    webhooks.iter().filter_map(|entry| {
        let bundle = entry
            .get("clientConfig")
            .and_then(|client| client.get("caBundle"))
            .and_then(Value::as_str);
        Some((entry.get("name")?.as_str()?, bundle))
    })
}

fn patch(resource: &ApiResource, live: &DynamicObject, bundle: &str) -> Option<Value> {
    let webhooks: Vec<Value> = entries(live)
        .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    // The uid keeps a configuration that was deleted a moment ago from being created anew, without rules.
    let metadata = json!({"name": live.metadata.name, "uid": live.metadata.uid});
    (!webhooks.is_empty()).then(|| {
        json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "webhooks": webhooks,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Target, entries, merged, patch};
    use crate::tls::authority::Authority;
    use crate::tls::trusted::{Trusted, certificates};
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use jiff::Timestamp;
    use kube::api::DynamicObject;
    use serde_json::json;

    fn live(webhooks: serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "tailnet-webhook", "uid": "u1"}, "webhooks": webhooks,
        }))
        .expect("object")
    }

    #[test]
    fn the_patch_owns_the_bundle_and_nothing_else() {
        let target = Target::validating("tailnet-webhook");
        let object = live(json!([
            {"name": "a.example.net", "clientConfig": {"service": {"name": "s", "namespace": "n"}, "caBundle": "T0xE"}, "sideEffects": "None"},
            {"name": "b.example.net", "clientConfig": {"url": "https://127.0.0.1/validate"}},
        ]));
        assert_eq!(
            entries(&object).collect::<Vec<_>>(),
            [("a.example.net", Some("T0xE")), ("b.example.net", None)]
        );
        let patch = patch(&target.resource, &object, "TkVX").expect("entries");
        assert_eq!(
            patch["webhooks"][0],
            json!({"name": "a.example.net", "clientConfig": {"caBundle": "TkVX"}})
        );
        assert_eq!(patch["webhooks"].as_array().map(Vec::len), Some(2));
        assert_eq!(patch["metadata"], json!({"name": "tailnet-webhook", "uid": "u1"}));
        assert_eq!(patch["apiVersion"], "admissionregistration.k8s.io/v1");
    }

    fn ca() -> (String, Trusted) {
        let text = Authority::generate(Timestamp::now()).expect("CA").bundle();
        let one = certificates(&text).remove(0);
        (text, one)
    }

    #[test]
    fn another_ca_stays_beside_ours_and_not_instead_of_it() {
        let ((our_text, ours), (other_text, other)) = (ca(), ca());
        let carry = |bundles: [&str; 2]| {
            live(json!([
                {"name": "a", "clientConfig": {"caBundle": STANDARD.encode(bundles[0])}},
                {"name": "b", "clientConfig": {"caBundle": STANDARD.encode(bundles[1])}},
            ]))
        };
        let both = format!("{other_text}{our_text}");
        let wanted = [ours.clone()];
        let merge = |object, strict| merged(&object, &wanted, strict, |found| found);
        for strict in [true, false] {
            assert_eq!(merge(carry([&our_text, &our_text]), strict), wanted);
            assert_eq!(merge(carry([&both, &our_text]), strict), [ours.clone(), other.clone()]);
        }
        assert_eq!(merge(carry([&other_text, &both]), true), wanted);
        assert_eq!(merge(carry([&other_text, ""]), false), [ours.clone(), other.clone()]);
        assert_eq!(merged(&carry([&both, &both]), &wanted, false, |_| Vec::new()), [ours]);
    }

    #[test]
    fn a_configuration_without_entries_gets_no_patch() {
        assert!(patch(&Target::mutating("m").resource, &live(json!([])), "TkVX").is_none());
    }
}
