//! Rounds, medians, the table and the file of a benchmark.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better: times, memory.
    Lower,
}

/// One measured thing, ours beside the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was done.
    pub case: String,
    /// What was measured.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// Median of our rounds.
    pub ours: f64,
    /// Our best and worst round by value.
    pub ours_min: f64,
    /// See `ours_min`.
    pub ours_max: f64,
    /// Median of the reference's rounds.
    pub reference: f64,
    /// Smallest value of the reference.
    pub reference_min: f64,
    /// Largest value of the reference.
    pub reference_max: f64,
    /// What the reference is.
    pub reference_name: &'static str,
    /// Median of the per-round ratios ours / reference.
    pub ratio: f64,
}

/// Runs both sides once per round, in turn, and swaps who goes first: what else the machine does hits both alike.
pub fn interleave(
    rounds: u32,
    mut ours: impl FnMut() -> Result<f64>,
    mut reference: impl FnMut() -> Result<f64>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            a.push(ours()?);
            b.push(reference()?);
        } else {
            b.push(reference()?);
            a.push(ours()?);
        }
    }
    Ok((a, b))
}

impl Row {
    /// A row of a metric of which less is better.
    pub fn lower(
        case: impl Into<String>,
        metric: &'static str,
        unit: &'static str,
        (ours, reference): (Vec<f64>, Vec<f64>),
        reference_name: &'static str,
    ) -> Self {
        let ratios = ours.iter().zip(&reference).map(|(a, b)| a / b).collect::<Vec<_>>();
        Self {
            case: case.into(),
            metric,
            unit,
            better: Better::Lower,
            ours: median(&ours),
            ours_min: least(&ours),
            ours_max: most(&ours),
            reference: median(&reference),
            reference_min: least(&reference),
            reference_max: most(&reference),
            reference_name,
            ratio: median(&ratios),
        }
    }
}

/// The middle value, or the mean of the two in the middle; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (Some(value), 1) => *value,
        (Some(value), _) => (sorted.get(middle.saturating_sub(1)).unwrap_or(value) + value) / 2.0,
        (None, _) => f64::NAN,
    }
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Prints the table.
pub fn print(name: &str, rows: &[Row]) {
    println!("bench {name}: medians of interleaved rounds [min - max]\n");
    println!("{:<20} {:>36} {:>36} {:>8}", "", "ours", "reference", "ratio");
    for row in rows {
        let side = |median: f64, min: f64, max: f64| format!("{median:.2} [{min:.2} - {max:.2}] {}", row.unit);
        println!("{}; reference: {}", row.case, row.reference_name);
        println!(
            "{:<20} {:>36} {:>36} {:>7.2}x",
            format!("  {}", row.metric),
            side(row.ours, row.ours_min, row.ours_max),
            side(row.reference, row.reference_min, row.reference_max),
            row.ratio
        );
    }
}

/// Writes the rows as a JSON array.
pub fn write(path: &Path, rows: &[Row]) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, serde_json::to_string_pretty(rows)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Row, interleave};

    #[test]
    fn medians_ranges_and_ratio() {
        let row = Row::lower(
            "case",
            "time",
            "us",
            (vec![3.0, 1.0, 2.0, 10.0], vec![1.0, 1.0, 1.0, 2.0]),
            "other",
        );
        assert_eq!((row.ours, row.ours_min, row.ours_max), (2.5, 1.0, 10.0));
        assert_eq!((row.reference, row.ratio), (1.0, 2.5));
    }

    #[test]
    fn rounds_alternate() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: char| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Ok(1.0)
            }
        };
        interleave(3, side('a'), side('b')).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
    }
}
