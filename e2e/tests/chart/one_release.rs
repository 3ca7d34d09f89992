//! One release that holds everything: the CRDs, this chart as a dependency, and the connections. As docs/install.md describes it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tailnet_e2e::{paths, wait_for};

use crate::bed::{Bed, EGRESS, OPERATOR, SOON, TAILNET, TEAM};
use crate::{connection, install};

/// Name of release and chart.
const RELEASE: &str = "connected";
/// Our kinds.
const KINDS: &str = "tailnets,tailnetegresses,tailnetingresses,tailnetsites,tailnetgateways";

pub fn story(bed: &Bed) -> Result<()> {
    // As on a cluster that has never seen us, but for the bootstrap key.
    bed.kubectl(&[
        "-n",
        OPERATOR,
        "delete",
        "secret",
        "tailnet-webhook-ca",
        "tailnet-key-ledger",
        "--ignore-not-found",
    ])?;
    let chart = wrapper(bed)?;
    let mark = bed.audit_mark()?;
    helm(bed, "install", &chart, &[])?.success().context("helm install")?;
    created_unchecked_then_checked(bed, mark)?;
    bed.expect_ready()?;
    connection::wait_query(bed)?;

    // The same line with something wrong in it is refused, and with something right it works.
    let done = helm(bed, "upgrade", &chart, &["--set", "second=localhost"])?;
    let said = done.failure().context("helm upgrade with a wrong target")?;
    ensure!(said.contains("TN203"), "refused for another reason: {said}");
    helm(bed, "upgrade", &chart, &["--set", "second=192.0.2.10"])?
        .success()
        .context("helm upgrade")?;
    bed.expect_ready()?;
    wait_for("the new target is reached", SOON, || {
        connection::through(bed, "second-db.tailnet-system.svc")
    })?;

    // Everything at once, the operator too: nothing hangs, but nobody is left to end the keys.
    install::uninstall(bed, RELEASE)?;
    wait_for("nothing of the connections is left in the cluster", SOON, || {
        for kinds in [
            &[KINDS, "-A"][..],
            &["-n", OPERATOR, "pods,deployments,networkpolicies"],
        ] {
            let left = bed.list(kinds)?;
            ensure!(left.is_empty(), "{} of {kinds:?} are left", left.len());
        }
        Ok::<_, anyhow::Error>(())
    })?;
    bed.kubectl(&["-n", OPERATOR, "get", "secret", "tailnet-key-ledger"])
        .context("the list of keys that are still valid")?;
    // The operator alone does it afterwards.
    helm(bed, "install", &chart, &["--set", "connections=false"])?
        .success()
        .context("helm install without connections")?;
    wait_for("the operator ends what was left in Headscale", SOON, || {
        install::nothing_left_in_headscale(bed)
    })?;
    install::uninstall(bed, RELEASE)?;
    // Helm never removes what is in a chart's crds folder.
    for kind in KINDS.split(',') {
        bed.kubectl(&["delete", "crd", &format!("{kind}.tsunaro.io"), "--timeout=60s"])?;
    }
    install::nothing_left_in_cluster(bed)
}

/// The objects were made before any webhook could answer, and are nevertheless judged; from now on nothing is stored unchecked.
fn created_unchecked_then_checked(bed: &Bed, mark: usize) -> Result<()> {
    for (object, resource) in [(TAILNET, "tailnets"), (EGRESS, "tailnetegresses")] {
        bed.expect(object, "Accepted", "True", &["Valid"])?;
        let log = bed.cluster.audit_log()?;
        let created = log.iter().skip(mark).find(|event| {
            event["verb"] != "delete"
                && event["objectRef"]["resource"] == resource
                && event["objectRef"]["subresource"].is_null()
                && event["responseStatus"]["code"] == 201
        });
        let created = created.with_context(|| format!("no creation of {resource} in the audit log"))?;
        println!("  {resource}: {}", created["annotations"]);
    }
    install::first_call_is_checked(bed)?;
    install::fails_closed(bed)
}

fn helm(bed: &Bed, verb: &str, chart: &str, more: &[&str]) -> Result<tailnet_e2e::Output> {
    let mut args = vec![
        verb,
        RELEASE,
        chart,
        "--namespace",
        OPERATOR,
        "--wait",
        "--timeout",
        "180s",
    ];
    args.extend(more);
    bed.cluster.helm(&args)
}

/// Writes the chart and gives its folder.
fn wrapper(bed: &Bed) -> Result<String> {
    let root = bed.cluster.dir().join(RELEASE);
    copy(Path::new(&install::chart()), &root.join("charts/tailnet-operator"))?;
    copy(&paths::repository().join("crds/yaml"), &root.join("crds"))?;
    fs::create_dir_all(root.join("templates"))?;
    let about = json!({
        "apiVersion": "v2",
        "name": RELEASE,
        "version": "1.0.0",
        "dependencies": [{"name": "tailnet-operator", "version": ">=0.0.0-0"}],
    });
    fs::write(root.join("Chart.yaml"), about.to_string())?;
    let mut ours = install::values(bed)?;
    ours["crds"] = json!({"install": false});
    let values = json!({"connections": true, "second": "", "tailnet-operator": ours});
    fs::write(root.join("values.yaml"), values.to_string())?;
    let seeds = paths::repository().join("crds/seeds");
    let seed = |name: &str| fs::read_to_string(seeds.join(name)).with_context(|| name.to_owned());
    let (tailnet, egress) = (seed("blog-tailnet.yaml")?, seed("blog-tailnetegress.yaml")?);
    let second =
        "    {{- with .Values.second }}\n    - {name: second-db, address: {{ . }}, port: 5432}\n    {{- end }}";
    let template = format!(
        "{{{{- if .Values.connections }}}}\n{}\n---\n{}\n{second}\n{{{{- end }}}}\n",
        tailnet.trim_end(),
        egress.trim_end()
    );
    ensure!(
        template.contains(&format!("consumerNamespaces: [{TEAM}]")),
        "{template}"
    );
    fs::write(root.join("templates/connections.yaml"), template)?;
    Ok(root.display().to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
