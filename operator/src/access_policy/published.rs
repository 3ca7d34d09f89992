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
use tailnet_crds::names::tailnet::rendered_policy_config_map;
use tailnet_headscale::document::edit::one_line;

use crate::children::{self, ChildError};
use crate::context::Context;
use crate::ownership::{is_owned_by, owned_by_tailnet, tailnet_labels};

/// Key of the rendered document.
const RENDERED: &str = "rendered.hujson";
/// Key of the live document.
const LIVE: &str = "live.hujson";
/// Key of the difference, live to rendered.
const DIFF: &str = "diff";
/// Key of the document that was last overwritten although this installation had not written it.
const OVERWRITTEN: &str = "overwritten.hujson";
/// Behind the name of a key whose text is compressed.
const COMPRESSED: &str = ".gz";
/// Most bytes of one text that is not compressed: three of them and a difference fit one ConfigMap.
const MAX_PLAIN: usize = 200 * 1024;
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
    /// sha256 of what was last written.
    pub applied_sha256: Option<String>,
    /// When.
    pub applied_at: Option<String>,
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

/// sha256 and time of the last write, as the ConfigMap has it.
pub fn applied(stored: Option<&ConfigMap>) -> (Option<String>, Option<String>) {
    let annotation = |key: &str| stored.and_then(|found| found.annotations().get(key).cloned());
    (annotation(POLICY_APPLIED_SHA256), annotation(POLICY_APPLIED_AT))
}

/// Writes the ConfigMap when it differs.
///
/// # Errors
/// See [`ChildError`].
pub async fn publish(context: &Context, tailnet: &Tailnet, published: &Published) -> Result<(), ChildError> {
    let name = tailnet.name_any();
    let before = stored(context, tailnet);
    let mut labels = tailnet_labels(&name);
    labels.insert(COMPONENT.to_owned(), "rendered-policy".to_owned());
    let mut annotations = BTreeMap::new();
    let pairs = [
        (POLICY_APPLIED_SHA256, &published.applied_sha256),
        (POLICY_APPLIED_AT, &published.applied_at),
    ];
    for (key, value) in pairs {
        if let Some(value) = value {
            annotations.insert(key.to_owned(), value.clone());
        }
    }
    let mut data = BTreeMap::new();
    let mut binary = BTreeMap::new();
    let mut put = |key: &str, text: &str| {
        if text.len() <= MAX_PLAIN {
            data.insert(key.to_owned(), text.to_owned());
        } else {
            binary.insert(format!("{key}{COMPRESSED}"), ByteString(compressed(text)));
        }
    };
    put(RENDERED, &published.rendered);
    if let Some(live) = &published.live {
        put(LIVE, live);
    }
    match &published.overwritten {
        Some(text) => put(OVERWRITTEN, text),
        None => {
            if let Some(before) = &before {
                let kept = before.data.as_ref().and_then(|data| data.get(OVERWRITTEN));
                if let Some(text) = kept {
                    data.insert(OVERWRITTEN.to_owned(), text.clone());
                }
                let key = format!("{OVERWRITTEN}{COMPRESSED}");
                let kept = before.binary_data.as_ref().and_then(|data| data.get(&key));
                if let Some(bytes) = kept {
                    binary.insert(key, bytes.clone());
                }
            }
        }
    }
    data.insert(DIFF.to_owned(), cut(&published.diff));
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(rendered_policy_config_map(&name)),
            namespace: Some(context.namespace().to_owned()),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: owned_by_tailnet(tailnet).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        binary_data: (!binary.is_empty()).then_some(binary),
        ..ConfigMap::default()
    };
    children::apply(context, &context.stores.config_maps, tailnet, config_map)
        .await
        .map(drop)
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
