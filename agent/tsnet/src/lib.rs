//! One tailnet node inside this process: Tailscale's tsnet (Go) behind a small C ABI, in the spirit of libtailscale.
//!
//! * [`Node`] joins, accepts, dials and leaves; its state is in memory and it logs out when it closes, so that the node
//!   disappears from the control server at once.
//! * Bytes do not pass through Rust: [`Node::splice_dial`] hands a socket to Go, which carries both directions with half-close
//!   and passes a reset on as a reset. [`Conn::into_stream`] is for the connections whose bytes Rust must see.
//! * A dial goes only to what a peer of the netmap serves. It never falls back to the network of the machine.
//! * Go never calls into Rust: what happens asynchronously arrives as messages on a socket, read by a tokio task.
//! * A panic in Go ends the process (SIGABRT) if it gets past the recover of every entry point: run under a supervisor.
//!
//! Environment variables that the Go side should see must be set before the process starts: the Go runtime is up before
//! `main`. `SSL_CERT_FILE` names additional roots for the control server and the relays.
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn f(accepted: std::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
//! let node = tsnet::Node::new(&tsnet::NodeConfig {
//!     hostname: "egress".into(),
//!     control_url: "https://control.example.net".into(),
//!     auth_key: "…".into(),
//!     accept_routes: true,
//!     ..Default::default()
//! })?;
//! node.up(Duration::from_secs(30)).await?;
//! let splice = node.splice_dial(accepted.into(), "192.0.2.10:5432", &[], Duration::from_secs(10))?;
//! let dialed = splice.dialed.await?;
//! println!("connected to {} by way of {}", dialed.address, dialed.peer);
//! let end = splice.ended.await;
//! println!("{} bytes up, {} bytes down", end.up, end.down);
//! node.close(Duration::from_secs(5)).await?;
//! # Ok(()) }
//! ```

mod config;
mod conn;
mod error;
mod event;
mod ffi;
mod log;
mod node;
mod process;
mod splice;
mod status;

pub use config::NodeConfig;
pub use conn::{Conn, Incoming, Listener, ROUTED};
pub use error::{DialError, Error, ErrorClass};
pub use node::{LinkState, Node};
pub use process::{client_version, set_memory_limit};
pub use splice::{Aborter, Carried, Dialed, Dialing, Ended, Splice, SpliceEnd, Traffic};
pub use status::{Peer, Registration, Route, Status, WhoIs};
