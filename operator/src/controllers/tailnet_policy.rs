//! The access policy of a Tailnet: render, publish, and in mode Apply write what differs.
//!
//! Reads of Headscale are the Tailnet controller's; this one asks Headscale only when it is about to write. It renders from
//! complete lists only, and what cannot be told for certain is not written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::conditions::reason;
use tailnet_crds::names::rendered_policy::OVERWRITTEN;
use tailnet_crds::names::tailnet::rendered_policy_config_map;
use tailnet_crds::{DefaultPosture, Kind, PolicyDiff, PolicyStatus, Tailnet, TailnetPolicy};
use tailnet_headscale::document::{Document, Policy, diff};
use tailnet_headscale::{Class, Client, Error as HeadscaleError, Node};
use tailnet_policies::access_policy::{
    Ask, Owner, Registered, RenderError, Rendered, owner_of, render, sha256_hex, sources_in, without_marker,
};
use tailnet_policies::facts::Posture;
use tokio_util::sync::CancellationToken;

use crate::access_policy::published::{self, Published, excerpt};
use crate::access_policy::{
    Applied, Memory, Outcome, Pending, Rejection, Seen, Sent, approvals, events, foreign_owner, live_text, own,
    removals,
};
use crate::children::{self, ChildError};
use crate::claims::KeepError;
use crate::context::Context;
use crate::controllers::{claims, runner};
use crate::desired::access_policy::{LONGEST, SETTLE, SPACING, Situation, Step, Told, concerned, decide, remarks};
use crate::facts;
use crate::guard::{self, Verdict};
use crate::headscale_clients::Observed;
use crate::queue::Requests;
use crate::status::Truth;

/// Least time between two renders of one Tailnet.
const RENDER_SPACING: Duration = Duration::from_millis(500);
/// How soon it is looked again whether a removal is explained.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How soon the ConfigMap is written again that could not be.
const PUBLISH_AGAIN: Duration = Duration::from_secs(30);
/// Most characters of Headscale's words in the status.
const MAX_REJECTION: usize = 1000;

