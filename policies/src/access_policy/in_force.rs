//! What of an object's entries is in force: the live policy, read by the comments that name where entries come from.
//!
//! A frozen object keeps what is in force and gets nothing new. What is in force is not what its spec asks for now: it may have
//! been changed since, and what runs was made for what it asked for before.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use tailnet_crds::Kind;
use tailnet_headscale::document::edit::one_line;
use tailnet_headscale::document::{Grant, Policy, route_lines, rule_lines};

use super::contributions::{Contribution, egress_grants, ingress_grants, is_route};
use super::origins::{comment, named, origins};
use crate::guard_verdict::{Verdict, guard_verdict};
use crate::index::IndexKey;
use crate::names;
use crate::object::{Object, Spec};
use crate::snapshot::Snapshot;

/// Source, destination and TCP port.
type Reach = (String, String, i32);

/// The live policy.
pub(super) struct InForce<'a> {
    text: &'a str,
    policy: &'a Policy,
    found: OnceCell<Found>,
}

/// What the live policy has, by the origins that its comments name.
struct Found {
    /// Positions in `grants`, by the whole comment: a group of grants has one origin.
    grants: HashMap<String, Vec<usize>>,
    routes: HashMap<String, BTreeSet<IpNet>>,
    /// All keys of the routes.
    prefixes: HashSet<IpNet>,
    /// Everything that some grant of the form that is generated here lets through.
    reaches: HashSet<Reach>,
}

impl<'a> InForce<'a> {
    pub(super) fn new(text: &'a str, policy: &'a Policy) -> Self {
        Self {
            text,
            policy,
            found: OnceCell::new(),
        }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn policy(&self) -> &'a Policy {
        self.policy
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            let origins = origins(self.text);
            let origin = |line: usize| origins.get(line - 1).cloned().flatten();
            let mut grants: HashMap<String, Vec<usize>> = HashMap::new();
            let mut routes: HashMap<String, BTreeSet<IpNet>> = HashMap::new();
            // The text was read before: it is HuJSON.
            for (rule, line) in rule_lines(self.text).unwrap_or_default() {
                if let (tailnet_headscale::document::Rule::Grant(at), Some(origin)) = (rule, origin(line)) {
                    grants.entry(origin).or_default().push(at);
                }
            }
            for (prefix, line) in route_lines(self.text).unwrap_or_default() {
                if let (Ok(prefix), Some(origin)) = (prefix.parse::<IpNet>(), origin(line)) {
                    for object in named(&origin) {
                        routes.entry(object.to_owned()).or_default().insert(prefix);
                    }
                }
            }
            let all = self.policy.grants.iter().flatten();
            let prefixes = self.policy.auto_approvers.routes.keys();
            Found {
                prefixes: prefixes.filter_map(|prefix| prefix.parse().ok()).collect(),
                grants,
                routes,
                reaches: all.flat_map(reaches).collect(),
            }
        })
    }

    /// The grants below the comment of one object.
    fn grants_of(&self, object: &str) -> impl Iterator<Item = &'a Grant> {
        let whole = one_line(&comment(&[object.to_owned()]));
        let origin = whole.split_once(' ').map_or("", |(_, origin)| origin);
        let at = self.found().grants.get(origin).into_iter().flatten();
        at.filter_map(|at| self.policy.grants.as_ref()?.get(*at))
    }

    /// What a frozen `object` has in force, where `wants` is what its spec asks for now.
    pub(super) fn of(&self, object: &Object, wants: &Contribution, snapshot: &Snapshot) -> Contribution {
        let name = object.reference().to_string();
        let found = self.found();
        let mut kept = Contribution {
            tags: wants.tags.clone(),
            sources: wants.sources.clone(),
            ..Contribution::default()
        };
        kept.routes = wants.routes.clone();
        kept.routes.retain(|prefix, _| found.prefixes.contains(prefix));
        self.keep_former_routes(object, &name, wants, &mut kept, snapshot);

        if !matches!(object.kind, Kind::TailnetEgress | Kind::TailnetIngress) {
            return kept;
        }
        let mut reach: BTreeSet<Reach> = wants.grants.iter().flat_map(reaches).collect();
        reach.retain(|reach| found.reaches.contains(reach));
        let own_tag = |(src, dst, _): &Reach| match object.kind {
            Kind::TailnetEgress => src.clone(),
            _ => dst.clone(),
        };
        let tailnet = object
            .tailnet_name()
            .and_then(|name| snapshot.get(Kind::Tailnet, None, name));
        let tailnet_spec = tailnet.and_then(|tailnet| tailnet.tailnet());
        let mut allowed: BTreeMap<(String, String), bool> = BTreeMap::new();
        for former in self.grants_of(&name).flat_map(reaches) {
            if reach.contains(&former) {
                continue;
            }
            let tag = own_tag(&former);
            // A rule may be about whom an ingress lets in, and is about no address of an egress.
            let source = match object.kind {
                Kind::TailnetIngress => former.0.clone(),
                _ => String::new(),
            };
            let allowed = allowed.entry((tag, source)).or_insert_with_key(|(tag, source)| {
                // A tag that is the default one needs no leave.
                let default = names::default_tag_of(object, tailnet_spec);
                let former_tag = (default.as_ref() != Some(tag)).then(|| tag.as_str().into());
                tag.starts_with("tag:")
                    && (wants.tags.contains(tag) || is_nobody_elses(tag, object, snapshot))
                    && may_keep(object, snapshot, |former| match &mut former.spec {
                        Ok(Spec::Egress(spec)) => spec.tag = former_tag,
                        Ok(Spec::Ingress(spec)) => {
                            spec.tag = former_tag;
                            spec.allow_from = vec![source.as_str().into()];
                        }
                        _ => {}
                    })
            });
            if *allowed {
                reach.insert(former);
            }
        }
        kept.tags.extend(reach.iter().map(own_tag));
        kept.grants = match object.kind {
            Kind::TailnetEgress => grants_by(
                reach,
                |(src, dst, port)| Some((src, dst.parse::<IpAddr>().ok()?, port)),
                egress_grants,
            ),
            _ => grants_by(reach, |(src, dst, port)| Some((dst, src, port)), ingress_grants),
        };
        let destinations = kept.grants.iter().flat_map(|grant| &grant.dst);
        kept.addresses = destinations
            .filter_map(|dst| dst.parse().ok())
            .filter(is_route)
            .collect();
        kept
    }

    /// Routes that the object asked for before and that are in force. Not a gateway's, which follow the egresses.
    fn keep_former_routes(
        &self,
        object: &Object,
        name: &str,
        wants: &Contribution,
        kept: &mut Contribution,
        snapshot: &Snapshot,
    ) {
        let Some(approvers) = wants.routes.values().next() else {
            return;
        };
        for prefix in self.found().routes.get(name).into_iter().flatten() {
            if kept.routes.contains_key(prefix) {
                continue;
            }
            let keeps = match object.kind {
                Kind::TailnetEgress => true,
                Kind::TailnetSite => {
                    // The rules do not know the former prefix as this site's.
                    let sites = object
                        .tailnet_name()
                        .map(|name| snapshot.sites_overlapping(name, *prefix));
                    sites.into_iter().flatten().all(|(_, site)| site.same_as(object))
                        && may_keep(object, snapshot, |former| {
                            if let Ok(Spec::Site(spec)) = &mut former.spec {
                                spec.prefixes = vec![prefix.to_string().into()];
                            }
                        })
                }
                _ => false,
            };
            if keeps {
                kept.routes.insert(*prefix, approvers.clone());
            }
        }
    }
}

