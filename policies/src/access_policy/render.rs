//! Base document plus contributions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::json;
use tailnet_crds::{Kind, TailnetSpec};
use tailnet_headscale::document::edit::{self, Additions, Group};
use tailnet_headscale::document::{Document, Policy, Posture, Problem, ProblemKind};

use super::contributions::{Contribution, approvers, effective, grant_text, granted_tags, list};
use super::in_force::InForce;
use super::marker::Owner;
use super::origins::{comment, sources_in};
use super::principals::{owner_problem, source_problem};
use super::room::{MAX_BYTES, Member, within_shares, without_newest};
use super::sha256_hex;
use super::waiting_tests::{Registered, Waiting};
use crate::base;
use crate::finding::ObjectRef;
use crate::snapshot::Snapshot;

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

impl Rendered {
    /// The document that is wanted, its sha256 and its posture: the rendered one, or the open one if `acknowledged`
    /// (`policy.acknowledgePosture`) is its sha256.
    pub fn wanted(&self, acknowledged: Option<&str>) -> (&str, &str, Posture) {
        match &self.open {
            Some((text, sha256)) if acknowledged == Some(sha256) => (text, sha256, Posture::AllowAll),
            _ => (&self.text, &self.sha256, self.posture),
        }
    }
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
    /// What is in Headscale cannot be read: what a write would end, nobody can tell.
    #[error(
        "the live policy cannot be read ({problem}), so what is in force is not known and nothing may take its place: set a document in Headscale that can be read (headscale policy get, headscale policy set)"
    )]
    LiveUnreadable {
        /// With the place.
        problem: String,
    },
    /// More than Headscale takes, although no object without entries in force is in it.
    #[error("the rendered policy has {bytes} bytes, Headscale takes {MAX_BYTES}: remove objects or shorten the base")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
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
    if let Some(problem) = spoilt(document) {
        return Err(invalid(problem.to_string()));
    }
    let live = match ask.live.map(|text| (text, Document::parse(text))) {
        None => None,
        Some((_, Ok(live))) if live.is_blank() => None,
        Some((text, Ok(live))) => match spoilt(&live) {
            None => Some((text, live)),
            Some(problem) => {
                return Err(RenderError::LiveUnreadable {
                    problem: problem.to_string(),
                });
            }
        },
        Some((_, Err(error))) => {
            return Err(RenderError::LiveUnreadable {
                problem: error.to_string(),
            });
        }
    };
    let live = live.as_ref().map(|(text, live)| InForce::new(text, live.policy()));
    let plan = Plan {
        ask: &ask,
        spec,
        base: base.text(),
        policy: document.policy(),
        live: live.as_ref(),
        header: header(&ask, namespace, config_map),
    };
    let mut left_out = Vec::new();
    // What stands behind every tag, at most.
    let owners = list(&owned.tag_owners).len();
    let members = members(snapshot, ask.tailnet, spec, live.as_ref());
    let mut members = within_shares(members, owners, namespace, &mut left_out);
    loop {
        let rendered = plan.render(&members).map_err(|error| invalid(error.to_string()))?;
        let bytes = rendered.text.len();
        let Some(excess) = bytes.checked_sub(MAX_BYTES).filter(|excess| *excess > 0) else {
            left_out.extend(rendered.left_out);
            left_out.sort_by(|a, b| a.object.cmp(&b.object));
            return Ok(Rendered { left_out, ..rendered });
        };
        members = without_newest(members, excess, owners, &mut left_out).ok_or(RenderError::TooLarge { bytes })?;
    }
}

/// Why a document is not what Headscale would take. A key that this version does not know is Headscale's to judge.
fn spoilt(document: &Document) -> Option<&Problem> {
    let spoils = |problem: &&Problem| !matches!(problem.kind, ProblemKind::UnknownKey { .. });
    document.problems().iter().find(spoils)
}

