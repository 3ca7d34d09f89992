//! The working API key of a Tailnet: minted from the bootstrap key, kept in the Secret `tailnet-NAME-apikey`, replaced at
//! half its life.
//!
//! Order of a replacement: intention in the ledger, new key, ledger, proof that the new key works, Secret; the old key is
//! deleted by the clean-up only after that. A crash between any two leaves a key that the ledger knows.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use tailnet_crds::Tailnet;
use tailnet_crds::conditions::reason;
use tailnet_crds::names::label;
use tailnet_crds::names::tailnet::api_key_secret;
use tailnet_headscale::{ApiKey, ApiKeyInfo, Class, Client};

use crate::context::Context;
use crate::data_keys;
use crate::keys::{KEY_EXPIRES_AT, KEY_PREFIX, KEY_SERVER, secrets};
use crate::ledger::{Intention, IntentionError, KeyKind, KeyOwner, LedgerError};
use crate::ownership::tailnet_labels;
use crate::server_identity;
use crate::writes::{delete_params, is_gone_or_replaced, post_params};

/// Key of the API key in its Secret.
pub const DATA_KEY: &str = "apiKey";
/// Pause before a refused key is tried once more: a database that hiccups is well again by then.
const SECOND_TRY: Duration = Duration::from_millis(700);
/// Annotation of the Secret: when the key was made, RFC 3339.
pub const KEY_CREATED_AT: &str = "tsunaro.io/key-created-at";
/// Annotation: `NAME/KEY` of the CA ConfigMap with which the server was verified, for the clean-up after the Tailnet.
pub const CA_CONFIG_MAP: &str = "tsunaro.io/ca-config-map";

/// A working key as its Secret holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingKey {
    /// The key.
    pub key: ApiKey,
    /// Its public prefix.
    pub prefix: String,
    /// URL of the API of its server, in the canonical spelling.
    pub server: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
    /// `NAME/KEY` of the CA ConfigMap.
    pub ca_config_map: Option<String>,
}

/// What a Tailnet's working-key Secret is.
#[derive(Clone, Debug)]
pub enum Stored {
    /// It does not exist.
    Absent,
    /// It holds a key.
    Key(WorkingKey, Box<Secret>),
    /// It is ours but holds nothing usable: somebody edited it.
    Damaged(Box<Secret>),
}

