//! Our kinds in the API, and how people name them on the command line.

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use tailnet_crds::{GROUP, Kind, Scope, VERSION};

/// Objects of `kind`; of one namespace where one is given and the kind has namespaces, else of all.
pub fn api(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind.as_str()), kind.plural());
    match (kind.scope(), namespace) {
        (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), namespace, &resource),
        _ => Api::all_with(client.clone(), &resource),
    }
}

/// The kind that `text` means, as kubectl takes it: kind, singular, plural or short name, in any case; and without the
/// `tailnet` in front.
pub fn parse(text: &str) -> Option<Kind> {
    let text = text.to_ascii_lowercase();
    let text = text.strip_suffix(&format!(".{GROUP}")).unwrap_or(&text);
    Kind::ALL.into_iter().find(|kind| {
        let singular = kind.as_str().to_ascii_lowercase();
        let short = singular.strip_prefix("tailnet").filter(|rest| !rest.is_empty());
        text == singular || text == kind.plural() || text == kind.short_name() || Some(text) == short
    })
}

#[cfg(test)]
mod tests {
    use super::parse;
    use tailnet_crds::Kind;

    #[test]
    fn kinds_are_named_as_kubectl_takes_them() {
        for text in [
            "TailnetEgress",
            "tailnetegresses",
            "tneg",
            "tailnetegress.tsunaro.io",
            "egress",
        ] {
            assert_eq!(parse(text), Some(Kind::TailnetEgress), "{text}");
        }
        assert_eq!(parse("tn"), Some(Kind::Tailnet));
        assert_eq!(parse("tailnet"), Some(Kind::Tailnet));
        for text in ["", "pod", "tailnetegres"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
