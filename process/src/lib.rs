//! What every binary of tailnet-operator needs of its process: logs, the version with its commit, stop signals, and the
//! plain HTTP endpoint for health, readiness and metrics.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use tailnet_process::{health, logs::LogArgs, metrics, readiness::Readiness, signals};
//! # async fn start(log: LogArgs) -> Result<(), Box<dyn std::error::Error>> {
//! log.init()?;
//! let stop = signals::stop_signal()?;
//! let registry = metrics::registry("tailnet_operator");
//! let readiness = Readiness::new();
//! let leader = readiness.condition("leader", "waiting for the Lease of the other replica");
//! let health = health::serve(([0, 0, 0, 0], 9403).into(), readiness.clone(), Arc::new(registry), axum::Router::new(), stop.clone()).await?;
//! leader.met();
//! stop.cancelled().await;
//! health.finished().await?;
//! # Ok(()) }
//! ```

pub mod health;
pub mod listen;
pub mod logs;
pub mod metrics;
pub mod readiness;
pub mod signals;
mod version;

pub use logs::LogArgs;
pub use readiness::{Condition, Readiness};
pub use signals::stop_signal;
pub use version::{VERSION, version};
