//! `/validate` and `/mutate`: reads the body, asks the rules, answers. Every call that has a uid gets an AdmissionReview
//! with that uid and HTTP 200, whatever happens meanwhile.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::{Extension, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::StreamExt;
use futures::future::join_all;
use tailnet_crds::Kind;
use tailnet_policies::{ObjectRef, Operation, Outcome, Request, Snapshot, defaults};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::audit::Audit;
use crate::bypass::{Access, Nobody};
use crate::clock::ApiClock;
use crate::live::{Live, Presence};
use crate::metrics::{Metrics, ResultLabels};
use crate::record::Record;
use crate::review::{self, Answer, Decision, Endpoint, Envelope, Question, Reason, Subject};
use crate::room::{FREE, Held, MAX_TREE, Room, Weight};
use crate::snapshot::SharedSnapshot;
use crate::subject;

/// Largest body that is read: two objects of 3 MiB (etcd's limit is 1.5 MiB, the API server's 3 MiB) and their envelope.
pub const MAX_BODY: usize = 7 * 1024 * 1024;
/// Of what is larger so much is read on.
const MAX_DISCARDED: usize = 32 * 1024 * 1024;
/// Longest time for an answer; the registered `timeoutSeconds` is 5.
pub const DEADLINE: Duration = Duration::from_millis(4000);
/// Of the caller's own timeout this much is left for the way.
const WAY: Duration = Duration::from_millis(500);
/// Reviews that are decided at once; more of them wait.
const PARALLEL: usize = 64;
/// Of a body that is refused unread, this much is looked at for its uid and requester: they stand in front of the objects.
const HEAD: usize = 64 * 1024;

/// Where a request comes from; the listener adds it to each.
#[derive(Debug, Clone, Copy)]
pub struct Source(pub IpAddr);

impl Default for Source {
    fn default() -> Self {
        Self(Ipv6Addr::UNSPECIFIED.into())
    }
}

/// Runs the rules; the last argument names objects to be taken as gone.
pub type Evaluate = dyn Fn(&Request, &Snapshot, &[ObjectRef]) -> Outcome + Send + Sync;

/// What the handlers share.
pub struct Reviewer {
    snapshot: Arc<SharedSnapshot>,
    live: Arc<dyn Live>,
    access: Arc<dyn Access>,
    audit: Audit,
    metrics: Arc<Metrics>,
    evaluate: Box<Evaluate>,
    deadline: Duration,
    parallel: Semaphore,
    room: Room,
    clock: ApiClock,
}

impl Reviewer {
    /// With the rules of `tailnet-policies` and the usual [`DEADLINE`].
    pub fn new(snapshot: Arc<SharedSnapshot>, live: Arc<dyn Live>, audit: Audit, metrics: Arc<Metrics>) -> Self {
        let evaluate = Box::new(tailnet_policies::evaluate_ignoring);
        let parallel = Semaphore::new(PARALLEL);
        Self {
            snapshot,
            live,
            access: Arc::new(Nobody),
            audit,
            metrics,
            evaluate,
            deadline: DEADLINE,
            parallel,
            room: Room::default(),
            clock: ApiClock::default(),
        }
    }

    /// With the API server's clock, for the times in the audit stream; without, this machine's.
    pub fn with_clock(mut self, clock: ApiClock) -> Self {
        self.clock = clock;
        self
    }

    /// With somebody who knows who may skip rules; without, nobody may.
    pub fn with_access(mut self, access: Arc<dyn Access>) -> Self {
        self.access = access;
        self
    }

    /// With other rules and another deadline: how tests make a rule panic or hang.
    pub fn with_rules(mut self, evaluate: Box<Evaluate>, deadline: Duration) -> Self {
        self.evaluate = evaluate;
        self.deadline = deadline;
        self
    }
}

/// The two routes.
pub fn router(reviewer: Arc<Reviewer>) -> Router {
    Router::new()
        .route("/validate", post(validate))
        .route("/mutate", post(mutate))
        .with_state(reviewer)
}

