//! One finding of `doctor`.

use serde::Serialize;
use tailnet_crds::Team;

/// How a part of the installation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It cannot be told from here, or may not be read.
    Unknown,
    /// It works, and somebody should look at it.
    Warn,
    /// It does not work.
    Fail,
}

impl State {
    /// In the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "?",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub check: String,
    /// How it is.
    pub state: State,
    /// What was seen.
    pub message: String,
    /// Whose turn it is.
    pub turn: Option<&'static str>,
    /// What to run next.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
}

impl Check {
    fn new(check: &str, state: State, message: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            state,
            message: message.into(),
            turn: None,
            next: Vec::new(),
        }
    }

    /// All is well.
    pub fn ok(check: &str, message: impl Into<String>) -> Self {
        Self::new(check, State::Ok, message)
    }

    /// Nobody can tell.
    pub fn unknown(check: &str, message: impl Into<String>) -> Self {
        Self::new(check, State::Unknown, message)
    }

    /// It does not work, and it is the platform team's turn.
    pub fn fail(check: &str, message: impl Into<String>, next: Vec<String>) -> Self {
        Self {
            turn: Some(Team::Platform.as_str()),
            next,
            ..Self::new(check, State::Fail, message)
        }
    }

    /// It works, but.
    pub fn warn(check: &str, message: impl Into<String>, next: Vec<String>) -> Self {
        Self {
            turn: Some(Team::Platform.as_str()),
            next,
            ..Self::new(check, State::Warn, message)
        }
    }

    /// What a failed read says.
    pub fn unread(check: &str, what: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 401 || status.code == 403 => {
                Self::unknown(check, format!("you may not read {what}"))
            }
            other => Self::unknown(check, format!("cannot read {what}: {other}")),
        }
    }
}
