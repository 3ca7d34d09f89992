//! From an HTTP answer to a value or an [`Error`].

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER};
use serde_json::Value;

use super::error::Error;
use super::redact::redact_keys;

/// Longest text of the server that goes into an error; a policy rejection names every failing test.
const MESSAGE_LIMIT: usize = 2000;

/// The messages with which Headscale says "absent", under 400, 404 or 500.
const ABSENT: [&str; 6] = [
    "record not found",
    "user not found",
    "node not found",
    "node no longer exists",
    "acl policy not found",
    "key not found",
];

/// The messages under 500 that will come again for the same request.
const PERMANENT: [&str; 4] = [
    "setting policy:",
    "update is disabled for modes other than",
    "auth-key must be either tagged or owned",
    "invalid or not permitted",
];

/// The messages with which Headscale says "taken", under 500.
const TAKEN: [&str; 3] = ["UNIQUE constraint failed", "is not unique", "already exists"];

/// The error in an answer that is not a 2xx.
pub(crate) fn error(call: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
    let call = call.to_owned();
    if status.is_redirection() {
        let location = headers.get(LOCATION).and_then(|l| l.to_str().ok()).unwrap_or("nowhere");
        let location = redact_keys(location.split(['?', '#']).next().unwrap_or_default(), 200);
        return Error::Redirected {
            call,
            status: status.as_u16(),
            location,
        };
    }
    if status == StatusCode::UNAUTHORIZED {
        return Error::Unauthorized { call };
    }
    let Some(message) = headscale_message(body) else {
        return foreign(call, status, headers, body);
    };
    let has = |words: &[&str]| words.iter().any(|w| message.contains(w));
    let code = status.as_u16();
    match code {
        429 if message.contains("larger than max") => Error::RequestTooLarge { call },
        413 => Error::RequestTooLarge { call },
        429 => Error::RateLimited {
            call,
            retry_after: retry_after(headers),
        },
        // The gateway's own answers to an unknown path or method.
        404 if message == "Not Found" => Error::UnknownCall { call, status: code },
        405 | 501 => Error::UnknownCall { call, status: code },
        404 => Error::NotFound { call, message },
        _ if has(&ABSENT) => Error::NotFound { call, message },
        409 => Error::Conflict { call, message },
        _ if code >= 400 && has(&TAKEN) => Error::Conflict { call, message },
        400..=499 => Error::Rejected {
            call,
            status: code,
            message,
        },
        _ if has(&PERMANENT) => Error::Rejected {
            call,
            status: code,
            message,
        },
        _ => Error::Server {
            call,
            status: code,
            message,
        },
    }
}

/// Headscale's message: `{"code":5,"message":"…"}` (0.29) or RFC 7807's `{"title":…,"detail":…,"errors":[{"message":…}]}`
/// (0.30). None when the body is neither.
fn headscale_message(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let object = value.as_object()?;
    let text = |key: &str| object.get(key).and_then(Value::as_str).filter(|s| !s.is_empty());
    if let (Some(message), Some(_)) = (text("message"), object.get("code")) {
        return Some(redact_keys(message, MESSAGE_LIMIT));
    }
    let title = text("title")?;
    object.get("status").and_then(Value::as_u64)?;
    let mut message = text("detail").unwrap_or(title).to_owned();
    for error in object.get("errors").and_then(Value::as_array).into_iter().flatten() {
        let (what, location) = (error.get("message"), error.get("location"));
        if let Some(what) = what.and_then(Value::as_str) {
            message.push_str("; ");
            if let Some(location) = location.and_then(Value::as_str).filter(|l| !l.is_empty()) {
                message.push_str(location);
                message.push_str(": ");
            }
            message.push_str(what);
        }
    }
    Some(redact_keys(&message, MESSAGE_LIMIT))
}

/// An error answer in nobody's format: a proxy in front of Headscale, or another server altogether.
fn foreign(call: String, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
    if status == StatusCode::TOO_MANY_REQUESTS {
        return Error::RateLimited {
            call,
            retry_after: retry_after(headers),
        };
    }
    let text = redact_keys(String::from_utf8_lossy(body).trim(), 200);
    if status.is_server_error() {
        // A gateway's 502/503/504 while Headscale restarts.
        return Error::Server {
            call,
            status: status.as_u16(),
            message: text,
        };
    }
    Error::NotHeadscale {
        call,
        detail: format!("status {}, {}: {text:?}", status.as_u16(), content_type(headers)),
    }
}

