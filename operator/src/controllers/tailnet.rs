//! Tailnet: is Headscale there, is it one, does our key work, what is in it. The reconcile is also the loop that reads the
//! facts: it asks to be called again after the facts interval.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::controller::Action;
use rand::RngExt;
use tailnet_crds::{ApiKeyStatus, Kind, ObjectCounts, Tailnet};
use tailnet_headscale::{Class, Client, Endpoint, Error as HeadscaleError, Node, PolicyText};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::controllers::{runner, tailnet_departed};
use crate::desired::tailnet::{Found, Trouble, key_status, status};
use crate::guard::Verdict;
use crate::headscale_clients::Observed;
use crate::key_cleanup::{self, CleanupError};
use crate::key_recovery;
use crate::keys::KeyOwner;
use crate::organisation::Standings;
use crate::queue::Requests;
use crate::status as object_status;
use crate::working_key::{self, Stored, WorkingKey, WorkingKeyError};
use crate::{facts, hosts, server_identity, trusted_ca, writes};

/// How often the keys in use are looked for in Headscale.
const AUDIT_EVERY: SignedDuration = SignedDuration::from_mins(10);
/// Longest pause between two tries while Headscale does not serve: recovery must not wait for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Pause after a clean-up step that may be followed by another.
const NEXT_STEP: Duration = Duration::from_secs(1);

/// What goes wrong on our side; Headscale's troubles are conditions.
#[derive(Debug, thiserror::Error)]
pub enum TailnetError {
    /// The status.
    #[error("cannot write the status: {0}")]
    Status(#[source] Box<kube::Error>),
    /// The object cannot be judged.
    #[error("cannot write the object as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, requests: Requests<Tailnet>, stop: CancellationToken) {
    let store = context.stores.tailnets.clone();
    tokio::join!(
        runner::run(
            "Tailnet",
            Arc::clone(&context),
            store,
            requests,
            stop.clone(),
            reconcile
        ),
        tailnet_departed::run(context, stop),
    );
}

/// What one look at the server gave.
#[derive(Default)]
struct Look {
    reachable: Option<Result<String, Trouble>>,
    key: Option<Result<ApiKeyStatus, WorkingKeyError>>,
    key_hint: Option<String>,
    facts: Option<Result<Vec<String>, String>>,
    /// Whether a clean-up step was done.
    progress: bool,
}

impl Look {
    fn trouble(trouble: Trouble) -> Self {
        Self {
            reachable: Some(Err(trouble)),
            ..Self::default()
        }
    }

    /// Whether everything went well, so that the usual interval applies.
    fn healthy(&self) -> bool {
        matches!(self.reachable, Some(Ok(_))) && matches!(self.key, Some(Ok(_))) && matches!(self.facts, Some(Ok(_)))
    }
}

async fn reconcile(tailnet: Arc<Tailnet>, context: Arc<Context>) -> Result<Action, TailnetError> {
    let name = tailnet.name_any();
    let (verdict, _) = context.guard.verdict(Kind::Tailnet, tailnet.as_ref())?;
    let look = if server_denied(&verdict) {
        // A server that must not be talked to, or another Tailnet's: nobody gets a client for it.
        Look::default()
    } else {
        look(&context, &tailnet, matches!(verdict, Verdict::Valid)).await
    };
    if !matches!(look.key, Some(Ok(_))) || !matches!(look.reachable, Some(Ok(_))) {
        context.hub.set_client(&name, None);
    }
    write_status(&context, &tailnet, &verdict, &look).await?;
    let key = format!("headscale/{name}");
    Ok(Action::requeue(if look.reachable.is_none() {
        context.settings.resync()
    } else if look.healthy() {
        context.backoff.succeeded(&key);
        let interval = Duration::from_secs(context.settings.headscale.facts_interval_seconds);
        if look.progress {
            NEXT_STEP.min(interval)
        } else {
            interval.mul_f64(rand::rng().random_range(0.9..1.1))
        }
    } else {
        context.backoff.failed(&key).min(LONGEST_PAUSE)
    }))
}

/// Whether a rule stands against the server itself (TN101: how it is named; TN102: another Tailnet has it) or its key.
fn server_denied(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Valid => false,
        Verdict::Freeze(findings) | Verdict::Withdraw(findings) => findings.iter().any(|finding| {
            let of_server = ["spec.server", "spec.api.endpoint", "spec.apiSecretRef.name"];
            finding.rule == "TN101" || (finding.rule == "TN102" && of_server.contains(&finding.field.as_str()))
        }),
    }
}

