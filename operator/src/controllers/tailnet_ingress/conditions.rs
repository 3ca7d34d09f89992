//! The status of an ingress: conditions, nodes, exposes and certificate from what was seen.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tailnet_crds::agent::{AgentCertificate, AgentStatus, CertificateCause};
use tailnet_crds::conditions::condition::{
    ACCEPTED, CERTIFICATE_READY, DNS_READY, KEY_READY, POLICY_READY, READY, WORKLOAD_READY,
};
use tailnet_crds::conditions::reason;
use tailnet_crds::types::NodeStatus;
use tailnet_crds::{
    CertificateStatus, Expose, ExposeMode, ExposeState, ExposeStatus, Kind, Tailnet, TailnetIngress,
    TailnetIngressStatus,
};
use tailnet_headscale::Node;
use tailnet_policies::ObjectRef;
use tailnet_policies::facts::Posture;

use super::{IngressError, Issuance, Progress, workload};
use crate::children::ChildError;
use crate::context::Context;
use crate::controllers::key_ready;
use crate::controllers::tailnet_egress::workload::{Workload, state};
use crate::facts;
use crate::headscale_clients::Observed;
use crate::hosts::{self, Published};
use crate::status::{Conditions, Truth};

type Seen = Vec<(String, AgentStatus)>;

/// The status to write.
pub(super) fn status(
    context: &Context,
    ingress: &TailnetIngress,
    tailnet: Option<&Tailnet>,
    progress: &Progress,
    now: Timestamp,
) -> TailnetIngressStatus {
    let before = ingress.status.clone().unwrap_or_default();
    let mut conditions = Conditions::new(ingress.metadata.generation, &before.conditions, now);
    let deployment = workload::deployment(context, ingress);
    match &progress.refused {
        None => conditions.set(ACCEPTED, Truth::True, reason::VALID, "all rules are kept"),
        Some((reason::CLAIMS_NOT_RECORDED, message)) => {
            conditions.set(ACCEPTED, Truth::Unknown, reason::CLAIMS_NOT_RECORDED, message);
        }
        Some((reason, message)) => conditions.set(ACCEPTED, Truth::False, reason, message),
    }
    if progress.refused.is_some() {
        let runs = deployment.is_some() && progress.leaving.is_none();
        let message = match (ingress.metadata.deletion_timestamp.is_some(), progress.leaving) {
            (true, _) => "the object is being deleted".to_owned(),
            (false, Some(left)) if left > 0 => {
                let trouble = progress.problems.first();
                let trouble = trouble.map(|trouble| format!("; {trouble}")).unwrap_or_default();
                format!("names, key and nodes are taken away, and {left} agents are being stopped{trouble}")
            }
            (false, _) if runs => {
                "what runs is left as it is, and not looked at, until the object is accepted".to_owned()
            }
            (false, _) => "nothing is made until the object is accepted".to_owned(),
        };
        for r#type in [KEY_READY, CERTIFICATE_READY, WORKLOAD_READY, POLICY_READY, DNS_READY] {
            conditions.set(r#type, Truth::Unknown, reason::NOT_ACCEPTED, message.as_str());
        }
        ready(&mut conditions, &[]);
        return TailnetIngressStatus {
            conditions: conditions.finish(),
            nodes: if runs { before.nodes } else { Vec::new() },
            exposes: if runs { before.exposes } else { Vec::new() },
            certificate: if runs { before.certificate } else { None },
        };
    }
    let pods = workload::pods(context, ingress);
    let seen = workload::seen(context, &pods);
    let observed = context.hub.facts(&ingress.spec.tailnet_ref.name);
    let nodes = node_statuses(&seen, observed.as_ref().map(|observed| observed.nodes.as_slice()));
    let exposes: Vec<ExposeStatus> = ingress
        .spec
        .exposes
        .iter()
        .enumerate()
        .map(|(at, expose)| expose_status(expose, at, progress, &seen, &nodes))
        .collect();

    key_ready::set(&mut conditions, progress.key.as_ref());
    let certificate = certificate(&mut conditions, progress, &seen);
    let named = pods_and_deployment(context, progress, deployment.as_deref(), &pods, &seen);
    conditions.set(WORKLOAD_READY, named.0, named.1, named.2);
    let reference = ObjectRef::ours(
        Kind::TailnetIngress,
        ingress.namespace().as_deref(),
        &ingress.name_any(),
    );
    let left_out = context
        .access_policies
        .left_out(&ingress.spec.tailnet_ref.name, &reference.to_string());
    policy(&mut conditions, observed.as_deref(), &progress.tag, ingress, left_out);
    dns(&mut conditions, context, ingress, tailnet, progress);
    ready(&mut conditions, &exposes);
    TailnetIngressStatus {
        conditions: conditions.finish(),
        nodes,
        exposes,
        certificate,
    }
}

