//! API keys: what opens the REST API.

use jiff::Timestamp;
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde::Deserialize;
use serde_json::json;

use super::client::{Client, Request};
use super::error::Error;
use super::lenient::{self, Id};
use super::secret::SecretString;

const PATH: [&str; 3] = ["api", "v1", "apikey"];
/// `hskey-api-` + 12 characters of prefix + `-` + 64 of secret.
const MARK: &str = "hskey-api-";
const PREFIX_LENGTH: usize = 12;

/// An API key. Never printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey(SecretString);

impl ApiKey {
    /// Reads a key as people paste it: white space around it is dropped. Any printable ASCII text passes, since servers
    /// upgraded from old versions still hold keys in older formats.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::MalformedKey);
        }
        Ok(Self(SecretString::new(text)))
    }

    /// The public part (12 characters), as lists show it; None for a key in an older format. Cut by position, since
    /// prefix and secret may themselves contain `-`.
    pub fn prefix(&self) -> Option<&str> {
        let rest = self.0.expose().strip_prefix(MARK)?;
        let prefix = rest.get(..PREFIX_LENGTH)?;
        rest[PREFIX_LENGTH..].starts_with('-').then_some(prefix)
    }

    /// The key itself, to be stored in a Secret.
    pub fn secret(&self) -> &SecretString {
        &self.0
    }

    pub(crate) fn header(&self) -> Result<HeaderValue, Error> {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", self.0.expose())).map_err(|_| Error::MalformedKey)?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// A key as the list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyInfo {
    /// Id.
    pub id: Id,
    /// `hskey-api-<12>-***`; [`ApiKeyInfo::short_prefix`] has the 12.
    #[serde(default)]
    pub prefix: String,
    /// End of validity; None is Go's zero time: expired from the start.
    #[serde(default, deserialize_with = "lenient::time")]
    pub expiration: Option<Timestamp>,
    /// When it was made.
    #[serde(default, deserialize_with = "lenient::time")]
    pub created_at: Option<Timestamp>,
}

impl ApiKeyInfo {
    /// The 12 characters that [`ApiKey::prefix`] gives too.
    pub fn short_prefix(&self) -> &str {
        let rest = self.prefix.strip_prefix(MARK).unwrap_or(&self.prefix);
        rest.get(..PREFIX_LENGTH).unwrap_or(rest)
    }

    /// Whether the key opens nothing any more.
    pub fn expired(&self, now: Timestamp) -> bool {
        self.expiration.is_none_or(|end| end <= now)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    api_key: SecretString,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(default, deserialize_with = "lenient::null_default")]
    api_keys: Vec<ApiKeyInfo>,
}

impl Client {
    /// `POST /api/v1/apikey`: a new key that ends at `expiration` (always given: without it Headscale makes a dead key).
    /// The reply has no id: find it in [`Client::api_keys`] by prefix.
    pub async fn create_api_key(&self, expiration: Timestamp) -> Result<ApiKey, Error> {
        let body = json!({ "expiration": expiration.to_string() });
        let created: Created = self.call(Request::create(&PATH, body)).await?;
        ApiKey::parse(created.api_key.expose())
    }

    /// `GET /api/v1/apikey`: all keys of the server.
    pub async fn api_keys(&self) -> Result<Vec<ApiKeyInfo>, Error> {
        let listed: Listed = self.call(Request::get(&PATH)).await?;
        Ok(listed.api_keys)
    }

    /// `POST /api/v1/apikey/expire` by prefix (12 characters): dead at once. An unknown key is [`Error::NotFound`].
    pub async fn expire_api_key(&self, prefix: &str) -> Result<(), Error> {
        let path = ["api", "v1", "apikey", "expire"];
        let _: serde_json::Value = self
            .call(Request::put(Method::POST, &path, Some(json!({ "prefix": prefix }))))
            .await?;
        Ok(())
    }

    /// As [`Client::expire_api_key`], by id.
    pub async fn expire_api_key_by_id(&self, id: &Id) -> Result<(), Error> {
        let path = ["api", "v1", "apikey", "expire"];
        let _: serde_json::Value = self
            .call(Request::put(Method::POST, &path, Some(json!({ "id": id }))))
            .await?;
        Ok(())
    }

    /// `DELETE /api/v1/apikey/<prefix>`. A key that is gone is [`Error::NotFound`].
    pub async fn delete_api_key(&self, prefix: &str) -> Result<(), Error> {
        let path = ["api", "v1", "apikey", prefix];
        let _: serde_json::Value = self.call(Request::put(Method::DELETE, &path, None)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_cut_by_position() {
        let secret = "s".repeat(64);
        let key = ApiKey::parse(&format!("  hskey-api-a-b_c-d_e-f_-{secret}\n")).unwrap();
        assert_eq!(key.prefix(), Some("a-b_c-d_e-f_"));
        assert!(!format!("{key:?}").contains("sss"));
        assert_eq!(ApiKey::parse("abcdefg.hijk").unwrap().prefix(), None);
        assert!(matches!(ApiKey::parse(" \n"), Err(Error::MalformedKey)));
        assert!(matches!(ApiKey::parse("two words"), Err(Error::MalformedKey)));
        assert!(matches!(ApiKey::parse("schlüssel"), Err(Error::MalformedKey)));
    }

    #[test]
    fn list_entry() {
        let info: ApiKeyInfo = serde_json::from_str(
            r#"{"id":"1","prefix":"hskey-api-9j2gZAKTww9X-***","expiration":"0001-01-01T00:00:00Z","createdAt":"2026-11-30T10:00:00Z","lastSeen":null}"#,
        )
        .unwrap();
        assert_eq!(info.short_prefix(), "9j2gZAKTww9X");
        assert!(info.expired("2026-11-30T10:00:00Z".parse().unwrap()));
    }
}
