//! Base document plus contributions.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde_json::json;
use tailnet_crds::{Kind, TailnetSpec};
use tailnet_headscale::document::edit::{self, Additions, Group};
use tailnet_headscale::document::{Document, Policy, Posture, Problem, ProblemKind};

use super::contributions::{Contribution, approvers, contribution, grant_text, granted_tags, list};
use super::marker::Owner;
use super::principals::{owner_problem, source_problem};
use super::sha256_hex;
use super::waiting_tests::{Registered, Waiting};
use crate::base;
use crate::evaluate::verdict_of;
use crate::finding::ObjectRef;
use crate::object::Object;
use crate::snapshot::Snapshot;
use crate::table;

/// Most bytes of a rendered document: Headscale takes a message of 4 MiB.
pub const MAX_BYTES: usize = 4_000_000;
/// Most bytes of generated entries for the objects of one namespace other than the operator's.
const MAX_NAMESPACE_BYTES: usize = 512 * 1024;
/// How the comment above generated entries begins.
const SOURCE: &str = "from ";
/// Most objects that one comment names.
const NAMED: usize = 3;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Name of the Tailnet.
    pub tailnet: &'a str,
    /// Who writes the document; None leaves the marker out.
    pub owner: Option<&'a Owner>,
    /// The document that is in Headscale now; None when it is not known or was never set.
    pub live: Option<&'a str>,
    /// Who has a node; None when that is not known: no test is set aside then.
    pub registered: Option<&'a Registered>,
}

/// An object whose entries are not in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The object.
    pub object: ObjectRef,
    /// Why, naming what is undefined.
    pub why: String,
}

/// A rendered document.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The document.
    pub text: String,
    /// Its sha256, hex.
    pub sha256: String,
    /// What holds where no rule says anything.
    pub posture: Posture,
    /// The document has no rules of its own and got an empty list of them, since the live one has rules: this is the
    /// document without that list. Whoever acknowledges its sha256 opens the tailnet.
    pub open: Option<(String, String)>,
    /// Objects that lost their entries for a fault of their own.
    pub left_out: Vec<LeftOut>,
    /// The objects (as in [`ObjectRef`]'s text) that entries come from.
    pub sources: BTreeSet<String>,
    /// Tests that are set aside, one sentence each.
    pub waiting: Vec<String>,
    /// What else people should know.
    pub notes: Vec<String>,
    /// Names in the entries of each object: whose entries a message of Headscale is about.
    pub names: Vec<(ObjectRef, BTreeSet<String>)>,
}

/// Why nothing can be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// There is no such Tailnet, or it does not own the policy.
    #[error("Tailnet {0} has no spec.policy")]
    NoPolicy(String),
    /// No base document.
    #[error("there is no ConfigMap {config_map} with the key {key} in namespace {namespace}", key = base::KEY)]
    BaseMissing {
        /// Name of the ConfigMap.
        config_map: String,
        /// Namespace of the operator.
        namespace: String,
    },
    /// The base document cannot be added to.
    #[error("ConfigMap {config_map}, key {key}: {problem}", key = base::KEY)]
    BaseInvalid {
        /// Name of the ConfigMap.
        config_map: String,
        /// With the place.
        problem: String,
    },
    /// More than Headscale takes.
    #[error("the rendered policy has {bytes} bytes, Headscale takes {MAX_BYTES}: remove objects or shorten the base")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}

/// What the rules say of an object.
enum Standing {
    Valid,
    /// What is in force stays, nothing new comes.
    Frozen,
    /// It has no effect.
    Withdrawn,
}

fn standing(object: &Object, snapshot: &Snapshot) -> Standing {
    if object.deleting {
        return Standing::Withdrawn;
    }
    let denials = verdict_of(object, snapshot);
    let security = |id| table::rule(id).is_some_and(|rule| rule.security);
    match denials.iter().any(|finding| security(finding.rule)) {
        true => Standing::Withdrawn,
        false if denials.is_empty() => Standing::Valid,
        false => Standing::Frozen,
    }
}

