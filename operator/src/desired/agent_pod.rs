//! The Pod of an agent, of whichever kind: one container without privileges, its files, its probes.

use k8s_openapi::api::apps::v1::{DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, HTTPGetAction, KeyToPath,
    LocalObjectReference, PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource,
    SecurityContext, TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tailnet_crds::names::egress as names;
use tailnet_crds::types::AgentSettings;

use crate::desired::memory_limit::go_memory_limit;

/// Label every namespace carries with its own name.
pub(crate) const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Port of the agents' health endpoint: `/healthz`, `/readyz`, `/metrics`, `/status`.
pub const HEALTH_PORT: u16 = 9402;
/// User and group of the agents.
const AGENT_USER: i64 = 65_532;
/// Longer than the agent's drain of open connections (25 s) and its log-out.
const GRACE_SECONDS: i64 = 60;

/// What differs between agents.
pub(crate) struct AgentPod<'a> {
    /// `AGENT_MODE`.
    pub(crate) mode: &'a str,
    pub(crate) image: &'a str,
    pub(crate) pull_policy: &'a str,
    pub(crate) settings: &'a AgentSettings,
    /// Selects the agents of the same object.
    pub(crate) selector: LabelSelector,
    pub(crate) config_map: String,
    pub(crate) auth_key_secret: String,
    /// Whether the ConfigMap has a CA bundle for login server and DERP.
    pub(crate) has_ca: bool,
    /// Further volumes.
    pub(crate) files: Vec<Files>,
}

/// A volume and where it is mounted.
pub(crate) struct Files {
    pub(crate) volume: Volume,
    pub(crate) path: String,
}

/// A new agent serves before the old one goes.
pub(crate) fn strategy() -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(0)),
        }),
    }
}

/// The Pod's spec.
pub(crate) fn spec(pod: &AgentPod<'_>) -> PodSpec {
    let settings = pod.settings;
    let extra = pod.files.iter().map(|file| file.volume.clone());
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(AGENT_USER),
            run_as_group: Some(AGENT_USER),
            fs_group: Some(AGENT_USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        node_selector: settings.node_selector.clone(),
        tolerations: settings.tolerations.clone(),
        affinity: settings.affinity.clone(),
        priority_class_name: settings.priority_class_name.clone(),
        topology_spread_constraints: settings
            .topology_spread_constraints
            .clone()
            .or_else(|| settings.affinity.is_none().then(|| spread(&pod.selector))),
        image_pull_secrets: settings.image_pull_secrets.as_ref().map(|secrets| {
            secrets
                .iter()
                .map(|secret| LocalObjectReference {
                    name: secret.name.clone(),
                })
                .collect()
        }),
        containers: vec![container(pod)],
        volumes: Some(
            [
                Volume {
                    name: "config".to_owned(),
                    config_map: Some(ConfigMapVolumeSource {
                        name: pod.config_map.clone(),
                        default_mode: Some(0o444),
                        ..ConfigMapVolumeSource::default()
                    }),
                    ..Volume::default()
                },
                Volume {
                    name: "authkey".to_owned(),
                    secret: Some(SecretVolumeSource {
                        secret_name: Some(pod.auth_key_secret.clone()),
                        default_mode: Some(0o440),
                        items: Some(vec![KeyToPath {
                            key: names::AUTH_KEY.to_owned(),
                            path: names::AUTH_KEY.to_owned(),
                            mode: None,
                        }]),
                        optional: None,
                    }),
                    ..Volume::default()
                },
            ]
            .into_iter()
            .chain(extra)
            .collect(),
        ),
        ..PodSpec::default()
    }
}

/// Replicas on different nodes where there are several, without insisting. Also for a single one: a template that depended on
/// the number of replicas would replace every Pod, and cut its connections, when that number changes.
fn spread(selector: &LabelSelector) -> Vec<TopologySpreadConstraint> {
    vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(selector.clone()),
        ..TopologySpreadConstraint::default()
    }]
}

fn container(pod: &AgentPod<'_>) -> Container {
    let settings = pod.settings;
    let resources = settings.resources.clone().unwrap_or_else(default_resources);
    let env = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    };
    let mut variables = vec![
        env("AGENT_MODE", pod.mode),
        env("AGENT_CONFIG", "/etc/tailnet-agent/config.json"),
        env("AGENT_AUTHKEY_FILE", "/var/run/secrets/tailnet-agent/authkey"),
        env("LOG_LEVEL", settings.log_level.unwrap_or_default().as_str()),
        env("TS_NO_LOGS_NO_SUPPORT", "true"),
        env("GOMEMLIMIT", &go_memory_limit(&resources)),
    ];
    if pod.has_ca {
        variables.push(env("SSL_CERT_FILE", "/etc/tailnet-agent/ca.crt"));
    }
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let mut mounts = vec![
        mount("config", "/etc/tailnet-agent"),
        mount("authkey", "/var/run/secrets/tailnet-agent"),
    ];
    mounts.extend(pod.files.iter().map(|file| mount(&file.volume.name, &file.path)));
    let probe = |path: &str, period: i32, failures: i32| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(HEALTH_PORT)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    };
    Container {
        name: "agent".to_owned(),
        image: Some(pod.image.to_owned()),
        image_pull_policy: Some(pod.pull_policy.to_owned()),
        command: Some(vec!["/tailnet-agent".to_owned()]),
        env: Some(variables),
        ports: Some(vec![ContainerPort {
            name: Some("health".to_owned()),
            container_port: i32::from(HEALTH_PORT),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        // Alive: the runtime answers. A node that cannot log in is not made better by a restart.
        liveness_probe: Some(probe("/healthz", 10, 6)),
        readiness_probe: Some(probe("/readyz", 3, 3)),
        resources: Some(resources),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// Enough for a few hundred connections; memory is bounded because the tailnet stack takes what it gets.
fn default_resources() -> ResourceRequirements {
    let quantities = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Quantity((*value).to_owned())))
            .collect()
    };
    ResourceRequirements {
        requests: Some(quantities(&[("cpu", "20m"), ("memory", "64Mi")])),
        limits: Some(quantities(&[("memory", "384Mi")])),
        ..ResourceRequirements::default()
    }
}
