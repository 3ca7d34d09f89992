//! The drawings of the page: inline SVG, coloured by the page's style sheet.

use super::page::Page;
use super::printable::printable;
use super::timeline::{Counts, Step, Timeline};

/// Width of the columns' drawing; the page scales it.
const WIDTH: f64 = 1000.0;
/// Width of the bars' drawing, which has half the page.
const BARS_WIDTH: f64 = 560.0;
/// Room for the numbers left of the columns.
const LEFT: f64 = 48.0;

/// A sort of decision as charts show it: class in the style sheet, word, and its count.
pub type Series = (&'static str, &'static str, fn(&Counts) -> u64);

/// All sorts, in the order in which they are stacked.
pub const SERIES: [Series; 5] = [
    ("deny", "refused", |counts| counts.deny),
    ("bypass", "bypassed", |counts| counts.bypass),
    ("error", "not decided", |counts| counts.error),
    ("warn", "warned", |counts| counts.warn),
    ("allow", "allowed", |counts| counts.allow),
];

/// Columns over time, stacked; `height` is that of the columns' area.
pub fn columns(page: &mut Page, timeline: &Timeline, series: &[Series], height: f64, label: &'static str) {
    let sum = |step: &Step| series.iter().map(|(_, _, of)| of(&step.decisions)).sum::<u64>();
    let highest = timeline.steps.iter().map(sum).max().unwrap_or_default();
    let top = nice(highest);
    let (above, below) = (10.0, 26.0);
    let all = above + height + below;
    page.raw("<svg role=\"img\" viewBox=\"0 0 ")
        .number(WIDTH)
        .raw(" ")
        .number(all);
    page.raw("\" aria-label=\"").raw(label).raw("\">");
    for part in 0..=4_u64 {
        // Only whole numbers of decisions: a small chart has fewer lines.
        let value = u128::from(top) * u128::from(part);
        if !value.is_multiple_of(4) {
            continue;
        }
        let y = above + height * (1.0 - as_float(part) / 4.0);
        page.raw("<line class=\"grid\" x1=\"")
            .number(LEFT)
            .raw("\" x2=\"")
            .number(WIDTH);
        page.raw("\" y1=\"").number(y).raw("\" y2=\"").number(y).raw("\"/>");
        page.raw("<text class=\"axis\" text-anchor=\"end\" x=\"")
            .number(LEFT - 8.0);
        page.raw("\" y=\"")
            .number(y + 4.0)
            .raw("\">")
            .text(&(value / 4).to_string())
            .raw("</text>");
    }
    let steps = timeline.steps.len().max(1);
    let room = (WIDTH - LEFT) / as_float(steps as u64);
    let width = (room - 2.0).clamp(1.0, 60.0);
    let every = steps.div_ceil(8);
    for (at, step) in timeline.steps.iter().enumerate() {
        let x = LEFT + room * as_float(at as u64) + (room - width) / 2.0;
        page.raw("<g><title>")
            .text(&step.start.strftime("%Y-%m-%d %H:%M UTC").to_string());
        for (_, word, of) in series {
            page.raw(", ").count(of(&step.decisions)).raw(" ").raw(word);
        }
        page.raw("</title>");
        // So that the title shows over an empty step too.
        rectangle(page, "hover", [x, above, width, height]);
        let mut y = above + height;
        for (class, _, of) in series {
            let part = height * as_float(of(&step.decisions)) / as_float(top.max(1));
            y -= part;
            if part > 0.0 {
                rectangle(page, class, [x, y, width, part]);
            }
        }
        page.raw("</g>");
        if at % every == 0 {
            let format = if timeline.step_minutes >= 1440 {
                "%m-%d"
            } else {
                "%m-%d %H:%M"
            };
            page.raw("<text class=\"axis\" text-anchor=\"middle\" x=\"")
                .number(x + width / 2.0);
            page.raw("\" y=\"").number(all - 6.0).raw("\">");
            page.text(&step.start.strftime(format).to_string()).raw("</text>");
        }
    }
    page.raw("</svg>");
}

