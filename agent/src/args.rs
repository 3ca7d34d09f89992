//! Flags and environment of the agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tailnet_process::{LogArgs, VERSION};

/// Carries bytes between the cluster and a tailnet, as one node of it.
///
/// The operator starts it, one Deployment per TailnetEgress or TailnetIngress; it can be run by hand with a config.json and a
/// pre-auth key. An egress agent listens on a port per target and carries connections to the target over the tailnet. An
/// ingress agent listens on the tailnet, on a port per tcp expose and one for all http exposes of a port, and carries
/// connections and requests to their Services. Neither needs privileges or a writable directory.
///
/// SSL_CERT_FILE names additional roots for the login server and the relays. GOMEMLIMIT overrides the memory limit that is
/// otherwise derived from the container's.
#[derive(Clone, Debug, Parser)]
#[command(name = "tailnet-agent", version = VERSION, max_term_width = 110)]
pub struct Args {
    /// What this agent does: egress or ingress. There is no default, so that a Deployment without it cannot do the wrong thing.
    #[arg(long, env = "AGENT_MODE")]
    pub mode: Option<String>,
    /// The configuration file; read again whenever it changes.
    #[arg(long, env = "AGENT_CONFIG", default_value = "/etc/tailnet-agent/config.json")]
    pub config: PathBuf,
    /// File with the pre-auth key; read again at every login.
    #[arg(
        long,
        env = "AGENT_AUTHKEY_FILE",
        default_value = "/var/run/secrets/tailnet-agent/authkey"
    )]
    pub authkey_file: PathBuf,
    /// Directory with tls.crt (the chain) and tls.key of the http exposes, PEM; read again whenever they change.
    #[arg(long, env = "AGENT_TLS_DIR", default_value = "/var/run/secrets/tailnet-agent-tls")]
    pub tls_dir: PathBuf,
    /// Address of /healthz, /readyz, /metrics and /status.
    #[arg(long, env = "AGENT_HEALTH_LISTEN", default_value = "[::]:9402")]
    pub health_listen: SocketAddr,
    /// Seconds that open connections get to end after a stop signal.
    #[arg(long, env = "AGENT_DRAIN_SECONDS", default_value_t = 25)]
    pub drain_seconds: u64,
    /// Seconds after a stop signal in which new connections are still accepted, until the cluster has stopped sending them.
    #[arg(long, env = "AGENT_ACCEPT_GRACE_SECONDS", default_value_t = 2)]
    pub accept_grace_seconds: u64,
    /// Seconds that a dial may take.
    #[arg(long, env = "AGENT_DIAL_TIMEOUT_SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub dial_timeout_seconds: u64,
    /// Open connections in total; more are reset.
    #[arg(long, env = "AGENT_MAX_CONNECTIONS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Open connections per target or expose; more are reset.
    #[arg(long, env = "AGENT_MAX_CONNECTIONS_PER_TARGET", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections_per_target: u32,
    /// Seconds between two questions to the login server whether it still has this node.
    #[arg(long, env = "AGENT_PROBE_SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub probe_seconds: u64,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// From the cluster to the tailnet.
    Egress,
    /// From the tailnet to Services.
    Ingress,
}

impl Mode {
    /// The word in `AGENT_MODE` and in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Egress => "egress",
            Mode::Ingress => "ingress",
        }
    }
}

/// Why the mode is not usable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    /// Neither flag nor variable.
    #[error("AGENT_MODE is not set: set it, or --mode, to \"egress\" or \"ingress\"; there is no default")]
    Unset,
    /// Anything else.
    #[error("AGENT_MODE={0:?} is unknown: set it to \"egress\" or \"ingress\"")]
    Unknown(String),
}

impl Args {
    /// The mode, or why there is none.
    ///
    /// # Errors
    /// See [`ModeError`].
    pub fn mode(&self) -> Result<Mode, ModeError> {
        match self.mode.as_deref() {
            None | Some("") => Err(ModeError::Unset),
            Some("egress") => Ok(Mode::Egress),
            Some("ingress") => Ok(Mode::Ingress),
            Some(other) => Err(ModeError::Unknown(other.to_owned())),
        }
    }

    /// See `drain_seconds`.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    /// See `accept_grace_seconds`; never longer than the drain.
    pub fn accept_grace(&self) -> Duration {
        Duration::from_secs(self.accept_grace_seconds.min(self.drain_seconds))
    }

    /// See `dial_timeout_seconds`.
    pub fn dial_timeout(&self) -> Duration {
        Duration::from_secs(self.dial_timeout_seconds)
    }

    /// See `probe_seconds`.
    pub fn probe_every(&self) -> Duration {
        Duration::from_secs(self.probe_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::{Args, Mode, ModeError};
    use clap::Parser;

    fn mode(argv: &[&str]) -> Result<Mode, ModeError> {
        Args::try_parse_from([&["tailnet-agent"], argv].concat())
            .unwrap()
            .mode()
    }

    #[test]
    fn there_is_no_default_mode() {
        assert_eq!(mode(&[]), Err(ModeError::Unset));
        assert_eq!(mode(&["--mode", ""]), Err(ModeError::Unset));
        assert_eq!(mode(&["--mode", "egress"]), Ok(Mode::Egress));
        assert_eq!(mode(&["--mode", "ingress"]), Ok(Mode::Ingress));
        assert_eq!(mode(&["--mode", "Egress"]), Err(ModeError::Unknown("Egress".into())));
    }

    #[test]
    fn the_grace_is_part_of_the_drain() {
        let args = Args::try_parse_from(["tailnet-agent", "--drain-seconds", "1"]).unwrap();
        assert_eq!(args.accept_grace(), args.drain());
    }
}
