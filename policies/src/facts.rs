//! What the operator publishes of a Headscale server, and how it is cut into ConfigMaps.
//!
//! The rules never ask Headscale: they read these facts, so an admission is as fast and as available as the API server.
//! The ConfigMaps of Tailnet `T` are [`facts_config_map`]`(T, 0)`, `(T, 1)` …, labelled [`FACTS`](label::FACTS)`: T`; each
//! holds [`DATA_KEY`] with at most [`MAX_CHUNK_BYTES`] of the JSON text, and the annotations
//! [`FACTS_CHUNKS`](annotation::FACTS_CHUNKS) and [`FACTS_SHA256`](annotation::FACTS_SHA256) of the whole text. They are written only when [`Facts::same_content`] says that something changed; the age of the facts is
//! the Lease's (`tailnet-facts-T`), not theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailnet_crds::names::tailnet::facts_config_map;
use tailnet_crds::names::{annotation, label};

/// Version of the format.
pub const FORMAT_VERSION: u32 = 1;
/// Key of the ConfigMap's data.
pub const DATA_KEY: &str = "chunk";
/// Most bytes of one chunk: a ConfigMap holds 1 MiB, and managed fields and annotations need room too.
pub const MAX_CHUNK_BYTES: usize = 512 * 1024;
/// Most chunks of one Tailnet that a reader joins, 32 MiB in all.
pub const MAX_CHUNKS: usize = 64;

/// What is known of one Headscale server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Version of the server, e.g. `v0.29.3`.
    pub server_version: String,
    /// RFC 3339 UTC time of the read that first saw this content.
    pub read_at: String,
    /// The live access policy.
    pub policy: PolicyFacts,
    /// All nodes, by id.
    pub nodes: Vec<NodeFacts>,
    /// All routes that a node advertises or has approved, by prefix and node.
    pub routes: Vec<RouteFacts>,
}

/// The live access policy, as far as rules ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyFacts {
    /// Whether the server has a policy at all.
    pub present: bool,
    /// `tagOwners`: tag to owners.
    #[serde(default)]
    pub tag_owners: BTreeMap<String, Vec<String>>,
    /// Names of the defined groups, with `group:`.
    #[serde(default)]
    pub groups: BTreeSet<String>,
    /// `hosts`: name to address or prefix, as written.
    #[serde(default)]
    pub hosts: BTreeMap<String, String>,
    /// `autoApprovers.routes`: prefix to approvers.
    #[serde(default)]
    pub auto_approver_routes: BTreeMap<String, Vec<String>>,
    /// `autoApprovers.exitNode`: approvers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auto_approver_exit_nodes: Vec<String>,
    /// What holds for connections that no rule names.
    pub default_posture: Posture,
    /// Another installation, or another Tailnet of this one, that writes the policy, as its first line says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_owner: Option<String>,
}

/// What holds for connections that no rule names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Posture {
    /// The policy has neither `acls` nor `grants` (or there is none): everyone reaches everyone.
    AllowAll,
    /// Only what a rule names is allowed.
    #[default]
    Deny,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// Headscale's id, decimal.
    pub id: String,
    /// MagicDNS label.
    pub given_name: String,
    /// Tailnet addresses.
    pub addresses: Vec<IpAddr>,
    /// Tags, with `tag:`.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// User name of an untagged node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// One prefix of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteFacts {
    /// The prefix.
    pub prefix: IpNet,
    /// The node's id.
    pub node_id: String,
    /// Whether the node advertises it now.
    pub advertised: bool,
    /// Whether it is approved (also when it is no longer advertised).
    pub approved: bool,
    /// Whether this node serves it now.
    pub primary: bool,
}

/// One piece of the text of some facts: the content of one ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Position, from 0.
    pub index: usize,
    /// Number of pieces.
    pub count: usize,
    /// sha256 (hex) of the joined text.
    pub sha256: String,
    /// The piece.
    pub text: String,
}

/// A ConfigMap is labelled and named as a facts chunk, but is none: somebody edited it.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
#[error("annotations or data of a facts chunk are missing; delete the ConfigMap, and the operator makes it anew")]
pub struct DamagedChunk;

