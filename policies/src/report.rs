//! What a check function writes into: findings of its own rule, and what it could not look at.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tailnet_crds::Kind;

use crate::finding::{Class, Finding, MAX_VALUE_CHARS, ObjectRef, Severity};
use crate::table::Rule;

/// A finding before the ratchet: it still has its whole value, so that two long values are never taken for one.
#[derive(Clone, Debug)]
pub struct Draft {
    pub(crate) rule: &'static str,
    pub(crate) severity: Severity,
    pub(crate) field: String,
    pub(crate) class: Class,
    pub(crate) value: Option<String>,
    pub(crate) detail: String,
    pub(crate) holder: Option<ObjectRef>,
    /// Id of the organisation's policy that speaks.
    pub(crate) policy: Option<Arc<str>>,
    /// What the verdict rests on, for the ratchet, where that is not the value.
    pub(crate) fingerprint: Option<String>,
}

impl Draft {
    /// Tells the user without refusing the request.
    pub fn warn(&mut self) -> &mut Self {
        self.severity = Severity::Warn;
        self
    }

    /// Names the object on which the finding rests.
    pub fn held_by(&mut self, holder: ObjectRef) -> &mut Self {
        self.holder = Some(holder);
        self
    }

    pub(crate) fn finish(self) -> Finding {
        Finding {
            rule: self.rule,
            severity: self.severity,
            field: self.field,
            class: self.class,
            value: self.value.map(|value| shorten(&without_passwords(&value, |_| false))),
            detail: one_line(&without_passwords(&self.detail, char::is_whitespace)),
            holder: self.holder,
            policy: self.policy,
        }
    }
}

/// An offending value as JSON text.
pub struct Shown(Option<String>);

impl Shown {
    /// No value: what is required is not there.
    pub const NOTHING: Self = Self(None);
}

impl From<&str> for Shown {
    fn from(text: &str) -> Self {
        Self(Some(serde_json::Value::from(text).to_string()))
    }
}

impl From<&String> for Shown {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<i64> for Shown {
    fn from(number: i64) -> Self {
        Self(Some(number.to_string()))
    }
}

impl From<&serde_json::Value> for Shown {
    fn from(value: &serde_json::Value) -> Self {
        Self(Some(value.to_string()))
    }
}

/// Why something could not be checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unchecked {
    /// The Tailnet that the object names does not exist.
    NoTailnet(String),
    /// Not all objects of a kind are known.
    Incomplete(Kind),
    /// Namespaces are not known.
    Namespaces,
    /// Services are not known.
    Services,
    /// ConfigMaps are not known.
    ConfigMaps,
    /// Nothing is known of the server of a Tailnet.
    Facts(String),
    /// Nobody knows who will ask.
    Requester,
}

impl fmt::Display for Unchecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTailnet(name) => write!(f, "there is no Tailnet {}", quoted(name)),
            Self::Incomplete(kind) => write!(f, "not every {} is known here", kind.as_str()),
            Self::Namespaces => f.write_str("the namespaces of the cluster are not known here"),
            Self::Services => f.write_str("the Services of the cluster are not known here"),
            Self::ConfigMaps => f.write_str("the ConfigMaps of the cluster are not known here"),
            Self::Facts(name) => write!(f, "the server of Tailnet {} has not been read yet", quoted(name)),
            Self::Requester => f.write_str("nobody knows here who will apply it"),
        }
    }
}

/// Reasons with the rules that they silenced.
pub(crate) type Notes = BTreeMap<Unchecked, BTreeSet<&'static str>>;

/// Where a check function writes to.
pub struct Report<'r> {
    pub(crate) rule: &'static Rule,
    pub(crate) drafts: &'r mut Vec<Draft>,
    pub(crate) notes: &'r mut Notes,
}

