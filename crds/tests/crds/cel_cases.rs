// Cases of the rules in CEL; shared with the test that runs them on a real API server.

/// A kind, changes of its fixture (JSON pointer and value), and the refusals.
type Case = (Kind, Vec<(&'static str, Value)>, Vec<&'static str>);
/// A kind, changes that make the old object, changes that make the new one, and the refusals.
type Update = (
    Kind,
    Vec<(&'static str, Value)>,
    Vec<(&'static str, Value)>,
    Vec<&'static str>,
);

/// The object with the values at JSON pointers replaced; missing objects on the way are made.
fn with(mut object: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let mut node = &mut object;
        for step in pointer.split('/').skip(1) {
            node = match step.parse::<usize>() {
                Ok(index) => &mut node[index],
                Err(_) => &mut node[step],
            };
        }
        *node = value.clone();
    }
    object
}

fn cases() -> Vec<Case> {
    use Kind::*;
    let address = "/spec/targets/0/address";
    let alias = "/spec/targets/1/aliases/0";
    let mut cases: Vec<Case> = vec![
        (TailnetEgress, vec![(address, json!("2001:db8::1"))], vec![]),
        (TailnetEgress, vec![(address, json!("nas.example.net"))], vec![]),
        (TailnetEgress, vec![(address, json!("nas"))], vec![]),
    ];
    let mut refused = |kind: Kind, changes: Vec<(&'static str, Value)>, wanted: &[&'static str]| {
        cases.push((kind, changes, wanted.to_vec()));
    };
    // Tailnet
    let long63: &'static str = "a123456789-123456789-123456789-123456789-123456789-123456789-123";
    refused(
        Tailnet,
        vec![("/metadata/name", json!(long63))],
        &[": the name is longer than 63 characters, so it cannot be a label value [TN003]"],
    );
    for url in [
        "ftp://control.example.net",
        "https://control.example.net/login",
        "https://u@control.example.net",
        "https://control.example.net?x",
        "control.example.net",
    ] {
        refused(
            Tailnet,
            vec![("/spec/server", json!(url))],
            &["spec.server: is not an absolute https URL without user info, query and path [TN101]"],
        );
    }
    for url in [
        "https://control.example.net/",
        "https://control.example.net:8443",
        "http://127.0.0.1:8080",
        "http://[::1]:8080",
        "http://headscale.x.svc",
        "http://headscale",
        "http://10.0.0.1",
        "http://172.16.0.1",
    ] {
        refused(Tailnet, vec![("/spec/server", json!(url))], &[]);
    }
    for url in [
        "http://control.example.net",
        "http://192.0.2.1",
        "http://172.32.0.1",
        "http://10.0.0.1.example.net",
    ] {
        refused(
            Tailnet,
            vec![("/spec/server", json!(url))],
            &[
                "spec.server: is plain http to a host that is neither loopback, private nor in-cluster: write https [TN101]",
            ],
        );
    }
    refused(
        Tailnet,
        vec![("/spec/server", json!("https://Control.example.net "))],
        &["spec.server: is not in canonical form: write \"https://control.example.net\" [TN010]"],
    );
    refused(
        Tailnet,
        vec![("/spec/api", json!({"endpoint": "nonsense"}))],
        &["spec.api.endpoint: is not an absolute https URL without user info, query and path [TN101]"],
    );
    refused(
        Tailnet,
        vec![("/spec/api", json!({"endpoint": "http://control.example.net"}))],
        &[
            "spec.api.endpoint: is plain http to a host that is neither loopback, private nor in-cluster: write https [TN101]",
        ],
    );
    refused(
        Tailnet,
        vec![("/spec/api", json!({"endpoint": "HTTPS://x.example"}))],
        &["spec.api.endpoint: is not in canonical form: write \"https://x.example\" [TN010]"],
    );
    refused(
        Tailnet,
        vec![("/spec/dns/ingressNameTemplate", json!("lab.example.net"))],
        &["spec.dns.ingressNameTemplate: lacks the placeholder {name} [TN103]"],
    );
    refused(
        Tailnet,
        vec![("/spec/dns/ingressNameTemplate", json!("{name}.{cluster}.net"))],
        &[
            "spec.dns.ingressNameTemplate: has an unknown placeholder: there are {name}, {namespace} and {tailnet} [TN103]",
        ],
    );
    refused(
        Tailnet,
        vec![("/spec/dns/ingressNameTemplate", json!("{name}..net"))],
        &["spec.dns.ingressNameTemplate: cannot give a valid DNS name [TN103]"],
    );
    refused(
        Tailnet,
        vec![("/spec/dns/ingressAliasTemplate", json!("lab.example.net"))],
        &["spec.dns.ingressAliasTemplate: lacks the placeholder {name} [TN103]"],
    );
    refused(
        Tailnet,
        vec![("/spec/dns/ingressAliasTemplate", json!("{name}.{}.net"))],
        &[
            "spec.dns.ingressAliasTemplate: has an unknown placeholder: there are {name}, {namespace} and {tailnet} [TN103]",
        ],
    );
    refused(
        Tailnet,
        vec![("/spec/dns/ingressAliasTemplate", json!("{name}.10"))],
        &["spec.dns.ingressAliasTemplate: cannot give a valid DNS name [TN103]"],
    );
    for (place, message) in [
        (
            "podLabels",
            "spec.defaults.agent.podLabels: has a key of the operator: keys below tsunaro.io/ and app.kubernetes.io/ are its own [TN012]",
        ),
        (
            "podAnnotations",
            "spec.defaults.agent.podAnnotations: has a key of the operator: keys below tsunaro.io/ and app.kubernetes.io/ are its own [TN012]",
        ),
    ] {
        refused(
            Tailnet,
            vec![("/spec/defaults/agent", json!({place: {"tsunaro.io/tailnet": "x"}}))],
            &[message],
        );
        refused(
            Tailnet,
            vec![("/spec/defaults/agent", json!({place: {"example.net/x": "x"}}))],
            &[],
        );
    }
    refused(
        Tailnet,
        vec![("/spec/reservedNetworks", json!(["10.0.0.0/8", "nonsense"]))],
        &["spec.reservedNetworks[1]: is not a CIDR such as 192.0.2.0/24 or 2001:db8::/32 [TN105]"],
    );
    refused(
        Tailnet,
        vec![("/spec/reservedNetworks", json!(["10.0.0.1/8"]))],
        &["spec.reservedNetworks[0]: is not in canonical form: write \"10.0.0.0/8\" [TN105]"],
    );

    // TailnetEgress
    refused(
        TailnetEgress,
        vec![("/metadata/name", json!(long63))],
        &[": the name is longer than 60 characters, so it cannot become a node's name [TN003]"],
    );
    refused(
        TailnetEgress,
        vec![("/spec/tag", json!("tag:1x"))],
        &[
            "spec.tag: is not a tag: write tag: and a name of lower-case letters, digits and dashes that begins with a letter [TN004]",
        ],
    );
    refused(
        TailnetEgress,
        vec![("/spec/tag", json!("Tag:X"))],
        &["spec.tag: is not in canonical form: write \"tag:x\" [TN010]"],
    );
    refused(
        TailnetEgress,
        vec![("/spec/consumerNamespaces", json!([]))],
        &["spec.consumerNamespaces: is empty, so nobody may connect: name at least one namespace [TN209]"],
    );
    refused(
        TailnetEgress,
        vec![("/spec/consumerNamespaces", json!(["a", "b", "a"]))],
        &["spec.consumerNamespaces: names a namespace twice [TN209]"],
    );
    for name in ["3db", "remote.db", "Remote", "-a", "a-"] {
        refused(
            TailnetEgress,
            vec![("/spec/targets/0/name", json!(name))],
            &[
                "spec.targets[0].name: is not a DNS-1035 label: write at most 63 lower-case letters, digits and dashes, beginning with a letter [TN003]",
            ],
        );
    }
    for bad in [
        "10.0.0.300",
        "10.0.0.0/8",
        "db.example.0x7f",
        "a_b.example",
        "a..b",
        "1:2",
        "10.0.0.1:80",
        "db:5432",
    ] {
        refused(
            TailnetEgress,
            vec![(address, json!(bad))],
            &["spec.targets[0].address: is not an IPv4 or IPv6 address or a DNS name [TN203]"],
        );
    }
    for bad in [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "ff02::1",
    ] {
        refused(
            TailnetEgress,
            vec![(address, json!(bad))],
            &[
                "spec.targets[0].address: is not the address of one host: it is unspecified, loopback, link-local, multicast or broadcast [TN203]",
            ],
        );
    }
    refused(
        TailnetEgress,
        vec![(address, json!("192.0.2.010"))],
        &["spec.targets[0].address: is not in canonical form (leading zeros): write \"192.0.2.10\" [TN010]"],
    );
    refused(
        TailnetEgress,
        vec![(address, json!("2001:DB8::0:1"))],
        &["spec.targets[0].address: is not in canonical form: write \"2001:db8::1\" [TN010]"],
    );
    for odd in [
        "127.1",
        "0x0a.0.0.1",
        "2130706433",
        "::ffff:10.0.0.3",
        "fe80::1%eth0",
        "10.0.0.1.",
    ] {
        refused(
            TailnetEgress,
            vec![(address, json!(odd))],
            &[
                "spec.targets[0].address: is not in canonical form: write four decimal numbers without leading zeros, or IPv6 as in RFC 5952 without zone [TN010]",
            ],
        );
    }
    refused(
        TailnetEgress,
        vec![(address, json!("Nas.example.net."))],
        &["spec.targets[0].address: is not in canonical form: write \"nas.example.net\" [TN010]"],
    );
    refused(
        TailnetEgress,
        vec![(address, json!("bücher.example"))],
        &[
            "spec.targets[0].address: is not in canonical form (characters outside ASCII): write A-labels (xn--...) [TN010]",
        ],
    );
    refused(
        TailnetEgress,
        vec![("/spec/targets/0/protocol", json!("UDP"))],
        &["spec.targets[0].protocol: is not built yet: use TCP [TN210]"],
    );
    for bad in ["api", "a_b.example", "10.0.0.1", "*.example.net"] {
        refused(
            TailnetEgress,
            vec![(alias, json!(bad))],
            &["spec.targets[1].aliases[0]: is not a DNS name of at least two labels [TN206]"],
        );
    }
    refused(
        TailnetEgress,
        vec![(alias, json!("API.example.net"))],
        &["spec.targets[1].aliases[0]: is not in canonical form: write \"api.example.net\" [TN010]"],
    );
    refused(
        TailnetEgress,
        vec![("/spec/targets/1/aliases", json!(["a.example", "a.example"]))],
        &["spec.targets[1].aliases: names an alias twice [TN206]"],
    );
    refused(
        TailnetEgress,
        vec![
            ("/spec/targets/1/address", json!("a.example")),
            ("/spec/targets/1/aliases", json!(["a.example"])),
        ],
        &["spec.targets[1].aliases: holds the target's own address [TN206]"],
    );
    for (place, message) in [
        (
            "podLabels",
            "spec.agent.podLabels: has a key of the operator: keys below tsunaro.io/ and app.kubernetes.io/ are its own [TN012]",
        ),
        (
            "podAnnotations",
            "spec.agent.podAnnotations: has a key of the operator: keys below tsunaro.io/ and app.kubernetes.io/ are its own [TN012]",
        ),
    ] {
        refused(
            TailnetEgress,
            vec![("/spec/agent", json!({place: {"app.kubernetes.io/name": "x"}}))],
            &[message],
        );
        refused(
            TailnetIngress,
            vec![("/spec/agent", json!({place: {"app.kubernetes.io/name": "x"}}))],
            &[message],
        );
    }

    // TailnetIngress
    let portal = "/spec/exposes/0/dnsLabel";
    refused(
        TailnetIngress,
        vec![("/metadata/name", json!(long63))],
        &[": the name is longer than 60 characters, so it cannot become a node's name [TN003]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/tag", json!("router"))],
        &[
            "spec.tag: is not a tag: write tag: and a name of lower-case letters, digits and dashes that begins with a letter [TN004]",
        ],
    );
    refused(
        TailnetIngress,
        vec![("/spec/tag", json!("tag:X "))],
        &["spec.tag: is not in canonical form: write \"tag:x\" [TN010]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/hostname", json!("a.b"))],
        &[
            "spec.hostname: is not a DNS label: write at most 63 lower-case letters, digits and dashes, no dash at either end [TN313]",
        ],
    );
    refused(
        TailnetIngress,
        vec![("/spec/hostname", json!("Portal"))],
        &["spec.hostname: is not in canonical form: write \"portal\" [TN010]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/exposes/0/name", json!("1web"))],
        &[
            "spec.exposes[0].name: is not a DNS-1035 label: write at most 63 lower-case letters, digits and dashes, beginning with a letter [TN003]",
        ],
    );
    refused(
        TailnetIngress,
        vec![(portal, json!("a_b"))],
        &[
            "spec.exposes[0].dnsLabel: is not a DNS label: write at most 63 lower-case letters, digits and dashes, no dash at either end [TN003]",
        ],
    );
    refused(
        TailnetIngress,
        vec![(portal, json!("PORTAL"))],
        &["spec.exposes[0].dnsLabel: is not in canonical form: write \"portal\" [TN010]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/exposes/0/mode", json!("tcp"))],
        &["spec.exposes: a tcp expose shares its port with another expose: give it a port of its own [TN303]"],
    );
    refused(
        TailnetIngress,
        vec![(portal, json!("admin"))],
        &["spec.exposes: two http exposes on one port have the same name: give one another dnsLabel [TN303]"],
    );
    refused(
        TailnetIngress,
        vec![(portal, json!("admin")), ("/spec/exposes/0/port", json!(8443))],
        &[],
    );
    refused(
        TailnetIngress,
        vec![
            ("/spec/exposes/1/mode", json!("tcp")),
            ("/spec/exposes/1/port", json!(8443)),
        ],
        &["spec.exposes[1].backend.tls: is for http exposes only: set mode: http, or leave TLS to the client [TN308]",
            "spec.exposes[1].timeouts: is for http exposes only: a tcp expose carries bytes for as long as both sides like [TN312]"],
    );
    for bad in ["Admin.svc", "admin.svc.", "a_b", "10.0.0.1"] {
        refused(
            TailnetIngress,
            vec![("/spec/exposes/1/backend/tls/serverName", json!(bad))],
            &["spec.exposes[1].backend.tls.serverName: is not a DNS name in lower case without trailing dot [TN308]"],
        );
    }
    refused(
        TailnetIngress,
        vec![("/spec/exposes/1/timeouts/request", json!("10 min"))],
        &["spec.exposes[1].timeouts.request: is not a duration such as 600s, 1h30m or 500ms [TN312]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/exposes/1/timeouts/request", json!("25h"))],
        &["spec.exposes[1].timeouts.request: is longer than 24h [TN312]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/exposes/1/timeouts", json!({"backendRequest": "1d"}))],
        &["spec.exposes[1].timeouts.backendRequest: is not a duration such as 600s, 1h30m or 500ms [TN312]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/exposes/1/timeouts", json!({"backendRequest": "24h1s"}))],
        &["spec.exposes[1].timeouts.backendRequest: is longer than 24h [TN312]"],
    );
    refused(
        TailnetIngress,
        vec![("/spec/exposes/1/timeouts/backendRequest", json!("11m"))],
        &["spec.exposes[1].timeouts.backendRequest: is longer than request [TN312]"],
    );
    refused(
        TailnetIngress,
        vec![(
            "/spec/tls",
            json!({"secretRef": {"name": "a"}, "issuerRef": {"name": "b"}}),
        )],
        &["spec.tls: has both secretRef and issuerRef: choose one [TN309]"],
    );

    // TailnetSite
    let prefixes = "/spec/prefixes";
    for bad in ["nonsense", "192.0.2.0", "192.0.2.0/33", "192.0.2.0/255.255.255.0"] {
        refused(
            TailnetSite,
            vec![(prefixes, json!([bad]))],
            &["spec.prefixes[0]: is not a CIDR such as 192.0.2.0/24 or 2001:db8::/32 [TN400]"],
        );
    }
    refused(
        TailnetSite,
        vec![(prefixes, json!(["192.0.2.1/24"]))],
        &["spec.prefixes[0]: is not in canonical form: write \"192.0.2.0/24\" [TN401]"],
    );
    refused(
        TailnetSite,
        vec![(prefixes, json!(["2001:DB8::/32"]))],
        &["spec.prefixes[0]: is not in canonical form: write \"2001:db8::/32\" [TN401]"],
    );
    refused(
        TailnetSite,
        vec![(prefixes, json!(["192.0.2.0/24", "192.0.2.0/24"]))],
        &["spec.prefixes: names a prefix twice [TN401]"],
    );
    refused(
        TailnetSite,
        vec![(prefixes, json!(["192.0.2.0/24", "192.0.2.1/32"]))],
        &["spec.prefixes: has a prefix inside another: leave out the smaller one [TN401]"],
    );
    for bad in ["0.0.0.0/0", "128.0.0.0/1", "::/0"] {
        refused(
            TailnetSite,
            vec![(prefixes, json!([bad]))],
            &["spec.prefixes[0]: is the whole address space or half of it [TN404]"],
        );
    }
    for bad in [
        "0.0.0.0/8",
        "255.255.255.255/32",
        "240.0.0.0/4",
        "::/128",
        "127.0.0.0/8",
        "169.254.169.254/32",
        "224.0.0.0/3",
        "100.100.0.0/16",
        "100.0.0.0/8",
        "::1/128",
        "fe80::/64",
        "ff02::/16",
        "fd7a:115c:a1e0::/64",
        "fd00::/8",
    ] {
        refused(
            TailnetSite,
            vec![(prefixes, json!([bad]))],
            &["spec.prefixes[0]: overlaps unspecified, loopback, link-local, multicast or broadcast addresses or the tailnet's own range [TN404]"],
        );
    }
    refused(
        TailnetSite,
        vec![(prefixes, json!(["192.0.2.0/24", "2001:db8::/32", "10.0.0.1/32"]))],
        &[],
    );
    refused(
        TailnetSite,
        vec![("/spec/advertisedBy", json!(["group:x"]))],
        &[
            "spec.advertisedBy[0]: is not a tag: write tag: and a name of lower-case letters, digits and dashes that begins with a letter [TN405]",
        ],
    );
    refused(
        TailnetSite,
        vec![("/spec/advertisedBy", json!(["tag:a", "tag:b", "tag:a"]))],
        &["spec.advertisedBy: names a tag twice [TN405]"],
    );
    refused(
        TailnetSite,
        vec![("/spec/advertisedBy", json!(["tag:Router"]))],
        &["spec.advertisedBy[0]: is not in canonical form: write \"tag:router\" [TN010]"],
    );

    // TailnetGateway
    for bad in [long63, "3gw", "prod.gw", "a123456789-123456789-123456789-12345678901"] {
        refused(
            TailnetGateway,
            vec![("/metadata/name", json!(bad))],
            &[
                ": the name is not a DNS-1035 label of at most 40 characters, so it cannot name the gateway's Service [TN501]",
            ],
        );
    }
    for (field, value, message) in [
        (
            "/spec/authKeySecretRef",
            json!({"name": "x"}),
            "spec.authKeySecretRef: is not supported: leave it out, or keep suspend: true [TN506]",
        ),
        (
            "/spec/forwards",
            json!([{"name": "x", "port": 80, "address": "192.0.2.1"}]),
            "spec.forwards: is not supported: leave it out, or keep suspend: true [TN506]",
        ),
        (
            "/spec/forwardImage",
            json!("x:1.2.3"),
            "spec.forwardImage: is not supported: leave it out, or keep suspend: true [TN506]",
        ),
        (
            "/spec/adoption",
            json!({"nodeId": "7", "objects": [{"apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "y"}]}),
            "spec.adoption: is not supported: leave it out, or keep suspend: true [TN506]",
        ),
        (
            "/spec/replicas",
            json!(2),
            "spec.replicas: is not supported: a gateway is one node, so write 1, or keep suspend: true [TN506]",
        ),
    ] {
        refused(TailnetGateway, vec![(field, value.clone())], &[message]);
        refused(
            TailnetGateway,
            vec![(field, value), ("/spec/suspend", json!(true))],
            &[],
        );
    }
    let zones = "/spec/dns/extraZones";
    let zone = |zone: &str, upstreams: Value| json!({"zone": zone, "upstreams": upstreams});
    refused(
        TailnetGateway,
        vec![(
            zones,
            json!([
                zone("corp.example", json!(["198.51.100.53", "198.51.100.54"])),
                zone("partner.example", json!(["198.51.100.53"]))
            ]),
        )],
        &[],
    );
    refused(
        TailnetGateway,
        vec![(zones, json!([zone("corp.example", json!(["198.51.100.17"]))]))],
        &["spec.dns.extraZones: has the gateway's own address as an upstream [TN507]"],
    );
    refused(
        TailnetGateway,
        vec![(
            zones,
            json!([zone("x.prod-1.tailnet.example.internal", json!(["198.51.100.53"]))]),
        )],
        &["spec.dns.extraZones: overlaps the zone of the gateway [TN507]"],
    );
    refused(
        TailnetGateway,
        vec![(
            zones,
            json!([
                zone("corp.example", json!(["198.51.100.53"])),
                zone("a.corp.example", json!(["198.51.100.53"]))
            ]),
        )],
        &["spec.dns.extraZones: has zones that overlap each other [TN507]"],
    );
    refused(
        TailnetGateway,
        vec![(zones, json!([zone("a_b", json!(["198.51.100.53"]))]))],
        &["spec.dns.extraZones[0].zone: is not a DNS name [TN507]"],
    );
    refused(
        TailnetGateway,
        vec![(zones, json!([zone("Corp.example", json!(["198.51.100.53"]))]))],
        &["spec.dns.extraZones[0].zone: is not in canonical form: write \"corp.example\" [TN010]"],
    );
    refused(
        TailnetGateway,
        vec![(zones, json!([zone("corp.example", json!(["x"]))]))],
        &["spec.dns.extraZones[0].upstreams[0]: is not an IPv4 or IPv6 address [TN507]"],
    );
    refused(
        TailnetGateway,
        vec![(zones, json!([zone("corp.example", json!(["127.0.0.1"]))]))],
        &[
            "spec.dns.extraZones[0].upstreams[0]: is not the address of one host: it is unspecified, loopback, link-local, multicast or broadcast [TN507]",
        ],
    );
    refused(
        TailnetGateway,
        vec![(zones, json!([zone("corp.example", json!(["2001:DB8::1"]))]))],
        &["spec.dns.extraZones[0].upstreams[0]: is not in canonical form: write \"2001:db8::1\" [TN010]"],
    );
    refused(
        TailnetGateway,
        vec![(zones, json!([zone("corp.example", json!(["192.0.2.1", "192.0.2.1"]))]))],
        &["spec.dns.extraZones[0].upstreams: names an upstream twice [TN507]"],
    );
    refused(
        TailnetGateway,
        vec![("/spec/hostname", json!("a_b"))],
        &[
            "spec.hostname: is not a DNS label: write at most 63 lower-case letters, digits and dashes, no dash at either end [TN313]",
        ],
    );
    refused(
        TailnetGateway,
        vec![("/spec/hostname", json!("GW"))],
        &["spec.hostname: is not in canonical form: write \"gw\" [TN010]"],
    );
    refused(
        TailnetGateway,
        vec![("/spec/tags", json!(["fabric"]))],
        &[
            "spec.tags[0]: is not a tag: write tag: and a name of lower-case letters, digits and dashes that begins with a letter [TN004]",
        ],
    );
    refused(
        TailnetGateway,
        vec![("/spec/tags", json!(["TAG:fabric"]))],
        &["spec.tags[0]: is not in canonical form: write \"tag:fabric\" [TN010]"],
    );
    for bad in ["x", "x:latest", "x:1", "x:v1", "localhost:5000/x", "x:1-alpine"] {
        refused(
            TailnetGateway,
            vec![("/spec/image", json!(bad))],
            &["spec.image: has no full version tag or digest: write something like :v1.2.3 or @sha256:... [TN502]"],
        );
    }
    for good in [
        "x:1.8.0.3-r2",
        "x@sha256:0123456789012345678901234567890123456789012345678901234567890123",
    ] {
        refused(TailnetGateway, vec![("/spec/image", json!(good))], &[]);
    }
    refused(
        TailnetGateway,
        vec![("/spec/dns/image", json!("coredns:latest"))],
        &["spec.dns.image: has no full version tag or digest: write something like :v1.2.3 or @sha256:... [TN502]"],
    );
    let lan = "/spec/routes/lan";
    for bad in ["x", "192.0.2.0", "2001:db8::/32", "::ffff:192.0.2.0/120"] {
        refused(
            TailnetGateway,
            vec![(lan, json!([bad]))],
            &["spec.routes.lan[0]: is not an IPv4 CIDR such as 192.0.2.0/24 [TN503]"],
        );
    }
    for bad in [
        "0.0.0.0/0",
        "128.0.0.0/1",
        "0.0.0.0/8",
        "127.0.0.0/16",
        "169.254.0.0/24",
        "224.0.0.0/4",
        "224.0.0.0/3",
        "100.64.7.0/24",
        "100.0.0.0/8",
    ] {
        refused(
            TailnetGateway,
            vec![(lan, json!([bad]))],
            &[
                "spec.routes.lan[0]: is the whole address space or half of it, or overlaps unspecified, loopback, link-local, multicast or broadcast addresses or the tailnet's own range [TN503]",
            ],
        );
    }
    refused(
        TailnetGateway,
        vec![(lan, json!(["192.0.2.0/24", "203.0.113.0/24", "192.0.2.0/24"]))],
        &["spec.routes.lan: names a network twice [TN503]"],
    );
    refused(
        TailnetGateway,
        vec![(lan, json!(["192.0.2.1/24"]))],
        &["spec.routes.lan[0]: is not in canonical form: write \"192.0.2.0/24\" [TN503]"],
    );
    let pool = "/spec/service/tailnetLBCIDR";
    refused(
        TailnetGateway,
        vec![(pool, json!("x"))],
        &["spec.service.tailnetLBCIDR: is not an IPv4 CIDR such as 192.0.2.0/24 [TN503]"],
    );
    refused(
        TailnetGateway,
        vec![(pool, json!("0.0.0.0/0"))],
        &[
            "spec.service.tailnetLBCIDR: is the whole address space or half of it, or overlaps unspecified, loopback, link-local, multicast or broadcast addresses or the tailnet's own range [TN503]",
        ],
    );
    refused(
        TailnetGateway,
        vec![(pool, json!("198.51.100.7/24"))],
        &["spec.service.tailnetLBCIDR: is not in canonical form: write \"198.51.100.0/24\" [TN503]"],
    );
    let lb = "/spec/service/loadBalancerIP";
    refused(
        TailnetGateway,
        vec![(lb, json!("192.0.2.1"))],
        &["spec.service.loadBalancerIP: is outside tailnetLBCIDR [TN504]"],
    );
    refused(
        TailnetGateway,
        vec![(lb, json!("x"))],
        &["spec.service.loadBalancerIP: is not an IPv4 or IPv6 address [TN503]"],
    );
    refused(
        TailnetGateway,
        vec![(lb, json!("198.51.100.017"))],
        &["spec.service.loadBalancerIP: is not in canonical form (leading zeros): write \"198.51.100.17\" [TN010]"],
    );
    refused(
        TailnetGateway,
        vec![(lb, json!("255.255.255.255")), (pool, json!("255.255.255.0/24"))],
        &[
            "spec.service.loadBalancerIP: is not the address of one host: it is unspecified, loopback, link-local, multicast or broadcast [TN503]",
            "spec.service.tailnetLBCIDR: is the whole address space or half of it, or overlaps unspecified, loopback, link-local, multicast or broadcast addresses or the tailnet's own range [TN503]",
        ],
    );
    refused(
        TailnetGateway,
        vec![("/spec/service/poolLabels", json!({"tsunaro.io/tailnet": "x"}))],
        &[
            "spec.service.poolLabels: has a key of the operator: keys below tsunaro.io/ and app.kubernetes.io/ are its own [TN511]",
        ],
    );
    refused(
        TailnetGateway,
        vec![("/spec/dns/zone", json!("a_b"))],
        &["spec.dns.zone: is not a DNS name [TN507]"],
    );
    refused(
        TailnetGateway,
        vec![("/spec/dns/zone", json!("Example.internal."))],
        &["spec.dns.zone: is not in canonical form: write \"example.internal\" [TN010]"],
    );
    refused(
        TailnetGateway,
        vec![("/spec/dns/serviceName", json!("1dns"))],
        &[
            "spec.dns.serviceName: is not a DNS-1035 label: write at most 63 lower-case letters, digits and dashes, beginning with a letter [TN501]",
        ],
    );
    let cluster_ip = "/spec/dns/serviceClusterIP";
    refused(
        TailnetGateway,
        vec![(cluster_ip, json!("None"))],
        &["spec.dns.serviceClusterIP: is not an IPv4 or IPv6 address [TN503]"],
    );
    refused(
        TailnetGateway,
        vec![(cluster_ip, json!("127.0.0.1"))],
        &[
            "spec.dns.serviceClusterIP: is not the address of one host: it is unspecified, loopback, link-local, multicast or broadcast [TN503]",
        ],
    );
    refused(
        TailnetGateway,
        vec![(cluster_ip, json!("10.96.0.054"))],
        &["spec.dns.serviceClusterIP: is not in canonical form (leading zeros): write \"10.96.0.54\" [TN010]"],
    );
    let records = "/spec/dns/staticRecords";
    refused(
        TailnetGateway,
        vec![(records, json!([{"name": "x"}]))],
        &["spec.dns.staticRecords[0]: has both or neither of address and target: write one [TN508]"],
    );
    refused(
        TailnetGateway,
        vec![(records, json!([{"name": "x", "address": "192.0.2.1", "target": "y"}]))],
        &["spec.dns.staticRecords[0]: has both or neither of address and target: write one [TN508]"],
    );
    refused(
        TailnetGateway,
        vec![(records, json!([{"name": "x", "address": "y"}]))],
        &["spec.dns.staticRecords[0].address: is not an IPv4 or IPv6 address [TN503]"],
    );
    refused(
        TailnetGateway,
        vec![(records, json!([{"name": "x", "address": "192.0.2.01"}]))],
        &["spec.dns.staticRecords[0].address: is not in canonical form (leading zeros): write \"192.0.2.1\" [TN010]"],
    );
    refused(
        TailnetGateway,
        vec![("/spec/dns/wildcardAddress", json!("x"))],
        &["spec.dns.wildcardAddress: is not an IPv4 or IPv6 address [TN503]"],
    );
    refused(
        TailnetGateway,
        vec![("/spec/dns/wildcardAddress", json!("192.0.2.01"))],
        &["spec.dns.wildcardAddress: is not in canonical form (leading zeros): write \"192.0.2.1\" [TN010]"],
    );
    cases.extend(reference_cases());
    cases
}

fn updates() -> Vec<Update> {
    use Kind::*;
    let immutable = "spec.tailnetRef: is immutable: delete the object and create it again [TN002]";
    let mut updates: Vec<Update> = [TailnetEgress, TailnetIngress, TailnetSite, TailnetGateway]
        .map(|kind| {
            (
                kind,
                vec![],
                vec![("/spec/tailnetRef/name", json!("other"))],
                vec![immutable],
            )
        })
        .to_vec();
    let active = ("/status", json!({"activatedAt": "2026-11-30T12:00:00Z"}));
    for (pointer, value, message) in [
        (
            "/spec/hostname",
            json!("other"),
            "spec.hostname: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/tags",
            json!(["tag:other"]),
            "spec.tags: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/stateSecretRef",
            json!({"name": "other"}),
            "spec.stateSecretRef: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/service/loadBalancerIP",
            json!("198.51.100.18"),
            "spec.service.loadBalancerIP: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/service/loadBalancerClass",
            json!("io.cilium/l2-announcer"),
            "spec.service.loadBalancerClass: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/dns/zone",
            json!("other.example"),
            "spec.dns.zone: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/dns/serviceName",
            json!("other"),
            "spec.dns.serviceName: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/dns/serviceClusterIP",
            json!("10.96.0.55"),
            "spec.dns.serviceClusterIP: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
        (
            "/spec/dns/extraZones",
            json!([{"zone": "corp.example", "upstreams": ["198.51.100.53"]}]),
            "spec.dns.extraZones: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]",
        ),
    ] {
        updates.push((
            TailnetGateway,
            vec![active.clone()],
            vec![active.clone(), (pointer, value.clone())],
            vec![message],
        ));
        // A draft may change.
        updates.push((TailnetGateway, vec![], vec![(pointer, value)], vec![]));
    }
    let adoption = (
        "/spec/adoption",
        json!({"nodeId": "7", "objects": [{"apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "y"}]}),
    );
    let suspended = ("/spec/suspend", json!(true));
    updates.push((
        TailnetGateway,
        vec![active.clone(), suspended.clone()],
        vec![active, suspended, adoption],
        vec!["spec.adoption: is fixed once the gateway is active: delete it with deletionPolicy: Delete and create it again [TN505]"],
    ));
    updates
}

include!("cel_reference_cases.rs");
