//! What is there in Headscale and in the operator's namespace: the faults must add nothing to it. And what must be nowhere: keys.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tailnet_e2e::wait_for;
use tailnet_headscale::ApiKey;

use crate::bed::{Bed, OPERATOR, TAG, text};

/// Headscale removes a node that was lost without a logout after 70 s, and what the operator then does takes its interval.
const SETTLED: Duration = Duration::from_secs(180);
/// Kinds in the operator's namespace whose objects do not come and go by themselves.
const KINDS: &str = "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,leases";

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// Names of all nodes in Headscale with whether they are online.
    nodes: Vec<(String, bool)>,
    /// Ids of the pre-auth keys for the egress's tag that have not ended.
    preauth_keys: Vec<String>,
    /// How many API keys there are, whether they have ended or not. (The working key may be another one.)
    api_keys: usize,
    /// Entries of the ledger: kind and stage.
    ledger: Vec<(String, String)>,
    /// Objects in the operator's namespace.
    objects: BTreeSet<String>,
    /// How many Pods are there.
    pods: usize,
}

impl Traces {
    /// What there is now.
    pub fn of(bed: &Bed) -> Result<Self> {
        let mut nodes: Vec<_> = bed
            .nodes()?
            .into_iter()
            .map(|node| (node.given_name, node.online))
            .collect();
        nodes.sort();
        let client = bed.headscale.client()?;
        let now = jiff::Timestamp::now();
        let preauth_keys = bed
            .block_on(client.preauth_keys())?
            .into_iter()
            .filter(|key| key.acl_tags.iter().any(|tag| tag == TAG) && !key.expired(now))
            .map(|key| key.id.as_str().to_owned())
            .collect();
        let api_keys = bed.block_on(client.api_keys())?;
        let working = bed.working_key()?;
        let prefix = ApiKey::parse(&working)?.prefix().context("prefix")?.to_owned();
        ensure!(
            api_keys.iter().any(|key| key.short_prefix() == prefix),
            "Headscale does not have the working key"
        );
        // Remembered for the search at the end.
        bed.secret("tailnet-egress-team-a-authkey", "authkey")?;
        let objects = bed.list(&["-n", OPERATOR, KINDS])?;
        Ok(Self {
            nodes,
            preauth_keys,
            api_keys: api_keys.len(),
            ledger: ledger(bed)?,
            objects: objects
                .iter()
                .map(|object| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])))
                // Helm keeps one per revision.
                .filter(|name| !name.starts_with("Secret sh.helm.release."))
                .collect(),
            pods: bed.list(&["-n", OPERATOR, "pods"])?.len(),
        })
    }

    /// A sound start: the router, one agent, one key of each kind.
    pub fn expect_sound(&self) -> Result<()> {
        let expected = [("branch".to_owned(), true), ("team-a".to_owned(), true)];
        ensure!(self.nodes == expected, "nodes: {:?}", self.nodes);
        ensure!(self.preauth_keys.len() == 1, "pre-auth keys: {:?}", self.preauth_keys);
        ensure!(
            self.api_keys == 3,
            "API keys besides the harness's, the bootstrap and the working key: {}",
            self.api_keys
        );
        let ledger = [
            ("Api".to_owned(), "Active".to_owned()),
            ("PreAuth".to_owned(), "Active".to_owned()),
        ];
        ensure!(self.ledger == ledger, "ledger: {:?}", self.ledger);
        Ok(())
    }

    /// Waits until there is exactly this again.
    pub fn expect_again(&self, bed: &Bed) -> Result<()> {
        wait_for("there is what there was before the faults", SETTLED, || {
            let now = Self::of(bed)?;
            ensure!(now == *self, "before: {self:#?}\nnow: {now:#?}");
            Ok::<_, anyhow::Error>(())
        })
    }
}

fn ledger(bed: &Bed) -> Result<Vec<(String, String)>> {
    let secret = bed.get(&["-n", OPERATOR, "secret", "tailnet-key-ledger"])?;
    let encoded = secret["data"]["ledger.json"]
        .as_str()
        .context("the ledger has its key")?;
    let document: Value = serde_json::from_slice(&STANDARD.decode(encoded)?)?;
    let mut entries: Vec<_> = document["entries"]
        .as_array()
        .context("a ledger has entries")?
        .iter()
        .map(|entry| (text(&entry["kind"]), text(&entry["stage"])))
        .collect();
    entries.sort();
    Ok(entries)
}

/// Looks for every key that was ever in use in all that people and log collectors can read without access to Secrets.
pub fn no_key_is_told(bed: &Bed) -> Result<()> {
    let ours = "tailnets,tailnetegresses,tailnetingresses,tailnetsites,tailnetgateways";
    let mut places = bed.logs()?;
    ensure!(
        places.iter().all(|(_, log)| !log.trim().is_empty()),
        "a Pod logged nothing: {:?}",
        places
            .iter()
            .filter(|(_, log)| log.trim().is_empty())
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    );
    for kinds in [ours, "events", "configmaps", "pods,deployments,services"] {
        places.push((kinds.to_owned(), bed.kubectl(&["get", kinds, "-A", "-o", "yaml"])?));
    }
    let audit: Vec<String> = bed.cluster.audit_log()?.iter().map(Value::to_string).collect();
    places.push(("audit log".to_owned(), audit.join("\n")));

    let keys = bed.keys();
    // Bootstrap, two working keys at the least, the wrong one, a pre-auth key.
    ensure!(keys.len() >= 5, "only {} keys were seen", keys.len());
    // The search finds what is there: a key's public prefix is told on purpose.
    let secret = bed.get(&["-n", OPERATOR, "secret", "tailnet-egress-team-a-authkey"])?;
    let prefix = text(&secret["metadata"]["annotations"]["tsunaro.io/key-prefix"]);
    ensure!(
        !prefix.is_empty()
            && places
                .iter()
                .any(|(place, content)| place == ours && content.contains(&prefix)),
        "the public prefix {prefix:?} of the pre-auth key was not found in the CRs"
    );
    for key in keys {
        let end = key.get(key.len().saturating_sub(32)..).unwrap_or(&key);
        ensure!(
            end.len() >= 16,
            "a key of {} characters is nothing to look for",
            key.len()
        );
        for needle in [end.to_owned(), STANDARD.encode(&key)] {
            for (place, content) in &places {
                ensure!(
                    !content.contains(&needle),
                    "{place} tells a key (it begins with {})",
                    &key[..14]
                );
            }
        }
    }
    Ok(())
}
