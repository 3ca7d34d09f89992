//! `RoutesReady`: does a live router serve each target.

use tailnet_crds::conditions::condition::ROUTES_READY;
use tailnet_crds::conditions::reason;
use tailnet_crds::{TargetState, TargetStatus};

use super::targets::in_state;
use crate::status::{Conditions, Truth};

pub(super) fn routes_ready(conditions: &mut Conditions, targets: &[TargetStatus], reachable: bool) {
    let mut set = |truth, reason: &str, message: String| conditions.set(ROUTES_READY, truth, reason, message);
    if !reachable {
        let message = "Headscale cannot be reached now; the states of the targets are those of the last read";
        return set(Truth::Unknown, reason::CONTROL_PLANE_UNREACHABLE, message.to_owned());
    }
    for state in [
        TargetState::NotAdvertised,
        TargetState::NotApproved,
        TargetState::NotServing,
        TargetState::DialFailed,
    ] {
        let named = in_state(targets, state);
        if !named.is_empty() {
            return set(Truth::False, state.as_str(), named);
        }
    }
    let unknown = in_state(targets, TargetState::Unknown);
    if !unknown.is_empty() {
        return set(Truth::Unknown, reason::UNKNOWN, unknown);
    }
    set(
        Truth::True,
        reason::ROUTED,
        format!("a live router serves each of {} targets", targets.len()),
    );
}
