//! The ConfigMap with the rendered policy, the difference to the live one, and what was last overwritten.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tailnet_crds::Tailnet;
use tailnet_crds::names::annotation::{POLICY_APPLIED_AT, POLICY_APPLIED_SHA256};
use tailnet_crds::names::label::COMPONENT;
use tailnet_crds::names::rendered_policy::{COMPRESSED, DIFF, LEFT_OUT, LIVE, OVERWRITTEN, RENDERED};
use tailnet_crds::names::tailnet::rendered_policy_config_map;
use tailnet_headscale::document::edit::one_line;

use crate::access_policy::Applied;
use crate::children::{self, ChildError};
use crate::context::Context;
use crate::ownership::{is_owned_by, owned_by_tailnet, tailnet_labels};

/// Most bytes of one text that is not compressed: three of them and a difference fit one ConfigMap.
const MAX_PLAIN: usize = 200 * 1024;
/// Most bytes of all texts: the API server takes 1 MiB in the values of a ConfigMap.
const MAX_ALL: usize = 1_000_000;
/// Most bytes of the difference.
const MAX_DIFF: usize = 100 * 1024;

/// What is published.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// The rendered document.
    pub rendered: String,
    /// The live one; None when there is none.
    pub live: Option<String>,
    /// Difference of the two.
    pub diff: String,
    /// What was last written.
    pub applied: Option<Applied>,
    /// A document to keep because it was, or is about to be, overwritten. None keeps the one that is there.
    pub overwritten: Option<String>,
}

/// The stored ConfigMap, if it is this Tailnet's.
pub fn stored(context: &Context, tailnet: &Tailnet) -> Option<std::sync::Arc<ConfigMap>> {
    let name = rendered_policy_config_map(&tailnet.name_any());
    let found = context
        .stores
        .config_maps
        .get(&ObjectRef::new(&name).within(context.namespace()))?;
    let uid = tailnet.uid()?;
    is_owned_by(&found.metadata, &uid).then_some(found)
}

/// The last write, as the ConfigMap has it.
pub fn applied(stored: Option<&ConfigMap>) -> Option<Applied> {
    let annotation = |key: &str| stored.and_then(|found| found.annotations().get(key).cloned());
    Some(Applied {
        sha256: annotation(POLICY_APPLIED_SHA256)?,
        at: annotation(POLICY_APPLIED_AT)?,
    })
}

/// Whether writing the ConfigMap again would give the same error.
pub fn is_permanent(error: &ChildError) -> bool {
    match error {
        ChildError::Foreign { .. } | ChildError::Json { .. } => true,
        ChildError::StillThere { .. } => false,
        ChildError::Api { source, .. } => match source.as_ref() {
            kube::Error::Api(status) => (400..500).contains(&status.code) && ![408, 409, 429].contains(&status.code),
            _ => false,
        },
    }
}

/// Writes the ConfigMap when it differs. Gives the keys whose texts do not fit it.
///
/// # Errors
/// See [`ChildError`].
pub async fn publish(
    context: &Context,
    tailnet: &Tailnet,
    published: &Published,
) -> Result<Vec<&'static str>, ChildError> {
    let name = tailnet.name_any();
    let before = stored(context, tailnet);
    let mut labels = tailnet_labels(&name);
    labels.insert(COMPONENT.to_owned(), "rendered-policy".to_owned());
    let mut annotations = BTreeMap::new();
    if let Some(applied) = &published.applied {
        annotations.insert(POLICY_APPLIED_SHA256.to_owned(), applied.sha256.clone());
        annotations.insert(POLICY_APPLIED_AT.to_owned(), applied.at.clone());
    }
    let contents = Contents::of(published, before.as_deref());
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(rendered_policy_config_map(&name)),
            namespace: Some(context.namespace().to_owned()),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: owned_by_tailnet(tailnet).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(contents.data),
        binary_data: (!contents.binary.is_empty()).then_some(contents.binary),
        ..ConfigMap::default()
    };
    children::apply(context, &context.stores.config_maps, tailnet, config_map).await?;
    Ok(contents.left_out)
}

/// What stands in the ConfigMap.
#[derive(Default)]
struct Contents {
    data: BTreeMap<String, String>,
    binary: BTreeMap<String, ByteString>,
    bytes: usize,
    left_out: Vec<&'static str>,
}

impl Contents {
    /// The most important first: what is wanted, what nobody else has any more, and at last what Headscale gives to whoever asks.
    fn of(published: &Published, before: Option<&ConfigMap>) -> Self {
        let mut contents = Self::default();
        contents.plain(DIFF, cut(&published.diff));
        contents.text(RENDERED, &published.rendered);
        match &published.overwritten {
            Some(text) => contents.text(OVERWRITTEN, text),
            None => contents.keep(OVERWRITTEN, before),
        }
        if let Some(live) = &published.live {
            contents.text(LIVE, live);
        }
        if !contents.left_out.is_empty() {
            let lines = contents.left_out.iter().map(|key| format!("{key}\n"));
            contents.data.insert(LEFT_OUT.to_owned(), lines.collect());
        }
        contents
    }

