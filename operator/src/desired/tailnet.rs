//! The status of a Tailnet, from what was found. Pure: no client, no clock.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tailnet_crds::conditions::condition::{
    ACCEPTED, API_KEY_READY, DNS_READY, ORGANISATION_POLICIES, POLICY_READY, REACHABLE, READY, SPLIT_DNS,
};
use tailnet_crds::conditions::reason;
use tailnet_crds::{
    ApiKeyStatus, DefaultPosture, ObjectCounts, ObservedStatus, PolicyMode, PolicyStatus, TailnetSpec, TailnetStatus,
};
use tailnet_headscale::{Class, Error as HeadscaleError};
use tailnet_policies::facts::Posture;

use crate::access_policy::Outcome;
use crate::children::sha256_hex;
use crate::facts::posture;
use crate::guard::{self, Verdict};
use crate::headscale_clients::Observed;
use crate::hosts::Published;
use crate::organisation::{RECORD, Standings};
use crate::status::{Conditions, Truth};
use crate::trusted_ca::CaError;
use crate::working_key::WorkingKeyError;

/// Why Headscale does not serve.
#[derive(Debug)]
pub enum Trouble {
    /// A CA bundle.
    Ca(CaError),
    /// The URL.
    Url(String),
    /// A call failed.
    Call(HeadscaleError),
    /// Too old.
    Version(String),
    /// It answers, but reading nodes or policy failed.
    Read(HeadscaleError),
}

impl Trouble {
    /// Reason of `Reachable=False`.
    pub fn reason(&self) -> &'static str {
        let error = match self {
            Trouble::Ca(_) => return reason::CA_UNUSABLE,
            Trouble::Url(_) => return reason::INVALID_URL,
            Trouble::Version(_) => return reason::UNSUPPORTED_VERSION,
            Trouble::Read(_) => return reason::READ_FAILED,
            Trouble::Call(error) => error,
        };
        match error {
            HeadscaleError::Trust(_) => reason::CA_UNUSABLE,
            HeadscaleError::Connect { refused: true, .. } => reason::CONNECTION_REFUSED,
            HeadscaleError::Tls {
                unknown_issuer: true, ..
            } => reason::CERTIFICATE_NOT_TRUSTED,
            _ => match error.class() {
                Class::Dns => reason::NAME_NOT_RESOLVED,
                Class::Tls => reason::TLS_FAILED,
                Class::Unreachable => reason::NO_ANSWER,
                Class::NotHeadscale => reason::UNEXPECTED_ANSWER,
                _ if matches!(error, HeadscaleError::Timeout { .. }) => reason::NO_ANSWER,
                _ => reason::SERVER_ERROR,
            },
        }
    }

    fn message(&self) -> String {
        match self {
            Trouble::Ca(error) => error.to_string(),
            Trouble::Url(message) => message.clone(),
            Trouble::Call(error) | Trouble::Read(error) => error.to_string(),
            Trouble::Version(version) => {
                format!("this Headscale is {version}; 0.29 or newer is needed")
            }
        }
    }
}

/// What one look at a Tailnet found.
#[derive(Debug)]
pub struct Found<'a> {
    /// The rules' verdict.
    pub verdict: &'a Verdict,
    /// Version of the server, or why it does not serve. None: not asked, since the object is not accepted.
    pub reachable: Option<Result<&'a str, &'a Trouble>>,
    /// The working key. None: could not be looked at.
    pub key: Option<Result<ApiKeyStatus, &'a WorkingKeyError>>,
    /// A hint about the key for people, although it works.
    pub key_hint: Option<String>,
    /// The last observation, also of an earlier look.
    pub observed: Option<&'a Observed>,
    /// ConfigMaps with the facts, or why they are not published. None: nothing was to be published.
    pub facts: Option<Result<Vec<String>, String>>,
    /// The hosts file.
    pub hosts: Published,
    /// Objects that refer to the Tailnet.
    pub counts: ObjectCounts,
    /// The organisation's policies.
    pub organisation: Standings,
    /// What became of the policy, where this installation writes it.
    pub policy: Option<Outcome>,
    /// Tags that accepted objects use, with the object, sorted.
    pub used_tags: Vec<(String, String)>,
}

/// The new status. `before` is what the object carries.
pub fn status(
    spec: &TailnetSpec,
    generation: Option<i64>,
    before: Option<&TailnetStatus>,
    found: &Found<'_>,
    now: Timestamp,
) -> TailnetStatus {
    let before = before.cloned().unwrap_or_default();
    let mut conditions = Conditions::new(generation, &before.conditions, now);
    accepted(&mut conditions, found.verdict);
    reachable(&mut conditions, spec, found);
    api_key(&mut conditions, found);
    policy(&mut conditions, spec, found);
    names(&mut conditions, spec, found);
    organisation(&mut conditions, found);
    ready(&mut conditions, spec, found);
    let api_key = match &found.key {
        Some(Ok(key)) => Some(key.clone()),
        // What was, while it cannot be looked at.
        _ => before.api_key,
    };
    let server_version = match found.reachable {
        Some(Ok(version)) => Some(version.to_owned()),
        Some(Err(Trouble::Version(version))) => Some(version.clone()),
        _ => before.server_version,
    };
    TailnetStatus {
        conditions: conditions.finish(),
        api_key,
        policy: policy_status(spec, found).or(before.policy),
        observed: found
            .observed
            .map(|o| observed_status(o, found, before.observed.as_ref()))
            .or(before.observed),
        counts: Some(found.counts),
        server_version: server_version.map(|version| version.chars().take(64).collect()),
    }
}

