//! The real binary on real files.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod support;

use support::{folder, kubectl_tailnet, lint, run, text};

const GOOD: &str = "\
apiVersion: tsunaro.io/v1alpha1
kind: Tailnet
metadata:
  name: demo
spec:
  server: https://control.example.net
  apiSecretRef: { name: headscale-bootstrap }
---
apiVersion: tsunaro.io/v1alpha1
kind: TailnetEgress
metadata: { name: team-a, namespace: tailnet-system }
spec:
  tailnetRef: { name: demo }
  consumerNamespaces: [team-a]
  targets:
    - name: remote-db
      address: 192.0.2.10
      port: 5432
";

const BAD: &str = "\
# a comment first
apiVersion: tsunaro.io/v1alpha1
kind: TailnetEgress
metadata:
  name: team-b
  namespace: tailnet-system
spec:
  tailnetRef: { name: demo }
  consumerNamespaces: [team-b]
  consumerNamespace: [team-c]
  targets:
    - name: remote-db
      address: 10.0.0.300
      port: 5432
";

#[test]
fn sound_files_pass_in_silence() {
    let directory = folder(&[("all.yaml", GOOD)]);
    let output = lint(directory.path(), &["all.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("2 objects checked: 0 denied, 0 warnings"));
}

#[test]
fn findings_name_file_line_object_field_and_rule() {
    let directory = folder(&[
        ("a/good.yaml", GOOD),
        ("b/bad.yml", BAD),
        ("b/notes.txt", BAD),
        (".git/bad.yaml", BAD),
    ]);
    let output = lint(directory.path(), &["."]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(
        lines,
        [
            "./b/bad.yml:10: deny: TailnetEgress tailnet-system/team-b: spec.consumerNamespace: Invalid value: \"consumerNamespace\": \
             is not a field here: did you mean consumerNamespaces? [TN007]",
            "./b/bad.yml:13: deny: TailnetEgress tailnet-system/team-b: spec.targets[0].address: Invalid value: \"10.0.0.300\": \
             is not an IPv4 or IPv6 address or a DNS name [TN203]",
            "./b/bad.yml:12: deny: TailnetEgress tailnet-system/team-b: spec.targets[0].name: Duplicate value: \"remote-db\": \
             is the name of a Service of TailnetEgress tailnet-system/team-a; choose another [TN202]",
        ],
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn json_is_one_array_with_nine_keys() {
    let directory = folder(&[("bad.json", "")]);
    let object: serde_json::Value = serde_saphyr::from_str(BAD).unwrap();
    std::fs::write(
        directory.path().join("bad.json"),
        serde_json::to_string_pretty(&object).unwrap(),
    )
    .unwrap();
    let output = lint(directory.path(), &["-o", "json", "bad.json"]);
    assert_eq!(output.status.code(), Some(1));
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let address = findings.iter().find(|finding| finding["rule"] == "TN203").unwrap();
    let keys: Vec<&str> = address.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "file",
            "line",
            "kind",
            "namespace",
            "name",
            "rule",
            "severity",
            "field",
            "message"
        ]
    );
    assert_eq!(address["severity"], "deny");
    assert_eq!(address["field"], "spec.targets[0].address");
    assert_eq!(address["kind"], "TailnetEgress");
    let line: usize = address["line"].as_u64().unwrap().try_into().unwrap();
    let written = std::fs::read_to_string(directory.path().join("bad.json")).unwrap();
    assert!(written.lines().nth(line - 1).unwrap().contains("10.0.0.300"));
    // No finding is still an array.
    std::fs::write(directory.path().join("good.yaml"), GOOD).unwrap();
    assert_eq!(
        text(&lint(directory.path(), &["-o", "json", "good.yaml"]).stdout).trim(),
        "[]"
    );
}

#[test]
fn standard_input_and_lists_are_read() {
    let list = "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: tsunaro.io/v1alpha1\n    kind: TailnetSite\n    metadata: { name: lab }\n    spec:\n      tailnetRef: { name: demo }\n      prefixes:\n        - 10.0.0.1/8\n";
    let directory = folder(&[]);
    let output = run("lint", directory.path(), &["-"], list.as_bytes());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = text(&output.stdout);
    assert!(
        found.contains("-:10: deny: TailnetSite lab: spec.prefixes[0]: Invalid value: \"10.0.0.1/8\""),
        "{found}"
    );
    assert!(
        found.contains("-:8: warn: TailnetSite lab: spec.tailnetRef.name: Not found: \"demo\""),
        "{found}"
    );
}

#[test]
fn the_operator_namespace_is_a_flag() {
    let directory = folder(&[("all.yaml", GOOD)]);
    let output = lint(directory.path(), &["--operator-namespace", "vpn", "all.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("all.yaml:11: deny"), "{output:?}");
    assert!(text(&output.stdout).contains("the operator namespace \"vpn\""));
}

#[test]
fn objects_without_namespace_get_the_one_of_the_flag() {
    let directory = folder(&[("all.yaml", &GOOD.replace(", namespace: tailnet-system", ""))]);
    assert_eq!(lint(directory.path(), &["all.yaml"]).status.code(), Some(1));
    assert_eq!(
        lint(directory.path(), &["-n", "tailnet-system", "all.yaml"])
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn cluster_ranges_give_warnings_that_do_not_fail() {
    let directory = folder(&[("all.yaml", &GOOD.replace("192.0.2.10", "10.96.0.10"))]);
    let output = lint(directory.path(), &["--service-cidr", "10.96.0.0/12", "all.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains("all.yaml:17: warn: TailnetEgress"),
        "{output:?}"
    );
}

#[test]
fn what_cannot_be_read_is_an_error_and_not_a_pass() {
    let directory = folder(&[
        ("broken.yaml", "apiVersion: tsunaro.io/v1alpha1\nkind: [\n"),
        ("foreign.yaml", "a: [\n"),
        (
            "future.yaml",
            "apiVersion: tsunaro.io/v2\nkind: TailnetSite\nspec: {}\n",
        ),
    ]);
    let output = lint(directory.path(), &["broken.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("broken.yaml"), "{output:?}");
    let output = lint(directory.path(), &["missing.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!text(&output.stderr).contains("objects checked"), "{output:?}");
    assert_eq!(lint(directory.path(), &["future.yaml"]).status.code(), Some(2));
    assert_eq!(lint(directory.path(), &["foreign.yaml"]).status.code(), Some(0));
    assert_eq!(lint(directory.path(), &[]).status.code(), Some(2));
}

#[test]
fn an_object_that_stands_twice_is_said() {
    let directory = folder(&[("a.yaml", GOOD), ("b.yaml", GOOD)]);
    let output = lint(directory.path(), &["."]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text(&output.stderr).contains("note: Tailnet demo stands in ./a.yaml:1 and again in ./b.yaml:1"),
        "{output:?}"
    );
}

#[test]
fn rules_are_explained() {
    let directory = folder(&[]);
    let output = lint(directory.path(), &["--explain", "tn403"]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stdout);
    assert!(said.starts_with("TN403"), "{said}");
    for part in ["Wrong:", "Fix:", "security rule"] {
        assert!(said.contains(part), "{said}");
    }
    let output = lint(directory.path(), &["--explain", "TN999"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("there is no rule"));
}

#[test]
fn help_and_version_are_for_strangers() {
    let run = |arguments: &[&str]| kubectl_tailnet().args(arguments).output().unwrap();
    let help = run(&["lint", "--help"]);
    assert!(help.status.success());
    for word in ["Exit status", "--explain", "kustomize build", "operator-namespace"] {
        assert!(text(&help.stdout).contains(word), "{word}");
    }
    assert!(text(&run(&["--version"]).stdout).contains("commit"));
}

#[test]
fn base_documents_in_files_are_checked_at_their_lines_and_with_the_tailnets() {
    let policy = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: tailnet-policy
  namespace: tailnet-system
  labels: { tsunaro.io/policy: base }
data:
  policy.hujson: |
    {\"grants\": [{\"src\": [\"group:nobody\", \"tag:egress-team-a\"], \"dst\": [\"*\"], \"ip\": [\"*\"]}]}
";
    let with_policy = GOOD.replace(
        "  apiSecretRef: { name: headscale-bootstrap }\n",
        "  apiSecretRef: { name: headscale-bootstrap }\n  policy: { baseConfigMap: tailnet-policy }\n",
    );
    let directory = folder(&[("all.yaml", &with_policy), ("policy.yaml", policy)]);
    let output = lint(directory.path(), &["."]);
    let found = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{found}");
    let denied: Vec<&str> = found.lines().filter(|line| line.contains("policy.yaml:8")).collect();
    assert_eq!(
        denied.len(),
        1,
        "the tag is an egress's, the group is nobody's: {found}"
    );
    assert!(
        denied[0].contains("group:nobody") && denied[0].contains("[TN106]"),
        "{found}"
    );
    let on_tailnet = found
        .lines()
        .any(|line| line.contains("all.yaml") && line.contains("[TN106]"));
    assert!(on_tailnet, "{found}");
    // What is not among the files may be elsewhere.
    let alone = folder(&[("all.yaml", &with_policy)]);
    let output = lint(alone.path(), &["."]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(!text(&output.stdout).contains("[TN106]"), "{}", text(&output.stdout));
}

#[test]
fn the_annotation_that_skips_rules_skips_nothing_offline() {
    let asks = BAD.replace(
        "  namespace: tailnet-system\n",
        "  namespace: tailnet-system\n  annotations: { tsunaro.io/validation: disabled }\n",
    );
    let directory = folder(&[("bad.yaml", &asks)]);
    let output = lint(directory.path(), &["."]);
    let found = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{found}");
    assert!(found.contains("[TN203]") && found.contains("[TN008]"), "{found}");
}