    fn text(&mut self, key: &'static str, text: &str) {
        if text.len() <= MAX_PLAIN {
            self.plain(key, text.to_owned());
        } else {
            self.compressed(key, ByteString(compressed(text)));
        }
    }

    /// What the ConfigMap had under a key.
    fn keep(&mut self, key: &'static str, before: Option<&ConfigMap>) {
        let plain = before.and_then(|before| before.data.as_ref()?.get(key));
        let archive = before.and_then(|before| before.binary_data.as_ref()?.get(&format!("{key}{COMPRESSED}")));
        match (plain, archive) {
            (Some(text), _) => self.plain(key, text.clone()),
            (None, Some(bytes)) => self.compressed(key, bytes.clone()),
            (None, None) => {}
        }
    }

    fn plain(&mut self, key: &'static str, text: String) {
        if self.fits(key, text.len()) {
            self.data.insert(key.to_owned(), text);
        }
    }

    fn compressed(&mut self, key: &'static str, bytes: ByteString) {
        if self.fits(key, bytes.0.len()) {
            self.binary.insert(format!("{key}{COMPRESSED}"), bytes);
        }
    }

    fn fits(&mut self, key: &'static str, bytes: usize) -> bool {
        let fits = self.bytes + bytes <= MAX_ALL;
        match fits {
            true => self.bytes += bytes,
            false => self.left_out.push(key),
        }
        fits
    }
}

fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing into memory does not fail; were it to, an empty archive would say so to whoever opens it.
    let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    written.unwrap_or_default()
}

/// The difference, cut at a line.
fn cut(diff: &str) -> String {
    if diff.len() <= MAX_DIFF {
        return diff.to_owned();
    }
    let mut end = MAX_DIFF;
    while !diff.is_char_boundary(end) {
        end -= 1;
    }
    let end = diff[..end].rfind('\n').map_or(end, |at| at + 1);
    let more = diff[end..].lines().count();
    format!("{}… and {more} more lines\n", &diff[..end])
}

/// Lines as one bounded text for an Event.
pub fn excerpt(lines: &[String], most: usize) -> String {
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let line = one_line(line);
        if text.len() + line.len() > most {
            return format!("{text}… and {} more lines", lines.len() - at);
        }
        if at > 0 {
            text.push_str(" ¶ ");
        }
        text.push_str(&line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document that hardly gets smaller.
    fn noise(bytes: usize, seed: u64) -> String {
        let mut state = seed;
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            text.push_str(&format!("{:016x}", state ^ (state >> 29)));
        }
        text
    }

    /// What the API server counts (ValidateConfigMap): the bytes of all values.
    fn counted(contents: &Contents) -> usize {
        let plain: usize = contents.data.values().map(String::len).sum();
        plain + contents.binary.values().map(|bytes| bytes.0.len()).sum::<usize>()
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_named() {
        let published = |rendered: usize, live: usize, overwritten: Option<usize>| Published {
            rendered: noise(rendered, 1),
            live: Some(noise(live, 2)),
            diff: "+ line\n".repeat(100_000),
            overwritten: overwritten.map(|bytes| noise(bytes, 3)),
            ..Published::default()
        };
        let small = Contents::of(&published(100, 100, Some(100)), None);
        assert_eq!(small.left_out, [""; 0]);
        assert_eq!(
            small.data.keys().collect::<Vec<_>>(),
            [DIFF, LIVE, OVERWRITTEN, RENDERED]
        );

        // Each fits, all together do not: the one that Headscale has too goes.
        let three = Contents::of(&published(700_000, 700_000, Some(700_000)), None);
        assert_eq!(three.left_out, [LIVE]);
        assert!(
            counted(&three) <= 1_048_576 && counted(&three) > 700_000,
            "{}",
            counted(&three)
        );
        assert_eq!(three.data[LEFT_OUT], "live.hujson\n");

        // What was kept of an earlier time is counted too.
        let before = ConfigMap {
            binary_data: Some(three.binary.clone()),
            ..ConfigMap::default()
        };
        let later = Contents::of(&published(1_400_000, 1_400_000, None), Some(&before));
        assert_eq!(later.left_out, [OVERWRITTEN, LIVE]);
        assert!(counted(&later) <= 1_048_576, "{}", counted(&later));

        // Not even the wanted document fits: there is still the difference.
        let none = Contents::of(&published(4_000_000, 100, None), None);
        assert_eq!(none.left_out, [RENDERED]);
        assert!(none.data.contains_key(DIFF) && none.data.contains_key(LIVE));
    }

    #[test]
    fn what_is_shown_is_bounded() {
        let long = "+ line\n".repeat(100_000);
        let short = cut(&long);
        assert!(short.len() < MAX_DIFF + 100 && short.ends_with("more lines\n"));
        assert_eq!(cut("+ a\n"), "+ a\n");
        let lines: Vec<String> = (0..100).map(|n| format!("line {n}\nnext")).collect();
        let shown = excerpt(&lines, 50);
        assert!(
            shown.starts_with("line 0 next ¶ line 1 next") && shown.ends_with("more lines"),
            "{shown}"
        );
        assert!(shown.len() < 100);
        assert!(compressed(&long).len() < 10_000);
    }
}
