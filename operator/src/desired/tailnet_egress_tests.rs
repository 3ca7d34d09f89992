use super::*;
use serde_json::json;

fn egress(spec: serde_json::Value) -> TailnetEgress {
    serde_json::from_value(json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetEgress",
        "metadata": { "name": "team-a", "namespace": "tailnet-system", "uid": "11111111-2222-3333-4444-555555555555" },
        "spec": spec,
    }))
    .unwrap()
}

/// The egress of the seeds.
fn seed() -> TailnetEgress {
    egress(json!({
        "tailnetRef": { "name": "demo" },
        "consumerNamespaces": ["team-a"],
        "targets": [
            { "name": "remote-db", "address": "192.0.2.10", "port": 5432 },
            { "name": "remote-api", "address": "198.51.100.20", "port": 443, "aliases": ["api.site.example.net"] },
        ],
    }))
}

fn around<'a>(defaults: &'a AgentSettings, ports: &'a PortMemory) -> Surroundings<'a> {
    Surroundings {
        operator_namespace: "tailnet-system",
        image: "docker.io/tsunaro/tailnet-operator:dev",
        pull_policy: "IfNotPresent",
        monitoring_namespace: None,
        control_url: "https://control.example.net",
        defaults,
        ca_bundle: None,
        tag: "tag:egress-team-a",
        hostname: "team-a",
        ports,
    }
}

fn yaml(desired: &Desired) -> serde_json::Value {
    json!({
        "configMap": desired.config_map,
        "deployment": desired.deployment,
        "services": desired.services,
        "networkPolicy": desired.network_policy,
        "podDisruptionBudget": desired.pod_disruption_budget,
    })
}

#[test]
fn golden_seed() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    insta::assert_yaml_snapshot!(yaml(&desired(&seed(), &around(&defaults, &ports)).unwrap()));
}

#[test]
fn golden_everything_set() {
    let defaults: AgentSettings = serde_json::from_value(json!({
        "resources": { "limits": { "memory": "1Gi" } },
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "edge", "operator": "Exists" }],
        "priorityClassName": "low",
        "podLabels": { "team": "net", "app.kubernetes.io/name": "stolen" },
        "podAnnotations": { "note": "x" },
        "imagePullSecrets": [{ "name": "registry" }],
        "logLevel": "debug",
    }))
    .unwrap();
    let ports = PortMemory {
        ports: BTreeMap::from([("db".to_owned(), 10_007)]),
        next: 10_008,
    };
    let mut egress = egress(json!({
        "tailnetRef": { "name": "demo" },
        "tag": "tag:special",
        "consumerNamespaces": ["b", "a", "b"],
        "replicas": 3,
        "targets": [
            { "name": "new", "address": "db.corp.example", "port": 5432 },
            { "name": "db", "address": "2001:db8::5", "port": 5433 },
        ],
        "agent": { "priorityClassName": "high", "nodeSelector": { "zone": "1" } },
    }));
    egress.metadata.name = Some("with.dot".to_owned());
    let around = Surroundings {
        ca_bundle: Some("-----BEGIN CERTIFICATE-----\n"),
        monitoring_namespace: Some("monitoring"),
        control_url: "https://control.example.net/",
        tag: "tag:special",
        hostname: "with-dot",
        ..around(&defaults, &ports)
    };
    insta::assert_yaml_snapshot!(yaml(&desired(&egress, &around).unwrap()));
}

#[test]
fn a_change_of_targets_does_not_touch_the_deployment() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    let before = desired(&seed(), &around(&defaults, &ports)).unwrap();
    let mut changed = seed();
    changed.spec.targets.remove(0);
    changed.spec.targets[0].port = 8443;
    changed.spec.consumer_namespaces.push("team-b".to_owned());
    let memory = port_memory(&before.config_map.data.as_ref().unwrap()["config.json"]).unwrap();
    let after = desired(&changed, &around(&defaults, &memory)).unwrap();
    assert_eq!(before.deployment, after.deployment);
    assert_ne!(before.config_sha256, after.config_sha256);
    let listen = |desired: &Desired, name: &str| {
        let service = desired
            .services
            .iter()
            .find(|service| service.name_any() == name)
            .unwrap();
        service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0]
            .target_port
            .clone()
    };
    assert_eq!(listen(&before, "remote-api"), listen(&after, "remote-api"));
}

