//! Whether the API server reaches our webhook, asked the way everybody's objects go: through the API server, its webhook
//! configuration and the Service.
//!
//! A webhook's Pod cannot know it of itself: it is in its Service only once it is ready, and kube-proxy opens the Service a
//! moment after that. The operator is in no Service, so it can wait; whoever waits for its Deployment (`helm --wait`) then
//! finds admission at work. Asked at start only: a webhook that goes away later takes nothing from what the operator does.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use tailnet_crds::admission_probe::{BROKEN, NAME, was_answered};
use tailnet_crds::names::label;
use tailnet_process::Condition;
use tokio_util::sync::CancellationToken;

/// Longest wait for one answer: more than the API server gives a webhook.
const DEADLINE: Duration = Duration::from_secs(8);
/// First and longest pause between two questions.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(3));

/// What a question came to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// The webhook has answered.
    Reached,
    /// It has not, and what happened instead.
    Not(String),
}

/// Asks until the webhook has answered once, or until `stop`.
pub(crate) async fn run(client: Client, namespace: String, condition: Condition, stop: CancellationToken) {
    let ask = async {
        let mut pause = PAUSE.0;
        loop {
            match ask(&client, &namespace).await {
                Answer::Reached => return condition.met(),
                Answer::Not(why) => condition.missing(why),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    };
    tokio::select! {
        () = ask => {}
        () = stop.cancelled() => {}
    }
}

async fn ask(client: &Client, namespace: &str) -> Answer {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let question = question();
    match tokio::time::timeout(DEADLINE, config_maps.create(&dry_run, &question)).await {
        Ok(answer) => judge(answer.err()),
        Err(_) => Answer::Not(format!("the API server did not answer within {} s", DEADLINE.as_secs())),
    }
}

/// A ConfigMap that the webhook denies, and that is never stored.
fn question() -> ConfigMap {
    let labels = [(label::POLICY.to_owned(), label::POLICY_BASE.to_owned())];
    ConfigMap {
        metadata: ObjectMeta {
            generate_name: Some(format!("{NAME}-")),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        data: Some([(BROKEN.0.to_owned(), BROKEN.1.to_owned())].into()),
        ..ConfigMap::default()
    }
}

fn judge(error: Option<kube::Error>) -> Answer {
    match error {
        // The entry has failurePolicy Ignore: without an answer the object is let through.
        None => Answer::Not(
            "the API server does not reach the webhook (Service tailnet-webhook) yet; are its Pods ready?".to_owned(),
        ),
        Some(kube::Error::Api(status)) if was_answered(&status.message) => Answer::Reached,
        Some(error) => Answer::Not(format!(
            "cannot ask the API server whether it reaches the webhook: {error}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;
    use tailnet_policies::{Config, Snapshot, evaluate_config_map};

    use super::{Answer, judge, question};

    fn refused(message: &str) -> Option<kube::Error> {
        let status = Status {
            code: 422,
            ..Status::failure(message, "Invalid")
        };
        Some(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn the_question_is_one_that_the_webhook_denies() {
        let mut question = serde_json::to_value(question()).expect("JSON");
        question["metadata"]["namespace"] = json!("tailnet-system");
        let outcome = evaluate_config_map(&question, None, &Snapshot::closed(Config::default()));
        assert!(outcome.denied(), "{outcome:?}");
    }

    #[test]
    fn only_the_webhooks_own_denial_says_that_it_was_reached() {
        let denial = "admission webhook \"validate-policy.tsunaro.io\" denied the request: TN106 …";
        assert_eq!(judge(refused(denial)), Answer::Reached);
        let others = [
            "configmaps is forbidden: User \"x\" cannot create resource",
            "admission webhook \"somebody.example.net\" denied the request",
            "failed calling webhook \"validate-policy.tsunaro.io\": connection refused",
        ];
        for other in others {
            assert!(matches!(judge(refused(other)), Answer::Not(_)), "{other}");
        }
        assert!(matches!(judge(None), Answer::Not(_)), "let through");
    }
}
