//! The last line of defence for texts that come from outside: whatever looks like one of Headscale's keys is cut out.

/// The kinds of key that Headscale prints, by the start of their text.
const MARKS: [&str; 2] = ["hskey-", "Bearer "];

/// `text` with the secret part of every `hskey-…` token and every bearer credential replaced by `[redacted]`, and cut at
/// `limit` characters. Control characters other than newline and tab become spaces, so that a reply cannot forge log lines.
pub fn redact_keys(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit * 4));
    let mut rest = text;
    while let Some((at, mark)) = MARKS.iter().filter_map(|m| rest.find(m).map(|i| (i, *m))).min() {
        out.push_str(&rest[..at + mark.len()]);
        rest = &rest[at + mark.len()..];
        let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
        let (token, after) = rest.split_at(end);
        out.push_str(&shown(mark, token));
        rest = after;
    }
    out.push_str(rest);
    let mut cleaned: String = out
        .chars()
        .take(limit)
        .map(|c| {
            if c.is_control() && c != '\n' && c != '\t' {
                ' '
            } else {
                c
            }
        })
        .collect();
    if out.chars().nth(limit).is_some() {
        cleaned.push('…');
    }
    cleaned
}

/// What stays of a token: kind and prefix of a Headscale key (`api-<12>`), which is what lists show too.
fn shown(mark: &str, token: &str) -> String {
    let kind_and_prefix = ["api-", "auth-"].iter().find_map(|kind| {
        token
            .strip_prefix(kind)
            .and_then(|t| t.get(..12))
            .map(|prefix| format!("{kind}{prefix}-"))
    });
    match kind_and_prefix {
        Some(kept) if mark == "hskey-" => format!("{kept}[redacted]"),
        _ => "[redacted]".into(),
    }
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~' | '+' | '/' | '=' | '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_go_and_words_stay() {
        assert_eq!(
            redact_keys("key hskey-api-9j2gZAKTww9X-abcDEF_-9 is bad", 200),
            "key hskey-api-9j2gZAKTww9X-[redacted] is bad"
        );
        assert_eq!(
            redact_keys("Authorization: Bearer abc.def", 200),
            "Authorization: Bearer [redacted]"
        );
        assert_eq!(
            redact_keys("Bearer hskey-auth-aaaaaaaaaaaa-bbb", 200),
            "Bearer [redacted]"
        );
        assert_eq!(redact_keys("abcdef", 3), "abc…");
        assert_eq!(redact_keys("a\r\x1b[31mb", 200), "a  [31mb");
        assert_eq!(
            redact_keys("setting policy: unknown field: \"foo\"", 200),
            "setting policy: unknown field: \"foo\""
        );
    }

    proptest! {
        #[test]
        fn no_secret_survives(before in "[ -~]{0,20}", prefix in "[A-Za-z0-9_-]{12}", secret in "[A-Za-z0-9]{64}", after in "[ -~]{0,20}") {
            let text = format!("{before}hskey-api-{prefix}-{secret} {after}");
            prop_assert!(!redact_keys(&text, 1000).contains(&secret));
        }
    }
}
