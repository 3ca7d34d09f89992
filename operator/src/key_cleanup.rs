//! The clean-up of keys: what the ledger has and nobody needs is expired, its nodes are removed, then it is deleted.
//!
//! One step per entry and pass, each of which may be repeated, so that a crash between any two costs nothing. The order
//! matters: a key is deleted only when no node refers to it in a list that was read after the key had been expired,
//! because Headscale makes the ephemeral nodes of a deleted key permanent at its next start.

mod api;
mod owner;
mod preauth;
mod recognize;
mod step;

use tailnet_headscale::{Class, Error};

use crate::ledger::LedgerError;

pub use api::{forget_ended_elsewhere, sweep_api};
pub use preauth::{audit_preauth, sweep_preauth};
pub(crate) use recognize::made_key;

/// Why a pass did not end.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// Headscale refused or broke off.
    #[error(transparent)]
    Headscale(#[from] Error),
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The Secret of a CR cannot be read.
    #[error("cannot read Secret {name}: {source}")]
    Secret {
        /// Name of the Secret.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// Which Secret a CR has cannot be asked.
    #[error("cannot list the Secrets of {owner}: {source}")]
    Secrets {
        /// The CR.
        owner: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// Whether a CR is really gone cannot be asked.
    #[error("cannot read {owner}: {source}")]
    Owner {
        /// The CR.
        owner: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// Whether a CR's Pods are really gone cannot be asked.
    #[error("cannot list the Pods of {owner}: {source}")]
    Pods {
        /// The CR.
        owner: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
}

pub(crate) fn absent_is_fine<T>(result: Result<T, Error>) -> Result<(), Error> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.class() == Class::Absent => Ok(()),
        Err(error) => Err(error),
    }
}
