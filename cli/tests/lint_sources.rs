//! What lint reads besides plain files, and how it says what it found: templates, lists, anchors, old files, policies,
//! SARIF, annotations.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod support;

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{folder, lint, text};

const SITE: &str = "\
apiVersion: tsunaro.io/v1alpha1
kind: TailnetSite
metadata:
  name: lab
spec:
  tailnetRef: { name: demo }
  prefixes: [10.20.0.0/16]
  advertisedBy: [tag:router]
  owner: network
";

/// Lines of findings with these words, without warnings about a Tailnet that the files do not have.
fn found(output: &Output) -> Vec<String> {
    text(&output.stdout)
        .lines()
        .filter(|line| !line.contains("[TN001]"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn templates_are_no_yaml_and_it_is_said_what_to_do() {
    let template = "apiVersion: tsunaro.io/v1alpha1\nkind: TailnetSite\nmetadata:\n  name: {{ .Values.name }}\n{{- if .Values.x }}\nspec: {}\n{{- end }}\n";
    let directory = folder(&[
        ("chart/Chart.yaml", "name: c\n"),
        ("chart/templates/sites/site.yaml", template),
        ("site.yaml", SITE),
    ]);
    let output = lint(directory.path(), &["."]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text(&output.stderr).contains("of the chart in") && text(&output.stderr).contains("helm template"),
        "{output:?}"
    );
    // Whoever names the file wants it checked.
    let output = lint(directory.path(), &["chart/templates/sites/site.yaml"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        text(&output.stderr).contains("site.yaml:4: this is a template and not YAML"),
        "{output:?}"
    );
    // Outside a chart nobody knows what the template is for.
    let directory = folder(&[("a.yaml", template)]);
    assert_eq!(lint(directory.path(), &["."]).status.code(), Some(2));
}

#[test]
fn what_helm_and_kustomize_write_is_read() {
    let stream = format!(
        "---\n# Source: chart/templates/empty.yaml\n---\n# Source: chart/templates/site.yaml\n{SITE}---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: x}}\n---\n---\napiVersion: tsunaro.io/v1alpha1\nkind: TailnetSite\nmetadata: {{ name: bad }}\nspec:\n  tailnetRef: {{ name: demo }}\n  prefixes:\n    - 10.30.0.1/16\n  advertisedBy: [tag:router]\n"
    );
    let directory = folder(&[("all.yaml", &stream)]);
    let output = lint(directory.path(), &["all.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = 1 + stream.lines().position(|line| line.contains("10.30.0.1/16")).unwrap();
    assert!(
        found(&output)
            .iter()
            .any(|text| text.starts_with(&format!("all.yaml:{line}: deny: TailnetSite bad: spec.prefixes[0]"))),
        "{output:?}"
    );
    assert!(text(&output.stderr).contains("2 objects checked"), "{output:?}");
}

#[test]
fn lists_of_a_kind_anchors_and_merges_are_read_in_their_lines() {
    let list = "apiVersion: tsunaro.io/v1alpha1\nkind: TailnetSiteList\nitems:\n  - metadata: {name: a}\n    spec:\n      tailnetRef: {name: demo}\n      prefixes: [10.20.0.1/16]\n";
    let anchors = "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: tsunaro.io/v1alpha1\n    kind: TailnetSite\n    metadata: {name: one}\n    spec: &spec\n      tailnetRef: &ref {name: demo}\n      prefixes: [10.40.0.0/16]\n      advertisedBy: [tag:router]\n  - apiVersion: tsunaro.io/v1alpha1\n    kind: TailnetSite\n    metadata: {name: two}\n    spec:\n      <<: *spec\n      prefixes: [10.50.0.1/16]\n";
    let directory = folder(&[("list.yaml", list), ("anchors.yaml", anchors)]);
    let output = lint(directory.path(), &["list.yaml"]);
    assert!(
        found(&output)
            .iter()
            .any(|line| line.starts_with("list.yaml:7: deny: TailnetSite a: spec.prefixes[0]")),
        "{output:?}"
    );
    let output = lint(directory.path(), &["anchors.yaml"]);
    let lines = found(&output);
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("anchors.yaml:16: deny: TailnetSite two: spec.prefixes[0]")),
        "{output:?}"
    );
    assert!(
        !lines
            .iter()
            .any(|line| line.contains("TN007") || line.contains("TN014")),
        "{output:?}"
    );
}

#[test]
fn typing_mistakes_get_the_nearest_name() {
    let directory = folder(&[
        ("kind.yaml", &SITE.replace("TailnetSite", "TailnetSites")),
        ("version.yaml", &SITE.replace("v1alpha1", "v1")),
        ("group.yaml", &SITE.replace("tsunaro.io", "tsunario.io")),
        (
            "metadata.yaml",
            &SITE.replace("  name: lab", "  name: lab\n  lables: {a: b}"),
        ),
        ("top.yaml", &SITE.replace("spec:", "sepc:")),
        ("twice.yaml", &format!("{SITE}  owner: again\n")),
    ]);
    let said = |name: &str| {
        let output = lint(directory.path(), &[name]);
        (
            output.status.code(),
            format!("{}{}", text(&output.stdout), text(&output.stderr)),
        )
    };
    let (code, all) = said("kind.yaml");
    assert!(code == Some(2) && all.contains("did you mean TailnetSite?"), "{all}");
    let (code, all) = said("version.yaml");
    assert!(code == Some(2) && all.contains("it knows tsunaro.io/v1alpha1"), "{all}");
    let (code, all) = said("group.yaml");
    assert!(
        code == Some(0) && all.contains("did you mean tsunaro.io/v1alpha1?"),
        "{all}"
    );
    let (code, all) = said("metadata.yaml");
    assert!(
        code == Some(1) && all.contains("metadata.yaml:5: deny") && all.contains("did you mean labels?"),
        "{all}"
    );
    let (code, all) = said("top.yaml");
    assert!(code == Some(1) && all.contains("did you mean spec?"), "{all}");
    let (code, all) = said("twice.yaml");
    assert!(code == Some(2) && all.contains("owner"), "{all}");
}

#[test]
fn old_files_make_updates_of_it() {
    let moved = SITE.replace("tailnetRef: { name: demo }", "tailnetRef: { name: other }");
    let directory = folder(&[("old/site.yaml", SITE), ("new/site.yaml", &moved)]);
    let output = lint(directory.path(), &["new"]);
    assert!(!text(&output.stdout).contains("TN002"), "{output:?}");
    let output = lint(directory.path(), &["--old", "old", "new"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        found(&output).iter().any(|line| line
            .starts_with("new/site.yaml:6: deny: TailnetSite lab: spec.tailnetRef: Forbidden")
            && line.contains("[TN002]")),
        "{output:?}"
    );
    // What was wrong before is a warning.
    let wrong = SITE.replace("10.20.0.0/16", "10.20.0.1/16");
    let described = format!("{wrong}  description: the lab\n");
    let directory = folder(&[("old/site.yaml", &wrong), ("new/site.yaml", &described)]);
    let output = lint(directory.path(), &["--old", "old", "new"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        found(&output)
            .iter()
            .any(|line| line.contains("warn") && line.contains("[TN401]")),
        "{output:?}"
    );
    assert_eq!(
        lint(directory.path(), &["--old", "missing", "new"]).status.code(),
        Some(2)
    );
}

const OWNERS: &str = "\
matchConstraints: {resourceRules: [{resources: [tailnetsites]}]}
validations:
  - expression: object.spec.?owner.orValue('') in ['team-a']
    message: a site is owned by team-a
";

#[test]
fn policies_are_asked_whether_bare_or_in_a_config_map() {
    let config_map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: in-map\n  namespace: tailnet-system\n  labels: {{tsunaro.io/admission-policy: \"true\"}}\ndata:\n  policy.yaml: |\n{}",
        OWNERS.lines().map(|line| format!("    {line}\n")).collect::<String>()
    );
    let directory = folder(&[
        ("policies/owners.yaml", OWNERS),
        ("policies/map.yaml", &config_map),
        ("site.yaml", SITE),
        ("with/site.yaml", SITE),
        ("with/policy.yaml", &config_map),
        ("elsewhere/site.yaml", SITE),
        (
            "elsewhere/policy.yaml",
            &config_map.replace("namespace: tailnet-system", "namespace: other"),
        ),
    ]);
    let output = lint(directory.path(), &["--policies", "policies", "site.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines = found(&output);
    for id in ["ORG/owners/1", "ORG/in-map/1"] {
        let expected =
            format!("site.yaml:9: deny: TailnetSite lab: spec.owner: Invalid value: a site is owned by team-a [{id}]");
        assert!(lines.contains(&expected), "{output:?}");
    }
    let json = lint(
        directory.path(),
        &["-o", "json", "--policies", "policies/owners.yaml", "site.yaml"],
    );
    let json: Vec<Value> = serde_json::from_slice(&json.stdout).unwrap();
    assert!(
        json.iter()
            .any(|finding| finding["rule"] == "ORG/owners/1" && finding["line"] == 9),
        "{json:?}"
    );
    // A policy among the files is in force, where it would be in force.
    assert!(
        found(&lint(directory.path(), &["with"]))
            .iter()
            .any(|line| line.contains("ORG/in-map/1"))
    );
    assert_eq!(found(&lint(directory.path(), &["elsewhere"])), Vec::<String>::new());
    assert_eq!(
        lint(directory.path(), &["--policies", "missing", "site.yaml"])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn a_policy_that_does_not_compile_is_denied_in_its_line() {
    let bad = "validations:\n  - expression: 'true'\n  - expression: object.spec.ownr == 'a'\n";
    let block = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p, namespace: tailnet-system, labels: {tsunaro.io/admission-policy: 'true'}}\ndata:\n  policy.yaml: |\n    validations:\n      - expression: 'true'\n      - expression: object.spec.ownr == 'a'\n";
    let directory = folder(&[("bad.yaml", bad), ("block.yaml", block), ("site.yaml", SITE)]);
    let output = lint(directory.path(), &["--policies", "bad.yaml", "site.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines = found(&output);
    assert!(lines.iter().any(|line| line.starts_with("bad.yaml:3: deny: ConfigMap bad: data[bad.yaml]: validations[1].expression: Invalid value: 1:13: object.spec has no field \"ownr\": did you mean owner? [TN009]")), "{lines:?}");
    let output = lint(directory.path(), &["block.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        found(&output)[0].starts_with("block.yaml:8: deny: ConfigMap tailnet-system/p: data[policy.yaml]"),
        "{output:?}"
    );
}

#[test]
fn namespaces_among_the_files_lend_their_labels() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/org");
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {environment: production}}\n";
    let ingress = "apiVersion: tsunaro.io/v1alpha1\nkind: TailnetIngress\nmetadata: {name: portal, namespace: shop}\nspec:\n  tailnetRef: {name: demo}\n  allowFrom: ['group:contractors']\n  exposes: [{name: web, port: 5432, backend: {service: web, port: 80}}]\n";
    let directory = folder(&[("namespace.yaml", namespace), ("ingress.yaml", ingress)]);
    let org = example.to_str().unwrap();
    let output = lint(directory.path(), &["--policies", org, "."]);
    assert!(
        found(&output)
            .iter()
            .any(|line| line.starts_with("./ingress.yaml:6: deny") && line.contains("ORG/production-exposure/1")),
        "{output:?}"
    );
    let alone = lint(directory.path(), &["--policies", org, "ingress.yaml"]);
    assert!(!text(&alone.stdout).contains("ORG/"), "{alone:?}");
    assert!(
        text(&alone.stderr).contains("namespaces of the cluster are not known here"),
        "it is said that it was not asked: {alone:?}"
    );
}

#[test]
fn sarif_has_what_code_scanning_reads() {
    let wrong = SITE.replace("10.20.0.0/16", "10.20.0.1/16");
    let directory = folder(&[
        ("a b/site.yaml", &wrong),
        ("owners.yaml", OWNERS),
        ("broken.yaml", "apiVersion: tsunaro.io/v1alpha1\nkind: [\n"),
    ]);
    let output = lint(
        directory.path(),
        &["-o", "sarif", "--policies", "owners.yaml", "a b", "broken.yaml"],
    );
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    assert_eq!(log["runs"].as_array().unwrap().len(), 1);
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "kubectl-tailnet");
    let rules = driver["rules"].as_array().unwrap();
    let results = run["results"].as_array().unwrap();
    assert!(results.len() >= 3, "{log:#}");
    for result in results {
        let rule = &rules[usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap()];
        assert_eq!(rule["id"], result["ruleId"]);
        assert!(!rule["shortDescription"]["text"].as_str().unwrap().is_empty());
        assert!(["error", "warning"].contains(&result["level"].as_str().unwrap()));
        assert!(!result["message"]["text"].as_str().unwrap().is_empty());
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "a%20b/site.yaml");
        assert!(place["region"]["startLine"].as_u64().unwrap() >= 1);
    }
    let of = |id: &str| results.iter().find(|result| result["ruleId"] == id).unwrap();
    assert_eq!(
        of("TN401")["locations"][0]["physicalLocation"]["region"]["startLine"],
        7
    );
    assert_eq!(of("TN401")["level"], "error");
    assert_eq!(of("TN001")["level"], "warning");
    assert_eq!(of("ORG/owners/1")["level"], "error");
    let prints: std::collections::BTreeSet<String> = results
        .iter()
        .map(|result| result["partialFingerprints"].to_string())
        .collect();
    assert_eq!(prints.len(), results.len(), "each fault is a result of its own");
    assert_eq!(run["invocations"][0]["executionSuccessful"], false);
    assert!(
        run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
            .as_str()
            .unwrap()
            .contains("broken.yaml")
    );
    // No finding is a log all the same.
    let empty = lint(directory.path(), &["-o", "sarif", "owners.yaml"]);
    let log: Value = serde_json::from_slice(&empty.stdout).unwrap();
    assert_eq!(log["runs"][0]["results"], serde_json::json!([]));
    assert_eq!(log["runs"][0]["invocations"][0]["executionSuccessful"], true);
}

#[test]
fn github_gets_a_command_per_finding_and_error() {
    let wrong = SITE.replace("10.20.0.0/16", "10.20.0.1/16");
    let directory = folder(&[
        ("deploy/site.yaml", &wrong),
        ("deploy/broken.yaml", "apiVersion: tsunaro.io/v1alpha1\nkind: [\n"),
    ]);
    let output = lint(directory.path(), &["-o", "github", "./deploy"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(
        lines.iter().any(|line| line
            .starts_with("::error file=deploy/site.yaml,line=7,title=TN401 TailnetSite lab::spec.prefixes[0]: ")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("::warning file=deploy/site.yaml,line=6,title=TN001 TailnetSite lab::")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("::error title=kubectl tailnet lint::") && line.contains("broken.yaml")),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| line.starts_with("::")), "{lines:#?}");
}

#[test]
fn a_cluster_that_does_not_answer_is_an_error_after_the_deadline() {
    // Accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    let directory = folder(&[("kubeconfig", &kubeconfig), ("site.yaml", SITE)]);
    let started = Instant::now();
    let output = lint(
        directory.path(),
        &["--cluster", "--kubeconfig", "kubeconfig", "--timeout", "1", "site.yaml"],
    );
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        text(&output.stderr).contains("could not be read within 1 s"),
        "{output:?}"
    );
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    let output = lint(directory.path(), &["--cluster", "--kubeconfig", "missing", "site.yaml"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("no usable kubeconfig"), "{output:?}");
    assert_eq!(
        lint(directory.path(), &["--timeout", "1", "site.yaml"]).status.code(),
        Some(2),
        "a flag without effect is refused"
    );
}
