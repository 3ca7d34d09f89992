//! How long ago something of the operator's changed, without believing the operator's clock.
//!
//! A change that a watch brings has just happened; what a list brings may be old, and how old, the API server wrote down: the
//! time in `managedFields` is its own. From then on this machine counts.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::clock::moment::Moment;

/// Something that changes from time to time, and when it last did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed<T> {
    value: T,
    seen: Moment,
    /// How old the change was when it was seen.
    old: Duration,
}

impl<T: PartialEq> Changed<T> {
    /// Takes `value`, which the API server wrote at `written`; one that is the same changes nothing. `now` is the API server's
    /// time at `moment`.
    pub fn update(before: Option<Self>, value: T, written: Option<Timestamp>, now: Timestamp, moment: Moment) -> Self {
        // A time in the future is a difference between API servers.
        let old = written.map(|written| now.duration_since(written).max(SignedDuration::ZERO).unsigned_abs());
        match before {
            Some(before) if before.value == value => before,
            // It cannot have changed before the other value was seen.
            Some(before) => Self {
                value,
                seen: moment,
                old: old.unwrap_or_default().min(before.seen.until(moment)),
            },
            None => Self {
                value,
                seen: moment,
                old: old.unwrap_or(Duration::MAX),
            },
        }
    }

    /// How long ago it changed.
    pub fn age(&self, moment: Moment) -> Duration {
        self.old.saturating_add(self.seen.until(moment))
    }
}

/// When the API server last wrote what stands at `path` of the object (`f:spec`, `f:renewTime`); where it does not say, when it
/// made the object.
pub fn written(metadata: &ObjectMeta, path: &[&str]) -> Option<Timestamp> {
    let entries = metadata.managed_fields.iter().flatten();
    let owners = entries.filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.is_some_and(|fields| path.iter().try_fold(fields, |fields, key| fields.get(*key)).is_some())
    });
    let times = owners.filter_map(|entry| entry.time.as_ref().map(|time| time.0));
    times.max().or(metadata.creation_timestamp.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::json;

    use super::{Changed, written};
    use crate::clock::moment::Moment;

    #[test]
    fn the_owner_of_the_field_says_when() {
        let entry = |manager: &str, time: &str, fields| json!({"manager": manager, "time": time, "fieldsV1": fields});
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [
                entry("operator", "2026-02-01T00:00:00Z", json!({"f:spec": {"f:renewTime": {}}})),
                entry("somebody", "2026-03-01T00:00:00Z", json!({"f:metadata": {"f:labels": {}}})),
            ],
        }))
        .expect("metadata");
        let at = |path: &[&str]| written(&metadata, path).map(|time| time.to_string());
        assert_eq!(at(&["f:spec", "f:renewTime"]).as_deref(), Some("2026-02-01T00:00:00Z"));
        assert_eq!(at(&["f:data"]).as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!(written(&ObjectMeta::default(), &["f:data"]), None);
    }

    #[test]
    fn the_age_begins_with_the_api_servers_word_and_is_counted_here() {
        let (now, moment) = (Timestamp::now(), Moment::now());
        let second = Duration::from_secs(1);
        let before = now - SignedDuration::from_secs(500);
        let first = Changed::update(None, "a", Some(before), now, moment);
        assert_eq!(first.age(moment.after(second)).as_secs(), 501);
        let same = Changed::update(Some(first.clone()), "a", Some(now), now, moment.after(second));
        assert_eq!(same, first, "nothing has changed");
        let later = moment.after(10 * second);
        // By an API server, or a clock here, that is wrong.
        for odd in [
            before,
            now + SignedDuration::from_hours(9000),
            now - SignedDuration::from_hours(9000),
        ] {
            let changed = Changed::update(Some(first.clone()), "b", Some(odd), now, later);
            assert!(changed.age(later) <= 10 * second, "{odd}");
        }
        let unknown = Changed::update(None, "a", None, now, moment);
        assert_eq!(unknown.age(moment), Duration::MAX);
        let changed = Changed::update(Some(unknown), "b", None, now, later);
        assert_eq!(changed.age(later), Duration::ZERO);
    }
}
