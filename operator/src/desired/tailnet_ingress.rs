//! The children of a TailnetIngress: configuration, Deployment, NetworkPolicy, Certificate, PodDisruptionBudget, all in its
//! namespace. There is no Service: peers come by the tailnet.
//!
//! A change of exposes changes the ConfigMap and the NetworkPolicy, and the Pod template only where another file must be
//! mounted: the agent reloads.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, KeyToPath, PodTemplateSpec, SecretVolumeSource, Volume,
};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use tailnet_crds::agent::{AgentConfig, BackendAddress, BackendTlsFiles, FORMAT_VERSION, HttpExpose, IngressExpose};
use tailnet_crds::cert_manager::{Certificate, CertificateIssuerRef, CertificateSpec};
use tailnet_crds::names::{egress as keys, ingress as names, label};
use tailnet_crds::types::{AgentSettings, GoDuration, IssuerRef, Text};
use tailnet_crds::{ExposeMode, Kind, TailnetIngress};
use url::Url;

use crate::children::sha256_hex;
use crate::desired::agent_pod::{self, AgentPod, Files, HEALTH_PORT, NAMESPACE_NAME};
use crate::desired::tailnet_egress::{NODE_IDENTITY, TRUST, node_identity};
use crate::ownership::{ingress_labels, selector_labels};
use crate::server_identity;

/// Where the certificate is mounted; the agent's default.
const TLS_DIR: &str = "/var/run/secrets/tailnet-agent-tls";
/// Where CA bundles of backends are mounted.
const CA_DIR: &str = "/etc/tailnet-agent-backend-ca";
/// `timeouts.backendRequest` when absent.
const BACKEND_REQUEST_MS: u64 = 60_000;

/// Where a backend is, or why it is nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Its cluster address.
    pub address: Result<BackendAddress, String>,
    /// Its port speaks HTTP/2 without TLS.
    pub h2c: bool,
}

/// Where the certificate of http exposes comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// An existing Secret.
    Secret(String),
    /// cert-manager.
    Issuer(IssuerRef),
}

/// What is not in the CR.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    /// The operator's namespace, which may ask the agents.
    pub operator_namespace: &'a str,
    /// Agent image.
    pub image: &'a str,
    /// Its `imagePullPolicy`.
    pub pull_policy: &'a str,
    /// A namespace that may scrape the agents besides the operator's.
    pub monitoring_namespace: Option<&'a str>,
    /// Login server, in any spelling.
    pub control_url: &'a str,
    /// `Tailnet.spec.defaults.agent`.
    pub defaults: &'a AgentSettings,
    /// CA bundle for login server and DERP (PEM).
    pub ca_bundle: Option<&'a str>,
    /// The node's tag.
    pub tag: &'a str,
    /// Host name that the agents ask for.
    pub hostname: &'a str,
    /// DNS names of each expose, in the CR's order.
    pub names: &'a [Vec<String>],
    /// Backend of each expose, in the CR's order.
    pub backends: &'a [Resolved],
    /// Where the certificate comes from; None without http exposes.
    pub certificate: Option<&'a CertificateSource>,
}

/// All children but the key's Secret.
#[derive(Clone, Debug)]
pub struct Desired {
    /// Configuration of the agents.
    pub config_map: ConfigMap,
    /// sha256 (hex) of `config.json`, as agents report it.
    pub config_sha256: String,
    /// The agents.
    pub deployment: Deployment,
    /// Their node identity, as in the annotation of their Pods.
    pub node_identity: String,
    /// What they may connect to, and who may ask them.
    pub network_policy: NetworkPolicy,
    /// Only where cert-manager issues.
    pub certificate: Option<Certificate>,
    /// Only with more than one replica.
    pub pod_disruption_budget: Option<PodDisruptionBudget>,
}