type From = Option<Extension<Source>>;

async fn validate(state: State<Arc<Reviewer>>, from: From, query: RawQuery, body: Body) -> Response {
    handle(state.0, Endpoint::Validate, from, query.0.as_deref(), body).await
}

async fn mutate(state: State<Arc<Reviewer>>, from: From, query: RawQuery, body: Body) -> Response {
    handle(state.0, Endpoint::Mutate, from, query.0.as_deref(), body).await
}

/// What a review came to, with what metrics and audit need of it.
struct Decided {
    answer: Answer,
    subject: Subject,
    outcome: Outcome,
}

impl Decided {
    fn new(answer: Answer, subject: Subject) -> Self {
        Self {
            answer,
            subject,
            outcome: Outcome::default(),
        }
    }

    /// `/validate` refuses what it cannot decide. `/mutate` lets it through unchanged: `/validate` sees it next.
    fn refused(endpoint: Endpoint, subject: Subject, reason: Reason, message: &str) -> Self {
        let answer = match endpoint {
            Endpoint::Validate => review::failure(&subject.uid, reason, message),
            Endpoint::Mutate => {
                review::unmutated(&subject.uid, reason, &format!("defaults were not filled in: {message}"))
            }
        };
        Self::new(answer, subject)
    }
}

/// No answer can be right, since there is no uid: the API server takes the HTTP status for a failed call.
struct Unanswerable {
    status: StatusCode,
    reason: Reason,
    message: String,
}

