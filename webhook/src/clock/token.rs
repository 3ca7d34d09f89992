//! When a ServiceAccount token was made: the API server's time, written down by itself.

use std::fmt;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;

/// Where the token is. Nothing here shows it.
pub enum Token {
    /// In a file that kubelet renews.
    File(PathBuf),
    /// Given once; only its time is kept.
    Made(Option<Timestamp>),
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => formatter.debug_tuple("File").field(path).finish(),
            Self::Made(made) => formatter.debug_tuple("Made").field(made).finish(),
        }
    }
}

#[derive(Deserialize)]
struct Claims {
    iat: f64,
}

impl Token {
    /// The token itself.
    pub fn from_text(token: &str) -> Self {
        Self::Made(made(token))
    }

    /// When it was made; `None` when it cannot be read or does not say.
    pub fn made(&self) -> Option<Timestamp> {
        match self {
            Self::File(path) => made(std::fs::read_to_string(path).ok()?.trim()),
            Self::Made(made) => *made,
        }
    }
}

/// `iat` of a JSON Web Token. Whether it is genuine is not asked: it is our own.
fn made(token: &str) -> Option<Timestamp> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Claims = serde_json::from_slice(&payload).ok()?;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "seconds of an epoch; out of range is refused by Timestamp"
    )]
    Timestamp::from_second(claims.iat as i64).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jiff::Timestamp;

    use super::{Token, made};

    /// A token that was made then.
    pub fn token(then: Timestamp) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!(
            "{}.{}.{}",
            part("{\"alg\":\"RS256\"}"),
            part(&format!("{{\"iat\":{},\"sub\":\"x\"}}", then.as_second())),
            part("signature")
        )
    }

    #[test]
    fn the_time_of_a_token_is_read_and_nothing_else_is_one() {
        let then: Timestamp = "2026-12-01T09:00:00Z".parse().expect("time");
        assert_eq!(made(&token(then)), Some(then));
        for other in ["", "abc", "a.b.c", "e30.e30.e30", "not.a!b.token"] {
            assert_eq!(made(other), None, "{other}");
        }
        assert_eq!(Token::File("/does/not/exist".into()).made(), None);
    }

    #[test]
    fn debug_shows_no_token() {
        let text = format!("{:?}", Token::from_text(&token(Timestamp::UNIX_EPOCH)));
        assert_eq!(text, "Made(Some(1970-01-01T00:00:00Z))");
    }
}
