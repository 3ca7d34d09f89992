//! The whole node: Pods, DNS, Services, NetworkPolicy, images, and the way to Headscale.

use std::time::Duration;

use tailnet_e2e::images::TESTBOX;
use tailnet_e2e::{Cluster, TestNamespace, wait_for};

/// A Pod of the toolbox; `command` are its arguments.
fn pod(namespace: &TestNamespace<'_>, name: &str, command: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: {TESTBOX}
    imagePullPolicy: Never
    args: {command}
    securityContext:
      runAsNonRoot: true
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {{drop: [ALL]}}
      seccompProfile: {{type: RuntimeDefault}}
{more}
---
"
    )
}

fn wait_ready(cluster: &Cluster, namespace: &TestNamespace<'_>) {
    let waited = cluster
        .kubectl(&[
            "wait",
            "--for=condition=Ready",
            "pod",
            "--all",
            "-n",
            namespace.name(),
            "--timeout=60s",
        ])
        .unwrap();
    waited.success().unwrap();
}

fn get(cluster: &Cluster, namespace: &TestNamespace<'_>, url: &str) -> anyhow::Result<String> {
    cluster.pod_exec(namespace.name(), "client", &["curl", "-sS", "--max-time", "5", url])
}

#[test]
fn services_names_and_network_policies_work() {
    let cluster = Cluster::shared();
    super::print_figures(cluster);
    let namespace = cluster.namespace("node-basics").unwrap();
    cluster
        .kubectl(&[
            "label",
            "namespace",
            namespace.name(),
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .unwrap()
        .success()
        .unwrap();
    let service = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: {namespace}}}, spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}}}\n"
    );
    let objects = pod(&namespace, "web", "[http, '8080']", "") + &pod(&namespace, "client", "[pause]", "") + &service;
    cluster.apply(&objects).unwrap();
    wait_ready(cluster, &namespace);
    let answer = wait_for("the Service answers", Duration::from_secs(20), || {
        get(cluster, &namespace, "http://web/hello")
    })
    .unwrap();
    assert!(answer.contains("GET /hello web"), "{answer}");
    let node = cluster
        .pod_exec(
            namespace.name(),
            "client",
            &["getent", "hosts", "kubernetes.default.svc.cluster.local"],
        )
        .unwrap();
    assert!(node.starts_with("10.96.0.1"), "{node}");
    assert_eq!(
        cluster.pod_exec(namespace.name(), "client", &["id", "-u"]).unwrap(),
        "65532"
    );

    let policy = |from: &str| {
        format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: web, namespace: {namespace}}}, spec: {{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Ingress], ingress: {from}}}}}"
        )
    };
    cluster.apply(&policy("[]")).unwrap();
    wait_for("the policy refuses", Duration::from_secs(15), || {
        match get(cluster, &namespace, "http://web/") {
            Ok(answer) => Err(answer),
            Err(_) => Ok(()),
        }
    })
    .unwrap();
    cluster
        .apply(&policy("[{from: [{podSelector: {matchLabels: {app: client}}}]}]"))
        .unwrap();
    wait_for("the policy lets the client in", Duration::from_secs(15), || {
        get(cluster, &namespace, "http://web/")
    })
    .unwrap();
    cluster
        .kubectl(&[
            "label",
            "pod",
            "client",
            "-n",
            namespace.name(),
            "--overwrite",
            "app=other",
        ])
        .unwrap()
        .success()
        .unwrap();
    wait_for(
        "the policy refuses the relabelled client",
        Duration::from_secs(15),
        || match get(cluster, &namespace, "http://web/") {
            Ok(answer) => Err(answer),
            Err(_) => Ok(()),
        },
    )
    .unwrap();
}

#[test]
fn a_pod_reaches_headscale_by_its_name_and_certificate() {
    let cluster = Cluster::shared();
    let headscale = cluster.headscale().unwrap();
    let namespace = cluster.namespace("node-headscale").unwrap();
    let name = namespace.name();
    let ca = headscale.ca_file().display().to_string();
    cluster
        .kubectl(&[
            "create",
            "configmap",
            "ca",
            "-n",
            name,
            &format!("--from-file=ca.crt={ca}"),
        ])
        .unwrap()
        .success()
        .unwrap();
    let mount = "    volumeMounts: [{name: ca, mountPath: /ca}]\n  volumes: [{name: ca, configMap: {name: ca}}]";
    cluster.apply(&pod(&namespace, "client", "[pause]", mount)).unwrap();
    wait_ready(cluster, &namespace);
    let url = format!("{}/health", headscale.url());
    let answer = cluster
        .pod_exec(
            name,
            "client",
            &["curl", "-sS", "--max-time", "5", "--cacert", "/ca/ca.crt", &url],
        )
        .unwrap();
    assert_eq!(answer, r#"{"status":"pass"}"#);
    let untrusted = cluster
        .pod_exec_output(name, "client", &["curl", "-sS", "--max-time", "5", &url])
        .unwrap();
    assert!(
        untrusted.failure().unwrap().contains("certificate"),
        "{}",
        untrusted.stderr
    );
}

#[test]
fn an_archive_becomes_a_running_image() {
    use tailnet_e2e::oci::{self, Content, Image};
    let cluster = Cluster::shared();
    let namespace = cluster.namespace("node-image").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("own.tar");
    let sleep = tailnet_e2e::prerequisites::find_program("sleep").unwrap();
    let mut files = std::collections::BTreeMap::from([("/bin/sleep".to_owned(), Content::Copy(sleep.clone()))]);
    let libraries = tailnet_e2e::command::run("ldd", &[&sleep.display().to_string()]).unwrap();
    for path in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        files.insert(path.to_owned(), Content::Copy(path.into()));
    }
    let image = Image {
        name: "docker.io/tsunaro/own:7".to_owned(),
        entrypoint: vec!["/bin/sleep".into(), "3600".into()],
        user: "7:7".into(),
        files,
        ..Image::default()
    };
    oci::write(&image, &archive).unwrap();
    cluster.load_image(&archive).unwrap();
    let name = namespace.name();
    cluster
        .kubectl(&[
            "run",
            "own",
            "-n",
            name,
            "--image=docker.io/tsunaro/own:7",
            "--image-pull-policy=Never",
        ])
        .unwrap()
        .success()
        .unwrap();
    wait_ready(cluster, &namespace);
    std::fs::write(&archive, "no archive").unwrap();
    assert!(cluster.load_image(&archive).is_err());
}
