//! Flags of `doctor`.

use clap::{Args, ValueEnum};

use crate::connect::ClusterArgs;

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// How the findings are printed: text is a table with what to do below each fault; json is one object {healthy, checks: [{check, state, message, turn, next}]}.
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Output,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    Text,
    /// One JSON object.
    Json,
}
