//! What the operator may do in the cluster: as little as the code beside it needs. The chart's RBAC is generated from here.

use k8s_openapi::api::rbac::v1::PolicyRule;
use tailnet_crds::{GROUP, Kind};

const READ: &[&str] = &["get", "list", "watch"];
/// Create, change by apply, remove: a child.
const CHILD: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Rules of the ClusterRole: our own kinds, everywhere, and the Services that ingress objects lead to, to look at.
pub fn cluster_rules() -> Vec<PolicyRule> {
    let all: Vec<&str> = Kind::ALL.iter().map(|kind| kind.plural()).collect();
    let status: Vec<String> = Kind::ALL
        .iter()
        .map(|kind| format!("{}/status", kind.plural()))
        .collect();
    let status: Vec<&str> = status.iter().map(String::as_str).collect();
    // Owner references that block the owner's deletion need `update` on the owner's finalizers.
    let owners = ["tailnets/finalizers", "tailnetegresses/finalizers"];
    vec![
        rule(GROUP, &all, READ),
        rule(GROUP, &status, &["patch"]),
        rule(GROUP, &owners, &["update"]),
        rule("", &["services"], &["list", "watch"]),
        // Their labels: the organisation's policies may ask for them.
        rule("", &["namespaces"], &["list", "watch"]),
    ]
}

/// Rules of the Role in the operator namespace.
///
/// Secrets are read one by one by name (bootstrap keys are the user's choice), listed as metadata only, and written for
/// keys and their ledger.
pub fn namespace_rules() -> Vec<PolicyRule> {
    vec![
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
        rule("", &["pods"], &["list", "watch", "patch"]),
        rule("apps", &["deployments"], CHILD),
        rule("networking.k8s.io", &["networkpolicies"], CHILD),
        rule("policy", &["poddisruptionbudgets"], CHILD),
        // What was overwritten in the access policy is told in Events.
        rule("events.k8s.io", &["events"], &["create"]),
        rule(
            "coordination.k8s.io",
            &["leases"],
            &["get", "create", "update", "patch"],
        ),
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
    fn nothing_is_wild_and_the_cluster_role_writes_our_kinds_only() {
        for rule in cluster_rules().iter().chain(&namespace_rules()) {
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
            let looked_at = ["services", "namespaces"].map(|resource| Some(vec![resource.to_owned()]));
            assert!(ours || (looked_at.contains(&rule.resources) && looks_only), "{rule:?}");
        }
        let secrets = cluster_rules()
            .iter()
            .flat_map(|rule| rule.resources.clone())
            .flatten()
            .any(|r| r == "secrets");
        assert!(!secrets, "Secrets only in the operator namespace");
    }
}
