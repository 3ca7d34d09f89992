//! The agent: carries bytes between the cluster and a tailnet, as one node of it in user space.
//!
//! An egress agent listens on a port per target and carries what is accepted there to the target over the tailnet. An ingress
//! agent listens on the tailnet and carries connections and HTTP requests to Services. What it does is in its configuration
//! file, which it reads again when it changes; what it sees is on its health port.
//!
//! | module | part |
//! |---|---|
//! | [`args`] | flags and environment |
//! | [`config_file`] | `config.json`: reading, checking, watching |
//! | [`membership`] | being a node: login, login again when the node is lost, logout |
//! | [`egress`] | listeners and targets |
//! | [`ingress`] | tailnet ports, certificate, HTTP |
//! | [`status`] | `GET /status` |
//! | [`metrics`] | what is counted |
//! | [`run`] | start, drain, stop |

pub mod args;
mod auth_key;
mod backoff;
pub mod config_file;
mod connection;
mod destinations;
pub mod egress;
pub mod ingress;
mod limits;
mod listener;
pub mod membership;
pub mod memory;
pub mod metrics;
pub mod run;
pub mod status;
mod target;
mod until_end;
mod usage;
