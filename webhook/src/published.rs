//! What stands in ConfigMaps of the operator namespace, put together for the rules: what the operator publishes (facts with
//! a Lease as heartbeat, claims), and the people's parts of policies.
//!
//! The heartbeat says by changing that the facts still hold. Its time is the operator's, whose clock may be wrong, so nothing
//! is reckoned from it ([`crate::changed`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use tailnet_crds::names;
use tailnet_policies::base;
use tailnet_policies::claim_parts;
use tailnet_policies::claims::{self, Claims};
use tailnet_policies::facts::{Chunk, Facts, FactsError, chunk_of};

use crate::changed::{Changed, written};
use crate::clock::ApiClock;
use crate::clock::moment::Moment;
use crate::snapshot::SharedSnapshot;
use crate::watches::{Key, Sink};

const FACTS_PREFIX: &str = "tailnet-facts-";

/// What is known of each Tailnet's publications, and where it goes.
#[derive(Clone)]
pub struct Published {
    snapshot: Arc<SharedSnapshot>,
    tailnets: Arc<Mutex<HashMap<String, Tailnet>>>,
    /// The parts of the claims records, by Tailnet and index.
    claims: Arc<Mutex<HashMap<String, BTreeMap<usize, Claims>>>>,
    clock: ApiClock,
}

#[derive(Default)]
struct Tailnet {
    chunks: BTreeMap<usize, Chunk>,
    /// When the API server wrote each of them.
    written: BTreeMap<usize, Timestamp>,
    /// The facts that are in use, by when the operator says that it read them first.
    read_at: Option<Changed<String>>,
    heartbeat: Option<Changed<Option<Timestamp>>>,
}

impl Tailnet {
    /// Age of the facts; without any sign they are as old as can be.
    fn age(&self, moment: Moment) -> Duration {
        let signs = [
            self.heartbeat.as_ref().map(|beat| beat.age(moment)),
            // New facts come before their first heartbeat.
            self.read_at.as_ref().map(|read| read.age(moment)),
        ];
        signs.into_iter().flatten().min().unwrap_or(Duration::MAX)
    }
}

impl Published {
    /// Nothing known yet; how old what is found is, `clock` says.
    pub fn new(snapshot: Arc<SharedSnapshot>, clock: ApiClock) -> Self {
        Self {
            snapshot,
            tailnets: Arc::default(),
            claims: Arc::default(),
            clock,
        }
    }

    fn tailnets(&self) -> MutexGuard<'_, HashMap<String, Tailnet>> {
        self.tailnets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the ages in the snapshot up to now. Call it every second: rules know no clock.
    pub fn refresh_ages(&self) {
        self.refresh_ages_at(Moment::now());
    }

    fn refresh_ages_at(&self, moment: Moment) {
        let ages: Vec<_> = self
            .tailnets()
            .iter()
            .map(|(name, tailnet)| (name.clone(), tailnet.age(moment)))
            .collect();
        if !ages.is_empty() {
            self.snapshot.write(|snapshot| {
                for (name, age) in ages {
                    snapshot.set_facts_age(&name, age);
                }
            });
        }
    }

    /// Takes a chunk with when it was written, or takes one away.
    fn chunk_changed(&self, name: &str, index: usize, chunk: Option<(Chunk, Option<Timestamp>)>) {
        let mut tailnets = self.tailnets();
        let tailnet = tailnets.entry(name.to_owned()).or_default();
        tailnet.chunks.remove(&index);
        tailnet.written.remove(&index);
        if let Some((chunk, written)) = chunk {
            tailnet.chunks.insert(index, chunk);
            tailnet.written.extend(written.map(|written| (index, written)));
        }
        let chunks: Vec<_> = tailnet.chunks.values().cloned().collect();
        match Facts::from_chunks(&chunks) {
            Ok(facts) => {
                let moment = Moment::now();
                let written = tailnet.written.values().max().copied();
                let before = tailnet.read_at.take();
                tailnet.read_at = Some(Changed::update(
                    before,
                    facts.read_at.clone(),
                    written,
                    self.clock.now(),
                    moment,
                ));
                let age = tailnet.age(moment);
                self.snapshot
                    .write(|snapshot| snapshot.set_facts(name, Some(facts), age));
            }
            Err(FactsError::None) => {
                tailnets.remove(name);
                self.snapshot
                    .write(|snapshot| snapshot.set_facts(name, None, Duration::MAX));
            }
            // A write that is under way: what was known holds until it is complete.
            Err(FactsError::Missing { .. } | FactsError::Mixed { .. }) => {}
            Err(error) => {
                tracing::warn!(tailnet = name, %error, "facts cannot be used");
                self.snapshot
                    .write(|snapshot| snapshot.set_facts(name, None, Duration::MAX));
            }
        }
    }

