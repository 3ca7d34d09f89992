//! The organisation's policies in the operator, without a webhook: what they refuse has no effect, and what becomes of them
//! is said by the Tailnet.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::wait_for;

use crate::bed::{Bed, PATIENCE};

const CONDITION: &str = "OrganisationPolicies";
const RECORD: &str = "tailnet-organisation-policies";

fn policy(bed: &Bed, label: &str, expression: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "site-owners", "namespace": bed.ns(), "labels": {"tsunaro.io/admission-policy": label}},
        "data": {"policy.yaml": json!({
            "matchConstraints": {"resourceRules": [{"resources": ["tailnetsites"]}]},
            "validations": [{"expression": expression, "message": "a site is owned by network"}],
        }).to_string()},
    })
}

/// Waits until the Tailnet says nothing of policies.
fn silent(bed: &Bed) -> Result<()> {
    wait_for("nothing is said of policies", PATIENCE, || {
        let seen = bed.condition(&["tailnet", &bed.tailnet], CONDITION);
        ensure!(seen.is_err(), "{seen:?}");
        bed.condition(&["tailnet", &bed.tailnet], "Ready").map(drop)
    })
}

fn accepted(bed: &Bed, site: &str, status: &str) -> Result<String> {
    let mut last = String::new();
    wait_for(&format!("Accepted of the site is {status}"), PATIENCE, || {
        let seen = bed.condition(&["tailnetsite", site], "Accepted")?;
        ensure!(seen.0 == status, "{seen:?}");
        last = seen.2;
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(last)
}

#[test]
fn a_policy_holds_without_a_webhook_and_is_missed_when_it_vanishes() -> Result<()> {
    let bed = Bed::new("tailnet_policies")?;
    bed.bootstrap(&bed.own_key()?)?;
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    bed.ready()?;
    silent(&bed)?;
    let name = format!("lab-{}", bed.tailnet);
    let site = json!({
        "apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetSite", "metadata": {"name": name},
        "spec": {"tailnetRef": {"name": bed.tailnet}, "prefixes": ["198.51.100.0/24"], "advertisedBy": ["tag:router"], "owner": "somebody"},
    });
    bed.apply(&site)?;
    accepted(&bed, &name, "True")?;

    let good = "object.spec.?owner.orValue('') == 'network'";
    bed.apply(&policy(&bed, "true", good))?;
    let message = bed.expect(CONDITION, "True", "InForce")?;
    ensure!(message.contains("site-owners (1 validation)"), "{message}");
    let message = accepted(&bed, &name, "False")?;
    ensure!(
        message.contains("a site is owned by network [ORG/site-owners/1]"),
        "{message}"
    );

    bed.apply(&policy(&bed, "true", "object.spec.ownr == 'network'"))?;
    let message = bed.expect(CONDITION, "False", "PolicyUnusable")?;
    ensure!(message.contains("did you mean owner?"), "{message}");
    bed.apply(&policy(&bed, "true", good))?;
    bed.expect(CONDITION, "True", "InForce")?;

    // Deleted while it is in force: its protection is gone, and that is said.
    bed.delete(&["configmap", "site-owners"])?;
    let message = bed.expect(CONDITION, "False", "PolicyVanished")?;
    ensure!(message.contains("site-owners") && message.contains(RECORD), "{message}");
    accepted(&bed, &name, "True")?;
    // The record outlives the process.
    operator.terminate(std::time::Duration::from_secs(10))?;
    let operator = bed.operator(&[])?;
    bed.expect(CONDITION, "False", "PolicyVanished")?;
    bed.apply(&policy(&bed, "true", good))?;
    bed.expect(CONDITION, "True", "InForce")?;
    // Retired by its label: nobody misses it.
    bed.apply(&policy(&bed, "false", good))?;
    silent(&bed)?;
    bed.delete(&["configmap", "site-owners"])?;
    silent(&bed)?;

    bed.apply(&policy(&bed, "true", good))?;
    bed.expect(CONDITION, "True", "InForce")?;
    bed.delete(&["configmap", "site-owners"])?;
    bed.expect(CONDITION, "False", "PolicyVanished")?;
    // Somebody says that it was meant.
    bed.delete(&["configmap", RECORD])?;
    silent(&bed)?;
    bed.delete(&["tailnetsite", &name])?;
    operator.terminate(std::time::Duration::from_secs(10))?;
    Ok(())
}