/// Talks to the server. `accepted`: whether rules let us make a first key.
async fn look(context: &Context, tailnet: &Tailnet, accepted: bool) -> Look {
    let name = tailnet.name_any();
    let server = tailnet.spec.api_endpoint().as_str();
    let base = match base_client(context, tailnet, &name, server) {
        Ok(base) => base,
        Err(trouble) => return Look::trouble(trouble),
    };
    let version = match base.version().await {
        Ok(version) => version,
        Err(error) => return Look::trouble(Trouble::Call(error)),
    };
    if !version.supported() {
        return Look::trouble(Trouble::Version(version.version));
    }
    let mut look = Look::default();
    let read_at = Timestamp::now();
    let (key, client, nodes, policy_text) = match read(context, tailnet, &base, accepted).await {
        Ok(read) => read,
        Err(ReadError::Key(WorkingKeyError::Headscale(error)) | ReadError::Read(error)) if is_outage(&error) => {
            return Look::trouble(Trouble::Call(error));
        }
        Err(ReadError::Read(error)) => return Look::trouble(Trouble::Read(error)),
        Err(ReadError::Key(error)) => {
            look.reachable = Some(Ok(version.version));
            look.key = Some(Err(error));
            return look;
        }
    };
    let observed = Arc::new(Observed::new(version.version.clone(), nodes, policy_text, read_at));
    let (changed, first) = (
        context.hub.observe(&name, Arc::clone(&observed)),
        context.hub.client(&name).is_none(),
    );
    context.hub.set_client(&name, Some(Arc::new(client.clone())));

    look.facts = Some(publish(context, tailnet, &observed, changed || first).await);
    match clean_up(context, &name, server, &client, &key, &observed).await {
        Ok(progress) => look.progress = progress,
        Err(error) => {
            tracing::warn!(tailnet = name, %error, "clean-up of keys interrupted; it goes on at the next look")
        }
    }
    look.key_hint = expiring_hint(&key, read_at).or_else(|| context.recovered.told(&name, read_at));
    look.key = Some(Ok(key_status(&key)));
    look.reachable = Some(Ok(version.version));
    look
}

/// Why a server that answers could not be read.
enum ReadError {
    Key(WorkingKeyError),
    Read(HeadscaleError),
}

/// Nodes and policy, read with the working key. A key that worked at the last look is not tried first: when it is refused
/// now, it is looked at closely (and replaced if need be), and the reading starts over once.
async fn read(
    context: &Context,
    tailnet: &Tailnet,
    base: &Client,
    accepted: bool,
) -> Result<(WorkingKey, Client, Vec<Node>, Option<PolicyText>), ReadError> {
    let (mut key, mut client) = working_client(context, tailnet, base, accepted)
        .await
        .map_err(ReadError::Key)?;
    let mut read = tokio::try_join!(client.nodes(), client.policy());
    if read.as_ref().is_err_and(|error| error.class() == Class::Unauthorized) {
        context.hub.set_client(&tailnet.name_any(), None);
        (key, client) = working_client(context, tailnet, base, accepted)
            .await
            .map_err(ReadError::Key)?;
        read = tokio::try_join!(client.nodes(), client.policy());
    }
    let (nodes, policy) = read.map_err(ReadError::Read)?;
    Ok((key, client, nodes, policy))
}

fn base_client(context: &Context, tailnet: &Tailnet, name: &str, server: &str) -> Result<Client, Trouble> {
    // The guard does not ask TN101 again, so that the schema's and webhook's denial is repeated here.
    if let Some(problem) = server_identity::refusal(server) {
        return Err(Trouble::Url(format!(
            "nothing is sent to this server: its URL {problem}"
        )));
    }
    let bundles = trusted_ca::bundles(context, tailnet).map_err(Trouble::Ca)?;
    let endpoint = Endpoint::parse(server).map_err(|error| Trouble::Url(error.to_string()))?;
    context.hub.base(name, &endpoint, &bundles).map_err(Trouble::Call)
}

/// Whether the error is about the server as a whole and not about the call.
fn is_outage(error: &HeadscaleError) -> bool {
    matches!(
        error.class(),
        Class::Transient | Class::Tls | Class::Dns | Class::Unreachable | Class::NotHeadscale
    )
}

