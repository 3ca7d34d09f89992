//! What the webhook may do in the cluster, beside the code that does it. The chart's roles are written from here.

use k8s_openapi::api::rbac::v1::PolicyRule;
use tailnet_crds::admission_probe::NAME as PROBE;
use tailnet_crds::{GROUP, Kind};

use crate::configuration::DEFAULT_NAME;
use crate::tls::authority::SECRET_NAME;

fn rule(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        resource_names: (!names.is_empty()).then(|| owned(names)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

/// Rules of the ClusterRole, for the usual names of the webhook configurations.
pub fn cluster_rules() -> Vec<PolicyRule> {
    cluster_rules_for(DEFAULT_NAME, DEFAULT_NAME)
}

/// Rules of the ClusterRole, for the webhook configurations of these names.
pub fn cluster_rules_for(validating: &str, mutating: &str) -> Vec<PolicyRule> {
    let kinds = Kind::ALL.map(Kind::plural);
    let keep = ["get", "list", "watch", "patch"];
    vec![
        // The snapshot; get is the live read of a holder.
        rule(GROUP, &kinds, &[], &["get", "list", "watch"]),
        rule("", &["namespaces"], &[], &["list", "watch"]),
        // Backends of ingress objects, in any namespace.
        rule("", &["services"], &[], &["list", "watch"]),
        // Whether a user may skip rules.
        rule("authorization.k8s.io", &["subjectaccessreviews"], &[], &["create"]),
        // The CA in our own configurations, and in no other.
        rule(
            "admissionregistration.k8s.io",
            &["validatingwebhookconfigurations"],
            &[validating],
            &keep,
        ),
        rule(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations"],
            &[mutating],
            &keep,
        ),
    ]
}

/// Rules of the Role in the operator namespace, with our own CA.
pub fn namespace_rules() -> Vec<PolicyRule> {
    let secrets = vec![
        // A create cannot be limited to a name.
        rule("", &["secrets"], &[], &["create"]),
        rule("", &["secrets"], &[SECRET_NAME], &["get", "list", "watch", "update"]),
    ];
    [secrets, other_namespace_rules()].concat()
}

/// Rules of the Role in the operator namespace, where the Secret called `secret` brings the certificate.
pub fn namespace_rules_for(secret: &str) -> Vec<PolicyRule> {
    let secrets = vec![rule("", &["secrets"], &[secret], &["get", "list", "watch"])];
    [secrets, other_namespace_rules()].concat()
}

fn other_namespace_rules() -> Vec<PolicyRule> {
    vec![
        // The dry run that shows whether the API server reaches the webhook. A create of this name is possible by an apply
        // only, so that no other ConfigMap can be made.
        rule("", &["configmaps"], &[PROBE], &["create", "patch"]),
        // Facts and claims with their heartbeat, and base documents.
        rule("", &["configmaps"], &[], &["list", "watch"]),
        rule("coordination.k8s.io", &["leases"], &[], &["list", "watch"]),
        // The live read of a Service that has the name of an egress target.
        rule("", &["services"], &[], &["get"]),
    ]
}
