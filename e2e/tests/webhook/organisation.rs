//! The organisation's policies with a real API server: the examples are taken and hold, a broken policy is refused with its
//! place, taking the label off ends it; and the kubectl plugin says the same beforehand.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, binaries, one_at_a_time, tools::Tool, wait_for};

use crate::installed::{NAMESPACE, Webhook, egress, site, tailnet};
use crate::{cluster, start_over, wait_known, wait_refused};

/// Text of the examples, by file.
fn examples() -> Result<Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/org");
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    files.sort_by_key(std::fs::DirEntry::path);
    files
        .iter()
        .map(|file| Ok(std::fs::read_to_string(file.path())?))
        .collect()
}

fn remove_policies(cluster: &Cluster) -> Result<()> {
    let selector = "tsunaro.io/admission-policy=true";
    cluster
        .kubectl(&[
            "delete",
            "configmaps",
            "-n",
            NAMESPACE,
            "-l",
            selector,
            "--ignore-not-found",
        ])?
        .success()?;
    Ok(())
}

fn owned(name: &str, owner: &str) -> Value {
    let mut site = site(name, &["198.51.100.0/24"], "corp");
    site["spec"]["owner"] = json!(owner);
    site
}

#[test]
fn the_examples_hold_and_what_does_not_compile_is_refused() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    remove_policies(cluster)?;
    let _webhook = Webhook::installed(cluster, "webhook-organisation", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    cluster.apply(&owned("before", "somebody").to_string())?;
    wait_refused(&caller, &owned("overlaps", "network"), "TN403")?;

    for example in examples()? {
        let output = cluster.kubectl_with_input(&["apply", "-f", "-"], &example)?;
        // Who exists already is named.
        if example.contains("name: site-owners") {
            let said = &output.stderr;
            ensure!(
                said.contains("1 objects that exist are not accepted any more: TailnetSite before"),
                "{said}"
            );
        }
        output.success()?;
    }
    let refused = |object: &Value, id: &str| wait_refused(&caller, object, id);
    let mut elsewhere = owned("lab", "somebody");
    elsewhere["spec"]["prefixes"] = json!(["203.0.113.0/24"]);
    refused(&elsewhere, "ORG/site-owners/2")?;
    elsewhere["spec"]["owner"] = json!("network");
    assert_eq!(caller.create(&elsewhere, true)?.status, 201);
    let mut ssh = egress("jump", "corp");
    ssh["spec"]["targets"][0]["port"] = json!(22);
    refused(&ssh, "ORG/egress-ssh/1")?;
    ssh["metadata"]["labels"] = json!({"example.net/ssh-approved-by": "alice"});
    assert_eq!(caller.create(&ssh, true)?.status, 201);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"environment": "production"}}});
    cluster.apply(&namespace.to_string())?;
    let ingress = json!({
        "apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetIngress", "metadata": {"name": "portal", "namespace": "shop"},
        "spec": {
            "tailnetRef": {"name": "corp"}, "allowFrom": ["group:contractors"],
            "exposes": [{"name": "web", "port": 5432, "backend": {"service": "web", "port": 80}}],
        },
    });
    refused(&ingress, "ORG/production-exposure/1")?;
    cluster
        .kubectl(&["label", "namespace", "shop", "environment=test", "--overwrite"])?
        .success()?;
    wait_for("the label is known", Duration::from_secs(10), || {
        let answer = caller.create(&ingress, true)?;
        ensure!(!answer.message().contains("ORG/"), "{answer:?}");
        Ok(())
    })?;
    // An update that leaves the owner alone is only warned about.
    let mut before = caller.get(&owned("before", "somebody"))?.body;
    before["spec"]["description"] = json!("described");
    let answer = caller.update_as(&before, false, None)?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(
        answer.warnings.iter().any(|text| text.contains("[ORG/site-owners/2]")),
        "{answer:?}"
    );

    let broken = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "broken", "namespace": NAMESPACE, "labels": {"tsunaro.io/admission-policy": "true"}},
        "data": {"policy.yaml": "validations:\n  - expression: object.spec.ownr == 'a'\n"},
    });
    let text = cluster.apply_refused(&broken.to_string())?;
    assert!(
        text.contains("validations[0].expression")
            && text.contains("line 1, column 13")
            && text.contains("did you mean owner?"),
        "{text}"
    );
    // Unlabelled it is a ConfigMap like any other.
    let mut unlabelled = broken.clone();
    unlabelled["metadata"]["labels"] = json!({});
    cluster.apply(&unlabelled.to_string())?;
    cluster
        .kubectl(&["delete", "configmap", "broken", "-n", NAMESPACE])?
        .success()?;

    let retired = cluster.kubectl(&[
        "label",
        "configmap",
        "site-owners",
        "-n",
        NAMESPACE,
        "tsunaro.io/admission-policy-",
    ])?;
    ensure!(retired.stderr.contains("is no longer in force"), "{retired:?}");
    retired.success()?;
    elsewhere["spec"]["owner"] = json!("somebody");
    wait_for("the policy is out of force", Duration::from_secs(10), || {
        ensure!(caller.create(&elsewhere, true)?.status == 201, "still refused");
        Ok(())
    })?;
    remove_policies(cluster)
}

