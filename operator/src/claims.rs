//! The claims record of every Tailnet: decided by the rules, written here, before anybody acts on it.
//!
//! A Tailnet whose record cannot be read or written does not hold up the others: its objects wait, with the error in their
//! status, and what the record said last goes on to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, ObjectMeta};
use kube::{Client, ResourceExt};
use tailnet_crds::Kind;
use tailnet_crds::names::{label, tailnet as names};
use tailnet_policies::claims::{Claims, ClaimsError, DATA_KEY};
use tailnet_policies::{claim_parts, resolve_claims};
use tokio::sync::Mutex;

use crate::backoff::Backoff;
use crate::guard::Guard;
use crate::ownership::{managed_selector, tailnet_labels};
use crate::writes::{delete_params, is_gone, post_params};

/// Why the record could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The record of an earlier run cannot be used.
    #[error("ConfigMap {name}: {source}")]
    Record {
        /// Name of the ConfigMap.
        name: String,
        /// What is wrong with it.
        source: ClaimsError,
    },
    /// The API server refused or did not answer.
    #[error("cannot {verb} ConfigMap {name}: {source}")]
    Api {
        /// `list`, `get`, `create`, `replace` or `delete`.
        verb: &'static str,
        /// Name of the ConfigMap.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
}

/// How long a restored record keeps its claims for objects that are not back. A restore of thousands of objects takes
/// minutes; what is kept longer keeps others waiting for an object that never comes.
const RESERVED: SignedDuration = SignedDuration::from_mins(10);

/// The keeper of the record. One per process, and only the leader's is used.
pub struct Keeper {
    api: Api<ConfigMap>,
    namespace: String,
    state: Mutex<State>,
    /// What the watch last saw of claims ConfigMaps since the last look, by name.
    seen: parking_lot::Mutex<BTreeMap<String, Seen>>,
    /// Delays of the Tailnets whose record failed.
    backoff: Backoff,
}

#[derive(Default)]
struct State {
    /// Whether the records were read at all.
    loaded: bool,
    /// The stored parts by Tailnet and index.
    records: BTreeMap<String, Record>,
    /// Tailnets whose record could not be read or written, and when that is tried again.
    failed: BTreeMap<String, Failure>,
    /// [`Guard::version`] of the last decision.
    decided_at: u64,
    /// When the first reservation of a restored record ends.
    reserved_until: Option<Timestamp>,
}

type Record = BTreeMap<usize, Part>;

struct Part {
    config_map: ConfigMap,
    /// None when its text cannot be read.
    claims: Option<Claims>,
}

struct Failure {
    error: Arc<KeepError>,
    retry_at: Instant,
}

/// One state of a claims ConfigMap.
struct Seen {
    /// None when it was deleted.
    text: Option<String>,
    /// Whether it has the labels of a record.
    labelled: bool,
}

/// What [`Keeper::settle`] did.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Tailnets whose record changed: their members should look again.
    pub changed: Vec<String>,
    /// Tailnets whose record is not up to date: nobody may act on new claims in them.
    pub failed: BTreeMap<String, Arc<KeepError>>,
}