/// The agents' word is the truth: they hold the certificate that peers see. cert-manager's explains why there is none.
fn certificate(conditions: &mut Conditions, progress: &Progress, seen: &Seen) -> Option<CertificateStatus> {
    let mut set = |truth, reason, message: String| conditions.set(CERTIFICATE_READY, truth, reason, message);
    let Some(secret) = &progress.certificate_secret else {
        let message = "no expose terminates TLS on the agent";
        set(Truth::True, reason::CERTIFICATE_NOT_NEEDED, message.to_owned());
        return None;
    };
    let says = seen.iter().find_map(|(_, status)| status.certificate.clone());
    let status = CertificateStatus {
        secret_name: secret.clone(),
        not_after: says
            .as_ref()
            .and_then(|says| says.not_after.as_ref()?.parse().ok())
            .map(Time),
        dns_names: says.as_ref().map(|says| says.dns_names.clone()).unwrap_or_default(),
    };
    let issuance = issuance(progress);
    match says {
        Some(AgentCertificate { problem: None, .. }) => {
            let message = format!("Secret {secret} has a certificate for all http names");
            set(Truth::True, reason::CERTIFICATE_READY_REASON, message);
        }
        Some(AgentCertificate {
            problem: Some(problem), ..
        }) => match (problem.cause, issuance) {
            (CertificateCause::NotIssued, Some((truth, reason, message))) => set(truth, reason, message),
            (cause, _) => set(
                Truth::False,
                cause_reason(cause),
                format!("Secret {secret}: {}", problem.message),
            ),
        },
        None => match issuance {
            Some((truth, reason, message)) => set(truth, reason, message),
            None => set(
                Truth::Unknown,
                reason::UNKNOWN,
                format!("no agent has said yet what is in Secret {secret}"),
            ),
        },
    }
    Some(status)
}

fn cause_reason(cause: CertificateCause) -> &'static str {
    match cause {
        CertificateCause::NotIssued => reason::CERTIFICATE_NOT_ISSUED,
        CertificateCause::Invalid => reason::CERTIFICATE_INVALID,
        CertificateCause::KeyMismatch => reason::CERTIFICATE_KEY_MISMATCH,
        CertificateCause::Expired => reason::CERTIFICATE_EXPIRED,
        CertificateCause::SANMismatch => reason::CERTIFICATE_NAMES,
    }
}

/// Why cert-manager has not issued; None where it has, or is not asked.
fn issuance(progress: &Progress) -> Option<(Truth, &'static str, String)> {
    match progress.issuance.as_ref()? {
        Issuance::NotInstalled => Some((
            Truth::False,
            reason::ISSUER_API_MISSING,
            "cert-manager is not installed, so nobody issues the certificate: install it, or name a TLS Secret in spec.tls.secretRef"
                .to_owned(),
        )),
        Issuance::Says(Some((status, _, _))) if status == "True" => None,
        Issuance::Says(Some((_, why, message))) if why == "Failed" || why == "Denied" || why == "InvalidRequest" => Some((
            Truth::False,
            reason::CERTIFICATE_FAILED,
            format!("cert-manager: {message}"),
        )),
        Issuance::Says(Some((_, _, message))) => Some((
            Truth::False,
            reason::CERTIFICATE_PENDING,
            format!("cert-manager: {message}"),
        )),
        Issuance::Says(None) => Some((
            Truth::False,
            reason::CERTIFICATE_PENDING,
            "cert-manager has not looked at the Certificate yet".to_owned(),
        )),
    }
}