fn accepted(conditions: &mut Conditions, verdict: &Verdict) {
    match verdict {
        Verdict::Valid => conditions.set(ACCEPTED, Truth::True, reason::VALID, ""),
        Verdict::Freeze(findings) => {
            conditions.set(ACCEPTED, Truth::False, reason::INVALID, guard::message(findings));
        }
        Verdict::Withdraw(findings) => {
            conditions.set(ACCEPTED, Truth::False, reason::INVALID, guard::message(findings));
        }
    }
}

/// Only where there is something to say: most installations have no such policies.
fn organisation(conditions: &mut Conditions, found: &Found<'_>) {
    const TYPE: &str = ORGANISATION_POLICIES;
    let standings = &found.organisation;
    let listed = |items: Vec<String>| items.join("; ");
    if standings.is_empty() {
        return;
    }
    if !standings.vanished.is_empty() {
        let items = standings
            .vanished
            .iter()
            .map(|(name, since)| format!("{name} (known since {since})"));
        let message = format!(
            "deleted while in force: {}. Create it again; if it was meant to go, delete the ConfigMap {RECORD}",
            listed(items.collect())
        );
        conditions.set(TYPE, Truth::False, reason::POLICY_VANISHED, message);
        return;
    }
    if !standings.unusable.is_empty() {
        let items = standings
            .unusable
            .iter()
            .map(|(name, problem)| format!("{name}: {problem}"));
        let message = format!("nothing passes what does not compile: {}", listed(items.collect()));
        conditions.set(TYPE, Truth::False, reason::POLICY_UNUSABLE, message);
        return;
    }
    let items = standings.in_force.iter().map(|(name, count)| match count {
        1 => format!("{name} (1 validation)"),
        count => format!("{name} ({count} validations)"),
    });
    conditions.set(TYPE, Truth::True, reason::POLICIES_IN_FORCE, listed(items.collect()));
}

fn reachable(conditions: &mut Conditions, spec: &TailnetSpec, found: &Found<'_>) {
    match found.reachable {
        Some(Ok(version)) => {
            let message = format!("Headscale {version} at {}", spec.api_endpoint().as_str());
            conditions.set(REACHABLE, Truth::True, reason::REACHABLE_REASON, message);
        }
        Some(Err(trouble)) => conditions.set(REACHABLE, Truth::False, trouble.reason(), trouble.message()),
        None => conditions.set(
            REACHABLE,
            Truth::Unknown,
            reason::NOT_ACCEPTED,
            "the server is not asked; see Accepted",
        ),
    }
}

fn api_key(conditions: &mut Conditions, found: &Found<'_>) {
    match &found.key {
        Some(Ok(_)) => {
            conditions.set(
                API_KEY_READY,
                Truth::True,
                reason::API_KEY_READY_REASON,
                found.key_hint.clone().unwrap_or_default(),
            );
        }
        Some(Err(error)) => conditions.set(API_KEY_READY, Truth::False, error.reason(), error.to_string()),
        None if found.reachable.is_none() => {
            conditions.set(
                API_KEY_READY,
                Truth::Unknown,
                reason::NOT_ACCEPTED,
                "the key is not tried; see Accepted",
            );
        }
        None => conditions.set(
            API_KEY_READY,
            Truth::Unknown,
            reason::CONTROL_PLANE_UNREACHABLE,
            "Headscale cannot be asked; see Reachable",
        ),
    }
}

fn policy(conditions: &mut Conditions, spec: &TailnetSpec, found: &Found<'_>) {
    const TYPE: &str = POLICY_READY;
    if spec.policy.is_some() {
        match &found.policy {
            Some(outcome) => conditions.set(
                TYPE,
                outcome.told.truth,
                outcome.told.reason,
                outcome.told.message.clone(),
            ),
            None => conditions.keep(TYPE, reason::UNKNOWN, "the policy has not been rendered yet"),
        }
        return;
    }
    let Some(observed) = found.observed else {
        conditions.set(
            TYPE,
            Truth::Unknown,
            reason::CONTROL_PLANE_UNREACHABLE,
            "the live policy has not been read yet",
        );
        return;
    };
    if let Some(error) = &observed.policy_error {
        conditions.set(
            TYPE,
            Truth::False,
            reason::POLICY_UNREADABLE,
            format!("the live policy is no HuJSON: {error}"),
        );
        return;
    }
    if let Some(problem) = observed.policy_problems.first() {
        conditions.set(
            TYPE,
            Truth::False,
            reason::POLICY_UNREADABLE,
            format!("the live policy: {problem}"),
        );
        return;
    }
    let missing: Vec<String> = found
        .used_tags
        .iter()
        .filter(|(tag, _)| !observed.policy.tag_owners.contains_key(tag))
        .map(|(tag, user)| format!("{tag} ({user})"))
        .collect();
    if !missing.is_empty() {
        let message = format!("no tagOwners entry in the live policy for {}", missing.join(", "));
        conditions.set(TYPE, Truth::False, reason::TAG_NOT_OWNED, message);
        return;
    }
    let default = match posture(observed) {
        Posture::AllowAll => "it has no rules: everybody may reach everything",
        Posture::Deny => "what no rule allows is denied",
    };
    conditions.set(
        TYPE,
        Truth::True,
        reason::POLICY_READ_ONLY,
        format!("the live policy is only read; {default}"),
    );
}