impl Keeper {
    /// A keeper that has not read the record yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            state: Mutex::default(),
            seen: parking_lot::Mutex::default(),
            backoff: Backoff::default(),
        }
    }

    /// Takes note of what the watch saw of a ConfigMap (`exists`: false when it was deleted). True when it is part of a
    /// record, so that [`Keeper::settle`] should look whether somebody else touched it.
    pub fn saw(&self, config_map: &ConfigMap, exists: bool) -> bool {
        let name = config_map.name_any();
        let Some((tailnet, _)) = names::claims_part_of(&name) else {
            return false;
        };
        let seen = Seen {
            text: exists.then(|| text_of(config_map).unwrap_or_default().to_owned()),
            labelled: is_labelled(config_map, tailnet),
        };
        self.seen.lock().insert(name, seen);
        true
    }

    /// Brings the record up to date with the guard's snapshot and the snapshot up to date with the record. Cheap when
    /// nothing changed. After it returns, what the snapshot says about holders is written down, except for the Tailnets in
    /// [`Settled::failed`]. `installation` is the UID of the operator's namespace: a record of another one was restored.
    ///
    /// # Errors
    /// When the records could not be listed at all; nobody may act on new claims then.
    pub async fn settle(&self, guard: &Guard, installation: &str) -> Result<Settled, KeepError> {
        let mut state = self.state.lock().await;
        if !state.loaded {
            self.load(&mut state, guard, installation).await?;
        }
        let again = self.to_read_again(&state);
        let version = guard.version();
        let now = Timestamp::now();
        let released = state.reserved_until.is_some_and(|until| until <= now);
        if again.is_empty() && state.decided_at == version && !released {
            return Ok(Settled {
                changed: Vec::new(),
                failed: state.failures(),
            });
        }
        for tailnet in again {
            match self.read(&state, &tailnet).await {
                Ok(record) => {
                    state.failed.remove(&tailnet);
                    // What this process knows to be decided is put back; only a record that it has never read is followed.
                    if guard.with(|snapshot| snapshot.claims(&tailnet).is_none()) {
                        guard.claims(&tailnet, whole(&tailnet, &record, installation));
                    }
                    state.records.insert(tailnet, record);
                }
                Err(error) => self.fail(&mut state, &tailnet, error),
            }
        }
        let (decided, known) = guard.with(|snapshot| {
            let decided = resolve_claims(snapshot, &now.to_string());
            let known: BTreeSet<String> = snapshot
                .list(Kind::Tailnet)
                .map(|tailnet| tailnet.name.clone())
                .collect();
            (decided, known)
        });
        let reserved = decided.values().flat_map(|claims| claims.claims.values());
        state.reserved_until = reserved
            .filter_map(|claim| claim.reserved_until.as_deref()?.parse().ok())
            .min();
        let mut changed = Vec::new();
        for (tailnet, mut claims) in decided {
            if state.failed.contains_key(&tailnet) {
                continue;
            }
            claims.installation = match installation {
                "" => state.records.get(&tailnet).and_then(written_in),
                known => Some(known.to_owned()),
            };
            let exists = known.contains(&tailnet);
            match self.store(&mut state, &tailnet, &claims, exists).await {
                Ok(written) => {
                    self.backoff.succeeded(&tailnet);
                    if written {
                        guard.claims(&tailnet, (exists || !claims.claims.is_empty()).then_some(claims));
                        changed.push(tailnet);
                    }
                }
                Err(error) => self.fail(&mut state, &tailnet, error),
            }
        }
        state.decided_at = version;
        Ok(Settled {
            changed,
            failed: state.failures(),
        })
    }

    /// Sets a Tailnet aside until its delay is over; then its record is read anew, because what is stored is not known for
    /// sure any more.
    fn fail(&self, state: &mut State, tailnet: &str, error: KeepError) {
        let delay = self.backoff.failed(tailnet);
        let retry_in_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(tailnet, %error, retry_in_ms, "claims record is not up to date; nothing new is accepted meanwhile");
        let failure = Failure {
            error: Arc::new(error),
            retry_at: Instant::now() + delay,
        };
        state.failed.insert(tailnet.to_owned(), failure);
    }

    /// The Tailnets whose record somebody else touched, or whose delay after a failure is over.
    fn to_read_again(&self, state: &State) -> BTreeSet<String> {
        let now = Instant::now();
        let mut again: BTreeSet<String> = state
            .failed
            .iter()
            .filter(|(_, failure)| failure.retry_at <= now)
            .map(|(tailnet, _)| tailnet.clone())
            .collect();
        for (name, seen) in std::mem::take(&mut *self.seen.lock()) {
            let Some((tailnet, index)) = names::claims_part_of(&name) else {
                continue;
            };
            let part = state.records.get(tailnet).and_then(|record| record.get(&index));
            let touched = match part {
                Some(part) => {
                    seen.text.as_deref() != text_of(&part.config_map) || (seen.text.is_some() && !seen.labelled)
                }
                None => seen.text.is_some() && seen.labelled,
            };
            if touched && !state.failed.contains_key(tailnet) {
                again.insert(tailnet.to_owned());
            }
        }
        again
    }

    async fn load(&self, state: &mut State, guard: &Guard, installation: &str) -> Result<(), KeepError> {
        let mut records: BTreeMap<String, Record> = BTreeMap::new();
        let mut unusable = Vec::new();
        for config_map in self.list(label::TAILNET).await? {
            let name = config_map.name_any();
            let Some((tailnet, index)) = names::claims_part_of(&name) else {
                continue;
            };
            if !is_labelled(&config_map, tailnet) {
                continue;
            }
            match Part::of(config_map) {
                Ok(part) => {
                    records.entry(tailnet.to_owned()).or_default().insert(index, part);
                }
                Err(error) => unusable.push((tailnet.to_owned(), error)),
            }
        }
        *state = State {
            loaded: true,
            ..State::default()
        };
        for (tailnet, error) in unusable {
            records.remove(&tailnet);
            self.fail(state, &tailnet, error);
        }
        for (tailnet, record) in &records {
            guard.claims(tailnet, whole(tailnet, record, installation));
        }
        state.records = records;
        Ok(())
    }

    /// The record of one Tailnet by the names of its parts: labels may have been taken away.
    async fn read(&self, state: &State, tailnet: &str) -> Result<Record, KeepError> {
        let mut record = Record::new();
        for config_map in self.list(&format!("{}={tailnet}", label::TAILNET)).await? {
            let name = config_map.name_any();
            if let Some((found, index)) = names::claims_part_of(&name)
                && found == tailnet
            {
                record.insert(index, Part::of(config_map)?);
            }
        }
        let known = state.records.get(tailnet).into_iter().flat_map(BTreeMap::keys);
        let last = known.chain(record.keys()).max().copied().unwrap_or(0);
        for index in 0.. {
            if record.contains_key(&index) {
                continue;
            }
            let name = names::claims_part_config_map(tailnet, index);
            let found = self.api.get_opt(&name).await;
            match found.map_err(|source| api_error("get", &name, source))? {
                Some(config_map) => {
                    record.insert(index, Part::of(config_map)?);
                }
                None if index > last => break,
                None => {}
            }
        }
        Ok(record)
    }

    async fn list(&self, selector: &str) -> Result<Vec<ConfigMap>, KeepError> {
        let params = ListParams::default().labels(&format!("{},{selector}", managed_selector()));
        let list = self.api.list(&params).await;
        Ok(list
            .map_err(|source| api_error("list", "tailnet-claims-…", source))?
            .items)
    }

    /// Writes the parts of one Tailnet's record that differ; true when anything was written or removed.
    async fn store(&self, state: &mut State, tailnet: &str, claims: &Claims, exists: bool) -> Result<bool, KeepError> {
        let record = state.records.entry(tailnet.to_owned()).or_default();
        let stored: BTreeMap<usize, Claims> = record
            .iter()
            .filter_map(|(index, part)| Some((*index, part.claims.clone()?)))
            .collect();
        let mut wanted = claim_parts::divided(claims, &stored).map_err(|source| KeepError::Record {
            name: names::claims_config_map(tailnet),
            source,
        })?;
        if claims.claims.is_empty() && (!exists || record.is_empty()) {
            wanted.clear();
        }
        let mut written = false;
        for (index, claims) in &wanted {
            written |= self.store_part(record, tailnet, *index, claims).await?;
        }
        let superfluous: Vec<usize> = record
            .keys()
            .filter(|index| !wanted.contains_key(index))
            .copied()
            .collect();
        for index in superfluous {
            self.delete_part(record, tailnet, index).await?;
            written = true;
        }
        Ok(written)
    }

    async fn store_part(
        &self,
        record: &mut Record,
        tailnet: &str,
        index: usize,
        claims: &Claims,
    ) -> Result<bool, KeepError> {
        let name = names::claims_part_config_map(tailnet, index);
        let old = record.get(&index);
        if old.is_some_and(|old| old.claims.as_ref() == Some(claims) && is_labelled(&old.config_map, tailnet)) {
            return Ok(false);
        }
        let text = claims.to_json().map_err(|source| KeepError::Record {
            name: name.clone(),
            source,
        })?;
        let params = post_params();
        let mut config_map = match old {
            // The resourceVersion in the metadata makes the write fail when anybody else wrote meanwhile.
            Some(old) => old.config_map.clone(),
            None => ConfigMap {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some(self.namespace.clone()),
                    ..ObjectMeta::default()
                },
                ..ConfigMap::default()
            },
        };
        let labels = config_map.metadata.labels.get_or_insert_default();
        labels.extend(tailnet_labels(tailnet));
        config_map.data = Some(BTreeMap::from([(DATA_KEY.to_owned(), text)]));
        let written = match old {
            Some(_) => self.api.replace(&name, &params, &config_map).await,
            None => self.api.create(&params, &config_map).await,
        };
        let verb = if old.is_some() { "replace" } else { "create" };
        let part = Part {
            config_map: written.map_err(|source| api_error(verb, &name, source))?,
            claims: Some(claims.clone()),
        };
        record.insert(index, part);
        Ok(true)
    }

    async fn delete_part(&self, record: &mut Record, tailnet: &str, index: usize) -> Result<(), KeepError> {
        let Some(old) = record.get(&index) else { return Ok(()) };
        let name = names::claims_part_config_map(tailnet, index);
        match self.api.delete(&name, &delete_params(&old.config_map, true)).await {
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(source) => return Err(api_error("delete", &name, source)),
        }
        record.remove(&index);
        Ok(())
    }
}