/// Why there is no working key. [`WorkingKeyError::reason`] is the reason of `APIKeyReady=False`.
#[derive(Debug, thiserror::Error)]
pub enum WorkingKeyError {
    /// The bootstrap Secret does not exist.
    #[error(
        "Secret {namespace}/{name} of spec.apiSecretRef does not exist; create it with an API key of this Headscale (headscale apikeys create) under the key {key}"
    )]
    NoSecret {
        /// Namespace of the operator.
        namespace: String,
        /// Name in the reference.
        name: String,
        /// Key in the reference.
        key: String,
    },
    /// The bootstrap Secret has no such key.
    #[error(
        "Secret {namespace}/{name} of spec.apiSecretRef has no key {key} ({present}); put an API key of this Headscale there (headscale apikeys create), or correct spec.apiSecretRef.key"
    )]
    NoKey {
        /// Namespace of the operator.
        namespace: String,
        /// Name in the reference.
        name: String,
        /// Key in the reference.
        key: String,
        /// Which keys there are, as `data_keys::present` says it.
        present: String,
    },
    /// The bootstrap key cannot be a key.
    #[error(
        "the text in Secret {namespace}/{name}, key {key}, is no API key: it is empty or has spaces or other characters that no Headscale key has"
    )]
    Malformed {
        /// Namespace of the operator.
        namespace: String,
        /// Name in the reference.
        name: String,
        /// Key in the reference.
        key: String,
    },
    /// Headscale refuses the bootstrap key.
    #[error(
        "Headscale refuses the API key in Secret {namespace}/{name}, key {key} (wrong, expired or deleted; `headscale apikeys list` shows which); put a new one there (headscale apikeys create)"
    )]
    Refused {
        /// Namespace of the operator.
        namespace: String,
        /// Name in the reference.
        name: String,
        /// Key in the reference.
        key: String,
    },
    /// Somebody else's Secret has the name.
    #[error("Secret {namespace}/{name} exists and is not ours; it is left alone: remove it or rename the Tailnet")]
    Foreign {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Rules stand against the object, so it gets no first key.
    #[error("no key is made while the object is not accepted; see Accepted")]
    NotAccepted,
    /// Headscale refused or broke off.
    #[error("no working API key could be made: {0}")]
    Headscale(#[source] tailnet_headscale::Error),
    /// A key that was just made does not work.
    #[error("the API key that was just made does not work: {0}; the old one is kept")]
    NotProven(#[source] tailnet_headscale::Error),
    /// The limit, or a full ledger.
    #[error(transparent)]
    Limit(#[from] IntentionError),
    /// The ledger cannot be used, so no key is made.
    #[error("no key is made without the ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// The API server refused or did not answer.
    #[error("cannot {verb} Secret {name}: {source}")]
    Api {
        /// `read`, `create`, `change` or `delete`.
        verb: &'static str,
        /// Name of the Secret.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
}

impl WorkingKeyError {
    /// Reason of `APIKeyReady=False`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoSecret { .. } => reason::SECRET_NOT_FOUND,
            Self::NoKey { .. } => reason::SECRET_KEY_MISSING,
            Self::Malformed { .. } => reason::API_KEY_MALFORMED,
            Self::Refused { .. } => reason::API_KEY_REFUSED,
            Self::Foreign { .. } => reason::CHILD_NOT_OURS,
            Self::NotAccepted => reason::NOT_ACCEPTED,
            Self::Headscale(_) | Self::NotProven(_) => reason::MINT_FAILED,
            Self::Limit(_) => reason::TOO_MANY_KEYS,
            Self::Ledger(_) => reason::LEDGER_UNUSABLE,
            Self::Api { .. } => reason::API_SERVER_ERROR,
        }
    }
}

/// The bootstrap key, read live; the Secret is never written.
///
/// # Errors
/// See [`WorkingKeyError`].
pub async fn bootstrap(context: &Context, tailnet: &Tailnet) -> Result<ApiKey, WorkingKeyError> {
    let reference = &tailnet.spec.api_secret_ref;
    let (namespace, name, key) = (
        context.namespace().to_owned(),
        reference.name.clone(),
        reference.key().to_owned(),
    );
    let secret = secrets(context)
        .get_opt(&name)
        .await
        .map_err(api_error("read", &name))?;
    let Some(secret) = secret else {
        return Err(WorkingKeyError::NoSecret { namespace, name, key });
    };
    let data = secret.data.as_ref().and_then(|data| data.get(&key));
    let Some(ByteString(text)) = data else {
        let present = data_keys::present(secret.data.iter().flatten().map(|(key, _)| key.as_str()));
        return Err(WorkingKeyError::NoKey {
            namespace,
            name,
            key,
            present,
        });
    };
    let parsed = std::str::from_utf8(text).ok().and_then(|text| ApiKey::parse(text).ok());
    parsed.ok_or(WorkingKeyError::Malformed { namespace, name, key })
}

/// The working key's Secret, read live.
///
/// # Errors
/// See [`WorkingKeyError`].
pub async fn stored(context: &Context, tailnet: &str) -> Result<Stored, WorkingKeyError> {
    let name = api_key_secret(tailnet);
    let Some(secret) = secrets(context)
        .get_opt(&name)
        .await
        .map_err(api_error("read", &name))?
    else {
        return Ok(Stored::Absent);
    };
    let ours = secret.labels().get(label::MANAGED_BY).map(String::as_str) == Some(label::MANAGED_BY_VALUE)
        && secret.labels().get(label::TAILNET).map(String::as_str) == Some(tailnet);
    if !ours {
        return Err(WorkingKeyError::Foreign {
            namespace: context.namespace().to_owned(),
            name,
        });
    }
    Ok(match read_secret(&secret) {
        Some(key) => Stored::Key(key, Box::new(secret)),
        None => Stored::Damaged(Box::new(secret)),
    })
}

/// The key in `secret`, if it is what the annotations say.
fn read_secret(secret: &Secret) -> Option<WorkingKey> {
    let annotation = |key: &str| secret.annotations().get(key).cloned();
    let ByteString(text) = secret.data.as_ref()?.get(DATA_KEY)?;
    let key = ApiKey::parse(std::str::from_utf8(text).ok()?).ok()?;
    let prefix = annotation(KEY_PREFIX)?;
    if key.prefix() != Some(prefix.as_str()) {
        return None;
    }
    Some(WorkingKey {
        key,
        prefix,
        server: server_identity::canonical(&annotation(KEY_SERVER)?),
        created_at: annotation(KEY_CREATED_AT)?.parse().ok()?,
        expires_at: annotation(KEY_EXPIRES_AT)?.parse().ok()?,
        ca_config_map: annotation(CA_CONFIG_MAP),
    })
}

/// Makes a working key with `minter` (a client whose key was seen to work), proves it and stores it over `before`.
///
/// # Errors
/// See [`WorkingKeyError`]. Whatever was made is in the ledger and goes with the clean-up.
pub async fn mint(
    context: &Context,
    tailnet: &Tailnet,
    owner: &KeyOwner,
    minter: &Client,
    before: Stored,
) -> Result<WorkingKey, WorkingKeyError> {
    let name = tailnet.name_any();
    let server = server_identity::canonical(tailnet.spec.api_endpoint().as_str());
    let intention = Intention {
        kind: KeyKind::Api,
        owner: owner.clone(),
        tailnet: name.clone(),
        server: server.clone(),
        tags: Vec::new(),
        lifetime: context.settings.headscale.api_key_lifetime(),
        installation: context.installation(),
    };
    let limit = usize::from(context.settings.headscale.key_mints_per_hour);
    let entry = context
        .ledger
        .update(|ledger| ledger.intend(intention.clone(), limit, Timestamp::now()))
        .await??;
    let key = match minter.create_api_key(entry.expires_at).await {
        Ok(key) => key,
        Err(error) => {
            if !error.may_have_happened() {
                context.ledger.update(|ledger| ledger.not_made(entry.number)).await?;
            }
            return Err(WorkingKeyError::Headscale(error));
        }
    };
    let prefix = key.prefix().map(str::to_owned);
    context
        .ledger
        .update(|ledger| ledger.made(entry.number, None, prefix.clone()))
        .await?;
    minter
        .with_key(key.clone())
        .check_key()
        .await
        .map_err(WorkingKeyError::NotProven)?;
    let working = WorkingKey {
        key,
        prefix: prefix.unwrap_or_default(),
        server,
        created_at: entry.created_at,
        expires_at: entry.expires_at,
        ca_config_map: ca_config_map(tailnet),
    };
    write(context, &name, &working, before).await?;
    tracing::info!(tailnet = name, prefix = working.prefix, expires_at = %working.expires_at, "working API key made");
    Ok(working)
}

/// Whether `listed`, the API keys of a server, has `key`: then it is the server that the key was made on, by whichever URL.
/// A prefix is 12 random characters, so that no other server has it. The key itself is not sent anywhere for this.
pub fn is_listed(listed: &[ApiKeyInfo], key: &WorkingKey) -> bool {
    listed.iter().any(|info| {
        info.short_prefix() == key.prefix
            && info
                .expiration
                .is_some_and(|end| end.as_microsecond() == key.expires_at.as_microsecond())
    })
}

/// Writes down that the server of `key` is reached by another URL now: first in the ledger, then in the Secret, by whose old
/// URL it is done again after a crash in between.
///
/// # Errors
/// See [`WorkingKeyError`].
pub async fn readdress(
    context: &Context,
    tailnet: &Tailnet,
    key: &WorkingKey,
    secret: Box<Secret>,
) -> Result<WorkingKey, WorkingKeyError> {
    let name = tailnet.name_any();
    let server = server_identity::canonical(tailnet.spec.api_endpoint().as_str());
    context
        .ledger
        .update(|ledger| ledger.readdress(&name, &key.server, &server))
        .await?;
    let moved = WorkingKey {
        server,
        ca_config_map: ca_config_map(tailnet),
        ..key.clone()
    };
    write(context, &name, &moved, Stored::Key(key.clone(), secret)).await?;
    tracing::info!(
        tailnet = name,
        former = key.server,
        server = moved.server,
        "the same Headscale by another URL: the keys stay"
    );
    Ok(moved)
}

fn ca_config_map(tailnet: &Tailnet) -> Option<String> {
    let reference = tailnet.spec.ca_config_map_ref()?;
    Some(format!("{}/{}", reference.name, reference.key()))
}

async fn write(context: &Context, tailnet: &str, working: &WorkingKey, before: Stored) -> Result<(), WorkingKeyError> {
    let name = api_key_secret(tailnet);
    let (mut secret, exists) = match before {
        Stored::Absent => (Secret::default(), false),
        Stored::Key(_, secret) | Stored::Damaged(secret) => (*secret, true),
    };
    secret.metadata.name = Some(name.clone());
    secret.metadata.namespace = Some(context.namespace().to_owned());
    secret.metadata.managed_fields = None;
    // No owner reference: the clean-up after a deleted Tailnet needs this key before it goes.
    secret.labels_mut().extend(tailnet_labels(tailnet));
    let annotations = secret.annotations_mut();
    annotations.insert(KEY_PREFIX.to_owned(), working.prefix.clone());
    annotations.insert(KEY_SERVER.to_owned(), working.server.clone());
    annotations.insert(KEY_CREATED_AT.to_owned(), working.created_at.to_string());
    annotations.insert(KEY_EXPIRES_AT.to_owned(), working.expires_at.to_string());
    match &working.ca_config_map {
        Some(reference) => annotations.insert(CA_CONFIG_MAP.to_owned(), reference.clone()),
        None => annotations.remove(CA_CONFIG_MAP),
    };
    let text = working.key.secret().expose().as_bytes().to_vec();
    secret.data = Some(BTreeMap::from([(DATA_KEY.to_owned(), ByteString(text))]));
    let params = post_params();
    if exists {
        secrets(context)
            .replace(&name, &params, &secret)
            .await
            .map_err(api_error("change", &name))?;
    } else {
        secrets(context)
            .create(&params, &secret)
            .await
            .map_err(api_error("create", &name))?;
    }
    context.metrics.wrote("Secret");
    Ok(())
}

/// Removes the Secret of a Tailnet that is gone.
///
/// # Errors
/// The API server's.
pub async fn remove(context: &Context, tailnet: &str, secret: &Secret) -> Result<(), WorkingKeyError> {
    let name = api_key_secret(tailnet);
    match secrets(context).delete(&name, &delete_params(secret, true)).await {
        Ok(_) => {
            context.metrics.wrote("Secret");
            Ok(())
        }
        Err(error) if is_gone_or_replaced(&error) => Ok(()),
        Err(source) => Err(api_error("delete", &name)(source)),
    }
}

/// Whether the key of `client` is good: Headscale also answers 401 when its database hiccups, so a refusal counts only
/// when it comes twice.
///
/// # Errors
/// Everything but a refusal.
pub async fn is_accepted(client: &Client) -> Result<bool, tailnet_headscale::Error> {
    for attempt in 0..2 {
        match client.check_key().await {
            Ok(_) => return Ok(true),
            Err(error) if error.class() != Class::Unauthorized => return Err(error),
            Err(_) if attempt == 0 => tokio::time::sleep(SECOND_TRY).await,
            Err(_) => {}
        }
    }
    Ok(false)
}

fn api_error(verb: &'static str, name: &str) -> impl FnOnce(kube::Error) -> WorkingKeyError {
    let name = name.to_owned();
    move |source| WorkingKeyError::Api {
        verb,
        name,
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_only_as_its_annotations_say() {
        let text = format!("hskey-api-abcdefghijkl-{}", "s".repeat(64)).into_bytes();
        let mut secret = Secret {
            data: Some(BTreeMap::from([(DATA_KEY.to_owned(), ByteString(text))])),
            ..Secret::default()
        };
        assert!(read_secret(&secret).is_none());
        let annotations = secret.annotations_mut();
        annotations.insert(KEY_PREFIX.into(), "abcdefghijkl".into());
        annotations.insert(KEY_SERVER.into(), "https://control.example.net".into());
        annotations.insert(KEY_CREATED_AT.into(), "2026-11-30T00:00:00Z".into());
        annotations.insert(KEY_EXPIRES_AT.into(), "2027-02-28T00:00:00.123456Z".into());
        let key = read_secret(&secret).unwrap();
        assert_eq!(
            (key.prefix.as_str(), key.ca_config_map.as_deref()),
            ("abcdefghijkl", None)
        );
        assert!(!format!("{key:?}").contains("ssss"));
        secret
            .annotations_mut()
            .insert(KEY_PREFIX.into(), "zzzzzzzzzzzz".into());
        assert!(read_secret(&secret).is_none(), "somebody overwrote the key");
    }

    #[test]
    fn a_server_is_known_by_the_key_that_it_lists() {
        let text = format!("hskey-api-abcdefghijkl-{}", "s".repeat(64));
        let key = WorkingKey {
            key: ApiKey::parse(&text).unwrap(),
            prefix: "abcdefghijkl".into(),
            server: "https://control.example.net".into(),
            created_at: "2026-11-30T00:00:00Z".parse().unwrap(),
            expires_at: "2027-02-28T00:00:00.123456Z".parse().unwrap(),
            ca_config_map: None,
        };
        let listed = |prefix: &str, end: &str| -> Vec<ApiKeyInfo> {
            let info = format!(r#"{{"id":"1","prefix":"hskey-api-{prefix}-***","expiration":"{end}"}}"#);
            vec![serde_json::from_str(&info).unwrap()]
        };
        assert!(is_listed(&listed("abcdefghijkl", "2027-02-28T00:00:00.123456Z"), &key));
        assert!(!is_listed(&listed("zzzzzzzzzzzz", "2027-02-28T00:00:00.123456Z"), &key));
        assert!(!is_listed(&listed("abcdefghijkl", "2027-02-28T00:00:00.123457Z"), &key));
        assert!(!is_listed(&[], &key));
    }
}