/// The error for a 2xx whose body does not read as what the call promises.
pub(crate) fn unreadable(call: &str, headers: &HeaderMap, body: &[u8], cause: &serde_json::Error) -> Error {
    if serde_json::from_slice::<Value>(body).is_ok() {
        // JSON of another shape. The body may hold a key, so only the reader's words are told, and not its excerpt.
        return Error::NotHeadscale {
            call: call.to_owned(),
            detail: redact_keys(&format!("unexpected JSON: {cause}"), 200),
        };
    }
    if cause.is_eof() && content_type(headers).contains("json") {
        return Error::Broken {
            call: call.to_owned(),
            detail: "the JSON ends in the middle".into(),
        };
    }
    Error::NotHeadscale {
        call: call.to_owned(),
        detail: format!("{} instead of JSON", content_type(headers)),
    }
}

fn content_type(headers: &HeaderMap) -> String {
    headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .map_or("no content type".into(), |t| redact_keys(t, 80))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
        .map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::super::error::Class;
    use super::*;

    fn classify(status: u16, body: &str) -> Error {
        error(
            "GET /x",
            StatusCode::from_u16(status).unwrap(),
            &HeaderMap::new(),
            body.as_bytes(),
        )
    }

    #[test]
    fn shapes_of_0_29() {
        let cases = [
            (401, "Unauthorized", Class::Unauthorized),
            (
                500,
                r#"{"code":2,"message":"record not found","details":[]}"#,
                Class::Absent,
            ),
            (
                500,
                r#"{"code":2,"message":"node no longer exists in NodeStore: 999"}"#,
                Class::Absent,
            ),
            (400, r#"{"code":3,"message":"node not found"}"#, Class::Absent),
            (
                500,
                r#"{"code":2,"message":"loading ACL from database: acl policy not found"}"#,
                Class::Absent,
            ),
            (
                500,
                r#"{"code":2,"message":"setting policy: unknown field: \"foo\""}"#,
                Class::Permanent,
            ),
            (
                500,
                r#"{"code":13,"message":"UNIQUE constraint failed: users.name"}"#,
                Class::Permanent,
            ),
            (
                500,
                r#"{"code":2,"message":"node name is not unique: rt1"}"#,
                Class::Permanent,
            ),
            (500, r#"{"code":2,"message":"database is locked"}"#, Class::Transient),
            (
                404,
                r#"{"code":5,"message":"Not Found","details":[]}"#,
                Class::NotHeadscale,
            ),
            (
                501,
                r#"{"code":12,"message":"Method Not Allowed","details":[]}"#,
                Class::NotHeadscale,
            ),
            (404, "404 page not found", Class::NotHeadscale),
            (
                429,
                r#"{"code":8,"message":"grpc: received message larger than max (5 vs. 4)"}"#,
                Class::Permanent,
            ),
            (429, "slow down", Class::Transient),
            (502, "<html>bad gateway</html>", Class::Transient),
            (403, "<html>forbidden</html>", Class::NotHeadscale),
        ];
        for (status, body, class) in cases {
            assert_eq!(classify(status, body).class(), class, "{status} {body}");
        }
    }

    #[test]
    fn shapes_of_0_30() {
        let absent = classify(
            404,
            r#"{"title":"Not Found","status":404,"detail":"node 7 does not exist"}"#,
        );
        assert_eq!(absent.to_string(), "GET /x: node 7 does not exist");
        assert_eq!(absent.class(), Class::Absent);
        let bad = classify(
            400,
            r#"{"title":"Bad Request","status":400,"detail":"validation failed","errors":[{"message":"expected string","location":"body.name","value":"hskey-auth-abcdefghijkl-SECRET"}]}"#,
        );
        assert_eq!(
            bad.to_string(),
            "GET /x: refused: validation failed; body.name: expected string"
        );
        assert!(matches!(
            classify(409, r#"{"title":"Conflict","status":409,"detail":"name taken"}"#),
            Error::Conflict { .. }
        ));
    }

    #[test]
    fn redirects_and_retry_after() {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, "https://other.example/login?token=abc".parse().unwrap());
        let e = error("GET /x", StatusCode::FOUND, &headers, b"");
        assert!(e.to_string().contains("https://other.example/login;"), "{e}");
        headers.insert(RETRY_AFTER, "7".parse().unwrap());
        let e = error("GET /x", StatusCode::TOO_MANY_REQUESTS, &headers, b"");
        assert!(matches!(e, Error::RateLimited { retry_after: Some(d), .. } if d == Duration::from_secs(7)));
    }

    #[test]
    fn a_key_in_a_reply_is_not_told() {
        let e = classify(
            500,
            r#"{"code":2,"message":"bad key hskey-api-abcdefghijkl-SECRETSECRET here"}"#,
        );
        assert!(!e.to_string().contains("SECRET"), "{e}");
        let wrong = serde_json::from_str::<u8>("\"hskey-api-abcdefghijkl-SECRETSECRET\"").unwrap_err();
        let e = unreadable(
            "GET /x",
            &HeaderMap::new(),
            b"\"hskey-api-abcdefghijkl-SECRETSECRET\"",
            &wrong,
        );
        assert!(!e.to_string().contains("SECRET"), "{e}");
    }
}
