//! The REST client; all that the feature `client` switches on.

mod client;
mod error;
mod lenient;
mod redact;
mod reply;
mod secret;
mod trust;

pub mod api_key;
pub mod node;
pub mod policy;
pub mod preauth_key;
pub mod user;
pub mod version;

pub use api_key::{ApiKey, ApiKeyInfo};
pub use client::{Client, Endpoint, EndpointError, Limits};
pub use error::{Class, Error};
pub use lenient::Id;
pub use node::Node;
pub use policy::PolicyText;
pub use preauth_key::{NewPreAuthKey, PreAuthKey, PreAuthKeyInfo};
pub use redact::redact_keys;
pub use secret::SecretString;
pub use trust::TrustError;
pub use user::User;
pub use version::Version;
