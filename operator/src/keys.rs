//! Pre-auth keys: the Secret from which the agents of one CR join the tailnet.
//!
//! [`ensure_preauth`] makes sure that the Secret holds a key that is bound to the right tags, on the right server, and at
//! most half used up. A key is written into the ledger before it is made, so a crash at any point leaves nothing behind
//! that the clean-up ([`crate::key_cleanup`]) does not find. What became superfluous is expired and deleted there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tailnet_crds::Tailnet;
use tailnet_crds::conditions::reason;
use tailnet_crds::names::{egress::AUTH_KEY, label};
use tailnet_headscale::{NewPreAuthKey, PreAuthKey};

use crate::context::Context;
use crate::ledger::{Document, Entry, Intention, IntentionError, KeyKind, KeyStage, LedgerError};
use crate::ownership::{controller, is_owned_by};
use crate::server_identity;
use crate::writes::{delete_params, is_forbidden, is_gone_or_replaced, post_params};

pub use crate::ledger::KeyOwner;

/// Annotation of a key Secret: Headscale's id of the key.
pub const KEY_ID: &str = "tsunaro.io/key-id";
/// Annotation: the key's public prefix.
pub const KEY_PREFIX: &str = "tsunaro.io/key-prefix";
/// Annotation: end of validity, RFC 3339.
pub const KEY_EXPIRES_AT: &str = "tsunaro.io/key-expires-at";
/// Annotation: tags of the key, sorted, with commas between them.
pub const KEY_TAGS: &str = "tsunaro.io/key-tags";
/// Annotation: URL of the API of the server that the key is on.
pub const KEY_SERVER: &str = "tsunaro.io/key-server";

/// The pre-auth key that a CR's Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Name of the Secret, in the namespace of its owner; the key is under [`AUTH_KEY`].
    pub secret: String,
    /// Headscale's id; nodes that joined with it carry it as `pre_auth_key.id`.
    pub id: String,
    /// Public prefix.
    pub prefix: String,
    /// Tags of its nodes, sorted.
    pub tags: Vec<String>,
    /// URL of the API of its server.
    pub server: String,
    /// End of validity.
    pub expires_at: Timestamp,
}

impl KeyState {
    /// What the annotations of `secret` say; None when they do not describe a key.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        let annotations = meta.annotations.as_ref()?;
        let get = |key: &str| annotations.get(key).cloned();
        Some(Self {
            secret: meta.name.clone()?,
            id: get(KEY_ID)?,
            prefix: get(KEY_PREFIX)?,
            tags: get(KEY_TAGS)?
                .split(',')
                .filter(|tag| !tag.is_empty())
                .map(str::to_owned)
                .collect(),
            server: get(KEY_SERVER)?,
            expires_at: get(KEY_EXPIRES_AT)?.parse().ok()?,
        })
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        [
            (KEY_ID, self.id.clone()),
            (KEY_PREFIX, self.prefix.clone()),
            (KEY_TAGS, self.tags.join(",")),
            (KEY_SERVER, self.server.clone()),
            (KEY_EXPIRES_AT, self.expires_at.to_string()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

/// Why there is no usable pre-auth key. [`KeyError::reason`] is the condition's reason.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Headscale cannot be asked now; the Tailnet's conditions say why.
    #[error(
        "a pre-auth key is needed, but Tailnet {tailnet} has no working connection to Headscale: see its conditions Reachable and APIKeyReady"
    )]
    NoConnection {
        /// Name of the Tailnet.
        tailnet: String,
    },
    /// Headscale refused or broke off.
    #[error("Headscale gave no pre-auth key: {0}")]
    Headscale(#[from] tailnet_headscale::Error),
    /// The limit, or a full ledger.
    #[error(transparent)]
    Limit(#[from] IntentionError),
    /// The ledger cannot be used, so no key is made.
    #[error("no key is made without the ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// Somebody else's Secret has the name.
    #[error(
        "Secret {namespace}/{name} exists and is not ours (it belongs to {holder}); it is left alone: remove it, or rename the {kind}"
    )]
    Foreign {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
        /// Its controller, or `nobody`.
        holder: String,
        /// Kind of the CR that wants the name.
        kind: String,
    },
    /// The operator has no rights in the namespace.
    #[error(
        "the operator may not keep a key in namespace {namespace}: add it to ingressNamespaces of the chart ({source})"
    )]
    NotGranted {
        /// Namespace of the CR.
        namespace: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
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

impl KeyError {
    /// Reason of the condition `KeyReady=False`.
    pub fn reason(&self) -> &'static str {
        match self {
            KeyError::NoConnection { .. } => reason::CONTROL_PLANE_UNREACHABLE,
            KeyError::Headscale(_) => reason::MINT_FAILED,
            KeyError::Limit(_) => reason::TOO_MANY_KEYS,
            KeyError::Ledger(_) => reason::LEDGER_UNUSABLE,
            KeyError::Foreign { .. } => reason::CHILD_NOT_OURS,
            KeyError::NotGranted { .. } => reason::NAMESPACE_NOT_GRANTED,
            KeyError::Api { .. } => reason::API_SERVER_ERROR,
        }
    }
}

