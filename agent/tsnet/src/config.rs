use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// What a [`crate::Node`] is made with.
#[derive(Clone, Serialize)]
pub struct NodeConfig {
    /// Host name that the node asks for; the control server may give another (`name-1`).
    pub hostname: String,
    /// Login server, an absolute URL.
    pub control_url: String,
    /// Pre-auth key. Never printed: not by [`fmt::Debug`], not in an error, not in a log.
    pub auth_key: String,
    /// Take the subnet routes of other nodes.
    pub accept_routes: bool,
    /// Subnet routes to offer, CIDR text.
    pub advertise_routes: Vec<String>,
    /// Least time after which a second SYN is sent beside an unanswered first one; zero turns this off.
    #[serde(rename = "hedge_ms", serialize_with = "milliseconds")]
    pub hedge: Duration,
    /// Log what the client marks as verbose, too.
    pub verbose: bool,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            hostname: String::new(),
            control_url: String::new(),
            auth_key: String::new(),
            accept_routes: false,
            advertise_routes: Vec::new(),
            hedge: Duration::from_millis(250),
            verbose: false,
        }
    }
}

impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConfig")
            .field("hostname", &self.hostname)
            .field("control_url", &self.control_url)
            .field("accept_routes", &self.accept_routes)
            .field("advertise_routes", &self.advertise_routes)
            .field("hedge", &self.hedge)
            .field("verbose", &self.verbose)
            .finish_non_exhaustive()
    }
}

fn milliseconds<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::NodeConfig;

    #[test]
    fn debug_does_not_show_the_key() {
        let config = NodeConfig {
            auth_key: "hskey-auth-secret".into(),
            ..Default::default()
        };
        assert!(!format!("{config:?}").contains("secret"));
    }
}