/// The working key and a client with it: the stored one, renewed when half its life is over, or a first one.
///
/// A stored key of another URL is not sent there. The bootstrap key finds out whether it is the same server: then the keys
/// stay. Else the former server is left only once there is a key for the new one.
async fn working_client(
    context: &Context,
    tailnet: &Tailnet,
    base: &Client,
    accepted: bool,
) -> Result<(WorkingKey, Client), WorkingKeyError> {
    let name = tailnet.name_any();
    let server = tailnet.spec.api_endpoint().as_str();
    let now = Timestamp::now();
    let mut stored = working_key::stored(context, &name).await?;
    if let Stored::Key(key, secret) = &stored
        && server_identity::same(&key.server, server)
        && key.expires_at > now
    {
        let client = base.with_key(key.key.clone());
        if working_key::is_accepted(&client)
            .await
            .map_err(WorkingKeyError::Headscale)?
        {
            let key = key.clone();
            if key.expires_at.duration_since(now) >= context.settings.headscale.api_key_lifetime() / 2 {
                return Ok((key, client));
            }
            let before = Stored::Key(key.clone(), secret.clone());
            return Ok(match renew(context, tailnet, &client, before).await {
                Ok(new) => {
                    let client = base.with_key(new.key.clone());
                    (new, client)
                }
                Err(error) => {
                    tracing::warn!(tailnet = name, expires_at = %key.expires_at, %error, "working API key not renewed yet");
                    (key, client)
                }
            });
        }
        tracing::warn!(
            tailnet = name,
            prefix = key.prefix,
            "Headscale refuses the working API key; a new one is made from the bootstrap key"
        );
        stored = Stored::Key(key.clone(), secret.clone());
    }
    let bootstrap = base.with_key(working_key::bootstrap(context, tailnet).await?);
    if !working_key::is_accepted(&bootstrap)
        .await
        .map_err(WorkingKeyError::Headscale)?
    {
        let reference = &tailnet.spec.api_secret_ref;
        return Err(WorkingKeyError::Refused {
            namespace: context.namespace().to_owned(),
            name: reference.name.clone(),
            key: reference.key().to_owned(),
        });
    }
    let former = match &stored {
        Stored::Key(key, secret) if !server_identity::same(&key.server, server) && key.expires_at > now => {
            Some((key.clone(), secret.clone()))
        }
        _ => None,
    };
    if let Some((key, secret)) = &former {
        let listed = bootstrap.api_keys().await.map_err(WorkingKeyError::Headscale)?;
        if working_key::is_listed(&listed, key) {
            let key = working_key::readdress(context, tailnet, key, secret.clone()).await?;
            let client = base.with_key(key.key.clone());
            return Ok((key, client));
        }
    }
    if !accepted {
        return Err(WorkingKeyError::NotAccepted);
    }
    let new = renew(context, tailnet, &bootstrap, stored).await?;
    if let Some((former, _)) = former {
        tailnet_departed::abandon_server(context, &name, &former).await;
    }
    let client = base.with_key(new.key.clone());
    Ok((new, client))
}

async fn renew(
    context: &Context,
    tailnet: &Tailnet,
    minter: &Client,
    before: Stored,
) -> Result<WorkingKey, WorkingKeyError> {
    let owner = KeyOwner::of(tailnet).ok_or(WorkingKeyError::NotAccepted)?;
    working_key::mint(context, tailnet, &owner, minter, before).await
}

/// Publishes the facts and hands them to the guard.
async fn publish(
    context: &Context,
    tailnet: &Tailnet,
    observed: &Observed,
    changed: bool,
) -> Result<Vec<String>, String> {
    let name = tailnet.name_any();
    if changed {
        context
            .guard
            .facts(&name, Some(facts::of(context, &name, observed)), Duration::ZERO);
    }
    match facts::publish(context, tailnet, observed).await {
        Ok((_, names)) => Ok(names),
        Err(error) => {
            tracing::warn!(tailnet = name, %error, "facts not published");
            Err(error.to_string())
        }
    }
}

/// One pass of the clean-up; true when there may be more to do at once.
async fn clean_up(
    context: &Context,
    name: &str,
    server: &str,
    client: &Client,
    key: &WorkingKey,
    observed: &Observed,
) -> Result<bool, CleanupError> {
    let progress = key_cleanup::sweep_preauth(context, name, server, client, &observed.nodes).await?;
    key_cleanup::sweep_api(context, name, server, client, Some(&key.prefix)).await?;
    key_cleanup::forget_ended_elsewhere(context, name, Some(server)).await?;
    if context.hub.audit_due(name, AUDIT_EVERY, Timestamp::now()) {
        key_cleanup::audit_preauth(context, name, server, client).await?;
    }
    let found = key_recovery::from_headscale(context, name, server, client).await?;
    Ok(progress || found > 0)
}

/// A word of warning when renewing goes wrong for long.
fn expiring_hint(key: &WorkingKey, now: Timestamp) -> Option<String> {
    let left = key.expires_at.duration_since(now);
    let life = key.expires_at.duration_since(key.created_at);
    (left < life / 4).then(|| {
        format!(
            "the key ends at {} and could not be replaced so far; see the operator's log",
            key.expires_at
        )
    })
}

