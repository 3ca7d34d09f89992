//! Whether admission is in force: both configurations, their CA, and what the API server does with a wrong object.

use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::{GroupVersionKind, Status};
use serde_json::{Value, json};
use tailnet_crds::audit::VALIDATE;
use tailnet_crds::{API_VERSION, Kind};

use super::Surroundings;
use super::check::{Check, State};
use super::objects::Objects;
use crate::kinds;
use crate::kubectl::{Kubectl, quoted};

/// Name of both configurations, as the chart has them.
const NAME: &str = "tailnet-webhook";
/// Name of what is tried; never stored.
const TRIED: &str = "tailnet-doctor";
/// The rule that refuses what is tried: an egress outside the operator's namespace. No schema can say it, so only the webhook does.
const RULE: &str = "[TN201]";

/// All findings about admission.
pub async fn check(around: &Surroundings, objects: &Objects, crds: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    for (kind, plural) in [
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
        ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ] {
        checks.push(configuration(around, kind, plural).await);
    }
    let configured = checks.iter().all(|check| check.state != State::Fail);
    if !crds {
        return checks;
    }
    checks.push(denies(around).await);
    if configured {
        checks.push(mutates(around, objects).await);
    }
    checks
}

async fn configuration(around: &Surroundings, kind: &str, plural: &str) -> Check {
    let check = kind.replace("WebhookConfiguration", " webhook").to_lowercase();
    let group = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let api: Api<DynamicObject> = Api::all_with(
        around.client.clone(),
        &ApiResource::from_gvk_with_plural(&group, plural),
    );
    let live = match api.get_opt(NAME).await {
        Ok(Some(live)) => live.data,
        Ok(None) => {
            let message = format!("there is no {kind} {NAME}: nothing is checked at kubectl apply");
            let next = vec!["# helm upgrade --install … brings it back".to_owned()];
            return Check::fail(&check, message, next);
        }
        Err(error) => return Check::unread(&check, &format!("{kind} {NAME}"), &error),
    };
    let entries = &live["webhooks"];
    let open =
        (kind == "ValidatingWebhookConfiguration").then(|| open(&around.kubectl, &around.namespace, &check, entries));
    open.flatten().unwrap_or_else(|| judged(around, &check, entries))
}

/// What is wrong where the entry that checks our kinds lets writes through.
fn open(kubectl: &Kubectl, namespace: &str, check: &str, entries: &Value) -> Option<Check> {
    let entry = entries
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry["name"] == VALIDATE);
    match entry.map(|entry| &entry["failurePolicy"]) {
        None => Some(Check::fail(
            check,
            format!("it has no entry {VALIDATE}: nothing is checked at kubectl apply"),
            vec!["# helm upgrade --install … brings it back".to_owned()],
        )),
        Some(policy) if policy == "Ignore" => {
            let fail = json!({"webhooks": [{"name": VALIDATE, "failurePolicy": "Fail"}]}).to_string();
            Some(Check::fail(
                check,
                format!(
                    "failurePolicy of {VALIDATE} is Ignore: while the API server does not reach the webhook, objects are stored \
                     unchecked. The webhook sets Fail by itself once the API server reaches it"
                ),
                vec![
                    kubectl.run_in(namespace, "logs -l app.kubernetes.io/component=webhook --tail=30"),
                    "# to close it at once; writes are refused then until the webhook is reached".to_owned(),
                    kubectl.run(&format!(
                        "patch validatingwebhookconfiguration {NAME} --type=strategic -p {}",
                        quoted(&fail)
                    )),
                ],
            ))
        }
        Some(_) => None,
    }
}

fn judged(around: &Surroundings, check: &str, entries: &Value) -> Check {
    let entries = entries.as_array().map_or(&[][..], Vec::as_slice);
    let elsewhere = entries.iter().find_map(|entry| {
        let namespace = entry["clientConfig"]["service"]["namespace"].as_str()?;
        (namespace != around.namespace).then_some(namespace)
    });
    if let Some(namespace) = elsewhere {
        let message = format!(
            "it leads to an installation in namespace {namespace}, not {}",
            around.namespace
        );
        let next = vec![around.kubectl.plugin(namespace, "doctor")];
        return Check::fail(check, message, next);
    }
    let without = entries
        .iter()
        .filter(|entry| entry["clientConfig"]["caBundle"].as_str().is_none_or(str::is_empty))
        .count();
    if without > 0 || entries.is_empty() {
        let message = format!(
            "{without} of {} entries have no caBundle: the webhook writes it when it starts",
            entries.len()
        );
        let log = "logs -l app.kubernetes.io/component=webhook --tail=30";
        return Check::fail(check, message, vec![around.kubectl.run_in(&around.namespace, log)]);
    }
    Check::ok(check, format!("{} entries with a caBundle", entries.len()))
}