impl Chunk {
    /// The chunk in a ConfigMap and the Tailnet that it is of; None when its name or label is not a chunk's.
    ///
    /// # Errors
    /// When only its content is not a chunk's.
    pub fn of_config_map<'n>(
        name: &'n str,
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
        data: Option<&BTreeMap<String, String>>,
    ) -> Result<Option<(&'n str, Self)>, DamagedChunk> {
        let Some((tailnet, index)) = chunk_of(name) else {
            return Ok(None);
        };
        if labels.get(label::FACTS).map(String::as_str) != Some(tailnet) {
            return Ok(None);
        }
        let count = annotations
            .get(annotation::FACTS_CHUNKS)
            .and_then(|count| count.parse().ok());
        let chunk = Self {
            index,
            count: count.ok_or(DamagedChunk)?,
            sha256: annotations.get(annotation::FACTS_SHA256).ok_or(DamagedChunk)?.clone(),
            text: data.and_then(|data| data.get(DATA_KEY)).ok_or(DamagedChunk)?.clone(),
        };
        Ok(Some((tailnet, chunk)))
    }
}

/// Why chunks do not give facts. None of it is the user's fault: the operator is writing them, or somebody else did.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FactsError {
    /// No chunk at all.
    #[error("there are no facts chunks; the operator has not read this Tailnet's server yet")]
    None,
    /// More chunks than a reader joins.
    #[error("{count} facts chunks are more than {MAX_CHUNKS}")]
    TooMany {
        /// Announced number.
        count: usize,
    },
    /// The chunks belong to two texts: a write is under way.
    #[error(
        "facts chunk {index} belongs to another text than chunk {first}; a write is under way, or one failed half-way"
    )]
    Mixed {
        /// Position of the first chunk.
        first: usize,
        /// Position of the chunk that differs.
        index: usize,
    },
    /// A position is missing.
    #[error("facts chunk {index} of {count} is missing")]
    Missing {
        /// Missing position.
        index: usize,
        /// Announced number.
        count: usize,
    },
    /// A position came twice.
    #[error("facts chunk {index} came twice")]
    Twice {
        /// Position.
        index: usize,
    },
    /// The joined text is not what the annotation says.
    #[error("the joined facts do not match their sha256; somebody else edited a tailnet-facts ConfigMap")]
    Checksum,
    /// The joined text is not the format.
    #[error("the facts cannot be read: {problem}")]
    Malformed {
        /// The parser's words.
        problem: String,
    },
    /// A newer operator wrote them.
    #[error(
        "the facts have format {found}, this program reads {FORMAT_VERSION}; bring operator and webhook to one version"
    )]
    Version {
        /// Version found.
        found: u32,
    },
}

impl Facts {
    /// Sorts what has no order of its own, so that equal content gives equal text.
    pub fn normalize(&mut self) {
        for node in &mut self.nodes {
            node.addresses.sort();
        }
        // Ids are decimal text: by length first, then by digits, is by number.
        self.nodes.sort_by(|a, b| (a.id.len(), &a.id).cmp(&(b.id.len(), &b.id)));
        self.routes
            .sort_by(|a, b| (a.prefix, a.node_id.len(), &a.node_id).cmp(&(b.prefix, b.node_id.len(), &b.node_id)));
        for owners in self
            .policy
            .tag_owners
            .values_mut()
            .chain(self.policy.auto_approver_routes.values_mut())
        {
            owners.sort();
            owners.dedup();
        }
    }

    /// Whether both say the same, the time of reading aside. Both must be [`Facts::normalize`]d.
    pub fn same_content(&self, other: &Self) -> bool {
        self.version == other.version
            && self.server_version == other.server_version
            && self.policy == other.policy
            && self.nodes == other.nodes
            && self.routes == other.routes
    }

    /// The chunks to write. More than [`MAX_CHUNKS`] are refused by the reader.
    pub fn to_chunks(&self) -> Vec<Chunk> {
        self.to_chunks_of(MAX_CHUNK_BYTES)
    }

