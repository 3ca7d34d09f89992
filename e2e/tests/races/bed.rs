//! A cluster with a Tailnet, an operator and two replicas of the webhook.

use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, wait_for};

use crate::SOON;
use crate::installed::{self, Caller, Webhook, balancer, except};
use crate::operating::{self, Kube, Operator, TAILNET, USER, apply, cluster, grant, start_over};
use crate::pairs::{Pair, name_of};

/// Where the API server finds the webhook; behind it two replicas answer in turn.
const WEBHOOK: u16 = 9445;
/// Whose requests no webhook sees, as when it was down with another failure policy.
pub const BYPASS: &str = "bypass";

/// A cluster with a Tailnet, an operator and two replicas of the webhook.
pub struct Bed {
    pub cluster: &'static Cluster,
    pub kube: Kube,
    pub caller: Caller,
    operator: Mutex<Option<Operator>>,
    pub webhooks: Vec<Webhook>,
}

impl Bed {
    /// The one that all tests of this binary share, in turn; each has pairs of its own numbers.
    pub fn shared() -> Result<&'static Self> {
        static BED: OnceLock<Result<Bed, String>> = OnceLock::new();
        let made = BED.get_or_init(|| Self::new().map_err(|error| format!("{error:#}")));
        made.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
    }

    fn new() -> Result<Self> {
        let cluster = cluster();
        installed::prepare(cluster)?;
        let kube = start_over(cluster)?;
        for namespace in ["team-a", "team-b"] {
            apply(
                cluster,
                &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})],
            )?;
            grant(cluster, namespace, None)?;
        }
        apply(cluster, &[tailnet(cluster)?])?;
        balancer::start(cluster, WEBHOOK, vec![9443, 9444])?;
        let mut webhooks = Vec::new();
        for port in [9443, 9444] {
            webhooks.push(Webhook::start(cluster, &format!("races-webhook-{port}"), port)?);
        }
        let (own, webhook) = (webhooks[0].port, &mut webhooks[0]);
        webhook.port = WEBHOOK;
        webhook.install(cluster, except(BYPASS))?;
        webhook.port = own;
        for webhook in &webhooks {
            webhook.wait_ready()?;
        }
        webhooks[0].wait_called(cluster)?;
        let operator = Operator::start(cluster, "races-operator")?;
        let bed = Self {
            cluster,
            kube,
            caller: Caller::new(cluster)?,
            operator: Mutex::new(Some(operator)),
            webhooks,
        };
        wait_for("both webhooks know the Tailnet", SOON, || {
            for _ in 0..4 {
                let said = bed
                    .caller
                    .create(&installed::site("known", &["203.0.113.0/24"], TAILNET), true)?;
                ensure!(
                    said.status.is_success() && said.warnings.iter().all(|text| !text.contains("TN001")),
                    "{said:?}"
                );
            }
            Ok(())
        })?;
        Ok(bed)
    }

    pub fn accepted(&self, object: &Value) -> Result<(String, String, String)> {
        let live = self.caller.get(object)?;
        ensure!(live.status.is_success(), "{live:?}");
        let generation = &live.body["metadata"]["generation"];
        let conditions = live.body.pointer("/status/conditions").and_then(Value::as_array);
        let accepted = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Accepted");
        let accepted = accepted.context("no condition Accepted yet")?;
        ensure!(
            &accepted["observedGeneration"] == generation,
            "of generation {}",
            accepted["observedGeneration"]
        );
        let text = |key: &str| accepted[key].as_str().unwrap_or_default().to_owned();
        Ok((text("status"), text("reason"), text("message")))
    }

    pub fn wait_accepted(&self, object: &Value) -> Result<()> {
        wait_for(&format!("{} is accepted", name_of(object)), SOON, || {
            let (status, reason, message) = self.accepted(object)?;
            ensure!(status == "True", "{status} {reason}: {message}");
            Ok(())
        })
    }

    /// Which of two stored rivals is accepted; the other must name it.
    pub fn winner(&self, pair: &Pair) -> Result<usize> {
        wait_for(&format!("{} has one winner", pair.what), SOON, || {
            let verdicts = [self.accepted(&pair.objects[0])?, self.accepted(&pair.objects[1])?];
            let winner = match (verdicts[0].0.as_str(), verdicts[1].0.as_str()) {
                ("True", "False") => 0,
                ("False", "True") => 1,
                _ => bail!("{verdicts:?}"),
            };
            let (_, reason, message) = &verdicts[1 - winner];
            ensure!(
                reason == "HeldByOther" || reason == "WaitingForHolder",
                "{reason}: {message}"
            );
            ensure!(
                message.contains(&name_of(&pair.objects[winner])),
                "the holder is not named: {message}"
            );
            Ok(winner)
        })
    }

    /// Names of what the operator has created for an object at any time, by its names.
    pub fn made_for(&self, object: &Value) -> Result<Vec<String>> {
        let name = format!(
            "tailnet-egress-{}",
            object["metadata"]["name"].as_str().context("name")?
        );
        let mut made = Vec::new();
        for event in self.cluster.audit_log()? {
            let created = event["verb"] == "create" && event["responseStatus"]["code"] == 201;
            let target = event["objectRef"]["name"].as_str().unwrap_or_default();
            let its = target == name || target.starts_with(&format!("{name}-"));
            if created && its && event["user"]["username"] == USER {
                made.push(format!("{} {target}", event["objectRef"]["resource"]));
            }
        }
        Ok(made)
    }

    pub fn delete_all(&self, pairs: &[Pair]) -> Result<()> {
        for object in pairs.iter().flat_map(|pair| &pair.objects) {
            self.caller.delete(object)?;
        }
        wait_for("the children are gone", SOON, || {
            for pair in pairs {
                for object in &pair.objects {
                    let name = format!(
                        "tailnet-egress-{}",
                        object["metadata"]["name"].as_str().unwrap_or_default()
                    );
                    let deployment = self.kube.find::<k8s_openapi::api::apps::v1::Deployment>(&name)?;
                    ensure!(deployment.is_none(), "{name}");
                }
            }
            Ok(())
        })
    }

    pub fn stop_operator(&self) -> Result<()> {
        let operator = self.operator.lock().unwrap_or_else(PoisonError::into_inner).take();
        operator.context("operator")?.stop()
    }

    pub fn start_operator(&self, name: &str) -> Result<()> {
        let operator = Operator::start(self.cluster, name)?;
        *self.operator.lock().unwrap_or_else(PoisonError::into_inner) = Some(operator);
        Ok(())
    }
}

/// The Tailnet of all pairs.
pub fn tailnet(cluster: &Cluster) -> Result<Value> {
    let mut tailnet = operating::tailnet(cluster, TAILNET)?;
    tailnet["spec"]["dns"]["ingressNameTemplate"] = json!("{name}.races.example.net");
    tailnet["spec"]["policy"] =
        json!({"baseConfigMap": "base", "routeApprovers": ["tag:router"], "ingressSourceAllowlist": ["group:a"]});
    Ok(tailnet)
}
