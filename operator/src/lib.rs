//! The operator: creates and observes, with no rules of its own. It runs the admission rules as a guard before it acts.
//!
//! [`run`] is the whole process behind the command line: watches, leader election, one controller per kind.

pub mod access_policy;
mod admission_probe;
pub mod agents;
mod backends;
pub mod backoff;
pub mod children;
pub mod claims;
pub mod context;
pub mod controllers;
mod data_keys;
pub mod desired;
pub mod drift;
pub mod facts;
pub mod guard;
pub mod headscale_clients;
pub mod hosts;
pub mod key_cleanup;
pub mod key_mark;
pub mod key_recovery;
pub mod keys;
pub mod leader;
pub mod ledger;
mod listeners;
pub mod metrics;
pub mod organisation;
pub mod ownership;
pub mod put_back;
pub mod queue;
pub mod rbac;
pub mod server_identity;
pub mod settings;
pub mod start;
pub mod status;
pub mod status_policy;
pub mod target_state;
pub mod trusted_ca;
pub mod watches;
pub mod working_key;
pub mod writes;

pub use start::{StartError, run};
