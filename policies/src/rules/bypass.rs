//! Asking to be let past the rules: who may, and what is let past.

use tailnet_crds::names::BYPASS_RESOURCE;
use tailnet_crds::names::annotation::VALIDATION_DISABLED;

use crate::finding::Severity;
use crate::object::Object;
use crate::report::{Draft, Report, quoted};
use crate::request::{Layer, Request, Requester};
use crate::table::{self, ALL, Check, Layers, Operations, Rule};

/// Rules are skipped by whoever may skip them, aloud.
pub static TN008: Rule = Rule {
    id: "TN008",
    kinds: ALL,
    operations: Operations::WRITE,
    layers: Layers::WEBHOOK.and(Layers::LINT),
    severity: Severity::Deny,
    security: false,
    field: "metadata.annotations[tsunaro.io/validation]",
    message: "who asks to skip the rules may `use` admissionbypasses.tsunaro.io",
    why: "`tsunaro.io/validation: disabled` turns denials of this object into warnings, for the day on which a rule is wrong. It takes the right \
          to `use` the cluster-scoped resource `admissionbypasses.tsunaro.io` (a name for RBAC; no such object exists); without an answer from \
          the API server nobody has it. It never skips a security rule (★), what the schema refuses or nobody can read, what an organisation's policy (TN009) says, or what another object holds, and the \
          operator honours it likewise. A change by somebody without the right is checked as if the annotation were not there. Lint cannot know who will \
          apply a file, so there every rule holds.",
    example: "kind: TailnetEgress\nmetadata:\n  annotations: { tsunaro.io/validation: disabled }   # by a user without the right",
    fix: "Leave the annotation out and change what the other rules refuse, or bind the ClusterRole `tailnet-admission-bypass` to who may decide this.",
    check: Check::Requester(requester_may_bypass),
};

const FIELD: &str = "metadata.annotations[tsunaro.io/validation]";

fn requester_may_bypass(requester: &Requester, object: &Object, report: &mut Report<'_>) {
    if !object.asks_for_bypass {
        return;
    }
    let user = quoted(&requester.username);
    match requester.may_bypass {
        Some(true) => {
            let detail = format!(
                "RULES ARE SKIPPED for this object, as {user} may do: only security rules hold; remove the annotation as soon as it is not needed"
            );
            report.invalid(FIELD, VALIDATION_DISABLED, detail).warn();
        }
        Some(false) => {
            let detail = format!(
                "{user} may not skip rules (use {BYPASS_RESOURCE}.tsunaro.io): remove the annotation and change what the rules refuse"
            );
            report.forbidden(FIELD, VALIDATION_DISABLED, detail);
        }
        None => {
            let detail = format!(
                "whether {user} may skip rules is not known, the API server did not say: try again, or remove the annotation"
            );
            report.forbidden(FIELD, VALIDATION_DISABLED, detail);
        }
    }
}

/// What lint says of the annotation: it cannot know who will apply the file.
pub(crate) fn in_lint(object: &Object, report: &mut Report<'_>) {
    if object.asks_for_bypass {
        let detail = "asks to skip rules, which takes a right that lint cannot check: here every rule holds";
        report.invalid(FIELD, VALIDATION_DISABLED, detail).warn();
    }
}

/// Takes the denials out that the object asks to skip and may: in the webhook if the requester has the right, in the operator
/// always, since only who has it gets the annotation past the webhook.
pub(crate) fn let_past(drafts: &mut Vec<Draft>, object: &Object, request: &Request) -> Vec<Draft> {
    let granted = match request.layer {
        Layer::Guard => true,
        Layer::Webhook => request.requester.as_ref().and_then(|requester| requester.may_bypass) == Some(true),
        Layer::Lint => false,
    };
    let denies = |draft: &Draft| draft.severity == Severity::Deny;
    if !object.asks_for_bypass || !granted {
        return Vec::new();
    }
    if drafts.iter().any(|draft| denies(draft) && !may_be_skipped(draft)) {
        // Refused all the same: nothing is skipped, and it is said what would be.
        for draft in drafts.iter_mut().filter(|draft| denies(draft) && may_be_skipped(draft)) {
            draft.severity = Severity::Warn;
            draft.detail.push_str("; would be skipped");
        }
        return Vec::new();
    }
    drafts.extract_if(.., |draft| denies(draft)).collect()
}

/// Not what protects others (security rules), not what the organisation says itself (it can change that), not what another object holds (two cannot have it, whoever asks), and not
/// what cannot be read.
fn may_be_skipped(draft: &Draft) -> bool {
    draft.holder.is_none()
        && table::rule(draft.rule)
            .is_some_and(|rule| !rule.security && !matches!(rule.check, Check::Engine) && rule.id != TN008.id)
}