/// A row of [`bars`]: what it is about, more words for the pointer, and the parts with their classes.
pub struct Bar {
    /// What it is about.
    pub name: String,
    /// More words.
    pub more: String,
    /// Class and count of each part.
    pub parts: Vec<(&'static str, u64)>,
}

/// Bars with names on the left and the sum on the right.
pub fn bars(page: &mut Page, rows: &[Bar], room_for_names: f64, letters: usize, label: &'static str) {
    const ROW: f64 = 26.0;
    const SUMS: f64 = 48.0;
    let sum = |row: &Bar| row.parts.iter().map(|(_, count)| count).sum::<u64>();
    let longest = rows.iter().map(sum).max().unwrap_or_default().max(1);
    let room = BARS_WIDTH - room_for_names - SUMS;
    page.raw("<svg role=\"img\" viewBox=\"0 0 ").number(BARS_WIDTH).raw(" ");
    page.number(ROW * as_float(rows.len() as u64))
        .raw("\" aria-label=\"")
        .raw(label)
        .raw("\">");
    for (at, row) in rows.iter().enumerate() {
        let y = ROW * as_float(at as u64);
        page.raw("<g><title>")
            .text(&row.name)
            .raw(": ")
            .text(&row.more)
            .raw("</title>");
        rectangle(page, "hover", [0.0, y, BARS_WIDTH, ROW]);
        page.raw("<text x=\"0\" y=\"")
            .number(y + 17.0)
            .raw("\">")
            .text(&end(&row.name, letters))
            .raw("</text>");
        rectangle(page, "track", [room_for_names, y + 5.0, room, ROW - 10.0]);
        let mut x = room_for_names;
        for (class, count) in &row.parts {
            let width = room * as_float(*count) / as_float(longest);
            if *count > 0 {
                rectangle(page, class, [x, y + 5.0, width, ROW - 10.0]);
            }
            x += width;
        }
        page.raw("<text x=\"")
            .number(BARS_WIDTH - SUMS + 10.0)
            .raw("\" y=\"")
            .number(y + 17.0);
        page.raw("\">").count(sum(row)).raw("</text></g>");
    }
    page.raw("</svg>");
}

/// The end of a name, which tells more than its start: `…flux-system:kustomize-controller`.
fn end(name: &str, letters: usize) -> String {
    let shown = printable(name);
    let all = shown.chars().count();
    if all <= letters {
        return shown;
    }
    std::iter::once('…')
        .chain(shown.chars().skip(all + 1 - letters))
        .collect()
}

fn rectangle(page: &mut Page, class: &'static str, [x, y, width, height]: [f64; 4]) {
    page.raw("<rect class=\"")
        .raw(class)
        .raw("\" x=\"")
        .number(x)
        .raw("\" y=\"")
        .number(y);
    page.raw("\" width=\"")
        .number(width)
        .raw("\" height=\"")
        .number(height)
        .raw("\"/>");
}

/// The next number of 1, 2, 4, 5, 8 and 10 times a power of ten: where an axis ends.
fn nice(number: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        for step in [1, 2, 4, 5, 8] {
            if let Some(end) = power.checked_mul(step).filter(|end| *end >= number) {
                return end;
            }
        }
        match power.checked_mul(10) {
            Some(next) => power = next,
            None => return number,
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "places in a drawing")]
fn as_float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::{end, nice};

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(end("abcdef", 6), "abcdef");
        assert_eq!(end("abcdefg", 6), "…cdefg");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (number, end) in [(0, 1), (1, 1), (3, 4), (6, 8), (9, 10), (11, 20), (41, 50), (999, 1000)] {
            assert_eq!(nice(number), end, "{number}");
        }
        assert_eq!(nice(u64::MAX), u64::MAX);
    }
}
