//! Names in a source: where one stands, and which one was meant.

/// The nearest of some names, when it is near enough to be meant.
pub(super) fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    names
        .into_iter()
        .map(|known| {
            let distance = strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
            (distance, known)
        })
        .filter(|(distance, known)| *distance <= 2.max(known.len() / 3))
        .min()
        .map(|(_, known)| known)
}

/// Line and column (both from 1, in characters) where a word first stands in a source, not as a part of another.
pub(super) fn find(source: &str, word: &str) -> Option<(usize, usize)> {
    if word.is_empty() {
        return None;
    }
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let (at, _) = source.match_indices(word).find(|(at, _)| {
        let before = source[..*at].chars().next_back();
        let after = source[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })?;
    let line_start = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let line = source[..at].matches('\n').count() + 1;
    Some((line, source[line_start..at].chars().count() + 1))
}
