//! The condition `KeyReady` of whatever has agents.

use tailnet_crds::conditions::condition::KEY_READY;
use tailnet_crds::conditions::reason;

use crate::keys::{KeyError, KeyState};
use crate::status::{Conditions, Truth};

/// Sets it to what became of the pre-auth key; what it was stays where the key was not looked at.
pub(super) fn set(conditions: &mut Conditions, key: Option<&Result<KeyState, KeyError>>) {
    match key {
        Some(Ok(key)) => conditions.set(
            KEY_READY,
            Truth::True,
            reason::KEY_READY_REASON,
            format!(
                "pre-auth key {} for {} is valid until {}",
                key.prefix,
                key.tags.join(", "),
                key.expires_at
            ),
        ),
        Some(Err(error)) => {
            let truth = match error {
                KeyError::Api { .. } => Truth::Unknown,
                _ => Truth::False,
            };
            conditions.set(KEY_READY, truth, error.reason(), error.to_string());
        }
        None => conditions.keep(KEY_READY, reason::UNKNOWN, "the key was not looked at"),
    }
}
