//! The API server's clock.
//!
//! The API server is who checks our certificate, so its clock decides when one begins and ends, and all replicas agree on it.
//! This machine's clock may be wrong by months (a node without NTP, a flat battery): it must neither break admission nor
//! rotate certificates in a loop. Each answer's `Date` says what time it is there ([`client`]); between answers the time
//! goes on with a clock that no correction of the machine's moves ([`moment`]).
//!
//! What an answer told is not believed for ever either: one wrong `Date` must not shut this process out. When handshakes fail
//! for the time, or no answer has come for a while, the other clocks count again beside it.

pub mod client;
pub mod moment;
mod token;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use prometheus_client::metrics::gauge::Gauge;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

use moment::{Moment, later};
pub use token::Token;

/// A difference up to this is nothing to talk about: the machine's clock counts then, which is finer than a `Date`.
const QUIET: SignedDuration = SignedDuration::from_mins(1);
/// A token that is this much older or newer than the machine's clock says is a hint that the clock is wrong: kubelet renews
/// it within the hour. Times that are nearer than this are one and the same to a handshake.
const TOKEN_AGE: SignedDuration = SignedDuration::from_hours(1);
/// No token that kubelet renews is older.
const OLDEST_TOKEN: SignedDuration = SignedDuration::from_hours(24);
/// No API server that runs this software lives outside these years: such a `Date` is a fault of something in between.
const YEARS: (i16, i16) = (2025, 2125);
/// So many handshakes that fail for the time, and what was heard before is in doubt.
const FAILURES: u32 = 2;
/// So long without an answer, and what was heard is in doubt: the certificate keeper asks every half minute.
const SILENCE: Duration = Duration::from_secs(60);

/// The API server's time, as far as its answers told it; until the first one, this machine's. Clones share it.
#[derive(Clone, Default)]
pub struct ApiClock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    heard: Mutex<Option<Heard>>,
    token: OnceLock<Token>,
    /// Handshakes since the last answer that failed for the time.
    failures: AtomicU32,
    /// Times that were given to handshakes while there was a choice.
    turns: AtomicU64,
    difference: OnceLock<Gauge>,
}

struct Heard {
    date: Timestamp,
    at: Moment,
    /// The difference to this machine's clock that was last written to the log.
    told: SignedDuration,
}

/// What this machine's clocks show.
#[derive(Clone, Copy)]
struct Machine {
    time: Timestamp,
    moment: Moment,
}

impl Machine {
    fn now() -> Self {
        Self {
            time: Timestamp::now(),
            moment: Moment::now(),
        }
    }
}

/// What was heard, brought up to now.
#[derive(Clone, Copy)]
struct Known {
    time: Timestamp,
    doubted: bool,
}

impl fmt::Debug for ApiClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ApiClock").field(&self.now()).finish()
    }
}

impl ApiClock {
    /// The time at the API server.
    pub fn now(&self) -> Timestamp {
        self.at(Machine::now())
    }

    fn at(&self, machine: Machine) -> Timestamp {
        match self.known(machine) {
            Some(known) if known.time.duration_since(machine.time).abs() <= QUIET => machine.time,
            Some(known) if !known.doubted || self.token_vouches(known.time) => known.time,
            _ => machine.time,
        }
    }

    /// Whether an answer has told the time.
    pub fn is_known(&self) -> bool {
        self.known(Machine::now()).is_some()
    }

    /// Where the difference to this machine's clock goes, in seconds (API server minus machine).
    pub fn report_to(&self, gauge: Gauge) {
        // A second reporter would be a mistake of the wiring; the first stays.
        let _ = self.0.difference.set(gauge);
    }

    /// The token with which this process shows itself to the API server, which says when it was made.
    pub fn set_token(&self, token: Token) {
        let _ = self.0.token.set(token);
    }

    /// Takes the `Date` of an answer (RFC 9110: `Tue, 01 Dec 2026 09:00:00 GMT`).
    pub fn heard_date(&self, header: &str) {
        let Ok(date) = jiff::fmt::rfc2822::parse(header) else {
            tracing::debug!(header, "an answer of the API server has a Date that is none");
            return;
        };
        if !(YEARS.0..YEARS.1).contains(&date.year()) {
            tracing::debug!(header, "the Date of an answer cannot be the API server's time");
            return;
        }
        self.set(date.timestamp(), Machine::now());
    }

