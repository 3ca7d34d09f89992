//! What the demo tells: numbered steps, the commands a person would type, what came back, and how long it took.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Widest line of an account.
const WIDTH: usize = 118;

/// The account of one run.
pub struct Account {
    start: Instant,
    steps: Vec<(String, Duration)>,
}

impl Account {
    /// Begins an account.
    pub fn begin(title: &str) -> Self {
        println!("\n{title}\n{}", "=".repeat(title.len()));
        Self {
            start: Instant::now(),
            steps: Vec::new(),
        }
    }

    /// One step. Its failure names it.
    pub fn step<T>(&mut self, title: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let number = self.steps.len() + 1;
        println!("\n{number}. {title}");
        let start = Instant::now();
        let value = act().with_context(|| format!("step {number} failed: {title}"))?;
        let took = start.elapsed();
        println!("   done in {:.1} s", took.as_secs_f64());
        self.steps.push((title.to_owned(), took));
        Ok(value)
    }

    /// The steps with their times.
    pub fn summary(&self) {
        println!(
            "\nAll {} steps went as they should, {:.1} s in all:",
            self.steps.len(),
            self.start.elapsed().as_secs_f64()
        );
        for (number, (title, took)) in self.steps.iter().enumerate() {
            println!("  {:>2}. {title:<92} {:>6.1} s", number + 1, took.as_secs_f64());
        }
    }
}

/// A command as a person would type it.
pub fn command(text: &str) {
    for (number, line) in text.lines().enumerate() {
        println!("   {} {line}", if number == 0 { '$' } else { ' ' });
    }
}

/// What a program answered, or what just happened.
pub fn says(text: &str) {
    for line in text.trim_end().lines() {
        let mut rest = line;
        // A denial is one long line; a terminal would break it anywhere.
        while rest.chars().count() > WIDTH {
            let limit = rest.char_indices().nth(WIDTH).map_or(rest.len(), |(index, _)| index);
            let cut = rest[..limit].rfind(' ').filter(|cut| *cut > 0).unwrap_or(limit);
            println!("   | {}", &rest[..cut]);
            rest = rest[cut..].trim_start();
        }
        println!("   | {rest}");
    }
}