    fn to_chunks_of(&self, max_bytes: usize) -> Vec<Chunk> {
        // Plain maps with text keys always serialize; were it otherwise, the reader would refuse this as malformed.
        let text = serde_json::to_string(self).unwrap_or_else(|problem| problem.to_string());
        let sha256 = sha256_hex(&text);
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut end = rest.len().min(max_bytes);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (piece, tail) = rest.split_at(end);
            pieces.push(piece.to_owned());
            rest = tail;
        }
        let count = pieces.len();
        pieces
            .into_iter()
            .enumerate()
            .map(|(index, text)| Chunk {
                index,
                count,
                sha256: sha256.clone(),
                text,
            })
            .collect()
    }

    /// Joins chunks in any order. Chunks behind the announced number are leftovers of a longer text and are ignored when
    /// they belong to another text.
    pub fn from_chunks(chunks: &[Chunk]) -> Result<Self, FactsError> {
        let first = chunks.iter().min_by_key(|c| c.index).ok_or(FactsError::None)?;
        let count = first.count;
        if count > MAX_CHUNKS {
            return Err(FactsError::TooMany { count });
        }
        let mut pieces: Vec<Option<&str>> = vec![None; count];
        for chunk in chunks {
            if chunk.sha256 != first.sha256 || chunk.count != count {
                if chunk.index >= count {
                    continue;
                }
                return Err(FactsError::Mixed {
                    first: first.index,
                    index: chunk.index,
                });
            }
            match pieces.get_mut(chunk.index) {
                Some(slot @ None) => *slot = Some(&chunk.text),
                Some(Some(_)) => return Err(FactsError::Twice { index: chunk.index }),
                None => {
                    return Err(FactsError::Mixed {
                        first: first.index,
                        index: chunk.index,
                    });
                }
            }
        }
        let mut text = String::with_capacity(chunks.iter().map(|c| c.text.len()).sum());
        for (index, piece) in pieces.iter().enumerate() {
            text.push_str(piece.ok_or(FactsError::Missing { index, count })?);
        }
        if sha256_hex(&text) != first.sha256 {
            return Err(FactsError::Checksum);
        }
        let facts: Self = serde_json::from_str(&text).map_err(|e| FactsError::Malformed { problem: e.to_string() })?;
        if facts.version != FORMAT_VERSION {
            return Err(FactsError::Version { found: facts.version });
        }
        Ok(facts)
    }
}

/// Tailnet and position of a chunk from the name of its ConfigMap (that is all a deletion tells); None for another name.
pub fn chunk_of(config_map: &str) -> Option<(&str, usize)> {
    let (tailnet, digits) = config_map.strip_prefix("tailnet-facts-")?.rsplit_once('-')?;
    let index = digits.parse().ok()?;
    (facts_config_map(tailnet, index) == config_map).then_some((tailnet, index))
}

