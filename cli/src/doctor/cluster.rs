//! The cluster around us: API server, NetworkPolicy, DNS, cert-manager.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::Value;

use super::Surroundings;
use super::check::Check;
use super::corefile;
use super::objects::Objects;
use crate::connect::ConnectError;

/// Oldest minor version of Kubernetes 1 that is supported.
const OLDEST: u32 = 31;
/// Parts of names of DaemonSets whose network enforces NetworkPolicies.
const ENFORCING: [&str; 9] = [
    "calico-node",
    "canal",
    "cilium",
    "kube-router",
    "antrea-agent",
    "weave-net",
    "ovnkube",
    "kindnet",
    "azure-npm",
];
/// Parts of names of DaemonSets whose network does not, by itself.
const NOT_ENFORCING: [&str; 1] = ["flannel"];

/// The API server and its version.
pub async fn api_server(around: &Surroundings) -> Result<Check, ConnectError> {
    const CHECK: &str = "API server";
    let version = around.client.apiserver_version().await;
    let version = version.map_err(|error| ConnectError::Client(Box::new(error)))?;
    let digits = |text: &str| {
        text.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse::<u32>()
            .unwrap_or_default()
    };
    let message = format!("Kubernetes {}", version.git_version);
    if digits(&version.major) == 1 && digits(&version.minor) < OLDEST {
        let message = format!("{message} is older than 1.{OLDEST}, the oldest that is supported");
        return Ok(Check::fail(CHECK, message, Vec::new()));
    }
    Ok(Check::ok(CHECK, message))
}

/// Whether NetworkPolicies are enforced, as far as that can be known from outside.
pub async fn network_policy(around: &Surroundings, objects: &Objects) -> Check {
    const CHECK: &str = "NetworkPolicy";
    let api: Api<DaemonSet> = Api::all(around.client.clone());
    let found = match api.list(&ListParams::default()).await {
        Ok(found) => found.items,
        Err(error) => return Check::unread(CHECK, "DaemonSets", &error),
    };
    let named = |parts: &[&str]| {
        let has = |set: &&DaemonSet| parts.iter().any(|part| set.name_any().contains(part));
        found
            .iter()
            .find(has)
            .map(|set| format!("{}/{}", set.namespace().unwrap_or_default(), set.name_any()))
    };
    if let Some(set) = named(&ENFORCING) {
        return Check::ok(
            CHECK,
            format!(
                "DaemonSet {set} is of a network that enforces them, unless that is switched off, which cannot be seen from here"
            ),
        );
    }
    let attempt = attempt(around, objects);
    if let Some(set) = named(&NOT_ENFORCING) {
        let message = format!(
            "DaemonSet {set} is of a network that does not enforce them by itself: every Pod of the cluster may use every egress"
        );
        return Check::warn(CHECK, message, attempt);
    }
    Check {
        next: attempt,
        ..Check::unknown(
            CHECK,
            "no network that is known to enforce them was found; an attempt from a namespace that is no consumer tells",
        )
    }
}

/// A connection that must be refused.
fn attempt(around: &Surroundings, objects: &Objects) -> Vec<String> {
    let target = objects.egresses.iter().find_map(|egress| {
        let target = egress["spec"]["targets"].as_array()?.first()?;
        Some((target["name"].as_str()?, target["port"].as_i64()?))
    });
    let Some((name, port)) = target else {
        return Vec::new();
    };
    vec![around.kubectl.run_in(
        "NO-CONSUMER",
        &format!(
            "run try --rm -i --restart=Never --image=busybox -- nc -w 5 {name}.{}.svc {port}    # must be refused or time out",
            around.namespace
        ),
    )]
}