fn pods_and_deployment(
    context: &Context,
    progress: &Progress,
    deployment: Option<&k8s_openapi::api::apps::v1::Deployment>,
    pods: &[std::sync::Arc<k8s_openapi::api::core::v1::Pod>],
    seen: &Seen,
) -> (Truth, &'static str, String) {
    let worst = progress.problems.iter().min_by_key(|problem| match problem {
        IngressError::Child(ChildError::Foreign { .. }) => 0,
        IngressError::Ca(_) => 1,
        _ => 2,
    });
    if let Some(problem) = worst {
        let reason = match problem {
            IngressError::Child(ChildError::Foreign { .. }) => reason::CHILD_NOT_OURS,
            IngressError::Ca(_) => reason::CA_NOT_FOUND,
            _ => reason::API_SERVER_ERROR,
        };
        return (Truth::False, reason, problem.to_string());
    }
    let Some(deployment) = deployment else {
        let message = "the agents' Deployment is not there yet; it is made once there is a key";
        return (Truth::False, reason::PROGRESSING, message.to_owned());
    };
    if let Some((pod, why)) = seen
        .iter()
        .find_map(|(pod, status)| Some((pod, status.config_error.clone()?)))
    {
        let message = format!("agent {pod} did not take its newest configuration: {why}");
        return (Truth::False, reason::CONFIG_REFUSED, message);
    }
    match state(deployment, pods, |uid| context.agents.of(uid)) {
        Workload::Available { replicas } => (
            Truth::True,
            reason::AVAILABLE,
            format!("{replicas} of {replicas} agents are available"),
        ),
        Workload::RollingOut { replicas, trouble } => {
            let who = format!("{replicas} agents are available while others replace them");
            match trouble {
                Some(trouble) => (
                    Truth::False,
                    reason::ROLLING_OUT,
                    format!("{who}; the new ones do not get there: {trouble}"),
                ),
                None => (Truth::True, reason::ROLLING_OUT, who),
            }
        }
        Workload::Short {
            available,
            replicas,
            trouble,
        } => {
            let why = trouble.map(|trouble| format!("; {trouble}")).unwrap_or_default();
            let message = format!("{available} of {replicas} agents are available{why}");
            (Truth::False, reason::UNAVAILABLE, message)
        }
    }
}

/// Whether anybody is let in. Who, and on which port, is Headscale's to say.
fn policy(
    conditions: &mut Conditions,
    observed: Option<&Observed>,
    tag: &str,
    ingress: &TailnetIngress,
    left_out: Option<String>,
) {
    let mut set = |truth, reason, message: String| conditions.set(POLICY_READY, truth, reason, message);
    if let Some(why) = left_out {
        let message = format!("the object has no entries in the policy: {why}");
        return set(Truth::False, reason::UNDEFINED_PRINCIPAL, message);
    }
    let Some(observed) = observed else {
        let message = "Headscale's policy has not been read yet";
        return set(Truth::Unknown, reason::CONTROL_PLANE_UNREACHABLE, message.to_owned());
    };
    if let Some(error) = &observed.policy_error {
        let message = format!("Headscale's policy cannot be read: {error}");
        return set(Truth::Unknown, reason::POLICY_UNREADABLE, message);
    }
    if facts::posture(observed) == Posture::AllowAll {
        let message = "Headscale's policy has no rules, so every node reaches every other, whatever allowFrom says";
        return set(Truth::True, reason::ALLOW_ALL, message.to_owned());
    }
    if !observed.policy.tag_owners.contains_key(tag) {
        let message = format!(
            "{tag} has no owner in Headscale's policy, so no rule can name it: add \"{tag}\": [] to its tagOwners, and a grant"
        );
        return set(Truth::False, reason::TAG_NOT_OWNED, message);
    }
    let grants = observed.policy.grants.iter().flatten().flat_map(|grant| &grant.dst);
    let acls = observed.policy.acls.iter().flatten().flat_map(|acl| &acl.dst);
    let reaches = |dst: &String| {
        dst == "*"
            || dst == tag
            || dst.starts_with("*:")
            || dst.strip_prefix(tag).is_some_and(|rest| rest.starts_with(':'))
    };
    if grants.chain(acls).any(reaches) {
        let message = format!("{tag} has an owner, and a rule of Headscale's policy leads to it");
        return set(Truth::True, reason::GRANTED, message);
    }
    let sources: Vec<String> = ingress
        .spec
        .allow_from
        .iter()
        .map(|source| format!("\"{}\"", source.as_str()))
        .collect();
    if sources.is_empty() {
        let message = format!(
            "spec.allowFrom is empty and no rule of Headscale's policy leads to {tag}, so nobody is let in: name who may connect in spec.allowFrom"
        );
        return set(Truth::False, reason::NO_GRANT, message);
    }
    let message = format!(
        "no rule of Headscale's policy leads to {tag}: add a grant {{\"src\": [{}], \"dst\": [\"{tag}\"], \"ip\": [\"*\"]}}",
        sources.join(", ")
    );
    set(Truth::False, reason::NO_GRANT, message);
}