/// Whether no security rule is against what `object` had before, which `change` puts back.
fn may_keep(object: &Object, snapshot: &Snapshot, change: impl FnOnce(&mut Object)) -> bool {
    let mut former = object.clone();
    change(&mut former);
    !matches!(
        guard_verdict(&former, snapshot, |_| true, || false),
        Verdict::Withdraw(_)
    )
}

/// What a grant of the form that is generated here lets through; nothing of any other grant.
fn reaches(grant: &Grant) -> Vec<Reach> {
    if !grant.via.is_empty() || !grant.app.is_empty() {
        return Vec::new();
    }
    let ports: Vec<i32> = grant
        .ip
        .iter()
        .filter_map(|ip| ip.strip_prefix("tcp:")?.parse().ok())
        .collect();
    let mut found = Vec::new();
    for src in &grant.src {
        for dst in &grant.dst {
            found.extend(ports.iter().map(|port| (src.clone(), dst.clone(), *port)));
        }
    }
    found
}

/// Whether no other object, and no router, has a tag that this object had before: else its entries would be theirs.
fn is_nobody_elses(tag: &str, object: &Object, snapshot: &Snapshot) -> bool {
    let Some(tailnet) = object.tailnet_name() else {
        return false;
    };
    let of = || (tailnet.to_owned(), tag.to_owned());
    let (own, routers) = (IndexKey::Tag(of().0, of().1), IndexKey::RouterTag(of().0, of().1));
    let mut all = snapshot.indexed(&own).iter().chain(snapshot.indexed(&routers));
    all.all(|other| other.same_as(object))
}

/// Grants of `reach`, one tag after the other.
fn grants_by<P: Ord>(
    reach: BTreeSet<Reach>,
    split: impl Fn(Reach) -> Option<(String, P, i32)>,
    make: fn(&str, BTreeMap<P, BTreeSet<i32>>) -> Vec<Grant>,
) -> Vec<Grant> {
    let mut by_tag: BTreeMap<String, BTreeMap<P, BTreeSet<i32>>> = BTreeMap::new();
    for (tag, peer, port) in reach.into_iter().filter_map(split) {
        by_tag.entry(tag).or_default().entry(peer).or_default().insert(port);
    }
    by_tag.into_iter().flat_map(|(tag, peers)| make(&tag, peers)).collect()
}
