//! What is to be done with one key of the ledger: a pure decision, one step at a time.

use jiff::{SignedDuration, Timestamp};
use tailnet_headscale::Id;

use super::owner::Current;
use crate::ledger::{Entry, KeyStage};

/// How long a Pod may still start with the old content of a Secret, at most; a shorter part of short lifetimes.
pub(super) const SECRET_DELAY: SignedDuration = SignedDuration::from_secs(300);

/// What the entry of a pre-auth key is judged by.
#[derive(Clone, Debug, Default)]
pub(super) struct Situation {
    /// Whether the CR exists (with this UID).
    pub alive: bool,
    /// The key in the CR's Secret.
    pub current: Option<Current>,
    /// Nodes that joined with this key: id and whether Headscale sees it.
    pub nodes: Vec<(Id, bool)>,
    /// Whether no Pod of the CR is left.
    pub pods_gone: bool,
    /// Whether a rule took all rights of the CR away: its nodes do not wait for its Pods, which may be stuck.
    pub withdrawn: bool,
    /// How long old content of a Secret may be seen.
    pub secret_delay: SignedDuration,
}

/// What to do with an entry now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Keep,
    /// Find out whether the key exists, and whether it reached its Secret.
    Resolve,
    /// Put it on its way out.
    Retire,
    /// Expire it in Headscale.
    Expire,
    /// Remove these nodes.
    RemoveNodes(Vec<Id>),
    /// Delete it in Headscale and drop the entry.
    Delete,
}