/// Why children cannot be written down.
#[derive(Debug, thiserror::Error)]
pub enum DesiredError {
    /// The configuration cannot be written as JSON.
    #[error("cannot write the agent's configuration: {0}")]
    Config(#[source] serde_json::Error),
    /// The object has no UID: it is not stored.
    #[error("the object has no UID, so it cannot own anything")]
    NotStored,
}

/// Name of the Secret with the certificate.
pub fn certificate_secret(ingress: &TailnetIngress, source: &CertificateSource) -> String {
    match source {
        CertificateSource::Secret(name) => name.clone(),
        CertificateSource::Issuer(_) => names::certificate(&ingress.name_any()),
    }
}

/// The children of `ingress`, whose spec passed the guard.
///
/// # Errors
/// See [`DesiredError`].
pub fn desired(ingress: &TailnetIngress, around: &Surroundings<'_>) -> Result<Desired, DesiredError> {
    let owner = ingress.controller_owner_ref(&()).ok_or(DesiredError::NotStored)?;
    let meta = |name: String| metadata(ingress, &owner, name);
    let config = config(ingress, around);
    let text = serde_json::to_string_pretty(&config).map_err(DesiredError::Config)?;
    let name = ingress.name_any();
    let mut data = BTreeMap::from([(keys::CONFIG_KEY.to_owned(), text.clone())]);
    if let Some(ca) = around.ca_bundle {
        data.insert(keys::CA_KEY.to_owned(), ca.to_owned());
    }
    let certificate = match around.certificate {
        Some(CertificateSource::Issuer(issuer)) => {
            certificate(ingress, around, issuer, meta(names::certificate(&name)))
        }
        Some(CertificateSource::Secret(_)) | None => None,
    };
    Ok(Desired {
        config_sha256: sha256_hex(&text),
        config_map: ConfigMap {
            metadata: meta(names::config_map(&name)),
            data: Some(data),
            ..ConfigMap::default()
        },
        deployment: deployment(ingress, around, meta(names::deployment(&name))),
        node_identity: node_identity(around.control_url, around.tag),
        network_policy: network_policy(ingress, around, meta(names::network_policy(&name))),
        certificate,
        pod_disruption_budget: (ingress.spec.replicas > 1).then(|| PodDisruptionBudget {
            metadata: meta(names::pod_disruption_budget(&name)),
            spec: Some(PodDisruptionBudgetSpec {
                max_unavailable: Some(IntOrString::Int(1)),
                selector: Some(label_selector(ingress)),
                ..PodDisruptionBudgetSpec::default()
            }),
            status: None,
        }),
    })
}

/// The ConfigMap `stored` of agents that are to let go of everything, with the sha256 of its configuration: nothing is exposed,
/// and who the node is stays, since another one would have to join. None where it cannot be read: the agents cannot either.
///
/// # Errors
/// See [`DesiredError`].
pub fn emptied(ingress: &TailnetIngress, stored: &ConfigMap) -> Result<Option<(ConfigMap, String)>, DesiredError> {
    let owner = ingress.controller_owner_ref(&()).ok_or(DesiredError::NotStored)?;
    let mut data = stored.data.clone().unwrap_or_default();
    let Some(mut config) = data
        .get(keys::CONFIG_KEY)
        .and_then(|text| serde_json::from_str::<AgentConfig>(text).ok())
    else {
        return Ok(None);
    };
    config.exposes.clear();
    let text = serde_json::to_string_pretty(&config).map_err(DesiredError::Config)?;
    let sha256 = sha256_hex(&text);
    data.insert(keys::CONFIG_KEY.to_owned(), text);
    let config_map = ConfigMap {
        metadata: metadata(ingress, &owner, names::config_map(&ingress.name_any())),
        data: Some(data),
        ..ConfigMap::default()
    };
    Ok(Some((config_map, sha256)))
}

fn metadata(ingress: &TailnetIngress, owner: &OwnerReference, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: ingress.namespace(),
        labels: Some(ingress_labels(ingress)),
        owner_references: Some(vec![owner.clone()]),
        ..ObjectMeta::default()
    }
}