    /// A handshake failed because the API server's certificate is not valid at the time that it was checked at.
    pub fn failed_for_the_time(&self) {
        // One fewer than the largest, so that it never starts anew.
        let _ = self
            .0
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_add(1));
    }

    fn set(&self, date: Timestamp, machine: Machine) {
        let difference = date.duration_since(machine.time);
        if let Some(gauge) = self.0.difference.get() {
            gauge.set(difference.as_secs());
        }
        let mut heard = self.0.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let told = heard.as_ref().map_or(SignedDuration::ZERO, |heard| heard.told);
        let news = (difference - told).abs() > QUIET;
        *heard = Some(Heard {
            date,
            at: machine.moment,
            told: if news { difference } else { told },
        });
        drop(heard);
        self.0.failures.store(0, Ordering::Relaxed);
        if !news {
            return;
        }
        let seconds = difference.as_secs();
        if difference.abs() > QUIET {
            tracing::warn!(
                api_server = %date, machine = %machine.time, difference_seconds = seconds,
                "this machine's clock differs from the API server's; certificates and ages go by the API server's. Set the node's clock (NTP)"
            );
        } else {
            tracing::info!(
                difference_seconds = seconds,
                "this machine's clock agrees with the API server's again"
            );
        }
    }

    fn known(&self, machine: Machine) -> Option<Known> {
        let heard = self.0.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = heard.as_ref()?;
        let since = heard.at.until(machine.moment);
        Some(Known {
            time: later(heard.date, since),
            doubted: since > SILENCE || self.0.failures.load(Ordering::Relaxed) >= FAILURES,
        })
    }

    /// When our token was made, by the API server.
    fn token_made(&self) -> Option<Timestamp> {
        self.0.token.get().and_then(Token::made)
    }

    /// Whether our token may be in use at `time`.
    fn token_vouches(&self, time: Timestamp) -> bool {
        self.token_made().is_some_and(|made| {
            let age = time.duration_since(made);
            -TOKEN_AGE <= age && age <= OLDEST_TOKEN
        })
    }

    /// The time by which the API server's own certificate is checked.
    ///
    /// Without an answer, or with one that is in doubt, there are several clocks to try: what was heard, this machine's, and
    /// the moment at which our token was made (by the API server, and handed to us by kubelet). All can be trusted, each may be
    /// wrong or old, so handshakes try them in turn; the first that succeeds brings the right time.
    fn for_handshake(&self, machine: Machine) -> Timestamp {
        let known = self.known(machine);
        if let Some(known) = known.filter(|known| !known.doubted) {
            return known.time;
        }
        let mut times: Vec<Timestamp> = Vec::with_capacity(3);
        for time in [known.map(|known| known.time), Some(machine.time), self.token_made()]
            .into_iter()
            .flatten()
        {
            if times.iter().all(|other| time.duration_since(*other).abs() > TOKEN_AGE) {
                times.push(time);
            }
        }
        if times.len() < 2 {
            return times.first().copied().unwrap_or(machine.time);
        }
        let turn = self.0.turns.fetch_add(1, Ordering::Relaxed);
        times[spread(turn, times.len())]
    }
}

