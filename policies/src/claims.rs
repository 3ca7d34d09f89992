//! Who holds what since when: the guarantee behind the overlap rules.
//!
//! Two objects created at once both pass an overlap check at admission. So the leading operator records the holders in a
//! ConfigMap per Tailnet (`tailnet-claims-T`, key [`DATA_KEY`]), and everybody follows the record: the incumbent wins;
//! where there is no record, the older object, then namespace and name decide.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tailnet_crds::Kind;

use crate::finding::{ObjectRef, RefKind};
use crate::prefixes::PrefixIndex;

/// Version of the format.
pub const FORMAT_VERSION: u32 = 1;
/// Key of the ConfigMap's data.
pub const DATA_KEY: &str = "claims";

/// Something that only one object may have. Within a Tailnet, except Services, which share the operator namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimKey {
    /// Address space of a site; overlapping prefixes exclude each other.
    Prefix(IpNet),
    /// DNS name, canonical: an egress alias, a name or short name of an ingress, the apex of a gateway's zone.
    Name(String),
    /// Tag of an egress or ingress, with `tag:`.
    Tag(String),
    /// Service in the operator namespace: an egress target's, a gateway's.
    Service(String),
    /// Node name in Headscale.
    Hostname(String),
    /// Tag that the routers of a site or gateway have: of each object its own, since routers share tags. It only says since
    /// when.
    Router {
        /// The object, `TailnetSite/lab`.
        of: String,
        /// The tag, with `tag:`.
        tag: String,
    },
}

impl fmt::Display for ClaimKey {
    /// `prefix:10.0.0.0/24`, `name:db.example.net`, `tag:tag:egress-a`, `service:remote-db`, `hostname:portal-team-a`,
    /// `router:TailnetSite/lab:tag:router`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => write!(f, "prefix:{prefix}"),
            Self::Name(name) => write!(f, "name:{name}"),
            Self::Tag(tag) => write!(f, "tag:{tag}"),
            Self::Service(service) => write!(f, "service:{service}"),
            Self::Hostname(hostname) => write!(f, "hostname:{hostname}"),
            Self::Router { of, tag } => write!(f, "router:{of}:{tag}"),
        }
    }
}

/// A text is not a claim key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a claim key such as prefix:10.0.0.0/24")]
pub struct ClaimKeyError(String);

impl FromStr for ClaimKey {
    type Err = ClaimKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ClaimKeyError(text.to_owned());
        let (kind, value) = text.split_once(':').ok_or_else(error)?;
        if value.is_empty() {
            return Err(error());
        }
        match kind {
            "prefix" => value.parse().map(Self::Prefix).map_err(|_| error()),
            "name" => Ok(Self::Name(value.to_owned())),
            "tag" => Ok(Self::Tag(value.to_owned())),
            "service" => Ok(Self::Service(value.to_owned())),
            "hostname" => Ok(Self::Hostname(value.to_owned())),
            "router" => {
                let (of, tag) = value.split_once(':').ok_or_else(error)?;
                Ok(Self::Router {
                    of: of.to_owned(),
                    tag: tag.to_owned(),
                })
            }
            _ => Err(error()),
        }
    }
}

/// One holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Kind of the holder.
    pub kind: String,
    /// Its namespace; absent for cluster-scoped kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its UID: an object of the same name that was made anew is another holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// RFC 3339 UTC time since when.
    pub since: String,
    /// Only of a restored record whose holder is not back: RFC 3339 UTC time until which nobody else gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_until: Option<String>,
}

impl Claim {
    /// Whether this claim is of that object. An unknown UID matches every one.
    pub fn is_of(&self, holder: &ObjectRef, uid: Option<&str>) -> bool {
        let kind = match holder.kind {
            RefKind::Ours(kind) => kind.as_str(),
            RefKind::Service => return false,
        };
        self.kind == kind
            && self.namespace == holder.namespace
            && self.name == holder.name
            && match (self.uid.as_deref(), uid) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            }
    }
}

/// Content of one Tailnet's claims ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claims {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// UID of the operator's namespace when this was written: a record with another one was restored from a backup, and
    /// names UIDs that are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// Holder by key in its text form.
    pub claims: BTreeMap<String, Claim>,
}

/// Why a text is not claims.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    /// Not the format.
    #[error("the claims cannot be read: {0}; delete the tailnet-claims ConfigMap and the operator makes it anew")]
    Malformed(#[from] serde_json::Error),
    /// A newer operator wrote them.
    #[error(
        "the claims have format {found}, this program reads {FORMAT_VERSION}; bring operator and webhook to one version"
    )]
    Version {
        /// Version found.
        found: u32,
    },
}

