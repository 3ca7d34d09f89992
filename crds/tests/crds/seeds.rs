//! The manifests of the seeds: unchanged, and good.

use kube::core::cel::Validator;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tailnet_crds::crd::{schema, with_defaults};
use tailnet_crds::structural::check;
use tailnet_crds::*;

/// Every fixture: file name, text, object.
pub fn seeds() -> Vec<(String, Value)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let mut seeds: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder seeds")
        .map(|entry| {
            let path = entry.expect("a file").path();
            let text = std::fs::read_to_string(&path).expect("a text file");
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, serde_saphyr::from_str(&text).expect("one YAML document"))
        })
        .collect();
    seeds.sort_by(|a, b| a.0.cmp(&b.0));
    seeds
}

/// The fixture of a kind.
pub fn seed(kind: Kind) -> Value {
    let found = seeds().into_iter().find(|(_, object)| object["kind"] == kind.as_str());
    found.unwrap_or_else(|| panic!("no fixture of {kind}")).1
}

pub fn kind_of(object: &Value) -> Kind {
    object["kind"]
        .as_str()
        .expect("a kind")
        .parse()
        .expect("one of our kinds")
}

#[test]
fn there_is_one_of_every_kind() {
    let kinds: std::collections::BTreeSet<_> = seeds().iter().map(|(_, object)| kind_of(object)).collect();
    assert_eq!(kinds.len(), Kind::ALL.len());
}

#[test]
fn they_fit_the_schema() {
    for (name, object) in seeds() {
        assert_eq!(object["apiVersion"], API_VERSION, "{name}");
        let errors = check(kind_of(&object), &object);
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
}

#[test]
fn they_pass_the_rules_in_cel() {
    for (name, object) in seeds() {
        if let Err(errors) = Validator::new().validate(schema(kind_of(&object)), &object, Some(&object)) {
            panic!("{name}: {errors}");
        }
    }
}

#[test]
fn they_read_and_write_back() {
    fn round<T: DeserializeOwned + serde::Serialize>(kind: Kind, object: &Value) {
        let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let written = serde_json::to_value(&typed).expect("JSON");
        assert_eq!(written["spec"], with_defaults(kind, object)["spec"], "{kind}");
    }
    for (_, object) in seeds() {
        match kind_of(&object) {
            Kind::Tailnet => round::<Tailnet>(Kind::Tailnet, &object),
            Kind::TailnetEgress => round::<TailnetEgress>(Kind::TailnetEgress, &object),
            Kind::TailnetIngress => round::<TailnetIngress>(Kind::TailnetIngress, &object),
            Kind::TailnetSite => round::<TailnetSite>(Kind::TailnetSite, &object),
            Kind::TailnetGateway => round::<TailnetGateway>(Kind::TailnetGateway, &object),
        }
    }
}

#[test]
fn every_value_in_them_parses() {
    let tailnet: Tailnet = serde_json::from_value(seed(Kind::Tailnet)).expect("a Tailnet");
    tailnet.spec.server.parse().expect("a URL");
    let dns = tailnet.spec.dns.expect("dns");
    let name = dns
        .ingress_name_template
        .expect("a template")
        .parse()
        .expect("a template");
    assert_eq!(
        name.render("portal", "team-a", "demo").expect("a name").as_str(),
        "portal.team-a.lab.example.net"
    );
    let policy = tailnet.spec.policy.expect("policy");
    policy
        .tag_owners
        .iter()
        .chain(&policy.ingress_source_allowlist)
        .for_each(|who| {
            who.parse().expect("a principal");
        });

    let egress: TailnetEgress = serde_json::from_value(seed(Kind::TailnetEgress)).expect("a TailnetEgress");
    for target in &egress.spec.targets {
        target.name.parse().expect("a label");
        target.address.parse().expect("an address");
        assert_eq!(target.protocol(), Protocol::Tcp);
        target.aliases.iter().for_each(|alias| {
            alias.parse().expect("a name");
        });
    }

    let ingress: TailnetIngress = serde_json::from_value(seed(Kind::TailnetIngress)).expect("a TailnetIngress");
    let labels: Vec<_> = ingress
        .spec
        .exposes
        .iter()
        .map(|expose| ingress.spec.dns_label("portal", expose))
        .collect();
    assert_eq!(labels, ["portal", "admin"]);
    let timeouts = ingress.spec.exposes[1].timeouts.as_ref().expect("timeouts");
    assert_eq!(
        timeouts
            .request
            .as_ref()
            .expect("request")
            .parse()
            .expect("a duration")
            .get()
            .as_secs(),
        600
    );

    let gateway: TailnetGateway = serde_json::from_value(seed(Kind::TailnetGateway)).expect("a TailnetGateway");
    assert!(gateway.spec.image.parse().expect("an image").is_pinned());
    let lb = gateway.spec.service.tailnet_lb_cidr.parse().expect("a CIDR");
    assert!(lb.contains_addr(gateway.spec.service.load_balancer_ip.parse().expect("an address")));
}

#[test]
fn dns_labels_without_dns_label() {
    let expose = |name: &str, mode| Expose {
        name: name.into(),
        mode,
        port: 443,
        ..Expose::default()
    };
    let spec = |exposes| TailnetIngressSpec {
        exposes,
        ..TailnetIngressSpec::default()
    };
    let http = Some(ExposeMode::Http);
    let lone = spec(vec![expose("web", http), expose("ssh", None)]);
    assert_eq!(lone.dns_label("portal", &lone.exposes[0]), "portal");
    assert_eq!(lone.dns_label("portal", &lone.exposes[1]), "portal");
    let two = spec(vec![expose("web", http), expose("admin", http), expose("ssh", None)]);
    assert_eq!(two.dns_label("portal", &two.exposes[1]), "admin");
    assert_eq!(two.dns_label("portal", &two.exposes[2]), "portal");
}
