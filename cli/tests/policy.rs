//! `policy` with the real binary on real files.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod support;

use std::path::Path;

const FILES: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: { name: tailnet-policy, namespace: tailnet-system }
data:
  policy.hujson: |
    {
      "groups": { "group:ops": ["ann@"] }, // people
      "grants": [
        { "src": ["group:ops"], "dst": ["*"], "ip": ["tcp:22"] },
      ],
    }
---
apiVersion: tsunaro.io/v1alpha1
kind: Tailnet
metadata: { name: demo }
spec:
  server: https://control.example.net
  apiSecretRef: { name: headscale-bootstrap }
  policy: { baseConfigMap: tailnet-policy, routeApprovers: ["tag:router"] }
---
apiVersion: tsunaro.io/v1alpha1
kind: TailnetEgress
metadata: { name: team-a, namespace: tailnet-system }
spec:
  tailnetRef: { name: demo }
  consumerNamespaces: [team-a]
  targets: [{ name: remote-db, address: 192.0.2.10, port: 5432 }]
"#;

fn policy(directory: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = support::run("policy", directory, arguments, b"");
    let text = |bytes: &[u8]| support::text(bytes).to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn files() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("all.yaml"), FILES).unwrap();
    directory
}

#[test]
fn render_and_diff_from_files() {
    let directory = files();
    let (code, text, errors) = policy(directory.path(), &["render", "all.yaml"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(
        text.contains("// people") && text.contains("// from TailnetEgress tailnet-system/team-a"),
        "{text}"
    );
    assert!(
        text.contains(r#"{ "src": ["tag:egress-team-a"], "dst": ["192.0.2.10"], "ip": ["tcp:5432"] }"#),
        "{text}"
    );
    std::fs::write(directory.path().join("live.hujson"), &text).unwrap();
    let (code, text, _) = policy(directory.path(), &["diff", "--live", "live.hujson", "all.yaml"]);
    assert_eq!((code, text.as_str()), (Some(0), ""));
    std::fs::write(directory.path().join("live.hujson"), "{ \"grants\": [] }\n").unwrap();
    let (code, text, _) = policy(directory.path(), &["diff", "--live", "live.hujson", "all.yaml"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("--- live\n+++ rendered\n") && text.contains("-{ \"grants\": [] }"),
        "{text}"
    );
    let (code, _, errors) = policy(directory.path(), &["diff", "all.yaml"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("--live"), "{errors}");
}

#[test]
fn why_names_object_and_base_line() {
    let directory = files();
    let ask = |src: &str, dst: &str| policy(directory.path(), &["why", src, dst, "all.yaml"]);
    let (code, text, _) = ask("tag:egress-team-a", "192.0.2.10:5432");
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("generated for TailnetEgress tailnet-system/team-a"),
        "{text}"
    );
    let (code, text, _) = ask("ann@", "192.0.2.10:22");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("written in the base document, line 4 of it"), "{text}");
    let (code, text, _) = ask("tag:egress-team-a", "192.0.2.10:22");
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with("refused: no rule lets tag:egress-team-a reach port 22 of 192.0.2.10"),
        "{text}"
    );
    let (code, _, errors) = ask("ann@", "192.0.2.10");
    assert_eq!(code, Some(2));
    assert!(errors.contains("no destination with a port"), "{errors}");
    std::fs::write(directory.path().join("live.hujson"), "{}").unwrap();
    let (code, text, _) = policy(directory.path(), &["why", "a@", "192.0.2.1:1", "--live", "live.hujson"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("neither acls nor grants"), "{text}");
}

#[test]
fn what_cannot_be_rendered_is_told() {
    let directory = files();
    let (code, _, errors) = policy(directory.path(), &["render", "--tailnet", "other", "all.yaml"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("Tailnet other has no spec.policy"), "{errors}");
    let (code, _, errors) = policy(directory.path(), &["render", "nothing.yaml"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("nothing.yaml"), "{errors}");
    std::fs::write(
        directory.path().join("all.yaml"),
        FILES.replace("group:ops\": [\"ann@\"] },", "group:ops\": [\"ann@\"] }"),
    )
    .unwrap();
    let (code, _, errors) = policy(directory.path(), &["render", "all.yaml"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("is no HuJSON: line 2"), "{errors}");
}

#[test]
fn an_acknowledged_posture_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let base = "    {\n      // nothing is allowed or denied\n    }\n";
    let start = FILES.find("    {\n").unwrap();
    let end = FILES
        .find("---\napiVersion: tsunaro.io/v1alpha1\nkind: Tailnet\n")
        .unwrap();
    let egress = FILES.rfind("---\n").unwrap();
    let files = format!("{}{base}{}", &FILES[..start], &FILES[end..egress]);
    let write = |text: &str| std::fs::write(directory.path().join("all.yaml"), text).unwrap();
    write(&files);
    std::fs::write(directory.path().join("live.hujson"), "{ \"grants\": [] }\n").unwrap();
    let ask = |command: &str| policy(directory.path(), &[command, "--live", "live.hujson", "all.yaml"]);
    let (code, closed, errors) = ask("render");
    assert_eq!(code, Some(0), "{errors}");
    assert!(closed.contains("\"grants\": ["), "{closed}");
    let sha256 = errors.split("acknowledgePosture: ").nth(1).unwrap();
    let sha256 = sha256.split(' ').next().unwrap().to_owned();
    write(&files.replace("policy: { ", &format!("policy: {{ acknowledgePosture: {sha256}, ")));
    let (code, open, errors) = ask("render");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(!open.contains("grants"), "{open}");
    let (code, difference, _) = ask("diff");
    assert_eq!(code, Some(1));
    assert!(!difference.contains("+  \"grants\""), "{difference}");
    let why = ["why", "a@", "192.0.2.1:1", "--live", "live.hujson", "all.yaml"];
    let (code, text, _) = policy(directory.path(), &why);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("neither acls nor grants"), "{text}");
}

#[test]
fn a_live_policy_that_cannot_be_read_is_no_answer() {
    let directory = files();
    std::fs::write(directory.path().join("live.hujson"), "{ \"grants\": [ }").unwrap();
    for command in ["render", "diff"] {
        let (code, text, errors) = policy(directory.path(), &[command, "--live", "live.hujson", "all.yaml"]);
        assert_eq!((code, text.as_str()), (Some(2), ""));
        assert!(
            errors.contains("the live policy cannot be read (line 1, column 15"),
            "{errors}"
        );
    }
}

#[test]
fn what_the_rules_refuse_has_no_entries() {
    let directory = files();
    let entry = r#""dst": ["192.0.2.10"]"#;
    let render = |more: &[&str]| {
        let (code, text, errors) = policy(directory.path(), &[&["render", "all.yaml"], more].concat());
        assert_eq!(code, Some(0), "{errors}");
        text
    };
    assert!(render(&[]).contains(entry));
    // Policies of the organisation: named, and among the files.
    let rule = "validations:\n  - expression: object.metadata.?labels[?'ok'].hasValue()\n";
    std::fs::write(directory.path().join("ok.txt"), rule).unwrap();
    assert!(!render(&["--policies", "ok.txt"]).contains(entry));
    let config_map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: ok, namespace: NAMESPACE, labels: {{ tsunaro.io/admission-policy: \"true\" }} }}\ndata:\n  ok.yaml: |\n    {}",
        rule.replace('\n', "\n    ")
    );
    let add = |namespace: &str| {
        let text = format!("{FILES}---\n{}", config_map.replace("NAMESPACE", namespace));
        std::fs::write(directory.path().join("all.yaml"), text).unwrap();
    };
    add("elsewhere");
    assert!(render(&[]).contains(entry), "it is no policy of this operator");
    add("tailnet-system");
    assert!(!render(&[]).contains(entry));
    // One that cannot be used refuses everything in the operator; here it is an error.
    std::fs::write(directory.path().join("ok.txt"), rule.replace("hasValue", "hasValu")).unwrap();
    let (code, _, errors) = policy(directory.path(), &["render", "all.yaml", "--policies", "ok.txt"]);
    assert_eq!(code, Some(2));
    assert!(
        errors.contains("ok.txt") && errors.contains("cannot be used"),
        "{errors}"
    );
}
