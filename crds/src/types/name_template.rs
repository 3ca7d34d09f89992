//! Templates of published names.

use std::fmt;
use std::str::FromStr;

use super::dns::DnsName;
use super::format::{Format, FormatError, Spelling, without_outer_space};

/// A DNS name with the placeholders `{name}` (required), `{namespace}` and `{tailnet}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameTemplate(Vec<Part>);

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Part {
    Literal(String),
    Name,
    Namespace,
    Tailnet,
}

impl NameTemplate {
    /// The name for one expose, or why there is none (too long, or a value that no DNS name can have).
    pub fn render(&self, name: &str, namespace: &str, tailnet: &str) -> Result<DnsName, FormatError> {
        let text: String = self
            .0
            .iter()
            .map(|part| match part {
                Part::Literal(text) => text.as_str(),
                Part::Name => name,
                Part::Namespace => namespace,
                Part::Tailnet => tailnet,
            })
            .collect();
        text.parse()
    }

    /// The texts that `{namespace}` may stand for in a name that this template has given, each once: without a dot between
    /// the two, `{name}-{namespace}` gives `a-b-c` in the namespace `c` and in `b-c`. Empty for a name that it cannot give,
    /// and for a template without `{namespace}`.
    pub fn namespaces_in<'n>(&self, name: &'n str, tailnet: &str) -> Vec<&'n str> {
        let mut found = Vec::new();
        fit(&self.0, name, tailnet, Fit::default(), &mut found);
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether the namespace is part of the name; else two namespaces can ask for one name.
    pub fn has_namespace(&self) -> bool {
        self.0.contains(&Part::Namespace)
    }

    /// Whether the Tailnet is part of the name.
    pub fn has_tailnet(&self) -> bool {
        self.0.contains(&Part::Tailnet)
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| {
            f.write_str(match part {
                Part::Literal(text) => text,
                Part::Name => "{name}",
                Part::Namespace => "{namespace}",
                Part::Tailnet => "{tailnet}",
            })
        })
    }
}

impl Format for NameTemplate {
    const NAME: &'static str = "name template";
    const MAX_LENGTH: u32 = 253;
}

impl FromStr for NameTemplate {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        without_outer_space(text, read)
    }
}

fn read(text: &str) -> Result<NameTemplate, FormatError> {
    let template = NameTemplate(split(text)?);
    if !template.0.contains(&Part::Name) {
        return Err(FormatError::unreadable("lacks the placeholder {name}"));
    }
    match template.render("a", "a", "a") {
        Ok(name) if name.labels().count() < 2 => Err(FormatError::unreadable(
            "cannot give a valid DNS name: append a zone, such as {name}.example.net",
        )),
        Ok(_) => Ok(template),
        Err(FormatError::NotCanonical { spelling, .. }) => {
            let canonical = text.to_ascii_lowercase();
            let canonical = canonical.strip_suffix('.').unwrap_or(&canonical);
            let ascii = matches!(spelling, Spelling::UpperCase | Spelling::TrailingDot);
            if ascii && canonical != text && read(canonical).is_ok() {
                return Err(FormatError::not_canonical(spelling, canonical));
            }
            // An internationalised literal has no canonical form here, because its pieces are encoded together.
            Err(FormatError::unreadable(
                "has characters outside ASCII: write the name as A-labels (xn--…)",
            ))
        }
        Err(FormatError::Unreadable(problem)) => Err(FormatError::unreadable(format!(
            "cannot give a valid DNS name: the name {problem}"
        ))),
    }
}

/// What the placeholders stand for so far.
#[derive(Clone, Copy, Default)]
struct Fit<'n> {
    name: Option<&'n str>,
    namespace: Option<&'n str>,
}

/// Tries every way in which `rest` fits the parts. Both values are labels, so that few ways are to be tried.
fn fit<'n>(parts: &[Part], rest: &'n str, tailnet: &str, known: Fit<'n>, found: &mut Vec<&'n str>) {
    let Some((part, parts)) = parts.split_first() else {
        found.extend(known.namespace.filter(|_| rest.is_empty()));
        return;
    };
    let bound = match part {
        Part::Literal(text) => Some(text.as_str()),
        Part::Tailnet => Some(tailnet),
        Part::Name => known.name,
        Part::Namespace => known.namespace,
    };
    if let Some(bound) = bound {
        if let Some(rest) = rest.strip_prefix(bound) {
            fit(parts, rest, tailnet, known, found);
        }
        return;
    }
    let label = rest.split('.').next().unwrap_or_default();
    for end in (1..=label.len().min(63)).filter(|end| rest.is_char_boundary(*end)) {
        let (value, rest) = rest.split_at(end);
        if value.starts_with('-') || value.ends_with('-') {
            continue;
        }
        let known = match part {
            Part::Name => Fit {
                name: Some(value),
                ..known
            },
            _ => Fit {
                namespace: Some(value),
                ..known
            },
        };
        fit(parts, rest, tailnet, known, found);
    }
}

fn split(text: &str) -> Result<Vec<Part>, FormatError> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (literal, tail) = rest.split_at(open);
        let close = tail
            .find('}')
            .ok_or_else(|| FormatError::unreadable("has a { without a }"))?;
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.to_owned()));
        }
        parts.push(match &tail[1..close] {
            "name" => Part::Name,
            "namespace" => Part::Namespace,
            "tailnet" => Part::Tailnet,
            other => {
                return Err(FormatError::unreadable(format!(
                    "has the unknown placeholder {{{other}}}: there are {{name}}, {{namespace}} and {{tailnet}}"
                )));
            }
        });
        rest = &tail[close + 1..];
    }
    if !rest.is_empty() {
        parts.push(Part::Literal(rest.to_owned()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespaces(template: &str, name: &str) -> Vec<String> {
        let template: NameTemplate = template.parse().unwrap();
        template
            .namespaces_in(name, "corp")
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_dot_between_the_two_leaves_one_reading() {
        assert_eq!(
            namespaces("{name}.{namespace}.x.net", "portal.team-a.x.net"),
            ["team-a"]
        );
        assert_eq!(namespaces("{namespace}.{name}.{tailnet}.x", "a.b.corp.x"), ["a"]);
        assert!(namespaces("{name}.{namespace}.x.net", "portal.x.net").is_empty());
        assert!(namespaces("{name}.x.net", "portal.x.net").is_empty());
    }

    #[test]
    fn without_a_dot_every_reading_is_found() {
        assert_eq!(namespaces("{name}-{namespace}.x", "a-b-c.x"), ["b-c", "c"]);
        assert_eq!(namespaces("{namespace}-{name}.x", "a-b-c.x"), ["a", "a-b"]);
        assert_eq!(namespaces("{name}-{namespace}-{name}.x", "a-b-c-a.x"), ["b-c"]);
        assert!(namespaces("{name}-{namespace}.x", "a-b-c.y").is_empty());
    }

    #[test]
    fn long_names_take_no_long_time() {
        let template: NameTemplate = "{name}-{namespace}.{namespace}{name}.x".parse().unwrap();
        let name = format!("{0}.{0}.x", "a-".repeat(31).trim_end_matches('-'));
        assert!(template.namespaces_in(&name, "corp").is_empty());
    }
}
