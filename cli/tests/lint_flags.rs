//! Flags of `lint` that say where the files will be applied, and what many files cost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod support;

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use support::{folder, lint, text};

fn egress(name: &str, address: &str, alias: &str) -> String {
    format!(
        "apiVersion: tsunaro.io/v1alpha1\nkind: TailnetEgress\nmetadata: {{ name: {name}, namespace: tailnet-system }}\nspec:\n  \
         tailnetRef: {{ name: demo }}\n  consumerNamespaces: [team-a]\n  targets:\n    - name: {name}-db\n      address: {address}\n      \
         port: 5432\n      aliases: [{alias}]\n"
    )
}

const TAILNET: &str = "\
apiVersion: tsunaro.io/v1alpha1
kind: Tailnet
metadata: { name: demo }
spec:
  server: https://control.example.net
  apiSecretRef: { name: headscale-bootstrap }
";

#[test]
fn the_cluster_domain_is_the_flags() {
    let directory = folder(&[
        ("tailnet.yaml", TAILNET),
        ("egress.yaml", &egress("a", "192.0.2.10", "db.k8s.example.com")),
    ]);
    let output = lint(directory.path(), &["."]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), ""));
    let output = lint(directory.path(), &["--cluster-domain", "k8s.example.com", "."]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("the cluster's own domain \"k8s.example.com\"")
            && text(&output.stdout).contains("[TN206]"),
        "{output:?}"
    );
}

#[test]
fn pod_ranges_give_warnings() {
    let directory = folder(&[
        ("tailnet.yaml", TAILNET),
        ("egress.yaml", &egress("a", "10.244.3.4", "db.example.com")),
    ]);
    let output = lint(directory.path(), &["."]);
    assert_eq!(text(&output.stdout), "", "nothing is known of the cluster");
    // May be repeated.
    let output = lint(
        directory.path(),
        &["--pod-cidr", "fd00:244::/56", "--pod-cidr", "10.244.0.0/16", "."],
    );
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains(": warn: ") && text(&output.stdout).contains("[TN203]"),
        "{output:?}"
    );
    let output = lint(directory.path(), &["--pod-cidr", "10.244.0.0/33", "."]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Whether somebody has connected.
fn was_asked(listener: &TcpListener) -> bool {
    listener.accept().is_ok()
}

#[test]
fn the_context_decides_which_cluster_is_read() {
    let listeners = [(); 2].map(|()| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let [first, second] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: one\nusers: [{{name: u, user: {{}}}}]\nclusters:\n- {{name: one, cluster: {{server: 'http://{first}'}}}}\n- {{name: two, \
         cluster: {{server: 'http://{second}'}}}}\ncontexts:\n- {{name: one, context: {{cluster: one, user: u}}}}\n- {{name: two, context: {{cluster: two, user: u}}}}\n"
    );
    let directory = folder(&[("tailnet.yaml", TAILNET), ("config", &kubeconfig)]);
    let read = |more: &[&str]| {
        let arguments = [
            &["--cluster", "--kubeconfig", "config", "--timeout", "1"],
            more,
            &["tailnet.yaml"],
        ]
        .concat();
        let output = lint(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "nobody answers: {output:?}");
        (listeners.each_ref().map(was_asked), text(&output.stderr).to_owned())
    };
    assert_eq!(read(&[]).0, [true, false]);
    // What is still in the queue of the first is not the next one's.
    while was_asked(&listeners[0]) {}
    assert_eq!(read(&["--context", "two"]).0, [false, true]);
    while was_asked(&listeners[1]) {}
    let (asked, said) = read(&["--context", "three"]);
    assert_eq!(asked, [false, false]);
    assert!(said.contains("three"), "{said}");
    let output = lint(directory.path(), &["--context", "two", "tailnet.yaml"]);
    assert_eq!(output.status.code(), Some(2), "it asks for --cluster: {output:?}");
}

/// How long files take in which each object is a rival of none.
fn time_of(directory: &Path, files: usize) -> Duration {
    let started = Instant::now();
    let output = lint(directory, &["."]);
    let took = started.elapsed();
    let summary = format!("{} objects checked: 0 denied, 0 warnings", files + 1);
    assert!(text(&output.stderr).contains(&summary), "{}", text(&output.stderr));
    println!("{files} files in {took:?}");
    took
}

#[test]
fn many_files_grow_with_their_number() {
    let folder_of = |files: usize| {
        let directory = folder(&[("tailnet.yaml", TAILNET)]);
        for at in 0..files {
            let egress = egress(&format!("e-{at}"), "192.0.2.10", &format!("db-{at}.example.com"));
            std::fs::write(directory.path().join(format!("e-{at}.yaml")), egress).unwrap();
        }
        directory
    };
    let (few, many) = (folder_of(250), folder_of(1000));
    let ratios: Vec<f64> = (0..6)
        .map(|_| time_of(many.path(), 1000).as_secs_f64() / time_of(few.path(), 250).as_secs_f64())
        .collect();
    assert!(ratios.iter().any(|ratio| *ratio <= 6.0), "{ratios:?}");
}
