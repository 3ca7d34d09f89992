//! Headscale from Rust: the REST client and the access-policy document.
//!
//! * [`Client`] speaks `/api/v1` of Headscale 0.29 and understands the error shapes of 0.30. Its errors ([`Error`]) have a
//!   [`Class`] that says what a caller may do: ask again, ask for another key, or stop.
//! * [`document::Document`] reads an access policy (HuJSON) with positions, duplicate and unknown keys included.
//!
//! Without the feature `client` (on by default) only the document is there.
//!
//! No text that this crate makes contains an API key or a pre-auth key.

#[cfg(feature = "client")]
mod client;
pub mod document;
#[cfg(feature = "client")]
mod error;
#[cfg(feature = "client")]
mod lenient;
#[cfg(feature = "client")]
mod redact;
#[cfg(feature = "client")]
mod reply;
#[cfg(feature = "client")]
mod secret;
#[cfg(feature = "client")]
mod trust;

#[cfg(feature = "client")]
pub mod api_key;
#[cfg(feature = "client")]
pub mod node;
#[cfg(feature = "client")]
pub mod policy;
#[cfg(feature = "client")]
pub mod preauth_key;
#[cfg(feature = "client")]
pub mod user;
#[cfg(feature = "client")]
pub mod version;

#[cfg(feature = "client")]
pub use api_key::{ApiKey, ApiKeyInfo};
#[cfg(feature = "client")]
pub use client::{Client, Endpoint, EndpointError, Limits};
#[cfg(feature = "client")]
pub use error::{Class, Error};
#[cfg(feature = "client")]
pub use lenient::Id;
#[cfg(feature = "client")]
pub use node::Node;
#[cfg(feature = "client")]
pub use policy::PolicyText;
#[cfg(feature = "client")]
pub use preauth_key::{NewPreAuthKey, PreAuthKey, PreAuthKeyInfo};
#[cfg(feature = "client")]
pub use redact::redact_keys;
#[cfg(feature = "client")]
pub use secret::SecretString;
#[cfg(feature = "client")]
pub use trust::TrustError;
#[cfg(feature = "client")]
pub use user::User;
#[cfg(feature = "client")]
pub use version::Version;
