//! Text of strangers, safe to show: a user or object name may hold what moves a terminal's cursor or turns a line around.

/// The text with every invisible or direction-changing character written out, as in `\u{202e}`.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if acts(letter) {
            shown.extend(letter.escape_unicode());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// [`printable`] of at most `most` characters, with an ellipsis where something is missing.
pub fn short(text: &str, most: usize) -> String {
    let shown = printable(text);
    match shown.char_indices().nth(most) {
        None => shown,
        Some(_) => shown.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::{printable, short};

    #[test]
    fn nothing_acts_and_words_stay() {
        assert_eq!(printable("älice@example.net"), "älice@example.net");
        assert_eq!(printable("\u{1b}[2Ja\u{202e}b\n"), "\\u{1b}[2Ja\\u{202e}b\\u{a}");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short("abcd", 4), "abcd");
    }
}
