//! The chain: from what was read to the links, in the order in which they build on each other. Pure.

use serde_json::Value;
use tailnet_crds::Kind;
use tailnet_crds::conditions::condition::{
    ACCEPTED, API_KEY_READY, CERTIFICATE_READY, DNS_READY, KEY_READY, POLICY_READY, REACHABLE, READY, WORKLOAD_READY,
};
use tailnet_crds::conditions::{conditions_of, reason};

use super::egress;
use super::ingress;
use super::link::{Link, Own, State};
use super::next::Next;
use super::scene::{Operator, Scene};

/// All links, those that do not hold with what to run next.
pub fn links(scene: &Scene, next: &Next<'_>) -> Vec<Link> {
    let mut links = vec![operator(scene), accepted(scene)];
    match scene.kind {
        Kind::Tailnet => by_conditions(scene, &mut links),
        Kind::TailnetEgress => {
            links.push(tailnet(scene));
            egress::links(scene, &mut links);
        }
        Kind::TailnetIngress => {
            links.push(tailnet(scene));
            by_conditions(scene, &mut links);
            ingress::exposes(scene, &mut links);
        }
        Kind::TailnetSite | Kind::TailnetGateway => {
            links.push(tailnet(scene));
            by_conditions(scene, &mut links);
        }
    }
    ready(scene, &mut links);
    for link in &mut links {
        if link.state.stops() {
            link.next = next.commands(link);
        }
    }
    links
}

/// A condition as stored.
#[derive(Clone, Copy, Debug)]
pub struct Condition<'a> {
    pub status: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
    observed: Option<i64>,
}

/// The condition `type` of an object.
pub fn condition<'a>(object: &'a Value, r#type: &str) -> Option<Condition<'a>> {
    let list = object["status"]["conditions"].as_array()?;
    let found = list.iter().find(|condition| condition["type"] == r#type)?;
    Some(Condition {
        status: found["status"].as_str().unwrap_or("Unknown"),
        reason: found["reason"].as_str().unwrap_or_default(),
        message: found["message"].as_str().unwrap_or_default(),
        observed: found["observedGeneration"].as_i64(),
    })
}

/// The condition `type` as a link.
pub fn link_of(kind: Kind, object: &Value, r#type: &str, name: &str) -> Option<Link> {
    let found = condition(object, r#type)?;
    let state = match (State::of(found.status), found.reason) {
        // Nobody will ever know: nothing waits for it.
        (State::Unknown, reason::CANNOT_VERIFY | reason::EXTERNALLY_MANAGED) => State::Note,
        (state, _) => state,
    };
    Some(Link::new(kind, name, state, found.reason, found.message))
}

fn operator(scene: &Scene) -> Link {
    const NAME: &str = "operator";
    let kind = scene.kind;
    let has_status = condition(&scene.object, ACCEPTED).is_some();
    match &scene.operator {
        Operator::Leads(holder) => {
            Link::own(kind, NAME, State::Ok, Own::OperatorSilent, format!("{holder} acts")).named("Leads")
        }
        Operator::Silent(age) => Link::own(
            kind,
            NAME,
            State::Broken,
            Own::OperatorSilent,
            format!(
                "the operator was last seen {} s ago, so nothing is repaired, and what the status says may be old",
                age.as_secs()
            ),
        ),
        Operator::Unseen if has_status => Link::own(
            kind,
            NAME,
            State::Note,
            Own::OperatorUnseen,
            "there is no Lease of an operator here: is it installed in another namespace (--operator-namespace)?",
        ),
        Operator::Unseen => Link::own(
            kind,
            NAME,
            State::Broken,
            Own::OperatorUnseen,
            "no operator has ever acted here: is it installed, and in this namespace (--operator-namespace)?",
        ),
        Operator::Hidden => Link::own(
            kind,
            NAME,
            State::Note,
            Own::OperatorUnseen,
            "whether the operator runs could not be read",
        ),
    }
}

fn accepted(scene: &Scene) -> Link {
    const NAME: &str = "accepted";
    let generation = scene.object["metadata"]["generation"].as_i64();
    match condition(&scene.object, ACCEPTED) {
        None => Link::own(
            scene.kind,
            NAME,
            State::Unknown,
            Own::NotObserved,
            "the operator has not looked at it yet",
        ),
        Some(found) if found.observed < generation => Link::own(
            scene.kind,
            NAME,
            State::Unknown,
            Own::NotObserved,
            "the operator has not looked at the newest change yet",
        ),
        Some(found) => Link::new(scene.kind, NAME, State::of(found.status), found.reason, found.message),
    }
}

/// The Tailnet of an object of another kind, as one link.
fn tailnet(scene: &Scene) -> Link {
    const NAME: &str = "tailnet";
    let name = scene.tailnet_name();
    let Some(object) = &scene.tailnet else {
        return if scene.tailnet_hidden {
            Link::new(
                scene.kind,
                NAME,
                State::Note,
                reason::UNKNOWN,
                format!("Tailnet {name} could not be read"),
            )
        } else {
            Link::new(
                scene.kind,
                NAME,
                State::Broken,
                reason::TAILNET_NOT_FOUND,
                format!("there is no Tailnet {name}"),
            )
        };
    };
    for r#type in [ACCEPTED, REACHABLE, API_KEY_READY, READY] {
        let Some(mut link) = link_of(Kind::Tailnet, object, r#type, NAME) else {
            return Link::own(
                Kind::Tailnet,
                NAME,
                State::Unknown,
                Own::NotObserved,
                format!("the operator has not looked at Tailnet {name} yet"),
            );
        };
        if link.state.stops() {
            link.message = format!("Tailnet {name}: {type}: {}", link.message);
            return link;
        }
    }
    Link::new(
        Kind::Tailnet,
        NAME,
        State::Ok,
        reason::READY_REASON,
        format!("Tailnet {name} is ready"),
    )
}

fn by_conditions(scene: &Scene, links: &mut Vec<Link>) {
    for r#type in conditions_of(scene.kind) {
        if *r#type != ACCEPTED && *r#type != READY {
            links.extend(link_of(scene.kind, &scene.object, r#type, &link_name(r#type)));
        }
    }
}

/// The link's name of a condition type: the chain's word where it has one.
fn link_name(r#type: &str) -> String {
    match r#type {
        KEY_READY => "key".to_owned(),
        POLICY_READY => "grant".to_owned(),
        DNS_READY => "dns".to_owned(),
        CERTIFICATE_READY => "certificate".to_owned(),
        WORKLOAD_READY => "agent".to_owned(),
        API_KEY_READY => "apiKey".to_owned(),
        other => {
            let mut letters = other.chars();
            let first = letters.next().map(|letter| letter.to_ascii_lowercase());
            first.into_iter().chain(letters).collect()
        }
    }
}

/// Whatever else keeps the object from being ready. What is asked about one target, or answered by a probe, is not judged by a
/// status that speaks of all of them, or of an older connection.
fn ready(scene: &Scene, links: &mut Vec<Link>) {
    if scene.one_target || scene.probe.is_some() {
        return;
    }
    if links.iter().any(|link| link.state.stops()) {
        return;
    }
    let link = link_of(scene.kind, &scene.object, READY, "ready");
    links.extend(link.filter(|link| link.state.stops()));
}
