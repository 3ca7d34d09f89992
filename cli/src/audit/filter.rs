//! Which decisions are asked about.

use std::convert::Infallible;
use std::fmt::{self, Display};
use std::str::FromStr;

use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp, Unit, civil};
use tailnet_crds::audit::{Decision, Endpoint};

use super::args::AuditArgs;
use super::record::Record;

/// A text in which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl FromStr for Pattern {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    /// Whether the whole text fits.
    pub fn fits(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else {
            return false;
        };
        let mut last = None;
        for part in parts {
            // What was the last part so far is one in the middle: the leftmost place leaves the most for the others.
            if let Some(middle) = last.replace(part) {
                let Some(at) = rest.find(middle) else { return false };
                rest = &rest[at + middle.len()..];
            }
        }
        match last {
            None => rest.is_empty(),
            Some(end) => rest.ends_with(end),
        }
    }
}

/// A time: a duration before now, a date (its start in UTC), or RFC 3339.
///
/// # Errors
/// A text for the user when it is none of them.
pub fn moment(text: &str) -> Result<Timestamp, String> {
    moment_at(text, Timestamp::now())
}

fn moment_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(date) = text.parse::<civil::Date>()
        && let Ok(start) = date.to_zoned(jiff::tz::TimeZone::UTC)
    {
        return Ok(start.timestamp());
    }
    let wrong =
        || format!("{text:?} is no duration such as 30m, 24h or 7d, no date and no time such as 2026-11-30T12:00:00Z");
    let span: Span = text.parse().map_err(|_| wrong())?;
    let relative = SpanRelativeTo::days_are_24_hours();
    let seconds = span.total((Unit::Second, relative)).map_err(|_| wrong())?;
    let ago = SignedDuration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    now.checked_sub(ago.abs()).map_err(|_| wrong())
}

/// The questions of the command line, all of which must hold.
#[derive(Debug)]
pub struct Filter<'a>(pub &'a AuditArgs);

impl Filter<'_> {
    /// Whether a decision is asked about. Lines of the defaults are asked about by time, user and namespace only.
    pub fn fits(&self, record: &Record) -> bool {
        let args = self.0;
        let any =
            |patterns: &[Pattern], text: &str| patterns.is_empty() || patterns.iter().any(|pattern| pattern.fits(text));
        let namespace = record.target.namespace.as_deref().unwrap_or_default();
        let decides = record.endpoint == Endpoint::Validate || record.decision == Decision::Error;
        let by_decision = args.decision.is_empty() || args.decision.contains(&record.decision);
        let named = [&record.rules, &record.warned, &record.bypassed];
        let by_rule = args.rule.is_empty()
            || named
                .into_iter()
                .flatten()
                .any(|id| args.rule.iter().any(|rule| rule.eq_ignore_ascii_case(id)));
        args.since.is_none_or(|since| record.time >= since)
            && args.until.is_none_or(|until| record.time < until)
            && any(&args.user, &record.user)
            && any(&args.namespace, namespace)
            && !(args.no_dry_run && record.dry_run)
            && (!decides || (by_decision && by_rule))
    }

    /// The questions in words, as flags: an answer that is passed on must say what it left out.
    pub fn words(&self) -> Vec<String> {
        fn flags<'w>(name: &'w str, values: &'w [impl Display]) -> impl Iterator<Item = String> + 'w {
            values.iter().map(move |value| format!("--{name} {value}"))
        }
        let args = self.0;
        flags("since", args.since.as_slice())
            .chain(flags("until", args.until.as_slice()))
            .chain(flags("user", &args.user))
            .chain(flags("rule", &args.rule))
            .chain(flags("namespace", &args.namespace))
            .chain(flags("decision", &args.decision))
            .chain(args.no_dry_run.then(|| "--no-dry-run".to_owned()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{Pattern, moment_at};

    #[test]
    fn patterns_fit_whole_texts() {
        let fits = |pattern: &str, text: &str| pattern.parse::<Pattern>().unwrap().fits(text);
        assert!(fits("alice", "alice") && !fits("alice", "alice2") && !fits("lice", "alice"));
        assert!(fits("*", "") && fits("*", "anything"));
        assert!(fits("system:serviceaccount:*", "system:serviceaccount:a:b") && !fits("system:serviceaccount:*", "x"));
        assert!(fits("*@example.net", "a@example.net") && !fits("*@example.net", "a@example.net.evil"));
        assert!(fits("a*b*c", "aXbYbZc") && !fits("a*b*c", "aXc"));
        assert!(
            fits("a*a", "aa") && !fits("a*a", "a"),
            "one letter does not serve twice"
        );
        assert!(fits("", "") && !fits("", "a"));
    }

    #[test]
    fn times_are_read_in_three_ways() {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let at = |text: &str| moment_at(text, now).map(|time| time.to_string());
        assert_eq!(at("30m").unwrap(), "2026-11-30T11:30:00Z");
        assert_eq!(at("24h").unwrap(), "2026-11-29T12:00:00Z");
        assert_eq!(at("7d").unwrap(), "2026-11-23T12:00:00Z");
        assert_eq!(at("2026-11-01").unwrap(), "2026-11-01T00:00:00Z");
        assert_eq!(at("2026-11-01T02:00:00+02:00").unwrap(), "2026-11-01T00:00:00Z");
        for wrong in ["soon", "1 fortnight", "", "2026-13-01", "99999999999d"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