fn sha256_hex(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let mut facts = Facts {
            version: FORMAT_VERSION,
            server_version: "v0.29.3".into(),
            read_at: "2026-01-01T00:00:00Z".into(),
            ..Facts::default()
        };
        for id in [10, 2, 1] {
            facts.nodes.push(NodeFacts {
                id: id.to_string(),
                given_name: format!("knöten-{id}"),
                addresses: vec!["100.64.0.1".parse().unwrap()],
                ..NodeFacts::default()
            });
            facts.routes.push(RouteFacts {
                prefix: "10.0.0.0/24".parse().unwrap(),
                node_id: id.to_string(),
                advertised: true,
                approved: false,
                primary: false,
            });
        }
        facts.normalize();
        facts
    }

    #[test]
    fn chunks_in_any_order_give_the_facts_back() {
        let facts = facts();
        let mut chunks = facts.to_chunks_of(40);
        assert!(chunks.len() > 5);
        assert!(chunks.iter().all(|c| c.text.len() <= 40));
        chunks.reverse();
        assert_eq!(Facts::from_chunks(&chunks), Ok(facts));
    }

    #[test]
    fn nodes_and_routes_are_ordered_by_number() {
        let facts = facts();
        assert_eq!(
            facts.nodes.iter().map(|n| n.id.as_str()).collect::<Vec<_>>(),
            ["1", "2", "10"]
        );
        assert_eq!(
            facts.routes.iter().map(|r| r.node_id.as_str()).collect::<Vec<_>>(),
            ["1", "2", "10"]
        );
    }

    #[test]
    fn the_time_of_reading_is_not_content() {
        let (a, mut b) = (facts(), facts());
        b.read_at = "2026-01-01T00:00:15Z".into();
        assert!(a.same_content(&b));
        b.nodes[0].given_name.push('x');
        assert!(!a.same_content(&b));
    }

    #[test]
    fn damaged_sets_are_refused_by_name() {
        let chunks = facts().to_chunks_of(100);
        let count = chunks.len();
        assert_eq!(Facts::from_chunks(&[]), Err(FactsError::None));
        assert_eq!(
            Facts::from_chunks(&chunks[..count - 1]),
            Err(FactsError::Missing {
                index: count - 1,
                count
            })
        );
        assert_eq!(
            Facts::from_chunks(&chunks[1..]),
            Err(FactsError::Missing { index: 0, count })
        );
        let mut twice = chunks.clone();
        twice.push(chunks[2].clone());
        assert_eq!(Facts::from_chunks(&twice), Err(FactsError::Twice { index: 2 }));
        let mut mixed = chunks.clone();
        mixed[1].sha256 = "00".into();
        assert_eq!(
            Facts::from_chunks(&mixed),
            Err(FactsError::Mixed { first: 0, index: 1 })
        );
        let mut edited = chunks.clone();
        edited[1].text.replace_range(..1, "~");
        assert_eq!(Facts::from_chunks(&edited), Err(FactsError::Checksum));
        let mut newer = facts();
        newer.version = 2;
        assert_eq!(
            Facts::from_chunks(&newer.to_chunks()),
            Err(FactsError::Version { found: 2 })
        );
    }

    #[test]
    fn leftovers_of_a_longer_text_do_not_hide_the_shorter_one() {
        let facts = facts();
        let mut chunks = facts.to_chunks();
        chunks.push(Chunk {
            index: 1,
            count: 2,
            sha256: "old".into(),
            text: "…".into(),
        });
        assert_eq!(Facts::from_chunks(&chunks), Ok(facts));
    }

    #[test]
    fn names_lead_back_to_positions() {
        assert_eq!(chunk_of(&facts_config_map("corp", 7)), Some(("corp", 7)));
        assert_eq!(chunk_of("tailnet-facts-corp-eu-12"), Some(("corp-eu", 12)));
        assert_eq!(chunk_of("tailnet-facts-corp-07"), None, "not how a chunk is named");
        assert_eq!(chunk_of("tailnet-facts-corp"), None);
        assert_eq!(chunk_of("tailnet-claims-corp-7"), None);
    }

    #[test]
    fn a_config_map_is_a_chunk_by_name_and_label() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let labels = map(&[(label::FACTS, "corp-eu")]);
        let annotations = map(&[(annotation::FACTS_CHUNKS, "3"), (annotation::FACTS_SHA256, "ab")]);
        let data = map(&[(DATA_KEY, "{")]);
        let name = "tailnet-facts-corp-eu-2";
        let chunk = Chunk {
            index: 2,
            count: 3,
            sha256: "ab".into(),
            text: "{".into(),
        };
        let read = |name, labels, annotations, data| Chunk::of_config_map(name, labels, annotations, data);
        assert_eq!(
            read(name, &labels, &annotations, Some(&data)),
            Ok(Some(("corp-eu", chunk)))
        );
        assert_eq!(read("other", &labels, &annotations, Some(&data)), Ok(None));
        let foreign = map(&[(label::FACTS, "corp")]);
        assert_eq!(read(name, &foreign, &annotations, Some(&data)), Ok(None));
        assert_eq!(read(name, &labels, &annotations, None), Err(DamagedChunk));
        assert_eq!(read(name, &labels, &map(&[]), Some(&data)), Err(DamagedChunk));
    }
}
