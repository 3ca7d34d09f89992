//! Decisions over time, in as many steps as a chart can show.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use tailnet_crds::audit::Decision;

/// Most steps of a chart.
const STEPS: i64 = 60;
/// Lengths of a step, in minutes.
const LENGTHS: [i64; 11] = [1, 2, 5, 10, 15, 30, 60, 180, 360, 720, 1440];

/// How many decisions of each sort.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Allowed without a word.
    pub allow: u64,
    /// Allowed with warnings.
    pub warn: u64,
    /// Refused.
    pub deny: u64,
    /// Allowed because a rule was skipped.
    pub bypass: u64,
    /// Not decided.
    pub error: u64,
}

impl Counts {
    /// Adds one.
    pub fn add(&mut self, decision: Decision) {
        match decision {
            Decision::Allow | Decision::Patch => self.allow += 1,
            Decision::Warn => self.warn += 1,
            Decision::Deny => self.deny += 1,
            Decision::Bypass => self.bypass += 1,
            Decision::Error => self.error += 1,
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.allow + self.warn + self.deny + self.bypass + self.error
    }

    fn plus(&mut self, other: &Self) {
        self.allow += other.allow;
        self.warn += other.warn;
        self.deny += other.deny;
        self.bypass += other.bypass;
        self.error += other.error;
    }
}

/// Decisions by minute.
#[derive(Debug, Default)]
pub struct Minutes(BTreeMap<i64, Counts>);

impl Minutes {
    /// Adds one.
    pub fn add(&mut self, time: Timestamp, decision: Decision) {
        let minute = time.as_second().div_euclid(60);
        self.0.entry(minute).or_default().add(decision);
    }

    /// In steps of equal length, empty ones included; the first starts at a multiple of the length.
    pub fn timeline(&self) -> Timeline {
        let (Some((first, _)), Some((last, _))) = (self.0.first_key_value(), self.0.last_key_value()) else {
            return Timeline::default();
        };
        let fits = |length: &i64| last.div_euclid(*length) - first.div_euclid(*length) < STEPS;
        let length = LENGTHS.into_iter().find(fits).unwrap_or_else(|| {
            // Whole days, as many as it takes; one step less, since the first need not start with the first day.
            let days = (last.div_euclid(1440) - first.div_euclid(1440) + 1).div_euclid(STEPS - 1) + 1;
            days * 1440
        });
        let (start, end) = (first.div_euclid(length), last.div_euclid(length));
        let mut steps: Vec<Step> = (start..=end)
            .filter_map(|step| Timestamp::from_second(step * length * 60).ok())
            .map(|start| Step {
                start,
                decisions: Counts::default(),
            })
            .collect();
        for (minute, counts) in &self.0 {
            let at = usize::try_from(minute.div_euclid(length) - start).unwrap_or_default();
            if let Some(step) = steps.get_mut(at) {
                step.decisions.plus(counts);
            }
        }
        Timeline {
            step_minutes: length,
            steps,
        }
    }
}

/// Decisions in steps of equal length.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Length of a step.
    pub step_minutes: i64,
    /// All steps from the first decision to the last.
    pub steps: Vec<Step>,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Its start.
    pub start: Timestamp,
    /// What was decided in it.
    #[serde(flatten)]
    pub decisions: Counts,
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tailnet_crds::audit::Decision;

    use super::{Minutes, STEPS, Timeline};

    fn timeline(minutes: &[i64]) -> Timeline {
        let mut all = Minutes::default();
        for minute in minutes {
            all.add(Timestamp::from_second(minute * 60 + 7).unwrap(), Decision::Deny);
        }
        all.timeline()
    }

    #[test]
    fn steps_are_as_long_as_the_chart_needs_and_lose_nothing() {
        assert_eq!(timeline(&[]), Timeline::default());
        assert_eq!(timeline(&[28_000_000]).steps.len(), 1);
        for (span, length) in [
            (59, 1),
            (60, 2),
            (600, 15),
            (10_000, 180),
            (200_000, 4320),
            (5_000_000, 84_960),
        ] {
            let minutes: Vec<_> = (0..=span)
                .step_by(7)
                .chain([span])
                .map(|minute| 28_000_000 + minute)
                .collect();
            let timeline = timeline(&minutes);
            assert_eq!(timeline.step_minutes, length, "{span}");
            assert!(i64::try_from(timeline.steps.len()).unwrap() <= STEPS, "{span}");
            let sum: u64 = timeline.steps.iter().map(|step| step.decisions.deny).sum();
            assert_eq!(sum, minutes.len() as u64, "{span}");
            assert_eq!(timeline.steps[0].start.as_second() % (length * 60), 0);
        }
    }
}
