//! Headscale from Rust: the REST client and the access-policy document.
//!
//! * [`Client`] speaks `/api/v1` of Headscale 0.29 and understands the error shapes of 0.30. Its errors ([`Error`]) have a
//!   [`Class`] that says what a caller may do: ask again, ask for another key, or stop.
//! * [`document::Document`] reads an access policy (HuJSON) with positions, duplicate and unknown keys included.
//!
//! Without the feature `client` (on by default) only the document is there.
//!
//! No text that this crate makes contains an API key or a pre-auth key.

pub mod document;
#[cfg(feature = "client")]
mod rest;

#[cfg(feature = "client")]
pub use rest::*;
