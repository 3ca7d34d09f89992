//! Who: sources of grants, owners of tags, approvers.

use std::fmt;
use std::str::FromStr;

use super::cidr::Cidr;
use super::format::{Format, FormatError, Spelling, without_outer_space};
use super::ip::{IpAddress, ends_in_number};
use super::tag::Tag;

/// Somebody whom Headscale's policy can name. Names of groups, users and hosts are case-sensitive and stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// `*`.
    Any,
    /// `alice@` or `alice@example.com`.
    User(String),
    /// The name behind `group:`.
    Group(String),
    /// `tag:…`.
    Tag(Tag),
    /// The name behind `autogroup:`, such as `member`.
    Autogroup(String),
    /// A name from the policy's `hosts`.
    Host(String),
    /// One address.
    Ip(IpAddress),
    /// A network.
    Cidr(Cidr),
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::User(name) | Self::Host(name) => f.write_str(name),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Tag(tag) => tag.fmt(f),
            Self::Autogroup(name) => write!(f, "autogroup:{name}"),
            Self::Ip(address) => address.fmt(f),
            Self::Cidr(cidr) => cidr.fmt(f),
        }
    }
}

impl Format for Principal {
    const NAME: &'static str = "principal";
    const MAX_LENGTH: u32 = 320;
}

impl FromStr for Principal {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

fn unreadable() -> FormatError {
    FormatError::unreadable(
        "is not a user (alice@ or alice@example.com), group:NAME, tag:NAME, autogroup:NAME, host name, address, CIDR or *",
    )
}

fn read(text: &str) -> Result<Principal, FormatError> {
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(unreadable());
    }
    if text == "*" {
        return Ok(Principal::Any);
    }
    if let Some((prefix, name)) = text.split_once(':') {
        match prefix.to_ascii_lowercase().as_str() {
            "tag" => return text.parse().map(Principal::Tag),
            "group" if !name.is_empty() => return with_prefix(text, prefix, Principal::Group(name.to_owned())),
            "autogroup" if name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') && !name.is_empty() => {
                let lower = name.to_ascii_lowercase();
                return with_prefix(text, prefix, Principal::Autogroup(lower));
            }
            "group" | "autogroup" => return Err(unreadable()),
            "svc" | "ipset" | "posture" => {
                return Err(FormatError::unreadable(
                    "uses a kind of name that Headscale does not have",
                ));
            }
            _ => {}
        }
    }
    if text.contains('@') {
        return read_user(text);
    }
    if text.contains('/') {
        return text.parse().map(Principal::Cidr).map_err(in_place);
    }
    if text.contains(':') || ends_in_number(text) {
        return text.parse().map(Principal::Ip).map_err(in_place);
    }
    let host = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if host {
        Ok(Principal::Host(text.to_owned()))
    } else {
        Err(unreadable())
    }
}

/// `name@domain` with one `@`, or `name@` as Headscale writes users without a domain.
fn read_user(text: &str) -> Result<Principal, FormatError> {
    let (name, domain) = text.split_once('@').unwrap_or((text, ""));
    if name.is_empty() || name.contains('/') || domain.contains(['@', '/', ':']) {
        return Err(unreadable());
    }
    Ok(Principal::User(text.to_owned()))
}

/// `principal`, unless the text was spelled otherwise than it prints.
fn with_prefix(text: &str, prefix: &str, principal: Principal) -> Result<Principal, FormatError> {
    let canonical = principal.to_string();
    if canonical == text {
        return Ok(principal);
    }
    debug_assert!(prefix.len() < text.len());
    Err(FormatError::not_canonical(Spelling::UpperCase, canonical))
}

/// Keeps the canonical spelling, but says of unreadable text what may stand in this place.
fn in_place(error: FormatError) -> FormatError {
    match error {
        FormatError::Unreadable(_) => unreadable(),
        not_canonical @ FormatError::NotCanonical { .. } => not_canonical,
    }
}
