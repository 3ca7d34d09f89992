//! The access policy that this installation wants in Headscale: the people's base document plus what the objects of a
//! Tailnet need. Pure: the same snapshot gives the same bytes.
//!
//! The base wins and nothing of it is removed. Every generated entry stands below a comment that names its object
//! (`// from TailnetEgress tailnet-system/team-a`).

mod contributions;
mod in_force;
mod marker;
mod origins;
mod principals;
mod render;
mod room;
mod waiting_tests;
mod why;

pub use contributions::{Paste, missing_entries};
pub use marker::{Owner, owner_of, without_marker};
pub use origins::sources_in;
pub use render::{Ask, LeftOut, RenderError, Rendered, render};
pub use room::MAX_BYTES;
pub use waiting_tests::Registered;
pub use why::{Allowance, Question, QuestionError, Sureness, why};

use sha2::{Digest, Sha256};

/// sha256 (hex) of a document's text, as in `status.policy`.
pub fn sha256_hex(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod in_force_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod tests;
