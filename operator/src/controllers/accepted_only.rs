//! Kinds whose work this version does not do yet: the guard's verdict, and a clear word that nothing else happens, so that
//! nobody waits in vain.

use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tailnet_crds::conditions::condition::{ACCEPTED, POLICY_READY, READY};
use tailnet_crds::conditions::reason;
use tailnet_crds::{Kind, TailnetGateway};
use tokio_util::sync::CancellationToken;

use crate::claims::KeepError;
use crate::context::Context;
use crate::controllers::{claims, runner};
use crate::guard::{Verdict, frozen_reason, message};
use crate::queue::Requests;
use crate::status::{self, Conditions, Truth};
use crate::writes::is_gone;

/// Why the verdict is not written.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// Without the record nobody knows whose a name is.
    #[error(transparent)]
    Claims(#[from] Arc<KeepError>),
    /// The object cannot be written as JSON.
    #[error("cannot write the object as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The status could not be written.
    #[error("cannot write the status: {0}")]
    Status(#[source] Box<kube::Error>),
}

/// TailnetGateway, until `stop`.
pub async fn run_gateway(context: Arc<Context>, requests: Requests<TailnetGateway>, stop: CancellationToken) {
    let store = context.stores.gateways.clone();
    run(Kind::TailnetGateway, context, store, requests, stop, |context, _| {
        Api::all(context.client.clone())
    })
    .await;
}

async fn run<K>(
    kind: Kind,
    context: Arc<Context>,
    store: Store<K>,
    requests: Requests<K>,
    stop: CancellationToken,
    api: impl Fn(&Context, &K) -> Api<K> + Copy + Send + Sync + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    runner::run(
        kind.as_str(),
        context,
        store,
        requests,
        stop,
        move |object: Arc<K>, context: Arc<Context>| async move {
            let api = api(&context, &object);
            reconcile(kind, object.as_ref(), &context, &api).await
        },
    )
    .await;
}

async fn reconcile<K>(kind: Kind, object: &K, context: &Context, api: &Api<K>) -> Result<Action, AcceptError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let mut current = serde_json::to_value(object)?;
    let tailnet = current
        .pointer("/spec/tailnetRef/name")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let settled = claims::settle(context, tailnet.as_deref().unwrap_or_default()).await;
    let (verdict, outcome) = context.guard.verdict(kind, object)?;
    let mut wanted = current.get_mut("status").map(Value::take).unwrap_or_default();
    let before: Vec<Condition> = match wanted.get("conditions") {
        Some(list) => serde_json::from_value(list.clone())?,
        None => Vec::new(),
    };
    let mut conditions = Conditions::new(object.meta().generation, &before, Timestamp::now());
    match verdict {
        Verdict::Valid if let Err(error) = &settled => {
            conditions.set(ACCEPTED, Truth::Unknown, reason::CLAIMS_NOT_RECORDED, error.to_string());
        }
        Verdict::Valid if outcome.findings.iter().any(|finding| finding.rule == "TN001") => {
            conditions.set(
                ACCEPTED,
                Truth::False,
                reason::TAILNET_NOT_FOUND,
                message(&outcome.findings),
            );
        }
        Verdict::Valid => conditions.set(ACCEPTED, Truth::True, reason::VALID, "all rules are kept"),
        Verdict::Freeze(findings) | Verdict::Withdraw(findings) => {
            let reason = frozen_reason(object, &findings);
            conditions.set(ACCEPTED, Truth::False, reason, message(&findings));
        }
    }
    let reference = tailnet_policies::ObjectRef::ours(kind, object.namespace().as_deref(), &object.name_any());
    let tailnet = tailnet.unwrap_or_default();
    if let Some(why) = context.access_policies.left_out(&tailnet, &reference.to_string()) {
        let message = format!("the object has no entries in the policy: {why}");
        conditions.set(POLICY_READY, Truth::False, reason::UNDEFINED_PRINCIPAL, message);
    }
    conditions.set(
        READY,
        Truth::False,
        reason::NOT_IMPLEMENTED,
        format!("this version of the operator checks a {kind} and does nothing else with it yet"),
    );
    let conditions = conditions.finish();
    context.metrics.conditions(
        kind,
        object.namespace().as_deref(),
        &object.name_any(),
        conditions
            .iter()
            .map(|condition| (condition.type_.as_str(), condition.status.as_str())),
    );
    if !wanted.is_object() {
        wanted = serde_json::json!({});
    }
    wanted["conditions"] = serde_json::to_value(conditions)?;
    match status::write(api, object, &wanted).await {
        Ok(_) => {}
        Err(error) if is_gone(&error) => {}
        Err(error) => return Err(AcceptError::Status(Box::new(error))),
    }
    settled?;
    Ok(Action::requeue(context.settings.resync()))
}
