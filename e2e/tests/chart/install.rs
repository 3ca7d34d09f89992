//! The chart: install, upgrade, uninstall.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tailnet_crds::audit::VALIDATE;
use tailnet_e2e::cluster::control_plane;
use tailnet_e2e::{images, paths, site, wait_for};

use crate::bed::{Bed, EGRESS, OPERATOR, SOON, STRANGER, TAILNET, TEAM, objects, text};
use crate::{connection, session};

/// Name of the release.
pub const RELEASE: &str = "tailnet-operator";
/// The image that `cargo xtask image` makes.
const IMAGE: (&str, &str) = ("docker.io/tsunaro/tailnet-operator", "dev");
/// The resolver's address.
const RESOLVER: &str = "10.96.0.53";
/// The seeds, in the order in which people apply them.
const SEEDS: [&str; 5] = [
    "blog-tailnet.yaml",
    "blog-tailnetegress.yaml",
    "blog-tailnetingress.yaml",
    "howto-tailnetsite.yaml",
    "howto-tailnetgateway.yaml",
];
/// Kinds with a namespace that we or the chart make. Pods, ReplicaSets and EndpointSlices follow from them.
const KINDS: &str = "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,leases";
/// Kinds without one.
const CLUSTER_KINDS: &str = "clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations,customresourcedefinitions";

/// An egress that nobody will ever store.
fn tried(address: &str) -> String {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetEgress",
        "metadata": {"name": "tried", "namespace": OPERATOR},
        "spec": {
            "tailnetRef": {"name": "demo"},
            "consumerNamespaces": [TEAM],
            "targets": [{"name": "tried-db", "address": address, "port": 5432}],
        },
    })
    .to_string()
}

pub fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    })
}

pub fn chart() -> String {
    paths::repository().join("chart").display().to_string()
}

/// The chart's values of this story.
pub fn values(bed: &Bed) -> Result<Value> {
    let (coredns, tag) = images::COREDNS.rsplit_once(':').context("an image has a tag")?;
    // Every round of faults makes two working keys, and the default allows a Tailnet six in an hour.
    let more = if crate::is_long() {
        json!([{"name": "KEY_MINTS_PER_HOUR", "value": "100"}])
    } else {
        json!([])
    };
    Ok(json!({
        "image": {"repository": IMAGE.0, "tag": IMAGE.1, "pullPolicy": "Never"},
        "trustedCA": bed.headscale.ca_pem()?,
        "serviceCIDRs": [control_plane::SERVICES],
        "podCIDRs": [control_plane::PODS],
        // Any namespace but the strangers' does: so no further client is needed.
        "monitoringNamespace": TEAM,
        "operator": {"extraEnv": more},
        "resolver": {
            "enabled": true,
            "replicas": 1,
            "image": {"repository": coredns, "tag": tag, "pullPolicy": "Never"},
            "zones": [site::HTTPS_NAME],
            "clusterIP": RESOLVER,
        },
    }))
}

/// `helm VERB tailnet-operator ./chart ... --wait MORE`.
pub fn helm(bed: &Bed, verb: &str, more: &[&str]) -> Result<tailnet_e2e::Output> {
    let file = bed.cluster.dir().join("chart-values.json");
    std::fs::write(&file, values(bed)?.to_string())?;
    let (chart, values) = (chart(), file.display().to_string());
    let mut args = vec![verb, RELEASE, &chart, "--namespace", OPERATOR, "--values", &values];
    args.extend(["--wait", "--timeout", "180s"]);
    args.extend(more);
    bed.cluster.helm(&args)
}

/// Unknown values are refused, at every depth, and nothing is installed then.
pub fn typos_are_refused(bed: &Bed) -> Result<()> {
    bed.cluster
        .apply(&objects(&[OPERATOR, TEAM, STRANGER].map(namespace)))?;
    for (typo, word) in [
        ("webhok.replicas=3", "webhok"),
        ("webhook.replica=3", "replica"),
        ("resolver.image.tagg=1", "tagg"),
    ] {
        let done = helm(bed, "install", &["--set", typo])?;
        let said = done
            .failure()
            .with_context(|| format!("helm install --set {typo} must be refused"))?;
        ensure!(said.contains(word), "the refusal of {typo} does not name it: {said}");
    }
    let there = bed.kubectl(&[
        "-n",
        OPERATOR,
        "get",
        KINDS,
        "-l",
        "app.kubernetes.io/name=tailnet-operator",
        "-o",
        "name",
    ])?;
    ensure!(there.is_empty(), "a refused installation left: {there}");
    Ok(())
}