fn tried(namespace: &str, tailnet: &str) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": Kind::TailnetEgress.as_str(),
        "metadata": {"name": TRIED, "namespace": namespace},
        "spec": {
            "tailnetRef": {"name": tailnet},
            "consumerNamespaces": ["default"],
            "targets": [{"name": TRIED, "address": "192.0.2.1", "port": 1}],
        },
    })
}

async fn dry_run(around: &Surroundings, object: &Value) -> kube::Result<Value> {
    let namespace = object["metadata"]["namespace"].as_str();
    let object: DynamicObject = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let made = kinds::api(&around.client, Kind::TailnetEgress, namespace)
        .create(&params, &object)
        .await?;
    Ok(made.data)
}

/// A wrong object must be refused by a rule that only the webhook has.
async fn denies(around: &Surroundings) -> Check {
    const CHECK: &str = "admission refuses";
    let other = if around.namespace == "default" {
        "kube-public"
    } else {
        "default"
    };
    let next = || {
        let selector = "-l app.kubernetes.io/component=webhook";
        vec![
            around
                .kubectl
                .run_in(&around.namespace, &format!("get pods,endpointslices {selector}")),
            around
                .kubectl
                .run_in(&around.namespace, &format!("logs {selector} --tail=30")),
        ]
    };
    match dry_run(around, &tried(other, TRIED)).await {
        Ok(_) => {
            let message =
                "a wrong object is let in (tried without storing it): the API server does not ask the webhook";
            Check::fail(CHECK, message, next())
        }
        Err(kube::Error::Api(status)) if has_rule(&status) => Check::ok(
            CHECK,
            format!("a wrong object is refused {RULE} (tried without storing it)"),
        ),
        Err(kube::Error::Api(status)) if status.code == 500 => Check::fail(
            CHECK,
            format!("the API server cannot ask the webhook: {}", status.message),
            next(),
        ),
        Err(kube::Error::Api(status)) if status.code == 403 => Check::unknown(
            CHECK,
            format!("you may not create a TailnetEgress in namespace {other}, not even as a dry run"),
        ),
        Err(error) => Check::unknown(
            CHECK,
            format!("a wrong object is refused, though not by the webhook: {error}"),
        ),
    }
}

fn has_rule(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422 && causes.into_iter().any(|cause| cause.message.contains(RULE))
}

/// A right object without a tag must get the default one.
async fn mutates(around: &Surroundings, objects: &Objects) -> Check {
    const CHECK: &str = "admission fills in defaults";
    let Some(tailnet) = objects
        .tailnets
        .iter()
        .find_map(|tailnet| tailnet["metadata"]["name"].as_str())
    else {
        return Check::unknown(CHECK, "not tried: there is no Tailnet yet, which a default tag needs");
    };
    match dry_run(around, &tried(&around.namespace, tailnet)).await {
        Ok(made) if made["spec"]["tag"].is_string() => Check::ok(
            CHECK,
            format!("an egress gets {} (tried without storing it)", made["spec"]["tag"]),
        ),
        Ok(_) => {
            let log = "logs -l app.kubernetes.io/component=webhook --tail=30";
            Check::warn(
                CHECK,
                "an egress without a tag stays without one: the API server does not ask the mutating webhook; the default tag is used all the same",
                vec![around.kubectl.run_in(&around.namespace, log)],
            )
        }
        Err(error) => Check::unknown(
            CHECK,
            format!("not known, since the object that was tried is refused: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tailnet_crds::audit::{VALIDATE, VALIDATE_DELETE};

    use super::{Check, State, open};
    use crate::kubectl::Kubectl;

    fn look(entries: &Value) -> Option<Check> {
        open(&Kubectl::default(), "tailnet-system", "validating webhook", entries)
    }

    #[test]
    fn an_open_entry_is_a_fault_with_its_fix() {
        let other = json!({"name": VALIDATE_DELETE, "failurePolicy": "Ignore"});
        let with = |policy: &str| json!([other, {"name": VALIDATE, "failurePolicy": policy}]);
        assert!(look(&with("Fail")).is_none(), "the others are Ignore for good");
        let found = look(&with("Ignore")).expect("a fault");
        assert_eq!(found.state, State::Fail);
        assert!(found.message.contains("Ignore"), "{}", found.message);
        let wanted = "kubectl patch validatingwebhookconfiguration tailnet-webhook --type=strategic -p \
                      '{\"webhooks\":[{\"name\":\"validate.tsunaro.io\",\"failurePolicy\":\"Fail\"}]}'";
        assert!(found.next.iter().any(|line| line == wanted), "{:?}", found.next);
        for without in [json!([other]), json!([]), Value::Null] {
            assert_eq!(look(&without).expect("a fault").state, State::Fail, "{without}");
        }
    }
}