fn dns(
    conditions: &mut Conditions,
    context: &Context,
    ingress: &TailnetIngress,
    tailnet: Option<&Tailnet>,
    progress: &Progress,
) {
    let mut set = |truth, reason, message: String| conditions.set(DNS_READY, truth, reason, message);
    let Some(tailnet) = tailnet else {
        return set(
            Truth::False,
            reason::TAILNET_NOT_FOUND,
            "there is no Tailnet".to_owned(),
        );
    };
    let asked = hosts::asked_names(ingress, tailnet);
    if asked.is_empty() {
        let message = "no expose has a name: the Tailnet has no dns.ingressNameTemplate";
        return set(Truth::True, reason::NO_NAMES, message.to_owned());
    }
    match hosts::published(context, tailnet) {
        Published::NotConfigured => set(
            Truth::False,
            reason::NO_HOSTS_CONFIG_MAP,
            format!(
                "names are published nowhere: set spec.dns.hostsConfigMap of Tailnet {}",
                tailnet.name_any()
            ),
        ),
        Published::Missing { name } => {
            let message = format!("ConfigMap {name} with the hosts file is not there yet");
            set(Truth::False, reason::NOT_PUBLISHED, message);
        }
        Published::Foreign { name, holder } => set(
            Truth::False,
            reason::HOSTS_NOT_OURS,
            format!(
                "ConfigMap {name} is not ours (it belongs to {holder}) and is left alone: remove it, or name another one in spec.dns.hostsConfigMap"
            ),
        ),
        Published::Ours { name, text } => {
            let addresses = hosts::node_addresses(context, ingress, &progress.tag);
            let missing: Vec<String> = asked
                .into_iter()
                .filter(|asked| !addresses.as_ref().is_some_and(|a| hosts::is_published(&text, asked, a)))
                .collect();
            if missing.is_empty() {
                set(
                    Truth::True,
                    reason::PUBLISHED,
                    format!("all names are in ConfigMap {name}"),
                );
            } else {
                let message = format!(
                    "not in ConfigMap {name} yet (the agents have not joined), or held by another object: {}",
                    missing.join(", ")
                );
                set(Truth::False, reason::NOT_PUBLISHED, message);
            }
        }
    }
}

fn ready(conditions: &mut Conditions, exposes: &[ExposeStatus]) {
    let order = [
        ACCEPTED,
        KEY_READY,
        CERTIFICATE_READY,
        WORKLOAD_READY,
        POLICY_READY,
        DNS_READY,
    ];
    if let Some(first) = conditions.first_not_true(&order).cloned() {
        let truth = if first.status == "Unknown" {
            Truth::Unknown
        } else {
            Truth::False
        };
        let reason = if first.type_ == ACCEPTED {
            reason::NOT_ACCEPTED
        } else {
            first.reason.as_str()
        };
        conditions.set(READY, truth, reason, format!("{}: {}", first.type_, first.message));
        return;
    }
    let in_state = |state: ExposeState| {
        let named: Vec<String> = exposes
            .iter()
            .filter(|expose| expose.state == state)
            .map(|expose| format!("{}: {}", expose.name, expose.message.as_deref().unwrap_or_default()))
            .collect();
        (!named.is_empty()).then(|| named.join("; "))
    };
    for (state, truth, reason) in [
        (ExposeState::NoBackend, Truth::False, reason::NO_BACKEND),
        (ExposeState::NoCertificate, Truth::False, reason::NOT_LISTENING),
        (ExposeState::NotListening, Truth::False, reason::NOT_LISTENING),
        (ExposeState::DialFailed, Truth::False, reason::DIAL_FAILED),
        (ExposeState::Unknown, Truth::Unknown, reason::UNKNOWN),
    ] {
        if let Some(message) = in_state(state) {
            conditions.set(READY, truth, reason, message);
            return;
        }
    }
    conditions.set(READY, Truth::True, reason::READY_REASON, "every expose is served");
}