/// Installs into a namespace that enforces the restricted Pod Security Standard.
pub fn install(bed: &Bed) -> Result<()> {
    let done = helm(bed, "install", &[])?;
    let notes = done.success().context("helm install")?;
    first_call_is_checked(bed)?;
    fails_closed(bed)?;
    connection::forward_alias(bed, &stanza(notes)?)?;
    let wanted = [("tailnet-webhook", 2), ("tailnet-operator", 1), ("tailnet-resolver", 1)];
    for (name, replicas) in wanted {
        let deployment = bed.get(&["-n", OPERATOR, "deployment", name])?;
        ensure!(
            deployment["status"]["readyReplicas"] == replicas,
            "helm says that it is done, and {name} has not {replicas} ready Pods: {}",
            deployment["status"]
        );
    }
    // That all this runs proves something only if the standard is enforced.
    let privileged = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "privileged", "namespace": OPERATOR},
        "spec": {"containers": [{"name": "c", "image": images::TESTBOX, "securityContext": {"privileged": true}}]},
    });
    let done = bed
        .cluster
        .kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &privileged.to_string())?;
    let said = done.failure().context("a privileged Pod in the release's namespace")?;
    ensure!(
        said.contains("PodSecurity \"restricted"),
        "refused for another reason: {said}"
    );
    Ok(())
}

/// The first call after Helm is done reaches the webhook: nobody has to wait for anything.
pub fn first_call_is_checked(bed: &Bed) -> Result<()> {
    // The schema lets localhost through: what refuses it is the webhook.
    let done = try_egress(bed, "localhost")?;
    let said = done.failure().context("the first call after helm")?;
    ensure!(
        said.contains("TN203"),
        "the webhook did not answer the first call: {said}"
    );
    Ok(())
}

/// The entry that checks has failurePolicy Fail, whatever the chart had to install first.
pub fn fails_closed(bed: &Bed) -> Result<()> {
    wait_for("the checking entry has failurePolicy Fail", SOON, || {
        let configuration = bed.get(&["validatingwebhookconfigurations", "tailnet-webhook"])?;
        let entries = configuration["webhooks"].as_array().context("entries")?;
        let entry = entries.iter().find(|entry| entry["name"] == VALIDATE);
        let policy = &entry.context("no entry that checks")?["failurePolicy"];
        ensure!(policy == "Fail", "{policy}");
        Ok::<_, anyhow::Error>(())
    })
}

/// The server block in the chart's notes.
fn stanza(notes: &str) -> Result<String> {
    let first = format!("{}:53 {{", site::HTTPS_NAME);
    let mut block = Vec::new();
    for line in notes.lines().map(|line| line.strip_prefix("   ").unwrap_or(line)) {
        if line == first || !block.is_empty() {
            block.push(line);
            if line == "}" {
                return Ok(block.join("\n"));
            }
        }
    }
    anyhow::bail!("helm's notes have no complete DNS stanza:\n{notes}")
}

/// What a dry-run create of an egress with one target at `address` answers.
pub fn try_egress(bed: &Bed, address: &str) -> Result<tailnet_e2e::Output> {
    bed.cluster.kubectl_with_input(
        &["create", "--dry-run=server", "-o", "json", "-f", "-"],
        &tried(address),
    )
}

/// A wrong egress is denied with field, reason and rule.
pub fn wrong_is_denied(bed: &Bed) -> Result<()> {
    let done = try_egress(bed, "10.0.0.300")?;
    let said = done.failure().context("an egress with a wrong address")?;
    for word in ["TN203", "spec.targets[0].address", "10.0.0.300"] {
        ensure!(said.contains(word), "the denial does not name {word}: {said}");
    }
    Ok(())
}

/// One dry run comes back with the default, another is denied, and neither changes anything.
pub fn admission_answers(bed: &Bed) -> Result<()> {
    let done = try_egress(bed, "192.0.2.10")?;
    let text = done.success().context("a right egress")?;
    let back: Value = serde_json::from_str(text)?;
    ensure!(
        back["spec"]["tag"] == "tag:egress-tried",
        "the webhook did not fill in the tag: {}",
        back["spec"]
    );
    wrong_is_denied(bed)?;
    let found = bed
        .cluster
        .kubectl(&["-n", OPERATOR, "get", "tailnetegress", "tried"])?;
    ensure!(found.failure()?.contains("NotFound"), "a dry run was stored");
    Ok(())
}

/// Path of a seed.
pub fn seed(name: &str) -> String {
    paths::repository().join("crds/seeds").join(name).display().to_string()
}