async fn write_status(
    context: &Context,
    tailnet: &Tailnet,
    verdict: &Verdict,
    look: &Look,
) -> Result<(), TailnetError> {
    let name = tailnet.name_any();
    let observed = context.hub.facts(&name);
    let found = Found {
        verdict,
        reachable: look.reachable.as_ref().map(|r| r.as_ref().map(String::as_str)),
        key: look.key.as_ref().map(|key| match key {
            Ok(status) => Ok(status.clone()),
            Err(error) => Err(error),
        }),
        key_hint: look.key_hint.clone(),
        observed: observed.as_deref(),
        facts: look.facts.clone(),
        hosts: hosts::published(context, tailnet),
        counts: counts(context, &name),
        organisation: context
            .guard
            .with(|snapshot| Standings::of(snapshot, context.policies.vanished())),
        used_tags: used_tags(context, &name),
        policy: context.access_policies.outcome(&name),
    };
    let new = status(
        &tailnet.spec,
        tailnet.metadata.generation,
        tailnet.status.as_ref(),
        &found,
        Timestamp::now(),
    );
    let conditions = new.conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str()));
    context.metrics.conditions(Kind::Tailnet, None, &name, conditions);
    let api: Api<Tailnet> = Api::all(context.client.clone());
    match object_status::write(&api, tailnet, &new).await {
        Ok(_) => Ok(()),
        Err(error) if writes::is_gone(&error) => Ok(()),
        Err(error) => Err(TailnetError::Status(Box::new(error))),
    }
}

fn counts(context: &Context, tailnet: &str) -> ObjectCounts {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let stores = &context.stores;
    ObjectCounts {
        egress: count(
            stores
                .egresses
                .state()
                .iter()
                .filter(|o| o.spec.tailnet_ref.name == tailnet)
                .count(),
        ),
        ingress: count(
            stores
                .ingresses
                .state()
                .iter()
                .filter(|o| o.spec.tailnet_ref.name == tailnet)
                .count(),
        ),
        site: count(
            stores
                .sites
                .state()
                .iter()
                .filter(|o| o.spec.tailnet_ref.name == tailnet)
                .count(),
        ),
        gateway: count(
            stores
                .gateways
                .state()
                .iter()
                .filter(|o| o.spec.tailnet_ref.name == tailnet)
                .count(),
        ),
    }
}

/// The tags of egresses and ingresses of `tailnet`, each with the first object that uses it.
fn used_tags(context: &Context, tailnet: &str) -> Vec<(String, String)> {
    let mut used: Vec<(String, String)> = Vec::new();
    for egress in context.stores.egresses.state() {
        if let Some(tag) = egress
            .spec
            .tag
            .as_ref()
            .filter(|_| egress.spec.tailnet_ref.name == tailnet)
        {
            let namespace = egress.namespace().unwrap_or_default();
            used.push((
                tag.as_str().to_owned(),
                format!("TailnetEgress {namespace}/{}", egress.name_any()),
            ));
        }
    }
    for ingress in context.stores.ingresses.state() {
        if let Some(tag) = ingress
            .spec
            .tag
            .as_ref()
            .filter(|_| ingress.spec.tailnet_ref.name == tailnet)
        {
            let namespace = ingress.namespace().unwrap_or_default();
            used.push((
                tag.as_str().to_owned(),
                format!("TailnetIngress {namespace}/{}", ingress.name_any()),
            ));
        }
    }
    used.sort();
    used.dedup_by(|later, earlier| later.0 == earlier.0);
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailnet_policies::{Class as FindingClass, Finding, Severity};

    #[test]
    fn a_server_that_is_denied_is_not_asked() {
        let finding = |rule, field: &str| Finding {
            rule,
            severity: Severity::Deny,
            field: field.into(),
            class: FindingClass::Duplicate,
            value: None,
            detail: String::new(),
            holder: None,
            policy: None,
        };
        let frozen = |findings: &[Finding]| server_denied(&Verdict::Freeze(findings.to_vec()));
        assert!(!server_denied(&Verdict::Valid));
        assert!(frozen(&[finding("TN103", "spec"), finding("TN102", "spec.server")]));
        assert!(frozen(&[finding("TN101", "spec.api.endpoint")]));
        assert!(frozen(&[finding("TN102", "spec.api.endpoint")]));
        assert!(
            !frozen(&[finding("TN102", "spec.dns.hostsConfigMap")]),
            "the server is its own"
        );
        assert!(!frozen(&[finding("TN103", "spec.server")]));
        assert!(server_denied(&Verdict::Withdraw(vec![finding("TN102", "spec.server")])));
    }
}