async fn handle(reviewer: Arc<Reviewer>, endpoint: Endpoint, from: From, query: Option<&str>, body: Body) -> Response {
    let started = Instant::now();
    let _in_flight = InFlight::enter(&reviewer.metrics);
    let deadline = started + deadline(reviewer.deadline, query);
    let Source(source) = from.map(|Extension(source)| source).unwrap_or_default();
    let result = answer(&reviewer, endpoint, source, deadline, body).await;
    let nothing = Outcome::default();
    let (decision, reason, subject, outcome) = match &result {
        Ok(decided) => {
            let answer = &decided.answer;
            (answer.decision, answer.reason, Some(&decided.subject), &decided.outcome)
        }
        Err(none) => (Decision::Error, Some(none.reason), None, &nothing),
    };
    let record = Record {
        endpoint,
        decision,
        reason,
        subject,
        outcome,
        latency: started.elapsed(),
    };
    record.keep(&reviewer.metrics, &reviewer.audit, &reviewer.clock);
    match result {
        Ok(decided) => {
            let text = decided.answer.review.to_string();
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(none) => (none.status, none.message).into_response(),
    }
}

/// The answer to a body, whatever happens meanwhile.
async fn answer(
    reviewer: &Arc<Reviewer>,
    endpoint: Endpoint,
    source: IpAddr,
    deadline: Instant,
    body: Body,
) -> Result<Decided, Unanswerable> {
    let read = match read(&reviewer.room, source, deadline, body).await {
        Ok(read) => Arc::new(read),
        Err(unread) => return refused_unread(endpoint, unread),
    };
    // A task of its own: neither a panic nor a caller that hangs up leaves anything half done.
    let work = tokio::spawn(decide(Arc::clone(reviewer), endpoint, Arc::clone(&read)));
    let abort = work.abort_handle();
    let undecided = |reason, message| {
        let subject = subject::find(&read.bytes).unwrap_or_default();
        Ok(Decided::refused(endpoint, subject, reason, message))
    };
    match timeout_at(deadline.into(), work).await {
        Ok(Ok(Ok(decided))) => Ok(decided),
        Ok(Ok(Err(message))) => {
            tracing::warn!(message, "a call without a uid cannot be answered");
            Err(unreadable(message))
        }
        Ok(Err(_)) => {
            tracing::error!(
                uid = subject::find(&read.bytes).map(|subject| subject.uid),
                "a review panicked, see the line before"
            );
            undecided(
                Reason::Panic,
                "the webhook failed on this object (a fault of the webhook, its log says more); nothing was stored",
            )
        }
        Err(_) => {
            abort.abort();
            undecided(
                Reason::Deadline,
                "the webhook could not decide in time; nothing was stored, try again",
            )
        }
    }
}

fn unreadable(message: String) -> Unanswerable {
    Unanswerable {
        status: StatusCode::BAD_REQUEST,
        reason: Reason::Unreadable,
        message,
    }
}

/// The answer to a body that is not looked at as a whole.
fn refused_unread(endpoint: Endpoint, unread: Unread) -> Result<Decided, Unanswerable> {
    let (start, status, reason, message) = match unread {
        Unread::TooLarge(start) => (
            start,
            StatusCode::PAYLOAD_TOO_LARGE,
            Reason::TooLarge,
            format!("the AdmissionReview is larger than {MAX_BODY} bytes and cannot be checked"),
        ),
        Unread::TooHeavy(start) => (
            start,
            StatusCode::PAYLOAD_TOO_LARGE,
            Reason::TooLarge,
            "the AdmissionReview has more fields and values than can be checked".to_owned(),
        ),
        Unread::NoRoom(start) => (
            start,
            StatusCode::SERVICE_UNAVAILABLE,
            Reason::Deadline,
            "the webhook has too many large reviews at once; nothing was stored, try again".to_owned(),
        ),
        Unread::Broken | Unread::Late => {
            return Err(unreadable("the body did not arrive whole and in time".to_owned()));
        }
    };
    match subject::find(&start) {
        Some(subject) => Ok(Decided::refused(endpoint, subject, reason, &message)),
        None => Err(Unanswerable {
            status,
            reason,
            message,
        }),
    }
}

/// Decides a body; Err when it has no uid.
async fn decide(reviewer: Arc<Reviewer>, endpoint: Endpoint, read: Arc<Read>) -> Result<Decided, String> {
    // Closed never: the semaphore lives as long as the reviewer.
    let _permit = reviewer
        .parallel
        .acquire()
        .await
        .map_err(|_| "the webhook is shutting down".to_owned())?;
    // Shared with the work itself, which goes on to its end when nobody waits for it any more.
    let room = Arc::new(reviewer.room.tree(read.weight).await);
    let first = {
        let (reviewer, room) = (Arc::clone(&reviewer), Arc::clone(&room));
        blocking(room, move || first_look(&reviewer, endpoint, &read.bytes)).await
    };
    let (question, outcome) = match first? {
        First::Decided(decided) => return Ok(*decided),
        First::Rules(question, outcome) => (question, outcome),
        First::Asks(mut question) => {
            let answer = reviewer.access.may_bypass(&question.identity).await;
            reviewer.metrics.asked_for_bypass(answer);
            if let Some(requester) = &mut question.request.requester {
                requester.may_bypass = answer;
            }
            let (reviewer, room) = (Arc::clone(&reviewer), Arc::clone(&room));
            blocking(room, move || {
                let outcome = rules(&reviewer, &question.request, &[]);
                (question, outcome)
            })
            .await
        }
    };
    let holders = outcome.holders();
    let gone = if holders.is_empty() {
        Vec::new()
    } else {
        gone(&reviewer, holders).await
    };
    let (question, outcome) = if gone.is_empty() {
        (question, outcome)
    } else {
        let reviewer = Arc::clone(&reviewer);
        blocking(room, move || {
            let outcome = rules(&reviewer, &question.request, &gone);
            (question, outcome)
        })
        .await
    };
    let answer = review::verdict(&question, &outcome);
    Ok(Decided {
        answer,
        subject: question.subject,
        outcome,
    })
}

fn rules(reviewer: &Reviewer, request: &Request, gone: &[ObjectRef]) -> Outcome {
    // A change of a Tailnet asks about every object of it, which takes a while among thousands: on a copy, so that neither the
    // watches nor the admissions behind them wait.
    if (request.kind, request.operation) == (Kind::Tailnet, Operation::Update) {
        let copy = reviewer.snapshot.read(Snapshot::clone);
        return (reviewer.evaluate)(request, &copy, gone);
    }
    reviewer
        .snapshot
        .read(|snapshot| (reviewer.evaluate)(request, snapshot, gone))
}

/// Runs `work`, which needs `room`, where it may take its time, and lets a panic through.
async fn blocking<T: Send + 'static>(room: Arc<Option<Held>>, work: impl FnOnce() -> T + Send + 'static) -> T {
    let work = move || {
        let _room = room;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: the runtime is going down, and so is this task.
            Err(_) => std::future::pending().await,
        },
    }
}

