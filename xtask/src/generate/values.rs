//! The chart's values as types: `values.schema.json`, `docs/reference/values.md`, and the proof that `values.yaml` has each of them.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Something that Kubernetes defines and the chart passes on.
type Kubernetes = Map<String, Value>;

/// Labels or annotations.
type Strings = std::collections::BTreeMap<String, String>;

/// Values of the tailnet-operator chart.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Values {
    /// Set by Helm when this chart is a dependency of another; not used.
    #[serde(default)]
    global: Option<Kubernetes>,
    image: ProductImage,
    /// Labels on every object of this chart.
    common_labels: Strings,
    crds: Crds,
    rbac: Rbac,
    /// PEM certificates that operator and agents trust besides the public ones, for all Tailnets.
    #[serde(rename = "trustedCA")]
    #[schemars(regex(pattern = r"^(\s*|[\s\S]*-----BEGIN CERTIFICATE-----[\s\S]*)$"))]
    trusted_ca: String,
    /// The cluster's DNS domain. Egress aliases inside it are refused.
    #[schemars(length(min = 1))]
    cluster_domain: String,
    /// The cluster's Service ranges as CIDRs: targets and sites inside get a warning, addresses of gateways must fit.
    #[serde(rename = "serviceCIDRs")]
    service_cidrs: Vec<String>,
    /// The cluster's Pod ranges as CIDRs: targets and sites inside them get a warning at admission.
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
    /// Namespace whose Pods may scrape the metrics of operator (port 9403), webhook (9401), resolver (9153) and agents (9402). Empty: nobody; the operator reads the agents' own.
    monitoring_namespace: String,
    /// Namespaces whose TailnetIngress objects are served: there the operator may read and write Secrets, ConfigMaps, Deployments, NetworkPolicies, PodDisruptionBudgets and Certificates, and annotate Pods. `["*"]`: all namespaces, those to come too. They must exist.
    #[schemars(inner(regex(pattern = r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")))]
    ingress_namespaces: Vec<String>,
    monitoring: Monitoring,
    network_policy: NetworkPolicy,
    /// error, warn, info, debug or trace, or a tracing filter.
    #[schemars(length(min = 1))]
    log_level: String,
    log_format: LogFormat,
    operator: Operator,
    webhook: Webhook,
    resolver: Resolver,
}

/// The image that holds operator, webhook and agent.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct ProductImage {
    #[serde(flatten)]
    image: Image,
    /// Names of Secrets with registry credentials in the release's namespace, for operator, webhook and resolver.
    pull_secrets: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Image {
    /// Name without tag.
    #[schemars(length(min = 1))]
    repository: String,
    /// Empty means the chart's appVersion (the resolver's image has no such default).
    tag: String,
    /// `sha256:…`; when set it is what is pulled, and the tag is ignored.
    #[schemars(regex(pattern = r"^(|sha256:[0-9a-f]{64})$"))]
    digest: String,
    /// When nodes pull the image.
    pull_policy: PullPolicy,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// How log lines look.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code, reason = "the types are only deserialised and described")]
enum LogFormat {
    Json,
    Text,
}

/// CustomResourceDefinitions.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Crds {
    /// Install and upgrade them with this release.
    install: bool,
    /// Keep them, and so every Tailnet object, when the release is uninstalled.
    keep: bool,
}

/// NetworkPolicies for operator, webhook and resolver.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct NetworkPolicy {
    /// Only admission, DNS of the resolver and, from `monitoringNamespace`, metrics can be reached. (Agents always have a policy.)
    enabled: bool,
}

/// Rights of people.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Rbac {
    /// Let the cluster's own view, edit and admin roles read, and edit and admin change, egress and ingress objects.
    aggregate_to_default_roles: bool,
}

/// Objects for Prometheus and Grafana. PodMonitor and PrometheusRule need the CRDs of the Prometheus operator.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Monitoring {
    pod_monitors: PodMonitors,
    prometheus_rule: PrometheusRule,
    dashboard: Dashboard,
}

