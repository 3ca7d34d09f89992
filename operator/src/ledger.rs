//! The key ledger: what we made in Headscale, for whom, so that nothing is orphaned by a crash or by a CR that goes while
//! the operator is down.
//!
//! An entry is written *before* a key is made, as an intention with the exact end of validity that the key will get. No two
//! keys end at the same microsecond, so a key whose answer was lost is found again by it; and the microseconds carry a mark
//! ([`crate::key_mark`]), by which keys are found that a lost ledger knew. The key itself is never here.
//!
//! Stored as `ledger.json` in the Secret [`tailnet_crds::names::tailnet::KEY_LEDGER`] of the operator namespace.

mod document;
mod entry;
mod secret;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use document::LOST_ANSWER;
pub use document::{Document, IntentionError};
pub use entry::{Entry, Existing, Intention, KeyKind, KeyOwner, KeyStage};
pub use secret::{DATA_KEY, Ledger, LedgerError};
