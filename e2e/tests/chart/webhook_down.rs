//! No webhook at all: what then holds, what people see, and that it cannot lock anybody out. docs/admission.md says the same.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_crds::audit::VALIDATE;
use tailnet_e2e::wait_for;

use crate::bed::{Bed, OPERATOR, SOON, TAILNET, TEAM, condition, objects, text};
use crate::operations::{WEBHOOK, WEBHOOK_PODS, scale, wait_settled};
use crate::{connection, faults, install, session};

/// A namespace that is deleted meanwhile.
const DOOMED: &str = "doomed";
/// A CRD that is deleted meanwhile; nothing is made for its objects.
const CRD: &str = "tailnetsites.tsunaro.io";
/// A finalizer of somebody else.
const HOLDER: &str = "example.net/holds";

pub fn holds(bed: &Bed) -> Result<()> {
    bed.cluster.apply(&objects(&[
        install::namespace(DOOMED),
        site("held", "10.119.0.0/24", &[HOLDER]),
        ingress_in_doomed(),
    ]))?;
    let crd = bed.get(&["crd", CRD])?;
    let sites = bed.list(&["tailnetsites"])?;
    scale(bed, 0)?;
    wait_for("no webhook Pod is left", SOON, || {
        let pods = bed.list(&["-n", OPERATOR, "pods", "-l", WEBHOOK_PODS])?;
        ensure!(pods.is_empty(), "{} left", pods.len());
        Ok::<_, anyhow::Error>(())
    })?;

    writes_are_refused(bed)?;
    others_are_unaffected(bed)?;
    deletions_work(bed)?;
    a_crd_can_be_deleted(bed, &crd, &sites)?;
    what_slips_in_has_no_effect(bed)?;
    the_rest_goes_on(bed)?;

    scale(bed, 2)?;
    wait_settled(bed, 2)?;
    wait_for("admission answers", SOON, || install::admission_answers(bed))?;
    install::fails_closed(bed).context("the open entry after the webhook is back")?;
    // The operator found its way to the kind again.
    bed.kubectl(&["apply", "-f", &install::seed("howto-tailnetsite.yaml")])?;
    wait_for(
        "the operator looks at the sites of the CRD that came back",
        SOON,
        || {
            let site = bed.get(&["tailnetsite", "prod-1-lan"])?;
            condition(&site, "Accepted").with_context(|| format!("no verdict: {}", site["status"]))
        },
    )?;
    // Still without effect, and now nobody could make another one.
    let done = bed
        .cluster
        .kubectl_with_input(&["create", "-f", "-"], &slipped("slipped-2"))?;
    ensure!(done.failure()?.contains("TN206"), "{}", done.stderr);
    verdict_on_slipped(bed)?;
    bed.kubectl(&["-n", OPERATOR, "delete", "tailnetegress", "slipped"])?;
    bed.expect_ready()?;
    connection::query(bed)?;
    session::goes_on(bed)
}

fn site(name: &str, prefix: &str, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetSite",
        "metadata": {"name": name, "finalizers": finalizers},
        "spec": {"tailnetRef": {"name": "demo"}, "prefixes": [prefix]},
    })
}

fn ingress_in_doomed() -> Value {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetIngress",
        "metadata": {"name": "doomed", "namespace": DOOMED},
        "spec": {
            "tailnetRef": {"name": "demo"},
            "allowFrom": ["group:team-a"],
            "exposes": [{"name": "web", "dnsLabel": "doomed", "mode": "http", "port": 443, "backend": {"service": "web", "port": 8080}}],
        },
    })
}

/// An egress that the schema lets through (it does not know the cluster's domain) and a rule does not.
fn slipped(name: &str) -> String {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetEgress",
        "metadata": {"name": name, "namespace": OPERATOR},
        "spec": {
            "tailnetRef": {"name": "demo"},
            "tag": "tag:egress-team-a",
            "consumerNamespaces": [TEAM],
            "targets": [{"name": "slipped-db", "address": "192.0.2.10", "port": 5432, "aliases": ["db.team-b.svc.cluster.local"]}],
        },
    })
    .to_string()
}

/// What people see when a write is refused because nobody checks it.
fn says_who_is_missing(said: &str) -> Result<()> {
    for word in [VALIDATE, "tailnet-webhook.tailnet-system.svc", "failed calling webhook"] {
        ensure!(said.contains(word), "the refusal does not name {word}: {said}");
    }
    Ok(())
}

fn writes_are_refused(bed: &Bed) -> Result<()> {
    let done = install::try_egress(bed, "192.0.2.10")?;
    println!("  what people see: {}", done.stderr.trim());
    says_who_is_missing(done.failure().context("a create without a webhook")?)?;
    let done = bed.cluster.kubectl(&["label", "tailnet", "demo", "seen=yes"])?;
    says_who_is_missing(done.failure().context("an update without a webhook")?)?;
    // The schema's rules are the API server's own, and come first.
    let done = install::try_egress(bed, "10.0.0.300")?;
    let said = done.failure().context("an egress that the schema refuses")?;
    ensure!(
        said.contains("TN203") && said.contains("spec.targets[0].address"),
        "the schema did not refuse it: {said}"
    );
    // So is the policy on status.
    let patch = json!({"status": {"conditions": []}}).to_string();
    let done = bed.cluster.kubectl(&[
        "patch",
        "tailnet",
        "demo",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ])?;
    let said = done.failure().context("a status that is not the operator's")?;
    ensure!(said.contains("tailnet-status"), "refused for another reason: {said}");
    Ok(())
}

