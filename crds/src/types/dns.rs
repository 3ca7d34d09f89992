//! DNS names and labels, in lower case, as A-labels, without trailing dot.

use std::fmt;
use std::str::FromStr;

use super::format::{Format, FormatError, Spelling, without_outer_space};
use super::ip::ends_in_number;

/// A DNS name: labels of letters, digits and dashes; at most 253 characters; the last label is not a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsName(String);

/// A DNS label as in RFC 1123: letters, digits and dashes, at most 63 characters, no dash at either end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsLabel(String);

/// A DNS label as in RFC 1035: as [`DnsLabel`], but the first character is a letter. Services need it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dns1035Label(String);

impl DnsName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The labels, first to last.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }

    /// Whether this is `zone` or a name below it.
    pub fn is_within(&self, zone: &Self) -> bool {
        self.0 == zone.0 || self.0.strip_suffix(&zone.0).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl DnsLabel {
    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Dns1035Label {
    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! text_format {
    ($type:ty, $name:literal, $max:literal, $check:path) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Format for $type {
            const NAME: &'static str = $name;
            const MAX_LENGTH: u32 = $max;
        }

        impl FromStr for $type {
            type Err = FormatError;

            fn from_str(text: &str) -> Result<Self, FormatError> {
                without_outer_space(text, |text| canonical(text, $check).map(Self))
            }
        }
    };
}

// One more than a name has, so that a name with a trailing dot gets our message.
text_format!(DnsName, "DNS name", 254, check_name);
text_format!(DnsLabel, "DNS label", 64, check_label);
text_format!(Dns1035Label, "DNS-1035 label", 64, check_1035_label);

/// The text, if it is canonical and passes `check`; what to write instead, if that passes.
fn canonical(text: &str, check: fn(&str) -> Result<(), String>) -> Result<String, FormatError> {
    let (ascii, u_label) = if text.is_ascii() {
        (text.to_owned(), false)
    } else {
        (
            to_a_labels(text).ok_or_else(|| FormatError::unreadable("has characters that a DNS name cannot have"))?,
            true,
        )
    };
    let (ascii, trailing_dot) = match ascii.strip_suffix('.') {
        Some(rest) => (rest.to_owned(), true),
        None => (ascii, false),
    };
    let lower = ascii.to_ascii_lowercase();
    check(&lower).map_err(FormatError::unreadable)?;
    check_a_labels(&lower).map_err(FormatError::unreadable)?;
    let spelling = if u_label {
        Spelling::ULabel
    } else if trailing_dot {
        Spelling::TrailingDot
    } else if lower != ascii {
        Spelling::UpperCase
    } else {
        return Ok(lower);
    };
    Err(FormatError::not_canonical(spelling, lower))
}

/// The name with every label in ASCII, as the IDNA processing of the URL standard gives it.
fn to_a_labels(text: &str) -> Option<String> {
    // The URL parser also decodes `%`, which is no DNS spelling.
    let plain = text
        .chars()
        .all(|c| !c.is_ascii() || c.is_ascii_alphanumeric() || c == '-' || c == '.');
    match url::Host::parse(text) {
        Ok(url::Host::Domain(domain)) if plain => Some(domain),
        _ => None,
    }
}

/// Labels that begin with `xn--` must decode to what they claim.
fn check_a_labels(name: &str) -> Result<(), String> {
    if !name.split('.').any(|label| label.starts_with("xn--")) {
        return Ok(());
    }
    match url::Host::parse(name) {
        Ok(url::Host::Domain(domain)) if domain == name => Ok(()),
        _ => Err("has a label that begins with xn-- but is not valid punycode".to_owned()),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name.len() > 253 {
        return Err("is longer than the 253 characters of a DNS name".to_owned());
    }
    name.split('.').try_for_each(check_label)?;
    if ends_in_number(name) {
        return Err("ends in a number, so it is not a DNS name".to_owned());
    }
    Ok(())
}

fn check_label(label: &str) -> Result<(), String> {
    if label.is_empty() {
        return Err("has an empty label".to_owned());
    }
    if label.len() > 63 {
        return Err("has a label of more than 63 characters".to_owned());
    }
    if let Some(bad) = label
        .chars()
        .find(|c| !c.is_ascii_lowercase() && !c.is_ascii_digit() && *c != '-')
    {
        return Err(format!(
            "has {bad:?}, but DNS labels have only lower-case letters, digits and dashes"
        ));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err("has a label that begins or ends with a dash".to_owned());
    }
    Ok(())
}

fn check_1035_label(label: &str) -> Result<(), String> {
    check_label(label)?;
    if !label.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err("does not begin with a letter".to_owned());
    }
    Ok(())
}
