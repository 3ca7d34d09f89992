//! The ValidatingAdmissionPolicy that keeps status ours: people and programs decide by it, so nobody but the operator may
//! write it. The API server enforces it by itself, also while every webhook is down. The chart installs exactly these objects.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tailnet_crds::{GROUP, Kind};

/// Name of the policy and of its binding.
pub const NAME: &str = "tailnet-status";
/// ServiceAccount of the operator.
pub const ACCOUNT: &str = "tailnet-operator";

/// The policy and its binding, for an operator in `namespace`.
pub fn objects(namespace: &str) -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let user = format!("system:serviceaccount:{namespace}:{ACCOUNT}");
    let rule = NamedRuleWithOperations {
        api_groups: Some(vec![GROUP.to_owned()]),
        // A version that comes later is no way around.
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
        resources: Some(
            Kind::ALL
                .iter()
                .map(|kind| format!("{}/status", kind.plural()))
                .collect(),
        ),
        ..NamedRuleWithOperations::default()
    };
    let metadata = || ObjectMeta {
        name: Some(NAME.to_owned()),
        ..ObjectMeta::default()
    };
    let policy = ValidatingAdmissionPolicy {
        metadata: metadata(),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(MatchResources {
                match_policy: Some("Equivalent".to_owned()),
                resource_rules: Some(vec![rule]),
                ..MatchResources::default()
            }),
            validations: Some(vec![Validation {
                expression: format!("request.userInfo.username == '{user}'"),
                message: Some(format!(
                    "the status of {GROUP} objects is what the operator observed, and only {user} writes it; change spec instead"
                )),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    };
    let binding = ValidatingAdmissionPolicyBinding {
        metadata: metadata(),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(NAME.to_owned()),
            validation_actions: Some(vec!["Deny".to_owned()]),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    };
    (policy, binding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_covered_and_no_spec_is() {
        let (policy, binding) = objects("ops");
        let policy = serde_json::to_value(policy).unwrap();
        let resources = policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"]
            .as_array()
            .unwrap();
        assert_eq!(resources.len(), Kind::ALL.len());
        assert!(
            resources
                .iter()
                .all(|resource| resource.as_str().unwrap().ends_with("/status"))
        );
        assert_eq!(
            policy["spec"]["validations"][0]["expression"],
            "request.userInfo.username == 'system:serviceaccount:ops:tailnet-operator'"
        );
        assert_eq!(
            serde_json::to_value(binding).unwrap()["spec"]["policyName"],
            policy["metadata"]["name"]
        );
    }
}
