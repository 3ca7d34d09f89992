//! Whether our CRDs are there, served, and of this version.

use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::Value;
use tailnet_crds::crd::crd_value;
use tailnet_crds::{Kind, VERSION};

use super::Surroundings;
use super::check::Check;

const CHECK: &str = "CRDs";

/// One finding when all is well, else one per fault.
pub async fn check(around: &Surroundings) -> Vec<Check> {
    let group = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&group, "customresourcedefinitions");
    let api: Api<DynamicObject> = Api::all_with(around.client.clone(), &resource);
    let mut checks = Vec::new();
    for kind in Kind::ALL {
        match api.get_opt(&kind.crd_name()).await {
            Ok(None) => {
                let next =
                    "# helm upgrade --install … with crds.install=true (the default), or kubectl apply --server-side -f crds/yaml".to_owned();
                checks.push(Check::fail(
                    CHECK,
                    format!("{} is not installed", kind.crd_name()),
                    vec![next],
                ));
            }
            Ok(Some(live)) => checks.extend(compared(around, kind, &serde_json::to_value(&live).unwrap_or_default())),
            Err(error) => return vec![Check::unread(CHECK, "CustomResourceDefinitions", &error)],
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(
            CHECK,
            format!("all five are there, as this plugin knows them ({VERSION})"),
        ));
    }
    checks
}

fn compared(around: &Surroundings, kind: Kind, live: &Value) -> Option<Check> {
    let conditions = live["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let served = conditions
        .iter()
        .any(|c| c["type"] == "Established" && c["status"] == "True");
    let describe = || vec![around.kubectl.run(&format!("describe crd {}", kind.crd_name()))];
    if !served {
        let message = format!("{} is not served (not Established)", kind.crd_name());
        return Some(Check::fail(CHECK, message, describe()));
    }
    let (ours, live) = (schema(crd_value(kind)), schema(live));
    if let Some(field) = first_missing(ours, live, "") {
        let message = format!(
            "{} is older than this plugin: it lacks {field}; upgrade the chart, or use the plugin of its version",
            kind.crd_name()
        );
        return Some(Check::fail(CHECK, message, describe()));
    }
    let field = first_missing(live, ours, "")?;
    let message = format!(
        "{} is newer than this plugin, which does not know {field}",
        kind.crd_name()
    );
    Some(Check::warn(CHECK, message, describe()))
}

/// The schema of our version.
fn schema(crd: &Value) -> &Value {
    let versions = crd["spec"]["versions"].as_array().map_or(&[][..], Vec::as_slice);
    versions
        .iter()
        .find(|version| version["name"] == VERSION)
        .map_or(&Value::Null, |version| &version["schema"]["openAPIV3Schema"])
}

/// Path of the first field that `wanted` has and `found` has not.
fn first_missing(wanted: &Value, found: &Value, path: &str) -> Option<String> {
    if let Some(fields) = wanted["properties"].as_object() {
        for (name, field) in fields {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            match found["properties"].get(name) {
                None => return Some(path),
                Some(other) => {
                    if let Some(missing) = first_missing(field, other, &path) {
                        return Some(missing);
                    }
                }
            }
        }
    }
    match wanted.get("items") {
        Some(items) => first_missing(items, &found["items"], &format!("{path}[]")),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{first_missing, schema};
    use serde_json::json;
    use tailnet_crds::Kind;
    use tailnet_crds::crd::crd_value;

    #[test]
    fn a_field_more_or_less_is_named() {
        for kind in Kind::ALL {
            let ours = schema(crd_value(kind));
            assert!(ours.is_object(), "{kind} has no schema");
            assert_eq!(first_missing(ours, ours, ""), None);
        }
        let ours = schema(crd_value(Kind::TailnetEgress));
        let mut older = ours.clone();
        let targets = older
            .pointer_mut("/properties/spec/properties/targets/items/properties")
            .unwrap();
        targets.as_object_mut().unwrap().remove("aliases");
        assert_eq!(
            first_missing(ours, &older, "").as_deref(),
            Some("spec.targets[].aliases")
        );
        assert_eq!(first_missing(&older, ours, ""), None);
        assert_eq!(
            first_missing(ours, &json!(null), "").as_deref(),
            ours["properties"]
                .as_object()
                .unwrap()
                .keys()
                .next()
                .map(String::as_str)
        );
    }
}
