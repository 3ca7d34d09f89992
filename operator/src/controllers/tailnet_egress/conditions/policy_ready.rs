//! `PolicyReady`: does Headscale's policy let the egress reach its targets.

use tailnet_crds::conditions::condition::POLICY_READY;
use tailnet_crds::conditions::reason;
use tailnet_crds::{TargetState, TargetStatus};
use tailnet_policies::facts::Posture;

use super::targets::in_state;
use crate::facts;
use crate::headscale_clients::Observed;
use crate::status::{Conditions, Truth};

pub(super) fn policy_ready(
    conditions: &mut Conditions,
    observed: Option<&Observed>,
    tag: &str,
    targets: &[TargetStatus],
) {
    let mut set = |truth, reason, message: String| conditions.set(POLICY_READY, truth, reason, message);
    let Some(observed) = observed else {
        return set(
            Truth::Unknown,
            reason::CONTROL_PLANE_UNREACHABLE,
            "Headscale's policy has not been read yet".to_owned(),
        );
    };
    if let Some(error) = &observed.policy_error {
        return set(
            Truth::Unknown,
            reason::POLICY_UNREADABLE,
            format!("Headscale's policy cannot be read: {error}"),
        );
    }
    let allow_all = facts::posture(observed) == Posture::AllowAll;
    // Before the grants: Headscale refuses a policy with a grant for a tag that has no owner.
    if !allow_all && !observed.policy.tag_owners.contains_key(tag) {
        let message = format!(
            "{tag} has no owner in Headscale's policy, so no rule can name it: add \"{tag}\": [] to its tagOwners, and a grant"
        );
        return set(Truth::False, reason::TAG_NOT_OWNED, message);
    }
    let without = in_state(targets, TargetState::NoGrant);
    if !without.is_empty() {
        return set(Truth::False, TargetState::NoGrant.as_str(), without);
    }
    if allow_all {
        let message = "Headscale's policy has no rules, so every node reaches every other";
        return set(Truth::True, reason::ALLOW_ALL, message.to_owned());
    }
    if targets.iter().all(|target| target.state == TargetState::Unknown) {
        let message = "no agent has said yet which targets the policy lets it reach";
        return set(Truth::Unknown, reason::UNKNOWN, message.to_owned());
    }
    set(
        Truth::True,
        reason::GRANTED,
        format!("{tag} has an owner, and no routed target is without a grant"),
    );
}
