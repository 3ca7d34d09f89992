//! How Headscale writes things: 64-bit numbers as strings, null for empty lists, the year 1 for "no time".

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

/// An id of Headscale (a node, a key, a user): decimal text, compared as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Id(String);

impl Id {
    /// An id from its decimal text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The decimal text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number, for sorting; None when the text is not a number.
    pub fn number(&self) -> Option<u64> {
        self.0.parse().ok()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            Number(u64),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Text(text) => Self(text),
            Either::Number(number) => Self(number.to_string()),
        })
    }
}

/// `null` reads as the type's default.
pub(crate) fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A time, where null, an empty text and anything in the year 1 (Go's zero time) mean "none".
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    if text.is_empty() || text.starts_with("0001-01-01T") {
        return Ok(None);
    }
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Lists whose order Headscale picks anew on every call are sorted, so that equal contents compare equal.
pub(crate) fn sorted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut list: Vec<String> = null_default(deserializer)?;
    list.sort();
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Probe {
        id: Id,
        #[serde(default, deserialize_with = "time")]
        at: Option<Timestamp>,
        #[serde(default, deserialize_with = "sorted")]
        list: Vec<String>,
    }

    #[test]
    fn reads_what_headscale_writes() {
        let p: Probe =
            serde_json::from_str(r#"{"id":"7","at":"2027-01-01T00:00:00.5+01:00","list":["b","a"]}"#).unwrap();
        assert_eq!((p.id.as_str(), p.id.number()), ("7", Some(7)));
        assert_eq!(p.at.unwrap().to_string(), "2026-12-31T23:00:00.5Z");
        assert_eq!(p.list, ["a", "b"]);
        let p: Probe = serde_json::from_str(r#"{"id":7,"at":"0001-01-01T00:00:00Z","list":null}"#).unwrap();
        assert_eq!((p.id.as_str(), p.at, p.list.len()), ("7", None, 0));
        assert!(serde_json::from_str::<Probe>(r#"{"id":"7","at":"24h"}"#).is_err());
    }
}