/// The seeds as they are; the second time nothing changes.
pub fn seeds(bed: &Bed) -> Result<()> {
    bed.set_bootstrap(&bed.bootstrap)?;
    for seed in SEEDS {
        let file = self::seed(seed);
        let said = bed.kubectl(&["apply", "-f", &file])?;
        ensure!(said.ends_with("created"), "{seed} is not new: {said}");
    }
    bed.expect(TAILNET, "APIKeyReady", "True", &["APIKeyReady"])?;
    bed.expect_ready()?;
    let before = bed.get(EGRESS)?;
    for seed in SEEDS {
        let file = self::seed(seed);
        let said = bed.kubectl(&["apply", "-f", &file])?;
        ensure!(said.ends_with("unchanged"), "the second time: {said}");
    }
    let after = bed.get(EGRESS)?;
    ensure!(
        before["metadata"]["generation"] == after["metadata"]["generation"],
        "the egress changed"
    );
    Ok(())
}

/// UIDs of all our Pods with the restarts of their containers.
fn running(bed: &Bed) -> Result<BTreeSet<String>> {
    let pods = bed.list(&["-n", OPERATOR, "pods"])?;
    Ok(pods
        .iter()
        .map(|pod| {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            format!(
                "{} {} restarts={restarts}",
                text(&pod["metadata"]["name"]),
                text(&pod["metadata"]["uid"])
            )
        })
        .collect())
}

/// The caBundle of every entry of both webhook configurations.
fn ca_bundles(bed: &Bed) -> Result<Vec<String>> {
    let mut bundles = Vec::new();
    for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        let configuration = bed.get(&[kind, "tailnet-webhook"])?;
        for webhook in configuration["webhooks"].as_array().context("entries")? {
            bundles.push(text(&webhook["clientConfig"]["caBundle"]));
        }
    }
    ensure!(
        bundles.iter().all(|bundle| !bundle.is_empty()),
        "an entry has no caBundle"
    );
    Ok(bundles)
}

/// An upgrade that changes nothing changes nothing.
pub fn upgrade_without_change(bed: &Bed) -> Result<()> {
    let (pods, bundles) = (running(bed)?, ca_bundles(bed)?);
    helm(bed, "upgrade", &[])?.success().context("helm upgrade")?;
    for name in [
        "tailnet-webhook",
        "tailnet-operator",
        "tailnet-resolver",
        "tailnet-egress-team-a",
    ] {
        bed.wait_rolled_out(name)?;
    }
    ensure!(
        running(bed)? == pods,
        "Pods before:\n{pods:#?}\nafter:\n{:#?}",
        running(bed)?
    );
    ensure!(ca_bundles(bed)? == bundles, "the upgrade changed a caBundle");
    // The first revision is the one that had to be open for a moment.
    let done = bed.cluster.helm(&[
        "rollback",
        RELEASE,
        "1",
        "--namespace",
        OPERATOR,
        "--wait",
        "--timeout",
        "120s",
    ])?;
    done.success().context("helm rollback to the first revision")?;
    fails_closed(bed)?;
    ensure!(running(bed)? == pods, "the rollback replaced Pods");
    ensure!(ca_bundles(bed)? == bundles, "the rollback changed a caBundle");
    admission_answers(bed)?;
    session::goes_on(bed)
}

/// Every object of ours or the chart's in `kinds`, as `Kind name`.
fn present(bed: &Bed, kinds: &str) -> Result<Vec<Value>> {
    bed.list(&["-n", OPERATOR, kinds])
}