/// Why the policy could not be looked after; all are retried with back-off.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Without the record nobody knows whose a name is.
    #[error(transparent)]
    Claims(#[from] Arc<KeepError>),
    /// The Tailnet cannot be written as JSON.
    #[error("cannot write the object as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The ConfigMap of the rendered policy.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// Rendering was broken off.
    #[error("the policy could not be rendered: {0}")]
    Broken(#[source] tokio::task::JoinError),
    /// The objects could not be listed.
    #[error("cannot list the objects whose entries would go: {0}")]
    List(#[source] Box<kube::Error>),
    /// Headscale.
    #[error(transparent)]
    Headscale(#[from] HeadscaleError),
    /// What was stored is not what was sent.
    #[error("Headscale stored another policy than it was sent; somebody else wrote at the same time")]
    NotAsSent,
}

/// Runs until `stop`.
pub async fn run(context: Arc<Context>, requests: Requests<Tailnet>, stop: CancellationToken) {
    let store = context.stores.tailnets.clone();
    runner::run(
        "TailnetPolicy",
        context,
        store,
        requests,
        stop,
        |tailnet, context| async move {
            let result = reconcile(&tailnet, &context).await;
            if let Err(error) = &result
                && tailnet.spec.policy.is_some()
            {
                told_of_error(&tailnet, &context, error);
            }
            result
        },
    )
    .await;
}

/// An error that lasts must be seen in the status too.
fn told_of_error(tailnet: &Tailnet, context: &Context, error: &PolicyError) {
    let told = match error {
        PolicyError::Child(ChildError::Foreign { .. }) => {
            Told::new(Truth::False, reason::CHILD_NOT_OURS, error.to_string())
        }
        PolicyError::Headscale(error) if error.class() != Class::Permanent => {
            Told::new(Truth::Unknown, reason::CONTROL_PLANE_UNREACHABLE, error.to_string())
        }
        _ => Told::new(Truth::False, reason::POLICY_NOT_WRITTEN, error.to_string()),
    };
    let before = context.access_policies.outcome(&tailnet.name_any());
    let (status, left_out) = before.map_or_else(Default::default, |before| (before.status, before.left_out));
    tell(context, tailnet, Some(Outcome { told, status, left_out }));
}

/// Takes over the outcome, and has the status written when it changed.
fn tell(context: &Context, tailnet: &Tailnet, outcome: Option<Outcome>) {
    let name = tailnet.name_any();
    let before = context.access_policies.outcome(&name).map(|before| before.left_out);
    let after = outcome.as_ref().map(|after| after.left_out.clone());
    if context.access_policies.tell(&name, outcome) {
        context.queues.tailnet.push(ObjectRef::from_obj(tailnet));
    }
    if before != after {
        context.enqueue_members(&name);
    }
}

async fn reconcile(tailnet: &Tailnet, context: &Context) -> Result<Action, PolicyError> {
    let name = tailnet.name_any();
    if tailnet.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let memory = context.access_policies.memory(&name);
    let Some(policy) = &tailnet.spec.policy else {
        return give_up(tailnet, context, &memory).await;
    };
    if let Some(left) = memory
        .rendered_at
        .and_then(|at| RENDER_SPACING.checked_sub(at.elapsed()))
    {
        return Ok(Action::requeue(left));
    }
    claims::settle(context, &name).await?;
    let Some(observed) = context.hub.facts(&name) else {
        let told = Told::new(
            Truth::Unknown,
            reason::CONTROL_PLANE_UNREACHABLE,
            "the live policy has not been read yet; see Reachable",
        );
        tell(
            context,
            tailnet,
            Some(Outcome {
                told,
                status: PolicyStatus::default(),
                left_out: BTreeMap::new(),
            }),
        );
        return Ok(Action::await_change());
    };
    let Some(owner) = own(context, &name) else {
        return Ok(Action::requeue(Duration::from_secs(1)));
    };
    replay(tailnet, context, &observed, &memory).await?;
    let live = live_text(&memory, &observed);
    let (rendered, difference) = match rendered(context, &name, &owner, live.clone(), &observed).await? {
        Ok(rendered) => rendered,
        Err(error) => {
            tell(context, tailnet, Some(not_rendered(&error, live.as_deref(), &observed)));
            return Ok(Action::await_change());
        }
    };
    context
        .access_policies
        .remember(&name, |memory| memory.rendered_at = Some(Instant::now()));
    Look {
        tailnet,
        context,
        policy,
        observed: &observed,
        memory,
        live,
        rendered,
        difference,
        unpublished: None,
        retry_publishing: false,
    }
    .go_on()
    .await
}

/// Renders on a thread of its own: with thousands of objects it takes longer than a task should.
async fn rendered(
    context: &Context,
    name: &str,
    owner: &Owner,
    live: Option<String>,
    observed: &Observed,
) -> Result<Result<(Rendered, Difference), RenderError>, PolicyError> {
    let snapshot = context.guard.with(Clone::clone);
    let registered = registered(observed);
    let (name, owner) = (name.to_owned(), owner.clone());
    let acknowledged = context
        .stores
        .tailnets
        .get(&ObjectRef::<Tailnet>::new(&name))
        .and_then(|tailnet| tailnet.spec.policy.clone()?.acknowledge_posture);
    let work = move || {
        let rendered = render(
            &snapshot,
            Ask {
                tailnet: &name,
                owner: Some(&owner),
                live: live.as_deref(),
                registered: Some(&registered),
            },
        )?;
        let (text, _, _) = rendered.wanted(acknowledged.as_deref());
        let difference = Difference::of(live.as_deref().unwrap_or_default(), text);
        Ok((rendered, difference))
    };
    tokio::task::spawn_blocking(work).await.map_err(PolicyError::Broken)
}

/// Between the live and the wanted document.
struct Difference {
    lines: String,
    counts: diff::Counts,
}

impl Difference {
    fn of(live: &str, wanted: &str) -> Self {
        let read = |text: &str| {
            Document::parse(text)
                .map(|document| document.policy().clone())
                .unwrap_or_default()
        };
        Self {
            lines: diff::unified(live, wanted, "live", "rendered"),
            counts: diff::counts(&read(live), &read(wanted)),
        }
    }
}

fn registered(observed: &Observed) -> Registered {
    let mut registered = Registered {
        knows_emails: true,
        ..Registered::default()
    };
    for node in &observed.nodes {
        registered.tags.extend(node.tags.iter().cloned());
        if let Some(user) = node.user.as_ref().filter(|_| node.tags.is_empty()) {
            registered.users.insert(user.name.clone());
            registered.users.insert(user.email.clone());
        }
    }
    registered
}

fn not_rendered(error: &RenderError, live: Option<&str>, observed: &Observed) -> Outcome {
    let reason = match error {
        RenderError::BaseMissing { .. } => reason::BASE_NOT_FOUND,
        RenderError::BaseInvalid { .. } => reason::BASE_INVALID,
        RenderError::LiveUnreadable { .. } => reason::POLICY_UNREADABLE,
        RenderError::NoPolicy(_) | RenderError::TooLarge { .. } => reason::POLICY_NOT_WRITTEN,
    };
    Outcome {
        told: Told::new(Truth::False, reason, format!("{error}; the live policy stays as it is")),
        status: PolicyStatus {
            live_sha256: live.map(sha256_hex),
            default_posture: Some(posture(observed)),
            ..PolicyStatus::default()
        },
        left_out: BTreeMap::new(),
    }
}

fn posture(observed: &Observed) -> DefaultPosture {
    match facts::posture(observed) {
        Posture::AllowAll => DefaultPosture::AllowAll,
        Posture::Deny => DefaultPosture::Deny,
    }
}

/// One look at a Tailnet whose policy could be rendered.
struct Look<'a> {
    tailnet: &'a Tailnet,
    context: &'a Context,
    policy: &'a TailnetPolicy,
    observed: &'a Observed,
    memory: Memory,
    live: Option<String>,
    rendered: Rendered,
    difference: Difference,
    /// What the ConfigMap does not show, and why.
    unpublished: Option<String>,
    /// Whether that may be another time.
    retry_publishing: bool,
}

impl Look<'_> {
    fn wanted(&self) -> (&str, &str) {
        let (text, sha256, _) = self.rendered.wanted(self.policy.acknowledge_posture.as_deref());
        (text, sha256)
    }

    /// What holds in the live document where no rule says anything; a text that cannot be read is taken for closed.
    fn live_posture(&self) -> DefaultPosture {
        let open = match &self.live {
            None => true,
            Some(text) => Document::parse(text)
                .is_ok_and(|document| document.policy().posture() == tailnet_headscale::document::Posture::AllowAll),
        };
        if open {
            DefaultPosture::AllowAll
        } else {
            DefaultPosture::Deny
        }
    }

    async fn go_on(mut self) -> Result<Action, PolicyError> {
        let name = self.tailnet.name_any();
        let (verdict, _) = self.context.guard.verdict(Kind::Tailnet, self.tailnet)?;
        let refused = match &verdict {
            Verdict::Valid => None,
            Verdict::Freeze(findings) | Verdict::Withdraw(findings) => Some(guard::message(findings)),
        };
        let foreign = foreign_owner(self.context, &name, self.live.as_deref());
        if let Some(sent) = self.memory.sent.clone().filter(|sent| sent.is(self.live.as_deref())) {
            // The answer to the write got lost.
            self.landed(sent, Timestamp::now()).await;
            read_again(self.context, self.tailnet);
        }
        if self.policy.mode == tailnet_crds::PolicyMode::Apply && self.live.as_deref() == Some(self.wanted().0) {
            // Whatever a crash left unsaid: this is what was written.
            self.applied(None);
        }
        self.show().await;
        let situation = self.situation(foreign.as_ref(), refused.as_deref());
        match decide(&situation) {
            Step::Rest(told) => {
                let outcome = self.outcome(told, None);
                tell(self.context, self.tailnet, Some(outcome));
                self.context
                    .access_policies
                    .remember(&name, |memory| memory.pending = None);
                // A verdict on the Tailnet may follow facts that are a moment behind the observation.
                Ok(Action::requeue(match refused {
                    Some(_) => LOOK_AGAIN,
                    None if self.retry_publishing => PUBLISH_AGAIN,
                    None => self.context.settings.resync(),
                }))
            }
            Step::Write => {
                let remarks = remarks(&situation);
                self.write(&remarks).await
            }
        }
    }

    fn situation<'s>(&'s self, foreign: Option<&'s Owner>, refused: Option<&'s str>) -> Situation<'s> {
        Situation {
            rendered: &self.rendered,
            live: self.live.as_deref(),
            live_posture: self.live_posture(),
            has_nodes: !self.observed.nodes.is_empty(),
            foreign,
            mode: self.policy.mode,
            acknowledged: self.policy.acknowledge_posture.as_deref(),
            refused,
            added: self.difference.counts.added,
            removed: self.difference.counts.removed,
            unpublished: self.unpublished.as_deref(),
        }
    }

    fn outcome(&self, told: Told, rejection: Option<String>) -> Outcome {
        let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let applied_at = self.last_applied().map(|applied| applied.at);
        Outcome {
            told,
            status: PolicyStatus {
                rendered_config_map: Some(rendered_policy_config_map(&self.tailnet.name_any())),
                rendered_sha256: Some(self.wanted().1.to_owned()),
                live_sha256: self.live.as_deref().map(sha256_hex),
                applied_at: applied_at.and_then(|at| at.parse().ok().map(Time)),
                rejection,
                default_posture: Some(self.live_posture()),
                diff: Some(PolicyDiff {
                    added: count(self.difference.counts.added),
                    removed: count(self.difference.counts.removed),
                }),
            },
            left_out: self
                .rendered
                .left_out
                .iter()
                .map(|left| (left.object.to_string(), left.why.clone()))
                .collect(),
        }
    }

    /// The last write.
    fn last_applied(&self) -> Option<Applied> {
        let known = self.memory.applied.clone();
        known.or_else(|| published::applied(published::stored(self.context, self.tailnet).as_deref()))
    }

    /// Takes note that the wanted document is in force, since `at` or since the last write that is known.
    fn applied(&mut self, at: Option<Timestamp>) {
        let sha256 = self.wanted().1.to_owned();
        let last = self.last_applied().filter(|last| last.sha256 == sha256);
        match (at, last) {
            (None, Some(last)) => self.keep_applied(last),
            (at, _) => self.keep_applied(Applied {
                sha256,
                at: whole_seconds(at.unwrap_or_else(Timestamp::now)).to_string(),
            }),
        }
    }

    fn keep_applied(&mut self, applied: Applied) {
        self.memory.applied = Some(applied.clone());
        let name = self.tailnet.name_any();
        self.context
            .access_policies
            .remember(&name, |memory| memory.applied = Some(applied));
    }

    /// What follows a write, once the document that was `sent` is in Headscale.
    async fn landed(&mut self, sent: Sent, at: Timestamp) {
        let name = self.tailnet.name_any();
        let text = self.live.clone();
        self.context.access_policies.remember(&name, |memory| {
            memory.live = Some(Seen { text, at });
            memory.written_at = Some(Instant::now());
            memory.pending = None;
            memory.rejected = None;
            memory.replay = Some(sent.before);
            memory.sent = None;
        });
        self.memory.sent = None;
        self.context.backoff.succeeded(&backoff_key(&name));
        tracing::info!(tailnet = name, sha256 = sent.sha256, "access policy written");
        self.keep_applied(Applied {
            sha256: sent.sha256,
            at: whole_seconds(at).to_string(),
        });
        if let Some(note) = sent.overwrites {
            events::warn(self.context, self.tailnet, events::OVERWRITTEN, "Write", &note).await;
        }
    }

    /// Looks after the routes directly after a write, with nodes read for it: a later read would also show what a person has
    /// taken back since, as if the write had left it. What fails is done with the next read of Headscale.
    async fn replay(&self, client: &Client) {
        let name = self.tailnet.name_any();
        let Some(before) = self.context.access_policies.memory(&name).replay else {
            return;
        };
        let done = async {
            let nodes = client.nodes().await?;
            let policy = self.live_policy().unwrap_or_default();
            replay_on(self.tailnet, self.context, client, (&nodes, &policy), &before).await
        };
        if let Err(error) = done.await {
            tracing::warn!(tailnet = name, %error, "routes are looked after with the next read of Headscale");
        }
    }

    /// Writes the ConfigMap. Gives the keys whose texts do not fit it.
    async fn publish(&self, overwritten: Option<&str>) -> Result<Vec<&'static str>, ChildError> {
        let kept = overwritten
            .map(str::to_owned)
            .or_else(|| self.memory.overwritten.clone());
        let published = Published {
            rendered: self.wanted().0.to_owned(),
            live: self.live.clone(),
            diff: self.difference.lines.clone(),
            applied: self.last_applied(),
            overwritten: kept,
        };
        published::publish(self.context, self.tailnet, &published).await
    }

    /// Writes the ConfigMap. That it shows everything is no condition for anything: what it does not show is told.
    async fn show(&mut self) {
        let map = rendered_policy_config_map(&self.tailnet.name_any());
        let result = self.publish(None).await;
        self.retry_publishing = result.is_err();
        self.unpublished = match result {
            Ok(left_out) if left_out.is_empty() => None,
            Ok(left_out) => Some(format!("ConfigMap {map} has no room for {}", left_out.join(", "))),
            Err(error) => {
                tracing::warn!(tailnet = self.tailnet.name_any(), %error, "the rendered policy is not published");
                Some(format!("the rendered policy is not published: {error}"))
            }
        };
    }

    /// Waits for more changes, makes sure of everything, and writes.
    async fn write(mut self, remarks: &str) -> Result<Action, PolicyError> {
        let name = self.tailnet.name_any();
        let context = self.context;
        let sha256 = self.wanted().1.to_owned();
        if let Some(rejection) = self.memory.rejected.clone().filter(|known| known.sha256 == sha256)
            && let Some(left) = rejection.retry_at.checked_duration_since(Instant::now())
        {
            self.rest(
                Told::new(Truth::False, reason::POLICY_REJECTED, rejection.message.clone()),
                Some(rejection.message),
            );
            return Ok(Action::requeue(left));
        }
        if let Some(left) = self.time_to_wait(&sha256) {
            let told = Told::new(
                Truth::Unknown,
                reason::POLICY_PENDING,
                format!(
                    "{} entries come, {} go; written within a few seconds{remarks}",
                    self.difference.counts.added, self.difference.counts.removed
                ),
            );
            // A short wait is not worth a write of the status, unless there is none yet.
            if context.access_policies.outcome(&name).is_none() {
                self.rest(told, None);
            }
            return Ok(Action::requeue(left));
        }
        let Some(client) = context.hub.client(&name) else {
            let message = "Headscale cannot be asked; see Reachable. The policy is written once it can";
            self.rest(
                Told::new(Truth::Unknown, reason::CONTROL_PLANE_UNREACHABLE, message),
                None,
            );
            return Ok(Action::await_change());
        };
        let gone: BTreeSet<String> = sources_in(self.live.as_deref().unwrap_or_default())
            .difference(&sources_in(self.wanted().0))
            .cloned()
            .collect();
        let unexplained = removals::unexplained(context, &gone)
            .await
            .map_err(|error| PolicyError::List(Box::new(error)))?;
        if !unexplained.is_empty() {
            let named: Vec<&str> = unexplained.iter().take(5).map(String::as_str).collect();
            let message = format!(
                "the entries of {} objects would go although they exist unchanged: {}",
                unexplained.len(),
                named.join(", ")
            );
            tracing::warn!(tailnet = name, message, "policy not written");
            self.rest(Told::new(Truth::False, reason::REMOVALS_HELD, message), None);
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        // There is no compare-and-set: look once more, directly before.
        let now = client.policy().await?.map(|policy| policy.text);
        if now != self.live {
            context.access_policies.remember(&name, |memory| {
                memory.live = Some(Seen {
                    text: now,
                    at: Timestamp::now(),
                });
            });
            return Ok(Action::requeue(RENDER_SPACING));
        }
        if let Err(error) = client.check_policy(self.wanted().0).await {
            return self.refused(error, &sha256);
        }
        let overwrites = match self.was_edited() {
            true => Some(self.keep_edit().await?),
            false => None,
        };
        let before = self
            .live_policy()
            .map(|policy| approvals::taken_back(&self.observed.nodes, &policy));
        let sent = Sent {
            sha256: sha256.clone(),
            before: before.unwrap_or_default(),
            overwrites,
        };
        context
            .access_policies
            .remember(&name, |memory| memory.sent = Some(sent.clone()));
        if let Err(error) = client.put_policy(self.wanted().0).await {
            return self.refused(error, &sha256);
        }
        let stored = client.policy().await?.map(|policy| policy.text);
        let at = Timestamp::now();
        let as_sent = sent.is(stored.as_deref());
        self.live = stored;
        // The facts and the members' states are to follow at once.
        read_again(context, self.tailnet);
        if !as_sent {
            let seen = Seen {
                text: self.live.clone(),
                at,
            };
            context.access_policies.remember(&name, |memory| {
                memory.live = Some(seen);
                memory.written_at = Some(Instant::now());
                memory.pending = None;
            });
            return Err(PolicyError::NotAsSent);
        }
        self.landed(sent, at).await;
        self.replay(&client).await;
        self.difference = Difference::of("", "");
        self.show().await;
        let told = Told::new(
            Truth::True,
            reason::POLICY_APPLIED,
            format!("the live policy is the rendered one{remarks}"),
        );
        self.rest(told, None);
        Ok(match self.retry_publishing {
            true => Action::requeue(PUBLISH_AGAIN),
            false => Action::await_change(),
        })
    }

    fn rest(&self, told: Told, rejection: Option<String>) {
        tell(self.context, self.tailnet, Some(self.outcome(told, rejection)));
    }

    fn live_policy(&self) -> Option<Policy> {
        Document::parse(self.live.as_deref()?)
            .ok()
            .map(|document| document.policy().clone())
    }

    /// How long a write still waits for more changes.
    fn time_to_wait(&self, sha256: &str) -> Option<Duration> {
        let now = Instant::now();
        let (since, first) = match &self.memory.pending {
            Some(pending) if pending.sha256 == sha256 => (pending.since, pending.first),
            Some(pending) => (now, pending.first),
            None => (now, now),
        };
        self.context
            .access_policies
            .remember(&self.tailnet.name_any(), |memory| {
                memory.pending = Some(Pending {
                    sha256: sha256.to_owned(),
                    since,
                    first,
                });
            });
        let settled = SETTLE.checked_sub(now.duration_since(since));
        let settled = settled.filter(|left| !left.is_zero() && now.duration_since(first) < LONGEST);
        let spaced = self
            .memory
            .written_at
            .and_then(|at| SPACING.checked_sub(now.duration_since(at)))
            .filter(|left| !left.is_zero());
        settled.max(spaced)
    }

    /// Whether the live document is not what this installation last wrote.
    fn was_edited(&self) -> bool {
        let Some(live) = self.live.as_deref() else { return false };
        self.last_applied().map(|applied| applied.sha256) != Some(sha256_hex(live))
    }

    /// Keeps the live document, which somebody else wrote, before it is overwritten. Gives the note of the Event about it.
    async fn keep_edit(&mut self) -> Result<String, PolicyError> {
        let text = self.live.clone();
        let kept = match self.publish(text.as_deref()).await {
            Ok(left_out) => !left_out.contains(&OVERWRITTEN),
            // It would be lost, and a moment later it may be kept.
            Err(error) if !published::is_permanent(&error) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(tailnet = self.tailnet.name_any(), %error, "the document that is overwritten is not kept");
                false
            }
        };
        self.memory.overwritten.clone_from(&text);
        self.context
            .access_policies
            .remember(&self.tailnet.name_any(), |memory| memory.overwritten = text);
        Ok(self.note_of_edit(kept))
    }

    fn note_of_edit(&self, kept: bool) -> String {
        let lost = diff::lost_lines(self.live.as_deref().unwrap_or_default(), self.wanted().0);
        let what = match self.last_applied() {
            Some(_) => "the live policy had been edited outside; this was overwritten",
            None => "the live policy was not written by this installation before; these of its lines are gone",
        };
        let map = rendered_policy_config_map(&self.tailnet.name_any());
        let tail = match kept {
            true => {
                format!(" (the whole document: ConfigMap {map}, key {OVERWRITTEN}). Edit the base document instead")
            }
            false => format!(" (ConfigMap {map} has no room for the whole document). Edit the base document instead"),
        };
        let shown = match lost.is_empty() {
            true => "only comments, order or layout".to_owned(),
            false => excerpt(&lost, events::MAX_NOTE - tail.len() - what.len() - 60),
        };
        format!("{what}: {shown}{tail}")
    }

    /// Headscale refuses the document, or cannot be asked.
    fn refused(&self, error: HeadscaleError, sha256: &str) -> Result<Action, PolicyError> {
        let words = match &error {
            HeadscaleError::Rejected { message, .. } => message.clone(),
            error if error.class() == Class::Permanent => error.to_string(),
            _ => return Err(error.into()),
        };
        let name = self.tailnet.name_any();
        let objects = concerned(&self.rendered, &words);
        let about = match objects.is_empty() {
            true => String::new(),
            false => format!(" (it is about entries of {})", objects.join(", ")),
        };
        let words: String = words.chars().take(MAX_REJECTION).collect();
        let message = format!("Headscale refuses the rendered policy, the old one stays in force: {words}{about}");
        let delay = self.context.backoff.failed(&backoff_key(&name));
        tracing::warn!(tailnet = name, message, retry_in_s = delay.as_secs(), "policy refused");
        let rejection = Rejection {
            sha256: sha256.to_owned(),
            message: message.clone(),
            retry_at: Instant::now() + delay,
        };
        self.context.access_policies.remember(&name, |memory| {
            memory.rejected = Some(rejection);
            memory.sent = None;
        });
        self.rest(
            Told::new(Truth::False, reason::POLICY_REJECTED, message.clone()),
            Some(message),
        );
        Ok(Action::requeue(delay))
    }
}

