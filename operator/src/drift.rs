//! What of a stored child differs from what is wanted, in both directions.
//!
//! `spec` is ours alone: it must have everything that is wanted and nothing else, or a NetworkPolicy whose selector got a
//! key more would protect no Pod, and a Service with an address of its own would be open to others. What the API server
//! itself fills in is known (`FILLED_IN`). Elsewhere (labels, annotations, data) others may add what they like.
//!
//! A server-side apply takes over what is wanted but cannot take away what another manager added, so what is left after it
//! is put right by a JSON patch. What the answer to that still shows was put there by the API server (an admission webhook,
//! or a default of a version that we do not know): it is remembered ([`crate::put_back`]) and left alone, so that no two writers
//! change an object in turns for ever.

use serde_json::{Map, Value, json};
use tailnet_policies::quantities::Quantity;

/// One difference: what makes the stored object as it should be, and what is stored now.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Place of the field as a JSON pointer.
    pub path: String,
    /// What belongs there; None: nothing.
    pub wanted: Option<Value>,
    /// What is there; None: nothing.
    pub live: Option<Value>,
}

impl Difference {
    /// The operation of a JSON patch that resolves it.
    fn operation(&self) -> Value {
        let path = &self.path;
        match (&self.wanted, &self.live) {
            (Some(wanted), Some(_)) => json!({ "op": "replace", "path": path, "value": wanted }),
            (Some(wanted), None) => json!({ "op": "add", "path": path, "value": wanted }),
            (None, _) => json!({ "op": "remove", "path": path }),
        }
    }
}

/// The JSON patch that resolves `differences` in the object with this UID, and in no namesake.
pub fn patch(differences: &[Difference], uid: Option<&str>) -> Value {
    let test = json!({ "op": "test", "path": "/metadata/uid", "value": uid });
    std::iter::once(test)
        .chain(differences.iter().map(Difference::operation))
        .collect()
}

/// What a field may hold that nobody asked for.
enum Filled {
    /// Whatever the API server chose.
    Anything,
    /// This word.
    Text(&'static str),
    /// This number.
    Number(i64),
}

/// What the API server fills into the `spec` of the kinds that are children; `*` is an item of a list.
const FILLED_IN: &[(&str, &str, Filled)] = &[
    ("Service", "spec/clusterIP", Filled::Anything),
    ("Service", "spec/clusterIPs", Filled::Anything),
    ("Service", "spec/ipFamilies", Filled::Anything),
    ("Service", "spec/ipFamilyPolicy", Filled::Anything),
    ("Service", "spec/internalTrafficPolicy", Filled::Text("Cluster")),
    ("Service", "spec/sessionAffinity", Filled::Text("None")),
    ("Deployment", "spec/progressDeadlineSeconds", Filled::Number(600)),
    // `kubectl rollout restart` writes here.
    ("Deployment", "spec/template/metadata/annotations/*", Filled::Anything),
    ("Deployment", "spec/template/spec/restartPolicy", Filled::Text("Always")),
    (
        "Deployment",
        "spec/template/spec/dnsPolicy",
        Filled::Text("ClusterFirst"),
    ),
    (
        "Deployment",
        "spec/template/spec/schedulerName",
        Filled::Text("default-scheduler"),
    ),
    (
        "Deployment",
        "spec/template/spec/containers/*/terminationMessagePath",
        Filled::Text("/dev/termination-log"),
    ),
    (
        "Deployment",
        "spec/template/spec/containers/*/terminationMessagePolicy",
        Filled::Text("File"),
    ),
    (
        "Deployment",
        "spec/template/spec/containers/*/livenessProbe/successThreshold",
        Filled::Number(1),
    ),
    (
        "Deployment",
        "spec/template/spec/containers/*/readinessProbe/successThreshold",
        Filled::Number(1),
    ),
    (
        "Deployment",
        "spec/template/spec/containers/*/livenessProbe/httpGet/scheme",
        Filled::Text("HTTP"),
    ),
    (
        "Deployment",
        "spec/template/spec/containers/*/readinessProbe/httpGet/scheme",
        Filled::Text("HTTP"),
    ),
];

/// Everything in which `live` (a stored object of `kind`) is not as `wanted`. Lists of other lengths differ as a whole;
/// quantities are compared by value, because the API server rewrites them.
pub fn between(kind: &str, live: &Value, wanted: &Value) -> Vec<Difference> {
    let mut walk = Walk {
        kind,
        path: Vec::new(),
        found: Vec::new(),
    };
    walk.values(live, wanted, false);
    walk.found
}

struct Walk<'a> {
    kind: &'a str,
    path: Vec<Step>,
    found: Vec<Difference>,
}

enum Step {
    Key(String),
    Item(usize),
}