/// The objects of a Tailnet with what they need, as far as the rules let them have effect; by their names.
fn members(snapshot: &Snapshot, tailnet: &str, spec: &TailnetSpec, live: Option<&InForce<'_>>) -> Vec<Member> {
    let approvers = approvers(spec);
    let in_force = live.map(|live| sources_in(live.text())).unwrap_or_default();
    let mut of_egresses: BTreeSet<IpAddr> = BTreeSet::new();
    let mut members: Vec<Member> = Vec::new();
    // Gateways last: they may advertise what the egresses have.
    for gateways in [false, true] {
        for object in snapshot.members(tailnet) {
            if object.kind == Kind::Tailnet || (object.kind == Kind::TailnetGateway) != gateways {
                continue;
            }
            let Some(needs) = effective(object, spec, &approvers, &of_egresses, snapshot, live) else {
                continue;
            };
            members.push(Member {
                in_force: in_force.contains(&object.reference().to_string()),
                reference: object.reference(),
                created: object.created.clone(),
                needs,
            });
        }
        of_egresses.extend(members.iter().flat_map(|member| member.needs.addresses.iter().copied()));
    }
    members.sort_by(|a, b| a.reference.cmp(&b.reference));
    members
}

/// Everything that a document is made of but the objects.
struct Plan<'a> {
    ask: &'a Ask<'a>,
    spec: &'a TailnetSpec,
    /// Text of the base document.
    base: &'a str,
    /// What it says.
    policy: &'a Policy,
    live: Option<&'a InForce<'a>>,
    header: Vec<String>,
}

impl Plan<'_> {
    fn text(&self, waiting: &Waiting, parts: &Parts) -> Result<String, edit::EditError> {
        edit::add(self.base, &parts.additions(&self.header, waiting))
    }

    fn render(&self, members: &[Member]) -> Result<Rendered, edit::EditError> {
        let live = self.live.map(InForce::policy);
        let parts = Parts::of(members, self.ask.tailnet, self.spec, self.policy, live);
        let mut waiting = Waiting::of(self.policy, self.ask.registered);
        let mut text = self.text(&waiting, &parts)?;
        // What waits is decided when something is written. Until then a test that runs goes on to run.
        if let (Some(live_text), Some(live)) = (self.ask.live, live)
            && !waiting.is_empty()
        {
            let at_rest = waiting.at_rest(self.policy, live);
            let mut kept = parts.clone();
            kept.close_if_open(&text, live);
            if self.text(&at_rest, &kept)? == live_text {
                (text, waiting) = (self.text(&at_rest, &parts)?, at_rest);
            }
        }
        let mut open = None;
        if let Some(live) = live {
            let mut closed = parts.clone();
            if closed.close_if_open(&text, live) {
                let closed_text = self.text(&waiting, &closed)?;
                let sha256 = sha256_hex(&text);
                open = Some((std::mem::replace(&mut text, closed_text), sha256));
            }
        }
        Ok(Rendered {
            sha256: sha256_hex(&text),
            posture: posture_of(&text),
            text,
            open,
            left_out: parts.left_out,
            sources: parts.sources,
            waiting: waiting.told(),
            notes: parts.notes,
            names: parts.names,
        })
    }
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
    fn of(members: &[Member], tailnet: &str, spec: &TailnetSpec, base: &Policy, live: Option<&Policy>) -> Self {
        let mut parts = Self::default();
        let approvers = approvers(spec);
        let needs = members
            .iter()
            .map(|member| (member.reference.clone(), member.needs.clone()));
        let mut needs: Vec<(ObjectRef, Contribution)> = needs.collect();

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

    /// Takes the rules of an object that names somebody who is not defined: nobody else's may suffer. What is in force for a
    /// frozen object stays, but for that name.
    fn keep_defined(&mut self, needs: &mut [(ObjectRef, Contribution)], base: &Policy, tags: &BTreeSet<String>) {
        for (reference, contribution) in needs {
            let named = contribution.grants.iter().flat_map(|grant| &grant.src);
            let named: BTreeSet<&String> = named.chain(&contribution.sources).collect();
            let problem = named
                .into_iter()
                .find_map(|name| Some(format!("{name} {}", source_problem(name, base, tags)?)));
            let Some(why) = problem else { continue };
            if contribution.frozen {
                for grant in &mut contribution.grants {
                    grant.src.retain(|name| source_problem(name, base, tags).is_none());
                }
                contribution.grants.retain(|grant| !grant.src.is_empty());
            } else {
                contribution.grants.clear();
            }
            self.left_out.push(LeftOut {
                object: reference.clone(),
                why,
            });
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