impl Report<'_> {
    /// Adds a finding of this rule with its severity; `detail` says what is wrong and what to do.
    pub fn add(
        &mut self,
        class: Class,
        field: impl Into<String>,
        value: impl Into<Shown>,
        detail: impl Into<String>,
    ) -> &mut Draft {
        let at = self.drafts.len();
        self.drafts.push(Draft {
            rule: self.rule.id,
            severity: self.rule.severity,
            field: field.into(),
            class,
            value: value.into().0,
            detail: detail.into(),
            holder: None,
            policy: None,
            fingerprint: None,
        });
        &mut self.drafts[at]
    }

    /// [`Report::add`] of class [`Class::Invalid`].
    pub fn invalid(
        &mut self,
        field: impl Into<String>,
        value: impl Into<Shown>,
        detail: impl Into<String>,
    ) -> &mut Draft {
        self.add(Class::Invalid, field, value, detail)
    }

    /// [`Report::add`] of class [`Class::Duplicate`].
    pub fn duplicate(
        &mut self,
        field: impl Into<String>,
        value: impl Into<Shown>,
        detail: impl Into<String>,
    ) -> &mut Draft {
        self.add(Class::Duplicate, field, value, detail)
    }

    /// [`Report::add`] of class [`Class::Forbidden`].
    pub fn forbidden(
        &mut self,
        field: impl Into<String>,
        value: impl Into<Shown>,
        detail: impl Into<String>,
    ) -> &mut Draft {
        self.add(Class::Forbidden, field, value, detail)
    }

    /// [`Report::add`] of class [`Class::Required`], which has no value.
    pub fn required(&mut self, field: impl Into<String>, detail: impl Into<String>) -> &mut Draft {
        self.add(Class::Required, field, Shown::NOTHING, detail)
    }

    /// The words of the schema's rule with this id in that place, the `nth` where there are several; so a user reads the
    /// same text whoever refuses. The rule's own summary where the schema has none.
    pub fn said(&self, kind: Kind, path: &str, nth: usize) -> &'static str {
        tailnet_crds::cel::rules()
            .filter(|row| row.id == self.rule.id && row.kind == kind && row.path == path)
            .nth(nth)
            .map_or(self.rule.message, |row| row.message)
    }

    /// Says that this rule could not look at something.
    pub fn unchecked(&mut self, reason: Unchecked) {
        self.notes.entry(reason).or_default().insert(self.rule.id);
    }
}

