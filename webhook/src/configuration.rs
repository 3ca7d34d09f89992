//! The two webhook configurations, made from the table of rules: the chart's templates and the tests install exactly these.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
pub use tailnet_crds::audit::{MUTATE, VALIDATE, VALIDATE_DELETE, VALIDATE_ORGANISATION, VALIDATE_POLICY};
use tailnet_crds::names::{DEFAULT_OPERATOR_NAMESPACE, label};
use tailnet_crds::{GROUP, Kind, Scope, VERSION};
use tailnet_policies::{Operation, webhook_rules};

/// Name of both configurations, unless the chart says otherwise.
pub const DEFAULT_NAME: &str = "tailnet-webhook";
/// Seconds that the API server waits; the webhook's own deadline is shorter.
pub const TIMEOUT_SECONDS: i32 = 5;

/// The fields that `/mutate` fills in, by kind. A test compares them with what the defaults do.
pub const DEFAULTED: &[(Kind, &[&str])] = &[
    (Kind::TailnetEgress, &["tag"]),
    (Kind::TailnetIngress, &["tag", "hostname"]),
];

/// How the API server reaches the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Through a Service.
    Service {
        /// Namespace of the Service.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: i32,
    },
    /// At a base URL without a trailing slash, for a webhook outside the cluster: `https://127.0.0.1:9443`.
    Url(String),
}

/// What differs between installations.
#[derive(Debug, Clone)]
pub struct Parameters {
    /// Name of the validating configuration.
    pub validating_name: String,
    /// Name of the mutating configuration.
    pub mutating_name: String,
    /// Where the webhook is.
    pub reach: Reach,
    /// Namespace whose ConfigMaps are checked.
    pub operator_namespace: String,
    /// Labels of both.
    pub labels: BTreeMap<String, String>,
}

impl Parameters {
    /// The usual names, reached through the Service `name` on port 443.
    pub fn service(namespace: &str, name: &str) -> Self {
        let reach = Reach::Service {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port: 443,
        };
        Self::at(reach, namespace)
    }

    /// The usual names and namespace, reached at a base URL.
    pub fn url(base: &str) -> Self {
        Self::at(Reach::Url(base.to_owned()), DEFAULT_OPERATOR_NAMESPACE)
    }

    fn at(reach: Reach, operator_namespace: &str) -> Self {
        Self {
            validating_name: DEFAULT_NAME.to_owned(),
            mutating_name: DEFAULT_NAME.to_owned(),
            reach,
            operator_namespace: operator_namespace.to_owned(),
            labels: BTreeMap::new(),
        }
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        let labels = (!self.labels.is_empty()).then(|| self.labels.clone());
        ObjectMeta {
            name: Some(name.to_owned()),
            labels,
            ..ObjectMeta::default()
        }
    }

    fn client(&self, path: &str) -> WebhookClientConfig {
        match &self.reach {
            Reach::Service { namespace, name, port } => WebhookClientConfig {
                service: Some(ServiceReference {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    path: Some(path.to_owned()),
                    port: Some(*port),
                }),
                ..WebhookClientConfig::default()
            },
            Reach::Url(base) => WebhookClientConfig {
                url: Some(format!("{base}{path}")),
                ..WebhookClientConfig::default()
            },
        }
    }
}

/// An update that leaves the spec of an object on its way out alone: finalizers must always be removable, webhook or not.
/// Written so that no operand can fail: an error would refuse the request.
const NOT_A_FINALIZER_REMOVAL: &str = "request.operation != 'UPDATE' || !has(oldObject.metadata.deletionTimestamp) || \
has(object.spec) != has(oldObject.spec) || (has(object.spec) && object.spec != oldObject.spec)";

fn condition(name: &str, expression: impl Into<String>) -> MatchCondition {
    MatchCondition {
        name: name.to_owned(),
        expression: expression.into(),
    }
}

fn rules(kinds: &[Kind], operations: &[&str]) -> Vec<RuleWithOperations> {
    let scopes = [(Scope::Cluster, "Cluster"), (Scope::Namespaced, "Namespaced")];
    let of_scope = |(scope, name): (Scope, &str)| {
        let resources: Vec<_> = kinds
            .iter()
            .filter(|kind| kind.scope() == scope)
            .map(|kind| kind.plural().to_owned())
            .collect();
        // The main resources only: status writes are never sent.
        (!resources.is_empty()).then(|| RuleWithOperations {
            api_groups: Some(vec![GROUP.to_owned()]),
            api_versions: Some(vec![VERSION.to_owned()]),
            operations: Some(operations.iter().map(|operation| (*operation).to_owned()).collect()),
            resources: Some(resources),
            scope: Some(name.to_owned()),
        })
    };
    scopes.into_iter().filter_map(of_scope).collect()
}