#[test]
fn the_kubectl_plugin_says_beforehand_what_the_cluster_will_say() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    remove_policies(cluster)?;
    let _webhook = Webhook::installed(cluster, "webhook-plugin", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    cluster.apply(&owned("lab", "network").to_string())?;
    for example in examples()? {
        cluster.apply(&example)?;
    }
    let folder = tempfile::tempdir()?;
    let mut moved = owned("lab", "somebody");
    moved["spec"]["tailnetRef"]["name"] = json!("other");
    std::fs::write(folder.path().join("lab.json"), serde_json::to_string_pretty(&moved)?)?;
    let overlapping = owned("second", "network");
    std::fs::write(
        folder.path().join("second.json"),
        serde_json::to_string_pretty(&overlapping)?,
    )?;

    let plugin = binaries::workspace("kubectl-tailnet", "kubectl-tailnet")?;
    let plugins = plugin.parent().context("a folder")?;
    let path = format!("{}:{}", plugins.display(), std::env::var("PATH").unwrap_or_default());
    let lint = |arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let output = Command::new(Tool::Kubectl.built()?)
            .args(["tailnet", "lint"])
            .args(arguments)
            .current_dir(folder.path())
            .env("PATH", &path)
            .env("KUBECONFIG", cluster.kubeconfig())
            .output()?;
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok((output.status.code(), text))
    };
    let (code, alone) = lint(&["second.json"])?;
    ensure!(
        code == Some(0) && alone.contains("[TN001]"),
        "alone it knows no Tailnet: {alone}"
    );
    let (code, text) = lint(&["--cluster", "second.json"])?;
    ensure!(
        code == Some(1) && text.contains("second.json:") && text.contains("[TN403]"),
        "{text}"
    );
    ensure!(text.contains("TailnetSite lab") && !text.contains("[TN001]"), "{text}");
    let (code, text) = lint(&["--cluster", "lab.json"])?;
    ensure!(
        code == Some(1) && text.contains("[TN002]") && text.contains("[ORG/site-owners/2]"),
        "{text}"
    );
    // The cluster says the same.
    let answer = caller.create(&overlapping, true)?;
    ensure!(answer.message().contains("[TN403]"), "{answer:?}");
    // Who may see nothing is told so.
    let nobody = cluster.user_kubeconfig("nobody", None)?;
    let (code, text) = lint(&[
        "--cluster",
        "--kubeconfig",
        nobody.to_str().context("UTF-8")?,
        "second.json",
    ])?;
    ensure!(
        code == Some(0) && text.contains("this user may not list tailnets"),
        "{text}"
    );
    remove_policies(cluster)
}
