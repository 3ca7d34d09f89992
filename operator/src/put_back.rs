//! What the API server changes again whenever we put it right: remembered, so that no two writers change an object in turns
//! for ever.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use crate::drift::Difference;

/// Differences that came back, by kind and UID of the object.
#[derive(Default)]
pub struct PutBack {
    by_kind: Mutex<HashMap<String, HashMap<String, Vec<Difference>>>>,
}

impl PutBack {
    /// Those of `differences` that are worth a write.
    pub fn worth_a_write(&self, kind: &str, uid: Option<&str>, differences: Vec<Difference>) -> Vec<Difference> {
        let by_kind = self.by_kind.lock();
        let Some(known) = uid.and_then(|uid| by_kind.get(kind)?.get(uid)) else {
            return differences;
        };
        let new = |difference: &Difference| !known.contains(difference);
        differences.into_iter().filter(new).collect()
    }

    /// Remembers what an answer of the API server still shows after everything was put right. Objects of this kind that are
    /// gone are forgotten once there are fewer of them (`stored`) than are remembered; `uids` are those of all that exist.
    pub fn remember(
        &self,
        kind: &str,
        uid: Option<&str>,
        differences: Vec<Difference>,
        stored: usize,
        uids: impl FnOnce() -> HashSet<String>,
    ) {
        let Some(uid) = uid else { return };
        let mut by_kind = self.by_kind.lock();
        let by_uid = by_kind.entry(kind.to_owned()).or_default();
        if differences.is_empty() {
            by_uid.remove(uid);
            return;
        }
        by_uid.insert(uid.to_owned(), differences);
        if by_uid.len() > stored {
            let existing = uids();
            // The watch may be late for the new one.
            by_uid.retain(|known, _| known == uid || existing.contains(known));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn difference(live: &str) -> Difference {
        Difference {
            path: "/spec/x".to_owned(),
            wanted: None,
            live: Some(json!(live)),
        }
    }

    /// Whether nothing is worth a write to an object with this difference.
    fn is_left(put_back: &PutBack, kind: &str, uid: &str, live: &str) -> bool {
        let worth = put_back.worth_a_write(kind, Some(uid), vec![difference(live)]);
        worth.is_empty()
    }

    #[test]
    fn what_the_server_puts_back_is_left_until_it_changes() {
        let put_back = PutBack::default();
        let left = |uid: &str, live: &str| is_left(&put_back, "Service", uid, live);
        assert!(!left("u", "1"));
        put_back.remember("Service", Some("u"), vec![difference("1")], 1, HashSet::new);
        assert!(left("u", "1") && !left("u", "2") && !left("v", "1"));
        put_back.remember("Service", Some("u"), Vec::new(), 1, HashSet::new);
        assert!(!left("u", "1"));
    }

    #[test]
    fn only_what_is_gone_is_forgotten() {
        const MANY: usize = 5000;
        let put_back = PutBack::default();
        let left = |kind: &str, uid: &str| is_left(&put_back, kind, uid, "1");
        let uid = |n: usize| format!("u-{n}");
        put_back.remember("Deployment", Some("d"), vec![difference("1")], 1, HashSet::new);
        for n in 0..MANY {
            put_back.remember("Service", Some(&uid(n)), vec![difference("1")], MANY, HashSet::new);
        }
        assert!((0..MANY).all(|n| left("Service", &uid(n))), "all of them exist");
        // Half of them are deleted; the watch does not show the newest yet.
        let half = || (0..MANY / 2).map(uid).collect();
        put_back.remember("Service", Some("new"), vec![difference("1")], MANY / 2, half);
        assert!((0..MANY / 2).all(|n| left("Service", &uid(n))) && left("Service", "new"));
        assert!(!(MANY / 2..MANY).any(|n| left("Service", &uid(n))), "they are gone");
        assert!(left("Deployment", "d"), "another kind's objects say nothing of it");
    }
}
