//! What libtest prints, added up.

/// What test binaries said.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were not run.
    pub skipped: u64,
    /// Names of those that failed.
    pub names: Vec<String>,
}

impl Totals {
    /// The sum of both.
    pub fn and(mut self, other: Totals) -> Totals {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.names.extend(other.names);
        self
    }

    /// Reads one line of libtest's output.
    pub fn read(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let mut words = rest.split([' ', ';', '.']).filter(|word| !word.is_empty()).peekable();
            while let Some(word) = words.next() {
                let Ok(number) = word.parse::<u64>() else { continue };
                match words.peek().copied() {
                    Some("passed") => self.passed += number,
                    Some("failed") => self.failed += number,
                    Some("ignored") => self.skipped += number,
                    _ => {}
                }
            }
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.names.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Totals;

    #[test]
    fn libtest_lines_are_added_up() {
        let mut totals = Totals::default();
        for line in [
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s",
            "test rules::tn203 ... FAILED",
            "test other ... ok",
            "test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.25s",
        ] {
            totals.read(line);
        }
        assert_eq!(
            totals,
            Totals {
                passed: 7,
                failed: 1,
                skipped: 1,
                names: vec!["rules::tn203".to_owned()]
            }
        );
    }
}
