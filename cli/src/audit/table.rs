//! The answer as tables for a terminal.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::printable::{printable, short};
use super::summary::Summary;

/// Longest cell, in characters; the rest is in the JSON output.
const CELL: usize = 64;

/// The whole answer; `limit` rows of each table, 0 for all.
pub fn render(summary: &Summary, limit: usize) -> String {
    let mut out = String::new();
    head(summary, &mut out);
    let rows = summary.rules.iter().filter(|row| row.refused + row.bypassed > 0);
    let rows = rows.map(|row| {
        vec![
            row.rule.clone(),
            row.refused.to_string(),
            row.bypassed.to_string(),
            row.users.to_string(),
            row.says.to_owned(),
        ]
    });
    let titles = ["RULE", "REFUSED", "BYPASSED", "USERS", "WHAT MUST HOLD"];
    table("Rules that refuse", &titles, rows.collect(), limit, &mut out);

    let rows = summary.refusals.iter().map(|row| {
        let mut rules = row.rules.join(" ");
        if let Some(policy) = &row.policy {
            rules = format!("policy {policy}");
        }
        let times = match row.dry_runs {
            0 => row.times.to_string(),
            tried if tried == row.times => format!("{tried} (only tried)"),
            tried => format!("{} ({tried} only tried)", row.times),
        };
        let fields: Vec<_> = row.fields.iter().map(String::as_str).collect();
        vec![
            row.user.clone(),
            row.target.to_string(),
            rules,
            fields.join(" "),
            times,
            minute(row.last),
            if row.accepted_since { "yes" } else { "no" }.to_owned(),
        ]
    });
    let titles = ["USER", "OBJECT", "RULES", "FIELDS", "TIMES", "LAST", "ACCEPTED SINCE"];
    table("Who was refused what", &titles, rows.collect(), limit, &mut out);

    let rows = summary.bypasses.iter().map(|row| {
        vec![
            minute(row.time),
            row.user.clone(),
            format!(
                "{} {}{}",
                row.verb,
                row.target,
                if row.dry_run { " (only tried)" } else { "" }
            ),
            row.rules.join(" "),
            row.fields.join(" "),
        ]
    });
    let titles = ["TIME", "USER", "REQUEST", "RULES SKIPPED", "FIELDS"];
    table("Bypasses", &titles, rows.collect(), limit, &mut out);

    let rows = summary.errors.iter().map(|row| {
        vec![
            row.reason.clone(),
            row.endpoint.as_str().to_owned(),
            row.by.as_str().to_owned(),
            row.times.to_string(),
            minute(row.last),
            format!("{}: {}", row.last_user, row.last_target),
        ]
    });
    let titles = ["REASON", "ENDPOINT", "SAID BY", "TIMES", "LAST", "LAST REQUEST"];
    table("Not decided", &titles, rows.collect(), limit, &mut out);
    tail(summary, &mut out);
    out
}

fn head(summary: &Summary, out: &mut String) {
    let counts = &summary.decisions;
    let period = match (summary.from, summary.to) {
        (Some(from), Some(to)) => format!(", {} to {} UTC", minute(from), minute(to)),
        _ => String::new(),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{} decisions{period}: {} refused, {} bypassed, {} not decided, {} warned, {} allowed",
        counts.total(),
        counts.deny,
        counts.bypass,
        counts.error,
        counts.warn,
        counts.allow
    );
    let _ = writeln!(
        out,
        "{} of them only tried (--dry-run); defaults were filled in {} times",
        summary.dry_runs, summary.defaults_filled
    );
    if !summary.asked.is_empty() {
        let _ = writeln!(out, "asked about: {}", printable(&summary.asked.join(" ")));
    }
    if let Some(latency) = &summary.latency {
        let _ = writeln!(
            out,
            "time in the webhook: half within {:.2} ms, 99 of 100 within {:.2} ms, longest {:.2} ms",
            latency.p50, latency.p99, latency.max
        );
    }
}

fn tail(summary: &Summary, out: &mut String) {
    let read = &summary.read;
    let _ = writeln!(
        out,
        "\nRead: {} lines: {} of the webhook's stream, {} events of the API server, {} of something else, {} broken; {} decisions were in both logs",
        read.lines, read.stream_lines, read.api_server_events, read.other_lines, read.broken_lines, read.duplicates
    );
    for notice in notices(summary) {
        let _ = writeln!(out, "Note: {notice}");
    }
}

/// What makes the answer incomplete.
pub fn notices(summary: &Summary) -> Vec<String> {
    let read = &summary.read;
    let mut notices = Vec::new();
    let mut note = |count: u64, what: &str, so: &str| {
        if count > 0 {
            notices.push(format!("{what}: {count}. {so}"));
        }
    };
    note(
        read.lost,
        "Decisions that the webhook could not write into its stream in time",
        "The API server's audit log has them.",
    );
    note(
        read.unasked,
        "Writes that were stored without asking the webhook",
        "It was not installed then, or only finalizers of a deleted object changed.",
    );
    note(
        read.broken_lines,
        "Lines that look like audit records and cannot be read",
        "Decisions may be missing.",
    );
    notices
}

/// `2026-11-30 12:00:07`
pub fn minute(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn table(title: &str, titles: &[&str], mut rows: Vec<Vec<String>>, limit: usize, out: &mut String) {
    let _ = writeln!(out, "\n{title}");
    if rows.is_empty() {
        let _ = writeln!(out, "  none");
        return;
    }
    let all = rows.len();
    if limit > 0 {
        rows.truncate(limit);
    }
    let last = titles.len() - 1;
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            row.iter()
                .enumerate()
                // The last column may be as long as it likes.
                .map(|(at, cell)| if at == last { printable(cell) } else { short(cell, CELL) })
                .collect()
        })
        .collect();
    let width = |at: usize| {
        let longest = cells.iter().map(|row| row[at].chars().count()).max();
        longest.unwrap_or_default().max(titles[at].len())
    };
    let widths: Vec<_> = (0..titles.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<_> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(out, "  {}", padded.join("  ").trim_end());
    };
    line(&mut titles.iter().copied());
    for row in &cells {
        line(&mut row.iter().map(String::as_str));
    }
    if rows.len() < all {
        let _ = writeln!(out, "  and {} more; --limit 0 shows all", all - rows.len());
    }
}
