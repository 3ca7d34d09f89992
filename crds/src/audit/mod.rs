//! The two records of an admission decision: a line of the webhook's own stream ([`Line`]) and the annotations that it puts
//! into the API server's audit log ([`annotation`]). The webhook writes both, `kubectl tailnet audit` reads both.

mod decision;
mod line;
mod reference;

pub use decision::{Decision, Endpoint, Reason};
pub use line::{Line, MAX_ITEMS, MAX_LINE, MAX_TEXT};
pub use reference::{audit_md, audit_schema};

/// What the property `schema` of every line says. A change that a reader of lines could stumble over gets another number;
/// new properties do not.
pub const SCHEMA: &str = "tsunaro.io/admission-decision/v1";

/// Entry of the validating configuration for CREATE and UPDATE; the API server puts it and a slash before our annotation
/// keys. The chart must never rename or drop it in an upgrade: our caBundle would keep the old entry alive without its rules.
pub const VALIDATE: &str = "validate.tsunaro.io";
/// Entry of the validating configuration for DELETE.
pub const VALIDATE_DELETE: &str = "validate-delete.tsunaro.io";
/// Entry of the validating configuration for ConfigMaps with a base document.
pub const VALIDATE_POLICY: &str = "validate-policy.tsunaro.io";
/// Webhook entry for ConfigMaps with an organisation's policy.
pub const VALIDATE_ORGANISATION: &str = "validate-organisation-policy.tsunaro.io";
/// Entry of the mutating configuration.
pub const MUTATE: &str = "mutate.tsunaro.io";

/// Keys of the audit annotations, as the webhook answers them. None may hold a slash: the API server would drop it.
pub mod annotation {
    /// The decision's word ([`super::Decision::as_str`]); always there.
    pub const DECISION: &str = "decision";
    /// Uid of the review, which the line in the stream has too: so one is found by the other.
    pub const REVIEW: &str = "review-uid";
    /// Ids of the rules that refused, separated by commas.
    pub const RULES: &str = "rules";
    /// Ids of the rules that warned.
    pub const WARNED_RULES: &str = "warned-rules";
    /// Ids of the rules that would have refused, had the requester not been allowed to skip them.
    pub const BYPASSED_RULES: &str = "bypassed-rules";
    /// Field paths of all findings, separated by commas; never their values.
    pub const FIELDS: &str = "fields";
    /// Why no rule decided ([`super::Reason::as_str`]).
    pub const REASON: &str = "reason";

    /// Every key with its meaning, for the reference.
    pub const ALL: [(&str, &str); 7] = [
        (DECISION, "the decision; always there"),
        (
            REVIEW,
            "uid of the admission review; the line in the stream has the same `uid`",
        ),
        (
            RULES,
            "ids of the rules and organisation's policies that refused, separated by commas",
        ),
        (WARNED_RULES, "ids of the rules that warned"),
        (
            BYPASSED_RULES,
            "ids of the rules that would have refused and were skipped",
        ),
        (
            FIELDS,
            "field paths of all findings, separated by commas; never their values",
        ),
        (REASON, "why no rule decided"),
    ];
}