enum First {
    Decided(Box<Decided>),
    Rules(Box<Question>, Outcome),
    /// The object asks to skip rules: may the requester?
    Asks(Box<Question>),
}

fn first_look(reviewer: &Reviewer, endpoint: Endpoint, bytes: &[u8]) -> Result<First, String> {
    let decided = |answer, subject| First::Decided(Box::new(Decided::new(answer, subject)));
    let question = match review::parse(bytes) {
        Envelope::Question(question) => question,
        Envelope::ConfigMap(question) if endpoint == Endpoint::Validate => {
            let outcome = reviewer
                .snapshot
                .read(|snapshot| tailnet_policies::evaluate_config_map(&question.new, question.old.as_ref(), snapshot));
            return Ok(First::Decided(Box::new(Decided {
                answer: review::config_map_verdict(&question, &outcome),
                subject: question.subject,
                outcome,
            })));
        }
        Envelope::ConfigMap(question) => {
            let subject = question.subject;
            return Ok(decided(
                review::foreign(&subject.uid, "ConfigMaps have no defaults"),
                subject,
            ));
        }
        Envelope::Foreign { subject, why } => return Ok(decided(review::foreign(&subject.uid, why), *subject)),
        Envelope::Unsupported { subject, message } => {
            let refused = Decided::refused(endpoint, *subject, Reason::Version, &message);
            return Ok(First::Decided(Box::new(refused)));
        }
        Envelope::Unreadable(message) => return Err(message),
    };
    let request = &question.request;
    match endpoint {
        Endpoint::Validate if question.asks_for_bypass => Ok(First::Asks(question)),
        Endpoint::Validate => {
            let outcome = rules(reviewer, request, &[]);
            Ok(First::Rules(question, outcome))
        }
        Endpoint::Mutate => {
            let patch = request.new.as_ref().map_or_else(Vec::new, |object| {
                let namespace = request.namespace.as_deref();
                reviewer
                    .snapshot
                    .read(|snapshot| defaults(request.kind, namespace, object, snapshot))
            });
            Ok(decided(review::mutation(&question, &patch), question.subject))
        }
    }
}

/// The holders that a live read no longer finds.
async fn gone(reviewer: &Reviewer, holders: Vec<ObjectRef>) -> Vec<ObjectRef> {
    let looks = join_all(holders.iter().map(|holder| reviewer.live.look(holder))).await;
    for presence in &looks {
        reviewer
            .metrics
            .holder_reads
            .get_or_create(&ResultLabels {
                result: presence.as_str(),
            })
            .inc();
    }
    let gone = |(holder, presence): (ObjectRef, Presence)| (presence == Presence::Gone).then_some(holder);
    holders.into_iter().zip(looks).filter_map(gone).collect()
}