fn expose_status(expose: &Expose, at: usize, progress: &Progress, seen: &Seen, nodes: &[NodeStatus]) -> ExposeStatus {
    let names = progress.names.get(at).cloned().unwrap_or_default();
    let (state, message) = expose_state(expose, at, progress, seen);
    let host = names
        .first()
        .cloned()
        .or_else(|| nodes.iter().find_map(|node| node.ipv4.clone()));
    let url = host.map(|host| match (expose.mode(), expose.port) {
        (ExposeMode::Http, 443) => format!("https://{host}/"),
        (ExposeMode::Http, port) => format!("https://{host}:{port}/"),
        (ExposeMode::Tcp, port) => format!("tcp://{host}:{port}"),
    });
    ExposeStatus {
        name: expose.name.as_str().to_owned(),
        url: url.filter(|_| expose.mode() == ExposeMode::Tcp || !names.is_empty()),
        names,
        state,
        message: message.map(|message| message.chars().take(1024).collect()),
    }
}

fn expose_state(expose: &Expose, at: usize, progress: &Progress, seen: &Seen) -> (ExposeState, Option<String>) {
    if let Some(Err(why)) = progress.backends.get(at).map(|backend| &backend.address) {
        return (ExposeState::NoBackend, Some(why.clone()));
    }
    if expose.mode() == ExposeMode::Http && progress.names.get(at).is_none_or(Vec::is_empty) {
        let why = "it has no name: set dns.ingressNameTemplate of the Tailnet, or see Accepted for who holds the name";
        return (ExposeState::NotListening, Some(why.to_owned()));
    }
    let name = expose.name.as_str();
    let mut found = seen
        .iter()
        .filter_map(|(_, status)| status.exposes.iter().find(|expose| expose.name == name))
        .peekable();
    if found.peek().is_none() {
        return (
            ExposeState::Unknown,
            Some("no agent has said yet whether it serves it".to_owned()),
        );
    }
    for said in found {
        if !said.listening {
            let why = said.error.clone();
            let state = if why.as_ref().is_some_and(|why| why.starts_with("no certificate")) {
                ExposeState::NoCertificate
            } else {
                ExposeState::NotListening
            };
            return (state, why);
        }
        if let Some(dial) = said.last_dial.as_ref().filter(|dial| !dial.ok) {
            let class = dial.error_class.as_deref().unwrap_or("other");
            let why = dial.message.as_deref().unwrap_or_default();
            return (ExposeState::DialFailed, Some(format!("{class}: {why}")));
        }
    }
    (ExposeState::Serving, None)
}

/// The agents' nodes, by id, with Headscale's word where it has one.
fn node_statuses(seen: &Seen, nodes: Option<&[Node]>) -> Vec<NodeStatus> {
    let mut found: Vec<NodeStatus> = seen
        .iter()
        .filter_map(|(_, status)| status.node.as_ref())
        .map(|node| {
            let known = nodes.and_then(|nodes| nodes.iter().find(|known| known.id.as_str() == node.id));
            NodeStatus {
                id: node.id.clone(),
                name: known.map_or_else(|| node.name.clone(), |known| known.given_name.clone()),
                ipv4: node.ipv4.clone(),
                ipv6: node.ipv6.clone(),
                online: known.map_or(node.online, |known| known.online),
            }
        })
        .collect();
    found.sort_by(|a, b| (a.id.len(), &a.id).cmp(&(b.id.len(), &b.id)));
    found.dedup_by(|a, b| a.id == b.id);
    found
}
