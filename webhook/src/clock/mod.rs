//! The API server's clock.
//!
//! The API server is who checks our certificate, so its clock decides when one begins and ends, and all replicas agree on it.
//! This machine's clock may be wrong by months (a node without NTP, a flat battery): it must neither break admission nor
//! rotate certificates in a loop. Each answer's `Date` says what time it is there ([`client`]); between answers the time
//! goes on with the monotonic clock, which no correction of the machine's clock moves.

pub mod client;
mod token;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use prometheus_client::metrics::gauge::Gauge;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

pub use token::Token;

/// A difference up to this is nothing to talk about: the machine's clock counts then, which is finer than a `Date`.
const QUIET: SignedDuration = SignedDuration::from_mins(1);
/// A token that is this much older or newer than the machine's clock says is a hint that the clock is wrong: kubelet renews
/// it within the hour.
const TOKEN_AGE: SignedDuration = SignedDuration::from_hours(1);
/// No API server that runs this software lives outside these years: such a `Date` is a fault of something in between.
const YEARS: (i16, i16) = (2025, 2125);

/// The API server's time, as far as its answers told it; until the first one, this machine's. Clones share it.
#[derive(Clone, Default)]
pub struct ApiClock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    heard: Mutex<Option<Heard>>,
    token: OnceLock<Token>,
    handshakes: AtomicUsize,
    difference: OnceLock<Gauge>,
}

struct Heard {
    date: Timestamp,
    at: Instant,
    /// The difference to this machine's clock that was last written to the log.
    told: SignedDuration,
}

impl Heard {
    fn now(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.at.elapsed()).unwrap_or(SignedDuration::MAX);
        self.date.checked_add(since).unwrap_or(Timestamp::MAX)
    }
}

impl fmt::Debug for ApiClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ApiClock").field(&self.now()).finish()
    }
}

impl ApiClock {
    /// The time at the API server.
    pub fn now(&self) -> Timestamp {
        let machine = Timestamp::now();
        match self.heard() {
            Some(heard) if heard.duration_since(machine).abs() > QUIET => heard,
            _ => machine,
        }
    }

    /// Whether an answer has told the time.
    pub fn is_known(&self) -> bool {
        self.heard().is_some()
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
        self.set(date.timestamp(), Timestamp::now());
    }

    fn set(&self, date: Timestamp, machine: Timestamp) {
        let difference = date.duration_since(machine);
        if let Some(gauge) = self.0.difference.get() {
            gauge.set(difference.as_secs());
        }
        let mut heard = self.0.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let told = heard.as_ref().map_or(SignedDuration::ZERO, |heard| heard.told);
        let news = (difference - told).abs() > QUIET;
        *heard = Some(Heard {
            date,
            at: Instant::now(),
            told: if news { difference } else { told },
        });
        drop(heard);
        if !news {
            return;
        }
        let seconds = difference.as_secs();
        if difference.abs() > QUIET {
            tracing::warn!(
                api_server = %date, machine = %machine, difference_seconds = seconds,
                "this machine's clock differs from the API server's; certificates and ages go by the API server's. Set the node's clock (NTP)"
            );
        } else {
            tracing::info!(
                difference_seconds = seconds,
                "this machine's clock agrees with the API server's again"
            );
        }
    }

    fn heard(&self) -> Option<Timestamp> {
        let heard = self.0.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.as_ref().map(Heard::now)
    }

    /// The time by which the API server's own certificate is checked.
    ///
    /// Before its first answer there are two clocks to try: this machine's, and the moment at which our token was made (by
    /// the API server, and handed to us by kubelet). Both can be trusted, either may be wrong or old, so handshakes try them
    /// in turn; the first that succeeds brings the right time.
    fn for_handshake(&self, machine: Timestamp) -> Timestamp {
        if let Some(heard) = self.heard() {
            return heard;
        }
        let made = self.0.token.get().and_then(Token::made);
        match made {
            Some(made) if made.duration_since(machine).abs() > TOKEN_AGE => {
                let turn = self.0.handshakes.fetch_add(1, Ordering::Relaxed);
                if turn.is_multiple_of(2) { machine } else { made }
            }
            _ => machine,
        }
    }
}

impl TimeProvider for ApiClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.for_handshake(Timestamp::now()).as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use prometheus_client::metrics::gauge::Gauge;

    use super::{ApiClock, Token};

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
        let machine = Timestamp::now();
        clock.set(machine - SignedDuration::from_secs(3), machine);
        assert!(clock.is_known() && clock.now() >= machine, "it does not go back");
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
        let machine: Timestamp = "2026-12-01T00:00:00Z".parse().expect("time");
        let made = machine + days(395);
        let clock = ApiClock::default();
        clock.set_token(Token::from_text(&super::token::tests::token(made)));
        let tried: Vec<_> = (0..4).map(|_| clock.for_handshake(machine)).collect();
        assert_eq!(tried, [machine, made, machine, made]);
        clock.set(made, machine);
        assert!(clock.for_handshake(machine).duration_since(made).abs() < SignedDuration::from_mins(1));

        let near = ApiClock::default();
        near.set_token(Token::from_text(&super::token::tests::token(
            machine - SignedDuration::from_mins(40),
        )));
        assert!(
            (0..4).all(|_| near.for_handshake(machine) == machine),
            "a usual age is no hint"
        );
    }
}
