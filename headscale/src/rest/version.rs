//! `GET /version`, `GET /health`, `GET /api/v1/health`: who answers, and is it well.

use serde::Deserialize;

use super::client::{Client, Request};
use super::error::Error;

/// The first minor version whose API this client speaks.
pub const OLDEST: (u64, u64) = (0, 29);

/// What `GET /version` says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Version {
    /// `v0.29.3`, or `dev` for a build without a tag.
    pub version: String,
    /// Commit, possibly empty.
    #[serde(default)]
    pub commit: String,
}

impl Version {
    /// `(0, 29)` of `v0.29.3`; None for a build without a version.
    pub fn minor(&self) -> Option<(u64, u64)> {
        let mut parts = self.version.trim_start_matches('v').splitn(3, '.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Whether this client speaks its API. A build without a version is taken at its word.
    pub fn supported(&self) -> bool {
        self.minor().is_none_or(|minor| minor >= OLDEST)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiHealth {
    database_connectivity: bool,
}

#[derive(Deserialize)]
struct Health {
    status: String,
}

impl Client {
    /// `GET /version`, without a key.
    pub async fn version(&self) -> Result<Version, Error> {
        self.call(Request::get(&["version"]).without_key()).await
    }

    /// `GET /health`, without a key: Ok when the server says `pass`.
    pub async fn health(&self) -> Result<(), Error> {
        let health: Health = self.call(Request::get(&["health"]).without_key()).await?;
        match health.status.as_str() {
            "pass" => Ok(()),
            other => Err(Error::Server {
                call: "GET /health".into(),
                status: 200,
                message: crate::redact_keys(&format!("status {other:?}"), 200),
            }),
        }
    }

    /// `GET /api/v1/health`: the cheapest proof that the key is good. The bool says whether the database answers.
    pub async fn check_key(&self) -> Result<bool, Error> {
        let health: ApiHealth = self.call(Request::get(&["api", "v1", "health"])).await?;
        Ok(health.database_connectivity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_versions_are_supported() {
        let v = |text: &str| Version {
            version: text.into(),
            commit: String::new(),
        };
        assert_eq!(v("v0.29.3").minor(), Some((0, 29)));
        for good in ["v0.29.0", "0.30.0-beta.1", "v1.0.0", "dev", ""] {
            assert!(v(good).supported(), "{good}");
        }
        for bad in ["v0.28.9", "v0.9.0"] {
            assert!(!v(bad).supported(), "{bad}");
        }
    }
}
