//! What the operator publishes of Headscale, read from the ConfigMaps and Leases of its namespace.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use tailnet_crds::names::{self, label};
use tailnet_policies::facts::{Chunk, Facts};

/// Facts of one Tailnet.
#[derive(Debug)]
pub struct Published {
    /// Name of the Tailnet.
    pub tailnet: String,
    /// The facts; None when the chunks do not give any.
    pub facts: Option<Facts>,
    /// Time since Headscale was last read; [`Duration::MAX`] when nobody knows.
    pub age: Duration,
}

/// The facts of every Tailnet that has a ConfigMap with some among `config_maps`.
pub fn published(config_maps: &[ConfigMap], leases: &[Lease], now: Timestamp) -> Vec<Published> {
    let mut chunks: BTreeMap<String, Vec<Chunk>> = BTreeMap::new();
    for config_map in config_maps {
        let labels = config_map.labels();
        let Some(tailnet) = labels.get(label::FACTS) else {
            continue;
        };
        let name = config_map.name_any();
        let chunk = Chunk::of_config_map(&name, labels, config_map.annotations(), config_map.data.as_ref());
        // One that is damaged is missing in its text, which then gives no facts.
        let chunk = chunk.ok().flatten().map(|(_, chunk)| chunk);
        chunks.entry(tailnet.clone()).or_default().extend(chunk);
    }
    chunks
        .into_iter()
        .map(|(tailnet, chunks)| {
            let facts = Facts::from_chunks(&chunks).ok();
            let read_at = facts.as_ref().and_then(|facts| facts.read_at.parse().ok());
            let at = heartbeat(&tailnet, leases).max(read_at);
            Published {
                age: at.map_or(Duration::MAX, |at| age(at, now)),
                tailnet,
                facts,
            }
        })
        .collect()
}

/// When Headscale was last read for `tailnet`, by its Lease.
pub fn heartbeat(tailnet: &str, leases: &[Lease]) -> Option<Timestamp> {
    let name = names::tailnet::facts_lease(tailnet);
    renewed(leases.iter().find(|lease| lease.name_any() == name)?)
}

/// When a Lease was last renewed.
pub fn renewed(lease: &Lease) -> Option<Timestamp> {
    lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
}

/// Time from `at` to `now`; zero when `at` is later, since clocks differ a little.
pub fn age(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or(Duration::ZERO)
}
