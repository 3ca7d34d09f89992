//! The words of a decision.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the webhook answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Allowed; no rule had anything to say.
    Allow,
    /// Allowed, with warnings.
    Warn,
    /// Refused by a rule.
    Deny,
    /// Allowed although a rule would have refused: the requester may skip it and asked for that.
    Bypass,
    /// Defaults were filled in (endpoint `mutate` only).
    Patch,
    /// No rule could decide. `/validate` refuses then; `/mutate` lets the object through without defaults, and `/validate`
    /// has the last word.
    Error,
}

impl Decision {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Allow,
        Self::Warn,
        Self::Deny,
        Self::Bypass,
        Self::Patch,
        Self::Error,
    ];

    /// The word in lines, annotations and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Warn => "warn",
            Self::Deny => "deny",
            Self::Bypass => "bypass",
            Self::Patch => "patch",
            Self::Error => "error",
        }
    }

    /// What it means, for the reference.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Allow => "allowed; no rule had anything to say",
            Self::Warn => "allowed, with warnings",
            Self::Deny => "refused by a rule",
            Self::Bypass => "allowed although a rule would have refused: the requester may skip it and asked for that",
            Self::Patch => "defaults were filled in (endpoint `mutate` only)",
            Self::Error => {
                "no rule could decide: `/validate` refuses, `/mutate` lets the object through without defaults"
            }
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Decision {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL
            .into_iter()
            .find(|decision| decision.as_str() == word)
            .ok_or(())
    }
}

/// Which of the webhook's two endpoints was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    /// `/validate`: the rules.
    Validate,
    /// `/mutate`: the defaults.
    Mutate,
}

impl Endpoint {
    /// The word in lines and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Validate => "validate",
            Self::Mutate => "mutate",
        }
    }
}

/// Why no rule decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Nothing that rules are about (another group, a subresource); allowed.
    NoRules,
    /// A fault of the webhook; its log says more.
    Panic,
    /// The time was up.
    Deadline,
    /// The review is larger than what is read.
    TooLarge,
    /// The review cannot be read.
    Unreadable,
    /// A version or form of review that this webhook does not know.
    Version,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NoRules,
        Self::Panic,
        Self::Deadline,
        Self::TooLarge,
        Self::Unreadable,
        Self::Version,
    ];

    /// The word in lines, annotations and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRules => "no-rules",
            Self::Panic => "panic",
            Self::Deadline => "deadline",
            Self::TooLarge => "too-large",
            Self::Unreadable => "unreadable",
            Self::Version => "version",
        }
    }

    /// What it means, for the reference.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::NoRules => "allowed: nothing that rules are about (another API group, a subresource)",
            Self::Panic => "error: a fault of the webhook; its log says more",
            Self::Deadline => "error: the time was up",
            Self::TooLarge => "error: the review is larger than what is read",
            Self::Unreadable => {
                "error: the review cannot be read; the API server takes this for a failed call, its audit log has no annotation of ours"
            }
            Self::Version => "error: a version or form of review that this webhook does not know",
        }
    }
}

impl FromStr for Reason {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Decision, Endpoint, Reason};

    #[test]
    fn words_are_those_of_json() {
        let json = |value: serde_json::Result<String>| value.unwrap().trim_matches('"').to_owned();
        for decision in Decision::ALL {
            assert_eq!(json(serde_json::to_string(&decision)), decision.as_str());
            assert_eq!(decision.as_str().parse(), Ok(decision));
        }
        for reason in Reason::ALL {
            assert_eq!(json(serde_json::to_string(&reason)), reason.as_str());
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        for endpoint in [Endpoint::Validate, Endpoint::Mutate] {
            assert_eq!(json(serde_json::to_string(&endpoint)), endpoint.as_str());
        }
        assert_eq!("Deny".parse::<Decision>(), Err(()));
    }
}