fn others_are_unaffected(bed: &Bed) -> Result<()> {
    let map = |name: &str, labels: Value, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": OPERATOR, "labels": labels}, "data": data});
    let others = objects(&[
        map("ordinary", json!({}), json!({"a": "b"})),
        // Checked while the webhook is there, and never held up when it is not.
        map(
            "base",
            json!({"tsunaro.io/policy": "base"}),
            json!({"policy.hujson": "{"}),
        ),
        connection::pod(TEAM, "ordinary", None),
        install::namespace("ordinary"),
    ]);
    let done = bed
        .cluster
        .kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &others)?;
    done.success().context("other kinds without a webhook").map(drop)
}

fn deletions_work(bed: &Bed) -> Result<()> {
    bed.kubectl(&["delete", "tailnetsite", "held", "--wait=false"])?;
    let held = bed.get(&["tailnetsite", "held"])?;
    ensure!(
        !held["metadata"]["deletionTimestamp"].is_null(),
        "it was held by nothing, so that its removal proves nothing: {}",
        held["metadata"]
    );
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    bed.kubectl(&["patch", "tailnetsite", "held", "--type=merge", "-p", &free])?;
    let done = bed.cluster.kubectl(&["get", "tailnetsite", "held"])?;
    ensure!(
        done.failure()?.contains("NotFound"),
        "the finalizer is off: {}",
        done.stderr
    );
    bed.kubectl(&["delete", "namespace", DOOMED, "--timeout=120s"])
        .context("a namespace with an ingress in it")
        .map(drop)
}

/// Deletes a CRD with all its objects, and puts it back as it was.
fn a_crd_can_be_deleted(bed: &Bed, crd: &Value, sites: &[Value]) -> Result<()> {
    bed.kubectl(&["delete", "crd", CRD, "--timeout=120s"])?;
    let metadata = &crd["metadata"];
    let again = json!({
        "apiVersion": crd["apiVersion"],
        "kind": crd["kind"],
        "metadata": {"name": CRD, "labels": metadata["labels"], "annotations": metadata["annotations"]},
        "spec": crd["spec"],
    });
    // Helm's next upgrade would do the same.
    bed.cluster
        .kubectl_with_input(&["create", "-f", "-"], &again.to_string())?
        .success()
        .context("the CRD again")?;
    bed.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", CRD])?;
    ensure!(!sites.is_empty(), "no site was there, so that nothing was lost");
    Ok(())
}

/// Who lets writes through by hand, as docs/admission.md says, gets no effect of what breaks a rule.
fn what_slips_in_has_no_effect(bed: &Bed) -> Result<()> {
    let open = json!({"webhooks": [{"name": VALIDATE, "failurePolicy": "Ignore"}]}).to_string();
    bed.kubectl(&[
        "patch",
        "validatingwebhookconfiguration",
        "tailnet-webhook",
        "--type=strategic",
        "-p",
        &open,
    ])?;
    // The API server follows its configurations a moment later.
    wait_for("the API server lets it through", SOON, || {
        let done = bed
            .cluster
            .kubectl_with_input(&["create", "-f", "-"], &slipped("slipped"))?;
        match done.success() {
            Ok(_) => Ok(()),
            Err(_) if done.stderr.contains("AlreadyExists") => Ok(()),
            Err(error) => Err(error),
        }
    })?;
    verdict_on_slipped(bed)
}

fn verdict_on_slipped(bed: &Bed) -> Result<()> {
    wait_for("the operator refuses what slipped in", SOON, || {
        let egress = bed.get(&["-n", OPERATOR, "tailnetegress", "slipped"])?;
        let accepted = condition(&egress, "Accepted").context("no condition Accepted yet")?;
        ensure!(
            accepted["status"] == "False" && text(&accepted["message"]).contains("TN206"),
            "{accepted}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    let made = bed.list(&[
        "-n",
        OPERATOR,
        "deployments,services,networkpolicies",
        "-l",
        "tsunaro.io/owner-name=slipped",
    ])?;
    ensure!(made.is_empty(), "made for an egress that is not accepted: {made:?}");
    Ok(())
}

/// Neither what runs nor what the operator does needs a webhook.
fn the_rest_goes_on(bed: &Bed) -> Result<()> {
    let before = faults::last_read(bed)?;
    wait_for("the operator reads Headscale", SOON, || {
        ensure!(faults::last_read(bed)? != before, "last at {before}");
        Ok::<_, anyhow::Error>(())
    })?;
    bed.expect(TAILNET, "Ready", "True", &["Ready"])?;
    connection::query(bed).context("without a webhook")?;
    session::goes_on(bed).context("without a webhook")?;
    let deployment = bed.get(&["-n", OPERATOR, "deployment", WEBHOOK])?;
    ensure!(deployment["spec"]["replicas"] == 0, "somebody started the webhook");
    Ok(())
}