/// What the process remembers about keys besides the ledger.
#[derive(Default)]
pub struct Keys {
    /// Minting and clean-up of one Tailnet exclude each other: a key that is just being made is not superfluous.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Secrets whose content was looked at, by name: resource version and state.
    verified: Mutex<HashMap<String, (String, KeyState)>>,
    /// Prefixes of keys (with their Tailnet) that Headscale does not honour any more although they should be valid. Not ids:
    /// a restored database gives those out again.
    dead: Mutex<HashSet<(String, String)>>,
    /// UIDs of CRs that exist and may have no effect.
    withdrawn: Mutex<HashSet<String>>,
}

impl Keys {
    /// The lock of one Tailnet.
    pub(crate) async fn lock(&self, tailnet: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = Arc::clone(self.locks.lock().entry(tailnet.to_owned()).or_default());
        lock.lock_owned().await
    }

    /// A key of `tailnet` was found expired or deleted in Headscale before its time; true when that is news.
    pub(crate) fn mark_dead(&self, tailnet: &str, prefix: &str) -> bool {
        self.dead.lock().insert((tailnet.to_owned(), prefix.to_owned()))
    }

    /// A rule took away all rights of the CR with this UID: its nodes go as soon as its key has ended, whether its Pods do or
    /// not. So until a key is asked for it again. True when that is news.
    pub(crate) fn mark_withdrawn(&self, uid: &str) -> bool {
        self.withdrawn.lock().insert(uid.to_owned())
    }

    pub(crate) fn is_withdrawn(&self, uid: &str) -> bool {
        self.withdrawn.lock().contains(uid)
    }

    fn is_dead(&self, tailnet: &str, prefix: &str) -> bool {
        self.dead.lock().contains(&(tailnet.to_owned(), prefix.to_owned()))
    }
}

/// What a CR needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted<'a> {
    tags: &'a [String],
    server: &'a str,
    lifetime: SignedDuration,
}

/// What is to be done about the key that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing.
    Keep,
    /// It works, yet a new one is due.
    Renew,
    /// There is none that works.
    Make,
}

fn need(state: Option<&KeyState>, wanted: &Wanted<'_>, dead: bool, now: Timestamp) -> Need {
    let Some(state) = state else { return Need::Make };
    if dead || state.tags != wanted.tags || state.server != wanted.server || state.expires_at <= now {
        return Need::Make;
    }
    let left = state.expires_at.duration_since(now);
    if left < wanted.lifetime / 2 {
        Need::Renew
    } else {
        Need::Keep
    }
}