/// The text with what stands between `://` and the last `@` of each URL hidden: it may be a password. A URL goes on until
/// a character that `ends` it, or a quotation mark that no backslash precedes.
fn without_passwords(text: &str, ends: fn(char) -> bool) -> Cow<'_, str> {
    const SCHEME: &str = "://";
    let mut shown = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(SCHEME).map(|at| at + SCHEME.len()) {
        let (before, after) = rest.split_at(start);
        shown.push_str(before);
        rest = after;
        let mut escaped = false;
        let end = rest.find(|c: char| {
            let end = ends(c) || (c == '"' && !escaped);
            escaped = c == '\\' && !escaped;
            end
        });
        if let Some(at) = rest[..end.unwrap_or(rest.len())].rfind('@') {
            shown.push_str("***");
            rest = &rest[at..];
        }
    }
    if shown.is_empty() {
        return Cow::Borrowed(text);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// At most `max` characters of a text, with an ellipsis where something is missing.
pub(crate) fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Longest detail. Rules cut what they quote, so that the remedy at the end is seen; this bounds whatever they forget.
const MAX_DETAIL_CHARS: usize = 400;

/// A text of somebody else in quotes, for a message: what has no glyph is escaped, and then at most 63 characters are left, as
/// many as a name of Kubernetes or a DNS label has.
pub(crate) fn quoted(text: &str) -> String {
    quoted_up_to(text, 63)
}

/// [`quoted`] of at most `max` characters between the quotes, after escaping: one character may become ten.
pub(crate) fn quoted_up_to(text: &str, max: usize) -> String {
    // Before it is cut: what is left of a URL must not end within its password.
    let escaped = text.escape_debug().to_string();
    let escaped = without_passwords(&escaped, |_| false);
    format!("\"{}\"", cut(&escaped, max))
}

/// A detail of bounded length in one line: a message is a line of its own wherever it is shown.
fn one_line(detail: &str) -> String {
    let plain: String = detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    cut(&plain, MAX_DETAIL_CHARS)
}

/// A value as JSON text of at most [`MAX_VALUE_CHARS`]; a text that is cut keeps its closing quote.
fn shorten(value: &str) -> String {
    let short = cut(value, MAX_VALUE_CHARS);
    if short.len() == value.len() || !value.starts_with('"') {
        return short;
    }
    format!("{}\"", cut(value, MAX_VALUE_CHARS - 1))
}

/// A list for a message: at most five entries of at most 63 characters, and how many more there are.
pub(crate) fn list<T: AsRef<str>>(items: &[T]) -> String {
    const SHOWN: usize = 5;
    if items.is_empty() {
        return "none".to_owned();
    }
    let mut text = items
        .iter()
        .take(SHOWN)
        .map(|i| cut(&without_passwords(i.as_ref(), |_| false), 63))
        .collect::<Vec<_>>()
        .join(", ");
    if items.len() > SHOWN {
        text.push_str(&format!(" and {} more", items.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_by_characters() {
        assert_eq!(cut("ääää", 4), "ääää");
        assert_eq!(cut("äääää", 4), "äää…");
    }

    #[test]
    fn quoted_texts_are_bounded_as_they_are_shown() {
        assert_eq!(quoted("team-a"), "\"team-a\"");
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        for text in ["\u{e0001}".repeat(40), "\u{7}".repeat(300), "x".repeat(5000)] {
            assert_eq!(quoted(&text).chars().count(), 65, "{text:?}");
        }
        assert_eq!(one_line("a\nb"), "a b");
        assert_eq!(one_line(&"x".repeat(5000)).chars().count(), MAX_DETAIL_CHARS);
    }

    #[test]
    fn passwords_in_urls_are_never_shown() {
        let whole: fn(char) -> bool = |_| false;
        for (text, shown) in [
            ("no url at all: a@b", "no url at all: a@b"),
            ("https://control.example.net/a", "https://control.example.net/a"),
            ("\"https://u:pw@h\"", "\"https://***@h\""),
            ("\"postgres://u:p@ w/x?y@h:1/d\"", "\"postgres://***@h:1/d\""),
            (r#""x://u:p\"w@h" and "a@b""#, r#""x://***@h" and "a@b""#),
            (r#"["x://u:p@h","y://u:q@i"]"#, r#"["x://***@h","y://***@i"]"#),
        ] {
            assert_eq!(without_passwords(text, whole), shown, "{text}");
        }
        assert_eq!(
            without_passwords("is x://h: ask team@example.net", char::is_whitespace),
            "is x://h: ask team@example.net"
        );
        let long = format!("https://user:{}@host", "s3cret".repeat(40));
        for text in [quoted(&long), list(&[&long]), list(&[long.clone(), long.clone()])] {
            assert!(!text.contains("s3cret") && text.contains("***@host"), "{text}");
        }
        let mut drafts = Vec::new();
        let mut notes = Notes::new();
        let rule = &crate::rules::server::TN101;
        let mut report = Report {
            rule,
            drafts: &mut drafts,
            notes: &mut notes,
        };
        report.invalid("spec.server", long.as_str(), format!("is {long}, which is long"));
        let finding = drafts.remove(0).finish();
        assert_eq!(
            finding.message(),
            "Invalid value: \"https://***@host\": is https://***@host, which is long [TN101]"
        );
    }

    #[test]
    fn values_that_are_cut_stay_quoted() {
        let long = shorten(&format!("\"{}\"", "a".repeat(200)));
        assert_eq!(long.chars().count(), MAX_VALUE_CHARS);
        assert!(long.ends_with("a…\""));
        assert_eq!(shorten("\"short\""), "\"short\"");
    }

    #[test]
    fn lists_say_how_much_is_missing() {
        assert_eq!(list::<&str>(&[]), "none");
        assert_eq!(list(&["a", "b"]), "a, b");
        assert_eq!(list(&["1", "2", "3", "4", "5", "6", "7"]), "1, 2, 3, 4, 5 and 2 more");
    }
}
