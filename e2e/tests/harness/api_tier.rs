//! The API-only cluster: what the helpers of tests do.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::Value;
use tailnet_e2e::{Cluster, Exit, wait_for};

const WIDGETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.tsunaro.io}
spec:
  group: tsunaro.io
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, maximum: 9}}}}}}
";

fn widget(namespace: &str, size: u8) -> String {
    format!(
        "{{apiVersion: tsunaro.io/v1alpha1, kind: Widget, metadata: {{name: w, namespace: {namespace}}}, spec: {{size: {size}}}}}"
    )
}

#[test]
fn figures_and_tools() {
    let cluster = Cluster::shared_api();
    super::print_figures(cluster);
    let version = cluster.kubectl(&["version"]).unwrap();
    assert!(
        version.success().unwrap().contains("Server Version: v1.37.2"),
        "{}",
        version.stdout
    );
    assert!(
        cluster
            .helm(&["version", "--short"])
            .unwrap()
            .success()
            .unwrap()
            .starts_with("v4.3.1")
    );
    assert_eq!(
        cluster
            .helm(&["list", "--all-namespaces", "--short"])
            .unwrap()
            .success()
            .unwrap(),
        ""
    );
    let again = Cluster::find(cluster.name()).unwrap();
    assert_eq!(again.state(), cluster.state());
    assert!(
        Cluster::find("no-such-cluster")
            .unwrap_err()
            .to_string()
            .contains(cluster.name()),
        "the error names what is running"
    );
}

#[test]
fn writes_on_our_group_are_in_the_audit_log_with_their_objects() {
    let cluster = Cluster::shared_api();
    let namespace = cluster.namespace("audit").unwrap();
    cluster.apply(WIDGETS).unwrap();
    wait_for("the kind is served", Duration::from_secs(20), || {
        cluster.apply(&widget(namespace.name(), 3)).map(drop)
    })
    .unwrap();
    let refused = cluster.apply_refused(&widget(namespace.name(), 10)).unwrap();
    assert!(refused.contains("spec.size"), "{refused}");
    let events: Vec<Value> = wait_for("both requests are logged", Duration::from_secs(10), || {
        let events: Vec<_> = cluster
            .audit_log()?
            .into_iter()
            .filter(|event| event["objectRef"]["namespace"] == namespace.name())
            .collect();
        if events.iter().any(|event| event["responseStatus"]["code"] == 422) {
            Ok(events)
        } else {
            Err(anyhow::anyhow!("{} events", events.len()))
        }
    })
    .unwrap();
    let created = events
        .iter()
        .find(|event| event["verb"] == "create" && event["responseStatus"]["code"] == 201)
        .expect("the accepted write");
    assert_eq!(created["level"], "Request");
    assert_eq!(created["requestObject"]["spec"]["size"], 3);
    assert!(created["requestObject"]["kind"] == "Widget" && created["user"]["username"] == "admin");
}

#[tokio::test]
async fn clients_of_users_have_their_own_rights_only() {
    let cluster = Cluster::shared_api();
    let namespace = cluster.namespace("users").unwrap();
    let admin: Api<ConfigMap> = Api::namespaced(cluster.client().unwrap(), namespace.name());
    admin
        .create(
            &PostParams::default(),
            &serde_json::from_value(serde_json::json!({"metadata": {"name": "a"}})).unwrap(),
        )
        .await
        .unwrap();
    let alice = Cluster::client_of(cluster.user_kubeconfig("alice", Some("team-a")).unwrap()).unwrap();
    let alice: Api<ConfigMap> = Api::namespaced(alice, namespace.name());
    let error = alice.get("a").await.unwrap_err().to_string();
    assert!(
        error.contains("\"alice\" cannot get resource \"configmaps\""),
        "{error}"
    );
    let name = namespace.name();
    cluster
        .kubectl(&[
            "create",
            "rolebinding",
            "r",
            "-n",
            name,
            "--clusterrole=view",
            "--group=team-a",
        ])
        .unwrap()
        .success()
        .unwrap();
    alice.get("a").await.unwrap();

    cluster
        .kubectl(&["create", "serviceaccount", "robot", "-n", name])
        .unwrap()
        .success()
        .unwrap();
    let robot = Cluster::client_of(cluster.service_account_kubeconfig(name, "robot").unwrap()).unwrap();
    let error = Api::<Namespace>::all(robot)
        .list(&ListParams::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("system:serviceaccount:{name}:robot")),
        "{error}"
    );
}

#[test]
fn a_program_runs_inside_the_box_and_on_the_host() {
    let cluster = Cluster::shared_api();
    let shell = std::path::Path::new("sh");
    let inside = cluster
        .spawn(
            "shell-inside",
            shell,
            &["-c", "ip -brief addr; echo $GREETING; exec sleep 60"],
            &[("GREETING", "hello")],
        )
        .unwrap();
    let log = wait_for("the shell has spoken", Duration::from_secs(5), || {
        if inside.log().contains("hello") {
            Ok(inside.log())
        } else {
            Err("silence")
        }
    })
    .unwrap();
    assert!(log.contains(&cluster.node_address()), "{log}");
    assert!(inside.is_running());
    assert_eq!(inside.kill().unwrap(), Exit::Signal(9));
    assert!(!inside.is_running());

    let host = cluster
        .spawn_on_host("shell-host", shell, &["-c", "ip -brief addr; exit 3"], &[])
        .unwrap();
    assert_eq!(host.wait(Duration::from_secs(5)).unwrap(), Exit::Code(3));
    assert!(host.log().contains(&cluster.state().link()), "{}", host.log());
    let missing = cluster
        .spawn("missing", std::path::Path::new("/no/such/program"), &[], &[])
        .unwrap_err();
    assert!(format!("{missing:#}").contains("/no/such/program"), "{missing:#}");

    // A server on the host is reached from the box at the host's address.
    let listener = std::net::TcpListener::bind((cluster.host_address(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 3<>/dev/tcp/{}/{port}", cluster.host_address());
    cluster.inside().check(None, &["bash", "-c", &script]).unwrap();
}

#[test]
fn nothing_leads_out_of_the_box() {
    let cluster = Cluster::shared_api();
    // An address of this machine's own network that is not the link.
    let routes = cluster.inside().check(None, &["ip", "route"]).unwrap();
    assert!(!routes.contains("default"), "{routes}");
    let tried = cluster
        .inside()
        .run(&["bash", "-c", "exec 3<>/dev/tcp/192.0.2.10/5432"])
        .unwrap();
    assert!(tried.stderr.contains("Network is unreachable"), "{}", tried.stderr);
}

#[tokio::test]
async fn faults_of_the_servers() {
    let cluster = Cluster::shared_api();
    let headscale = cluster.headscale().unwrap();
    let client = headscale.client().unwrap();
    assert_eq!(client.nodes().await.unwrap().len(), 0);
    headscale.stop().unwrap();
    assert!(client.nodes().await.is_err());
    headscale.start().unwrap();
    client.nodes().await.unwrap();
    headscale.kill().unwrap();
    headscale.start().unwrap();
    client.nodes().await.unwrap();
    let expired = headscale.new_api_key("1s").unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(headscale.client_with_key(&expired).unwrap().nodes().await.is_err());
    // The name resolves in the box and its certificate is good for it.
    let (ca, url) = (
        headscale.ca_file().display().to_string(),
        format!("{}/health", headscale.url()),
    );
    assert_eq!(
        cluster
            .inside()
            .check(None, &["curl", "-sS", "--cacert", &ca, &url])
            .unwrap(),
        r#"{"status":"pass"}"#
    );
}