    /// Any other ConfigMap may be the people's part of a policy; which one is, the Tailnets say.
    fn base_changed(&self, name: &str, text: Option<&str>) {
        self.snapshot.write(|snapshot| {
            if text.is_some() || snapshot.base_document(name).is_some() {
                snapshot.set_base_document(name, text);
            }
        });
    }

    fn claims_changed(&self, name: &str, index: usize, text: Option<&str>) {
        let part = match text.map(Claims::from_json) {
            Some(Ok(claims)) => Some(claims),
            Some(Err(error)) => {
                tracing::warn!(tailnet = name, part = index, %error, "claims cannot be used");
                None
            }
            None => None,
        };
        let mut records = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records.entry(name.to_owned()).or_default();
        match part {
            Some(part) => record.insert(index, part),
            None => record.remove(&index),
        };
        let whole = (!record.is_empty()).then(|| claim_parts::merged(record.values()));
        if whole.is_none() {
            records.remove(name);
        }
        self.snapshot.write(|snapshot| snapshot.set_claims(name, whole));
    }
}

impl Sink<ConfigMap> for Published {
    fn upsert(&mut self, object: &ConfigMap) {
        let name = object.name_any();
        if let Some((tailnet, index)) = names::tailnet::claims_part_of(&name) {
            let text = object.data.as_ref().and_then(|data| data.get(claims::DATA_KEY));
            self.claims_changed(tailnet, index, text.map(String::as_str));
        } else if chunk_of(&name).is_some() {
            match Chunk::of_config_map(&name, object.labels(), object.annotations(), object.data.as_ref()) {
                Ok(Some((tailnet, chunk))) => {
                    let written = written(&object.metadata, &["f:data"]);
                    self.chunk_changed(tailnet, chunk.index, Some((chunk, written)));
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(config_map = name, %error, "facts chunk cannot be used"),
            }
        } else {
            let text = object.data.as_ref().and_then(|data| data.get(base::KEY));
            self.base_changed(&name, text.map(String::as_str));
        }
    }

    fn synced(&mut self) {
        // No ConfigMap at all is knowledge too.
        self.snapshot.write(|snapshot| {
            if !snapshot.base_documents_known() {
                snapshot.set_base_documents_known(true);
            }
        });
    }

    fn remove(&mut self, (_, name): &Key) {
        if let Some((tailnet, index)) = names::tailnet::claims_part_of(name) {
            self.claims_changed(tailnet, index, None);
        } else if let Some((tailnet, index)) = chunk_of(name) {
            self.chunk_changed(tailnet, index, None);
        } else {
            self.base_changed(name, None);
        }
    }
}

impl Sink<Lease> for Published {
    fn upsert(&mut self, object: &Lease) {
        let name = object.name_any();
        let Some(tailnet) = name.strip_prefix(FACTS_PREFIX) else {
            return;
        };
        let renewed = object
            .spec
            .as_ref()
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0);
        let written = written(&object.metadata, &["f:spec", "f:renewTime"]);
        let mut tailnets = self.tailnets();
        let known = tailnets.entry(tailnet.to_owned()).or_default();
        let before = known.heartbeat.take();
        known.heartbeat = Some(Changed::update(
            before,
            renewed,
            written,
            self.clock.now(),
            Moment::now(),
        ));
        drop(tailnets);
        self.refresh_ages();
    }