impl Claims {
    /// Claims without any holder.
    pub fn empty() -> Self {
        Self {
            version: FORMAT_VERSION,
            installation: None,
            claims: BTreeMap::new(),
        }
    }

    /// A record that came from a backup: every claim is of whoever comes back under the holder's name, whatever its new UID,
    /// and is kept for it until `until` (RFC 3339 UTC).
    #[must_use]
    pub fn restored(mut self, until: &str) -> Self {
        for claim in self.claims.values_mut() {
            claim.uid = None;
            claim.reserved_until = Some(until.to_owned());
        }
        self
    }

    /// Reads the ConfigMap's text.
    pub fn from_json(text: &str) -> Result<Self, ClaimsError> {
        let claims: Self = serde_json::from_str(text)?;
        match claims.version {
            FORMAT_VERSION => Ok(claims),
            found => Err(ClaimsError::Version { found }),
        }
    }

    /// The ConfigMap's text; equal claims give equal text.
    pub fn to_json(&self) -> Result<String, ClaimsError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Who holds a key.
    pub fn holder(&self, key: &ClaimKey) -> Option<&Claim> {
        self.claims.get(&key.to_string())
    }
}

/// One object's wish for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// What it wants.
    pub key: ClaimKey,
    /// Kind of the object.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Option<String>,
    /// Its creationTimestamp, RFC 3339 UTC.
    pub created: Option<String>,
    /// Whether it may only keep what it has: objects that the rules refuse for another reason get nothing new.
    pub keep_only: bool,
}

impl Want {
    /// The object.
    pub fn holder(&self) -> ObjectRef {
        ObjectRef::ours(self.kind, self.namespace.as_deref(), &self.name)
    }
}

/// Decides who holds what: the incumbents of `previous` first (longest first), then the others by creationTimestamp, then
/// namespace, name and kind. A key that nobody wants any more is free. `now` is the `since` of new claims, RFC 3339 UTC.
pub fn resolve(previous: &Claims, wants: &[Want], now: &str) -> Claims {
    resolve_with_reserved(previous, wants, now, |_, _| false)
}

/// [`resolve`], with what a restored record reserves: for whom `is_away` says that the holder may still come, the claim
/// stays as it is while its time is not over.
pub fn resolve_with_reserved(
    previous: &Claims,
    wants: &[Want],
    now: &str,
    is_away: impl Fn(&ClaimKey, &Claim) -> bool,
) -> Claims {
    let incumbents_and_others = wants.iter().filter_map(|want| Candidate::of(want, previous, now));
    let reserved = previous.claims.iter().filter_map(|(key, claim)| {
        let open = claim.reserved_until.as_deref().is_some_and(|until| now < until);
        let key: ClaimKey = open.then(|| key.parse().ok()).flatten()?;
        let candidate = Candidate {
            new: false,
            at: &claim.since,
            kind: Kind::ALL.into_iter().find(|kind| kind.as_str() == claim.kind)?,
            claim: claim.clone(),
            key,
        };
        is_away(&candidate.key, claim).then_some(candidate)
    });
    // Who is back comes before his own reservation: the order of equals stays.
    let mut ordered: Vec<Candidate<'_>> = incumbents_and_others.chain(reserved).collect();
    ordered.sort_by(|a, b| a.rank().cmp(&b.rank()));

    let mut prefixes: PrefixIndex<(Kind, Option<String>, String)> = PrefixIndex::default();
    let mut claims = Claims::empty();
    for Candidate { kind, key, claim, .. } in ordered {
        if let ClaimKey::Prefix(prefix) = key {
            let holder = (kind, claim.namespace.clone(), claim.name.clone());
            if prefixes.overlapping(prefix).iter().any(|(_, other)| **other != holder) {
                continue;
            }
            prefixes.insert(prefix, holder);
        }
        claims.claims.entry(key.to_string()).or_insert(claim);
    }
    claims
}

/// Who may get a key, and how he stands among the others.
struct Candidate<'a> {
    /// Whether he has it not yet.
    new: bool,
    /// Since when he has it, or since when he exists.
    at: &'a str,
    kind: Kind,
    key: ClaimKey,
    /// The claim, if he gets it.
    claim: Claim,
}

