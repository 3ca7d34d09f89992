//! The children of a TailnetEgress: configuration, Deployment, Services, NetworkPolicy, PodDisruptionBudget.
//!
//! The pre-auth key's Secret is `keys`' part. A change of targets changes the ConfigMap, the Services and the
//! NetworkPolicy, never the Pod template: the agent reloads. What makes another node of the agent (login server, tag,
//! trusted CA) is in the template's annotations, so that it rolls.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec, Service, ServicePort, ServiceSpec};
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
use tailnet_crds::agent::{AgentConfig, EgressTarget, FORMAT_VERSION};
use tailnet_crds::names::{egress as names, label};
use tailnet_crds::types::AgentSettings;
use tailnet_crds::{Kind, TailnetEgress};

use crate::children::sha256_hex;
pub use crate::desired::agent_pod::HEALTH_PORT;
use crate::desired::agent_pod::{self, AgentPod, NAMESPACE_NAME};
use crate::desired::listen_ports::{self, PortMemory};
use crate::ownership::{egress_labels, selector_labels};
use crate::server_identity;

/// Pod template annotation: another value is another node, so the Pods roll.
pub const NODE_IDENTITY: &str = "tsunaro.io/node-identity-sha256";
/// Pod template annotation: the CA bundle is read once by the agent's runtime, so another one rolls too.
pub(crate) const TRUST: &str = "tsunaro.io/trust-sha256";

/// What is not in the CR.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    /// The operator's namespace, where the children go.
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
    /// Listen ports so far.
    pub ports: &'a PortMemory,
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
    /// Their node identity, as in the annotation [`NODE_IDENTITY`] of their Pods.
    pub node_identity: String,
    /// One per target, in the CR's order.
    pub services: Vec<Service>,
    /// Who may connect.
    pub network_policy: NetworkPolicy,
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
    /// A port is outside 1–65535.
    #[error("port {0} of a target is not between 1 and 65535")]
    Port(i32),
}

/// The children of `egress`, whose spec passed the guard.
///
/// # Errors
/// See [`DesiredError`].
pub fn desired(egress: &TailnetEgress, around: &Surroundings<'_>) -> Result<Desired, DesiredError> {
    let owner = egress.controller_owner_ref(&()).ok_or(DesiredError::NotStored)?;
    let ports = listen_ports::assign(
        around.ports,
        egress.spec.targets.iter().map(|target| target.name.as_str()),
    );
    let config = config(egress, around, &ports)?;
    let text = serde_json::to_string_pretty(&config).map_err(DesiredError::Config)?;
    let meta = |name: String| metadata(egress, around, &owner, name);
    let name = egress.name_any();
    let mut data = BTreeMap::from([(names::CONFIG_KEY.to_owned(), text.clone())]);
    if let Some(ca) = around.ca_bundle {
        data.insert(names::CA_KEY.to_owned(), ca.to_owned());
    }
    Ok(Desired {
        config_sha256: sha256_hex(&text),
        config_map: ConfigMap {
            metadata: meta(names::config_map(&name)),
            data: Some(data),
            ..ConfigMap::default()
        },
        deployment: deployment(egress, around, meta(names::deployment(&name))),
        node_identity: node_identity(around.control_url, around.tag),
        services: config
            .targets
            .iter()
            .map(|target| service(egress, target, meta(target.name.clone())))
            .collect(),
        network_policy: network_policy(egress, around, &config, meta(names::network_policy(&name))),
        pod_disruption_budget: (egress.spec.replicas > 1)
            .then(|| disruption_budget(egress, meta(names::pod_disruption_budget(&name)))),
    })
}

fn config(egress: &TailnetEgress, around: &Surroundings<'_>, ports: &PortMemory) -> Result<AgentConfig, DesiredError> {
    let mut targets = Vec::with_capacity(egress.spec.targets.len());
    for target in &egress.spec.targets {
        let port = u16::try_from(target.port)
            .ok()
            .filter(|port| *port > 0)
            .ok_or(DesiredError::Port(target.port))?;
        let name = target.name.as_str().to_owned();
        let Some(listen_port) = ports.ports.get(&name).copied() else {
            continue;
        };
        targets.push(EgressTarget {
            name,
            listen_port,
            address: target.address.as_str().to_owned(),
            port,
        });
    }
    Ok(AgentConfig {
        version: FORMAT_VERSION,
        hostname: around.hostname.to_owned(),
        // In one spelling, since another text makes the agents log in anew.
        control_url: server_identity::canonical(around.control_url),
        targets,
        exposes: Vec::new(),
        next_port: ports.next,
    })
}

/// The ports that an earlier `config.json` gave out; None when it cannot be read.
pub fn port_memory(config_json: &str) -> Option<PortMemory> {
    let config: AgentConfig = serde_json::from_str(config_json).ok()?;
    let ports = config
        .targets
        .into_iter()
        .map(|target| (target.name, target.listen_port))
        .collect();
    Some(PortMemory {
        ports,
        next: config.next_port,
    })
}

/// What makes the node of running agents what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Login server.
    pub control_url: String,
    /// Host name that is asked for.
    pub hostname: String,
    /// CA bundle for login server and DERP (PEM).
    pub ca_bundle: Option<String>,
}