fn call(object: &Value) -> String {
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// Whether an object may be there after `helm uninstall`: somebody else's, a child of a CR, or in docs/install.md's list.
fn may_stay(object: &Value) -> bool {
    let children = object["metadata"]["ownerReferences"].as_array();
    if children.is_some_and(|owners| owners.iter().any(|owner| owner["apiVersion"] == "tsunaro.io/v1alpha1")) {
        return true;
    }
    let name = text(&object["metadata"]["name"]);
    match text(&object["kind"]).as_str() {
        "ServiceAccount" => name == "default",
        "ConfigMap" => {
            name == "kube-root-ca.crt"
                || name == "tailnet-hosts"
                || name.starts_with("tailnet-facts-")
                || name.starts_with("tailnet-claims-")
        }
        "Secret" => [
            "headscale-bootstrap",
            "tailnet-webhook-ca",
            "tailnet-key-ledger",
            "tailnet-demo-apikey",
        ]
        .contains(&name.as_str()),
        "Lease" => name == "tailnet-operator" || name.starts_with("tailnet-facts-"),
        _ => false,
    }
}

/// The release goes, the CRDs and what runs for CRs stay, and a new release takes them over.
pub fn uninstall_and_again(bed: &Bed) -> Result<()> {
    let agents = bed.pods("tsunaro.io/owner-name=team-a")?;
    uninstall(bed, RELEASE)?;
    let left: Vec<String> = present(bed, KINDS)?
        .iter()
        .filter(|object| !may_stay(object))
        .map(call)
        .collect();
    ensure!(left.is_empty(), "helm uninstall left: {}", left.join(", "));
    let ours = bed.list(&[CLUSTER_KINDS])?;
    let left: Vec<String> = ours
        .iter()
        .filter(|object| {
            let name = text(&object["metadata"]["name"]);
            name.starts_with("tailnet-") || name.ends_with(".tsunaro.io")
        })
        .map(call)
        .collect();
    ensure!(
        left.len() == 5 && left.iter().all(|name| name.starts_with("CustomResourceDefinition ")),
        "without a namespace there must be the five CRDs: {left:?}"
    );
    wait_for("only the agents' Pods are left", SOON, || {
        let pods = bed.list(&["-n", OPERATOR, "pods"])?;
        ensure!(
            pods.len() == agents.len(),
            "{}",
            pods.iter().map(call).collect::<Vec<_>>().join(", ")
        );
        Ok::<_, anyhow::Error>(())
    })?;
    // What runs does not need us.
    connection::query(bed)?;
    session::goes_on(bed)?;

    helm(bed, "install", &[])?
        .success()
        .context("helm install, the second time")?;
    first_call_is_checked(bed)?;
    fails_closed(bed)?;
    bed.expect_ready()?;
    ensure!(
        bed.pods("tsunaro.io/owner-name=team-a")? == agents,
        "the new release replaced the agents"
    );
    admission_answers(bed)?;
    connection::query(bed)?;
    connection::https(bed)?;
    session::goes_on(bed)
}

/// As docs/install.md says it: afterwards nothing of ours is left in Headscale, and nothing in the cluster.
pub fn remove_all(bed: &Bed) -> Result<()> {
    for kind in ["tailnetegress", "tailnetingress"] {
        bed.kubectl(&["delete", kind, "--all", "-A"])?;
    }
    bed.kubectl(&["delete", "tailnetsite,tailnetgateway,tailnet", "--all"])?;
    bed.kubectl(&[
        "-n",
        OPERATOR,
        "wait",
        "--for=delete",
        "secret/tailnet-demo-apikey",
        "--timeout=180s",
    ])?;
    nothing_left_in_headscale(bed)?;
    uninstall(bed, RELEASE)?;
    bed.kubectl(&[
        "delete",
        "crd",
        "-l",
        "app.kubernetes.io/name=tailnet-operator",
        "--timeout=60s",
    ])?;
    nothing_left_in_cluster(bed)
}

/// `helm uninstall RELEASE --wait`.
pub fn uninstall(bed: &Bed, release: &str) -> Result<()> {
    let done = bed.cluster.helm(&[
        "uninstall",
        release,
        "--namespace",
        OPERATOR,
        "--wait",
        "--timeout",
        "120s",
    ])?;
    done.success().context("helm uninstall").map(drop)
}

/// No node and no key of ours: only the harness's key and the bootstrap key are valid.
pub fn nothing_left_in_headscale(bed: &Bed) -> Result<()> {
    let nodes = bed.our_nodes()?;
    ensure!(
        nodes.is_empty(),
        "the working key is gone, and Headscale still has {nodes:?}"
    );
    let client = bed.headscale.client()?;
    let now = jiff::Timestamp::now();
    let live: Vec<_> = bed
        .block_on(client.preauth_keys())?
        .into_iter()
        .filter(|key| key.acl_tags.iter().any(|tag| tag == crate::bed::TAG) && !key.expired(now))
        .collect();
    ensure!(live.is_empty(), "pre-auth keys are left: {live:?}");
    let mut left: Vec<String> = bed
        .block_on(client.api_keys())?
        .iter()
        .map(|key| key.short_prefix().to_owned())
        .collect();
    let mut known = Vec::new();
    for key in [bed.headscale.admin_key()?, bed.bootstrap.clone()] {
        let key = tailnet_headscale::ApiKey::parse(&key)?;
        known.push(key.prefix().context("a key has a prefix")?.to_owned());
    }
    left.sort();
    known.sort();
    ensure!(left == known, "API keys in Headscale: {left:?}, not ours: {known:?}");
    Ok(())
}

/// Neither CRDs nor anything that runs.
pub fn nothing_left_in_cluster(bed: &Bed) -> Result<()> {
    let crds = bed.list(&["crd"])?;
    let left: Vec<String> = crds
        .iter()
        .map(call)
        .filter(|name| name.ends_with(".tsunaro.io"))
        .collect();
    ensure!(left.is_empty(), "{left:?}");
    let kinds = "deployments,services,networkpolicies,poddisruptionbudgets,serviceaccounts";
    let left: Vec<String> = present(bed, kinds)?
        .iter()
        .filter(|object| !may_stay(object))
        .map(call)
        .collect();
    ensure!(left.is_empty(), "left in the cluster: {left:?}");
    Ok(())
}