fn config(ingress: &TailnetIngress, around: &Surroundings<'_>) -> AgentConfig {
    let mut exposes = Vec::with_capacity(ingress.spec.exposes.len());
    for (at, expose) in ingress.spec.exposes.iter().enumerate() {
        let Some(port) = u16::try_from(expose.port).ok().filter(|port| *port > 0) else {
            continue;
        };
        let backend = around.backends.get(at);
        let http = (expose.mode() == ExposeMode::Http).then(|| {
            let timeouts = expose.timeouts.as_ref();
            let request = timeouts.and_then(|timeouts| millis(timeouts.request.as_ref()));
            let backend_request = timeouts
                .and_then(|timeouts| millis(timeouts.backend_request.as_ref()))
                .unwrap_or(BACKEND_REQUEST_MS);
            HttpExpose {
                names: around.names.get(at).cloned().unwrap_or_default(),
                request_timeout_ms: request,
                backend_request_timeout_ms: request.map_or(backend_request, |most| backend_request.min(most)),
                h2c: backend.is_some_and(|backend| backend.h2c),
                tls: expose.backend.tls.as_ref().map(|tls| BackendTlsFiles {
                    server_name: tls.server_name.as_str().to_owned(),
                    ca_file: format!("{}/ca.crt", ca_path(expose.name.as_str())),
                }),
            }
        });
        // A name that cannot be rendered (or a lost template) leaves an http expose without a listener.
        if http.as_ref().is_some_and(|http| http.names.is_empty()) {
            continue;
        }
        exposes.push(IngressExpose {
            name: expose.name.as_str().to_owned(),
            port,
            backend: backend.and_then(|backend| backend.address.clone().ok()),
            http,
        });
    }
    AgentConfig {
        version: FORMAT_VERSION,
        hostname: around.hostname.to_owned(),
        control_url: server_identity::canonical(around.control_url),
        targets: Vec::new(),
        exposes,
        next_port: 0,
    }
}

fn millis(duration: Option<&Text<GoDuration>>) -> Option<u64> {
    let duration: GoDuration = duration?.parse().ok()?;
    u64::try_from(duration.get().as_millis()).ok()
}

fn ca_path(expose: &str) -> String {
    format!("{CA_DIR}/{expose}")
}

fn selector(ingress: &TailnetIngress) -> BTreeMap<String, String> {
    selector_labels(
        Kind::TailnetIngress,
        &ingress.namespace().unwrap_or_default(),
        &ingress.name_any(),
    )
}

fn label_selector(ingress: &TailnetIngress) -> LabelSelector {
    LabelSelector {
        match_labels: Some(selector(ingress)),
        ..LabelSelector::default()
    }
}

fn certificate(
    ingress: &TailnetIngress,
    around: &Surroundings<'_>,
    issuer: &IssuerRef,
    metadata: ObjectMeta,
) -> Option<Certificate> {
    let modes = ingress.spec.exposes.iter().map(|expose| expose.mode());
    let dns_names: BTreeSet<String> = modes
        .zip(around.names)
        .filter(|(mode, _)| *mode == ExposeMode::Http)
        .flat_map(|(_, names)| names.iter().cloned())
        .collect();
    if dns_names.is_empty() {
        return None;
    }
    // By JSON, since the generated type has no default and dozens of fields.
    let spec: CertificateSpec = serde_json::from_value(serde_json::json!({
        "secretName": metadata.name,
        "dnsNames": dns_names,
        "issuerRef": CertificateIssuerRef {
            name: issuer.name.clone(),
            kind: Some(issuer.kind().to_owned()),
            group: Some(issuer.group().to_owned()),
        },
        "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
        "usages": ["digital signature", "server auth"],
    }))
    .ok()?;
    Some(Certificate {
        metadata,
        spec,
        status: None,
    })
}

fn deployment(ingress: &TailnetIngress, around: &Surroundings<'_>, metadata: ObjectMeta) -> Deployment {
    let settings = around.defaults.overridden_by(ingress.spec.agent.as_ref());
    Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: Some(ingress.spec.replicas),
            revision_history_limit: Some(2),
            selector: label_selector(ingress),
            strategy: Some(agent_pod::strategy()),
            template: pod_template(ingress, around, &settings),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn pod_template(ingress: &TailnetIngress, around: &Surroundings<'_>, settings: &AgentSettings) -> PodTemplateSpec {
    let mut labels = settings.pod_labels.clone().unwrap_or_default();
    labels.insert(label::NAME.to_owned(), "tailnet-agent".to_owned());
    labels.insert(label::INSTANCE.to_owned(), ingress.name_any());
    labels.insert(label::COMPONENT.to_owned(), "ingress".to_owned());
    labels.extend(ingress_labels(ingress));
    let mut annotations = settings.pod_annotations.clone().unwrap_or_default();
    annotations.insert(NODE_IDENTITY.to_owned(), node_identity(around.control_url, around.tag));
    if let Some(ca) = around.ca_bundle {
        annotations.insert(TRUST.to_owned(), sha256_hex(ca));
    }
    let name = ingress.name_any();
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(agent_pod::spec(&AgentPod {
            mode: "ingress",
            image: around.image,
            pull_policy: around.pull_policy,
            settings,
            selector: label_selector(ingress),
            config_map: names::config_map(&name),
            auth_key_secret: names::auth_key_secret(&name),
            has_ca: around.ca_bundle.is_some(),
            files: files(ingress, around),
        })),
    }
}

