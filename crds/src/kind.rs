//! The five kinds.

use std::fmt;
use std::str::FromStr;

/// API group.
pub const GROUP: &str = "tsunaro.io";
/// API version.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of our objects.
pub const API_VERSION: &str = "tsunaro.io/v1alpha1";

/// The five kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One Headscale server.
    Tailnet,
    /// Pods reach things on, or routed through, the tailnet.
    TailnetEgress,
    /// Tailnet peers reach Services.
    TailnetIngress,
    /// A remote network behind a router.
    TailnetSite,
    /// Subnet router and split-DNS resolver.
    TailnetGateway,
}

/// Whether objects of a kind have a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// They have none.
    Cluster,
    /// They have one.
    Namespaced,
}

impl Kind {
    /// All, in the order of the documentation.
    pub const ALL: [Self; 5] = [
        Self::Tailnet,
        Self::TailnetEgress,
        Self::TailnetIngress,
        Self::TailnetSite,
        Self::TailnetGateway,
    ];

    /// `kind` of the objects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tailnet => "Tailnet",
            Self::TailnetEgress => "TailnetEgress",
            Self::TailnetIngress => "TailnetIngress",
            Self::TailnetSite => "TailnetSite",
            Self::TailnetGateway => "TailnetGateway",
        }
    }

    /// Resource name in URLs and RBAC.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Tailnet => "tailnets",
            Self::TailnetEgress => "tailnetegresses",
            Self::TailnetIngress => "tailnetingresses",
            Self::TailnetSite => "tailnetsites",
            Self::TailnetGateway => "tailnetgateways",
        }
    }

    /// Name for `kubectl get`.
    pub fn short_name(self) -> &'static str {
        match self {
            Self::Tailnet => "tn",
            Self::TailnetEgress => "tneg",
            Self::TailnetIngress => "tning",
            Self::TailnetSite => "tnsite",
            Self::TailnetGateway => "tngw",
        }
    }

    /// Whether objects have a namespace.
    pub fn scope(self) -> Scope {
        match self {
            Self::TailnetEgress | Self::TailnetIngress => Scope::Namespaced,
            Self::Tailnet | Self::TailnetSite | Self::TailnetGateway => Scope::Cluster,
        }
    }

    /// Name of the CustomResourceDefinition.
    pub fn crd_name(self) -> String {
        format!("{}.{GROUP}", self.plural())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is none of the five kinds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of Tailnet, TailnetEgress, TailnetIngress, TailnetSite, TailnetGateway")]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    /// Reads `kind` as objects write it.
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownKind(text.to_owned()))
    }
}
