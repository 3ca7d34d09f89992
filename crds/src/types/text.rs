//! Text of a spec as it was written, with the format that it should have.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::format::{Format, FormatError};

/// A string that should be a `T`. Holds any text; [`Text::parse`] tells.
pub struct Text<T> {
    raw: String,
    format: PhantomData<fn() -> T>,
}

impl<T> Text<T> {
    /// Wraps a text without checking it.
    pub fn new(raw: impl Into<String>) -> Self {
        Self {
            raw: raw.into(),
            format: PhantomData,
        }
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.raw
    }

    /// The text as written, owned.
    pub fn into_string(self) -> String {
        self.raw
    }
}

impl<T: Format> Text<T> {
    /// The value, or what is wrong with the text.
    pub fn parse(&self) -> Result<T, FormatError> {
        self.raw.parse()
    }
}

impl<T: Format> From<&T> for Text<T> {
    fn from(value: &T) -> Self {
        Self::new(value.to_string())
    }
}

impl<T> From<&str> for Text<T> {
    fn from(raw: &str) -> Self {
        Self::new(raw)
    }
}

impl<T> From<String> for Text<T> {
    fn from(raw: String) -> Self {
        Self::new(raw)
    }
}

impl<T> AsRef<str> for Text<T> {
    fn as_ref(&self) -> &str {
        &self.raw
    }
}

impl<T> PartialEq<str> for Text<T> {
    fn eq(&self, other: &str) -> bool {
        self.raw == other
    }
}

impl<T> PartialEq<&str> for Text<T> {
    fn eq(&self, other: &&str) -> bool {
        self.raw == *other
    }
}

// Written out because `derive` would ask the same of `T`, which is only a marker.
impl<T> Clone for Text<T> {
    fn clone(&self) -> Self {
        Self::new(self.raw.clone())
    }
}

impl<T> PartialEq for Text<T> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl<T> Eq for Text<T> {}

impl<T> PartialOrd for Text<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Text<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.raw.cmp(&other.raw)
    }
}

impl<T> std::hash::Hash for Text<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.raw.hash(state);
    }
}

impl<T> Default for Text<T> {
    fn default() -> Self {
        Self::new(String::new())
    }
}

impl<T> fmt::Debug for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.raw, f)
    }
}

impl<T> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.raw)
    }
}

impl<T> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.raw)
    }
}

impl<'de, T> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

impl<T: Format> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": T::MIN_LENGTH, "maxLength": T::MAX_LENGTH })
    }
}
