//! Who asked for what: the part of an AdmissionReview that metrics, audit and the answer's uid need, read from as little of
//! it as possible.
//!
//! An answer without the right uid counts as a failed call, and the user then reads "failed calling webhook" instead of the
//! reason; a decision without its requester is a hole in the audit. So both are found even in a body that is cut off,
//! broken further back, or not understood. The API server writes both in front of the objects.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Longest uid that is sent back; Kubernetes uses 36 characters.
const MAX_UID: usize = 128;
/// Most groups of a requester that are read; nobody is in so many, but a body may say so.
const MAX_GROUPS: usize = 10_000;

/// Who asked for what, as metrics and audit lines need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// Uid of the review.
    pub uid: String,
    /// Requester's name.
    pub user: String,
    /// Requester's groups.
    pub groups: Vec<String>,
    /// CREATE, UPDATE, DELETE or CONNECT.
    pub verb: String,
    /// Kind as asked.
    pub kind: String,
    /// Namespace of namespaced kinds.
    pub namespace: Option<String>,
    /// Name; empty with generateName.
    pub name: String,
    /// Whether nothing will be stored.
    pub dry_run: bool,
}

/// `userInfo` of a review.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct UserInfo {
    #[serde(default)]
    pub username: Option<String>,
    #[serde(default)]
    pub uid: Option<String>,
    #[serde(default, deserialize_with = "groups")]
    pub groups: Option<Vec<String>>,
    #[serde(default)]
    pub extra: Option<BTreeMap<String, Vec<String>>>,
}

/// Of [`UserInfo`], what a [`Subject`] has.
#[derive(Debug, Default, Deserialize)]
struct Requester {
    #[serde(default)]
    username: Option<String>,
    #[serde(default, deserialize_with = "groups")]
    groups: Option<Vec<String>>,
}

fn groups<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    struct Groups;

    impl<'de> Visitor<'de> for Groups {
        type Value = Option<Vec<String>>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list of groups")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut groups = Vec::new();
            while groups.len() < MAX_GROUPS {
                match list.next_element()? {
                    Some(group) => groups.push(group),
                    None => return Ok(Some(groups)),
                }
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Some(groups))
        }
    }

    deserializer.deserialize_any(Groups)
}

/// What the JSON text `body`, which may end early, says of its request; None without a uid.
pub fn find(body: &[u8]) -> Option<Subject> {
    let found = RefCell::new(Subject::default());
    let mut json = serde_json::Deserializer::from_slice(body);
    // An error only says that the rest is broken; what was read before it stays.
    let _ = Member {
        level: Level::Review,
        found: &found,
    }
    .deserialize(&mut json);
    let subject = found.into_inner();
    (!subject.uid.is_empty() && subject.uid.len() <= MAX_UID).then_some(subject)
}

#[derive(Clone, Copy)]
enum Level {
    Review,
    Request,
}

#[derive(Clone, Copy)]
struct Member<'f> {
    level: Level,
    found: &'f RefCell<Subject>,
}

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

#[derive(Deserialize)]
struct Named {
    kind: String,
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let text = |value: Option<String>| value.unwrap_or_default();
            match (self.level, key.as_str()) {
                (Level::Review, "request") => map.next_value_seed(Member {
                    level: Level::Request,
                    found: self.found,
                })?,
                (Level::Request, "uid") => self.found.borrow_mut().uid = map.next_value()?,
                (Level::Request, "kind") => self.found.borrow_mut().kind = map.next_value::<Named>()?.kind,
                (Level::Request, "name") => self.found.borrow_mut().name = text(map.next_value()?),
                (Level::Request, "namespace") => {
                    let namespace = text(map.next_value()?);
                    self.found.borrow_mut().namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
                }
                (Level::Request, "operation") => self.found.borrow_mut().verb = text(map.next_value()?),
                (Level::Request, "userInfo") => {
                    let user = map.next_value::<Requester>()?;
                    let mut found = self.found.borrow_mut();
                    found.user = user.username.unwrap_or_default();
                    found.groups = user.groups.unwrap_or_default();
                }
                (Level::Request, "dryRun") => {
                    self.found.borrow_mut().dry_run = map.next_value::<Option<bool>>()?.unwrap_or_default();
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Subject, find};

    fn uid(body: &[u8]) -> Option<String> {
        find(body).map(|subject| subject.uid)
    }

    #[test]
    fn the_uid_is_found_wherever_the_text_breaks() {
        let whole = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1","object":{"uid":"wrong"}}}"#;
        assert_eq!(uid(whole.as_bytes()).as_deref(), Some("u-1"));
        let end = whole.find("u-1\"").expect("uid") + 4;
        assert_eq!(
            uid(&whole.as_bytes()[..end]).as_deref(),
            Some("u-1"),
            "cut right behind the uid"
        );
        assert_eq!(uid(&whole.as_bytes()[..end - 2]), None, "a cut uid is no uid");
        assert_eq!(uid(br#"{"uid":"outside","request":{"object":{"uid":"inside"}}}"#), None);
        assert_eq!(
            uid(br#"{"request":{"object":{"a":[1,{"uid":"x"}]},"uid":"late"}"#).as_deref(),
            Some("late")
        );
        assert_eq!(uid(b"not json"), None);
        assert_eq!(uid(br#"{"request":{"uid":7}}"#), None);
        assert_eq!(
            uid(format!(r#"{{"request":{{"uid":"{}"}}}}"#, "x".repeat(500)).as_bytes()),
            None
        );
    }

    #[test]
    fn a_body_that_is_all_groups_is_read_to_its_end() {
        let many = vec!["\"g\""; super::MAX_GROUPS + 5].join(",");
        let body =
            format!(r#"{{"request":{{"uid":"u","userInfo":{{"groups":[{many}],"username":"alice"}},"name":"lab"}}}}"#);
        let subject = find(body.as_bytes()).expect("a uid");
        assert_eq!(subject.groups.len(), super::MAX_GROUPS);
        assert_eq!((subject.user.as_str(), subject.name.as_str()), ("alice", "lab"));
    }

    #[test]
    fn the_requester_is_found_in_front_of_a_cut_object() {
        let body = r#"{"request":{"uid":"u-1","kind":{"group":"tsunaro.io","version":"v1alpha1","kind":"TailnetSite"},"name":"lab","namespace":"",
            "operation":"UPDATE","userInfo":{"username":"alice","uid":"7","groups":["team-a"],"extra":{"a":["b"]}},"object":{"spec":{"prefixes":["192.0"#;
        assert_eq!(
            find(body.as_bytes()),
            Some(Subject {
                uid: "u-1".to_owned(),
                user: "alice".to_owned(),
                groups: vec!["team-a".to_owned()],
                verb: "UPDATE".to_owned(),
                kind: "TailnetSite".to_owned(),
                namespace: None,
                name: "lab".to_owned(),
                dry_run: false,
            })
        );
        let whole = br#"{"request":{"uid":"u","namespace":"a","dryRun":true,"userInfo":{"groups":null}}}"#;
        let subject = find(whole).expect("a uid");
        assert!(subject.dry_run && subject.namespace.as_deref() == Some("a") && subject.groups.is_empty());
    }
}
