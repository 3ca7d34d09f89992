//! The ledger in its Secret: read once, then written with every change.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Client, ResourceExt};
use tailnet_crds::names::label;
use tailnet_crds::names::tailnet::KEY_LEDGER;
use tokio::sync::Mutex;

use super::document::{Document, FORMAT_VERSION};
use crate::writes::post_params;

/// Key of the ledger in its Secret.
pub const DATA_KEY: &str = "ledger.json";
/// Tries of one write when somebody else wrote in between.
const ATTEMPTS: usize = 5;

/// Why the ledger cannot be used. Without it no key is made.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The API server refused or did not answer.
    #[error("cannot {verb} Secret {KEY_LEDGER}: {source}")]
    Api {
        /// `read`, `create` or `change`.
        verb: &'static str,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// Somebody edited it, or another program has the name.
    #[error(
        "Secret {KEY_LEDGER} is not a key ledger ({problem}); restore it, or delete it (the keys in Secrets are then entered again, and others of this installation are looked for in Headscale)"
    )]
    Malformed {
        /// What is wrong.
        problem: String,
    },
    /// Others keep writing it.
    #[error(
        "Secret {KEY_LEDGER} was changed by somebody else {ATTEMPTS} times in a row; only one operator may write it"
    )]
    Contended,
    /// The document cannot be written as JSON.
    #[error("cannot write the key ledger as JSON: {0}")]
    Json(#[source] serde_json::Error),
}

/// What is known of the stored Secret.
struct Loaded {
    /// None: not created yet.
    resource_version: Option<String>,
    document: Document,
}

/// The stored ledger. Only the acting operator writes it.
pub struct Ledger {
    api: Api<Secret>,
    namespace: String,
    loaded: Mutex<Option<Loaded>>,
}

impl Ledger {
    /// The ledger in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            loaded: Mutex::new(None),
        }
    }

    /// A copy of the ledger as last read or written.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn read(&self) -> Result<Document, LedgerError> {
        let mut guard = self.loaded.lock().await;
        let loaded = match guard.take() {
            Some(loaded) => loaded,
            None => self.load().await?,
        };
        Ok(guard.insert(loaded).document.clone())
    }

    /// Changes the ledger by `change` and stores it; when somebody else wrote meanwhile, `change` runs again on the new
    /// state, or on what this process knows when that is an older one that somebody put back. Nothing is stored when `change` changes nothing or fails.
    ///
    /// # Errors
    /// See [`LedgerError`]; `change`'s own error is inside the Ok.
    pub async fn update<T>(&self, mut change: impl FnMut(&mut Document) -> T) -> Result<T, LedgerError> {
        let mut guard = self.loaded.lock().await;
        let mut known: Option<Document> = None;
        for _ in 0..ATTEMPTS {
            let loaded = match guard.take() {
                Some(loaded) => loaded,
                None => newest(self.load().await?, known.take()),
            };
            let mut document = loaded.document.clone();
            let result = change(&mut document);
            if document == loaded.document {
                *guard = Some(loaded);
                return Ok(result);
            }
            match self.store(&document, loaded.resource_version).await {
                Ok(resource_version) => {
                    *guard = Some(Loaded {
                        resource_version,
                        document,
                    });
                    return Ok(result);
                }
                // Somebody deleted it. What was in it is known: nobody else writes it.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    *guard = Some(Loaded {
                        resource_version: None,
                        document: loaded.document,
                    });
                }
                // Somebody else created or changed it: read it and change that.
                Err(kube::Error::Api(status)) if status.code == 409 => known = Some(loaded.document),
                Err(source) => {
                    return Err(LedgerError::Api {
                        verb: "change",
                        source: Box::new(source),
                    });
                }
            }
        }
        Err(LedgerError::Contended)
    }

    /// Writes the ledger as it was last known when somebody deleted its Secret; how many keys it has then. None when the
    /// Secret is there, or never was, or when there is nothing to write.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn restore(&self) -> Result<Option<usize>, LedgerError> {
        let mut guard = self.loaded.lock().await;
        let Some(loaded) = guard.as_mut().filter(|loaded| !loaded.document.entries.is_empty()) else {
            return Ok(None);
        };
        let failed = |verb| {
            move |source| LedgerError::Api {
                verb,
                source: Box::new(source),
            }
        };
        // The watch that missed it may be late.
        if self.api.get_opt(KEY_LEDGER).await.map_err(failed("read"))?.is_some() {
            return Ok(None);
        }
        loaded.resource_version = self.store(&loaded.document, None).await.map_err(failed("create"))?;
        Ok(Some(loaded.document.entries.len()))
    }

    async fn load(&self) -> Result<Loaded, LedgerError> {
        let secret = self.api.get_opt(KEY_LEDGER).await.map_err(|source| LedgerError::Api {
            verb: "read",
            source: Box::new(source),
        })?;
        let Some(secret) = secret else {
            return Ok(Loaded {
                resource_version: None,
                document: Document::new(Timestamp::now()),
            });
        };
        let resource_version = secret.resource_version();
        Ok(Loaded {
            resource_version,
            document: read_secret(&secret)?,
        })
    }

    async fn store(&self, document: &Document, resource_version: Option<String>) -> kube::Result<Option<String>> {
        let text = serde_json::to_vec(document).map_err(kube::Error::SerdeError)?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(KEY_LEDGER.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some(BTreeMap::from([(
                    label::MANAGED_BY.to_owned(),
                    label::MANAGED_BY_VALUE.to_owned(),
                )])),
                resource_version: resource_version.clone(),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(DATA_KEY.to_owned(), ByteString(text))])),
            ..Secret::default()
        };
        let params = post_params();
        let stored = match resource_version {
            None => self.api.create(&params, &secret).await?,
            Some(_) => self.api.replace(KEY_LEDGER, &params, &secret).await?,
        };
        Ok(stored.resource_version())
    }
}

