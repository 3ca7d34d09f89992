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