/// Makes sure that `secret` in the owner's namespace holds a reusable, ephemeral pre-auth key for `tags`, and gives it.
///
/// Asks neither Headscale nor the API server while the Secret is as it was at the last call. A key past half its life is
/// replaced; while that fails, the old one is given as long as it is valid. At most `--key-mints-per-hour` keys are made
/// for one CR.
///
/// # Errors
/// See [`KeyError`]; all but [`KeyError::Foreign`] are worth a retry with back-off.
pub async fn ensure_preauth(
    context: &Context,
    tailnet: &Tailnet,
    owner: &KeyOwner,
    secret: &str,
    tags: &[String],
) -> Result<KeyState, KeyError> {
    context.keys.withdrawn.lock().remove(&owner.uid);
    let mut tags = tags.to_vec();
    tags.sort();
    tags.dedup();
    let lifetime = context.settings.headscale.preauth_key_lifetime();
    let server = tailnet.spec.api_endpoint().as_str();
    let wanted = Wanted {
        tags: &tags,
        server,
        lifetime,
    };
    let name = tailnet.name_any();
    let judge = |state: Option<&KeyState>| {
        need(
            state,
            &wanted,
            state.is_some_and(|s| context.keys.is_dead(&name, &s.prefix)),
            Timestamp::now(),
        )
    };

    if let Some(state) = verified(context, owner, secret)
        && judge(Some(&state)) == Need::Keep
    {
        return Ok(state);
    }
    let _making = context.keys.lock(&name).await;
    let mut stored = read(context, owner, secret).await?;
    if let Some(stored) = &stored {
        check_owner(stored, owner)?;
    }
    let mut state = stored.as_ref().and_then(intact_state);
    if let Some(found) = &state
        && !is_in_use(context, owner, found).await
    {
        context.keys.mark_dead(&name, &found.prefix);
    }
    if let (Some(found), Some(secret)) = (&mut state, &mut stored)
        && found.server != server
        && is_on(&context.ledger.read().await?, &name, found, server)
    {
        // The same server by another URL: the key stays, its annotation follows.
        server.clone_into(&mut found.server);
        *secret = readdress(context, owner, secret, server).await?;
    }
    let due = judge(state.as_ref());
    if let (Need::Keep, Some(state), Some(stored)) = (due, &state, &stored) {
        remember(context, stored, state);
        return Ok(state.clone());
    }
    let made = make(context, &name, owner, secret, &wanted, stored).await;
    // The old key is superfluous now, or the new one is a leftover: the clean-up looks at once.
    context.queues.tailnet.push(ObjectRef::new(&name));
    match (made, due, state) {
        (Err(error), Need::Renew, Some(state)) => {
            tracing::warn!(%owner, tailnet = name, expires_at = %state.expires_at, %error, "pre-auth key not renewed yet");
            Ok(state)
        }
        (made, ..) => made,
    }
}

/// Takes the key of a CR away although the CR exists: the Secret goes at once, the clean-up expires the key and removes the
/// nodes. For rules that withdraw a CR's rights. A CR that is gone needs no call: the clean-up finds it by itself. So does a
/// key that is just being made or whose answer was lost: with no Secret to be in, it is expired as soon as it is found.
///
/// # Errors
/// See [`KeyError`].
pub async fn release(context: &Context, tailnet: &str, owner: &KeyOwner, secret: &str) -> Result<(), KeyError> {
    let _making = context.keys.lock(tailnet).await;
    let now = Timestamp::now();
    context
        .ledger
        .update(|ledger| {
            let own = |entry: &&Entry| entry.owner.uid == owner.uid && entry.kind == KeyKind::PreAuth;
            let numbers: Vec<u64> = ledger.entries.iter().filter(own).map(|entry| entry.number).collect();
            numbers.into_iter().for_each(|number| ledger.retire(number, now));
        })
        .await?;
    context.keys.verified.lock().remove(secret);
    if let Some(stored) = read(context, owner, secret).await?
        && is_owned_by(&stored.metadata, &owner.uid)
    {
        match secrets_of(context, owner)
            .delete(secret, &delete_params(&stored, false))
            .await
        {
            Ok(_) => context.metrics.wrote("Secret"),
            Err(error) if is_gone_or_replaced(&error) => {}
            Err(source) => return Err(api_error("delete", secret)(source)),
        }
    }
    context.queues.tailnet.push(ObjectRef::new(tailnet));
    Ok(())
}

