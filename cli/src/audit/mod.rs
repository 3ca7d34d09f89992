//! `audit`: what was decided at admission, from the webhook's stream or the API server's audit log.

mod api_server;
mod args;
mod charts;
mod filter;
mod html;
mod html_tables;
mod input;
mod page;
pub(crate) mod printable;
mod read;
mod record;
mod stream;
mod summary;
mod table;
mod timeline;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

pub use args::AuditArgs;
use args::Output;
use filter::Filter;
use read::Reader;
use summary::Builder;

/// Reads and prints; the exit status is described in the help.
pub fn run(args: &AuditArgs) -> ExitCode {
    let standard_input = [PathBuf::from("-")];
    let paths = if args.paths.is_empty() {
        &standard_input[..]
    } else {
        &args.paths
    };
    if paths.iter().any(|path| path == "-") && std::io::stdin().is_terminal() {
        eprintln!(
            "kubectl tailnet: reading from the terminal; give a file, or: kubectl logs … | kubectl tailnet audit"
        );
    }
    let filter = Filter(args);
    let mut builder = Builder::default();
    let mut reader = Reader::new(|record| {
        if filter.fits(&record) {
            builder.add(record);
        }
    });
    let mut failed = false;
    for path in paths {
        if let Err(error) = reader.log(path) {
            eprintln!("kubectl tailnet: {error}");
            failed = true;
        }
    }
    let tally = reader.finish();
    for problem in &tally.problems {
        eprintln!("kubectl tailnet: {}", printable::printable(problem));
    }
    let unnamed = tally.broken_lines - tally.problems.len() as u64;
    if unnamed > 0 {
        eprintln!("kubectl tailnet: and {unnamed} more lines that cannot be read");
    }
    if tally.stream_lines + tally.api_server_events == 0 {
        eprintln!(
            "kubectl tailnet: no admission decision in {} lines: is this the webhook's output (--audit-log) or the API server's audit log?",
            tally.lines
        );
    }
    let summary = builder.finish(filter.words(), tally);
    let text = match args.output {
        Output::Table => table::render(&summary, args.limit),
        Output::Html => html::render(&summary, args.limit),
        Output::Json => match serde_json::to_string_pretty(&summary) {
            Ok(text) => text + "\n",
            Err(error) => {
                eprintln!("kubectl tailnet: the answer cannot be written as JSON: {error}");
                return ExitCode::from(2);
            }
        },
    };
    // A reader that has seen enough (`| head`) is no fault.
    let written = std::io::stdout().write_all(text.as_bytes());
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("kubectl tailnet: cannot write the answer: {error}");
        failed = true;
    }
    if failed { ExitCode::from(2) } else { ExitCode::SUCCESS }
}
