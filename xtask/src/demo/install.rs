//! Our part: the chart, the seeds' two manifests, and the cluster's DNS.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::cluster::{Cluster, control_plane};
use tailnet_e2e::{images, site, wait_for};

use super::account::{command, says};
use super::{OPERATOR, PATIENCE, STRANGER, TEAM, kubectl, manifests};
use crate::image;
use crate::workspace::Workspace;

/// The resolver's address: fixed, so that Helm can print the stanza before the Service exists.
const RESOLVER: &str = "10.96.0.53";

/// Installs the chart; returns the DNS stanza that it prints.
pub fn helm(workspace: &Workspace, cluster: &Cluster) -> Result<String> {
    let headscale = cluster.headscale()?;
    cluster.apply(&manifests::list(&[OPERATOR, TEAM, STRANGER].map(manifests::namespace)))?;
    says(&format!(
        "namespaces {OPERATOR}, {TEAM}, {STRANGER}, all with the restricted Pod Security Standard"
    ));
    let (repository, tag) = image::REFERENCE.rsplit_once(':').context("an image has a tag")?;
    let (resolver_repository, resolver_tag) = images::COREDNS.rsplit_once(':').context("an image has a tag")?;
    let values = json!({
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "trustedCA": headscale.ca_pem()?,
        "serviceCIDRs": [control_plane::SERVICES],
        "podCIDRs": [control_plane::PODS],
        "resolver": {
            "enabled": true,
            "replicas": 1,
            "image": {"repository": resolver_repository, "tag": resolver_tag, "pullPolicy": "Never"},
            "zones": [site::HTTPS_NAME],
            "clusterIP": RESOLVER,
        },
    });
    let file = cluster.dir().join("demo-values.yaml");
    fs::write(&file, serde_saphyr::to_string(&values)?)?;
    command(&format!(
        "helm install tailnet-operator ./chart --namespace {OPERATOR} --values demo-values.yaml --wait"
    ));
    let (chart, file) = (
        workspace.root.join("chart").display().to_string(),
        file.display().to_string(),
    );
    let done = cluster.helm(&[
        "install",
        "tailnet-operator",
        &chart,
        "--namespace",
        OPERATOR,
        "--values",
        &file,
        "--wait",
        "--timeout",
        "120s",
    ])?;
    let text = done.success().context("helm install")?;
    says(
        text.lines()
            .find(|line| line.starts_with("STATUS:"))
            .unwrap_or_default(),
    );
    kubectl(cluster, &["-n", OPERATOR, "get", "pods"])?;
    stanza(text)
}

/// The server block in the chart's notes.
fn stanza(notes: &str) -> Result<String> {
    let first = format!("{}:53 {{", site::HTTPS_NAME);
    let mut lines = notes
        .lines()
        .map(|line| line.strip_prefix("   ").unwrap_or(line))
        .skip_while(|line| *line != first)
        .peekable();
    ensure!(
        lines.peek().is_some(),
        "helm's notes do not show the DNS stanza:\n{notes}"
    );
    let mut block = Vec::new();
    for line in lines {
        block.push(line);
        if line == "}" {
            return Ok(block.join("\n"));
        }
    }
    anyhow::bail!("the DNS stanza in helm's notes does not end:\n{notes}")
}

/// Applies the seeds' manifests as they are, and waits until the egress works.
pub fn connect(workspace: &Workspace, cluster: &Cluster) -> Result<()> {
    command(&format!(
        "kubectl -n {OPERATOR} create secret generic headscale-bootstrap --from-literal=apiKey=\"$(headscale apikeys create)\""
    ));
    says(&cluster.apply(&manifests::bootstrap_key(&cluster.headscale()?.admin_key()?).to_string())?);
    for seed in ["blog-tailnet.yaml", "blog-tailnetegress.yaml"] {
        let path = workspace.root.join("crds/seeds").join(seed);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        command(&format!("kubectl apply -f crds/seeds/{seed}"));
        let done = cluster.kubectl_with_input(&["apply", "-f", "-"], &text)?;
        says(
            done.success()
                .with_context(|| format!("kubectl apply -f crds/seeds/{seed}"))?,
        );
        // Warnings go to standard error.
        says(&done.stderr);
    }
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    kubectl(
        cluster,
        &["wait", "tailnet/demo", "--for=condition=APIKeyReady", &timeout],
    )?;
    kubectl(
        cluster,
        &[
            "-n",
            OPERATOR,
            "wait",
            "tailnetegress/team-a",
            "--for=condition=Ready",
            &timeout,
        ],
    )?;
    kubectl(cluster, &["get", "tailnet,tailnetegress", "-A"])?;
    kubectl(
        cluster,
        &[
            "-n",
            OPERATOR,
            "get",
            "service,networkpolicy",
            "-l",
            "tsunaro.io/owner-name=team-a",
            "-o",
            "name",
        ],
    )?;
    Ok(())
}

/// Puts the stanza into the cluster's Corefile.
pub fn dns(cluster: &Cluster, stanza: &str) -> Result<()> {
    let text = cluster.kubectl(&["-n", "kube-system", "get", "configmap", "coredns", "-o", "json"])?;
    let map: Value = serde_json::from_str(text.success()?).context("ConfigMap kube-system/coredns")?;
    let old = map["data"]["Corefile"]
        .as_str()
        .context("ConfigMap kube-system/coredns has no Corefile")?;
    let patch = json!({"data": {"Corefile": format!("{stanza}\n{old}")}}).to_string();
    command("kubectl -n kube-system edit configmap coredns");
    says(stanza);
    cluster
        .kubectl(&[
            "-n",
            "kube-system",
            "patch",
            "configmap",
            "coredns",
            "--type=merge",
            "-p",
            &patch,
        ])?
        .success()?;
    // A changed ConfigMap reaches a Pod within a minute or so; a change of the Pod makes kubelet look at once.
    says("(the DNS Pods get an annotation, so that kubelet brings them the change at once and not within a minute)");
    for (namespace, selector) in [
        ("kube-system", "k8s-app=kube-dns"),
        (OPERATOR, "app.kubernetes.io/component=resolver"),
    ] {
        cluster
            .kubectl(&[
                "-n",
                namespace,
                "annotate",
                "pod",
                "-l",
                selector,
                "--overwrite",
                "demo/look-now=1",
            ])?
            .success()?;
    }
    let hosts = wait_for("the hosts file has the alias", PATIENCE, || {
        let file = cluster.kubectl(&[
            "-n",
            OPERATOR,
            "get",
            "configmap",
            "tailnet-hosts",
            "-o",
            "jsonpath={.data.hosts}",
        ])?;
        let text = file.success()?.to_owned();
        ensure!(text.contains(site::HTTPS_NAME), "it has: {text}");
        Ok::<_, anyhow::Error>(text)
    })?;
    command(&format!(
        "kubectl -n {OPERATOR} get configmap tailnet-hosts -o jsonpath='{{.data.hosts}}'"
    ));
    says(&hosts);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::stanza;

    #[test]
    fn the_stanza_is_found_in_the_notes() {
        let notes =
            "3. Let …:\n\n   api.site.example.net:53 {\n       errors\n       forward . 10.96.1.2\n   }\n\n   more";
        assert_eq!(
            stanza(notes).unwrap(),
            "api.site.example.net:53 {\n    errors\n    forward . 10.96.1.2\n}"
        );
        assert!(stanza("nothing").is_err());
        assert!(stanza("   api.site.example.net:53 {\n       errors\n").is_err());
    }
}
