//! Condition types and reasons: one table, from which `docs/reference/conditions.md` is generated.
//!
//! A reason says whose turn it is, and its row says what to do.

use crate::{Kind, Turn};

/// Condition types.
pub mod condition {
    /// Whether the object passes the admission rules now (the guard's verdict).
    pub const ACCEPTED: &str = "Accepted";
    /// Whether the object does what it is for.
    pub const READY: &str = "Ready";
    /// Tailnet: whether Headscale answers.
    pub const REACHABLE: &str = "Reachable";
    /// Tailnet: whether the operator's working API key is good.
    pub const API_KEY_READY: &str = "APIKeyReady";
    /// Whether the policy carries what the object needs.
    pub const POLICY_READY: &str = "PolicyReady";
    /// Whether the object's names are published.
    pub const DNS_READY: &str = "DNSReady";
    /// Tailnet: whether peers ask the right resolver; nobody can tell from here.
    pub const SPLIT_DNS: &str = "SplitDNS";
    /// Tailnet: whether the organisation's policies are all in force; only there when there are, or were, some.
    pub const ORGANISATION_POLICIES: &str = "OrganisationPolicies";
    /// Egress, ingress: whether the agents have a pre-auth key.
    pub const KEY_READY: &str = "KeyReady";
    /// Egress, ingress: whether the agents run and have joined.
    pub const WORKLOAD_READY: &str = "WorkloadReady";
    /// Egress: whether every target is routed.
    pub const ROUTES_READY: &str = "RoutesReady";
    /// Ingress: whether there is a certificate for all http names.
    pub const CERTIFICATE_READY: &str = "CertificateReady";
    /// Site: whether every prefix is advertised.
    pub const ADVERTISED: &str = "Advertised";
    /// Site: whether every prefix is approved.
    pub const APPROVED: &str = "Approved";
    /// Gateway: whether the node is registered with the retained identity.
    pub const REGISTERED: &str = "Registered";
    /// Gateway: whether every planned route is approved.
    pub const ROUTES_IN_SYNC: &str = "RoutesInSync";
    /// Gateway: whether the LoadBalancer Service has an address.
    pub const SERVICE_READY: &str = "ServiceReady";
    /// Gateway: whether the running Pod follows the spec.
    pub const WORKLOAD_CURRENT: &str = "WorkloadCurrent";
    /// Gateway: whether older nodes of the same name are left over.
    pub const STALE_NODES: &str = "StaleNodes";
    /// Gateway: whether the cluster's DNS forwards the zone.
    pub const CLUSTER_DNS_FORWARD: &str = "ClusterDNSForward";
}

use condition::*;

/// Condition types of a kind, in the order in which they build on each other.
pub fn conditions_of(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Tailnet => &[
            ACCEPTED,
            REACHABLE,
            API_KEY_READY,
            POLICY_READY,
            DNS_READY,
            SPLIT_DNS,
            ORGANISATION_POLICIES,
            READY,
        ],
        Kind::TailnetEgress => &[
            ACCEPTED,
            KEY_READY,
            WORKLOAD_READY,
            POLICY_READY,
            ROUTES_READY,
            DNS_READY,
            READY,
        ],
        Kind::TailnetIngress => &[
            ACCEPTED,
            KEY_READY,
            CERTIFICATE_READY,
            WORKLOAD_READY,
            POLICY_READY,
            DNS_READY,
            READY,
        ],
        Kind::TailnetSite => &[ACCEPTED, ADVERTISED, APPROVED, READY],
        Kind::TailnetGateway => &[
            ACCEPTED,
            REGISTERED,
            ROUTES_IN_SYNC,
            DNS_READY,
            SERVICE_READY,
            WORKLOAD_CURRENT,
            STALE_NODES,
            CLUSTER_DNS_FORWARD,
            READY,
        ],
    }
}

/// One reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonRow {
    /// As in a condition's `reason`.
    pub reason: &'static str,
    /// Condition types that can have it.
    pub conditions: &'static [&'static str],
    /// What it means.
    pub meaning: &'static str,
    /// What to do; empty when all is well.
    pub fix: &'static str,
    /// Whose turn it is.
    pub turn: Turn,
    /// Whether this version of the operator sets it. The others are agreed names of what is not built yet.
    pub set: bool,
}