#[test]
fn server_tag_and_trust_roll_the_pods() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    let plain = around(&defaults, &ports);
    let template = |around: &Surroundings<'_>| desired(&seed(), around).unwrap().deployment.spec.unwrap().template;
    let before = template(&plain);
    assert_ne!(
        before,
        template(&Surroundings {
            tag: "tag:other",
            ..plain.clone()
        })
    );
    assert_ne!(
        before,
        template(&Surroundings {
            control_url: "https://other.example.net",
            ..plain.clone()
        })
    );
    assert_ne!(
        before,
        template(&Surroundings {
            ca_bundle: Some("pem"),
            ..plain.clone()
        })
    );
    for spelling in ["https://control.example.net/", "https://control.example.net:443"] {
        let around = Surroundings {
            control_url: spelling,
            ..plain.clone()
        };
        assert_eq!(before, template(&around));
        assert_eq!(
            desired(&seed(), &plain).unwrap().config_sha256,
            desired(&seed(), &around).unwrap().config_sha256,
            "{spelling} would make the agents log in anew"
        );
    }
}

#[test]
fn the_number_of_replicas_replaces_no_pod() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    let template = |replicas: i32| {
        let mut egress = seed();
        egress.spec.replicas = replicas;
        let deployment = desired(&egress, &around(&defaults, &ports))
            .unwrap()
            .deployment
            .spec
            .unwrap();
        assert_eq!(deployment.replicas, Some(replicas));
        deployment.template
    };
    assert_eq!(template(1), template(2));
    assert_eq!(template(2), template(3));
    let spread = template(1).spec.unwrap().topology_spread_constraints.unwrap();
    assert_eq!(spread[0].when_unsatisfiable, "ScheduleAnyway");
}

#[test]
fn the_pods_carry_the_node_identity_that_is_told() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    let desired = desired(&seed(), &around(&defaults, &ports)).unwrap();
    let metadata = desired.deployment.spec.unwrap().template.metadata.unwrap();
    assert_eq!(metadata.annotations.unwrap()[NODE_IDENTITY], desired.node_identity);
}

#[test]
fn nobody_may_connect_when_no_consumer_is_named() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    let mut lonely = seed();
    lonely.spec.consumer_namespaces.clear();
    let policy = desired(&lonely, &around(&defaults, &ports))
        .unwrap()
        .network_policy
        .spec
        .unwrap();
    let rules = policy.ingress.unwrap();
    assert_eq!(rules.len(), 1, "only the health port is open");
    assert!(
        rules
            .iter()
            .all(|rule| rule.from.as_ref().is_some_and(|from| !from.is_empty()))
    );
}

#[test]
fn an_object_that_is_not_stored_owns_nothing() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    let mut draft = seed();
    draft.metadata.uid = None;
    assert!(matches!(
        desired(&draft, &around(&defaults, &ports)),
        Err(DesiredError::NotStored)
    ));
}

#[test]
fn with_the_identity_kept_only_targets_change() {
    let (defaults, ports) = (AgentSettings::default(), PortMemory::default());
    let mut before = around(&defaults, &ports);
    before.ca_bundle = Some("old CA");
    let identity = identity_of(&desired(&seed(), &before).unwrap().config_map).unwrap();
    let expected = Identity {
        control_url: "https://control.example.net".to_owned(),
        hostname: "team-a".to_owned(),
        ca_bundle: Some("old CA".to_owned()),
    };
    assert_eq!(identity, expected);

    let mut changed = seed();
    changed.spec.targets.pop();
    let mut kept = around(&defaults, &ports);
    kept.control_url = &identity.control_url;
    kept.hostname = &identity.hostname;
    kept.ca_bundle = identity.ca_bundle.as_deref();
    let after = desired(&changed, &kept).unwrap().config_map;
    assert_eq!(identity_of(&after), Some(expected));
    assert_eq!(
        port_memory(&after.data.unwrap()[names::CONFIG_KEY])
            .unwrap()
            .ports
            .len(),
        1
    );
    assert_eq!(identity_of(&ConfigMap::default()), None);
}
