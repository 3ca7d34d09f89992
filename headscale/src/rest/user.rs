//! Users of the tailnet. The operator needs none; facts and the policy's principals name them.

use serde::Deserialize;

use super::client::{Client, Request};
use super::error::Error;
use super::lenient::{self, Id};

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// Id.
    pub id: Id,
    /// Name, unique per server.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub name: String,
    /// E-mail address, possibly empty.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub email: String,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(default, deserialize_with = "lenient::null_default")]
    users: Vec<User>,
}

impl Client {
    /// `GET /api/v1/user`: all users.
    pub async fn users(&self) -> Result<Vec<User>, Error> {
        let listed: Listed = self.call(Request::get(&["api", "v1", "user"])).await?;
        Ok(listed.users)
    }
}
