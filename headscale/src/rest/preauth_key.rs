//! Pre-auth keys: what a node joins with.

use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::client::{Client, Request};
use super::error::Error;
use super::lenient::{self, Id};
use super::secret::SecretString;

const PATH: [&str; 3] = ["api", "v1", "preauthkey"];
const MARK: &str = "hskey-auth-";

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPreAuthKey {
    /// Many nodes may join with it.
    pub reusable: bool,
    /// Its nodes are removed some time after they went offline.
    pub ephemeral: bool,
    /// End of validity; always given, since without it Headscale makes a dead key.
    pub expiration: Timestamp,
    /// Tags of its nodes, with `tag:`; at least one.
    pub tags: Vec<String>,
}

/// A key that was just made: the only time that its text is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreAuthKey {
    /// The text that a node presents.
    pub secret: SecretString,
    /// Everything else.
    pub info: PreAuthKeyInfo,
}

/// A key as lists and nodes show it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreAuthKeyInfo {
    /// Id.
    pub id: Id,
    /// `hskey-auth-<12>-***`; the secret part is cut off on reading.
    #[serde(default, deserialize_with = "masked")]
    pub key: String,
    /// See [`NewPreAuthKey::reusable`].
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub reusable: bool,
    /// See [`NewPreAuthKey::ephemeral`].
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub ephemeral: bool,
    /// Set for keys that are not reusable once a node joined.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub used: bool,
    /// End of validity; None is Go's zero time: expired from the start.
    #[serde(default, deserialize_with = "lenient::time")]
    pub expiration: Option<Timestamp>,
    /// When it was made.
    #[serde(default, deserialize_with = "lenient::time")]
    pub created_at: Option<Timestamp>,
    /// Sorted.
    #[serde(default, deserialize_with = "lenient::sorted")]
    pub acl_tags: Vec<String>,
}

impl PreAuthKeyInfo {
    /// Whether no new node can join with it.
    pub fn expired(&self, now: Timestamp) -> bool {
        self.expiration.is_none_or(|end| end <= now)
    }

    /// The public 12 characters.
    pub fn prefix(&self) -> &str {
        let rest = self.key.strip_prefix(MARK).unwrap_or(&self.key);
        rest.get(..12).unwrap_or(rest)
    }
}

/// `hskey-auth-<12>-***` of whatever form of the key the server sent.
fn mask(key: &str) -> String {
    match key.strip_prefix(MARK).and_then(|rest| rest.get(..12)) {
        Some(prefix) => format!("{MARK}{prefix}-***"),
        None => "***".into(),
    }
}

fn masked<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    lenient::null_default::<D, String>(deserializer).map(|key| mask(&key))
}

#[derive(Deserialize)]
struct Full {
    key: SecretString,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    pre_auth_key: Full,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(default, deserialize_with = "lenient::null_default")]
    pre_auth_keys: Vec<PreAuthKeyInfo>,
}

impl Client {
    /// `POST /api/v1/preauthkey`, owned by its tags (no user). The tags need not exist in the policy.
    pub async fn create_preauth_key(&self, new: &NewPreAuthKey) -> Result<PreAuthKey, Error> {
        let body = json!({
            "reusable": new.reusable,
            "ephemeral": new.ephemeral,
            "expiration": new.expiration.to_string(),
            "aclTags": new.tags,
        });
        let created: Created = self.call(Request::create(&PATH, body)).await?;
        let Full { key, mut rest } = created.pre_auth_key;
        rest.insert("key".into(), mask(key.expose()).into());
        let info = serde_json::from_value(rest.into()).map_err(|e| Error::NotHeadscale {
            call: "POST /api/v1/preauthkey".into(),
            detail: crate::redact_keys(&format!("unexpected JSON: {e}"), 200),
        })?;
        Ok(PreAuthKey { secret: key, info })
    }

    /// `GET /api/v1/preauthkey`: all keys of the server.
    pub async fn preauth_keys(&self) -> Result<Vec<PreAuthKeyInfo>, Error> {
        let listed: Listed = self.call(Request::get(&PATH)).await?;
        Ok(listed.pre_auth_keys)
    }

    /// `POST /api/v1/preauthkey/expire`. Headscale says yes to unknown ids too. Connected nodes stay.
    pub async fn expire_preauth_key(&self, id: &Id) -> Result<(), Error> {
        let path = ["api", "v1", "preauthkey", "expire"];
        let _: serde_json::Value = self
            .call(Request::put(Method::POST, &path, Some(json!({ "id": id }))))
            .await?;
        Ok(())
    }

    /// `DELETE /api/v1/preauthkey?id=…`. Only when no node refers to the key any more: deleting it makes its ephemeral
    /// nodes permanent at the server's next restart. Headscale says yes to unknown ids too.
    pub async fn delete_preauth_key(&self, id: &Id) -> Result<(), Error> {
        let query = [("id", id.as_str())];
        let _: serde_json::Value = self
            .call(Request::put(Method::DELETE, &PATH, None).query(&query))
            .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_key_is_masked_in_info() {
        let json = r#"{"user":null,"id":"1","key":"hskey-auth-abcdefghijkl-SECRET","reusable":true,"ephemeral":true,"used":false,
            "expiration":"2026-12-07T00:00:00Z","createdAt":"2026-11-30T00:00:00Z","aclTags":["tag:b","tag:a"]}"#;
        let info: PreAuthKeyInfo = serde_json::from_str(json).unwrap();
        assert_eq!(
            (info.key.as_str(), info.prefix()),
            ("hskey-auth-abcdefghijkl-***", "abcdefghijkl")
        );
        assert_eq!(info.acl_tags, ["tag:a", "tag:b"]);
        let full: Full = serde_json::from_str(json).unwrap();
        assert!(!format!("{:?}", (&full.key, &full.rest)).contains("SECRET"));
    }
}
