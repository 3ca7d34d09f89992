//! Whether the API server reaches the webhook, as the API server itself says.
//!
//! What arrives at our port proves nothing: it is open to every Pod. So the webhook asks the API server for a dry run of a
//! ConfigMap that is sent to a webhook of this configuration, and only the denial that comes back counts. Which replica
//! answered does not matter.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tailnet_crds::admission_probe::{BROKEN, NAME, was_answered};
use tailnet_crds::names::field_manager::WEBHOOK as FIELD_MANAGER;
use tailnet_crds::names::label;

/// Longest wait for one answer: more than the API server gives a webhook.
const DEADLINE: Duration = Duration::from_secs(8);

/// What asking once came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// The API server has asked a webhook and has its answer.
    Reached,
    /// It has not, or nobody knows; why.
    Not(String),
}

/// Asks the API server once, with a ConfigMap of `namespace` that is never stored.
pub async fn ask(client: &Client, namespace: &str) -> Reach {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // Applied, not created: only so can a role allow this name and no other.
    let parameters = PatchParams {
        dry_run: true,
        ..PatchParams::apply(FIELD_MANAGER)
    };
    let question = Patch::Apply(question());
    match tokio::time::timeout(DEADLINE, config_maps.patch(NAME, &parameters, &question)).await {
        Ok(answer) => judge(answer.err()),
        Err(_) => Reach::Not(format!("the API server did not answer within {} s", DEADLINE.as_secs())),
    }
}

fn question() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "labels": {label::POLICY: label::POLICY_BASE}},
        "data": {BROKEN.0: BROKEN.1},
    })
}

fn judge(error: Option<kube::Error>) -> Reach {
    match error {
        // The entry has failurePolicy Ignore: without an answer the object is let through.
        None => Reach::Not("the API server does not reach a webhook".to_owned()),
        Some(kube::Error::Api(status)) if was_answered(&status.message) => Reach::Reached,
        Some(error) => Reach::Not(format!(
            "cannot ask the API server whether it reaches a webhook: {error}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;
    use tailnet_policies::{Config, Snapshot, evaluate_config_map};

    use super::{Reach, judge, question};

    #[test]
    fn the_question_is_one_that_the_webhook_denies() {
        let mut question = question();
        question["metadata"]["namespace"] = json!("tailnet-system");
        let outcome = evaluate_config_map(&question, None, &Snapshot::closed(Config::default()));
        assert!(outcome.denied(), "{outcome:?}");
    }

    #[test]
    fn only_a_denial_by_the_webhook_is_reach() {
        let refused = |message: &str| {
            let status = Status {
                code: 422,
                ..Status::failure(message, "Invalid")
            };
            judge(Some(kube::Error::Api(Box::new(status))))
        };
        let denial = "admission webhook \"validate-policy.tsunaro.io\" denied the request: TN106 …";
        assert_eq!(refused(denial), Reach::Reached);
        assert!(matches!(refused("configmaps is forbidden"), Reach::Not(_)));
        assert!(matches!(judge(None), Reach::Not(_)), "let through");
    }
}
