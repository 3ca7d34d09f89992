//! The tables of the page.

use super::page::Page;
use super::record::Layer;
use super::summary::{RuleRow, Summary};
use super::table::minute;

/// What the rules say that refused or were skipped.
pub fn rules(page: &mut Page, rows: &[&RuleRow], limit: usize) {
    if rows.is_empty() {
        return;
    }
    page.raw("<section><h2>What the rules say</h2>");
    let titles = [
        "Rule",
        "Refused",
        "Skipped",
        "Warned",
        "Users refused",
        "What must hold",
    ];
    table(page, &titles, rows, limit, |page, row| {
        page.raw("<td><code>").text(&row.rule).raw("</code></td>");
        for count in [row.refused, row.bypassed, row.warned, row.users] {
            page.raw("<td class=\"n\">").count(count).raw("</td>");
        }
        cell(page, "", row.says);
    });
    page.raw(
        "<p class=\"hint\">Why, with an example and the fix: <code>kubectl tailnet lint --explain RULE</code></p>",
    );
    page.raw("</section>");
}

/// Who was refused what.
pub fn refusals(page: &mut Page, summary: &Summary, limit: usize) {
    page.raw("<section><h2>Who was refused what</h2>");
    if summary.refusals.is_empty() {
        page.raw("<p class=\"empty\">Nobody was refused anything.</p></section>");
        return;
    }
    let titles = [
        "User",
        "Object",
        "Rules",
        "Fields",
        "Times",
        "First and last",
        "Accepted since",
    ];
    table(page, &titles, &summary.refusals, limit, |page, row| {
        cell(page, "u", &row.user);
        cell(page, "o", &row.target.to_string());
        page.raw("<td>");
        codes(page, &row.rules);
        match &row.policy {
            Some(policy) => {
                page.raw("<span class=\"by\">policy ").text(policy).raw("</span>");
            }
            None if row.by != Layer::Webhook => {
                page.raw("<span class=\"by\">").raw(row.by.as_str()).raw("</span>");
            }
            None => {}
        }
        page.raw("</td><td class=\"f\">");
        codes(page, &row.fields);
        page.raw("</td><td class=\"n\">").count(row.times);
        if row.dry_runs > 0 {
            page.raw("<br><span class=\"by\">")
                .count(row.dry_runs)
                .raw(" only tried</span>");
        }
        page.raw("</td><td class=\"t\">").text(&minute(row.first));
        if row.last != row.first {
            page.raw("<br>").text(&minute(row.last));
        }
        page.raw("</td>");
        cell(page, "", if row.accepted_since { "yes" } else { "no" });
    });
    page.raw("</section>");
}

/// Every decision in which a rule was skipped.
pub fn bypasses(page: &mut Page, summary: &Summary, limit: usize) {
    page.raw("<section><h2>Bypasses</h2>");
    if summary.bypasses.is_empty() {
        page.raw("<p class=\"empty\">No rule was skipped.</p></section>");
        return;
    }
    let titles = ["Time", "User", "Groups", "Request", "Rules skipped", "Fields"];
    table(page, &titles, &summary.bypasses, limit, |page, row| {
        cell(page, "t", &minute(row.time));
        cell(page, "u", &row.user);
        cell(page, "", &row.groups.join(", "));
        page.raw("<td class=\"o\">")
            .text(&row.verb)
            .raw(" ")
            .text(&row.target.to_string());
        if row.dry_run {
            page.raw(" <span class=\"by\">only tried</span>");
        }
        page.raw("</td><td>");
        codes(page, &row.rules);
        page.raw("</td><td class=\"f\">");
        codes(page, &row.fields);
        page.raw("</td>");
    });
    page.raw("</section>");
}

/// What could not be decided; nothing where everything was.
pub fn errors(page: &mut Page, summary: &Summary, limit: usize) {
    if summary.errors.is_empty() {
        return;
    }
    page.raw("<section><h2>Not decided</h2>");
    let titles = [
        "Reason",
        "Endpoint",
        "Said by",
        "Times",
        "First and last",
        "Last request",
    ];
    table(page, &titles, &summary.errors, limit, |page, row| {
        page.raw("<td><code>").text(&row.reason).raw("</code></td>");
        cell(page, "", row.endpoint.as_str());
        cell(page, "", row.by.as_str());
        page.raw("<td class=\"n\">")
            .count(row.times)
            .raw("</td><td class=\"t\">")
            .text(&minute(row.first));
        if row.last != row.first {
            page.raw("<br>").text(&minute(row.last));
        }
        page.raw("</td>");
        cell(page, "u", &format!("{}: {}", row.last_user, row.last_target));
    });
    page.raw("</section>");
}

fn table<T>(page: &mut Page, titles: &[&'static str], rows: &[T], limit: usize, row: impl Fn(&mut Page, &T)) {
    page.raw("<div class=\"scroll\"><table><thead><tr>");
    for title in titles {
        page.raw("<th>").raw(title).raw("</th>");
    }
    page.raw("</tr></thead><tbody>");
    let shown = if limit == 0 { rows.len() } else { limit.min(rows.len()) };
    for one in &rows[..shown] {
        page.raw("<tr>");
        row(page, one);
        page.raw("</tr>");
    }
    page.raw("</tbody></table></div>");
    if shown < rows.len() {
        page.raw("<p class=\"hint\">and ").count((rows.len() - shown) as u64);
        page.raw(" more; <code>--limit 0</code> shows all</p>");
    }
}

fn cell(page: &mut Page, class: &'static str, text: &str) {
    page.raw("<td class=\"").raw(class).raw("\">").text(text).raw("</td>");
}

fn codes<'t>(page: &mut Page, texts: impl IntoIterator<Item = &'t String>) {
    for text in texts {
        page.raw("<code>").text(text).raw("</code> ");
    }
}
