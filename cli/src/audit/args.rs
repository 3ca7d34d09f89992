//! Flags of `audit`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use tailnet_crds::audit::Decision;

use super::filter::{Pattern, moment};

/// Flags of `audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Logs to read, plain or gzip; - is standard input, and so is no file at all. Both kinds of log may be mixed, also within a file.
    #[arg(value_name = "FILE|-")]
    pub paths: Vec<PathBuf>,
    /// How the answer looks: table for people, json for programs (one object), html for a page that is opened in a browser.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Only decisions since then: a duration before now (30m, 24h, 7d), a date, or a time as in RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<Timestamp>,
    /// Only decisions before then, as --since.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub until: Option<Timestamp>,
    /// Only requests of this user; * stands for any text. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub user: Vec<Pattern>,
    /// Only decisions in which this rule refused, warned or was skipped. May be repeated.
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    pub rule: Vec<String>,
    /// Only objects in this namespace; * stands for any text. May be repeated.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Vec<Pattern>,
    /// Only these decisions (allow, warn, deny, bypass, error). May be repeated.
    #[arg(long, value_name = "DECISION", value_delimiter = ',', value_parser = decision)]
    pub decision: Vec<Decision>,
    /// Leave out requests that only tried (--dry-run=server).
    #[arg(long)]
    pub no_dry_run: bool,
    /// Most rows of each part of the table or page; 0 means all. JSON always has all.
    #[arg(long, value_name = "ROWS", default_value_t = 20)]
    pub limit: usize,
}

/// How the answer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables for a terminal.
    Table,
    /// One JSON object.
    Json,
    /// One self-contained HTML page.
    Html,
}

fn decision(word: &str) -> Result<Decision, String> {
    match word.parse() {
        // Lines of /mutate are counted, not listed: asking for them would find nothing.
        Ok(Decision::Patch) | Err(()) => Err("is not one of allow, warn, deny, bypass, error".to_owned()),
        Ok(decision) => Ok(decision),
    }
}