/// The kinds that have a webhook rule for any of `operations`.
fn kinds_with(operations: &[Operation]) -> Vec<Kind> {
    let wanted = |has: &[Operation]| operations.iter().any(|operation| has.contains(operation));
    webhook_rules()
        .into_iter()
        .filter(|(_, has)| wanted(has))
        .map(|(kind, _)| kind)
        .collect()
}

/// `/validate` for what the table of rules has rows for: CREATE and UPDATE with failurePolicy Fail, DELETE with Ignore (a
/// webhook that is down must never keep anything from being removed). ConfigMaps are sent only where their label says that
/// they are base documents, and a webhook that is down never keeps one from being written.
pub fn validating(parameters: &Parameters) -> ValidatingWebhookConfiguration {
    let entry = |name: &str, failure: &str, rules, conditions| ValidatingWebhook {
        name: name.to_owned(),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: parameters.client("/validate"),
        failure_policy: Some(failure.to_owned()),
        match_conditions: conditions,
        match_policy: Some("Equivalent".to_owned()),
        rules: Some(rules),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        ..ValidatingWebhook::default()
    };
    let write = rules(
        &kinds_with(&[Operation::Create, Operation::Update]),
        &["CREATE", "UPDATE"],
    );
    let conditions = vec![condition("not-a-finalizer-removal", NOT_A_FINALIZER_REMOVAL)];
    let mut webhooks = vec![entry(VALIDATE, "Fail", write, Some(conditions))];
    let delete = kinds_with(&[Operation::Delete]);
    if !delete.is_empty() {
        webhooks.push(entry(VALIDATE_DELETE, "Ignore", rules(&delete, &["DELETE"]), None));
    }
    let selector = |key: &str, value: &str| LabelSelector {
        match_labels: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
        ..LabelSelector::default()
    };
    let config_maps = vec![RuleWithOperations {
        api_groups: Some(vec![String::new()]),
        api_versions: Some(vec!["v1".to_owned()]),
        operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
        resources: Some(vec!["configmaps".to_owned()]),
        scope: Some("Namespaced".to_owned()),
    }];
    webhooks.push(ValidatingWebhook {
        namespace_selector: Some(selector("kubernetes.io/metadata.name", &parameters.operator_namespace)),
        object_selector: Some(selector(label::POLICY, label::POLICY_BASE)),
        ..entry(VALIDATE_POLICY, "Ignore", config_maps.clone(), None)
    });
    // A selector matches the old object too, so that taking the label off is seen.
    webhooks.push(ValidatingWebhook {
        namespace_selector: Some(selector("kubernetes.io/metadata.name", &parameters.operator_namespace)),
        object_selector: Some(selector(label::ADMISSION_POLICY, "true")),
        ..entry(VALIDATE_ORGANISATION, "Ignore", config_maps, None)
    });
    ValidatingWebhookConfiguration {
        metadata: parameters.metadata(&parameters.validating_name),
        webhooks: Some(webhooks),
    }
}

