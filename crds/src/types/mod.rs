//! Parse-once types of the values that people write, and the small structs that several kinds share.
//!
//! A spec holds [`Text<T>`]: the text as written. `text.parse()` gives `T` or a [`FormatError`] that says what is wrong
//! and, where there is one, the canonical spelling. So reading an object never fails for text that the structural
//! schema lets through, and a rule can report every bad value at once.

pub mod agent_settings;
pub mod cidr;
pub mod dns;
pub mod duration;
pub mod format;
pub mod image;
pub mod ip;
pub mod name_template;
pub mod node;
pub mod principal;
pub mod references;
pub mod server_url;
pub mod tag;
pub mod target_address;
pub mod text;

pub use agent_settings::{AgentSettings, LogLevel};
pub use cidr::Cidr;
pub use dns::{Dns1035Label, DnsLabel, DnsName};
pub use duration::GoDuration;
pub use format::{Format, FormatError, Spelling};
pub use image::ImageRef;
pub use ip::{AddressScope, IpAddress};
pub use name_template::NameTemplate;
pub use node::NodeStatus;
pub use principal::Principal;
pub use references::{ConfigMapKeyRef, IssuerRef, LocalRef, SecretKeyRef, TailnetRef};
pub use server_url::{ServerUrl, Transport};
pub use tag::Tag;
pub use target_address::TargetAddress;
pub use text::Text;