impl Walk<'_> {
    fn values(&mut self, live: &Value, wanted: &Value, quantities: bool) {
        match (live, wanted) {
            (Value::Object(live), Value::Object(wanted)) => self.maps(live, wanted, quantities),
            (Value::Array(live_items), Value::Array(items)) if live_items.len() == items.len() => {
                for (index, (live, wanted)) in live_items.iter().zip(items).enumerate() {
                    self.path.push(Step::Item(index));
                    self.values(live, wanted, false);
                    self.path.pop();
                }
            }
            _ if live == wanted || quantities && same_quantity(live, wanted) => {}
            _ => self.differ(Some(live), Some(wanted)),
        }
    }

    fn maps(&mut self, live: &Map<String, Value>, wanted: &Map<String, Value>, quantities: bool) {
        for (key, wanted) in wanted {
            self.path.push(Step::Key(key.clone()));
            match live.get(key) {
                Some(live) => {
                    let here = quantities || matches!(key.as_str(), "limits" | "requests" | "sizeLimit");
                    self.values(live, wanted, here);
                }
                // The API server drops empty maps and lists.
                None if is_empty(wanted) => {}
                None => self.differ(None, Some(wanted)),
            }
            self.path.pop();
        }
        for (key, live) in live.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
            self.path.push(Step::Key(key.clone()));
            if !live.is_null() && self.is_ours() && !self.is_filled_in(live) {
                self.differ(Some(live), None);
            }
            self.path.pop();
        }
    }

    fn differ(&mut self, live: Option<&Value>, wanted: Option<&Value>) {
        self.found.push(Difference {
            path: self.pointer(),
            wanted: wanted.cloned(),
            live: live.cloned(),
        });
    }

    /// Inside `spec`, where nobody else may add anything.
    fn is_ours(&self) -> bool {
        self.path.len() > 1 && matches!(self.path.first(), Some(Step::Key(key)) if key == "spec")
    }

    fn is_filled_in(&self, live: &Value) -> bool {
        FILLED_IN.iter().any(|(kind, pattern, filled)| {
            *kind == self.kind
                && self.matches(pattern)
                && match filled {
                    Filled::Anything => true,
                    Filled::Text(text) => live == text,
                    Filled::Number(number) => live.as_i64() == Some(*number),
                }
        })
    }

    fn matches(&self, pattern: &str) -> bool {
        let mut parts = pattern.split('/');
        self.path.iter().all(|step| match (parts.next(), step) {
            (Some("*"), _) => true,
            (Some(part), Step::Key(key)) => part == key,
            _ => false,
        }) && parts.next().is_none()
    }

    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for step in &self.path {
            pointer.push('/');
            match step {
                Step::Key(key) => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
                Step::Item(index) => pointer.push_str(&index.to_string()),
            }
        }
        pointer
    }
}

