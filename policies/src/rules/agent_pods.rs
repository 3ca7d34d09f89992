//! What agent settings must be for Kubernetes to take the Pods that are made of them.

use std::collections::BTreeMap;

use tailnet_crds::types::AgentSettings;
use tailnet_crds::{Kind, TailnetGatewaySpec};

use crate::finding::Severity;
use crate::object::Object;
use crate::quantities::Quantity;
use crate::report::{Report, Shown, cut};
use crate::rules::agent_settings::settings_of;
use crate::table::{Check, Operations, Rule, WGV};

/// Settings that no Pod can have.
pub static TN016: Rule = Rule {
    id: "TN016",
    kinds: &[
        Kind::Tailnet,
        Kind::TailnetEgress,
        Kind::TailnetIngress,
        Kind::TailnetGateway,
    ],
    operations: Operations::WRITE,
    layers: WGV,
    severity: Severity::Deny,
    security: false,
    field: "spec.agent, spec.defaults.agent, spec.resources, spec.tolerations, spec.sysctls",
    message: "Kubernetes takes a Pod with these settings, and the agent can run in it",
    why: "The API server checks quantities, labels and tolerations only when the operator makes the Deployment or its Pods: too late for whoever \
          wrote them, and in the defaults of a Tailnet for every agent at once. An agent with less memory than it needs is killed again and again.",
    example: "kind: TailnetEgress\nspec:\n  agent:\n    resources:\n      limits: { memory: 64mb }",
    fix: "Write quantities such as `100m` and `64Mi`, requests no larger than limits, at least 32Mi of memory, and labels as Kubernetes has them.",
    check: Check::Object(agent_pods),
};

/// Least memory limit: an agent without a connection has about 30 MB resident.
const LEAST_MEMORY: Quantity = Quantity::units(32 * 1024 * 1024);

fn agent_pods(object: &Object, report: &mut Report<'_>) {
    if let Some(gateway) = object.gateway() {
        let settings = AgentSettings {
            resources: gateway.resources.clone(),
            tolerations: Some(gateway.tolerations.clone()),
            ..AgentSettings::default()
        };
        pods("spec", &settings, report);
        sysctls(gateway, report);
    }
    if let Some((path, settings)) = settings_of(object) {
        pods(path, settings, report);
    }
}

/// Settings of the Pod's own part of the kernel; any other needs the whole node, and kubelet refuses the Pod.
fn sysctls(gateway: &TailnetGatewaySpec, report: &mut Report<'_>) {
    for (at, sysctl) in gateway.sysctls.iter().enumerate() {
        let name = sysctl.name.replace('/', ".");
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
        let of_a_pod = name == "kernel.sem"
            || ["net.", "kernel.shm", "kernel.msg", "fs.mqueue."]
                .iter()
                .any(|prefix| name.starts_with(prefix));
        if !of_a_pod || !name.bytes().all(fits) {
            let detail = "is no sysctl that a Pod has: those begin with net., kernel.shm, kernel.msg or fs.mqueue., or are kernel.sem";
            report.invalid(format!("spec.sysctls[{at}].name"), &sysctl.name, detail);
        }
    }
}

fn pods(path: &str, settings: &AgentSettings, report: &mut Report<'_>) {
    resources(path, settings, report);
    keys_and_values(&format!("{path}.podLabels"), settings.pod_labels.as_ref(), true, report);
    keys_and_values(
        &format!("{path}.podAnnotations"),
        settings.pod_annotations.as_ref(),
        false,
        report,
    );
    keys_and_values(
        &format!("{path}.nodeSelector"),
        settings.node_selector.as_ref(),
        true,
        report,
    );
    for (at, toleration) in settings.tolerations.iter().flatten().enumerate() {
        let field = |name: &str| format!("{path}.tolerations[{at}].{name}");
        let one_of =
            |known: &[&str], value: Option<&String>| value.is_none_or(|v| v.is_empty() || known.contains(&v.as_str()));
        if !one_of(&["Exists", "Equal"], toleration.operator.as_ref()) {
            let operator = toleration.operator.as_deref().unwrap_or_default();
            report.invalid(field("operator"), operator, "must be Exists or Equal");
        }
        if !one_of(
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            toleration.effect.as_ref(),
        ) {
            let effect = toleration.effect.as_deref().unwrap_or_default();
            report.invalid(
                field("effect"),
                effect,
                "must be NoSchedule, PreferNoSchedule or NoExecute",
            );
        }
    }
}

fn resources(path: &str, settings: &AgentSettings, report: &mut Report<'_>) {
    let Some(resources) = &settings.resources else { return };
    if resources.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        report.forbidden(
            format!("{path}.resources.claims"),
            Shown::NOTHING,
            "an agent takes no devices: set requests and limits only",
        );
    }
    for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, amount) in amounts.iter().flatten() {
            let field = format!("{path}.resources.{kind}[{}]", cut(name, 63));
            let Some(value) = Quantity::parse(&amount.0) else {
                report.invalid(field, amount.0.as_str(), "is not a quantity such as 100m or 64Mi");
                continue;
            };
            let limit = resources.limits.as_ref().and_then(|limits| limits.get(name));
            if kind == "limits" && name == "memory" && value < LEAST_MEMORY {
                report.invalid(field, amount.0.as_str(), "is less than an agent needs: at least 32Mi");
            } else if kind == "requests"
                && let Some(limit) = limit
                && Quantity::parse(&limit.0).is_some_and(|limit| value > limit)
            {
                let detail = format!("is more than the limit {}", cut(&limit.0, 40));
                report.invalid(field, amount.0.as_str(), detail);
            }
        }
    }
}

fn keys_and_values(path: &str, map: Option<&BTreeMap<String, String>>, labels: bool, report: &mut Report<'_>) {
    for (key, value) in map.into_iter().flatten() {
        if !is_qualified_name(key) {
            report.invalid(
                path,
                key,
                "is no key that Kubernetes takes: [DNS name/]name of letters, digits, - _ . and at most 63 characters",
            );
        } else if labels && !is_label_value(value) {
            report.invalid(
                format!("{path}[{}]", cut(key, 63)),
                value,
                "is no label value: letters, digits, - _ . and at most 63 characters, starting and ending with a letter or digit",
            );
        }
    }
}

/// `[prefix/]name` of the API conventions.
pub(crate) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_dns_label = |label: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        edge(label.as_bytes().first()) && edge(label.as_bytes().last()) && label.bytes().all(inner)
    };
    let prefix_fits = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_dns_label));
    prefix_fits && !name.is_empty() && is_label_value(name)
}

pub(crate) fn is_label_value(value: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    value.len() <= 63 && edge(value.as_bytes().first()) && edge(value.as_bytes().last()) && value.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_as_the_api_server_takes_them() {
        for good in ["a", "app.kubernetes.io/name", "A_b.c-9", "example.net/X"] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in [
            "",
            "/a",
            "a/",
            "bad key!",
            "-a",
            "a-",
            "Upper.net/a",
            "a/b/c",
            &"a".repeat(64),
        ] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        for good in ["", "v1", "a.b_c-d", &"a".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["a b", "-a", "a.", &"a".repeat(64), "ä"] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }
}
