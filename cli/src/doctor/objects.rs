//! Our objects: Tailnets by their chain and heartbeat, the others by their Ready condition.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use serde_json::Value;
use tailnet_crds::Kind;

use super::Surroundings;
use super::check::{Check, State};
use crate::why::{self, Operator, Scene};
use crate::{facts, kinds};

/// Facts that are older are told: Headscale is read every 15 s unless the operator is told otherwise (at most 300 s).
const FACTS_OLD: Duration = Duration::from_secs(330);

/// What there is; a kind that may not be read is empty and named in `unread`.
#[derive(Debug, Default)]
pub struct Objects {
    pub tailnets: Vec<Value>,
    pub egresses: Vec<Value>,
    pub ingresses: Vec<Value>,
    pub others: Vec<(Kind, Value)>,
    pub unread: Vec<Kind>,
}

/// Reads all five kinds.
pub async fn read(around: &Surroundings) -> Objects {
    let mut objects = Objects::default();
    for kind in Kind::ALL {
        let found = kinds::api(&around.client, kind, None)
            .list(&ListParams::default())
            .await;
        let Ok(list) = found else {
            objects.unread.push(kind);
            continue;
        };
        let values = list
            .items
            .iter()
            .map(|object| serde_json::to_value(object).unwrap_or_default());
        match kind {
            Kind::Tailnet => objects.tailnets.extend(values),
            Kind::TailnetEgress => objects.egresses.extend(values),
            Kind::TailnetIngress => objects.ingresses.extend(values),
            Kind::TailnetSite | Kind::TailnetGateway => objects.others.extend(values.map(|value| (kind, value))),
        }
    }
    objects
}

/// Every Tailnet: its first broken link, and when Headscale was last read.
pub async fn tailnets(around: &Surroundings, objects: &Objects) -> Vec<Check> {
    const CHECK: &str = "Tailnets";
    if objects.unread.contains(&Kind::Tailnet) {
        return vec![Check::unknown(CHECK, "Tailnets could not be read")];
    }
    if objects.tailnets.is_empty() {
        return vec![Check::unknown(
            CHECK,
            "there is none yet: docs/install.md, Connect it to Headscale",
        )];
    }
    let leases: Api<Lease> = Api::namespaced(around.client.clone(), &around.namespace);
    let leases = leases.list(&ListParams::default()).await.map(|list| list.items);
    let mut checks = Vec::new();
    for tailnet in &objects.tailnets {
        let name = tailnet["metadata"]["name"].as_str().unwrap_or_default();
        checks.push(chain(around, tailnet, name));
        let check = format!("Tailnet {name}: heartbeat");
        let Ok(leases) = &leases else {
            checks.push(Check::unknown(
                &check,
                format!("you may not list Leases of namespace {}", around.namespace),
            ));
            continue;
        };
        let log = vec![
            around
                .kubectl
                .run_in(&around.namespace, "logs deployment/tailnet-operator --tail=30"),
        ];
        checks.push(match facts::heartbeat(name, leases) {
            None => Check::fail(
                &check,
                "Headscale has never been read: rules that need it are not checked",
                log,
            ),
            Some(at) => {
                let age = facts::age(at, around.now);
                let message = format!("Headscale was last read {} s ago", age.as_secs());
                if age > FACTS_OLD {
                    Check::fail(&check, message + ": admission decides by old facts", log)
                } else {
                    Check::ok(&check, message)
                }
            }
        });
    }
    checks
}

fn chain(around: &Surroundings, tailnet: &Value, name: &str) -> Check {
    let scene = Scene {
        kind: Kind::Tailnet,
        namespace: None,
        name: name.to_owned(),
        object: tailnet.clone(),
        tailnet: Some(tailnet.clone()),
        tailnet_hidden: false,
        one_target: false,
        facts: None,
        // Checked by itself.
        operator: Operator::Hidden,
        config: None,
        pods: BTreeMap::new(),
        probe: None,
        notes: Vec::new(),
    };
    let answer = why::answer(scene, around.kubectl.clone(), &around.namespace);
    let check = format!("Tailnet {name}");
    let Some(broken) = answer.broken else {
        let version = tailnet["status"]["serverVersion"]
            .as_str()
            .unwrap_or("of an unknown version");
        return Check::ok(&check, format!("ready; Headscale {version}"));
    };
    Check {
        turn: broken.turn.map(tailnet_crds::Team::as_str),
        // What is ready works, though somebody should look at it.
        state: if broken.state == why::State::Broken && !is_ready(tailnet) {
            State::Fail
        } else {
            State::Warn
        },
        ..Check::fail(
            &check,
            format!("{} ({}): {}", broken.name(), broken.reason, broken.message),
            broken.next,
        )
    }
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// The other objects: how many are not ready, and how to ask why.
pub fn members(around: &Surroundings, objects: &Objects) -> Check {
    const CHECK: &str = "objects";
    let all: Vec<(Kind, &Value)> = objects
        .egresses
        .iter()
        .map(|object| (Kind::TailnetEgress, object))
        .chain(objects.ingresses.iter().map(|object| (Kind::TailnetIngress, object)))
        .chain(objects.others.iter().map(|(kind, object)| (*kind, object)))
        .collect();
    let waiting: Vec<&(Kind, &Value)> = all.iter().filter(|(_, object)| !is_ready(object)).collect();
    let message = format!("{} of {} are ready", all.len() - waiting.len(), all.len());
    if waiting.is_empty() {
        return Check::ok(CHECK, message);
    }
    let why = |(kind, object): &&(Kind, &Value)| {
        let word = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
        let namespace = match kind {
            Kind::TailnetIngress => format!(" -n {}", word("namespace")),
            _ => String::new(),
        };
        let subject = format!("why {}/{}{namespace}", kind.as_str().to_lowercase(), word("name"));
        around.kubectl.plugin(&around.namespace, &subject)
    };
    Check::warn(CHECK, message, waiting.iter().take(5).map(why).collect())
}
