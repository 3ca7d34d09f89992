//! One link of the chain, and the answer that all of them make.

use serde::{Serialize, Serializer};
use tailnet_crds::conditions::reason_row;
use tailnet_crds::{Kind, Team, Turn};

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It holds.
    Ok,
    /// It does not.
    Broken,
    /// Nobody knows (yet).
    Unknown,
    /// Worth a word, but nothing depends on it.
    Note,
}

impl State {
    /// Of a condition's status.
    pub fn of(status: &str) -> Self {
        match status {
            "True" => Self::Ok,
            "False" => Self::Broken,
            _ => Self::Unknown,
        }
    }

    /// Whether the chain ends here.
    pub fn stops(self) -> bool {
        matches!(self, Self::Broken | Self::Unknown)
    }
}

/// One link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// `operator`, `accepted`, `tailnet`, `key`, `node`, `route`, `grant`, `dns`, `certificate`, `agent`, `backend`, or a
    /// condition's type in lower camel case where it has no place in this list.
    pub link: String,
    /// The target that it is about, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What the kind calls a target.
    #[serde(skip)]
    noun: &'static str,
    /// How it is.
    pub state: State,
    /// As in the table of reasons, or one of [`Own`].
    pub reason: String,
    /// The operator's words, or ours.
    pub message: String,
    /// Whose turn it is.
    #[serde(serialize_with = "team")]
    pub turn: Option<Team>,
    /// What to run next: commands, and comments where a file has to be edited between them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
}

fn team<S: Serializer>(team: &Option<Team>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(team.map_or("nobody", Team::as_str))
}

/// Reasons that no condition has: what `why` finds out itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// The operator's Lease is old: what the status says may be old too.
    OperatorSilent,
    /// There is no Lease.
    OperatorUnseen,
    /// The operator has not written a status for this generation.
    NotObserved,
    /// No node of the agents is online.
    NodeOffline,
    /// A probe could not be made.
    ProbeFailed,
}

impl Own {
    /// As printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OperatorSilent => "OperatorSilent",
            Self::OperatorUnseen => "OperatorUnseen",
            Self::NotObserved => "NotObserved",
            Self::NodeOffline => "NodeOffline",
            Self::ProbeFailed => "ProbeFailed",
        }
    }

    /// Whose turn it is.
    pub fn turn(self) -> Turn {
        match self {
            Self::NotObserved => Turn::Wait,
            Self::OperatorSilent | Self::OperatorUnseen | Self::NodeOffline | Self::ProbeFailed => Turn::Platform,
        }
    }
}

impl Link {
    /// A link with a reason of the table; the turn is the table's.
    pub fn new(kind: Kind, link: &str, state: State, reason: &str, message: impl Into<String>) -> Self {
        let turn = reason_row(reason).map_or(Turn::Wait, |row| row.turn);
        Self {
            link: link.to_owned(),
            target: None,
            noun: if kind == Kind::TailnetIngress {
                "expose"
            } else {
                "target"
            },
            state,
            reason: reason.to_owned(),
            message: message.into(),
            turn: if state.stops() { turn.team(kind) } else { None },
            next: Vec::new(),
        }
    }

    /// A link with a reason of ours.
    pub fn own(kind: Kind, link: &str, state: State, reason: Own, message: impl Into<String>) -> Self {
        Self {
            turn: if state.stops() { reason.turn().team(kind) } else { None },
            ..Self::new(kind, link, state, reason.as_str(), message)
        }
    }

    /// The same with another reason, for what is well.
    #[must_use]
    pub fn named(mut self, reason: &str) -> Self {
        self.reason = reason.to_owned();
        self
    }

    /// The same about a target.
    #[must_use]
    pub fn of_target(mut self, target: &str) -> Self {
        self.target = Some(target.to_owned());
        self
    }

    /// `route of target web`, `accepted`.
    pub fn name(&self) -> String {
        match &self.target {
            Some(target) => format!("{} of {} {target}", self.link, self.noun),
            None => self.link.clone(),
        }
    }
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Kind of the object.
    pub kind: &'static str,
    /// Its namespace; null for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Whether every link holds; null when that is not known.
    pub works: Option<bool>,
    /// The answer in one sentence.
    pub sentence: String,
    /// The first link that does not hold, or of which nobody knows.
    pub broken: Option<Link>,
    /// All links in order.
    pub links: Vec<Link>,
    /// What could not be read.
    pub notes: Vec<String>,
}

impl Answer {
    /// The answer that `links` make.
    pub fn new(kind: Kind, namespace: Option<String>, name: String, links: Vec<Link>, notes: Vec<String>) -> Self {
        let broken = links.iter().find(|link| link.state.stops()).cloned();
        let subject = match &namespace {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        };
        let (works, sentence) = match &broken {
            None => (Some(true), format!("{subject} works: every link holds.")),
            Some(link) => {
                let (works, what) = match link.state {
                    State::Broken => (Some(false), "does not work: its first broken link is"),
                    _ => (None, "is not known to work: the first link that nobody knows of is"),
                };
                let message = link.message.trim_end_matches('.');
                let said = if message.is_empty() {
                    String::new()
                } else {
                    format!(": {message}")
                };
                let turn = match link.turn {
                    Some(team) => format!("It is the turn of the {}.", team.as_str()),
                    None => "It goes on by itself: wait.".to_owned(),
                };
                (
                    works,
                    format!("{subject} {what} {} ({}){said}. {turn}", link.name(), link.reason),
                )
            }
        };
        Self {
            kind: kind.as_str(),
            namespace,
            name,
            works,
            sentence,
            broken,
            links,
            notes,
        }
    }
}
