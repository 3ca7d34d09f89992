//! The question that shows whether the API server reaches our webhook: a ConfigMap that the webhook denies and that nobody
//! stores, since it is asked as a dry run. Only the API server's own answer counts: whoever else calls the webhook's port can
//! make up whatever it likes.

use crate::audit::VALIDATE_POLICY;

/// Name of the ConfigMap; the webhook has the right to ask about this one only.
pub const NAME: &str = "tailnet-admission-probe";
/// Key and text of a base document that no webhook of ours lets through.
pub const BROKEN: (&str, &str) = ("policy.hujson", "{ this is a question, not a policy");

/// Whether `message`, the API server's refusal of the question, says that our webhook was asked and has answered.
pub fn was_answered(message: &str) -> bool {
    message.contains(&format!("\"{VALIDATE_POLICY}\" denied"))
}

#[cfg(test)]
mod tests {
    use super::was_answered;

    #[test]
    fn only_the_webhooks_own_denial_is_an_answer() {
        assert!(was_answered(
            "admission webhook \"validate-policy.tsunaro.io\" denied the request: TN106 …"
        ));
        for other in [
            "configmaps is forbidden: User \"x\" cannot create resource",
            "admission webhook \"somebody.example.net\" denied the request",
            "failed calling webhook \"validate-policy.tsunaro.io\": connection refused",
        ] {
            assert!(!was_answered(other), "{other}");
        }
    }
}
