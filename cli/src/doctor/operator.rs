//! Whether operator and webhook run, and which operator acts.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use tailnet_crds::names::{DEFAULT_OPERATOR_NAMESPACE, OPERATOR_LEASE};

use super::Surroundings;
use super::check::Check;
use crate::why::Operator;

/// The two Deployments, and the Lease.
pub async fn check(around: &Surroundings) -> Vec<Check> {
    vec![
        deployment(around, "operator", "tailnet-operator").await,
        leader(around).await,
        deployment(around, "webhook Pods", "tailnet-webhook").await,
    ]
}

async fn deployment(around: &Surroundings, check: &str, name: &str) -> Check {
    let api: Api<Deployment> = Api::namespaced(around.client.clone(), &around.namespace);
    let found = match api.get_opt(name).await {
        Ok(found) => found,
        Err(error) => return Check::unread(check, &format!("Deployment {}/{name}", around.namespace), &error),
    };
    let Some(found) = found else {
        let mut next = vec![
            around
                .kubectl
                .run("get deployments -A -l app.kubernetes.io/name=tailnet-operator"),
        ];
        if around.namespace == DEFAULT_OPERATOR_NAMESPACE {
            next.push("# installed in another namespace? Then: --operator-namespace NAME".to_owned());
        }
        return Check::fail(
            check,
            format!("there is no Deployment {}/{name}", around.namespace),
            next,
        );
    };
    let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let available = found
        .status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or(0);
    let image = found
        .spec
        .and_then(|spec| spec.template.spec?.containers.into_iter().next()?.image)
        .unwrap_or_default();
    let message = format!(
        "{available} of {wanted} Pods of Deployment {}/{name} are available ({image})",
        around.namespace
    );
    let component = name.trim_start_matches("tailnet-");
    let next = || {
        let selector = format!("app.kubernetes.io/component={component}");
        vec![
            around
                .kubectl
                .run_in(&around.namespace, &format!("describe pods -l {selector}")),
            around
                .kubectl
                .run_in(&around.namespace, &format!("logs -l {selector} --tail=30")),
        ]
    };
    match available {
        0 => Check::fail(check, message, next()),
        _ if available < wanted => Check::warn(check, message, next()),
        _ => Check::ok(check, message),
    }
}

async fn leader(around: &Surroundings) -> Check {
    const CHECK: &str = "operator acts";
    let api: Api<Lease> = Api::namespaced(around.client.clone(), &around.namespace);
    let lease = match api.get_opt(OPERATOR_LEASE).await {
        Ok(lease) => lease,
        Err(error) => return Check::unread(CHECK, &format!("Lease {}/{OPERATOR_LEASE}", around.namespace), &error),
    };
    let log = vec![
        around
            .kubectl
            .run_in(&around.namespace, "logs deployment/tailnet-operator --tail=30"),
    ];
    match Operator::of(lease.as_ref(), around.now) {
        Operator::Leads(holder) => Check::ok(CHECK, format!("{holder} holds the Lease")),
        Operator::Silent(age) => Check::fail(
            CHECK,
            format!(
                "nobody acts: Lease {}/{OPERATOR_LEASE} was last renewed {} s ago",
                around.namespace,
                age.as_secs()
            ),
            log,
        ),
        Operator::Unseen | Operator::Hidden => Check::fail(
            CHECK,
            format!(
                "nobody has ever acted: there is no Lease {}/{OPERATOR_LEASE}",
                around.namespace
            ),
            log,
        ),
    }
}
