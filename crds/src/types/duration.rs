//! Durations in the Gateway API's grammar (GEP-2257).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::format::{Format, FormatError, without_outer_space};

/// A duration such as `600s` or `1h30m`: one to four numbers of up to five digits, each with `h`, `m`, `s` or `ms`.
/// Prints as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoDuration {
    text: String,
    value: Duration,
}

impl GoDuration {
    /// The duration.
    pub fn get(&self) -> Duration {
        self.value
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Format for GoDuration {
    const NAME: &'static str = "duration";
    const MAX_LENGTH: u32 = 32;
}

impl FromStr for GoDuration {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

fn read(text: &str) -> Result<GoDuration, FormatError> {
    let unreadable = || FormatError::unreadable("is not a duration such as 600s, 1h30m or 500ms");
    let mut rest = text;
    let mut value = Duration::ZERO;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        parts += 1;
        if digits == 0 || digits > 5 || parts > 4 {
            return Err(unreadable());
        }
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| unreadable())?;
        let (part, tail) = if let Some(tail) = tail.strip_prefix("ms") {
            (Duration::from_millis(number), tail)
        } else if let Some(tail) = tail.strip_prefix('s') {
            (Duration::from_secs(number), tail)
        } else if let Some(tail) = tail.strip_prefix('m') {
            (Duration::from_secs(number * 60), tail)
        } else if let Some(tail) = tail.strip_prefix('h') {
            (Duration::from_secs(number * 3600), tail)
        } else {
            return Err(unreadable());
        };
        value += part;
        rest = tail;
    }
    if parts == 0 {
        return Err(unreadable());
    }
    Ok(GoDuration {
        text: text.to_owned(),
        value,
    })
}