impl State {
    fn failures(&self) -> BTreeMap<String, Arc<KeepError>> {
        self.failed
            .iter()
            .map(|(tailnet, failure)| (tailnet.clone(), Arc::clone(&failure.error)))
            .collect()
    }
}

impl Part {
    fn of(config_map: ConfigMap) -> Result<Self, KeepError> {
        let name = config_map.name_any();
        let claims = match Claims::from_json(text_of(&config_map).unwrap_or_default()) {
            Ok(claims) => Some(claims),
            // Lost, like a deleted record: creation times decide again.
            Err(ClaimsError::Malformed(error)) => {
                tracing::error!(config_map = %name, %error, "claims record cannot be read; it is made anew");
                None
            }
            Err(source) => return Err(KeepError::Record { name, source }),
        };
        Ok(Self { config_map, claims })
    }
}

/// The claims of all parts; None when there is none that can be read. What was written in another installation came from
/// a backup: the UIDs in it are gone, so its claims are kept for objects of those names.
fn whole(tailnet: &str, record: &Record, installation: &str) -> Option<Claims> {
    let readable = record.values().filter_map(|part| part.claims.clone());
    let followed: Vec<Claims> = readable
        .map(|claims| {
            let elsewhere = claims.installation.as_deref().filter(|written_in| *written_in != installation);
            let Some(written_in) = elsewhere.filter(|_| !installation.is_empty()) else {
                return claims;
            };
            let until = (Timestamp::now() + RESERVED).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            tracing::warn!(
                tailnet,
                written_in,
                until,
                "the claims record was restored from another installation; what it has is kept for objects of the same kind, namespace and name"
            );
            claims.restored(&until)
        })
        .collect();
    (!followed.is_empty()).then(|| claim_parts::merged(&followed))
}

