//! The access policy on the server: read, check, write.

use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::client::{Client, Request};
use super::error::Error;
use super::lenient;
use crate::document::Document;

const PATH: [&str; 3] = ["api", "v1", "policy"];

/// The policy as stored, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyText {
    /// HuJSON text. Empty only when somebody stored an empty one past this client.
    #[serde(rename = "policy")]
    pub text: String,
    /// When it was stored; None in file mode.
    #[serde(default, deserialize_with = "lenient::time")]
    pub updated_at: Option<Timestamp>,
}

/// A text that holds no JSON object must not be sent: Headscale answers 200, stores nothing, and allows everything at its
/// next start. A text that is broken in another way is left to Headscale's own words.
fn refuse_blank(text: &str) -> Result<(), Error> {
    match Document::parse(text) {
        Ok(document) if document.is_blank() => Err(Error::BlankPolicy),
        _ if text.trim().is_empty() => Err(Error::BlankPolicy),
        _ => Ok(()),
    }
}

impl Client {
    /// `GET /api/v1/policy`; None when none was ever set (which means: everything is allowed).
    pub async fn policy(&self) -> Result<Option<PolicyText>, Error> {
        match self.call(Request::get(&PATH)).await {
            Ok(policy) => Ok(Some(policy)),
            Err(Error::NotFound { message, .. }) if message.contains("acl policy not found") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `POST /api/v1/policy/check`: parses and validates `text` and runs its tests against the live nodes, stores nothing.
    /// A refusal is [`Error::Rejected`] with Headscale's words.
    pub async fn check_policy(&self, text: &str) -> Result<(), Error> {
        refuse_blank(text)?;
        let path = ["api", "v1", "policy", "check"];
        let _: serde_json::Value = self
            .call(Request::put(Method::POST, &path, Some(json!({ "policy": text }))))
            .await?;
        Ok(())
    }

    /// `PUT /api/v1/policy`: stores `text` and pushes it to all nodes. Check first: a refused PUT can still have changed
    /// the live filter. There is no compare-and-set, the last writer wins; read it back and compare.
    pub async fn put_policy(&self, text: &str) -> Result<PolicyText, Error> {
        refuse_blank(text)?;
        self.call(Request::put(Method::PUT, &PATH, Some(json!({ "policy": text }))))
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_blank_is_sent() {
        for blank in ["", " \n", "// only a comment\n", "/* x */", "null", " null // x"] {
            assert!(matches!(refuse_blank(blank), Err(Error::BlankPolicy)), "{blank:?}");
        }
        for text in ["{}", "{\"acls\":[]}", "{broken"] {
            assert!(refuse_blank(text).is_ok(), "{text:?}");
        }
    }
}
