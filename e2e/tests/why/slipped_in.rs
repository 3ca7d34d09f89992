//! What comes in while nobody asks the webhook, and an operator that is away.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tailnet_e2e::wait_for;

use crate::bed::{Bed, NAMESPACE, Said, TAG};

/// Every one.
pub fn set_ups(bed: &Bed) -> Result<()> {
    bed.delete(&["validatingwebhookconfiguration", "tailnet-webhook"])?;
    bed.expect_doctor(
        "validating webhook",
        "fail",
        "there is no ValidatingWebhookConfiguration *",
    );
    bed.expect_doctor("admission refuses", "fail", "a wrong object is let in *");
    wait_for("the API server no longer asks", Duration::from_secs(30), || {
        bed.egress("rival", |spec| spec["tag"] = json!(TAG))
    })?;
    bed.expect(
        "22 another object has the tag",
        &["tailnetegress/rival"],
        &Said {
            link: "accepted",
            reason: "HeldByOther",
            sentence: &format!("TailnetEgress network/rival does not work: its first broken link is accepted (HeldByOther): *{TAG}*team-a* It is the turn of the application team."),
            next: "kubectl * -n network edit tailnetegress rival",
        },
    );
    bed.egress("rival", |spec| {
        spec["targets"][0]["aliases"] = json!(["api.cluster.local"]);
    })?;
    bed.expect(
        "23 a rule is broken",
        &["tailnetegress/rival"],
        &Said {
            link: "accepted",
            reason: "Invalid",
            sentence: "TailnetEgress network/rival does not work: its first broken link is accepted (Invalid): *[TN*]. It is the turn of the application team.",
            next: "kubectl * -n network get tailnetegress rival -o yaml | kubectl tailnet lint --cluster - *",
        },
    );
    bed.delete(&["tailnetegress", "rival"])?;

    bed.kubectl(&["scale", "deployment", "tailnet-operator", "--replicas=0"])?;
    let gone = [
        "wait",
        "--for=delete",
        "pod",
        "-l",
        "app.kubernetes.io/component=operator",
        "--timeout=90s",
    ];
    bed.kubectl(&gone)?;
    // Nobody renews it any more; a minute is not waited for.
    bed.apply(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "tailnet-operator", "namespace": NAMESPACE},
        "spec": {"renewTime": "2024-01-01T00:00:00.000000Z", "holderIdentity": "gone"},
    }))?;
    bed.expect(
        "24 the operator does not run",
        &["tailnetegress/team-a"],
        &Said {
            link: "operator",
            reason: "OperatorSilent",
            sentence: "TailnetEgress network/team-a does not work: its first broken link is operator (OperatorSilent): the operator was last seen * s ago, so nothing is repaired, and what the status says may be old. It is the turn of the platform team.",
            next: "kubectl * -n network get deployments,pods -l app.kubernetes.io/component=operator",
        },
    );
    bed.expect_doctor(
        "operator acts",
        "fail",
        "nobody acts: Lease network/tailnet-operator was last renewed * s ago",
    );
    bed.expect_doctor("operator", "fail", "0 of 0 Pods *");
    Ok(())
}
