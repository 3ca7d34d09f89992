//! Old faults never block a change: on UPDATE a finding that the old object already had is a warning.

use std::collections::HashMap;

use serde_json::Value;

use crate::finding::Severity;
use crate::report::Draft;

/// What makes two findings the same fault: the rule or policy, and the value or what else the verdict rests on.
type Fault<'d> = (&'d str, Option<&'d str>, Option<&'d str>);

fn fault(draft: &Draft) -> Fault<'_> {
    let id = draft.policy.as_deref().unwrap_or(draft.rule);
    (id, draft.value.as_deref(), draft.fingerprint.as_deref())
}

/// Turns denials that are in `before` (same rule, same whole value) into warnings. Counted: an old fault excuses itself
/// once, not a second copy of itself.
pub(crate) fn lower(drafts: &mut [Draft], before: &[Draft]) {
    let mut old: HashMap<Fault<'_>, usize> = HashMap::new();
    for draft in before.iter().filter(|draft| draft.severity == Severity::Deny) {
        *old.entry(fault(draft)).or_default() += 1;
    }
    let excused: Vec<bool> = drafts
        .iter()
        .map(|draft| {
            draft.severity == Severity::Deny
                && old.get_mut(&fault(draft)).is_some_and(|left| {
                    let any = *left > 0;
                    *left -= usize::from(any);
                    any
                })
        })
        .collect();
    for (draft, _) in drafts.iter_mut().zip(excused).filter(|(_, excused)| *excused) {
        draft.severity = Severity::Warn;
    }
}

/// Whether an update changes nothing that a rule reads: a status or finalizer write is never blocked.
pub(crate) fn untouched(old: &Value, new: &Value) -> bool {
    ["/spec", "/metadata/annotations", "/metadata/labels"]
        .iter()
        .all(|part| old.pointer(part) == new.pointer(part))
}
