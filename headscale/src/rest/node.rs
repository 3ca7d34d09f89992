//! Nodes of the tailnet: who is there, what they route, what they may route.

use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::client::{Client, Request};
use super::error::Error;
use super::lenient::{self, Id};
use super::preauth_key::PreAuthKeyInfo;
use super::user::User;

/// A node. All lists are sorted. Match nodes by `id`, `machine_key` or `pre_auth_key.id`: `name` is not unique.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Id; never reused.
    pub id: Id,
    /// `mkey:<64 hex>`.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub machine_key: String,
    /// `nodekey:<64 hex>`.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub node_key: String,
    /// Tailnet addresses.
    #[serde(default, deserialize_with = "lenient::sorted")]
    pub ip_addresses: Vec<String>,
    /// Host name that the client reported.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub name: String,
    /// Unique DNS label: `<given_name>.<base domain>` is the MagicDNS name.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub given_name: String,
    /// Owner; the pseudo user `tagged-devices` for tagged nodes in lists, None for them in [`Client::node`].
    #[serde(default)]
    pub user: Option<User>,
    /// Rarely refreshed while online.
    #[serde(default, deserialize_with = "lenient::time")]
    pub last_seen: Option<Timestamp>,
    /// End of the node key; None = never.
    #[serde(default, deserialize_with = "lenient::time")]
    pub expiry: Option<Timestamp>,
    /// The key it joined with, as it was then.
    #[serde(default)]
    pub pre_auth_key: Option<PreAuthKeyInfo>,
    /// When it joined.
    #[serde(default, deserialize_with = "lenient::time")]
    pub created_at: Option<Timestamp>,
    /// Headscale's view; a frozen process stays online.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub online: bool,
    /// Prefixes that it may serve, also when it does not offer them any more.
    #[serde(default, deserialize_with = "lenient::sorted")]
    pub approved_routes: Vec<String>,
    /// Prefixes that it offers.
    #[serde(default, deserialize_with = "lenient::sorted")]
    pub available_routes: Vec<String>,
    /// Prefixes that it serves now, as the primary router. Always empty in [`Client::node`]: use [`Client::nodes`].
    #[serde(default, deserialize_with = "lenient::sorted")]
    pub subnet_routes: Vec<String>,
    /// Tags with `tag:`.
    #[serde(default, deserialize_with = "lenient::sorted")]
    pub tags: Vec<String>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(default, deserialize_with = "lenient::null_default")]
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct One {
    node: Node,
}

impl Client {
    /// `GET /api/v1/node`: all nodes, by ascending id. One call costs Headscale 60–100 ms of CPU for the key alone: make
    /// one list per loop, not one call per node.
    pub async fn nodes(&self) -> Result<Vec<Node>, Error> {
        let mut listed: Listed = self.call(Request::get(&["api", "v1", "node"])).await?;
        listed.nodes.sort_by_key(|node| node.id.number());
        Ok(listed.nodes)
    }

    /// `GET /api/v1/node/<id>`. Absent is [`Error::NotFound`]. `subnet_routes` is always empty here.
    pub async fn node(&self, id: &Id) -> Result<Node, Error> {
        let one: One = self.call(Request::get(&["api", "v1", "node", id.as_str()])).await?;
        Ok(one.node)
    }

    /// `POST /api/v1/node/<id>/approve_routes`: `routes` becomes the whole list. Read, add, write: a prefix that is left
    /// out loses its approval.
    pub async fn approve_routes(&self, id: &Id, routes: &[String]) -> Result<Node, Error> {
        let path = ["api", "v1", "node", id.as_str(), "approve_routes"];
        let one: One = self
            .call(Request::put(Method::POST, &path, Some(json!({ "routes": routes }))))
            .await?;
        Ok(one.node)
    }

    /// `POST /api/v1/node/<id>/tags`: `tags` becomes the whole list (at least one, each with an owner in the policy). A
    /// user's node becomes a tagged one, for good.
    pub async fn set_tags(&self, id: &Id, tags: &[String]) -> Result<Node, Error> {
        let path = ["api", "v1", "node", id.as_str(), "tags"];
        let one: One = self
            .call(Request::put(Method::POST, &path, Some(json!({ "tags": tags }))))
            .await?;
        Ok(one.node)
    }

    /// `POST /api/v1/node/<id>/rename/<label>`. A taken name is [`Error::Conflict`].
    pub async fn rename_node(&self, id: &Id, label: &str) -> Result<Node, Error> {
        let path = ["api", "v1", "node", id.as_str(), "rename", label];
        let one: One = self.call(Request::put(Method::POST, &path, None)).await?;
        Ok(one.node)
    }

    /// `POST /api/v1/node/<id>/expire`: now. The client must log in again.
    pub async fn expire_node(&self, id: &Id) -> Result<Node, Error> {
        let path = ["api", "v1", "node", id.as_str(), "expire"];
        let one: One = self.call(Request::put(Method::POST, &path, None)).await?;
        Ok(one.node)
    }

    /// `DELETE /api/v1/node/<id>`. A connected client does not notice and never joins again by itself. Absent is
    /// [`Error::NotFound`].
    pub async fn delete_node(&self, id: &Id) -> Result<(), Error> {
        let path = ["api", "v1", "node", id.as_str()];
        let _: serde_json::Value = self.call(Request::put(Method::DELETE, &path, None)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_node_of_0_29() {
        let json = r#"{"id":"1","machineKey":"mkey:aa","nodeKey":"nodekey:bb","discoKey":"discokey:cc","ipAddresses":["fd7a::1","100.64.0.1"],
            "name":"rt1","user":{"id":"2147455555","name":"tagged-devices"},"lastSeen":null,"expiry":null,
            "preAuthKey":{"id":"9","key":"hskey-auth-abcdefghijkl-***","aclTags":null},"createdAt":"2026-11-30T10:00:00.123456789Z",
            "registerMethod":"REGISTER_METHOD_AUTH_KEY","givenName":"rt1","online":true,"approvedRoutes":[],
            "availableRoutes":["10.0.10.0/24"],"subnetRoutes":null,"tags":["tag:router"],"newFieldOf030":{}}"#;
        let node: Node = serde_json::from_str(json).unwrap();
        assert_eq!(node.ip_addresses, ["100.64.0.1", "fd7a::1"]);
        assert_eq!(node.pre_auth_key.unwrap().id.as_str(), "9");
        assert!(node.online && node.subnet_routes.is_empty());
        let bare: Node = serde_json::from_str(r#"{"id":2}"#).unwrap();
        assert_eq!((bare.id.as_str(), bare.user), ("2", None));
    }
}