/// What is stored, with the document that this process wrote where the stored one is an older one: every writing rests on the
/// one before, so somebody put it back.
fn newest(stored: Loaded, known: Option<Document>) -> Loaded {
    match known {
        Some(document) if document.is_newer_than(&stored.document) => {
            tracing::warn!(
                keys = document.entries.len(),
                "an old Secret {KEY_LEDGER} was put back; it is written again from memory, and nothing is lost"
            );
            Loaded { document, ..stored }
        }
        _ => stored,
    }
}

/// The ledger in `secret`.
fn read_secret(secret: &Secret) -> Result<Document, LedgerError> {
    let malformed = |problem: String| LedgerError::Malformed { problem };
    if secret.labels().get(label::MANAGED_BY).map(String::as_str) != Some(label::MANAGED_BY_VALUE) {
        return Err(malformed(format!(
            "it has no label {}={}",
            label::MANAGED_BY,
            label::MANAGED_BY_VALUE
        )));
    }
    let data = secret.data.as_ref().and_then(|data| data.get(DATA_KEY));
    let Some(ByteString(text)) = data else {
        return Err(malformed(format!("it has no key {DATA_KEY}")));
    };
    let document: Document =
        serde_json::from_slice(text).map_err(|e| malformed(format!("line {}, column {}", e.line(), e.column())))?;
    if document.version != FORMAT_VERSION {
        return Err(malformed(format!(
            "its version is {}, this program reads {FORMAT_VERSION}",
            document.version
        )));
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::testing::intention;

    #[test]
    fn a_foreign_or_broken_secret_is_refused_without_telling_its_content() {
        let secret = |labels: &[(&str, &str)], text: &str| Secret {
            metadata: ObjectMeta {
                labels: Some(labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(
                DATA_KEY.to_owned(),
                ByteString(text.as_bytes().to_vec()),
            )])),
            ..Secret::default()
        };
        let ours = [(label::MANAGED_BY, label::MANAGED_BY_VALUE)];
        assert!(
            read_secret(&secret(&[], "{}"))
                .unwrap_err()
                .to_string()
                .contains("no label")
        );
        let broken = read_secret(&secret(&ours, "{\"version\":\"hskey-api-secret\"}"))
            .unwrap_err()
            .to_string();
        assert!(broken.contains("line 1") && !broken.contains("hskey"), "{broken}");
        let newer = r#"{"version":9,"nextNumber":0,"entries":[]}"#;
        assert!(
            read_secret(&secret(&ours, newer))
                .unwrap_err()
                .to_string()
                .contains("version is 9")
        );
        let good = r#"{"version":1,"nextNumber":3,"entries":[]}"#;
        assert_eq!(read_secret(&secret(&ours, good)).unwrap().next_number, 3);
    }

    #[test]
    fn an_old_ledger_that_was_put_back_does_not_count() {
        let now = "2026-11-30T12:00:00Z".parse().unwrap();
        let mut known = Document::new(now);
        let loaded = |document: &Document| Loaded {
            resource_version: Some("9".into()),
            document: document.clone(),
        };
        known.intend(intention("a"), 6, now).unwrap();
        let old = known.clone();
        known.intend(intention("b"), 6, now).unwrap();
        let kept = newest(loaded(&old), Some(known.clone()));
        assert_eq!(
            (kept.document, kept.resource_version.as_deref()),
            (known.clone(), Some("9"))
        );
        // What another operator wrote, or somebody corrected by hand, counts.
        assert_eq!(newest(loaded(&known), Some(old.clone())).document, known);
        let mut corrected = known.clone();
        corrected.drop_entry(0);
        assert_eq!(newest(loaded(&corrected), Some(known)).document, corrected);
        assert_eq!(newest(loaded(&old), None).document, old);
    }
}