fn same_quantity(live: &Value, wanted: &Value) -> bool {
    match (live.as_str(), wanted.as_str()) {
        (Some(live), Some(wanted)) => Quantity::parse(live).is_some_and(|live| Some(live) == Quantity::parse(wanted)),
        _ => false,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(kind: &str, live: &Value, wanted: &Value) -> Vec<String> {
        let found = between(kind, live, wanted);
        let mut paths: Vec<String> = found.into_iter().map(|difference| difference.path).collect();
        paths.sort();
        paths
    }

    #[test]
    fn foreign_labels_and_data_are_no_difference_but_values_and_lengths_are() {
        let live = json!({
            "metadata": { "labels": { "a": "1", "team": "x" }, "uid": "u", "finalizers": ["mine"] },
            "data": { "a": "1", "theirs": "2" },
            "status": { "loadBalancer": {} },
        });
        let wanted = json!({ "metadata": { "labels": { "a": "1" } }, "data": { "a": "1" } });
        assert_eq!(between("ConfigMap", &live, &wanted), []);
        let other = json!({ "metadata": { "labels": { "a": "2" } }, "data": { "b": "1" } });
        assert_eq!(paths("ConfigMap", &live, &other), ["/data/b", "/metadata/labels/a"]);
        let ports = json!({ "spec": { "ports": [{ "port": 1 }] } });
        for wanted in [
            json!({ "spec": { "ports": [{ "port": 1 }, { "port": 2 }] } }),
            json!({ "spec": { "ports": [] } }),
        ] {
            assert_eq!(paths("Service", &ports, &wanted), ["/spec/ports"]);
        }
        assert_eq!(
            between(
                "Service",
                &json!({ "spec": {} }),
                &json!({ "spec": { "selector": {} } })
            ),
            []
        );
    }

    #[test]
    fn what_somebody_added_to_a_network_policy_is_found() {
        let wanted = json!({ "spec": {
            "podSelector": { "matchLabels": { "app.kubernetes.io/name": "a" } },
            "ingress": [{ "from": [{ "namespaceSelector": { "matchLabels": { "n": "x" } } }], "ports": [{ "port": 1, "protocol": "TCP" }] }],
        } });
        assert_eq!(between("NetworkPolicy", &wanted, &wanted), []);
        for (path, value) in [
            ("/spec/podSelector/matchLabels/nope", json!("x")),
            (
                "/spec/podSelector/matchExpressions",
                json!([{ "key": "nope", "operator": "Exists" }]),
            ),
            ("/spec/ingress/0/ports/0/endPort", json!(65_535)),
            ("/spec/ingress/0/from/0/podSelector", json!({})),
        ] {
            let (parent, key) = path.rsplit_once('/').unwrap();
            let mut live = wanted.clone();
            live.pointer_mut(parent).unwrap()[key] = value;
            assert_eq!(paths("NetworkPolicy", &live, &wanted), [path]);
        }
    }

    #[test]
    fn what_the_api_server_fills_in_is_no_difference_unless_it_is_another_value() {
        let wanted = json!({ "spec": { "type": "ClusterIP", "selector": { "a": "b" }, "ports": [{ "port": 1 }] } });
        let live = json!({ "spec": {
            "type": "ClusterIP", "selector": { "a": "b" }, "ports": [{ "port": 1 }], "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
        } });
        assert_eq!(between("Service", &live, &wanted), []);
        for (key, value) in [
            ("externalIPs", json!(["203.0.113.1"])),
            ("sessionAffinity", json!("ClientIP")),
            ("publishNotReadyAddresses", json!(true)),
        ] {
            let mut changed = live.clone();
            changed["spec"][key] = value;
            assert_eq!(paths("Service", &changed, &wanted), [format!("/spec/{key}")]);
        }
        let wanted = json!({ "spec": { "template": {
            "metadata": { "labels": { "a": "b" }, "annotations": { "x/y": "1" } },
            "spec": { "containers": [{ "name": "agent" }] },
        } } });
        let mut live = wanted.clone();
        live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = json!("now");
        live["spec"]["template"]["spec"]["dnsPolicy"] = json!("ClusterFirst");
        live["spec"]["template"]["spec"]["containers"][0]["terminationMessagePolicy"] = json!("File");
        assert_eq!(between("Deployment", &live, &wanted), []);
        live["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
        live["spec"]["template"]["spec"]["dnsPolicy"] = json!("Default");
        live["spec"]["template"]["metadata"]["labels"]["app/role"] = json!("other");
        live["spec"]["template"]["metadata"]["annotations"]["x/y"] = json!("2");
        assert_eq!(
            paths("Deployment", &live, &wanted),
            [
                "/spec/template/metadata/annotations/x~1y",
                "/spec/template/metadata/labels/app~1role",
                "/spec/template/spec/dnsPolicy",
                "/spec/template/spec/hostNetwork",
            ]
        );
    }

    #[test]
    fn quantities_are_compared_by_value_and_keys() {
        let live = json!({ "spec": { "resources": { "limits": { "cpu": "500m", "memory": "1Gi" } } } });
        let limits = |limits: Value| json!({ "spec": { "resources": { "limits": limits } } });
        assert_eq!(
            between(
                "Deployment",
                &live,
                &limits(json!({ "cpu": "0.5", "memory": "1024Mi" }))
            ),
            []
        );
        let rewritten = |live: &str, wanted: &str| {
            let limits = |cpu: &str| limits(json!({ "cpu": cpu }));
            between("Deployment", &limits(live), &limits(wanted))
        };
        assert_eq!(rewritten("500u", "0.0005"), []);
        assert_eq!(rewritten("1Pi", "1024Ti"), []);
        assert_eq!(rewritten("500u", "501u").len(), 1);
        assert_eq!(
            paths("Deployment", &live, &limits(json!({ "cpu": "0.5" }))),
            ["/spec/resources/limits/memory"]
        );
        assert_eq!(
            paths("Deployment", &live, &limits(json!({ "cpu": "1", "memory": "1Gi" }))),
            ["/spec/resources/limits/cpu"]
        );
    }

    #[test]
    fn the_patch_makes_the_object_as_wanted() {
        let wanted = json!({ "metadata": { "uid": "u" }, "spec": { "selector": { "a": "b" }, "ports": [{ "port": 1 }], "type": "ClusterIP" } });
        let mut live = json!({
            "metadata": { "uid": "u" },
            "spec": { "selector": { "a": "c", "d/e": "f" }, "ports": [{ "port": 1 }, { "port": 2 }], "externalIPs": ["203.0.113.1"] },
        });
        let differences = between("Service", &live, &wanted);
        let patch: json_patch::Patch = serde_json::from_value(patch(&differences, Some("u"))).unwrap();
        json_patch::patch(&mut live, &patch).unwrap();
        assert_eq!(live, wanted);
    }
}
