//! The comments that name the objects for which entries were generated.

use std::collections::BTreeSet;

use tailnet_crds::Kind;

/// How the comment above generated entries begins.
const SOURCE: &str = "from ";
/// Most objects that one comment names.
const NAMED: usize = 3;

/// `from TailnetEgress tailnet-system/team-a, TailnetSite lab and 2 more`
pub(super) fn comment(by: &[String]) -> String {
    let named = by.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match by.len().saturating_sub(NAMED) {
        0 => format!("{SOURCE}{named}"),
        more => format!("{SOURCE}{named} and {more} more"),
    }
}

/// What a line that is such a comment says behind [`SOURCE`].
fn read(line: &str) -> Option<&str> {
    line.trim().strip_prefix("// ")?.strip_prefix(SOURCE)
}

/// The origins that such a comment names.
pub(super) fn named(comment: &str) -> impl Iterator<Item = &str> {
    comment.split(" and ").next().unwrap_or_default().split(", ")
}

/// The objects (as in [`ObjectRef`](crate::ObjectRef)'s text) that the comments of a document name as the origin of entries.
pub fn sources_in(text: &str) -> BTreeSet<String> {
    let is_object = |name: &&str| {
        let kind = name.split(' ').next().unwrap_or_default();
        Kind::ALL
            .iter()
            .any(|known| *known != Kind::Tailnet && known.as_str() == kind)
    };
    let comments = text.lines().filter_map(read);
    comments.flat_map(named).filter(is_object).map(str::to_owned).collect()
}

/// For every line what the comment above its group says behind [`SOURCE`]; None for what people wrote.
pub(super) fn origins(text: &str) -> Vec<Option<String>> {
    let mut current: Option<String> = None;
    text.lines()
        .map(|line| {
            if let Some(named) = read(line).filter(|named| named.starts_with("Tailnet")) {
                current = Some(named.to_owned());
                return None;
            }
            // Generated entries are one line each; a bracket or a person's comment ends their group.
            let line = line.trim();
            if line.starts_with(']') || line.starts_with('}') || line.starts_with("//") || line.is_empty() {
                current = None;
            }
            current.clone()
        })
        .collect()
}
