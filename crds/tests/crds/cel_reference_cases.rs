// Cases of the rules about names of other objects (TN017 and their like), and what CEL says of addresses beside them.

fn reference_cases() -> Vec<Case> {
    use Kind::*;

    const OBJECT: &str = "is no name that an object can have: write lower-case letters, digits, dashes and dots, beginning and ending with a letter or digit [TN017]";
    const NAMESPACE: &str =
        "is not the name of a namespace: write at most 63 lower-case letters, digits and dashes, no dash at either end";
    const KEY: &str = "is not a key that a ConfigMap or Secret can have: write letters, digits, dashes, dots and underscores [TN017]";
    const SERVICE: &str = "is not the name of a Service: write at most 63 lower-case letters, digits and dashes, beginning with a letter [TN017]";
    const LABEL: &str = "is no label that Kubernetes can have: [DNS name/]name and value of letters, digits, dashes, dots and underscores, at most 63 characters each [TN017]";
    const IPV6: &str = "is IPv6, which is not supported: write an IPv4 address, or keep suspend: true [TN506]";
    let mut cases: Vec<Case> = Vec::new();
    let mut refused = |kind: Kind, changes: Vec<(&'static str, Value)>, field: &str, text: &str| {
        let wanted = match text {
            "" => Vec::new(),
            text => vec![&*format!("{field}: {text}").leak()],
        };
        cases.push((kind, changes, wanted));
    };
    let objects: &[(Kind, &'static str, &str)] = &[
        (Tailnet, "/spec/apiSecretRef/name", "spec.apiSecretRef.name"),
        (Tailnet, "/spec/api/caConfigMapRef/name", "spec.api.caConfigMapRef.name"),
        (Tailnet, "/spec/dns/hostsConfigMap", "spec.dns.hostsConfigMap"),
        (Tailnet, "/spec/policy/baseConfigMap", "spec.policy.baseConfigMap"),
        (Tailnet, "/spec/defaults/tls/issuerRef/name", "spec.defaults.tls.issuerRef.name"),
        (TailnetEgress, "/spec/tailnetRef/name", "spec.tailnetRef.name"),
        (TailnetIngress, "/spec/tailnetRef/name", "spec.tailnetRef.name"),
        (TailnetIngress, "/spec/tls/secretRef/name", "spec.tls.secretRef.name"),
        (TailnetSite, "/spec/tailnetRef/name", "spec.tailnetRef.name"),
        (TailnetGateway, "/spec/tailnetRef/name", "spec.tailnetRef.name"),
        (TailnetGateway, "/spec/stateSecretRef/name", "spec.stateSecretRef.name"),
    ];
    for (kind, pointer, field) in objects {
        for bad in ["Upper", "under_score", "-a", "a.", "a..b", "a b", "a/b"] {
            refused(*kind, vec![(*pointer, json!(bad))], field, OBJECT);
        }
        refused(*kind, vec![(*pointer, json!("1.a-b"))], field, "");
    }
    refused(
        TailnetGateway,
        vec![("/spec/suspend", json!(true)), ("/spec/authKeySecretRef", json!({ "name": "Key" }))],
        "spec.authKeySecretRef.name",
        OBJECT,
    );
    for (pointer, field) in [
        ("/spec/defaults/tls/issuerRef", "spec.defaults.tls.issuerRef"),
        ("/spec/defaults/tls/allowedIssuers/0", "spec.defaults.tls.allowedIssuers[0]"),
    ] {
        let whole = |name: &str, kind: &str, group: &str| {
            let issuer = json!({ "name": name, "kind": kind, "group": group });
            match pointer.strip_suffix("/0") {
                Some(list) => vec![(list, json!([issuer]))],
                None => vec![(pointer, issuer)],
            }
        };
        refused(Tailnet, whole("a", "Issuer", "cert-manager.io"), field, "");
        refused(Tailnet, whole("A", "Issuer", "cert-manager.io"), &format!("{field}.name"), OBJECT);
        let kind = "is not a kind such as Issuer or ClusterIssuer [TN017]";
        refused(Tailnet, whole("a", "cluster-issuer", "cert-manager.io"), &format!("{field}.kind"), kind);
        let group = "is not an API group such as cert-manager.io [TN017]";
        refused(Tailnet, whole("a", "Issuer", "cert-manager.io/v1"), &format!("{field}.group"), group);
    }
    let issuer = |name: &str, kind: &str, group: &str| {
        vec![("/spec/tls", json!({ "issuerRef": { "name": name, "kind": kind, "group": group } }))]
    };
    refused(TailnetIngress, issuer("A", "Issuer", "g.io"), "spec.tls.issuerRef.name", OBJECT);
    let kind = "is not a kind such as Issuer or ClusterIssuer [TN017]";
    refused(TailnetIngress, issuer("a", "issuer", "g.io"), "spec.tls.issuerRef.kind", kind);
    let group = "is not an API group such as cert-manager.io [TN017]";
    refused(TailnetIngress, issuer("a", "Issuer", "G.io"), "spec.tls.issuerRef.group", group);
    for bad in ["certs/ca.crt", "..", "..data", "ca crt"] {
        refused(Tailnet, vec![("/spec/apiSecretRef/key", json!(bad))], "spec.apiSecretRef.key", KEY);
        let bundle = vec![("/spec/api/caConfigMapRef", json!({ "name": "ca", "key": bad }))];
        refused(Tailnet, bundle, "spec.api.caConfigMapRef.key", KEY);
    }
    for bad in ["Team-A", "team.a", "team_a", "-a"] {
        let namespace = format!("{NAMESPACE} [TN017]");
        let alias = vec![("/spec/dns/aliasNamespaces", json!([bad]))];
        refused(Tailnet, alias, "spec.dns.aliasNamespaces[0]", &namespace);
        let grants = json!([{ "namespaces": ["a", bad], "tags": ["tag:x"] }]);
        refused(Tailnet, vec![("/spec/tagGrants", grants)], "spec.tagGrants[0].namespaces[1]", &namespace);
        let backend = vec![("/spec/exposes/0/backend/namespace", json!(bad))];
        refused(TailnetIngress, backend, "spec.exposes[0].backend.namespace", &namespace);
        let consumers = vec![("/spec/consumerNamespaces", json!(["a", bad]))];
        let text = format!("{NAMESPACE} [TN209]");
        refused(TailnetEgress, consumers, "spec.consumerNamespaces[1]", &text);
    }
    for bad in ["Web", "1web", "web.team-a", "web_app"] {
        let backend = vec![("/spec/exposes/0/backend/service", json!(bad))];
        refused(TailnetIngress, backend, "spec.exposes[0].backend.service", SERVICE);
    }
    let tls = |name: &str, key: &str| {
        let bundle = json!({ "serverName": "web.team-a.svc", "caConfigMapRef": { "name": name, "key": key } });
        vec![("/spec/exposes/0/mode", json!("http")), ("/spec/exposes/0/backend/tls", bundle)]
    };
    refused(TailnetIngress, tls("ca", "ca.crt"), "", "");
    refused(TailnetIngress, tls("CA", "ca.crt"), "spec.exposes[0].backend.tls.caConfigMapRef.name", OBJECT);
    refused(TailnetIngress, tls("ca", "a/b"), "spec.exposes[0].backend.tls.caConfigMapRef.key", KEY);
    for good in [json!(1), json!(65535), json!("http"), json!("8080")] {
        refused(TailnetIngress, vec![("/spec/exposes/0/backend/port", good)], "", "");
    }
    for bad in ["a/b/c", "-class", "Upper.example/class"] {
        let class = vec![("/spec/service/loadBalancerClass", json!(bad))];
        let text = "is not a class such as example.com/internal [TN017]";
        refused(TailnetGateway, class, "spec.service.loadBalancerClass", text);
    }
    refused(
        TailnetGateway,
        vec![("/spec/service/loadBalancerClass", json!("io.cilium/l2-announcer"))],
        "",
        "",
    );
    for bad in [json!({ "bad key": "x" }), json!({ "key": "not a value" }), json!({ "key": "-x" })] {
        refused(TailnetGateway, vec![("/spec/service/poolLabels", bad)], "spec.service.poolLabels", LABEL);
    }
    for bad in ["localhost", "db.localhost"] {
        let text = "is a loopback name: it would reach the agent itself [TN203]";
        refused(TailnetEgress, vec![("/spec/targets/0/address", json!(bad))], "spec.targets[0].address", text);
    }
    refused(TailnetEgress, vec![("/spec/targets/0/address", json!("localhost.example.net"))], "", "");
    let timeouts = vec![("/spec/exposes/0/mode", json!("tcp")), ("/spec/exposes/0/port", json!(8443)),
        ("/spec/exposes/0/timeouts", json!({ "request": "5s" }))];
    let text = "is for http exposes only: a tcp expose carries bytes for as long as both sides like [TN312]";
    refused(TailnetIngress, timeouts, "spec.exposes[0].timeouts", text);
    let label = "is not a DNS label: write at most 63 lower-case letters, digits and dashes, no dash at either end [TN003]";
    refused(Tailnet, vec![("/spec/clusterName", json!("prod.eu"))], "spec.clusterName", label);
    let zone = "cannot give a valid DNS name [TN103]";
    refused(Tailnet, vec![("/spec/dns/ingressNameTemplate", json!("{name}-{namespace}"))], "spec.dns.ingressNameTemplate", zone);
    let upstreams = json!([{ "zone": "corp.example", "upstreams": ["10.96.0.54"] }]);
    let text = "has the gateway's own address as an upstream [TN507]";
    refused(
        TailnetGateway,
        vec![("/spec/dns/serviceClusterIP", json!("10.96.0.54")), ("/spec/dns/extraZones", upstreams)],
        "spec.dns.extraZones",
        text,
    );
    let active = ("/spec/suspend", json!(false));
    let v6 = ("/spec/dns/serviceClusterIP", json!("fd00::54"));
    refused(TailnetGateway, vec![active.clone(), v6.clone()], "spec.dns.serviceClusterIP", IPV6);
    refused(TailnetGateway, vec![("/spec/suspend", json!(true)), v6], "", "");
    let v6 = ("/spec/service/loadBalancerIP", json!("2001:db8::17"));
    cases.push((
        TailnetGateway,
        vec![active, v6],
        vec![
            "spec.service.loadBalancerIP: is IPv6, which is not supported: write an IPv4 address, or keep suspend: true [TN506]",
            "spec.service.loadBalancerIP: is outside tailnetLBCIDR [TN504]",
        ],
    ));
    cases
}