/// Certificate and CA bundles. All optional: what is missing costs one expose its listener or its backend, not the others
/// their Pod.
fn files(ingress: &TailnetIngress, around: &Surroundings<'_>) -> Vec<Files> {
    let item = |key: &str, path: &str| KeyToPath {
        key: key.to_owned(),
        path: path.to_owned(),
        mode: None,
    };
    let mut files = Vec::new();
    if let Some(source) = around.certificate {
        files.push(Files {
            path: TLS_DIR.to_owned(),
            volume: Volume {
                name: "tls".to_owned(),
                secret: Some(SecretVolumeSource {
                    secret_name: Some(certificate_secret(ingress, source)),
                    default_mode: Some(0o440),
                    items: Some(vec![item("tls.crt", "tls.crt"), item("tls.key", "tls.key")]),
                    optional: Some(true),
                }),
                ..Volume::default()
            },
        });
    }
    for (at, expose) in ingress.spec.exposes.iter().enumerate() {
        let Some(tls) = &expose.backend.tls else { continue };
        if expose.mode() != ExposeMode::Http {
            continue;
        }
        files.push(Files {
            path: ca_path(expose.name.as_str()),
            volume: Volume {
                name: format!("backend-ca-{at}"),
                config_map: Some(ConfigMapVolumeSource {
                    name: tls.ca_config_map_ref.name.clone(),
                    items: Some(vec![item(tls.ca_config_map_ref.key(), "ca.crt")]),
                    default_mode: Some(0o444),
                    optional: Some(true),
                }),
                ..Volume::default()
            },
        });
    }
    files
}

/// The agents' TCP stays in the namespaces of their backends, but for the way to the login server and its relays. What the
/// tailnet brings comes by UDP (or those relays) and is judged by the tailnet's policy.
fn network_policy(ingress: &TailnetIngress, around: &Surroundings<'_>, metadata: ObjectMeta) -> NetworkPolicy {
    let port = |protocol: &str, port: u16| NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(i32::from(port))),
        ..NetworkPolicyPort::default()
    };
    let any_port = |protocol: &str| NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        ..NetworkPolicyPort::default()
    };
    let namespaces = |names: Vec<String>| NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: NAMESPACE_NAME.to_owned(),
                operator: "In".to_owned(),
                values: Some(names),
            }]),
            ..LabelSelector::default()
        }),
        ..NetworkPolicyPeer::default()
    };
    let mut scrapers = vec![around.operator_namespace.to_owned()];
    scrapers.extend(around.monitoring_namespace.map(str::to_owned));
    let own = ingress.namespace().unwrap_or_default();
    let backends: BTreeSet<String> = ingress
        .spec
        .exposes
        .iter()
        .map(|expose| expose.backend.namespace.clone().unwrap_or_else(|| own.clone()))
        .collect();
    let control = Url::parse(around.control_url)
        .ok()
        .and_then(|url| url.port_or_known_default())
        .unwrap_or(443);
    let control_ports: BTreeSet<u16> = BTreeSet::from([control, 443]);
    let egress = vec![
        NetworkPolicyEgressRule {
            to: None,
            ports: Some(vec![port("UDP", 53), port("TCP", 53)]),
        },
        // Peers, STUN.
        NetworkPolicyEgressRule {
            to: None,
            ports: Some(vec![any_port("UDP")]),
        },
        NetworkPolicyEgressRule {
            to: None,
            ports: Some(control_ports.into_iter().map(|control| port("TCP", control)).collect()),
        },
        NetworkPolicyEgressRule {
            to: Some(vec![namespaces(backends.into_iter().collect())]),
            ports: Some(vec![any_port("TCP")]),
        },
    ];
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(label_selector(ingress)),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![namespaces(scrapers)]),
                ports: Some(vec![port("TCP", HEALTH_PORT)]),
            }]),
            egress: Some(egress),
        }),
    }
}

#[cfg(test)]
#[path = "tailnet_ingress_tests.rs"]
mod tests;
