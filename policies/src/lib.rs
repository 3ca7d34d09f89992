//! The admission rules of tailnet-operator: pure, synchronous, without client or clock.
//!
//! [`evaluate()`] runs the table of rules ([`table::RULES`]) over a [`Request`] and a [`Snapshot`]. The webhook asks it about
//! every change, the operator before it acts, `kubectl tailnet lint` about files: all get the same verdict.

pub mod access_policy;
pub mod base;
#[cfg(feature = "cases")]
pub mod cases;
pub mod claim_parts;
pub mod claims;
#[cfg(feature = "cases")]
pub mod corpus;
mod defaults;
mod evaluate;
pub mod facts;
pub mod finding;
mod guard_verdict;
mod index;
mod memo;
pub mod names;
pub mod object;
pub mod organisation;
mod policy_tests;
pub mod prefixes;
pub mod quantities;
mod ratchet;
mod report;
pub mod request;
mod rules;
mod shared_index;
pub mod snapshot;
pub mod table;
mod view;
mod wants;

pub use defaults::{applied as with_defaults, defaults};
pub use evaluate::{evaluate, evaluate_ignoring};
pub use finding::{Class, Finding, ObjectRef, Outcome, RefKind, Severity};
pub use guard_verdict::Verdict;
pub use object::{Object, Spec};
pub use policy_tests::certainly_denied;
pub use request::{Layer, Operation, Request, Requester};
pub use rules::base_policy::evaluate_config_map;
pub use snapshot::{Config, Snapshot};
pub use table::{reference_md, webhook_rules};
pub use wants::resolve_claims;