/// What is scraped.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct PodMonitors {
    /// A PodMonitor each for operator, webhook and agents. NetworkPolicies let only Pods of monitoringNamespace in.
    enabled: bool,
    /// Time between two scrapes.
    #[schemars(regex(pattern = r"^[0-9]+(ms|s|m|h)$"))]
    interval: String,
    /// Further labels, as your Prometheus selects them.
    labels: Strings,
}

/// Alerts.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct PrometheusRule {
    /// A PrometheusRule with the alerts of chart/monitoring/alerts.yaml.
    enabled: bool,
    /// Further labels, as your Prometheus selects them.
    labels: Strings,
    /// Page that the alerts' runbook_url leads to; each alert has a section of its name there.
    #[serde(rename = "runbookURL")]
    #[schemars(length(min = 1))]
    runbook_url: String,
}

/// The dashboard.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Dashboard {
    /// A ConfigMap with the dashboard as JSON.
    enabled: bool,
    /// Labels by which Grafana's sidecar finds it.
    labels: Strings,
    /// Annotations, such as the folder that the sidecar puts it into.
    annotations: Strings,
}

/// The webhook.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Webhook {
    #[serde(flatten)]
    placement: Placement,
    /// Further environment variables, as in a container's env.
    extra_env: Vec<Kubernetes>,
    audit_log: AuditLog,
    certificate: Certificate,
}

/// The webhook's serving certificate.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Certificate {
    source: CertificateSource,
    /// Source `secret`: name of the Secret in the release's namespace, with `tls.crt`, `tls.key` and `ca.crt`.
    secret_name: String,
    issuer_ref: IssuerRef,
    /// Source `cert-manager`: life of the certificate, such as `2160h`.
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"))]
    duration: String,
    /// Source `cert-manager`: how long before its end it is renewed.
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"))]
    renew_before: String,
}

/// `own`: the webhook makes and rotates a CA and certificates itself; `cert-manager`: the chart makes a Certificate;
/// `secret`: you bring a Secret. A change of the Secret is followed within seconds.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(dead_code, reason = "the types are only deserialised and described")]
enum CertificateSource {
    Own,
    CertManager,
    Secret,
}

/// Source `cert-manager`: the issuer.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct IssuerRef {
    /// Source `cert-manager`: name of the issuer, which must fill in `ca.crt` (CA, Vault and others; not ACME). Empty: the chart makes a CA of its own.
    name: String,
    /// Source `cert-manager`: kind of the issuer, `Issuer`, `ClusterIssuer` or one of another group.
    #[schemars(length(min = 1))]
    kind: String,
    /// Source `cert-manager`: API group of the issuer.
    #[schemars(length(min = 1))]
    group: String,
}

/// Where the audit stream goes, one JSON object per admission decision: stdout, apart from the log on stderr, or none.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code, reason = "the types are only deserialised and described")]
enum AuditLog {
    Stdout,
    None,
}

/// The operator.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Operator {
    #[serde(flatten)]
    placement: Placement,
    /// Further environment variables, as in a container's env.
    extra_env: Vec<Kubernetes>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Placement {
    /// How many Pods.
    #[schemars(range(min = 1, max = 20))]
    replicas: u32,
    /// Requests and limits of the container.
    resources: Kubernetes,
    /// Labels that a node must have.
    node_selector: Strings,
    /// Taints that are tolerated.
    tolerations: Vec<Kubernetes>,
    /// Affinity of the Pods.
    affinity: Kubernetes,
    /// How the Pods spread. Empty: over nodes, where there is more than one replica and that is possible.
    topology_spread_constraints: Vec<Kubernetes>,
    /// PriorityClass of the Pods; empty means none.
    priority_class_name: String,
    /// Further labels of the Pods.
    pod_labels: Strings,
    /// Further annotations of the Pods.
    pod_annotations: Strings,
}

