//! Conditions and the status write: whole, bound to the object's UID, and only when something changed.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, Patch};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::writes::patch_params;

/// `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl Truth {
    /// The word as Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Truth::True } else { Truth::False }
    }
}

/// The condition list of one object under construction: `lastTransitionTime` survives where the status word does.
pub struct Conditions {
    generation: Option<i64>,
    now: Timestamp,
    before: Vec<Condition>,
    list: Vec<Condition>,
}

/// Longest message of a condition, in characters; the API allows 32,768, people read less.
const MESSAGE_LIMIT: usize = 1024;

impl Conditions {
    /// Starts from what the object carries now.
    pub fn new(generation: Option<i64>, before: &[Condition], now: Timestamp) -> Self {
        Self {
            generation,
            now,
            before: before.to_vec(),
            list: Vec::new(),
        }
    }

    /// Sets one condition. Messages are cut at 1024 characters.
    pub fn set(&mut self, r#type: &str, status: Truth, reason: &str, message: impl Into<String>) {
        let message = cut(message.into());
        let since = self
            .before
            .iter()
            .find(|old| old.type_ == r#type && old.status == status.as_str())
            .map_or(Time(self.now), |old| old.last_transition_time.clone());
        let condition = Condition {
            type_: r#type.to_owned(),
            status: status.as_str().to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: self.generation,
            last_transition_time: since,
        };
        match self.list.iter_mut().find(|old| old.type_ == r#type) {
            Some(old) => *old = condition,
            None => self.list.push(condition),
        }
    }

    /// Keeps the condition as it was (what is frozen is not looked at again); Unknown with `reason` where there was none.
    pub fn keep(&mut self, r#type: &str, reason: &str, message: &str) {
        match self.before.iter().find(|old| old.type_ == r#type) {
            Some(old) => {
                let (status, reason, message) = (truth(&old.status), old.reason.clone(), old.message.clone());
                self.set(r#type, status, &reason, message);
            }
            None => self.set(r#type, Truth::Unknown, reason, message),
        }
    }

    /// Whether `type` was set to True.
    pub fn is_true(&self, r#type: &str) -> bool {
        self.list
            .iter()
            .any(|condition| condition.type_ == r#type && condition.status == Truth::True.as_str())
    }

    /// The first of `types` that is not True, as (type, status, reason, message).
    pub fn first_not_true<'a>(&'a self, types: &[&str]) -> Option<&'a Condition> {
        types.iter().find_map(|r#type| {
            self.list
                .iter()
                .find(|condition| condition.type_ == *r#type && condition.status != Truth::True.as_str())
        })
    }

    /// The finished list, in the order of the first `set` of each type.
    pub fn finish(self) -> Vec<Condition> {
        self.list
    }
}

fn truth(word: &str) -> Truth {
    match word {
        "True" => Truth::True,
        "False" => Truth::False,
        _ => Truth::Unknown,
    }
}

fn cut(message: String) -> String {
    if message.chars().count() <= MESSAGE_LIMIT {
        return message;
    }
    let mut short: String = message.chars().take(MESSAGE_LIMIT - 1).collect();
    short.push('…');
    short
}

/// Writes `status` as the whole status of `object` if it differs from what the object carries; true when it was written.
///
/// One JSON patch that first tests the UID: a namesake that was created meanwhile never gets another object's status.
///
/// # Errors
/// The API server's: 404 when the object is gone (see [`crate::writes::is_gone`]), 422 when a namesake took its place.
pub async fn write<K>(api: &Api<K>, object: &K, status: &impl Serialize) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let wanted = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
    let current = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    if current.get("status").unwrap_or(&Value::Null) == &wanted {
        return Ok(false);
    }
    let patch: json_patch::Patch = serde_json::from_value(json!([
        { "op": "test", "path": "/metadata/uid", "value": object.uid() },
        { "op": "add", "path": "/status", "value": wanted },
    ]))
    .map_err(kube::Error::SerdeError)?;
    let params = patch_params();
    api.patch_status(&object.name_any(), &params, &Patch::<()>::Json(patch))
        .await?;
    Ok(true)
}