    fn remove(&mut self, (_, name): &Key) {
        if let Some(tailnet) = name.strip_prefix(FACTS_PREFIX) {
            if let Some(known) = self.tailnets().get_mut(tailnet) {
                known.heartbeat = None;
            }
            self.refresh_ages();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;
    use tailnet_policies::claims::Claims;
    use tailnet_policies::facts::{FORMAT_VERSION, Facts, NodeFacts};
    use tailnet_policies::snapshot::{Config, Snapshot};

    use super::Published;
    use crate::clock::ApiClock;
    use crate::clock::moment::Moment;
    use crate::snapshot::SharedSnapshot;
    use crate::watches::Sink;

    fn published() -> (Published, Arc<SharedSnapshot>) {
        let snapshot = Arc::new(SharedSnapshot::new(Snapshot::new(Config::default())));
        (Published::new(Arc::clone(&snapshot), ApiClock::default()), snapshot)
    }

    fn facts(nodes: usize, read_at: Timestamp) -> Facts {
        let node = |id: usize| NodeFacts {
            id: id.to_string(),
            given_name: "n".repeat(200),
            ..NodeFacts::default()
        };
        Facts {
            version: FORMAT_VERSION,
            read_at: read_at.to_string(),
            nodes: (0..nodes).map(node).collect(),
            ..Facts::default()
        }
    }

    fn config_maps(facts: &Facts) -> Vec<ConfigMap> {
        let chunks = facts.to_chunks();
        let config_map = |chunk: &tailnet_policies::facts::Chunk| {
            serde_json::from_value(json!({
                "metadata": {
                    "name": format!("tailnet-facts-corp-eu-{}", chunk.index), "labels": {"tsunaro.io/facts": "corp-eu"},
                    "annotations": {"tsunaro.io/facts-chunks": chunk.count.to_string(), "tsunaro.io/facts-sha256": chunk.sha256},
                },
                "data": {"chunk": chunk.text},
            }))
            .expect("a ConfigMap")
        };
        chunks.iter().map(config_map).collect()
    }

    fn nodes(snapshot: &SharedSnapshot) -> Option<usize> {
        snapshot.read(|snapshot| snapshot.facts("corp-eu").map(|aged| aged.facts.nodes.len()))
    }

    #[test]
    fn facts_change_only_when_a_whole_text_is_there() {
        let (mut published, snapshot) = published();
        let (old, new) = (
            config_maps(&facts(6000, Timestamp::now())),
            config_maps(&facts(7000, Timestamp::now())),
        );
        assert!(old.len() > 1, "more than one chunk");
        published.upsert(&old[0]);
        assert_eq!(nodes(&snapshot), None, "half of the first text is nothing");
        old.iter().for_each(|part| published.upsert(part));
        assert_eq!(nodes(&snapshot), Some(6000));
        published.upsert(&new[0]);
        assert_eq!(nodes(&snapshot), Some(6000), "a write under way changes nothing");
        new.iter().for_each(|part| published.upsert(part));
        assert_eq!(nodes(&snapshot), Some(7000));
        for index in 0..new.len() {
            Sink::<ConfigMap>::remove(&mut published, &(None, format!("tailnet-facts-corp-eu-{index}")));
        }
        assert_eq!(nodes(&snapshot), None);
    }

    fn heartbeat(renewed: Timestamp, written: Timestamp) -> Lease {
        serde_json::from_value(json!({
            "metadata": {
                "name": "tailnet-facts-corp-eu",
                "managedFields": [{"time": written.to_string(), "fieldsV1": {"f:spec": {"f:renewTime": {}}}}],
            },
            "spec": {"renewTime": renewed.to_string()},
        }))
        .expect("a Lease")
    }

    /// The operator's clock is right, or years off.
    const OFF: [SignedDuration; 3] = [
        SignedDuration::ZERO,
        SignedDuration::from_hours(20_000),
        SignedDuration::from_hours(-20_000),
    ];

    #[test]
    fn the_heartbeat_gives_the_age_whatever_the_operators_clock_shows() {
        let second = Duration::from_secs(1);
        for off in OFF {
            let (mut published, snapshot) = published();
            let now = Timestamp::now();
            let age = || snapshot.read(|snapshot| snapshot.facts("corp-eu").map(|aged| aged.age.as_secs()));
            for mut part in config_maps(&facts(1, now + off)) {
                let written = (now - SignedDuration::from_secs(500)).to_string();
                let fields = json!([{"time": written, "fieldsV1": {"f:data": {"f:chunk": {}}}}]);
                part.metadata.managed_fields = serde_json::from_value(fields).expect("fields");
                published.upsert(&part);
            }
            assert_eq!(age(), Some(500), "read long ago, no heartbeat ({off})");
            let renewed = now + off - SignedDuration::from_secs(20);
            published.upsert(&heartbeat(renewed, now - SignedDuration::from_secs(20)));
            assert_eq!(age(), Some(20), "as the API server says ({off})");
            let later = Moment::now().after(10 * second);
            published.refresh_ages_at(later);
            assert_eq!(age(), Some(30), "{off}");
            // Somebody labels the Lease: no heartbeat.
            published.upsert(&heartbeat(renewed, now));
            published.refresh_ages_at(later);
            assert_eq!(age(), Some(30), "{off}");
            published.upsert(&heartbeat(renewed + SignedDuration::from_secs(15), now));
            assert_eq!(age(), Some(0), "it has just changed ({off})");
            published.refresh_ages_at(Moment::now().after(600 * second));
            assert_eq!(
                age(),
                Some(600),
                "an operator that is silent makes nothing fresh ({off})"
            );
        }
    }

    #[test]
    fn facts_whose_age_nobody_knows_are_old_until_the_heartbeat_changes() {
        let (mut published, snapshot) = published();
        let now = Timestamp::now();
        let age = || snapshot.read(|snapshot| snapshot.facts("corp-eu").map(|aged| aged.age));
        config_maps(&facts(1, now))
            .iter()
            .for_each(|part| published.upsert(part));
        assert_eq!(age(), Some(Duration::MAX));
        let mut lease = heartbeat(now, now);
        lease.metadata.managed_fields = None;
        published.upsert(&lease);
        assert_eq!(age(), Some(Duration::MAX));
        published.upsert(&heartbeat(now + SignedDuration::from_secs(15), now));
        assert!(age().expect("facts") < Duration::from_secs(5));
    }

    #[test]
    fn broken_claims_are_no_claims() {
        let (mut published, snapshot) = published();
        let known = |snapshot: &SharedSnapshot| snapshot.read(|snapshot| snapshot.claims("corp").is_some());
        let config_map = |text: &str| -> ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": "tailnet-claims-corp"}, "data": {"claims": text}}))
                .expect("one")
        };
        published.upsert(&config_map(&Claims::empty().to_json().expect("text")));
        assert!(known(&snapshot));
        published.upsert(&config_map("{"));
        assert!(!known(&snapshot));
    }

    #[test]
    fn claims_in_several_parts_are_one_record() {
        let (mut published, snapshot) = published();
        let holders = |snapshot: &SharedSnapshot| {
            snapshot.read(|snapshot| snapshot.claims("corp.1-a").map_or(0, |claims| claims.claims.len()))
        };
        let part = |name: &str, key: &str| -> ConfigMap {
            let claim = json!({"kind": "TailnetSite", "name": "a", "since": "2026-01-01T00:00:00Z"});
            let text = json!({"version": 1, "claims": {key: claim}}).to_string();
            serde_json::from_value(json!({"metadata": {"name": name}, "data": {"claims": text}})).expect("one")
        };
        published.upsert(&part("tailnet-claims-corp.1-a", "name:a.example"));
        published.upsert(&part("tailnet-more-claims-1-corp.1-a", "name:b.example"));
        assert_eq!(holders(&snapshot), 2);
        Sink::<ConfigMap>::remove(&mut published, &(None, "tailnet-claims-corp.1-a".to_owned()));
        assert_eq!(holders(&snapshot), 1);
        Sink::<ConfigMap>::remove(&mut published, &(None, "tailnet-more-claims-1-corp.1-a".to_owned()));
        assert!(snapshot.read(|snapshot| snapshot.claims("corp.1-a").is_none()));
    }
}