/// Intention, key, Secret, ledger: in this order, so that a crash between any two leaves a trace to what exists, and the
/// clean-up can tell a key that is in use from one that nobody ever had.
async fn make(
    context: &Context,
    tailnet: &str,
    owner: &KeyOwner,
    secret: &str,
    wanted: &Wanted<'_>,
    stored: Option<Secret>,
) -> Result<KeyState, KeyError> {
    let Some(client) = context.hub.client(tailnet) else {
        return Err(KeyError::NoConnection {
            tailnet: tailnet.to_owned(),
        });
    };
    if !server_identity::same(&client.endpoint().to_string(), wanted.server) {
        // The Tailnet was pointed elsewhere a moment ago and its controller has not been there yet.
        return Err(KeyError::NoConnection {
            tailnet: tailnet.to_owned(),
        });
    }
    let limit = usize::from(context.settings.headscale.key_mints_per_hour);
    let intention = Intention {
        kind: KeyKind::PreAuth,
        owner: owner.clone(),
        tailnet: tailnet.to_owned(),
        server: server_identity::canonical(wanted.server),
        tags: wanted.tags.to_vec(),
        lifetime: wanted.lifetime,
        installation: context.installation(),
    };
    let entry = context
        .ledger
        .update(|ledger| ledger.intend(intention.clone(), limit, Timestamp::now()))
        .await??;
    let new = NewPreAuthKey {
        reusable: true,
        ephemeral: true,
        expiration: entry.expires_at,
        tags: wanted.tags.to_vec(),
    };
    let key = match client.create_preauth_key(&new).await {
        Ok(key) => key,
        Err(error) => {
            if !error.may_have_happened() {
                context.ledger.update(|ledger| ledger.not_made(entry.number)).await?;
            }
            return Err(error.into());
        }
    };
    let (id, prefix) = (key.info.id.to_string(), key.info.prefix().to_owned());
    let state = KeyState {
        secret: secret.to_owned(),
        id: id.clone(),
        prefix: prefix.clone(),
        tags: wanted.tags.to_vec(),
        server: wanted.server.to_owned(),
        expires_at: entry.expires_at,
    };
    // The Secret first: an intention whose key is in no Secret is then a key that nobody ever had.
    let written = write(context, tailnet, owner, &state, &key, stored).await?;
    context
        .ledger
        .update(|ledger| ledger.made(entry.number, Some(id.clone()), Some(prefix.clone())))
        .await?;
    remember(context, &written, &state);
    tracing::info!(%owner, tailnet, secret, id = state.id, prefix = state.prefix, expires_at = %state.expires_at, "pre-auth key made");
    Ok(state)
}

/// Whether the ledger has nothing against using the key of `state`, which the Secret of `owner` holds: it is not on its way
/// out there, as one in a Secret that somebody restored is. A crash between Secret and ledger is made good by this.
/// Without the ledger the Secret is believed.
async fn is_in_use(context: &Context, owner: &KeyOwner, state: &KeyState) -> bool {
    let found = |ledger: &mut Document| ledger.found_in_secret(owner, &state.id, &state.prefix, state.expires_at);
    context.ledger.update(found).await.unwrap_or(true)
}

/// Whether the key of `state` is on `server`, which its Secret calls otherwise: as another spelling of one URL, or because
/// the Tailnet's controller found its key there and wrote that into the ledger.
fn is_on(ledger: &Document, tailnet: &str, state: &KeyState, server: &str) -> bool {
    server_identity::same(&state.server, server)
        || ledger
            .on_server(tailnet, server, KeyKind::PreAuth)
            .any(|entry| entry.id.as_ref() == Some(&state.id) && entry.prefix.as_ref() == Some(&state.prefix))
}

/// Writes another URL of its server to a key Secret.
async fn readdress(context: &Context, owner: &KeyOwner, stored: &Secret, server: &str) -> Result<Secret, KeyError> {
    let mut secret = stored.clone();
    secret.metadata.managed_fields = None;
    secret
        .annotations_mut()
        .insert(KEY_SERVER.to_owned(), server.to_owned());
    let params = post_params();
    let name = secret.name_any();
    let written = secrets_of(context, owner)
        .replace(&name, &params, &secret)
        .await
        .map_err(api_error("change", &name))?;
    context.metrics.wrote("Secret");
    Ok(written)
}