/// `/mutate` for objects that lack a default. failurePolicy Ignore: an object without its defaults is still checked.
pub fn mutating(parameters: &Parameters) -> MutatingWebhookConfiguration {
    let lacks = |(kind, fields): &(Kind, &[&str])| {
        let missing: Vec<_> = fields
            .iter()
            .map(|field| format!("!has(object.spec.{field})"))
            .collect();
        format!("(request.kind.kind == '{kind}' && ({}))", missing.join(" || "))
    };
    let lacks: Vec<_> = DEFAULTED.iter().map(lacks).collect();
    let expression = format!(
        "has(object.spec) && !has(object.metadata.deletionTimestamp) && ({})",
        lacks.join(" || ")
    );
    let kinds: Vec<_> = DEFAULTED.iter().map(|(kind, _)| *kind).collect();
    let webhook = MutatingWebhook {
        name: MUTATE.to_owned(),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: parameters.client("/mutate"),
        failure_policy: Some("Ignore".to_owned()),
        match_conditions: Some(vec![condition("lacks-a-default", expression)]),
        match_policy: Some("Equivalent".to_owned()),
        reinvocation_policy: Some("Never".to_owned()),
        rules: Some(rules(&kinds, &["CREATE", "UPDATE"])),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        ..MutatingWebhook::default()
    };
    MutatingWebhookConfiguration {
        metadata: parameters.metadata(&parameters.mutating_name),
        webhooks: Some(vec![webhook]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;
    use tailnet_crds::Kind;
    use tailnet_policies::{Config, Snapshot, defaults};

    use super::{DEFAULTED, Parameters, TIMEOUT_SECONDS, mutating, validating};

    #[test]
    fn defaulted_fields_are_those_that_the_defaults_fill_in() {
        let mut snapshot = Snapshot::closed(Config::default());
        let tailnet = json!({
            "metadata": {"name": "corp"},
            "spec": {"server": "https://control.example.net", "apiSecretRef": {"name": "api"}},
        });
        snapshot.upsert(Kind::Tailnet, &tailnet);
        for kind in Kind::ALL {
            let object = json!({"metadata": {"name": "a"}, "spec": {"tailnetRef": {"name": "corp"}}});
            let patch = defaults(kind, Some("team-a"), &object, &snapshot);
            let patched: BTreeSet<_> = patch.iter().map(|operation| operation.path().to_string()).collect();
            let listed = DEFAULTED
                .iter()
                .find(|(listed, _)| *listed == kind)
                .map_or(&[][..], |(_, fields)| fields);
            let listed: BTreeSet<_> = listed.iter().map(|field| format!("/spec/{field}")).collect();
            assert_eq!(patched, listed, "{kind}");
        }
    }

    #[test]
    fn every_kind_is_sent_to_validate_and_no_subresource() {
        let configuration = validating(&Parameters::service("tailnet-system", "tailnet-webhook"));
        let entry = &configuration.webhooks.as_ref().expect("entries")[0];
        assert_eq!(entry.failure_policy.as_deref(), Some("Fail"));
        assert_eq!(entry.side_effects, "None");
        let rules = entry.rules.as_ref().expect("rules");
        let resources: BTreeSet<_> = rules
            .iter()
            .flat_map(|rule| rule.resources.clone().expect("some"))
            .collect();
        assert_eq!(
            resources,
            Kind::ALL.into_iter().map(|kind| kind.plural().to_owned()).collect()
        );
        for rule in rules {
            assert_eq!(rule.operations, Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]));
        }
    }

    #[test]
    fn deletions_and_config_maps_are_never_held_up_by_a_webhook_that_is_down() {
        let configuration = validating(&Parameters::service("ops", "tailnet-webhook"));
        let entries = configuration.webhooks.as_ref().expect("entries");
        let entry = |name: &str| entries.iter().find(|entry| entry.name == name).expect("an entry");
        let delete = serde_json::to_value(entry(super::VALIDATE_DELETE)).expect("JSON");
        assert_eq!(delete["failurePolicy"], "Ignore");
        assert_eq!(delete["rules"][0]["operations"], json!(["DELETE"]));
        assert_eq!(delete["rules"][0]["resources"], json!(["tailnets", "tailnetgateways"]));
        let policy = serde_json::to_value(entry(super::VALIDATE_POLICY)).expect("JSON");
        assert_eq!(policy["failurePolicy"], "Ignore");
        let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": "ops"}});
        assert_eq!(policy["namespaceSelector"], namespace);
        assert_eq!(
            policy["objectSelector"],
            json!({"matchLabels": {"tsunaro.io/policy": "base"}})
        );
        let organisation = serde_json::to_value(entry(super::VALIDATE_ORGANISATION)).expect("JSON");
        assert_eq!(organisation["failurePolicy"], "Ignore");
        assert_eq!(organisation["namespaceSelector"], namespace);
        assert_eq!(
            organisation["objectSelector"],
            json!({"matchLabels": {"tsunaro.io/admission-policy": "true"}})
        );
        for other in entries.iter().filter(|entry| entry.name != super::VALIDATE) {
            assert_eq!(other.failure_policy.as_deref(), Some("Ignore"), "{}", other.name);
        }
    }

    #[test]
    fn the_webhook_answers_before_the_api_server_gives_up() {
        assert!(crate::router::DEADLINE.as_millis() < u128::try_from(TIMEOUT_SECONDS).expect("positive") * 1000);
    }

    #[test]
    fn a_url_takes_the_place_of_the_service() {
        let configuration = mutating(&Parameters::url("https://127.0.0.1:9443"));
        let client = &configuration.webhooks.as_ref().expect("entries")[0].client_config;
        assert_eq!(client.url.as_deref(), Some("https://127.0.0.1:9443/mutate"));
        assert!(client.service.is_none());
    }
}
