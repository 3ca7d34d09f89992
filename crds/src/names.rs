//! Names that several processes must agree on: labels, annotations, finalizers, field managers, child objects.

/// Where the operator lives unless told otherwise.
pub const DEFAULT_OPERATOR_NAMESPACE: &str = "tailnet-system";

/// Lease that says which operator acts.
pub const OPERATOR_LEASE: &str = "tailnet-operator";

/// Labels of objects that the operator makes.
pub mod label {
    /// Always [`MANAGED_BY_VALUE`].
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`].
    pub const MANAGED_BY_VALUE: &str = "tailnet-operator";
    /// What the object is, such as `tailnet-agent`.
    pub const NAME: &str = "app.kubernetes.io/name";
    /// Which of them, such as the owner's name.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Part of what.
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// Name of the Tailnet.
    pub const TAILNET: &str = "tsunaro.io/tailnet";
    /// Kind of the CR that the object belongs to.
    pub const OWNER_KIND: &str = "tsunaro.io/owner-kind";
    /// Namespace of that CR; absent for cluster-scoped kinds.
    pub const OWNER_NAMESPACE: &str = "tsunaro.io/owner-namespace";
    /// Name of that CR.
    pub const OWNER_NAME: &str = "tsunaro.io/owner-name";
    /// Tailnet whose facts a ConfigMap holds.
    pub const FACTS: &str = "tsunaro.io/facts";
    /// `base` on ConfigMaps with the people's part of a policy: they are checked at admission.
    pub const POLICY: &str = "tsunaro.io/policy";
    /// Value of [`POLICY`].
    pub const POLICY_BASE: &str = "base";
    /// `"true"` on ConfigMaps with an organisation's CEL policies.
    pub const ADMISSION_POLICY: &str = "tsunaro.io/admission-policy";
    /// UID of the TailnetGateway that a Pod belongs to.
    pub const GATEWAY_UID: &str = "tsunaro.io/gateway-uid";
    /// UID of the state Secret that a gateway's Pod is bound to.
    pub const GATEWAY_STATE_UID: &str = "tsunaro.io/gateway-state-uid";

    /// Prefixes of label and annotation keys that people may not set on agent Pods.
    pub const RESERVED_PREFIXES: [&str; 2] = ["tsunaro.io/", "app.kubernetes.io/"];
}

/// Annotations.
pub mod annotation {
    /// sha256 of the agent's config, on its Pods: a change makes kubelet refresh the volume at once.
    pub const CONFIG_SHA256: &str = "tsunaro.io/config-sha256";
    /// Resource version of the Secret with an ingress's certificate, on its agents' Pods, for the same end.
    pub const CERTIFICATE_VERSION: &str = "tsunaro.io/certificate-version";
    /// Number of ConfigMaps that hold a Tailnet's facts.
    pub const FACTS_CHUNKS: &str = "tsunaro.io/facts-chunks";
    /// sha256 (hex) of the whole text of a Tailnet's facts.
    pub const FACTS_SHA256: &str = "tsunaro.io/facts-sha256";
    /// sha256 (hex) of the policy that this installation last wrote, on the ConfigMap of the rendered policy.
    pub const POLICY_APPLIED_SHA256: &str = "tsunaro.io/policy-applied-sha256";
    /// When it was written, RFC 3339 UTC.
    pub const POLICY_APPLIED_AT: &str = "tsunaro.io/policy-applied-at";
    /// SOA serial of a gateway's zone.
    pub const DNS_SERIAL: &str = "tsunaro.io/dns-serial";
    /// sha256 (hex) of the meaning of a gateway's zone.
    pub const DNS_CONTENT_SHA256: &str = "tsunaro.io/dns-content-sha256";
    /// Pool label keys that the operator wrote on a gateway's Service.
    pub const POOL_LABEL_KEYS: &str = "tsunaro.io/pool-label-keys";
    /// UID of the gateway that may take the object over.
    pub const ADOPT_GATEWAY: &str = "tsunaro.io/adopt-gateway";
    /// `<Kind>/<namespace>/<name>` of the object whose names and tags this one gets when that one is gone.
    pub const TAKES_OVER: &str = "tsunaro.io/takes-over";
    /// `disabled` asks to skip the admission rules that may be skipped.
    pub const VALIDATION: &str = "tsunaro.io/validation";
    /// `"true"` on the ValidatingWebhookConfiguration once its checking entry has had failurePolicy Fail: an Ignore after that
    /// is somebody's decision.
    pub const FAILED_CLOSED: &str = "tsunaro.io/failed-closed";
    /// Value of [`VALIDATION`].
    pub const VALIDATION_DISABLED: &str = "disabled";
}

/// Finalizers.
pub mod finalizer {
    /// Keeps a TailnetGateway until the operator has torn down what it made.
    pub const GATEWAY_TEARDOWN: &str = "tsunaro.io/gateway-teardown";
}

/// Field managers of server-side apply.
pub mod field_manager {
    /// The operator.
    pub const OPERATOR: &str = "tailnet-operator";
    /// The webhook.
    pub const WEBHOOK: &str = "tailnet-webhook";
    /// The webhook, for a moment, when it makes admission fail closed; and for the annotation that says so.
    pub const WEBHOOK_ARMING: &str = "tailnet-webhook-arming";
}

/// Virtual resource on which `use` lets somebody skip admission rules: `admissionbypasses.tsunaro.io`.
pub const BYPASS_RESOURCE: &str = "admissionbypasses";

/// Children of TailnetEgress `name`, in the operator namespace.
pub mod egress {
    /// Deployment of the agents.
    pub fn deployment(name: &str) -> String {
        format!("tailnet-egress-{name}")
    }

    /// Secret with the pre-auth key (key `authkey`).
    pub fn auth_key_secret(name: &str) -> String {
        format!("tailnet-egress-{name}-authkey")
    }

    /// ConfigMap with the agents' configuration (keys `config.json` and `ca.crt`).
    pub fn config_map(name: &str) -> String {
        format!("tailnet-egress-{name}-config")
    }

    /// NetworkPolicy of the agents.
    pub fn network_policy(name: &str) -> String {
        format!("tailnet-egress-{name}")
    }

    /// PodDisruptionBudget of the agents.
    pub fn pod_disruption_budget(name: &str) -> String {
        format!("tailnet-egress-{name}")
    }

    /// Key of the auth key in its Secret.
    pub const AUTH_KEY: &str = "authkey";
    /// Key of the configuration in the ConfigMap.
    pub const CONFIG_KEY: &str = "config.json";
    /// Key of the CA bundle in the ConfigMap.
    pub const CA_KEY: &str = "ca.crt";
}

/// Children of TailnetIngress `name`, in its namespace. Keys in the Secret and the ConfigMap are those of [`egress`].
pub mod ingress {
    /// Deployment of the agents.
    pub fn deployment(name: &str) -> String {
        format!("tailnet-ingress-{name}")
    }

    /// Secret with the pre-auth key.
    pub fn auth_key_secret(name: &str) -> String {
        format!("tailnet-ingress-{name}-authkey")
    }

    /// ConfigMap with the agents' configuration.
    pub fn config_map(name: &str) -> String {
        format!("tailnet-ingress-{name}-config")
    }

    /// NetworkPolicy of the agents.
    pub fn network_policy(name: &str) -> String {
        format!("tailnet-ingress-{name}")
    }

    /// PodDisruptionBudget of the agents.
    pub fn pod_disruption_budget(name: &str) -> String {
        format!("tailnet-ingress-{name}")
    }

    /// cert-manager's Certificate, and the Secret that it fills.
    pub fn certificate(name: &str) -> String {
        format!("tailnet-ingress-{name}-tls")
    }
}

/// Objects of a Tailnet, in the operator namespace.
pub mod tailnet {
    /// ConfigMap with chunk `index` of the facts.
    pub fn facts_config_map(tailnet: &str, index: usize) -> String {
        format!("tailnet-facts-{tailnet}-{index}")
    }

    /// ConfigMap with the rendered policy.
    pub fn rendered_policy_config_map(tailnet: &str) -> String {
        format!("tailnet-rendered-policy-{tailnet}")
    }

    /// Lease whose renewTime is the last successful read of Headscale.
    pub fn facts_lease(tailnet: &str) -> String {
        format!("tailnet-facts-{tailnet}")
    }

    /// ConfigMap with the claims.
    pub fn claims_config_map(tailnet: &str) -> String {
        format!("tailnet-claims-{tailnet}")
    }

    /// ConfigMap with part `index` of the claims: part 0 is [`claims_config_map`], further ones exist only when the claims
    /// do not fit it.
    pub fn claims_part_config_map(tailnet: &str, index: usize) -> String {
        match index {
            0 => claims_config_map(tailnet),
            // A name of its own, not a suffix: a Tailnet's name may end in anything.
            _ => format!("tailnet-more-claims-{index}-{tailnet}"),
        }
    }

    /// Tailnet and index of a ConfigMap called by [`claims_part_config_map`]; None for any other name.
    pub fn claims_part_of(config_map: &str) -> Option<(&str, usize)> {
        if let Some(tailnet) = config_map.strip_prefix("tailnet-claims-") {
            return Some((tailnet, 0));
        }
        let (index, tailnet) = config_map.strip_prefix("tailnet-more-claims-")?.split_once('-')?;
        let number = index.parse().ok().filter(|number: &usize| *number > 0)?;
        (number.to_string() == index).then_some((tailnet, number))
    }

    /// Secret with the operator's working API key.
    pub fn api_key_secret(tailnet: &str) -> String {
        format!("tailnet-{tailnet}-apikey")
    }

    /// Secret with the record of every key that was made.
    pub const KEY_LEDGER: &str = "tailnet-key-ledger";
    /// ConfigMap with the CA bundle that all Tailnets trust (key `ca.crt`).
    pub const TRUSTED_CA: &str = "tailnet-trusted-ca";
    /// Key of the hosts file in a Tailnet's hosts ConfigMap.
    pub const HOSTS_KEY: &str = "hosts";
    /// Key of the people's part of the policy in its ConfigMap.
    pub const POLICY_KEY: &str = "policy.hujson";
}

/// Keys of the ConfigMap with a Tailnet's rendered policy. A text that is large stands under its key with [`COMPRESSED`] behind
/// it, gzipped, in `binaryData`.
///
/// [`COMPRESSED`]: rendered_policy::COMPRESSED
pub mod rendered_policy {
    /// The document that this installation wants in Headscale.
    pub const RENDERED: &str = "rendered.hujson";
    /// The document that is in Headscale; absent when there is none, or when [`LEFT_OUT`] names it.
    pub const LIVE: &str = "live.hujson";
    /// The difference, live to rendered.
    pub const DIFF: &str = "diff";
    /// The document that was last overwritten although this installation had not written it.
    pub const OVERWRITTEN: &str = "overwritten.hujson";
    /// Behind the name of a key whose text is compressed.
    pub const COMPRESSED: &str = ".gz";
    /// Names, one a line, the keys whose texts do not fit the ConfigMap.
    pub const LEFT_OUT: &str = "left-out";
}
