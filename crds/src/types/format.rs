//! What every parse-once type offers, and the one error that they share.

use std::fmt;
use std::str::FromStr;

/// A value that is written as text in a spec.
///
/// `FromStr` accepts only spellings that every parser reads in the same way, and `Display` writes the canonical one:
/// parsing what `Display` wrote gives the same value and the same text.
pub trait Format: FromStr<Err = FormatError> + fmt::Display + Clone + fmt::Debug + PartialEq + Eq {
    /// Name of the format in schemas and documentation, such as `IP address`.
    const NAME: &'static str;
    /// Fewest characters that the schema lets through.
    const MIN_LENGTH: u32 = 1;
    /// Most characters that the schema lets through.
    const MAX_LENGTH: u32;
}

/// Why a text is not a value of its format.
///
/// Rules report the two cases under different ids: text that nobody can read, and text that two parsers may read
/// differently (TN010), for which the canonical spelling is named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The text is no value of this format in any spelling. The text of the error continues `spec.x: Invalid value: …:`.
    #[error("{0}")]
    Unreadable(String),
    /// The text can be read, but not by everyone in the same way.
    #[error("is not in canonical form ({spelling}): write {canonical:?}")]
    NotCanonical {
        /// What is unusual about the spelling.
        spelling: Spelling,
        /// The spelling to write instead; it parses.
        canonical: String,
    },
}

impl FormatError {
    /// Shorthand for [`FormatError::Unreadable`].
    pub(crate) fn unreadable(problem: impl Into<String>) -> Self {
        Self::Unreadable(problem.into())
    }

    /// Shorthand for [`FormatError::NotCanonical`].
    pub(crate) fn not_canonical(spelling: Spelling, canonical: impl Into<String>) -> Self {
        Self::NotCanonical {
            spelling,
            canonical: canonical.into(),
        }
    }

    /// The spelling to write instead, if the text could be read.
    pub fn canonical(&self) -> Option<&str> {
        match self {
            Self::Unreadable(_) => None,
            Self::NotCanonical { canonical, .. } => Some(canonical),
        }
    }

    /// What is unusual about the spelling, if the text could be read.
    pub fn spelling(&self) -> Option<Spelling> {
        match self {
            Self::Unreadable(_) => None,
            Self::NotCanonical { spelling, .. } => Some(*spelling),
        }
    }
}

/// What makes a readable text not canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spelling {
    /// White space at the beginning or end.
    WhiteSpace,
    /// Upper case where the format has lower case only.
    UpperCase,
    /// Numbers with leading zeros, which some parsers read as octal.
    LeadingZeros,
    /// Hexadecimal or octal parts of an IPv4 address.
    HexOrOctal,
    /// An IPv4 address of fewer than four parts.
    ShortIpv4,
    /// An IPv4 address inside an IPv6 one, `::ffff:192.0.2.1`.
    MappedIpv4,
    /// An IPv6 zone, `fe80::1%eth0`.
    ZoneId,
    /// An IPv6 address that is not in the form of RFC 5952.
    Ipv6Form,
    /// A trailing dot.
    TrailingDot,
    /// A label outside ASCII.
    ULabel,
    /// Bits set to the right of the prefix length.
    HostBits,
}

impl fmt::Display for Spelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WhiteSpace => "white space around it",
            Self::UpperCase => "upper case",
            Self::LeadingZeros => "leading zeros, which some parsers read as octal",
            Self::HexOrOctal => "hexadecimal or octal",
            Self::ShortIpv4 => "fewer than four parts",
            Self::MappedIpv4 => "IPv4 inside IPv6",
            Self::ZoneId => "IPv6 zone",
            Self::Ipv6Form => "IPv6 spelling other than RFC 5952",
            Self::TrailingDot => "trailing dot",
            Self::ULabel => "characters outside ASCII",
            Self::HostBits => "bits set behind the prefix",
        })
    }
}

/// Reads `text` without the white space around it, and says so if there was any.
pub(crate) fn without_outer_space<T: Format>(
    text: &str,
    read: impl Fn(&str) -> Result<T, FormatError>,
) -> Result<T, FormatError> {
    let trimmed = text.trim();
    if trimmed.len() == text.len() {
        return read(text);
    }
    match read(trimmed) {
        Ok(value) => Err(FormatError::not_canonical(Spelling::WhiteSpace, value.to_string())),
        Err(FormatError::NotCanonical { canonical, .. }) => {
            Err(FormatError::not_canonical(Spelling::WhiteSpace, canonical))
        }
        Err(unreadable) => Err(unreadable),
    }
}