/// Our deadline, or a little less than the caller's own timeout (`?timeout=3s`, as API servers add it).
fn deadline(ours: Duration, query: Option<&str>) -> Duration {
    let given = query
        .unwrap_or_default()
        .split('&')
        .find_map(|pair| pair.strip_prefix("timeout="));
    let seconds = given
        .and_then(|text| text.strip_suffix('s'))
        .and_then(|text| text.parse::<f64>().ok());
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(theirs) => ours.min(theirs.saturating_sub(WAY).max(theirs / 2)),
        None => ours,
    }
}

/// A body that was read whole.
struct Read {
    bytes: Bytes,
    /// What it will take as a tree.
    weight: usize,
    /// Of memory.
    _room: Option<Held>,
}

enum Unread {
    /// Larger than [`MAX_BODY`]; its start.
    TooLarge(Vec<u8>),
    /// Heavier than [`MAX_TREE`]; its start.
    TooHeavy(Vec<u8>),
    /// Others took the room for large bodies; its start.
    NoRoom(Vec<u8>),
    Broken,
    Late,
}

async fn read(room: &Room, source: IpAddr, deadline: Instant, body: Body) -> Result<Read, Unread> {
    let deadline = deadline.into();
    let announced = body.size_hint().upper().map(usize::try_from);
    let announced = announced.and_then(Result::ok).unwrap_or(MAX_BODY);
    // What says that it is too large needs no room.
    let most = if announced > MAX_BODY { FREE } else { MAX_BODY };
    let mut stream = body.into_data_stream();
    let (mut whole, mut weight, mut held) = (Vec::new(), Weight::default(), None);
    let head = |mut start: Vec<u8>, piece: &[u8]| {
        start.extend_from_slice(piece);
        start.truncate(HEAD);
        start.shrink_to_fit();
        start
    };
    while let Some(piece) = timeout_at(deadline, stream.next()).await.map_err(|_| Unread::Late)? {
        let piece = piece.map_err(|_| Unread::Broken)?;
        weight.add(&piece);
        let large = whole.len() + piece.len() > most;
        if large || weight.get() > MAX_TREE {
            let start = head(whole, &piece);
            // Others need the room, and the rest is only read past.
            drop(held);
            discard(&mut stream, deadline).await?;
            return Err(if large {
                Unread::TooLarge(start)
            } else {
                Unread::TooHeavy(start)
            });
        }
        if held.is_none() && whole.len() + piece.len() > FREE {
            match timeout_at(deadline, room.body(source, announced)).await {
                Ok(got) => held = got,
                Err(_) => return Err(Unread::NoRoom(head(whole, &piece))),
            }
            whole.reserve_exact(announced - whole.len());
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Read {
        bytes: whole.into(),
        weight: weight.get(),
        _room: held,
    })
}

/// Reads what is left, up to a limit, so that the caller reads the answer instead of a broken connection.
async fn discard(stream: &mut BodyDataStream, deadline: tokio::time::Instant) -> Result<(), Unread> {
    let mut discarded = 0;
    while discarded <= MAX_DISCARDED {
        match timeout_at(deadline, stream.next()).await {
            Ok(Some(piece)) => discarded += piece.map_err(|_| Unread::Broken)?.len(),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(())
}

struct InFlight(Arc<Metrics>);

impl InFlight {
    fn enter(metrics: &Arc<Metrics>) -> Self {
        metrics.in_flight.inc();
        Self(Arc::clone(metrics))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::deadline;
    use std::time::Duration;

    #[test]
    fn the_callers_timeout_shortens_the_deadline() {
        let ours = Duration::from_secs(4);
        assert_eq!(deadline(ours, None), ours);
        assert_eq!(deadline(ours, Some("timeout=10s")), ours);
        assert_eq!(deadline(ours, Some("a=b&timeout=3s")), Duration::from_millis(2500));
        assert_eq!(
            deadline(ours, Some("timeout=0.6s")),
            Duration::from_millis(300),
            "never less than half"
        );
        assert_eq!(deadline(ours, Some("timeout=-1s")), ours);
        assert_eq!(deadline(ours, Some("timeout=soon")), ours);
    }
}
