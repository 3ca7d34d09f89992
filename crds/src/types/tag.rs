//! Tags.

use std::fmt;
use std::str::FromStr;

use super::format::{Format, FormatError, Spelling, without_outer_space};

/// A tag, `tag:` and a name of lower-case letters, digits and dashes that begins with a letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(String);

impl Tag {
    /// The tag with `tag:`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The tag without `tag:`.
    pub fn name(&self) -> &str {
        self.0.strip_prefix("tag:").unwrap_or(&self.0)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Tag {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Format for Tag {
    const NAME: &'static str = "tag";
    const MAX_LENGTH: u32 = 128;
}

impl FromStr for Tag {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

fn read(text: &str) -> Result<Tag, FormatError> {
    let lower = text.to_ascii_lowercase();
    let name = lower.strip_prefix("tag:").unwrap_or_default();
    let good = lower.len() <= Tag::MAX_LENGTH as usize
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !good {
        return Err(FormatError::unreadable(
            "is not a tag: write tag: and a name of lower-case letters, digits and dashes that begins with a letter",
        ));
    }
    if lower != text {
        return Err(FormatError::not_canonical(Spelling::UpperCase, lower));
    }
    Ok(Tag(lower))
}
