//! Who may skip rules (TN008): asked of the API server only when an object carries the annotation, remembered for a moment.
//! Without an answer in time nobody may.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tailnet_crds::GROUP;
use tailnet_crds::names::BYPASS_RESOURCE;

/// Verb of the right.
pub const VERB: &str = "use";
/// A review that takes longer counts as no answer.
const DEADLINE: Duration = Duration::from_millis(1500);
/// How long an answer holds: a right that is taken away is gone that much later.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Most answers that are remembered; callers must not be able to grow this.
const MOST: usize = 1024;

/// Everything that the API server says of a user, as authorizers want it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// User name.
    pub username: String,
    /// UID, where the authenticator gives one.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Whatever else the authenticator says.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Says whether a user may skip rules; None when nobody can tell now.
pub trait Access: Send + Sync + 'static {
    /// Asks for `who`.
    fn may_bypass<'a>(&'a self, who: &'a Identity) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>>;
}

/// Lets nobody skip a rule.
pub struct Nobody;

impl Access for Nobody {
    fn may_bypass<'a>(&'a self, _who: &'a Identity) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(async { Some(false) })
    }
}

/// [`Access`] by SubjectAccessReviews.
pub struct Reviews {
    client: Client,
    answers: Mutex<Answers>,
}

impl Reviews {
    /// Asks with the webhook's own identity, which may create SubjectAccessReviews.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            answers: Mutex::default(),
        }
    }

    async fn ask(&self, who: &Identity) -> Option<bool> {
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        let question = question(who);
        match tokio::time::timeout(DEADLINE, api.create(&parameters, &question)).await {
            Ok(Ok(answer)) => {
                let status = answer.status?;
                Some(status.allowed && status.denied != Some(true))
            }
            Ok(Err(error)) => {
                tracing::warn!(user = who.username, %error, "cannot ask whether the user may skip rules; it may not");
                None
            }
            Err(_) => {
                tracing::warn!(
                    user = who.username,
                    "asking whether the user may skip rules took too long; it may not"
                );
                None
            }
        }
    }
}

impl Access for Reviews {
    fn may_bypass<'a>(&'a self, who: &'a Identity) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(async move {
            let known = {
                let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.get(who, Instant::now())
            };
            if known.is_some() {
                return known;
            }
            let answer = self.ask(who).await?;
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.put(who.clone(), answer, Instant::now());
            Some(answer)
        })
    }
}

fn question(who: &Identity) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(who.username.clone()),
            uid: (!who.uid.is_empty()).then(|| who.uid.clone()),
            groups: Some(who.groups.clone()),
            extra: (!who.extra.is_empty()).then(|| who.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                resource: Some(BYPASS_RESOURCE.to_owned()),
                verb: Some(VERB.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// Answers of the last moment.
#[derive(Debug, Default)]
struct Answers(HashMap<Identity, (Instant, bool)>);

impl Answers {
    fn get(&self, who: &Identity, now: Instant) -> Option<bool> {
        let (at, answer) = self.0.get(who)?;
        (now.saturating_duration_since(*at) < REMEMBERED).then_some(*answer)
    }

    fn put(&mut self, who: Identity, answer: bool, now: Instant) {
        if self.0.len() >= MOST {
            self.0
                .retain(|_, (at, _)| now.saturating_duration_since(*at) < REMEMBERED);
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(who, (now, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str) -> Identity {
        Identity {
            username: name.to_owned(),
            groups: vec!["platform".to_owned()],
            ..Identity::default()
        }
    }

    #[test]
    fn answers_are_remembered_for_a_moment_and_for_that_user_only() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        answers.put(who("a"), true, now);
        assert_eq!(answers.get(&who("a"), now + REMEMBERED / 2), Some(true));
        assert_eq!(answers.get(&who("b"), now), None);
        let mut other_groups = who("a");
        other_groups.groups.clear();
        assert_eq!(answers.get(&other_groups, now), None);
        assert_eq!(answers.get(&who("a"), now + REMEMBERED), None);
    }

    #[test]
    fn many_users_do_not_grow_it() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        for user in 0..3 * MOST {
            answers.put(who(&user.to_string()), false, now);
            assert!(answers.0.len() <= MOST);
        }
    }

    #[test]
    fn the_question_names_a_cluster_wide_use() {
        let question = serde_json::to_value(question(&who("a"))).expect("JSON");
        assert_eq!(
            question["spec"],
            serde_json::json!({
                "user": "a", "groups": ["platform"],
                "resourceAttributes": {"group": "tsunaro.io", "resource": "admissionbypasses", "verb": "use"},
            })
        );
    }
}
