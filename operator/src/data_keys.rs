//! The keys that a Secret or ConfigMap has, in words, for messages about one that it lacks: mostly it is there under another
//! spelling. Keys are not secret, values are, and none is read here.

/// More are counted, not named.
const MOST: usize = 5;
/// Longest part of a key that is shown; it may have 253 characters.
const LONGEST: usize = 40;

/// `it has apikey, url`; `it has no keys`; the first five and how many more. In the order given.
pub fn present<'a>(keys: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<&str> = keys.into_iter().collect();
    if all.is_empty() {
        return "it has no keys".to_owned();
    }
    let mut shown: Vec<String> = all.iter().take(MOST).map(|key| bounded(key)).collect();
    if all.len() > MOST {
        shown.push(format!("and {} more", all.len() - MOST));
    }
    format!("it has {}", shown.join(", "))
}

fn bounded(key: &str) -> String {
    if key.chars().count() <= LONGEST {
        return key.to_owned();
    }
    key.chars().take(LONGEST).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::present;

    #[test]
    fn what_is_there_is_named() {
        assert_eq!(present([]), "it has no keys");
        assert_eq!(present(["apikey"]), "it has apikey");
        assert_eq!(
            present(["a", "b", "c", "d", "e", "f", "g"]),
            "it has a, b, c, d, e, and 2 more"
        );
    }

    #[test]
    fn the_text_is_bounded_whatever_the_keys() {
        let long = "x".repeat(253);
        let text = present(vec![long.as_str(); 1000]);
        assert!(text.chars().count() < 300, "{text}");
        assert!(text.ends_with("and 995 more"), "{text}");
    }
}