/// The optional CoreDNS that serves the hosts file of one Tailnet.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct Resolver {
    /// Run it.
    enabled: bool,
    image: ResolverImage,
    /// Tailnet.spec.dns.hostsConfigMap.
    #[schemars(length(min = 1))]
    hosts_config_map: String,
    /// Zones or single names that the cluster's DNS shall forward; used in the stanza that is printed after an installation.
    zones: Vec<String>,
    /// Where names that the hosts file does not have are asked: addresses or /etc/resolv.conf. Empty: they do not exist.
    upstreams: Vec<String>,
    /// A fixed ClusterIP; empty: the cluster chooses one.
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    #[serde(flatten)]
    placement: Placement,
}

/// CoreDNS, 1.12 or later.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the types are only deserialised and described")]
struct ResolverImage {
    #[serde(flatten)]
    image: Image,
}

/// `values.schema.json`.
pub fn schema() -> Result<String> {
    Ok(serde_json::to_string_pretty(&schema_value()?)? + "\n")
}

fn schema_value() -> Result<Value> {
    let settings = schemars::generate::SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut value = serde_json::to_value(settings.into_generator().into_root_schema_for::<Values>())?;
    close(&mut value);
    Ok(value)
}

/// A typo is refused in every object whose properties we name; what we pass on to Kubernetes stays open.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") {
                object.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// `docs/reference/values.md`; an error when `values.yaml` lacks a value or has one that the schema does not.
pub fn reference(values_yaml: &str) -> Result<String> {
    serde_saphyr::from_str::<Values>(values_yaml)
        .context("chart/values.yaml and xtask/src/generate/values.rs differ")?;
    let defaults: Value = serde_saphyr::from_str(values_yaml).context("chart/values.yaml")?;
    let mut text = String::from(
        "# Chart values\n\nAn unknown value is refused. Comments with more words: [chart/values.yaml](../../chart/values.yaml).\n\n\
         | value | type | default | meaning |\n|---|---|---|---|\n",
    );
    rows(&schema_value()?, &defaults, "", &mut text);
    Ok(text)
}

fn rows(schema: &Value, defaults: &Value, prefix: &str, text: &mut String) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (name, property) in properties {
        let path = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        let default = &defaults[name];
        if property.get("properties").is_some() {
            rows(property, default, &path, text);
        } else if path != "global" {
            let default = serde_json::to_string(default).unwrap_or_default();
            let meaning = property["description"].as_str().unwrap_or_default().replace('\n', " ");
            let _ = writeln!(text, "| `{path}` | {} | `{default}` | {meaning} |", kind(property));
        }
    }
}

fn kind(property: &Value) -> String {
    let words = |values: &Vec<Value>| {
        values
            .iter()
            .filter_map(Value::as_str)
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(values) = property["enum"].as_array() {
        return words(values);
    }
    match property["type"].as_str() {
        Some("array") => format!("list of {}", kind(&property["items"])),
        Some("object") if property["additionalProperties"]["type"] == "string" => "map of string".to_owned(),
        Some(kind) => kind.to_owned(),
        None => "any".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{reference, schema_value};

    const VALUES: &str = include_str!("../../../chart/values.yaml");

    #[test]
    fn values_yaml_and_types_agree() {
        let text = reference(VALUES).unwrap();
        assert!(text.contains("| `webhook.replicas` | integer | `2` |"), "{text}");
        assert!(
            text.contains("| `image.pullPolicy` | `Always`, `IfNotPresent`, `Never` | `\"IfNotPresent\"` |"),
            "{text}"
        );
        assert!(!text.contains("| any |"), "{text}");
    }

    #[test]
    fn a_missing_or_unknown_value_is_an_error() {
        assert!(reference(&VALUES.replace("clusterDomain: cluster.local", "")).is_err());
        assert!(reference(&format!("{VALUES}\nsurprise: 1\n")).is_err());
    }

    #[test]
    fn typos_are_refused_at_every_level() {
        let schema = schema_value().unwrap();
        for pointer in [
            "",
            "/properties/image",
            "/properties/webhook",
            "/properties/resolver/properties/image",
        ] {
            assert_eq!(
                schema.pointer(pointer).unwrap()["additionalProperties"],
                false,
                "{pointer}"
            );
        }
    }
}