/// Renders the policy of a Tailnet.
///
/// # Errors
/// See [`RenderError`].
pub fn render(snapshot: &Snapshot, ask: Ask<'_>) -> Result<Rendered, RenderError> {
    let no_policy = || RenderError::NoPolicy(ask.tailnet.to_owned());
    let tailnet = snapshot.get(Kind::Tailnet, None, ask.tailnet).ok_or_else(no_policy)?;
    let spec = tailnet.tailnet().ok_or_else(no_policy)?;
    let owned = spec.policy.as_ref().ok_or_else(no_policy)?;
    let config_map = &owned.base_config_map;
    let namespace = &snapshot.config().operator_namespace;
    let base = snapshot
        .base_document(config_map)
        .ok_or_else(|| RenderError::BaseMissing {
            config_map: config_map.clone(),
            namespace: namespace.clone(),
        })?;
    let invalid = |problem: String| RenderError::BaseInvalid {
        config_map: config_map.clone(),
        problem,
    };
    let document = base
        .document()
        .map_err(|error| invalid(format!("is no HuJSON: {error}")))?;
    // A key that this version does not know is Headscale's to judge.
    let spoils = |problem: &&Problem| !matches!(problem.kind, ProblemKind::UnknownKey { .. });
    if let Some(problem) = document.problems().iter().find(spoils) {
        return Err(invalid(problem.to_string()));
    }
    let live = ask.live.and_then(|text| Document::parse(text).ok());
    let live_policy = live.as_ref().filter(|live| !live.is_blank()).map(Document::policy);
    let parts = Parts::collect(snapshot, ask.tailnet, spec, document.policy(), live_policy);
    let header = header(&ask, namespace, config_map);

    let waiting = Waiting::of(document.policy(), ask.registered);
    let finish = |waiting: &Waiting, parts: &Parts| -> Result<String, RenderError> {
        let additions = parts.additions(&header, waiting);
        edit::add(base.text(), &additions).map_err(|error| invalid(error.to_string()))
    };
    let mut waiting_now = waiting;
    let mut text = finish(&waiting_now, &parts)?;
    // What waits is decided when something is written. Until then a test that runs goes on to run.
    if let (Some(live_text), Some(live_policy)) = (ask.live, live_policy)
        && !waiting_now.is_empty()
    {
        let at_rest = waiting_now.at_rest(document.policy(), live_policy);
        let mut kept = parts.clone();
        kept.close_if_open(&text, live_policy);
        let rested = finish(&at_rest, &kept)?;
        if rested == live_text {
            (text, waiting_now) = (finish(&at_rest, &parts)?, at_rest);
        }
    }
    let mut open = None;
    if let Some(live_policy) = live_policy {
        let mut closed = parts.clone();
        if closed.close_if_open(&text, live_policy) {
            let closed_text = finish(&waiting_now, &closed)?;
            let sha256 = sha256_hex(&text);
            open = Some((std::mem::replace(&mut text, closed_text), sha256));
        }
    }
    if text.len() > MAX_BYTES {
        return Err(RenderError::TooLarge { bytes: text.len() });
    }
    let posture = posture_of(&text);
    Ok(Rendered {
        sha256: sha256_hex(&text),
        text,
        posture,
        open,
        left_out: parts.left_out,
        sources: parts.sources,
        waiting: waiting_now.told(),
        notes: parts.notes,
        names: parts.names,
    })
}

fn posture_of(text: &str) -> Posture {
    Document::parse(text).map_or(Posture::Deny, |document| document.policy().posture())
}

fn header(ask: &Ask<'_>, namespace: &str, config_map: &str) -> Vec<String> {
    let mut header = Vec::new();
    header.extend(ask.owner.map(Owner::comment));
    header.push(format!(
        "Rendered by tailnet-operator from ConfigMap {namespace}/{config_map} and the objects of Tailnet {}; edits of this document are overwritten.",
        ask.tailnet
    ));
    header
}

