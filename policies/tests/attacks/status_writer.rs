//! Whoever may write a status, which was anybody before the policy that guards it was there.

use serde_json::json;
use tailnet_policies::{Layer, Outcome, cases};

/// A status may be anybody's: it decides nothing but warnings about a gateway's own identity.
#[test]
fn a_forged_status_changes_no_verdict() {
    let forged = json!({
        "activatedAt": "2020-01-01T00:00:00Z", "nodeId": "1", "observedGeneration": 99,
        "conditions": [{ "type": "Accepted", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z" }],
        "nodes": [{ "id": "1", "name": "x", "ipv4": "100.64.0.1" }], "policy": { "renderedSHA256": "0" },
    });
    for case in cases::load(&cases::directory()).unwrap() {
        if ["TN505", "TN514"].contains(&case.rule.as_str()) {
            continue;
        }
        for layer in [Layer::Webhook, Layer::Guard] {
            let honest = case.outcome(layer, &case.snapshot());
            let mut lying = case.clone();
            for object in lying
                .cluster
                .objects
                .iter_mut()
                .chain([&mut lying.object])
                .chain(&mut lying.old)
            {
                object["status"] = forged.clone();
            }
            let found = lying.outcome(layer, &lying.snapshot());
            let about_identity = |outcome: &Outcome| {
                let mut findings = outcome.findings.clone();
                findings.retain(|finding| finding.rule != "TN505");
                findings
            };
            assert_eq!(about_identity(&found), about_identity(&honest), "{}", case.name);
        }
    }
}
