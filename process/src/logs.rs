//! Log output: one stream on stderr, as text for people or JSON lines for machines. Standard output stays free for data.

use std::io::{IsTerminal, stderr};
use std::panic::PanicHookInfo;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::TryInitError;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per line.
    Json,
}

/// The log flags of every binary; use with `#[command(flatten)]`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs (standard error)")]
pub struct LogArgs {
    /// How log lines look.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "text", global = true)]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace, also per module, e.g. "info,kube_client=debug".
    #[arg(long, env = "LOG_LEVEL", default_value = "info", global = true)]
    pub log_level: String,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `--log-level` is not a filter.
    #[error(
        "--log-level {level:?} is not a log filter: {source}; write for example \"info\" or \"info,kube_client=debug\""
    )]
    Filter {
        /// What was given.
        level: String,
        /// Where it stops being a filter.
        source: ParseError,
    },
    /// Logging was set up before.
    #[error("logging is already set up in this process: {0}")]
    AlreadySet(#[from] TryInitError),
}

impl LogArgs {
    /// Starts logging for the whole process. A panic is logged as one event, so that JSON output stays JSON.
    pub fn init(&self) -> Result<(), LogError> {
        use tracing_subscriber::util::SubscriberInitExt;
        let filter = self.filter()?;
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
        match self.log_format {
            LogFormat::Text => builder.with_ansi(stderr().is_terminal()).finish().try_init()?,
            LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
        }
        std::panic::set_hook(Box::new(log_panic));
        Ok(())
    }

    fn filter(&self) -> Result<EnvFilter, LogError> {
        EnvFilter::builder()
            .parse(&self.log_level)
            .map_err(|source| LogError::Filter {
                level: self.log_level.clone(),
                source,
            })
    }
}

fn log_panic(info: &PanicHookInfo<'_>) {
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let message = info.payload_as_str().unwrap_or("a panic without a text");
    tracing::error!(location, panic = message, "a task panicked");
}

#[cfg(test)]
mod tests {
    use super::{LogArgs, LogError, LogFormat};
    use clap::Parser;

    #[derive(Parser)]
    struct Binary {
        #[command(flatten)]
        log: LogArgs,
    }

    #[test]
    fn flags_are_read() {
        let binary = Binary::parse_from(["x", "--log-format", "json", "--log-level", "warn,kube=debug"]);
        assert_eq!(binary.log.log_format, LogFormat::Json);
        assert_eq!(
            binary.log.filter().map(|filter| filter.to_string()).ok().as_deref(),
            Some("kube=debug,warn")
        );
    }

    #[test]
    fn a_wrong_level_is_named() {
        let log = LogArgs {
            log_format: LogFormat::Text,
            log_level: "loud=very=much".to_owned(),
        };
        let error = log.filter().expect_err("not a filter");
        assert!(matches!(error, LogError::Filter { .. }));
        assert!(error.to_string().contains("loud=very=much"), "{error}");
    }

    #[test]
    fn an_unknown_format_is_refused() {
        assert!(Binary::try_parse_from(["x", "--log-format", "xml"]).is_err());
    }
}