/// The objects (as in [`ObjectRef`]'s text) that the comments of a document name as the origin of entries.
pub fn sources_in(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let Some(named) = line
            .trim()
            .strip_prefix("// ")
            .and_then(|line| line.strip_prefix(SOURCE))
        else {
            continue;
        };
        let named = named.split(" and ").next().unwrap_or_default();
        for name in named.split(", ") {
            let kind = name.split(' ').next().unwrap_or_default();
            if Kind::ALL
                .iter()
                .any(|known| *known != Kind::Tailnet && known.as_str() == kind)
            {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

/// What all objects together add.
#[derive(Clone, Default)]
struct Parts {
    tag_owners: Vec<Group>,
    routes: Vec<Group>,
    grants: Vec<Group>,
    left_out: Vec<LeftOut>,
    sources: BTreeSet<String>,
    notes: Vec<String>,
    names: Vec<(ObjectRef, BTreeSet<String>)>,
}

impl Parts {
    fn collect(snapshot: &Snapshot, tailnet: &str, spec: &TailnetSpec, base: &Policy, live: Option<&Policy>) -> Self {
        let mut parts = Self::default();
        let approvers = approvers(spec);
        let mut members: Vec<_> = snapshot
            .members(tailnet)
            .filter(|member| member.kind != Kind::Tailnet)
            .map(|member| (member.reference(), member))
            .collect();
        members.sort_by(|a, b| a.0.cmp(&b.0));
        let mut needs: Vec<(ObjectRef, Contribution)> = Vec::new();
        let mut frozen: BTreeSet<ObjectRef> = BTreeSet::new();
        for (reference, member) in members {
            match standing(member, snapshot) {
                Standing::Withdrawn => continue,
                Standing::Frozen => {
                    frozen.insert(reference.clone());
                }
                Standing::Valid => {}
            }
            needs.push((reference, contribution(member, spec, &approvers, snapshot)));
        }

        // Tags first: whether a name is defined depends on them.
        let mut owned: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut own = |tags: &BTreeSet<String>, by: &str| {
            for tag in tags.iter().filter(|tag| !base.tag_owners.contains_key(*tag)) {
                owned.entry(tag.clone()).or_default().push(by.to_owned());
            }
        };
        own(&approvers, &format!("Tailnet {tailnet} policy.routeApprovers"));
        own(&granted_tags(spec), &format!("Tailnet {tailnet} tagGrants"));
        for (reference, contribution) in &needs {
            own(&contribution.tags, &reference.to_string());
        }
        // The base may name the tag of an object that is gone; without an owner Headscale would refuse everybody's changes.
        for named in base::tags_named(base) {
            if live.is_some_and(|live| live.tag_owners.contains_key(&named)) && !owned.contains_key(&named) {
                owned.insert(named, vec!["the base document, which still names it".to_owned()]);
            }
        }
        let tags: BTreeSet<String> = owned.keys().chain(base.tag_owners.keys()).cloned().collect();
        let owners = parts.owners(spec, base, &tags);
        parts.tag_owners = grouped(
            owned
                .iter()
                .map(|(tag, by)| (by.clone(), format!("{}: {owners}", json!(tag)))),
        );

        parts.keep_defined(&mut needs, base, &tags);
        for (reference, contribution) in &mut needs {
            if frozen.contains(reference) {
                contribution.keep_what_is_in(live);
            }
        }
        parts.keep_within_share(&mut needs, &snapshot.config().operator_namespace);

        let known: BTreeSet<IpNet> = base
            .auto_approvers
            .routes
            .keys()
            .filter_map(|prefix| prefix.parse().ok())
            .collect();
        let mut routes: BTreeMap<IpNet, (BTreeSet<String>, Vec<String>)> = BTreeMap::new();
        for (reference, contribution) in &needs {
            for (prefix, by) in contribution
                .routes
                .iter()
                .filter(|(prefix, _)| !known.contains(*prefix))
            {
                let entry = routes.entry(*prefix).or_default();
                entry.0.extend(by.iter().cloned());
                entry.1.push(reference.to_string());
            }
        }
        parts.routes = grouped(
            routes
                .into_iter()
                .map(|(prefix, (approvers, by))| (by, format!("\"{prefix}\": {}", list(approvers)))),
        );
        for (reference, contribution) in needs {
            let entries: Vec<String> = contribution.grants.iter().map(grant_text).collect();
            if !entries.is_empty() {
                parts.grants.push(Group {
                    comment: comment(&[reference.to_string()]),
                    entries,
                });
            }
            if !contribution.grants.is_empty() || !contribution.routes.is_empty() {
                parts.sources.insert(reference.to_string());
            }
            parts.names.push((reference, contribution.names()));
        }
        parts
    }

    /// The owners of generated tags, as JSON.
    fn owners(&mut self, spec: &TailnetSpec, base: &Policy, tags: &BTreeSet<String>) -> String {
        let mut owners: Vec<String> = Vec::new();
        for owner in spec.policy.iter().flat_map(|policy| &policy.tag_owners) {
            let name = crate::index::canonical(owner);
            match owner_problem(&name, base, tags) {
                None => owners.push(name),
                Some(problem) => self
                    .notes
                    .push(format!("policy.tagOwners: {name} is left out: it {problem}")),
            }
        }
        list(owners)
    }

    /// Takes the rules of an object that names somebody who is not defined: nobody else's may suffer.
    fn keep_defined(&mut self, needs: &mut [(ObjectRef, Contribution)], base: &Policy, tags: &BTreeSet<String>) {
        for (reference, contribution) in needs {
            let mut sources = contribution.grants.iter().flat_map(|grant| &grant.src);
            let problem = sources.find_map(|name| Some((name.clone(), source_problem(name, base, tags)?)));
            if let Some((name, problem)) = problem {
                contribution.grants.clear();
                self.left_out.push(LeftOut {
                    object: reference.clone(),
                    why: format!("{name} {problem}"),
                });
            }
        }
    }

    /// Takes the rules of objects beyond what one namespace may fill: it must not use up everybody's room.
    fn keep_within_share(&mut self, needs: &mut [(ObjectRef, Contribution)], operator_namespace: &str) {
        let mut used: BTreeMap<String, usize> = BTreeMap::new();
        for (reference, contribution) in needs {
            let Some(namespace) = reference
                .namespace
                .clone()
                .filter(|namespace| namespace != operator_namespace)
            else {
                continue;
            };
            let bytes: usize = contribution.grants.iter().map(|grant| grant_text(grant).len()).sum();
            let used = used.entry(namespace.clone()).or_default();
            if *used + bytes > MAX_NAMESPACE_BYTES {
                contribution.grants.clear();
                self.left_out.push(LeftOut {
                    object: reference.clone(),
                    why: format!(
                        "the objects of namespace {namespace} fill more than {MAX_NAMESPACE_BYTES} bytes of the policy: shorten allowFrom or remove some"
                    ),
                });
            } else {
                *used += bytes;
            }
        }
    }

    /// Adds an empty list of rules when `text` has no rules and the live policy has; whether it did.
    fn close_if_open(&mut self, text: &str, live: &Policy) -> bool {
        let opens = live.posture() == Posture::Deny && posture_of(text) == Posture::AllowAll;
        if opens {
            self.grants.push(Group {
                comment: "no rules are left; without this empty list everybody could reach everything".to_owned(),
                entries: Vec::new(),
            });
        }
        opens
    }

    fn additions(&self, header: &[String], waiting: &Waiting) -> Additions {
        Additions {
            header: header.to_vec(),
            tag_owners: self.tag_owners.clone(),
            routes: self.routes.clone(),
            grants: self.grants.clone(),
            waiting_tests: waiting.tests.clone(),
            waiting_ssh_tests: waiting.ssh_tests.clone(),
        }
    }
}

impl Contribution {
    /// Leaves of rules and routes what the live policy has already.
    fn keep_what_is_in(&mut self, live: Option<&Policy>) {
        let known: BTreeSet<IpNet> = live
            .iter()
            .flat_map(|live| live.auto_approvers.routes.keys())
            .filter_map(|prefix| prefix.parse().ok())
            .collect();
        self.routes.retain(|prefix, _| known.contains(prefix));
        let grants: Vec<_> = live.iter().flat_map(|live| live.grants.iter().flatten()).collect();
        self.grants.retain(|grant| grants.contains(&grant));
    }

    fn names(&self) -> BTreeSet<String> {
        let mut names = self.tags.clone();
        names.extend(self.routes.keys().map(IpNet::to_string));
        for grant in &self.grants {
            names.extend(grant.src.iter().chain(&grant.dst).cloned());
        }
        names
    }
}

/// Entries with the same origins stand together, in the order in which the first of them came.
fn grouped(entries: impl Iterator<Item = (Vec<String>, String)>) -> Vec<Group> {
    let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for (by, entry) in entries {
        let at = *places.entry(by.clone()).or_insert_with(|| {
            groups.push(Group {
                comment: comment(&by),
                entries: Vec::new(),
            });
            groups.len() - 1
        });
        groups[at].entries.push(entry);
    }
    groups
}

/// `from TailnetEgress tailnet-system/team-a, TailnetSite lab and 2 more`
fn comment(by: &[String]) -> String {
    let named = by.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match by.len().saturating_sub(NAMED) {
        0 => format!("{SOURCE}{named}"),
        more => format!("{SOURCE}{named} and {more} more"),
    }
}
