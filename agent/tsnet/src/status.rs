use serde::Deserialize;

/// The node as it sees itself and its peers.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The client's state: `Running`, `NeedsLogin`, `Starting`, `Stopped`, `NoState`.
    pub state: String,
    /// Whether the control connection is up.
    pub online: bool,
    /// Milliseconds since the netmap last changed; -1 before the first one.
    pub netmap_age_ms: i64,
    /// What the client finds wrong with itself.
    pub health: Vec<String>,
    /// This node; absent before the first netmap.
    #[serde(rename = "self")]
    pub own: Option<Peer>,
    /// Every peer in the netmap, sorted by name; empty when they were not asked for.
    pub peers: Vec<Peer>,
    /// Bytes that the Go runtime holds.
    pub heap_bytes: u64,
    /// Goroutines in the process.
    pub goroutines: u64,
}

/// One node of the netmap.
#[derive(Clone, Debug, Deserialize)]
pub struct Peer {
    /// The control server's id.
    pub id: String,
    /// First label of the MagicDNS name.
    pub name: String,
    /// Whole MagicDNS name, without a trailing dot.
    pub dns_name: String,
    /// Tailnet addresses.
    pub ips: Vec<String>,
    /// Tags with their `tag:`.
    pub tags: Vec<String>,
    /// Whether the control server says that it is online.
    pub online: bool,
    /// Prefixes that it may send from and is sent: its addresses, and the routes that this node may use.
    pub allowed_ips: Vec<String>,
    /// Routes for which it is the primary.
    pub primary_routes: Vec<String>,
    /// Direct address in use; empty when there is none.
    pub cur_addr: String,
    /// Region of the relay.
    pub relay: String,
    /// Whether its key has expired.
    pub expired: bool,
}

/// Which peer serves an address.
#[derive(Clone, Debug, Deserialize)]
pub struct Route {
    /// Whether one does.
    pub routed: bool,
    /// The address, after resolution.
    pub address: String,
    /// The peer's MagicDNS label.
    pub peer: String,
    /// The route that matches.
    pub prefix: String,
    /// Why not, when it is not routed.
    pub why: String,
}

/// Who has a tailnet address.
#[derive(Clone, Debug, Deserialize)]
pub struct WhoIs {
    /// MagicDNS label of the node.
    pub node: String,
    /// Login name of its user; `tagged-devices` for a tagged node.
    pub login: String,
    /// Display name of its user; can be empty.
    pub name: String,
    /// Tags with their `tag:`.
    pub tags: Vec<String>,
}

/// Whether the control server still has this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// It does, and the key is valid.
    Known,
    /// It does not, or the key has expired: only a new login helps.
    Lost(String),
}
