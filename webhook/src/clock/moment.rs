//! A clock for durations: no correction of the machine's clock moves it, and it goes on while the machine is suspended, which
//! [`std::time::Instant`] and timers of tokio do not.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nix::time::{ClockId, clock_gettime};

/// Longest sleep before the clocks are looked at again.
const STEP: Duration = Duration::from_secs(5);

/// A point of that clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The present one.
    pub fn now() -> Self {
        // Every Linux has both; the second does not count suspends.
        let time = clock_gettime(ClockId::CLOCK_BOOTTIME).or_else(|_| clock_gettime(ClockId::CLOCK_MONOTONIC));
        Self(time.map(Duration::from).unwrap_or_default())
    }

    /// How long ago it was.
    pub fn elapsed(self) -> Duration {
        self.until(Self::now())
    }

    /// From this one to a later one.
    pub fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }

    /// A later one.
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

/// Sleeps for `time`, or what is left of it after the machine was suspended or its clock was put right: timers stand still
/// meanwhile, so the clocks are looked at every few seconds.
pub async fn pause(time: Duration) {
    let (begun, machine) = (Moment::now(), Timestamp::now());
    pause_by(time, STEP, || {
        let jump = Timestamp::now().duration_since(machine);
        // Backwards too: nobody knows then how long it was.
        begun.elapsed().max(jump.unsigned_abs())
    })
    .await;
}

async fn pause_by(time: Duration, step: Duration, gone: impl Fn() -> Duration) {
    loop {
        let left = time.saturating_sub(gone());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(step)).await;
    }
}

/// `time` after `date`.
pub fn later(date: Timestamp, time: Duration) -> Timestamp {
    let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    date.checked_add(time).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::{Moment, STEP, pause_by};

    #[test]
    fn it_goes_on() {
        let before = Moment::now();
        std::thread::sleep(Duration::from_millis(20));
        assert!(before.elapsed() >= Duration::from_millis(20));
        assert_eq!(before.after(STEP).until(before), Duration::ZERO);
        assert_eq!(before.until(before.after(STEP)), STEP);
    }

    #[tokio::test]
    async fn a_suspended_machine_does_not_sleep_on() {
        let step = Duration::from_millis(20);
        let begun = Moment::now();
        pause_by(5 * step, step, || begun.elapsed()).await;
        assert!(begun.elapsed() >= 5 * step, "nothing happened");

        let (begun, looks) = (Moment::now(), Cell::new(0));
        // Before the third look the machine is suspended for an hour, in which no timer runs.
        let suspended = || {
            looks.set(looks.get() + 1);
            let hours = u64::from(looks.get() >= 3);
            begun.elapsed() + Duration::from_secs(3600 * hours)
        };
        pause_by(Duration::from_secs(1800), step, suspended).await;
        assert_eq!(looks.get(), 3);
        assert!(begun.elapsed() < Duration::from_secs(1800));
    }
}
