//! Who may do what, as the API server itself decides it: skipping rules, writing status, base documents.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tailnet_crds::names::BYPASS_RESOURCE;
use tailnet_crds::{GROUP, Kind};
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};

use crate::installed::{NAMESPACE, Webhook, cluster, egress, item, tailnet};
use crate::{start_over, wait_known};

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Gives a group a right, by a role of the group's name.
fn grant(cluster: &Cluster, group: &str, resources: &[&str], verbs: &[&str]) -> Result<()> {
    let rules = json!([{"apiGroups": [GROUP], "resources": resources, "verbs": verbs}]);
    let role = json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": group}, "rules": rules});
    let binding = json!({
        "apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": group},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": group},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group}],
    });
    for object in [role, binding] {
        cluster.apply(&object.to_string())?;
    }
    Ok(())
}

/// An egress that only TN201 stands against: it is in another namespace.
fn misplaced(name: &str) -> Value {
    let mut object = egress(name, "corp");
    object["metadata"]["namespace"] = json!("default");
    object["metadata"]["annotations"] = json!({"tsunaro.io/validation": "disabled"});
    object["spec"].as_object_mut().map(|spec| spec.remove("tag"));
    object
}

#[test]
fn skipping_a_rule_takes_the_right_and_ends_with_it() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-bypass", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    let kinds = Kind::ALL.map(Kind::plural);
    grant(cluster, "writers", &kinds, &["*"])?;
    let groups = [
        "writers".to_owned(),
        "on-call".to_owned(),
        "system:authenticated".to_owned(),
    ];
    let bob = Some(("bob", &groups[..]));

    let answer = caller.create_as(&misplaced("a"), false, bob)?;
    assert_eq!(answer.status, 422, "{answer:?}");
    let causes = answer.causes().join("\n");
    assert!(
        causes.contains("\"bob\" may not skip rules") && causes.contains("[TN201]"),
        "{causes}"
    );

    grant(cluster, "on-call", &[BYPASS_RESOURCE], &["use"])?;
    wait_for("the right is there", Duration::from_secs(20), || {
        let answer = caller.create_as(&misplaced("a"), true, bob)?;
        ensure!(answer.status == 201, "{answer:?}");
        Ok(())
    })?;
    let answer = caller.create_as(&misplaced("a"), false, bob)?;
    assert_eq!(answer.status, 201, "{answer:?}");
    let warnings = answer.warnings.join("\n");
    assert!(
        warnings.contains("RULES ARE SKIPPED") && warnings.contains("skipped: metadata.namespace"),
        "{warnings}"
    );
    wait_for("the event is in the audit log", Duration::from_secs(10), || {
        let events = cluster.audit_log()?;
        let bypass = events
            .iter()
            .find(|event| {
                event["annotations"]["validate.tsunaro.io/decision"] == "bypass"
                    && event["impersonatedUser"]["username"] == "bob"
            })
            .context("no event yet")?;
        ensure!(
            bypass["annotations"]["validate.tsunaro.io/bypassed-rules"] == "TN201"
                && bypass["impersonatedUser"]["username"] == "bob",
            "{bypass}"
        );
        Ok(())
    })?;
    let (_, metrics) = webhook.health("/metrics")?;
    assert!(
        metrics.contains("tailnet_webhook_bypass_requests_total{result=\"allowed\"}")
            && metrics.contains("tailnet_webhook_bypasses_total{rule=\"TN201\""),
        "{metrics}"
    );
    // Somebody else's change of it is not carried by the annotation.
    let carol_groups = ["writers".to_owned(), "system:authenticated".to_owned()];
    let mut worse = misplaced("a");
    worse["spec"]["targets"][0]["aliases"] = json!(["corp.example.net"]);
    let answer = caller.update_as(&worse, true, Some(("carol", &carol_groups)))?;
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(answer.causes().join("\n").contains("[TN206]"), "{answer:?}");
    let mut other = misplaced("a");
    other["spec"]["replicas"] = json!(2);
    let answer = caller.update_as(&other, true, Some(("carol", &carol_groups)))?;
    assert_eq!(answer.status, 200, "{answer:?}");

    cluster
        .kubectl(&["delete", "clusterrolebinding", "on-call"])?
        .success()?;
    wait_for("the right is gone", Duration::from_secs(20), || {
        let answer = caller.create_as(&misplaced("b"), true, bob)?;
        ensure!(answer.status == 422, "{answer:?}");
        Ok(())
    })?;
    for (kind, name) in [
        ("clusterrolebinding", "writers"),
        ("clusterrole", "writers"),
        ("clusterrole", "on-call"),
    ] {
        cluster.kubectl(&["delete", kind, name])?.success()?;
    }
    Ok(())
}

