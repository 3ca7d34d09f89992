use super::*;
use serde_json::json;

fn ingress(spec: serde_json::Value) -> TailnetIngress {
    serde_json::from_value(json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetIngress",
        "metadata": { "name": "portal", "namespace": "shop", "uid": "11111111-2222-3333-4444-555555555555" },
        "spec": spec,
    }))
    .unwrap()
}

/// Both modes, an issuer, verified HTTPS to a backend, replicas.
fn full() -> TailnetIngress {
    ingress(json!({
        "tailnetRef": { "name": "demo" },
        "allowFrom": ["group:shop"],
        "replicas": 2,
        "exposes": [
            { "name": "web", "mode": "http", "port": 443, "backend": { "service": "web", "port": "main" },
              "timeouts": { "request": "10s" } },
            { "name": "api", "mode": "http", "port": 443, "backend": { "service": "api", "port": 8443,
              "tls": { "serverName": "api.internal", "caConfigMapRef": { "name": "api-ca" } } } },
            { "name": "echo", "port": 7000, "backend": { "service": "echo", "port": 7000 } },
            { "name": "nameless", "mode": "http", "port": 444, "backend": { "service": "web", "port": 80 } },
        ],
        "tls": { "issuerRef": { "name": "corp" } },
    }))
}

fn at(address: &str, port: u16) -> Resolved {
    Resolved {
        address: Ok(BackendAddress {
            address: address.to_owned(),
            port,
        }),
        h2c: false,
    }
}

fn made() -> (TailnetIngress, Desired) {
    let ingress = full();
    let defaults = AgentSettings::default();
    let issuer = ingress.spec.tls.as_ref().unwrap().issuer_ref.clone().unwrap();
    let names = [
        vec!["web.shop.example.net".to_owned()],
        vec!["api.shop.example.net".to_owned()],
        vec!["portal.shop.example.net".to_owned()],
        Vec::new(),
    ];
    let missing = Resolved {
        address: Err("Service shop/echo does not exist".to_owned()),
        h2c: false,
    };
    let backends = [at("10.96.0.7", 80), at("10.96.0.8", 8443), missing, at("10.96.0.7", 80)];
    let around = Surroundings {
        operator_namespace: "tailnet-system",
        image: "docker.io/tsunaro/tailnet-operator:dev",
        pull_policy: "IfNotPresent",
        monitoring_namespace: Some("monitoring"),
        control_url: "https://control.example.net:8443",
        defaults: &defaults,
        ca_bundle: Some("-----BEGIN CERTIFICATE-----\n"),
        tag: "tag:ingress-shop-portal",
        hostname: "portal-shop",
        names: &names,
        backends: &backends,
        certificate: Some(&CertificateSource::Issuer(issuer)),
    };
    let made = desired(&ingress, &around).unwrap();
    (ingress, made)
}

#[test]
fn golden_both_modes() {
    let (_, made) = made();
    insta::assert_yaml_snapshot!(json!({
        "configMap": made.config_map,
        "deployment": made.deployment,
        "networkPolicy": made.network_policy,
        "certificate": made.certificate,
        "podDisruptionBudget": made.pod_disruption_budget,
    }));
}

#[test]
fn an_http_expose_without_a_name_is_not_configured_and_one_without_a_backend_is() {
    let (_, made) = made();
    let config: AgentConfig = serde_json::from_str(&made.config_map.data.unwrap()[keys::CONFIG_KEY]).unwrap();
    let names: Vec<&str> = config.exposes.iter().map(|expose| expose.name.as_str()).collect();
    assert_eq!(names, ["web", "api", "echo"]);
    assert_eq!(config.exposes[2].backend, None);
    let http = config.exposes[0].http.as_ref().unwrap();
    assert_eq!(
        (http.request_timeout_ms, http.backend_request_timeout_ms),
        (Some(10_000), 10_000),
        "at most the request's"
    );
}

#[test]
fn emptied_agents_stay_the_nodes_that_they_are() {
    let (ingress, made) = made();
    let (empty, sha256) = emptied(&ingress, &made.config_map).unwrap().unwrap();
    let (before, after) = (made.config_map.data.unwrap(), empty.data.unwrap());
    assert_eq!(before[keys::CA_KEY], after[keys::CA_KEY]);
    assert_eq!(sha256, sha256_hex(&after[keys::CONFIG_KEY]));
    let parse = |text: &str| serde_json::from_str::<AgentConfig>(text).unwrap();
    let (before, after) = (parse(&before[keys::CONFIG_KEY]), parse(&after[keys::CONFIG_KEY]));
    assert!(!before.exposes.is_empty() && after.exposes.is_empty());
    assert_eq!(
        (before.hostname, before.control_url),
        (after.hostname, after.control_url)
    );
    let unreadable = ConfigMap {
        data: Some(BTreeMap::from([(keys::CONFIG_KEY.to_owned(), "{".to_owned())])),
        ..ConfigMap::default()
    };
    assert!(emptied(&ingress, &unreadable).unwrap().is_none());
}