async fn write(
    context: &Context,
    tailnet: &str,
    owner: &KeyOwner,
    state: &KeyState,
    key: &PreAuthKey,
    stored: Option<Secret>,
) -> Result<Secret, KeyError> {
    let exists = stored.is_some();
    let mut secret = stored.unwrap_or_default();
    secret.metadata.name = Some(state.secret.clone());
    secret.metadata.namespace = Some(owner.namespace.clone());
    secret.metadata.managed_fields = None;
    secret.labels_mut().extend(labels(tailnet, owner));
    secret.annotations_mut().extend(state.annotations());
    if !is_owned_by(&secret.metadata, &owner.uid) {
        secret.metadata.owner_references = Some(vec![OwnerReference {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]);
    }
    secret.data = Some(BTreeMap::from([(
        AUTH_KEY.to_owned(),
        ByteString(key.secret.expose().as_bytes().to_vec()),
    )]));
    let params = post_params();
    let written = if exists {
        // With the resource version in the body, a change that we have not seen is a conflict.
        secrets_of(context, owner)
            .replace(&state.secret, &params, &secret)
            .await
            .map_err(api_error("change", &state.secret))?
    } else {
        secrets_of(context, owner)
            .create(&params, &secret)
            .await
            .map_err(api_error("create", &state.secret))?
    };
    context.metrics.wrote("Secret");
    Ok(written)
}

fn labels(tailnet: &str, owner: &KeyOwner) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (label::MANAGED_BY.to_owned(), label::MANAGED_BY_VALUE.to_owned()),
        (label::TAILNET.to_owned(), tailnet.to_owned()),
        (label::OWNER_KIND.to_owned(), owner.kind.clone()),
        (label::OWNER_NAME.to_owned(), owner.name.clone()),
    ]);
    if !owner.namespace.is_empty() {
        labels.insert(label::OWNER_NAMESPACE.to_owned(), owner.namespace.clone());
    }
    labels
}

/// The state of a Secret whose key is the one that its annotations describe; a key that somebody overwrote is none.
fn intact_state(secret: &Secret) -> Option<KeyState> {
    let state = KeyState::of(&secret.metadata)?;
    let ByteString(key) = secret.data.as_ref()?.get(AUTH_KEY)?;
    let intact = std::str::from_utf8(key).is_ok_and(|key| key.starts_with(&format!("hskey-auth-{}-", state.prefix)));
    intact.then_some(state)
}

/// The state that was seen when the Secret had the resource version that it has now.
fn verified(context: &Context, owner: &KeyOwner, secret: &str) -> Option<KeyState> {
    // Only those of the operator namespace are watched: there is none of another namespace in the store.
    let current = context
        .stores
        .secrets
        .get(&ObjectRef::new(secret).within(&owner.namespace))?
        .resource_version()?;
    let verified = context.keys.verified.lock();
    verified
        .get(secret)
        .filter(|(version, _)| *version == current)
        .map(|(_, state)| state.clone())
}

fn remember(context: &Context, stored: &Secret, state: &KeyState) {
    if let Some(version) = stored.resource_version() {
        context
            .keys
            .verified
            .lock()
            .insert(state.secret.clone(), (version, state.clone()));
    }
}

fn check_owner(stored: &Secret, owner: &KeyOwner) -> Result<(), KeyError> {
    if is_owned_by(&stored.metadata, &owner.uid) {
        return Ok(());
    }
    let holder = controller(stored.meta()).map_or_else(|| "nobody".to_owned(), |by| format!("{} {}", by.kind, by.name));
    Err(KeyError::Foreign {
        namespace: owner.namespace.clone(),
        name: stored.name_any(),
        holder,
        kind: owner.kind.clone(),
    })
}

/// The Secrets of the operator namespace.
pub(crate) fn secrets(context: &Context) -> Api<Secret> {
    Api::namespaced(context.client.clone(), context.namespace())
}

/// The Secrets of the namespace in which the agents of `owner` run: its own.
pub(crate) fn secrets_of(context: &Context, owner: &KeyOwner) -> Api<Secret> {
    Api::namespaced(context.client.clone(), &owner.namespace)
}

async fn read(context: &Context, owner: &KeyOwner, name: &str) -> Result<Option<Secret>, KeyError> {
    match secrets_of(context, owner).get_opt(name).await {
        Ok(found) => Ok(found),
        Err(source) if is_forbidden(&source) && owner.namespace != context.namespace() => Err(KeyError::NotGranted {
            namespace: owner.namespace.clone(),
            source: Box::new(source),
        }),
        Err(source) => Err(api_error("read", name)(source)),
    }
}

fn api_error(verb: &'static str, name: &str) -> impl FnOnce(kube::Error) -> KeyError {
    let name = name.to_owned();
    move |source| KeyError::Api {
        verb,
        name,
        source: Box::new(source),
    }
}