/// The Tailnet controller reads Headscale anew.
fn read_again(context: &Context, tailnet: &Tailnet) {
    context.queues.tailnet.push(ObjectRef::from_obj(tailnet));
}

fn backoff_key(name: &str) -> String {
    format!("policy/{name}")
}

/// As metav1.Time keeps them.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// After a write whose answer got lost, or after which the nodes could not be read: the same with the first read since.
async fn replay(tailnet: &Tailnet, context: &Context, observed: &Observed, memory: &Memory) -> Result<(), PolicyError> {
    let name = tailnet.name_any();
    let Some(before) = &memory.replay else { return Ok(()) };
    let written = memory.live.as_ref().map(|seen| seen.at);
    if written.is_none_or(|at| observed.read_at <= at) {
        return Ok(());
    }
    let Some(client) = context.hub.client(&name) else {
        return Ok(());
    };
    replay_on(tailnet, context, &client, (&observed.nodes, &observed.policy), before).await?;
    Ok(())
}

/// Tells what a write did to the routes of `nodes`, and approves what it left.
async fn replay_on(
    tailnet: &Tailnet,
    context: &Context,
    client: &Client,
    (nodes, live): (&[Node], &Policy),
    before: &approvals::Before,
) -> Result<(), HeadscaleError> {
    let replayed = approvals::replay(client, nodes, live).await?;
    for note in approvals::approved_again(nodes, &replayed, before) {
        events::warn(context, tailnet, events::APPROVED_AGAIN, "Approve", &note).await;
    }
    if !replayed.is_empty() {
        read_again(context, tailnet);
    }
    let name = tailnet.name_any();
    context.access_policies.remember(&name, |memory| memory.replay = None);
    Ok(())
}