/// The next step for `entry`, in its `situation` at `now`.
pub(super) fn step(entry: &Entry, situation: &Situation, now: Timestamp) -> Step {
    let is_current = situation.current.as_ref().is_some_and(|current| {
        Some(&current.id) == entry.id.as_ref() && Some(&current.prefix) == entry.prefix.as_ref()
    });
    if situation.alive && is_current {
        return Step::Keep;
    }
    match entry.stage {
        KeyStage::Intended => Step::Resolve,
        KeyStage::Active if !situation.alive || situation.current.is_some() => Step::Retire,
        // Somebody deleted the CR's Secret: the next key makes this one superfluous.
        KeyStage::Active => Step::Keep,
        KeyStage::Retired => {
            let other_rights = situation
                .current
                .as_ref()
                .is_none_or(|current| current.tags != entry.tags);
            let settled = entry
                .retired_at
                .is_none_or(|at| now.duration_since(at) >= situation.secret_delay);
            if !situation.alive || other_rights || entry.expires_at <= now || (settled && situation.nodes.is_empty()) {
                Step::Expire
            } else {
                Step::Keep
            }
        }
        KeyStage::Expired => {
            if situation.nodes.is_empty() {
                return Step::Delete;
            }
            // A node of a CR that still has its rights goes with its Pod, by itself.
            let rights_kept = situation
                .current
                .as_ref()
                .is_some_and(|current| current.tags == entry.tags);
            let removable: Vec<Id> = situation
                .nodes
                .iter()
                .filter(|(_, online)| !online || situation.pods_gone || situation.withdrawn)
                .map(|(id, _)| id.clone())
                .collect();
            if (situation.alive && rights_kept) || removable.is_empty() {
                Step::Keep
            } else {
                Step::RemoveNodes(removable)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::testing::{PREFIX, TAG, entry, now};

    fn alive(current: Option<(&str, &str)>) -> Situation {
        Situation {
            alive: true,
            current: current.map(|(id, tag)| Current {
                id: id.to_owned(),
                prefix: PREFIX.to_owned(),
                tags: vec![tag.to_owned()],
            }),
            secret_delay: SECRET_DELAY,
            ..Situation::default()
        }
    }

    fn gone() -> Situation {
        Situation {
            pods_gone: true,
            ..Situation::default()
        }
    }

    fn with_node(situation: Situation, online: bool) -> Situation {
        Situation {
            nodes: vec![(Id::new("1"), online)],
            ..situation
        }
    }

    #[test]
    fn nodes_of_a_withdrawn_object_do_not_wait_for_their_pods() {
        let running = with_node(alive(None), true);
        assert_eq!(
            step(&entry(KeyStage::Expired), &running, now()),
            Step::Keep,
            "only its Secret is gone"
        );
        let withdrawn = Situation {
            withdrawn: true,
            ..running
        };
        let nodes = vec![Id::new("1")];
        assert_eq!(
            step(&entry(KeyStage::Expired), &withdrawn, now()),
            Step::RemoveNodes(nodes)
        );
        assert_eq!(
            step(&entry(KeyStage::Retired), &withdrawn, now()),
            Step::Expire,
            "the key first"
        );
    }

    #[test]
    fn the_key_in_the_secret_is_never_touched() {
        for stage in [KeyStage::Active, KeyStage::Retired, KeyStage::Expired] {
            assert_eq!(
                step(&entry(stage), &alive(Some(("7", TAG))), now()),
                Step::Keep,
                "{stage:?}"
            );
        }
    }

    #[test]
    fn a_replaced_key_goes_when_no_node_and_no_starting_pod_needs_it() {
        let replaced = alive(Some(("8", TAG)));
        assert_eq!(step(&entry(KeyStage::Active), &replaced, now()), Step::Retire);
        assert_eq!(
            step(&entry(KeyStage::Retired), &replaced, now()),
            Step::Keep,
            "a Pod may still see the old Secret"
        );
        let later = now() + SECRET_DELAY;
        assert_eq!(
            step(&entry(KeyStage::Retired), &with_node(replaced.clone(), true), later),
            Step::Keep
        );
        assert_eq!(step(&entry(KeyStage::Retired), &replaced, later), Step::Expire);
        assert_eq!(
            step(&entry(KeyStage::Expired), &with_node(replaced.clone(), true), later),
            Step::Keep
        );
        assert_eq!(
            step(&entry(KeyStage::Expired), &with_node(replaced.clone(), false), later),
            Step::Keep
        );
        assert_eq!(step(&entry(KeyStage::Expired), &replaced, later), Step::Delete);
        let ended = now() + SignedDuration::from_hours(2);
        assert_eq!(
            step(&entry(KeyStage::Retired), &with_node(replaced, true), ended),
            Step::Expire
        );
    }

    #[test]
    fn a_key_with_other_tags_goes_at_once() {
        let retagged = with_node(alive(Some(("8", "tag:other"))), true);
        assert_eq!(step(&entry(KeyStage::Retired), &retagged, now()), Step::Expire);
        assert_eq!(
            step(&entry(KeyStage::Expired), &retagged, now()),
            Step::Keep,
            "its Pod is being replaced"
        );
        let offline = with_node(alive(Some(("8", "tag:other"))), false);
        assert_eq!(
            step(&entry(KeyStage::Expired), &offline, now()),
            Step::RemoveNodes(vec![Id::new("1")])
        );
    }

    #[test]
    fn the_keys_of_a_gone_cr_go_with_their_nodes() {
        assert_eq!(step(&entry(KeyStage::Active), &gone(), now()), Step::Retire);
        assert_eq!(
            step(&entry(KeyStage::Retired), &with_node(gone(), true), now()),
            Step::Expire
        );
        assert_eq!(
            step(&entry(KeyStage::Expired), &with_node(gone(), true), now()),
            Step::RemoveNodes(vec![Id::new("1")])
        );
        let still_stopping = Situation {
            pods_gone: false,
            ..with_node(gone(), true)
        };
        assert_eq!(
            step(&entry(KeyStage::Expired), &still_stopping, now()),
            Step::Keep,
            "it logs out by itself"
        );
        assert_eq!(step(&entry(KeyStage::Expired), &gone(), now()), Step::Delete);
    }

    #[test]
    fn lost_answers_and_missing_secrets() {
        assert_eq!(
            step(&entry(KeyStage::Intended), &alive(Some(("8", TAG))), now()),
            Step::Resolve
        );
        assert_eq!(step(&entry(KeyStage::Intended), &gone(), now()), Step::Resolve);
        assert_eq!(step(&entry(KeyStage::Active), &alive(None), now()), Step::Keep);
        assert_eq!(
            step(&entry(KeyStage::Retired), &alive(None), now()),
            Step::Expire,
            "released"
        );
        let never_handed_out = Entry {
            retired_at: None,
            ..entry(KeyStage::Retired)
        };
        assert_eq!(
            step(&never_handed_out, &alive(Some(("8", TAG))), now()),
            Step::Expire,
            "no Pod can be starting with it"
        );
    }

    #[test]
    fn a_key_with_the_id_of_another_one_is_not_that_one() {
        let mut replaced = alive(Some(("7", TAG)));
        replaced.current.as_mut().unwrap().prefix = "zzzzzzzzzzzz".into();
        assert_eq!(
            step(&entry(KeyStage::Active), &replaced, now()),
            Step::Retire,
            "the new key in the Secret has the id of the old one"
        );
    }
}
