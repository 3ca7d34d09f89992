//! The answer as one HTML page that needs nothing else: no script, no font, no picture from elsewhere.

use super::charts::{self, Bar, SERIES};
use super::html_tables as tables;
use super::page::Page;
use super::summary::Summary;
use super::table::{minute, notices};

/// Most bars of a chart.
const BARS: usize = 12;

/// The whole page; `limit` rows of each table, 0 for all.
pub fn render(summary: &Summary, limit: usize) -> String {
    let mut page = Page::default();
    page.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    // Belt and braces: were an escape missing, nothing would run or load.
    page.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">");
    page.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    page.raw("<title>Admission decisions</title><style>")
        .raw(include_str!("page.css"))
        .raw("</style></head><body><main>");
    head(&mut page, summary);
    if summary.decisions.total() == 0 {
        page.raw("<p class=\"empty\">No decision was read that fits.</p>");
    } else {
        overview(&mut page, summary);
        rules(&mut page, summary, limit);
        tables::refusals(&mut page, summary, limit);
    }
    tables::bypasses(&mut page, summary, limit);
    tables::errors(&mut page, summary, limit);
    foot(&mut page, summary);
    page.raw("</main></body></html>\n");
    page.finish()
}

fn head(page: &mut Page, summary: &Summary) {
    page.raw("<header><h1>Admission decisions</h1><p>");
    if let (Some(from), Some(to)) = (summary.from, summary.to) {
        page.text(&minute(from)).raw(" to ").text(&minute(to)).raw(" UTC. ");
    }
    page.count(summary.decisions.total()).raw(" decisions, ");
    page.count(summary.dry_runs)
        .raw(" of them only tried (<code>--dry-run</code>). Defaults were filled in ");
    page.count(summary.defaults_filled).raw(" times.</p>");
    if !summary.asked.is_empty() {
        page.raw("<p>Asked about: <code>")
            .text(&summary.asked.join(" "))
            .raw("</code></p>");
    }
    page.raw("</header><div class=\"cards\">");
    for (class, word, of) in SERIES {
        page.raw("<div class=\"card\"><span class=\"swatch ")
            .raw(class)
            .raw("\"></span><b>");
        page.count(of(&summary.decisions)).raw("</b> ").raw(word).raw("</div>");
    }
    page.raw("</div>");
    for notice in notices(summary) {
        page.raw("<p class=\"notice\">").text(&notice).raw("</p>");
    }
}

fn overview(page: &mut Page, summary: &Summary) {
    page.raw("<section><h2>Over time</h2><p class=\"hint\">Each column is ");
    page.text(&length(summary.timeline.step_minutes))
        .raw(". Point at one for its numbers.</p><h3>Not simply allowed</h3>");
    charts::columns(
        page,
        &summary.timeline,
        &SERIES[..4],
        160.0,
        "Decisions that were not simply allowed, over time",
    );
    page.raw("<h3>All decisions</h3>");
    charts::columns(page, &summary.timeline, &SERIES, 70.0, "All decisions over time");
    legend(page, &SERIES.map(|(class, word, _)| (class, word)));
    page.raw("</section>");
}

fn legend(page: &mut Page, entries: &[(&'static str, &'static str)]) {
    page.raw("<p class=\"legend\">");
    for (class, word) in entries {
        page.raw("<span><span class=\"swatch ")
            .raw(class)
            .raw("\"></span>")
            .raw(word)
            .raw("</span> ");
    }
    page.raw("</p>");
}

fn rules(page: &mut Page, summary: &Summary, limit: usize) {
    let speaking: Vec<_> = summary
        .rules
        .iter()
        .filter(|row| row.refused + row.bypassed > 0)
        .collect();
    page.raw("<div class=\"two\"><section><h2>Rules that refuse</h2>");
    if speaking.is_empty() {
        page.raw("<p class=\"empty\">None refused, none was skipped.</p>");
    } else {
        let bars: Vec<_> = speaking
            .iter()
            .take(BARS)
            .map(|row| Bar {
                name: row.rule.clone(),
                more: format!("{} refused, {} skipped. {}", row.refused, row.bypassed, row.says),
                parts: vec![("deny", row.refused), ("bypass", row.bypassed)],
            })
            .collect();
        charts::bars(page, &bars, 70.0, 8, "Refusals by rule");
        legend(page, &[("deny", "refused"), ("bypass", "skipped")]);
    }
    page.raw("</section><section><h2>Users who were refused</h2>");
    let refused: Vec<_> = summary.users.iter().filter(|row| row.decisions.deny > 0).collect();
    if refused.is_empty() {
        page.raw("<p class=\"empty\">Nobody.</p>");
    } else {
        let bars: Vec<_> = refused
            .iter()
            .take(BARS)
            .map(|row| Bar {
                name: row.user.clone(),
                more: format!("{} of {} requests refused", row.decisions.deny, row.decisions.total()),
                parts: vec![("deny", row.decisions.deny)],
            })
            .collect();
        charts::bars(page, &bars, 270.0, 36, "Refusals by user");
    }
    page.raw("</section></div>");
    tables::rules(page, &speaking, limit);
}

fn foot(page: &mut Page, summary: &Summary) {
    let read = &summary.read;
    page.raw("<footer><p>Read ")
        .count(read.lines)
        .raw(" lines: ")
        .count(read.stream_lines);
    page.raw(" of the webhook's stream, ")
        .count(read.api_server_events)
        .raw(" events of the API server's audit log, ");
    page.count(read.other_lines)
        .raw(" of something else, ")
        .count(read.broken_lines)
        .raw(" broken. ");
    page.count(read.duplicates)
        .raw(" decisions were in both logs and count once.");
    if let Some(latency) = &summary.latency {
        page.raw(" Time in the webhook: half within ")
            .text(&format!("{:.2}", latency.p50));
        page.raw(" ms, 99 of 100 within ")
            .text(&format!("{:.2}", latency.p99))
            .raw(" ms, longest ");
        page.text(&format!("{:.2}", latency.max)).raw(" ms.");
    }
    page.raw("</p><p>kubectl tailnet ")
        .text(tailnet_process::VERSION)
        .raw("</p></footer>");
}

/// `15 minutes`, `3 hours`, `1 day`
fn length(minutes: i64) -> String {
    let (count, unit) = match minutes {
        _ if minutes % 1440 == 0 => (minutes / 1440, "day"),
        _ if minutes % 60 == 0 => (minutes / 60, "hour"),
        _ => (minutes, "minute"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}
