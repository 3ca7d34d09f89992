//! Text that must not be seen.

use std::fmt;

/// A secret. `Debug` and `Display` print `[redacted]`; the only way to the text is [`SecretString::expose`], so that a
/// search for that word finds every place where a secret leaves this type.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(String);

impl SecretString {
    /// Wraps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. Never pass it to a log, an error, a status or an event.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl fmt::Display for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<'de> serde::Deserialize<'de> for SecretString {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_printed() {
        let s = SecretString::new("hskey-api-abc");
        assert_eq!(
            format!("{s} {s:?} {:#?}", Some(&s)),
            "[redacted] [redacted] Some(\n    [redacted],\n)"
        );
        assert_eq!(s.expose(), "hskey-api-abc");
    }
}