#[test]
fn a_service_that_changes_its_kind_is_followed() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let _webhook = Webhook::installed(cluster, "webhook-services", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    let ingress = json!({
        "apiVersion": tailnet_crds::API_VERSION, "kind": "TailnetIngress", "metadata": {"name": "portal", "namespace": "default"},
        "spec": {"tailnetRef": {"name": "corp"}, "allowFrom": [], "exposes": [{"name": "web", "port": 5432, "backend": {"service": "web", "port": "http"}}]},
    });
    let service = |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"}, "spec": spec});
    let says = |what: &str, wanted: &dyn Fn(&str) -> bool| {
        wait_for(what, Duration::from_secs(10), || {
            let answer = caller.create(&ingress, true)?;
            let text = format!("{}\n{}", answer.warnings.join("\n"), answer.causes().join("\n"));
            ensure!(wanted(&text), "{answer:?}");
            Ok(())
        })
    };
    says("it is missing", &|text| text.contains("[TN307]"))?;
    let right = service(json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}));
    cluster.apply(&right.to_string())?;
    says("it is right", &|text| {
        !text.contains("[TN307]") && !text.contains("[TN316]")
    })?;
    cluster
        .kubectl(&["delete", "service", "web", "-n", "default"])?
        .success()?;
    cluster.apply(&service(json!({"type": "ExternalName", "externalName": "db.example.net"})).to_string())?;
    says("it leads elsewhere", &|text| text.contains("[TN316]"))?;
    cluster
        .kubectl(&["delete", "service", "web", "-n", "default"])?
        .success()?;
    Ok(())
}

#[test]
fn a_base_document_is_checked_where_it_is_written_and_never_held_up() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::installed(cluster, "webhook-policy", 9443)?;
    let document = |namespace: &str, text: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "people", "namespace": namespace, "labels": {"tsunaro.io/policy": "base"}},
            "data": {"policy.hujson": text},
        })
    };
    const WRONG: &str = "{\n  \"grantz\": []\n}";
    wait_for("the entry is followed", Duration::from_secs(20), || {
        let answer = caller.create(&document(NAMESPACE, WRONG), true)?;
        ensure!(answer.status == 422, "{answer:?}");
        Ok(())
    })?;
    let text = cluster.apply_refused(&document(NAMESPACE, WRONG).to_string())?;
    assert!(
        text.contains("The ConfigMap \"people\" is invalid") && text.contains("line 2, column 3: grantz"),
        "{text}"
    );
    assert_eq!(
        caller.create(&document("default", WRONG), true)?.status,
        201,
        "another namespace"
    );
    let mut unlabelled = document(NAMESPACE, WRONG);
    unlabelled["metadata"]["labels"] = Value::Null;
    assert_eq!(caller.create(&unlabelled, true)?.status, 201, "no base document");
    assert_eq!(caller.create(&document(NAMESPACE, "{}"), false)?.status, 201);
    // Taking the label away together with the fault put in is a change of a base document still.
    let answer = caller.update_as(&unlabelled, true, None)?;
    assert_eq!(answer.status, 200, "without the label it is nobody's: {answer:?}");
    webhook.process.kill()?;
    assert_eq!(
        caller.update_as(&document(NAMESPACE, WRONG), false, None)?.status,
        200,
        "nobody to ask"
    );
    assert_eq!(caller.delete(&document(NAMESPACE, WRONG))?.status, 200);
    Ok(())
}

#[test]
fn status_is_written_by_the_operator_only() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let object = tailnet("corp");
    cluster.apply(&object.to_string())?;
    let (policy, binding) = tailnet_operator::status_policy::objects(NAMESPACE);
    for part in [serde_json::to_value(policy)?, serde_json::to_value(binding)?] {
        cluster.apply(&part.to_string())?;
    }
    let status = json!({"status": {"serverVersion": "v0.29.3"}});
    let masters = ["system:masters".to_owned()];
    let write = |user: &str| {
        caller.ask(
            Method::PATCH,
            &format!("{}/status", item(&object)?),
            Some(&status),
            Some((user, &masters)),
        )
    };
    let operator = format!("system:serviceaccount:{NAMESPACE}:tailnet-operator");
    let outcome = (|| {
        wait_for("the policy is in force", Duration::from_secs(20), || {
            let answer = write("admin")?;
            ensure!(answer.status == 403, "{answer:?}");
            Ok(())
        })?;
        let answer = write("admin")?;
        ensure!(
            answer
                .message()
                .contains("only system:serviceaccount:tailnet-system:tailnet-operator writes it"),
            "{answer:?}"
        );
        // The same name in another namespace is another account.
        let other = "system:serviceaccount:default:tailnet-operator";
        let answer = write(other)?;
        ensure!(answer.status == 403, "{answer:?}");
        wait_for(
            "the refusal can be read from the audit log",
            Duration::from_secs(10),
            || {
                let summary = super::audit::summary(&[&cluster.dir().join("audit.log")], other)?;
                let refusal = &summary["refusals"][0];
                ensure!(
                    refusal["by"] == "policy"
                        && refusal["policy"] == "tailnet-status"
                        && refusal["kind"] == "Tailnet/status",
                    "{summary:#}"
                );
                Ok(())
            },
        )?;
        for kind in Kind::ALL {
            let can = cluster.kubectl(&["get", kind.plural(), "--all-namespaces"])?;
            ensure!(can.ok(), "{can:?}");
        }
        let answer = write(&operator)?;
        ensure!(
            answer.status == 200 && answer.body["status"]["serverVersion"] == "v0.29.3",
            "{answer:?}"
        );
        // A spec write that brings a status along changes no status, and is let in.
        let both = json!({"metadata": {"labels": {"a": "b"}}, "status": {"serverVersion": "forged"}});
        let answer = caller.ask(Method::PATCH, &item(&object)?, Some(&both), Some(("admin", &masters)))?;
        ensure!(
            answer.status == 200 && answer.body["status"]["serverVersion"] == "v0.29.3",
            "{answer:?}"
        );
        let answer = caller.delete(&object)?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })();
    // Other tests of this binary write status.
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        cluster.kubectl(&["delete", kind, "tailnet-status"])?.success()?;
    }
    outcome
}
