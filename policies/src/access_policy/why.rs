//! Which rule of a policy lets somebody through, and where it comes from.

use std::fmt;

use tailnet_headscale::document::{Document, ParseError, Policy, Posture, rule_lines};

use super::origins::origins;
use crate::base::without_port;
use crate::policy_tests::{Answer, any, grants_by_router, reaches, rules_of};

/// Who wants to reach what, over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// A user, group, tag, host or address.
    pub src: String,
    /// A tag, host or address.
    pub dst: String,
    /// The port.
    pub port: u16,
}

/// A text is no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no destination with a port: write 192.0.2.10:5432, [2001:db8::1]:443, tag:web:443 or HOST:PORT")]
pub struct QuestionError(String);

impl Question {
    /// Reads `DST:PORT`.
    ///
    /// # Errors
    /// There is no port behind the last colon, or nothing before it.
    pub fn new(src: &str, dst: &str) -> Result<Self, QuestionError> {
        let error = || QuestionError(dst.to_owned());
        let (_, port) = dst.rsplit_once(':').ok_or_else(error)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(error)?;
        let name = without_port(dst);
        if name.is_empty() || name == "tag" {
            return Err(error());
        }
        Ok(Self {
            src: src.to_owned(),
            dst: name.to_owned(),
            port,
        })
    }
}

/// How sure an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sureness {
    /// It holds whatever nodes there are.
    Certain,
    /// It holds if Headscale finds that an address, a user or a second tag of a node fits.
    Depends,
}

/// One rule that lets it through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// `grants[3]`, or empty when the document has no rules at all.
    pub rule: String,
    /// Line of the document.
    pub line: usize,
    /// The object that the entry was generated for, as its comment says; None for an entry of the base document.
    pub object: Option<String>,
    /// How sure it is.
    pub sureness: Sureness,
}

impl fmt::Display for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sureness {
            Sureness::Certain => f.write_str("allowed by ")?,
            Sureness::Depends => f.write_str("perhaps allowed (Headscale knows which node has which name) by ")?,
        }
        if self.rule.is_empty() {
            return f.write_str(
                "the absence of rules: the policy has neither acls nor grants, everybody reaches everything",
            );
        }
        write!(f, "{} (line {})", self.rule, self.line)?;
        match &self.object {
            Some(object) => write!(f, ", generated for {object}"),
            None => f.write_str(", written in the base document"),
        }
    }
}

/// The rules of `text` that let the question's source through, the certain ones first; none: it is refused.
///
/// # Errors
/// The text is no HuJSON.
pub fn why(text: &str, question: &Question) -> Result<Vec<Allowance>, ParseError> {
    let document = Document::parse(text)?;
    let policy = document.policy();
    if policy.posture() == Posture::AllowAll {
        return Ok(vec![Allowance {
            rule: String::new(),
            line: 1,
            object: None,
            sureness: Sureness::Certain,
        }]);
    }
    let lines: Vec<(String, usize)> = rule_lines(text)?
        .into_iter()
        .map(|(rule, line)| (rule.to_string(), line))
        .collect();
    let origins = origins(text);
    let mut found: Vec<Allowance> = answers(policy, question)
        .into_iter()
        .filter(|(_, answer)| *answer != Answer::No)
        .map(|(rule, answer)| {
            let line = lines
                .iter()
                .find(|(known, _)| *known == rule)
                .map_or(1, |(_, line)| *line);
            Allowance {
                object: origins.get(line - 1).cloned().flatten(),
                line,
                rule,
                sureness: match answer {
                    Answer::Yes => Sureness::Certain,
                    _ => Sureness::Depends,
                },
            }
        })
        .collect();
    found.sort_by_key(|allowance| allowance.sureness);
    found.dedup_by(|later, earlier| later.rule == earlier.rule);
    Ok(found)
}

fn answers(policy: &Policy, question: &Question) -> Vec<(String, Answer)> {
    let source = |src: &[String]| match question.src.starts_with("tag:") {
        // Whether a node has a second tag, nobody asked.
        true => src
            .iter()
            .map(|entry| match entry.starts_with("tag:") {
                true if *entry == question.src => Answer::Yes,
                true => Answer::No,
                false => any(&question.src, std::slice::from_ref(entry), policy),
            })
            .max()
            .unwrap_or(Answer::No),
        false => any(&question.src, src, policy),
    };
    let mut answers: Vec<(String, Answer)> = rules_of(policy)
        .iter()
        .map(|rule| {
            let answer = source(&rule.src)
                .min(reaches(&question.dst, &rule.dst, policy))
                .min(rule.allows_port("tcp", i64::from(question.port)));
            (rule.place.clone(), answer)
        })
        .collect();
    answers.extend(grants_by_router(policy).into_iter().map(|rule| {
        let answer = source(&rule.src)
            .min(reaches(&question.dst, &rule.dst, policy))
            .min(rule.allows_port("tcp", i64::from(question.port)))
            .min(Answer::Unknown);
        (rule.place, answer)
    }));
    answers
}