impl<'a> Candidate<'a> {
    fn of(want: &'a Want, previous: &'a Claims, now: &str) -> Option<Self> {
        // Whoever has no creationTimestamp is not stored yet, hence youngest.
        const YOUNGEST: &str = "~";
        let incumbent = previous
            .holder(&want.key)
            .filter(|claim| claim.is_of(&want.holder(), want.uid.as_deref()));
        if incumbent.is_none() && want.keep_only {
            return None;
        }
        let at = match incumbent {
            Some(claim) => claim.since.as_str(),
            None => want.created.as_deref().unwrap_or(YOUNGEST),
        };
        let since = incumbent.map_or(now, |claim| claim.since.as_str());
        Some(Self {
            new: incumbent.is_none(),
            at,
            kind: want.kind,
            key: want.key.clone(),
            claim: Claim {
                kind: want.kind.as_str().to_owned(),
                namespace: want.namespace.clone(),
                name: want.name.clone(),
                uid: want.uid.clone(),
                since: since.to_owned(),
                reserved_until: None,
            },
        })
    }

    fn rank(&self) -> (bool, &str, Option<&str>, &str, Kind, &ClaimKey) {
        let Claim { namespace, name, .. } = &self.claim;
        (self.new, self.at, namespace.as_deref(), name, self.kind, &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-06-01T00:00:00Z";

    fn want(name: &str, key: &str, created: &str) -> Want {
        Want {
            key: key.parse().unwrap(),
            kind: Kind::TailnetSite,
            namespace: None,
            name: name.into(),
            uid: Some(format!("uid-{name}")),
            created: Some(created.into()),
            keep_only: false,
        }
    }

    fn holder(claims: &Claims, key: &str) -> Option<String> {
        claims.holder(&key.parse().unwrap()).map(|c| c.name.clone())
    }

    #[test]
    fn keys_survive_their_text() {
        for text in [
            "prefix:10.0.0.0/24",
            "name:a.b",
            "tag:tag:x",
            "service:db",
            "hostname:h",
            "router:TailnetSite/lab:tag:router",
        ] {
            assert_eq!(text.parse::<ClaimKey>().unwrap().to_string(), text);
        }
        for text in ["prefix:10.0.0.0", "colour:red", "name:", "name", "router:x"] {
            assert!(text.parse::<ClaimKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn without_a_record_the_older_object_wins_then_the_name() {
        let claims = resolve(
            &Claims::empty(),
            &[
                want("young", "prefix:10.0.0.0/16", "2026-02-01T00:00:00Z"),
                want("old", "prefix:10.0.1.0/24", "2026-01-01T00:00:00Z"),
                want("b", "name:x.example", "2026-01-01T00:00:00Z"),
                want("a", "name:x.example", "2026-01-01T00:00:00Z"),
            ],
            NOW,
        );
        assert_eq!(holder(&claims, "prefix:10.0.1.0/24").as_deref(), Some("old"));
        assert_eq!(holder(&claims, "prefix:10.0.0.0/16"), None);
        assert_eq!(holder(&claims, "name:x.example").as_deref(), Some("a"));
    }

    #[test]
    fn the_incumbent_wins_against_an_older_object_until_it_lets_go() {
        let first = resolve(
            &Claims::empty(),
            &[want("young", "prefix:10.0.0.0/16", "2026-02-01T00:00:00Z")],
            NOW,
        );
        let both = [
            want("young", "prefix:10.0.0.0/16", "2026-02-01T00:00:00Z"),
            want("old", "prefix:10.0.1.0/24", "2026-01-01T00:00:00Z"),
        ];
        let second = resolve(&first, &both, "2026-07-01T00:00:00Z");
        assert_eq!(second, first);
        let third = resolve(&second, &both[1..], "2026-07-01T00:00:00Z");
        assert_eq!(holder(&third, "prefix:10.0.1.0/24").as_deref(), Some("old"));
        assert_eq!(third.claims.len(), 1);
    }

    #[test]
    fn an_object_made_anew_is_not_the_incumbent() {
        let first = resolve(&Claims::empty(), &[want("a", "tag:tag:x", "2026-01-01T00:00:00Z")], NOW);
        let mut anew = want("a", "tag:tag:x", "2026-05-01T00:00:00Z");
        anew.uid = Some("other".into());
        let rival = want("b", "tag:tag:x", "2026-04-01T00:00:00Z");
        assert_eq!(
            holder(&resolve(&first, &[anew, rival], NOW), "tag:tag:x").as_deref(),
            Some("b")
        );
    }

    #[test]
    fn a_restored_record_is_of_whoever_comes_back_under_the_name() {
        let first = resolve(&Claims::empty(), &[want("a", "tag:tag:x", "2026-01-01T00:00:00Z")], OLD);
        let restored = first.restored("2026-06-01T00:10:00Z");
        let mut back = want("a", "tag:tag:x", "2026-06-01T00:00:00Z");
        back.uid = Some("new".into());
        let rival = want("b", "tag:tag:x", "2026-05-31T00:00:00Z");
        let claims = resolve(&restored, &[rival, back], NOW);
        let held = &claims.claims["tag:tag:x"];
        assert_eq!(
            (held.name.as_str(), held.uid.as_deref(), held.since.as_str()),
            ("a", Some("new"), OLD)
        );
        assert_eq!(held.reserved_until, None, "it is his as any other");
    }

    #[test]
    fn what_is_reserved_is_nobodys_until_its_time_is_over_or_its_holder_is_back() {
        let keys = ["prefix:10.0.0.0/16", "name:x.example"];
        let had: Vec<Want> = keys.iter().map(|key| want("a", key, OLD)).collect();
        let restored = resolve(&Claims::empty(), &had, OLD).restored("2026-06-01T00:10:00Z");
        // Older than the record, and overlapping instead of equal.
        let rivals = [
            want("b", "prefix:10.0.1.0/24", "2025-01-01T00:00:00Z"),
            want("b", "name:x.example", "2025-01-01T00:00:00Z"),
            want("b", "name:y.example", "2025-01-01T00:00:00Z"),
        ];
        let at = |now: &str, away: bool| resolve_with_reserved(&restored, &rivals, now, |_, _| away);
        let kept = at(NOW, true);
        assert_eq!(kept.claims["prefix:10.0.0.0/16"], restored.claims["prefix:10.0.0.0/16"]);
        assert_eq!(holder(&kept, "name:x.example").as_deref(), Some("a"));
        assert_eq!(holder(&kept, "prefix:10.0.1.0/24"), None);
        assert_eq!(
            holder(&kept, "name:y.example").as_deref(),
            Some("b"),
            "what nobody had is free"
        );
        for free in [at("2026-06-01T00:10:00Z", true), at(NOW, false)] {
            assert_eq!(holder(&free, "prefix:10.0.1.0/24").as_deref(), Some("b"));
            assert_eq!(holder(&free, "name:x.example").as_deref(), Some("b"));
            assert_eq!(holder(&free, "prefix:10.0.0.0/16"), None);
        }
        // Decided again, it is the same.
        assert_eq!(resolve_with_reserved(&kept, &rivals, NOW, |_, _| true), kept);
    }

    #[test]
    fn a_refused_object_keeps_what_it_has_and_gets_nothing_new() {
        let first = resolve(
            &Claims::empty(),
            &[want("a", "name:x.example", "2026-01-01T00:00:00Z")],
            NOW,
        );
        let mut kept = want("a", "name:x.example", "2026-01-01T00:00:00Z");
        let mut fresh = want("a", "name:y.example", "2026-01-01T00:00:00Z");
        kept.keep_only = true;
        fresh.keep_only = true;
        let second = resolve(&first, &[kept, fresh], NOW);
        assert_eq!(holder(&second, "name:x.example").as_deref(), Some("a"));
        assert_eq!(holder(&second, "name:y.example"), None);
    }

    #[test]
    fn the_order_of_wants_decides_nothing() {
        let mut wants: Vec<_> = (0..20)
            .map(|i| {
                want(
                    &format!("s{i}"),
                    &format!("prefix:10.{}.0.0/{}", i % 5, 15 + i % 3),
                    &format!("2026-01-{:02}T00:00:00Z", 1 + i % 7),
                )
            })
            .collect();
        let forward = resolve(&Claims::empty(), &wants, NOW);
        wants.reverse();
        assert_eq!(resolve(&Claims::empty(), &wants, NOW), forward);
    }

    #[test]
    fn the_text_form_is_versioned() {
        let claims = resolve(
            &Claims::empty(),
            &[want("a", "name:x.example", "2026-01-01T00:00:00Z")],
            NOW,
        );
        assert_eq!(Claims::from_json(&claims.to_json().unwrap()).unwrap(), claims);
        assert!(matches!(
            Claims::from_json(r#"{"version":9,"claims":{}}"#),
            Err(ClaimsError::Version { found: 9 })
        ));
        assert!(matches!(Claims::from_json("{"), Err(ClaimsError::Malformed(_))));
    }
}