macro_rules! reasons {
    (@set) => { true };
    (@set later) => { false };
    ($($(@ $later:ident)? $name:ident = $reason:literal, $conditions:expr, $meaning:literal, $fix:literal, $turn:ident;)*) => {
        /// Reasons of conditions.
        pub mod reason {
            $(#[doc = $meaning] pub const $name: &str = $reason;)*
        }

        /// Every reason with its meaning and fix.
        pub static REASONS: &[ReasonRow] = &[
            $(ReasonRow { reason: reason::$name, conditions: $conditions, meaning: $meaning, fix: $fix, turn: Turn::$turn, set: reasons!(@set $($later)?) },)*
        ];
    };
}

reasons! {
    // The guard
    VALID = "Valid", &[ACCEPTED], "The object passes every rule that could be checked.", "", Done;
    INVALID = "Invalid", &[ACCEPTED], "The object breaks a rule; the message has the rule ids. What it had created is frozen, or withdrawn if a security rule is broken.", "Read the rule in docs/reference/rules.md and change the object.", Author;
    TAILNET_NOT_FOUND = "TailnetNotFound", &[ACCEPTED], "There is no Tailnet of the name in tailnetRef. What runs goes on unchanged.", "Create the Tailnet, or correct the name (delete the object and create it again).", Author;
    HELD_BY_OTHER = "HeldByOther", &[ACCEPTED], "Another object holds a name, tag, prefix or hostname that this one asks for; the message names it. This object has no effect.", "Choose another value, or remove the holder.", Author;
    WAITING_FOR_HOLDER = "WaitingForHolder", &[ACCEPTED], "The object takes over from another one (annotation tsunaro.io/takes-over), which is still there.", "Delete the holder, or wait until it is gone.", Author;
    CLAIMS_NOT_RECORDED = "ClaimsNotRecorded", &[ACCEPTED], "The record of who holds which name cannot be written, so nothing new is accepted. What runs goes on unchanged.", "Do what the message says: mostly a quota, an admission policy or the operator's RBAC on ConfigMaps.", Platform;
    TAG_NOT_OWNED = "TagNotOwned", &[ACCEPTED, POLICY_READY], "The live policy has no owner for the object's tag, so no rule of it can name the tag. On Accepted: nothing new is made; agents that run keep their key and their place in the tailnet.", "Add the tag to tagOwners in Headscale's policy (an empty list of owners is enough), and a grant; the operator reads the policy every 15 s.", TailnetAdmin;
    @later RULES_UNCHECKED = "RulesUnchecked", &[ACCEPTED], "Facts about Headscale are missing or too old, so some rules could not be checked. What runs goes on unchanged.", "See the Reachable condition of the Tailnet.", Platform;

    // The organisation's policies
    POLICIES_IN_FORCE = "InForce", &[ORGANISATION_POLICIES], "Every ConfigMap with the label tsunaro.io/admission-policy is in force as a policy.", "", Done;
    POLICY_UNUSABLE = "PolicyUnusable", &[ORGANISATION_POLICIES], "A policy does not compile; the message says why. Nothing that it could be about is let through.", "Correct the ConfigMap, or take its label off.", Platform;
    POLICY_VANISHED = "PolicyVanished", &[ORGANISATION_POLICIES], "A policy was deleted while it was in force, so what it refused is let through now.", "Create it again. If it was meant to go: delete the ConfigMap tailnet-organisation-policies, and the next time take the label off first.", Platform;

    // Overall
    READY_REASON = "Ready", &[READY], "Everything that the object asks for is in place.", "", Done;
    NOT_ACCEPTED = "NotAccepted", &[REACHABLE, API_KEY_READY, KEY_READY, CERTIFICATE_READY, WORKLOAD_READY, POLICY_READY, ROUTES_READY, DNS_READY, ADVERTISED, APPROVED, READY], "The object is not accepted.", "See Accepted.", Author;
    PROGRESSING = "Progressing", &[READY, WORKLOAD_READY], "Not there yet; nothing is known to be wrong.", "Wait. If it lasts longer than a minute, look at the Deployment and the Pods (kubectl -n tailnet-system get deployments,pods -l tsunaro.io/owner-name=NAME, then describe). Our own kinds have no events.", Wait;
    NOT_IMPLEMENTED = "NotImplemented", &[READY], "This version of the operator checks the object and does nothing else with it.", "Wait for a version that does (docs/status.md).", Wait;
    API_SERVER_ERROR = "APIServerError", &[API_KEY_READY, KEY_READY, WORKLOAD_READY, READY], "The API server refused or did not answer a request of the operator; the message has its words.", "Mostly nothing: the operator tries again. If it lasts, check quotas, admission policies and the operator's RBAC.", Platform;
    @later DEGRADED = "Degraded", &[READY], "Part of it works; the message names the condition that fails.", "See that condition.", Platform;

    // Headscale
    REACHABLE_REASON = "Reachable", &[REACHABLE], "Headscale answered the last request.", "", Done;
    CONTROL_PLANE_UNREACHABLE = "ControlPlaneUnreachable", &[REACHABLE, API_KEY_READY, KEY_READY, POLICY_READY, ADVERTISED, APPROVED, READY], "Headscale does not answer. Connections that exist go on.", "Check spec.server or spec.api.endpoint, the network and Headscale itself.", TailnetAdmin;
    CERTIFICATE_NOT_TRUSTED = "CertificateNotTrusted", &[REACHABLE], "Headscale's certificate does not chain to a trusted CA, or is for another name.", "Set spec.api.caConfigMapRef, or the chart's trustedCA.", Platform;
    CA_UNUSABLE = "CAUnusable", &[REACHABLE], "A CA bundle for Headscale is missing or is no PEM text.", "Repair the ConfigMap of spec.api.caConfigMapRef (its key is ca.crt unless the reference says otherwise; the message lists the keys that it has), or the chart's trustedCA.", Platform;
    INVALID_URL = "InvalidURL", &[REACHABLE], "spec.server or spec.api.endpoint is no usable URL.", "Correct it.", Platform;
    NAME_NOT_RESOLVED = "NameNotResolved", &[REACHABLE], "The operator cannot resolve the name of the endpoint.", "Correct the name, or set spec.api.endpoint to one that resolves in the cluster.", Platform;
    CONNECTION_REFUSED = "ConnectionRefused", &[REACHABLE], "Nothing listens at the endpoint.", "Start Headscale, or correct host and port.", TailnetAdmin;
    NO_ANSWER = "NoAnswer", &[REACHABLE], "The endpoint does not answer in time.", "Look for a firewall or NetworkPolicy between the operator and Headscale.", Platform;
    TLS_FAILED = "TLSFailed", &[REACHABLE], "The TLS handshake fails, though not for an untrusted issuer: the certificate is for another name, has ended, or TLS is not spoken there.", "Renew or correct Headscale's certificate, or the URL.", TailnetAdmin;
    UNSUPPORTED_VERSION = "UnsupportedVersion", &[REACHABLE], "Headscale is older than 0.29.", "Upgrade Headscale.", TailnetAdmin;
    SERVER_ERROR = "ServerError", &[REACHABLE], "Headscale, or a proxy in front of it, answers with an error.", "Look at Headscale's log; the operator goes on trying.", TailnetAdmin;
    READ_FAILED = "ReadFailed", &[REACHABLE], "Headscale answers, but its nodes or policy cannot be read.", "Look at Headscale's log; the operator goes on trying.", TailnetAdmin;
    FACTS_NOT_PUBLISHED = "FactsNotPublished", &[READY], "What was read of Headscale cannot be written for the admission rules.", "Do what the message says.", Platform;
    UNEXPECTED_ANSWER = "UnexpectedAnswer", &[REACHABLE], "Something answers at the endpoint, but not as Headscale does.", "Check spec.api.endpoint.", Platform;

    // API key of a Tailnet
    API_KEY_READY_REASON = "APIKeyReady", &[API_KEY_READY], "The operator has a working API key.", "", Done;
    SECRET_NOT_FOUND = "SecretNotFound", &[API_KEY_READY, CERTIFICATE_READY], "The Secret that the object names does not exist.", "Create it; the message has its namespace and name.", Author;
    SECRET_KEY_MISSING = "SecretKeyMissing", &[API_KEY_READY, CERTIFICATE_READY], "The Secret does not have the key that is needed; the message lists the keys that it has.", "Add the key that the message names, or name the right one in the reference.", Author;
    API_KEY_MALFORMED = "APIKeyMalformed", &[API_KEY_READY], "The text in the Secret is no API key.", "Put the key there as headscale apikeys create prints it.", Platform;
    TOO_MANY_KEYS = "TooManyKeys", &[API_KEY_READY, KEY_READY], "The hourly limit of new keys for one object is reached.", "Find out who removes its keys; the operator goes on after the time in the message.", Platform;
    LEDGER_UNUSABLE = "LedgerUnusable", &[API_KEY_READY, KEY_READY], "The key ledger cannot be read or written, so no key is made.", "Restore or delete the Secret that the message names.", Platform;
    API_KEY_REFUSED = "APIKeyRefused", &[API_KEY_READY], "Headscale refuses the API key.", "Put a valid key into the Secret of spec.apiSecretRef (headscale apikeys create).", TailnetAdmin;
    @later API_KEY_EXPIRED = "APIKeyExpired", &[API_KEY_READY], "The API key is past its end.", "Put a new key into the Secret of spec.apiSecretRef (headscale apikeys create).", TailnetAdmin;

    // Pre-auth keys
    KEY_READY_REASON = "KeyReady", &[KEY_READY], "The agents have a pre-auth key for their tag.", "", Done;
    MINT_FAILED = "MintFailed", &[KEY_READY, API_KEY_READY], "Headscale did not make a key; the message has its words.", "Act on the message; the operator tries again.", TailnetAdmin;

    // Policy
    POLICY_READ_ONLY = "ReadOnly", &[POLICY_READY], "The Tailnet has no spec.policy: the operator reads the policy and reports what is missing.", "", Done;
    POLICY_DRY_RUN = "DryRun", &[POLICY_READY], "The policy is rendered but not written. True: the live policy is the same anyway.", "Compare it (the ConfigMap in status.policy.renderedConfigMap has the diff, as has kubectl tailnet policy diff) and set policy.mode: Apply.", Platform;
    POLICY_APPLIED = "Applied", &[POLICY_READY], "The live policy is the rendered one.", "", Done;
    POLICY_REJECTED = "Rejected", &[POLICY_READY], "Headscale refused the rendered policy; the old one stays in force.", "Correct the base document; status.policy.rejection has Headscale's words.", Platform;
    POSTURE_HELD = "PostureHeld", &[POLICY_READY], "The rendered policy would turn allow-all into deny, so it is held back. Back to allow-all is never written by itself: an empty list of grants stands in the document then.", "Set policy.acknowledgePosture to status.policy.renderedSHA256.", Platform;
    REMOVALS_HELD = "RemovalsHeld", &[POLICY_READY], "The rendered policy lacks entries of objects that the API server still has, and the operator's own view of them is not up to date. Nothing is written meanwhile.", "Mostly nothing: it ends when the operator's watches have caught up. If it lasts, look at the operator's log.", Wait;
    POLICY_PENDING = "Pending", &[POLICY_READY], "The live policy differs from the rendered one and is about to be written; changes that come together are written together.", "Wait a few seconds.", Wait;
    POLICY_NOT_WRITTEN = "NotWritten", &[POLICY_READY], "The policy could not be written or rendered; the message says why. The old one stays in force.", "Act on the message; the operator tries again.", Platform;
    UNDEFINED_PRINCIPAL = "UndefinedPrincipal", &[POLICY_READY], "The object names a group, host or tag that the policy does not define, so it has no entries in the policy. Other objects are not concerned.", "Define the name in the base document, or correct it in the object.", Author;
    BASE_NOT_FOUND = "BaseNotFound", &[POLICY_READY], "The ConfigMap of policy.baseConfigMap or its key policy.hujson does not exist.", "Create it in the operator namespace.", Platform;
    BASE_INVALID = "BaseInvalid", &[POLICY_READY], "The base document cannot be read as HuJSON or names what it does not define.", "Correct it; the message has the place.", Platform;
    OWNED_ELSEWHERE = "OwnedElsewhere", &[POLICY_READY], "Another Tailnet or another installation owns the policy of this Headscale.", "Remove spec.policy from one of them.", Platform;
    GRANTED = "Granted", &[POLICY_READY], "The live policy lets the traffic through.", "", Done;
    NO_GRANT = "NoGrant", &[POLICY_READY, ROUTES_READY], "No grant of the live policy lets the traffic through.", "Add one to the base document, or let the Tailnet own the policy.", TailnetAdmin;
    ALLOW_ALL = "AllowAll", &[POLICY_READY], "The live policy has no rules, so every node reaches every other.", "", Done;
    POLICY_UNREADABLE = "PolicyUnreadable", &[POLICY_READY], "The live policy is not HuJSON that the operator can read.", "Correct it in Headscale.", TailnetAdmin;

    // Names
    PUBLISHED = "Published", &[DNS_READY], "The names are in the hosts file.", "", Done;
    NO_NAMES = "NoNames", &[DNS_READY], "The object has no names to publish, or the Tailnet has no hosts file.", "", Done;
    NO_HOSTS_CONFIG_MAP = "NoHostsConfigMap", &[DNS_READY], "The object has names to publish and its Tailnet has no hosts file.", "Set spec.dns.hostsConfigMap of the Tailnet.", Platform;
    NOT_PUBLISHED = "NotPublished", &[DNS_READY], "A name is not in the hosts file yet, or another object holds it.", "Wait, or choose another name.", Wait;
    HOSTS_NOT_OURS = "HostsNotOurs", &[DNS_READY], "The hosts ConfigMap exists and is not the operator's.", "Name another one in dns.hostsConfigMap, or delete it.", Platform;
    @later HOSTS_TOO_LARGE = "HostsTooLarge", &[DNS_READY], "The hosts file would be larger than a ConfigMap can be.", "Publish fewer names.", Platform;
    CANNOT_VERIFY = "CannotVerify", &[SPLIT_DNS], "Headscale has no API that tells which resolvers peers ask.", "Set dns.nameservers.split in Headscale's configuration.", TailnetAdmin;

    // Agents
    AVAILABLE = "Available", &[WORKLOAD_READY], "The agents run and have joined the tailnet.", "", Done;
    UNAVAILABLE = "Unavailable", &[WORKLOAD_READY], "Too few agents are ready; the message has the Pods' own words.", "Look at the Pods, with their events, and at their logs.", Platform;
    @later NOT_JOINED = "NotJoined", &[WORKLOAD_READY], "An agent runs but has not joined the tailnet; the message says why.", "Act on the message: often an expired key, an untrusted certificate, or a firewall.", Platform;
    CONFIG_REFUSED = "ConfigRefused", &[WORKLOAD_READY], "An agent did not take its newest configuration and keeps the one before.", "Read the message; mostly agents and operator are of different versions.", Platform;
    ROLLING_OUT = "RollingOut", &[WORKLOAD_READY], "Enough agents are available while others replace them. False: the newer ones do not get there (the message has their Pods' own words), or those that run are nodes of another tag or login server than the object asks for.", "Where it is False for longer than a minute, act on the message.", Wait;
    NODE_TAG_DIFFERS = "NodeTagDiffers", &[WORKLOAD_READY], "The node of a running agent has other tags in Headscale than the object asks for; the message names it. Somebody changed them there.", "Give the node its tag back, or delete its Pod: the next one joins as a node of its own.", TailnetAdmin;
    CA_NOT_FOUND = "CANotFound", &[WORKLOAD_READY], "The CA bundle for the agents cannot be read; the message names it. What runs goes on unchanged.", "Create the ConfigMap or key, or correct spec.api.caConfigMapRef of the Tailnet.", Platform;
    CHILD_NOT_OURS = "ChildNotOurs", &[WORKLOAD_READY, KEY_READY, API_KEY_READY, POLICY_READY], "An object of a name that the operator needs exists and is not its own.", "Rename or delete that object; it is never taken over.", Platform;

    // Routes of targets, sites and gateways
    ROUTED = "Routed", &[ROUTES_READY], "Every target is routed and granted.", "", Done;
    NOT_ADVERTISED = "NotAdvertised", &[ROUTES_READY, ADVERTISED, READY], "No router advertises a prefix that covers the address.", "Advertise it on the router (--advertise-routes).", TailnetAdmin;
    NOT_APPROVED = "NotApproved", &[ROUTES_READY, APPROVED, ROUTES_IN_SYNC, READY], "A router advertises the route, but it is not approved.", "Approve it (headscale nodes approve-routes), or add an autoApprover.", TailnetAdmin;
    NOT_SERVING = "NotServing", &[ROUTES_READY, READY], "The route is approved, but no live router serves it.", "Bring the router back.", TailnetAdmin;
    ROUTER_EXPIRED = "RouterExpired", &[READY], "The node key of the router has expired: Headscale still lists it, but nothing passes through it.", "Log the router in again.", TailnetAdmin;
    DIAL_FAILED = "DialFailed", &[ROUTES_READY, READY], "The agent's last connection to the target or backend failed, although there is a way to it; the message has the class of the error.", "Check the target itself and the firewall before it.", Author;
    ADVERTISED_REASON = "Advertised", &[ADVERTISED], "Every prefix is advertised by a router with one of the tags.", "", Done;
    APPROVED_REASON = "Approved", &[APPROVED, ROUTES_IN_SYNC], "Every route is approved.", "", Done;

    // Exposes of an ingress
    NAMESPACE_NOT_GRANTED = "NamespaceNotGranted", &[KEY_READY, READY], "The operator may not write in the namespace of the ingress, so nothing is made for it.", "Add the namespace to ingressNamespaces of the chart (docs/ingress.md).", Platform;
    NO_BACKEND = "NoBackend", &[READY], "The Service of an expose does not exist, has no cluster address, or lacks the port; connections to it are refused.", "Create the Service, or correct the expose.", Author;
    NOT_LISTENING = "NotListening", &[READY], "An expose has no listener; the message says why.", "Act on the message.", Author;

    // Certificates
    CERTIFICATE_READY_REASON = "CertificateReady", &[CERTIFICATE_READY], "There is a certificate for all http names.", "", Done;
    CERTIFICATE_NOT_NEEDED = "NotNeeded", &[CERTIFICATE_READY], "No expose terminates TLS.", "", Done;
    CERTIFICATE_PENDING = "CertificatePending", &[CERTIFICATE_READY], "cert-manager has not issued the certificate yet.", "Wait, or look at the Certificate and its CertificateRequest.", Wait;
    CERTIFICATE_FAILED = "CertificateFailed", &[CERTIFICATE_READY], "cert-manager could not issue the certificate; the message has its words.", "Act on the message; look at the issuer.", Platform;
    CERTIFICATE_NOT_ISSUED = "NotIssued", &[CERTIFICATE_READY], "The Secret with the certificate is not there, or lacks tls.crt or tls.key; there is no listener for http exposes.", "Create the Secret that spec.tls.secretRef names; with an issuer, look at the Certificate.", Author;
    CERTIFICATE_INVALID = "InvalidCertificate", &[CERTIFICATE_READY], "Certificate or key cannot be read; an older one that was good stays in use.", "Put a PEM chain into tls.crt and its key into tls.key.", Author;
    CERTIFICATE_KEY_MISMATCH = "KeyMismatch", &[CERTIFICATE_READY], "The private key is of another certificate; an older pair that was good stays in use.", "Put the key into tls.key that belongs to tls.crt.", Author;
    CERTIFICATE_NAMES = "SANMismatch", &[CERTIFICATE_READY], "The certificate lacks names of http exposes; those have no listener.", "Issue one for the names in the message.", Author;
    CERTIFICATE_EXPIRED = "Expired", &[CERTIFICATE_READY], "The certificate is past its end or not yet valid; there is no listener unless an older one is still valid.", "Renew it.", Author;
    ISSUER_API_MISSING = "IssuerAPIMissing", &[CERTIFICATE_READY], "cert-manager is not installed.", "Install it, or name a TLS Secret in spec.tls.secretRef.", Platform;

    // Gateways
    @later SUSPENDED = "Suspended", &[READY, REGISTERED, ROUTES_IN_SYNC, DNS_READY, STALE_NODES, CLUSTER_DNS_FORWARD], "spec.suspend is true: nothing is created or changed.", "Set suspend: false.", Author;
    @later PROVISIONING = "Provisioning", &[READY], "The gateway's objects are being created, or its Pod is starting.", "Wait.", Wait;
    @later FRESH_RUNTIME_READY = "FreshRuntimeReady", &[READY], "The Pod runs, the node is online and advertises its routes.", "", Done;
    @later FRESH_BLOCKED = "FreshBlocked", &[READY], "The operator will not go on, so as not to touch what it did not make; the message names the object.", "Remove the conflict, revert the change, or recreate the gateway with deletionPolicy: Delete.", Author;
    @later IDENTITY_CHANGED = "IdentityChanged", &[READY], "A field that makes up the node's identity was changed after activation, or the receipt is of an older format.", "Revert it, or recreate the gateway with deletionPolicy: Delete.", Author;
    DELETING = "Deleting", &[ACCEPTED, READY], "The object is being deleted: what was made for it is removed.", "Wait. If it stays, its finalizers (metadata.finalizers) are somebody else's: they must take them off.", Wait;
    @later TEARDOWN_BLOCKED = "TeardownBlocked", &[READY], "The teardown met an object that is not this gateway's, or an error; the message names the step.", "Remove the conflict, or set deletionPolicy: Retain.", Author;
    @later REGISTERED_REASON = "Registered", &[REGISTERED], "The node is online with the retained identity.", "", Done;
    @later NOT_REGISTERED = "NotRegistered", &[REGISTERED], "The node is not (yet) seen in Headscale with the retained identity.", "Wait, or look at the Pod's logs.", Wait;
    @later DNS_IN_SYNC = "DNSInSync", &[DNS_READY], "The zone has every name of the hosts file at the recorded serial.", "", Done;
    @later DNS_UPDATE_BLOCKED = "DNSUpdateBlocked", &[DNS_READY], "Source, target or revision of the zone is not verified; nothing is written.", "Recreate the gateway with deletionPolicy: Delete.", Author;
    @later DNS_UPDATE_CONFLICT = "DNSUpdateConflict", &[DNS_READY], "Somebody else changed the zone's ConfigMap at the same time.", "Wait; the operator tries again.", Wait;
    @later LOAD_BALANCER_ASSIGNED = "LoadBalancerAssigned", &[SERVICE_READY], "The LoadBalancer Service has its address.", "", Done;
    @later LB_PENDING = "LBPending", &[SERVICE_READY], "The LoadBalancer Service has no address yet.", "Check the load balancer controller, its pool and loadBalancerClass.", Platform;
    @later SERVICE_UPDATE_BLOCKED = "ServiceUpdateBlocked", &[SERVICE_READY], "A pool label is already on the Service and is not the operator's.", "Remove that label, or choose another key.", Author;
    @later SERVICE_UPDATE_CONFLICT = "ServiceUpdateConflict", &[SERVICE_READY], "Somebody else changed the Service at the same time.", "Wait; the operator tries again.", Wait;
    @later POD_CURRENT = "PodCurrent", &[WORKLOAD_CURRENT], "The running Pod follows the spec.", "", Done;
    @later POD_TEMPLATE_STALE = "PodTemplateStale", &[WORKLOAD_CURRENT], "The template follows the spec, the running Pod does not yet.", "Delete the Pod when it suits you.", Author;
    @later WORKLOAD_UPDATE_BLOCKED = "WorkloadUpdateBlocked", &[WORKLOAD_CURRENT], "The StatefulSet or the receipt is not verified; nothing is written.", "Revert the change, or recreate the gateway with deletionPolicy: Delete.", Author;
    @later WORKLOAD_UPDATE_CONFLICT = "WorkloadUpdateConflict", &[WORKLOAD_CURRENT], "Somebody else changed the StatefulSet at the same time.", "Wait; the operator tries again.", Wait;
    @later EXTERNALLY_MANAGED = "ExternallyManaged", &[STALE_NODES, CLUSTER_DNS_FORWARD], "The operator does not manage this.", "It is yours; see the guide to gateways.", Platform;
    UNKNOWN = "Unknown", &[READY, CERTIFICATE_READY, ROUTES_READY, ROUTES_IN_SYNC, REGISTERED, ADVERTISED, APPROVED, POLICY_READY, DNS_READY], "Not known (yet).", "Wait, or see the other conditions.", Wait;
}

/// The row of `reason`; None for one that is not in the table.
pub fn reason_row(reason: &str) -> Option<&'static ReasonRow> {
    REASONS.iter().find(|row| row.reason == reason)
}