/// The installation that a record names, while nobody knows the own one.
fn written_in(record: &Record) -> Option<String> {
    let mut parts = record.values().filter_map(|part| part.claims.as_ref());
    parts.find_map(|claims| claims.installation.clone())
}

fn text_of(config_map: &ConfigMap) -> Option<&str> {
    config_map.data.as_ref()?.get(DATA_KEY).map(String::as_str)
}

fn is_labelled(config_map: &ConfigMap, tailnet: &str) -> bool {
    let labels = config_map.labels();
    tailnet_labels(tailnet)
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

fn api_error(verb: &'static str, name: &str, source: kube::Error) -> KeepError {
    KeepError::Api {
        verb,
        name: name.to_owned(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(installation: Option<&str>) -> Record {
        let mut claims: Claims = serde_json::from_value(json!({ "version": 1, "claims": { "tag:tag:x": {
            "kind": "TailnetSite", "name": "a", "uid": "old", "since": "2026-01-01T00:00:00Z",
        } } }))
        .unwrap();
        claims.installation = installation.map(str::to_owned);
        let part = Part {
            config_map: ConfigMap::default(),
            claims: Some(claims),
        };
        Record::from([(0, part)])
    }

    fn followed(written_in: Option<&str>, here: &str) -> (Option<String>, Option<Timestamp>) {
        let claims = whole("corp", &record(written_in), here).unwrap();
        let claim = &claims.claims["tag:tag:x"];
        let until = claim.reserved_until.as_deref().map(|until| until.parse().unwrap());
        (claim.uid.clone(), until)
    }

    #[test]
    fn only_a_record_of_another_installation_was_restored() {
        let as_it_is = (Some("old".to_owned()), None);
        // Written by a version that did not say where; here; and while nobody knows where here is.
        for (written_in, here) in [(None, "here"), (Some("here"), "here"), (Some("there"), "")] {
            assert_eq!(followed(written_in, here), as_it_is, "{written_in:?} in {here:?}");
        }
        let before = Timestamp::now();
        let (uid, until) = followed(Some("there"), "here");
        assert_eq!(uid, None);
        let kept = until.unwrap().duration_since(before);
        assert!((kept - RESERVED).abs() <= SignedDuration::from_secs(60), "{kept}");
    }

    #[test]
    fn a_record_that_nobody_can_read_is_none() {
        let part = Part {
            config_map: ConfigMap::default(),
            claims: None,
        };
        assert!(whole("corp", &Record::from([(0, part)]), "here").is_none());
    }
}