/// Whether an entry of the ledger still stands for a key that is meant to be used.
pub(crate) fn in_use(entry: &Entry) -> bool {
    entry.stage == KeyStage::Active
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::testing::intention;

    fn state(tags: &[&str], expires: &str) -> KeyState {
        KeyState {
            secret: "tailnet-egress-a-authkey".into(),
            id: "7".into(),
            prefix: "abcdefghijkl".into(),
            tags: tags.iter().map(|t| t.to_string()).collect(),
            server: "https://control.example.net".into(),
            expires_at: expires.parse().unwrap(),
        }
    }

    #[test]
    fn when_a_key_is_made() {
        let tags = ["tag:a".to_owned()];
        let week = SignedDuration::from_hours(168);
        let wanted = Wanted {
            tags: &tags,
            server: "https://control.example.net",
            lifetime: week,
        };
        let now: Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
        let fresh = state(&["tag:a"], "2026-12-06T00:00:00Z");
        assert_eq!(need(None, &wanted, false, now), Need::Make);
        assert_eq!(need(Some(&fresh), &wanted, false, now), Need::Keep);
        assert_eq!(need(Some(&fresh), &wanted, true, now), Need::Make);
        assert_eq!(
            need(Some(&state(&["tag:a"], "2026-12-03T00:00:00Z")), &wanted, false, now),
            Need::Renew
        );
        assert_eq!(
            need(Some(&state(&["tag:a"], "2026-11-30T00:00:00Z")), &wanted, false, now),
            Need::Make
        );
        assert_eq!(
            need(Some(&state(&["tag:b"], "2026-12-06T00:00:00Z")), &wanted, false, now),
            Need::Make
        );
        let elsewhere = Wanted {
            server: "https://other.example.net",
            ..wanted
        };
        assert_eq!(need(Some(&fresh), &elsewhere, false, now), Need::Make);
    }

    #[test]
    fn annotations_lead_back_to_the_state() {
        let state = state(&["tag:a", "tag:b"], "2026-12-06T00:00:00.123456Z");
        let mut secret = Secret::default();
        secret.metadata.name = Some(state.secret.clone());
        secret.metadata.annotations = Some(state.annotations());
        assert_eq!(KeyState::of(&secret.metadata), Some(state.clone()));
        assert_eq!(intact_state(&secret), None, "no key at all");
        let mut with = |key: &str| {
            secret.data = Some(BTreeMap::from([(
                AUTH_KEY.to_owned(),
                ByteString(key.as_bytes().to_vec()),
            )]));
            intact_state(&secret)
        };
        assert_eq!(with("hskey-auth-abcdefghijkl-secret"), Some(state));
        assert_eq!(
            with("hskey-auth-zzzzzzzzzzzz-secret"),
            None,
            "somebody overwrote the key"
        );
    }

    #[test]
    fn a_key_is_on_its_server_by_whichever_url() {
        let state = state(&["tag:a"], "2026-12-06T00:00:00Z");
        let mut ledger = Document::default();
        assert!(is_on(&ledger, "corp", &state, "https://control.example.net:443/"));
        assert!(!is_on(&ledger, "corp", &state, "https://headscale.svc"));
        let intention = Intention {
            server: "https://headscale.svc".into(),
            ..intention("a")
        };
        let number = ledger.intend(intention, 6, Timestamp::now()).unwrap().number;
        ledger.made(number, Some("7".into()), Some("zzzzzzzzzzzz".into()));
        assert!(
            !is_on(&ledger, "corp", &state, "https://headscale.svc"),
            "another key with this id"
        );
        ledger.made(number, Some("7".into()), Some("abcdefghijkl".into()));
        assert!(is_on(&ledger, "corp", &state, "https://headscale.svc/"));
        assert!(!is_on(&ledger, "other", &state, "https://headscale.svc"));
    }

    #[test]
    fn a_key_with_the_id_of_a_dead_one_is_not_dead() {
        let keys = Keys::default();
        assert!(keys.mark_dead("corp", "abcdefghijkl"));
        assert!(!keys.mark_dead("corp", "abcdefghijkl"), "no news");
        assert!(keys.is_dead("corp", "abcdefghijkl"));
        assert!(!keys.is_dead("corp", "zzzzzzzzzzzz") && !keys.is_dead("other", "abcdefghijkl"));
    }
}