fn names(conditions: &mut Conditions, spec: &TailnetSpec, found: &Found<'_>) {
    const TYPE: &str = DNS_READY;
    match &found.hosts {
        Published::NotConfigured => {
            conditions.set(
                TYPE,
                Truth::True,
                reason::NO_NAMES,
                "spec.dns.hostsConfigMap is absent: nothing is published",
            );
        }
        Published::Missing { name } => {
            conditions.set(
                TYPE,
                Truth::False,
                reason::NOT_PUBLISHED,
                format!("ConfigMap {name} does not exist yet"),
            );
        }
        Published::Foreign { name, holder } => {
            let message = format!("ConfigMap {name} is not ours (it belongs to {holder}) and is left alone");
            conditions.set(TYPE, Truth::False, reason::HOSTS_NOT_OURS, message);
        }
        Published::Ours { name, .. } => {
            conditions.set(
                TYPE,
                Truth::True,
                reason::PUBLISHED,
                format!("ConfigMap {name}, key hosts"),
            );
        }
    }
    if spec.dns.as_ref().is_some_and(|dns| dns.ingress_name_template.is_some()) {
        conditions.set(
            SPLIT_DNS,
            Truth::Unknown,
            reason::CANNOT_VERIFY,
            "whether nodes ask for these names cannot be seen through Headscale's API: check dns.nameservers.split in its configuration",
        );
    }
}

fn ready(conditions: &mut Conditions, spec: &TailnetSpec, found: &Found<'_>) {
    let mut order = vec![ACCEPTED, REACHABLE, API_KEY_READY];
    // Whoever has a policy written wants it in force.
    if spec
        .policy
        .as_ref()
        .is_some_and(|policy| policy.mode == PolicyMode::Apply)
    {
        order.push(POLICY_READY);
    }
    let first = conditions.first_not_true(&order);
    if let Some((r#type, reason, message)) = first.map(|c| (c.type_.clone(), c.reason.clone(), c.message.clone())) {
        conditions.set(READY, Truth::False, &reason, format!("{type}: {message}"));
        return;
    }
    match &found.facts {
        Some(Err(message)) => conditions.set(READY, Truth::False, reason::FACTS_NOT_PUBLISHED, message.clone()),
        _ => conditions.set(READY, Truth::True, reason::READY_REASON, ""),
    }
}

fn policy_status(spec: &TailnetSpec, found: &Found<'_>) -> Option<PolicyStatus> {
    if let Some(outcome) = found.policy.as_ref().filter(|_| spec.policy.is_some()) {
        return Some(outcome.status.clone());
    }
    let observed = found.observed?;
    Some(PolicyStatus {
        live_sha256: observed.policy_text.as_ref().map(|policy| sha256_hex(&policy.text)),
        default_posture: Some(match posture(observed) {
            Posture::AllowAll => DefaultPosture::AllowAll,
            Posture::Deny => DefaultPosture::Deny,
        }),
        ..PolicyStatus::default()
    })
}

fn observed_status(observed: &Observed, found: &Found<'_>, before: Option<&ObservedStatus>) -> ObservedStatus {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let mut routes: Vec<&str> = observed
        .nodes
        .iter()
        .flat_map(|node| &node.available_routes)
        .map(String::as_str)
        .collect();
    routes.sort_unstable();
    routes.dedup();
    ObservedStatus {
        nodes: count(observed.nodes.len()),
        routes: count(routes.len()),
        tags: count(observed.policy.tag_owners.len()),
        facts_config_maps: match &found.facts {
            Some(Ok(names)) => names.clone(),
            _ => before
                .map(|before| before.facts_config_maps.clone())
                .unwrap_or_default(),
        },
    }
}

/// The status of a working key.
pub fn key_status(key: &crate::working_key::WorkingKey) -> ApiKeyStatus {
    // Whole seconds, as metav1.Time keeps them: a fraction would differ from what is stored at every look.
    let whole = |at: Timestamp| Timestamp::from_second(at.as_second()).map_or(Time(at), Time);
    ApiKeyStatus {
        prefix: key.prefix.clone(),
        expires_at: Some(whole(key.expires_at)),
        rotated_at: Some(whole(key.created_at)),
    }
}

#[cfg(test)]
#[path = "tailnet_tests.rs"]
mod tests;
