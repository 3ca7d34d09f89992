//! The organisation's policies: which are in force, which cannot be used, and which are gone without a word.
//!
//! A policy that is deleted takes its protection with it, and nobody may notice. So the leading operator records the
//! policies that it has seen. Taking the label off is how a policy is retired; a labelled ConfigMap that is deleted has
//! vanished, and every Tailnet says so until it is back, or until somebody deletes the record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tailnet_crds::names::label::{ADMISSION_POLICY, MANAGED_BY, MANAGED_BY_VALUE};
use tailnet_policies::Snapshot;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// ConfigMap with the record, in the operator namespace.
pub const RECORD: &str = "tailnet-organisation-policies";
/// Key of the record in its ConfigMap.
const RECORD_KEY: &str = "policies";
/// How long to wait after a failed write.
const RETRY: Duration = Duration::from_secs(10);

/// What is recorded of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// When it was first seen, RFC 3339.
    pub since: String,
}

/// Names of policies with what is recorded of them.
pub type Record = BTreeMap<String, Recorded>;

/// How the policies stand, for the Tailnets' condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    /// In force: name and number of validations.
    pub in_force: Vec<(String, usize)>,
    /// Cannot be used: name and why.
    pub unusable: Vec<(String, String)>,
    /// Deleted while they were in force: name and since when they had been seen.
    pub vanished: Vec<(String, String)>,
}

impl Standings {
    /// What the snapshot has, with what the record misses in it.
    pub fn of(snapshot: &Snapshot, vanished: Vec<(String, String)>) -> Self {
        let mut standings = Self {
            vanished,
            ..Self::default()
        };
        for (name, standing) in snapshot.policies() {
            match standing.as_ref() {
                Ok(policy) => standings.in_force.push((name.clone(), policy.validations())),
                Err(problem) => standings.unusable.push((name.clone(), problem.clone())),
            }
        }
        standings
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.in_force.is_empty() && self.unusable.is_empty() && self.vanished.is_empty()
    }
}

/// Memory of the record.
#[derive(Default)]
pub struct Policies {
    vanished: Mutex<Vec<(String, String)>>,
    wake: Notify,
}

impl Policies {
    /// Says that a ConfigMap changed that is, was or could be a policy, or the record.
    pub fn changed(&self) {
        self.wake.notify_one();
    }

    /// The policies that vanished, with since when they had been seen.
    pub fn vanished(&self) -> Vec<(String, String)> {
        self.vanished.lock().clone()
    }
}

/// Whether a ConfigMap is a policy by its label.
pub fn is_policy(config_map: &ConfigMap) -> bool {
    config_map.labels().get(ADMISSION_POLICY).map(String::as_str) == Some("true")
}

/// The record after a look: what is there is recorded, what was retired is forgotten, what vanished stays. `there` says of
/// each ConfigMap whether it is a policy.
fn settled(record: &Record, there: &BTreeMap<String, bool>, now: &str) -> (Record, Vec<(String, String)>) {
    let mut next = Record::new();
    let mut vanished = Vec::new();
    for (name, recorded) in record {
        match there.get(name) {
            Some(true) => drop(next.insert(name.clone(), recorded.clone())),
            // Its label was taken off: somebody meant it.
            Some(false) => {}
            None => {
                next.insert(name.clone(), recorded.clone());
                vanished.push((name.clone(), recorded.since.clone()));
            }
        }
    }
    for (name, _) in there.iter().filter(|(_, policy)| **policy) {
        next.entry(name.clone())
            .or_insert_with(|| Recorded { since: now.to_owned() });
    }
    (next, vanished)
}

/// Keeps the record, as long as this process leads.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    loop {
        let wait = match settle(&context).await {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, record = RECORD, "the record of the organisation's policies cannot be written; it is tried again");
                Some(RETRY)
            }
        };
        let again = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = context.policies.wake.notified() => {}
            () = again => {}
        }
    }
}

async fn settle(context: &Context) -> kube::Result<()> {
    let config_maps = context.stores.config_maps.state();
    let stored = config_maps.iter().find(|config_map| config_map.name_any() == RECORD);
    let text = stored.and_then(|stored| stored.data.as_ref()?.get(RECORD_KEY));
    // A record that nobody can read is begun anew: what is there now is what counts.
    let record: Record = text
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let there = config_maps
        .iter()
        .map(|config_map| (config_map.name_any(), is_policy(config_map)))
        .collect();
    let (next, vanished) = settled(&record, &there, &Timestamp::now().to_string());
    let changed = std::mem::replace(&mut *context.policies.vanished.lock(), vanished.clone()) != vanished;
    if next != record || (stored.is_some() && text.is_none()) {
        write(context, &next, stored.is_some()).await?;
    }
    if changed {
        wake_tailnets(context);
    }
    Ok(())
}

async fn write(context: &Context, record: &Record, exists: bool) -> kube::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), context.namespace());
    let text = serde_json::to_string(record).map_err(kube::Error::SerdeError)?;
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(RECORD.to_owned()),
            labels: Some(BTreeMap::from([(MANAGED_BY.to_owned(), MANAGED_BY_VALUE.to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(RECORD_KEY.to_owned(), text)])),
        ..ConfigMap::default()
    };
    if exists {
        let patch = Patch::Merge(&config_map);
        api.patch(RECORD, &PatchParams::default(), &patch).await.map(drop)
    } else {
        api.create(&PostParams::default(), &config_map).await.map(drop)
    }
}

/// Asks for a reconcile of all Tailnets: they carry the condition.
fn wake_tailnets(context: &Context) {
    for tailnet in context.stores.tailnets.state() {
        context.queues.tailnet.push(ObjectRef::from_obj(tailnet.as_ref()));
    }
}

/// Asks for a reconcile of everything: another verdict may hold for it.
pub fn wake_all(context: &Context) {
    wake_tailnets(context);
    let names: BTreeSet<String> = context
        .stores
        .tailnets
        .state()
        .iter()
        .map(|tailnet| tailnet.name_any())
        .collect();
    names.iter().for_each(|name| context.enqueue_members(name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_has_vanished_and_what_is_unlabelled_is_retired() {
        let there = |entries: &[(&str, bool)]| {
            entries
                .iter()
                .map(|(name, policy)| ((*name).to_owned(), *policy))
                .collect()
        };
        let (record, vanished) = settled(
            &Record::new(),
            &there(&[("a", true), ("b", true), ("other", false)]),
            "t1",
        );
        assert_eq!(record.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(vanished.is_empty());
        let (record, vanished) = settled(&record, &there(&[("a", false)]), "t2");
        assert_eq!(record.keys().collect::<Vec<_>>(), ["b"], "a was retired");
        assert_eq!(vanished, [("b".to_owned(), "t1".to_owned())]);
        let (record, vanished) = settled(&record, &there(&[("b", true)]), "t3");
        assert_eq!(record["b"].since, "t1", "it is the same policy");
        assert!(vanished.is_empty());
        let (record, vanished) = settled(&Record::new(), &there(&[]), "t4");
        assert!(
            record.is_empty() && vanished.is_empty(),
            "a record that was deleted begins anew"
        );
    }
}