/// Index number `turn` of a sequence in which each of `count` comes up equally often, and also in every second and every third
/// number of it: a handshake may ask for the time more than once, and several handshakes go on at the same time.
fn spread(turn: u64, count: usize) -> usize {
    // The golden ratio, as a fraction of 2^64.
    let place = u128::from(turn.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    // Less than `count`.
    usize::try_from((place * count as u128) >> 64).unwrap_or_default()
}

impl TimeProvider for ApiClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.for_handshake(Machine::now()).as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use prometheus_client::metrics::gauge::Gauge;

    use super::{ApiClock, FAILURES, Machine, Moment, SILENCE, Token, spread};

    fn machine(time: Timestamp) -> Machine {
        Machine {
            time,
            moment: Moment::now(),
        }
    }

    fn passes(machine: Machine, time: Duration) -> Machine {
        Machine {
            time: super::later(machine.time, time),
            moment: machine.moment.after(time),
        }
    }

    fn token(made: Timestamp) -> Token {
        Token::from_text(&super::token::tests::token(made))
    }

    fn days(count: i64) -> SignedDuration {
        SignedDuration::from_hours(24 * count)
    }

    #[test]
    fn the_machines_clock_counts_until_an_answer_comes() {
        let clock = ApiClock::default();
        assert!(!clock.is_known());
        assert!(clock.now().duration_since(Timestamp::now()).abs() < SignedDuration::from_secs(5));
        let gauge = Gauge::default();
        clock.report_to(gauge.clone());
        clock.heard_date("Sun, 06 Nov 2033 08:49:37 GMT");
        assert!(clock.is_known());
        let date: Timestamp = "2033-11-06T08:49:37Z".parse().expect("time");
        let since = clock.now().duration_since(date);
        assert!(
            since >= SignedDuration::ZERO && since < SignedDuration::from_mins(1),
            "{since}"
        );
        assert!(gauge.get() > 0);
    }

    #[test]
    fn a_clock_that_is_right_is_finer_than_a_date() {
        let clock = ApiClock::default();
        let machine = Machine::now();
        clock.set(machine.time - SignedDuration::from_secs(3), machine);
        assert!(clock.is_known() && clock.now() >= machine.time, "it does not go back");
    }

    #[test]
    fn what_is_no_date_of_an_api_server_is_ignored() {
        let clock = ApiClock::default();
        for header in [
            "",
            "yesterday",
            "2033-11-06T08:49:37Z",
            "Thu, 01 Jan 1970 00:00:00 GMT",
            "Fri, 31 Dec 9999 23:59:59 GMT",
        ] {
            clock.heard_date(header);
            assert!(!clock.is_known(), "{header}");
        }
    }

    #[test]
    fn before_the_first_answer_handshakes_try_machine_and_token_in_turn() {
        let now = machine("2026-12-01T00:00:00Z".parse().expect("time"));
        let made = now.time + days(395);
        let clock = ApiClock::default();
        clock.set_token(token(made));
        let tried: Vec<_> = (0..4).map(|_| clock.for_handshake(now)).collect();
        assert_eq!(tried, [now.time, made, now.time, made]);
        clock.set(made, now);
        assert_eq!(clock.for_handshake(now), made);

        let near = ApiClock::default();
        near.set_token(token(now.time - SignedDuration::from_mins(40)));
        assert!(
            (0..4).all(|_| near.for_handshake(now) == now.time),
            "a usual age is no hint"
        );
    }

    #[test]
    fn one_wrong_date_is_doubted_after_failures_or_silence() {
        let now = machine("2026-12-01T00:00:00Z".parse().expect("time"));
        let (wrong, made) = (now.time + days(3650), now.time - days(30));
        let heard = || {
            let clock = ApiClock::default();
            clock.set(wrong, now);
            assert_eq!((clock.for_handshake(now), clock.at(now)), (wrong, wrong));
            clock
        };
        let tried = |clock: &ApiClock, now: Machine| {
            let mut times: Vec<_> = (0..12).map(|_| clock.for_handshake(now)).collect();
            times.sort_unstable();
            times.dedup();
            times
        };
        let failed = heard();
        for _ in 0..FAILURES {
            assert_eq!(tried(&failed, now), [wrong], "one failure may have another reason");
            failed.failed_for_the_time();
        }
        assert_eq!(tried(&failed, now), [now.time, wrong]);
        assert_eq!(failed.at(now), now.time);
        failed.set_token(token(made));
        assert_eq!(tried(&failed, now), [made, now.time, wrong]);
        failed.set(now.time, now);
        assert_eq!(tried(&failed, now), [now.time], "the next answer counts");

        let silent = heard();
        let soon = passes(now, SILENCE);
        assert_eq!(tried(&silent, soon).len(), 1);
        let late = passes(now, SILENCE + Duration::from_secs(1));
        assert_eq!(
            tried(&silent, late),
            [late.time, super::later(wrong, SILENCE + Duration::from_secs(1))]
        );
        assert_eq!(silent.at(late), late.time);
    }

    #[test]
    fn a_silent_api_server_does_not_make_a_wrong_machine_right() {
        let now = machine("2026-12-01T00:00:00Z".parse().expect("time"));
        let right = now.time + days(395);
        let clock = ApiClock::default();
        clock.set_token(token(right - SignedDuration::from_mins(20)));
        clock.set(right, now);
        let hour = Duration::from_secs(3600);
        // Or after a suspend, in which it did not ask: the time has gone on.
        assert_eq!(clock.at(passes(now, hour)), super::later(right, hour));
    }

    #[test]
    fn every_choice_comes_up_whichever_numbers_are_taken() {
        for count in [2, 3] {
            for (stride, first) in [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (12, 5)] {
                for start in (0..300).step_by(7) {
                    let mut seen = vec![false; count];
                    for number in 0..12 {
                        seen[spread(start + first + number * stride, count)] = true;
                    }
                    assert!(seen.iter().all(|seen| *seen), "{count} {stride} {first} {start}");
                }
            }
        }
    }
}