/// The identity in a configuration that agents have; None when it cannot be read.
pub fn identity_of(config_map: &ConfigMap) -> Option<Identity> {
    let data = config_map.data.as_ref()?;
    let config: AgentConfig = serde_json::from_str(data.get(names::CONFIG_KEY)?).ok()?;
    Some(Identity {
        control_url: config.control_url,
        hostname: config.hostname,
        ca_bundle: data.get(names::CA_KEY).cloned(),
    })
}

fn metadata(egress: &TailnetEgress, around: &Surroundings<'_>, owner: &OwnerReference, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(around.operator_namespace.to_owned()),
        labels: Some(egress_labels(egress)),
        owner_references: Some(vec![owner.clone()]),
        ..ObjectMeta::default()
    }
}

fn selector(egress: &TailnetEgress) -> BTreeMap<String, String> {
    selector_labels(
        Kind::TailnetEgress,
        &egress.namespace().unwrap_or_default(),
        &egress.name_any(),
    )
}

fn label_selector(egress: &TailnetEgress) -> LabelSelector {
    LabelSelector {
        match_labels: Some(selector(egress)),
        ..LabelSelector::default()
    }
}

fn service(egress: &TailnetEgress, target: &EgressTarget, metadata: ObjectMeta) -> Service {
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(selector(egress)),
            ports: Some(vec![ServicePort {
                name: Some("tcp".to_owned()),
                port: i32::from(target.port),
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::Int(i32::from(target.listen_port))),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn network_policy(
    egress: &TailnetEgress,
    around: &Surroundings<'_>,
    config: &AgentConfig,
    metadata: ObjectMeta,
) -> NetworkPolicy {
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
    let mut consumers = egress.spec.consumer_namespaces.clone();
    consumers.sort();
    consumers.dedup();
    let mut scrapers = vec![around.operator_namespace.to_owned()];
    scrapers.extend(around.monitoring_namespace.map(str::to_owned));
    let mut ingress = vec![NetworkPolicyIngressRule {
        from: Some(vec![namespaces(scrapers)]),
        ports: Some(vec![port("TCP", HEALTH_PORT)]),
    }];
    // An empty `from` or `ports` would mean everybody and everything.
    if !consumers.is_empty() && !config.targets.is_empty() {
        let mut listen: Vec<u16> = config.targets.iter().map(|target| target.listen_port).collect();
        listen.sort_unstable();
        ingress.insert(
            0,
            NetworkPolicyIngressRule {
                from: Some(vec![namespaces(consumers)]),
                ports: Some(listen.into_iter().map(|listen| port("TCP", listen)).collect()),
            },
        );
    }
    // The agent's own way out: names (node-local DNS is a node address, so to anywhere), then Headscale, DERP, STUN and
    // peers, whose addresses and ports nobody here knows. Written out, so that a default-deny policy of the namespace
    // does not cut it.
    let egress_rules = vec![
        NetworkPolicyEgressRule {
            to: None,
            ports: Some(vec![port("UDP", 53), port("TCP", 53)]),
        },
        NetworkPolicyEgressRule {
            to: None,
            ports: Some(vec![any_port("UDP"), any_port("TCP")]),
        },
    ];
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(label_selector(egress)),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(ingress),
            egress: Some(egress_rules),
        }),
    }
}

fn disruption_budget(egress: &TailnetEgress, metadata: ObjectMeta) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata,
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(label_selector(egress)),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

fn deployment(egress: &TailnetEgress, around: &Surroundings<'_>, metadata: ObjectMeta) -> Deployment {
    let settings = around.defaults.overridden_by(egress.spec.agent.as_ref());
    Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: Some(egress.spec.replicas),
            revision_history_limit: Some(2),
            selector: label_selector(egress),
            strategy: Some(agent_pod::strategy()),
            template: pod_template(egress, around, &settings),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// What makes the agents the nodes that they are: login server and tag.
pub(crate) fn node_identity(control_url: &str, tag: &str) -> String {
    sha256_hex(&format!("{}\n{tag}", server_identity::canonical(control_url)))
}

fn pod_template(egress: &TailnetEgress, around: &Surroundings<'_>, settings: &AgentSettings) -> PodTemplateSpec {
    let mut labels = settings.pod_labels.clone().unwrap_or_default();
    labels.insert(label::NAME.to_owned(), "tailnet-agent".to_owned());
    labels.insert(label::INSTANCE.to_owned(), egress.name_any());
    labels.insert(label::COMPONENT.to_owned(), "egress".to_owned());
    labels.extend(egress_labels(egress));
    let mut annotations = settings.pod_annotations.clone().unwrap_or_default();
    annotations.insert(NODE_IDENTITY.to_owned(), node_identity(around.control_url, around.tag));
    if let Some(ca) = around.ca_bundle {
        annotations.insert(TRUST.to_owned(), sha256_hex(ca));
    }
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(agent_pod::spec(&AgentPod {
            mode: "egress",
            image: around.image,
            pull_policy: around.pull_policy,
            settings,
            selector: label_selector(egress),
            config_map: names::config_map(&egress.name_any()),
            auth_key_secret: names::auth_key_secret(&egress.name_any()),
            has_ca: around.ca_bundle.is_some(),
            files: Vec::new(),
        })),
    }
}

#[cfg(test)]
#[path = "tailnet_egress_tests.rs"]
mod tests;