/// The Tailnet has no policy of its own (any more): the marker goes from the live document, which otherwise stays.
async fn give_up(tailnet: &Tailnet, context: &Context, memory: &Memory) -> Result<Action, PolicyError> {
    let name = tailnet.name_any();
    if let Some(config_map) = published::stored(context, tailnet) {
        children::delete(context, tailnet, config_map.as_ref()).await?;
    }
    tell(context, tailnet, None);
    let (Some(observed), Some(owner)) = (context.hub.facts(&name), own(context, &name)) else {
        return Ok(Action::await_change());
    };
    let live = live_text(memory, &observed);
    if live.as_deref().and_then(owner_of) != Some(owner.clone()) {
        return Ok(Action::await_change());
    }
    let Some(client) = context.hub.client(&name) else {
        return Ok(Action::await_change());
    };
    let stored = release(&client, &owner).await?;
    context.access_policies.remember(&name, |memory| {
        *memory = Memory {
            live: Some(Seen {
                text: stored,
                at: Timestamp::now(),
            }),
            ..Memory::default()
        };
    });
    tracing::info!(
        tailnet = name,
        "access policy given up; its document stays as it is, without the owner's line"
    );
    context.queues.tailnet.push(ObjectRef::from_obj(tailnet));
    Ok(Action::await_change())
}

/// Takes the owner's line out of the live document, if it is `owner`'s. Gives the document as it is now.
///
/// # Errors
/// Headscale's.
pub async fn release(client: &Client, owner: &Owner) -> Result<Option<String>, HeadscaleError> {
    let live = client.policy().await?.map(|policy| policy.text);
    let Some(without) = live.as_deref().and_then(|text| without_marker(text, owner)) else {
        return Ok(live);
    };
    client.check_policy(&without).await?;
    client.put_policy(&without).await?;
    Ok(Some(without))
}
