//! What the operator may do in the cluster: as little as the code beside it needs. The chart's RBAC is generated from here.

use k8s_openapi::api::rbac::v1::PolicyRule;
use tailnet_crds::{GROUP, Kind};

const READ: &[&str] = &["get", "list", "watch"];
/// Watch, without a way to ask for a single one.
const LOOK: &[&str] = &["list", "watch"];
/// A child that is read by name, or watched by another rule.
const WRITE: &[&str] = &["get", "create", "patch", "delete"];
/// Create, change by apply, remove: a child.
const CHILD: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Rules of the ClusterRole: our own kinds, everywhere; the Services that ingress objects lead to and what their agents
/// consist of, to look at. Nobody's Secrets and nobody's ConfigMaps.
pub fn cluster_rules() -> Vec<PolicyRule> {
    let all: Vec<&str> = Kind::ALL.iter().map(|kind| kind.plural()).collect();
    let status: Vec<String> = Kind::ALL
        .iter()
        .map(|kind| format!("{}/status", kind.plural()))
        .collect();
    let status: Vec<&str> = status.iter().map(String::as_str).collect();
    // Owner references that block the owner's deletion need `update` on the owner's finalizers.
    let owners = [
        "tailnets/finalizers",
        "tailnetegresses/finalizers",
        "tailnetingresses/finalizers",
    ];
    vec![
        rule(GROUP, &all, READ),
        rule(GROUP, &status, &["patch"]),
        rule(GROUP, &owners, &["update"]),
        rule("", &["services", "pods"], LOOK),
        // Their labels: the organisation's policies may ask for them.
        rule("", &["namespaces"], LOOK),
        rule("apps", &["deployments"], LOOK),
        rule("networking.k8s.io", &["networkpolicies"], LOOK),
        rule("policy", &["poddisruptionbudgets"], LOOK),
    ]
}

/// Rules that hold in the namespaces whose ingress objects are to be served: the agents live beside their object. They are a
/// ClusterRole that the chart binds in the namespaces of its value `ingressNamespaces`, and nowhere by default.
///
/// Secrets are read and written one by one by name, never listed: the pre-auth key of an ingress, and the resource version of
/// its certificate. Kubernetes cannot bind this to names that are not known yet.
pub fn ingress_rules() -> Vec<PolicyRule> {
    let mut rules = vec![
        rule("", &["secrets"], &["get", "create", "update", "delete"]),
        rule("", &["configmaps"], WRITE),
    ];
    rules.extend(agent_rules());
    rules
}

/// Rules of the Role in the operator namespace.
///
/// Secrets are read one by one by name (bootstrap keys are the user's choice), listed as metadata only, and written for
/// keys and their ledger.
pub fn namespace_rules() -> Vec<PolicyRule> {
    let mut rules = vec![
        rule(
            "",
            &["secrets"],
            &["get", "list", "watch", "create", "update", "delete"],
        ),
        rule(
            "",
            &["configmaps"],
            &["get", "list", "watch", "create", "update", "patch", "delete"],
        ),
        rule("", &["services"], CHILD),
        // What was overwritten in the access policy is told in Events.
        rule("events.k8s.io", &["events"], &["create"]),
        rule(
            "coordination.k8s.io",
            &["leases"],
            &["get", "create", "update", "patch"],
        ),
    ];
    rules.extend(agent_rules());
    rules
}

/// What agents of either kind consist of, in their namespace; that they can be watched is in [`cluster_rules`].
fn agent_rules() -> [PolicyRule; 5] {
    [
        rule("", &["pods"], &["patch"]),
        rule("apps", &["deployments"], WRITE),
        rule("networking.k8s.io", &["networkpolicies"], WRITE),
        rule("policy", &["poddisruptionbudgets"], WRITE),
        rule("cert-manager.io", &["certificates"], WRITE),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |list: &[&str]| list.iter().map(|entry| (*entry).to_owned()).collect::<Vec<String>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_wild_and_the_cluster_role_only_looks_outside_our_kinds() {
        for rule in [cluster_rules(), ingress_rules(), namespace_rules()].concat() {
            let words = rule
                .verbs
                .iter()
                .chain(rule.resources.iter().flatten())
                .chain(rule.api_groups.iter().flatten());
            assert!(words.clone().all(|word| word != "*"), "{rule:?}");
        }
        for rule in cluster_rules() {
            let ours = rule.api_groups == Some(vec![GROUP.to_owned()]);
            let looks_only = rule.verbs.iter().all(|verb| verb == "list" || verb == "watch");
            assert!(ours || looks_only, "{rule:?}");
            assert!(
                !is_about(&rule, "secrets") && !is_about(&rule, "configmaps"),
                "{rule:?}"
            );
        }
        for rule in ingress_rules() {
            let lists = rule.verbs.iter().any(|verb| verb == "list" || verb == "watch");
            assert!(!lists, "a tenant's objects are read by name: {rule:?}");
        }
    }

    fn is_about(rule: &PolicyRule, resource: &str) -> bool {
        rule.resources.iter().flatten().any(|found| found == resource)
    }
}