/// Whether the cluster's DNS leads aliases to a resolver with the hosts file.
pub async fn dns(around: &Surroundings, objects: &Objects) -> Check {
    const CHECK: &str = "DNS";
    let aliases = aliases(objects);
    if aliases.is_empty() {
        return Check::ok(CHECK, "no egress has an alias, so nothing has to be forwarded");
    }
    let services: Api<Service> = Api::namespaced(around.client.clone(), &around.namespace);
    let selector = ListParams::default().labels("app.kubernetes.io/component=resolver");
    let resolver = match services.list(&selector).await {
        Ok(list) => list.items.into_iter().find_map(|service| service.spec?.cluster_ip),
        Err(error) => return Check::unread(CHECK, &format!("Services of namespace {}", around.namespace), &error),
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(around.client.clone(), "kube-system");
    let corefile = match config_maps.get_opt("coredns").await {
        Ok(map) => map.and_then(|map| map.data?.remove("Corefile")),
        Err(error) => return Check::unread(CHECK, "ConfigMap kube-system/coredns", &error),
    };
    let Some(corefile) = corefile else {
        return Check::unknown(
            CHECK,
            "the cluster's DNS is no CoreDNS with ConfigMap kube-system/coredns, so whether it forwards aliases cannot be seen",
        );
    };
    wired(around, &aliases, resolver.as_deref(), &corefile)
}

fn aliases(objects: &Objects) -> Vec<&str> {
    let targets = objects
        .egresses
        .iter()
        .filter_map(|egress| egress["spec"]["targets"].as_array())
        .flatten();
    targets
        .filter_map(|target| target["aliases"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn wired(around: &Surroundings, aliases: &[&str], resolver: Option<&str>, corefile: &str) -> Check {
    const CHECK: &str = "DNS";
    let blocks = corefile::blocks(corefile);
    let leads = |alias: &&str| {
        corefile::block_of(&blocks, alias).is_some_and(|block| match resolver {
            Some(address) => block.lines.iter().any(|line| {
                line.split_whitespace()
                    .any(|word| word.trim_end_matches(":53") == address)
            }),
            // Somebody's own resolver: a block of its own is all that can be seen.
            None => block.zones.iter().all(|zone| zone != "."),
        })
    };
    let Some(lost) = aliases.iter().find(|alias| !leads(alias)) else {
        return Check::ok(
            CHECK,
            format!("the Corefile leads {} aliases to a resolver", aliases.len()),
        );
    };
    let edit = around.kubectl.run_in("kube-system", "edit configmap coredns");
    match resolver {
        Some(address) => Check::warn(
            CHECK,
            format!("not wired: the Corefile of kube-system/coredns does not lead the alias {lost} to the resolver at {address}"),
            vec![edit, format!("# add: {lost}:53 {{ errors; cache 5; forward . {address} }}, a line each")],
        ),
        None => Check::warn(
            CHECK,
            format!("not wired: no resolver runs in namespace {}, and the Corefile has no zone for the alias {lost}", around.namespace),
            vec!["# set resolver.enabled=true in the chart's values, or forward the zone to a resolver of your own: docs/dns.md".to_owned()],
        ),
    }
}

/// Whether cert-manager is there, where an ingress needs it.
pub async fn cert_manager(around: &Surroundings, objects: &Objects) -> Check {
    const CHECK: &str = "cert-manager";
    let groups = match around.client.list_api_groups().await {
        Ok(groups) => groups.groups,
        Err(error) => return Check::unread(CHECK, "the API groups", &error),
    };
    let needs = |ingress: &&Value| {
        let exposes = ingress["spec"]["exposes"].as_array().map_or(&[][..], Vec::as_slice);
        exposes.iter().any(|expose| expose["mode"] == "http") && ingress["spec"]["tls"]["secretRef"].is_null()
    };
    let needed = objects.ingresses.iter().find(needs);
    match (groups.iter().any(|group| group.name == "cert-manager.io"), needed) {
        (true, _) => Check::ok(CHECK, "installed"),
        (false, None) => Check::ok(CHECK, "not installed, and no object needs it"),
        (false, Some(ingress)) => {
            let word = |key: &str| ingress["metadata"][key].as_str().unwrap_or_default();
            let message = format!(
                "not installed, and TailnetIngress {}/{} asks for a certificate",
                word("namespace"),
                word("name")
            );
            let next = "# install cert-manager (cert-manager.io/docs/installation), or name a TLS Secret in spec.tls.secretRef";
            Check::fail(CHECK, message, vec![next.to_owned()])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::State;
    use crate::kubectl::Kubectl;
    use jiff::Timestamp;
    use serde_json::json;

    fn around() -> Surroundings {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        Surroundings {
            client: kube::Client::try_from(config).unwrap(),
            namespace: "ops".to_owned(),
            kubectl: Kubectl::default(),
            now: Timestamp::UNIX_EPOCH,
        }
    }

    #[tokio::test]
    async fn aliases_that_lead_nowhere_are_named() {
        let around = around();
        let wired =
            |resolver: Option<&str>, corefile: &str| wired(&around, &["api.site.example.net"], resolver, corefile);
        let forwarded = "site.example.net:53 {\n forward . 10.96.0.53\n}\n.:53 {\n forward . /etc/resolv.conf\n}\n";
        assert_eq!(wired(Some("10.96.0.53"), forwarded).state, State::Ok);
        assert_eq!(wired(Some("10.96.0.53:53"), "").state, State::Warn);
        let other = wired(Some("10.96.0.99"), forwarded);
        assert!(
            other
                .message
                .contains("api.site.example.net to the resolver at 10.96.0.99"),
            "{other:?}"
        );
        assert_eq!(wired(None, forwarded).state, State::Ok, "somebody's own resolver");
        assert_eq!(wired(None, ".:53 {\n}\n").state, State::Warn);
    }

    #[tokio::test]
    async fn the_attempt_names_a_service_of_an_egress() {
        let mut objects = Objects::default();
        assert!(attempt(&around(), &objects).is_empty());
        objects
            .egresses
            .push(json!({"spec": {"targets": [{"name": "db", "port": 5432}]}}));
        assert!(attempt(&around(), &objects)[0].contains("nc -w 5 db.ops.svc 5432"));
    }
}
