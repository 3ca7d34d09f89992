//! Whose turn it is: who can do something about a reason.

use crate::Kind;

/// Who can do something about a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nobody: all is well.
    Done,
    /// Nobody yet: it goes on by itself.
    Wait,
    /// Whoever wrote the object: [`Turn::team`] says who that is for a kind.
    Author,
    /// Who runs the cluster and the operator.
    Platform,
    /// Who runs Headscale, its policy and the routers of the tailnet.
    TailnetAdmin,
}

/// The people that a turn can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Team {
    /// Who writes egress and ingress objects.
    Application,
    /// Who runs the cluster and the operator, and writes tailnets, sites and gateways.
    Platform,
    /// Who runs Headscale, its policy and the routers of the tailnet.
    TailnetAdmin,
}

impl Turn {
    /// The word in the table of reasons.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "",
            Self::Wait => "nobody: wait",
            Self::Author => "author",
            Self::Platform => Team::Platform.as_str(),
            Self::TailnetAdmin => Team::TailnetAdmin.as_str(),
        }
    }

    /// Whose turn it is with an object of `kind`; None when nobody can do anything now.
    pub fn team(self, kind: Kind) -> Option<Team> {
        match self {
            Self::Done | Self::Wait => None,
            Self::Author => Some(match kind {
                Kind::TailnetEgress | Kind::TailnetIngress => Team::Application,
                Kind::Tailnet | Kind::TailnetSite | Kind::TailnetGateway => Team::Platform,
            }),
            Self::Platform => Some(Team::Platform),
            Self::TailnetAdmin => Some(Team::TailnetAdmin),
        }
    }
}

impl Team {
    /// For people: `application team`, `platform team` or `tailnet admin`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Application => "application team",
            Self::Platform => "platform team",
            Self::TailnetAdmin => "tailnet admin",
        }
    }
}
