//! Room in the document: what one object's entries take, what one namespace may fill, and who is left out when all is full.

use std::collections::{BTreeMap, BTreeSet};

use super::contributions::{Contribution, grant_text, list};
use super::render::LeftOut;
use crate::finding::ObjectRef;

/// Most bytes of a rendered document: Headscale takes a message of 4 MiB.
pub const MAX_BYTES: usize = 4_000_000;
/// Most bytes of generated entries for the objects of one namespace other than the operator's.
const MAX_NAMESPACE_BYTES: usize = 512 * 1024;
/// About what a line has beside its text: indentation, a comma, the line's end.
const LINE: usize = 8;

/// One object with what it needs.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) reference: ObjectRef,
    pub(super) needs: Contribution,
    /// Whether the live policy has entries for it.
    pub(super) in_force: bool,
    /// creationTimestamp; None for what is not stored.
    pub(super) created: Option<String>,
}

impl Member {
    /// Who is let in first: what is in force is not cut for what is new, and of the new the oldest comes first.
    fn rank(&self) -> (bool, bool, Option<&str>, &ObjectRef) {
        (
            !self.in_force,
            self.created.is_none(),
            self.created.as_deref(),
            &self.reference,
        )
    }

    /// About the bytes of all its entries with their comments; `owners` is the list behind each of its tags.
    fn bytes(&self, owners: usize) -> usize {
        let comment = "// from ".len() + self.reference.to_string().len() + LINE;
        let tags = self.needs.tags.iter();
        let tags: usize = tags.map(|tag| comment + tag.len() + owners + LINE).sum();
        let routes = self.needs.routes.iter();
        let routes: usize = routes
            .map(|(prefix, by)| comment + prefix.to_string().len() + list(by).len() + LINE)
            .sum();
        let grants = self.needs.grants.iter();
        let grants: usize = grants.map(|grant| grant_text(grant).len() + LINE).sum();
        tags + routes + grants + if grants > 0 { comment } else { 0 }
    }
}

/// Takes out the objects beyond what one namespace may fill: it must not use up everybody's room.
pub(super) fn within_shares(
    members: Vec<Member>,
    owners: usize,
    operator_namespace: &str,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Member> {
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    let mut beyond: BTreeSet<ObjectRef> = BTreeSet::new();
    for member in ranked(&members) {
        let Some(namespace) = member.reference.namespace.as_deref() else {
            continue;
        };
        if namespace == operator_namespace {
            continue;
        }
        let (used, bytes) = (used.entry(namespace).or_default(), member.bytes(owners));
        if *used + bytes > MAX_NAMESPACE_BYTES {
            beyond.insert(member.reference.clone());
            left_out.push(LeftOut {
                object: member.reference.clone(),
                why: format!(
                    "the objects of namespace {namespace} fill more than {MAX_NAMESPACE_BYTES} bytes of the policy: shorten allowFrom or remove some"
                ),
            });
        } else {
            *used += bytes;
        }
    }
    without(members, &beyond)
}

/// Takes out the newest objects without entries in force until about `excess` bytes less are needed; None when that is not
/// enough: whoever has something is not cut off for want of room.
pub(super) fn without_newest(
    members: Vec<Member>,
    excess: usize,
    owners: usize,
    left_out: &mut Vec<LeftOut>,
) -> Option<Vec<Member>> {
    let mut freed = 0;
    let mut beyond: BTreeSet<ObjectRef> = BTreeSet::new();
    for member in ranked(&members).into_iter().rev() {
        if freed >= excess || member.in_force {
            break;
        }
        freed += member.bytes(owners);
        beyond.insert(member.reference.clone());
        left_out.push(LeftOut {
            object: member.reference.clone(),
            why: format!(
                "the policy is full, Headscale takes {MAX_BYTES} bytes: remove objects or shorten the base document"
            ),
        });
    }
    (freed > 0).then(|| without(members, &beyond))
}

fn ranked(members: &[Member]) -> Vec<&Member> {
    let mut ranked: Vec<&Member> = members.iter().collect();
    ranked.sort_by(|a, b| a.rank().cmp(&b.rank()));
    ranked
}

fn without(mut members: Vec<Member>, beyond: &BTreeSet<ObjectRef>) -> Vec<Member> {
    members.retain(|member| !beyond.contains(&member.reference));
    members
}
