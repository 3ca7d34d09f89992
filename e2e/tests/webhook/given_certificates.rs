//! Certificates that cert-manager or somebody else brings in a Secret: followed within seconds, new CAs with overlap, bad
//! ones not at all; no write fails meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tailnet_e2e::tools::{self, Tool};
use tailnet_e2e::{Account, CertManager, Cluster, one_at_a_time, paths, wait_for};
use tailnet_webhook::rbac;
use tailnet_webhook::tls::authority::SECRET_NAME;

use super::installed::{NAMESPACE, Webhook, cluster};
use super::load::{Load, REPLICAS, install_balanced};
use super::start_over;

const SECRET: &str = "tailnet-webhook-tls";
const ACCOUNT: &str = "tailnet-webhook-given";
const SERVICE: &str = "tailnet-webhook.tailnet-system.svc";
const SOON: Duration = Duration::from_secs(60);

/// The rights that the chart gives with a Secret, and a kubeconfig of who has them.
fn account(cluster: &Cluster) -> Result<String> {
    cluster.install_account(&Account {
        namespace: NAMESPACE,
        name: ACCOUNT,
        cluster_role: ACCOUNT,
        cluster_rules: rbac::cluster_rules(),
        namespace_rules: rbac::namespace_rules_for(SECRET),
    })?;
    let path = cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)?;
    path.to_str().map(str::to_owned).context("a path that is not UTF-8")
}

/// Two replicas that take their certificate from the Secret, not installed yet.
fn replicas(cluster: &'static Cluster, name: &str) -> Result<[Webhook; 2]> {
    let kubeconfig = account(cluster)?;
    let flags = [format!("--certificate-secret={SECRET}")];
    let start =
        |letter: &str, port| Webhook::start_as(cluster, &format!("{name}-{letter}"), port, &flags, &[], &kubeconfig);
    Ok([start("a", REPLICAS[0])?, start("b", REPLICAS[1])?])
}

fn forget(cluster: &Cluster) -> Result<()> {
    start_over(cluster)?;
    let crds = cluster.kubectl(&[
        "get",
        "crd",
        "certificates.cert-manager.io",
        "--ignore-not-found",
        "-o",
        "name",
    ])?;
    if !crds.success()?.is_empty() {
        let args = [
            "delete",
            "certificates.cert-manager.io,issuers.cert-manager.io",
            "--all",
            "-n",
            NAMESPACE,
        ];
        cluster.kubectl(&args)?.success()?;
    }
    cluster
        .kubectl(&["delete", "secret", SECRET, "-n", NAMESPACE, "--ignore-not-found"])?
        .success()
        .map(drop)
}

fn secret(cluster: &Cluster) -> Result<Value> {
    let text = cluster.kubectl(&["get", "secret", SECRET, "-n", NAMESPACE, "-o", "json"])?;
    Ok(serde_json::from_str(text.success()?)?)
}

/// Waits until both replicas have shown more leaves than `before`.
fn wait_new_leaves(load: &Load, before: [usize; 2]) -> Result<()> {
    wait_for("both replicas show the new certificate", SOON, || {
        let now = load.leaves();
        ensure!(
            now.iter().zip(before).all(|(now, before)| *now > before),
            "{before:?}, now {now:?}"
        );
        Ok(())
    })
}

fn certificate(issuer: &str) -> Value {
    json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "tailnet-webhook", "namespace": NAMESPACE},
        "spec": {
            "secretName": SECRET, "dnsNames": [SERVICE], "ipAddresses": ["127.0.0.1"],
            "privateKey": {"algorithm": "ECDSA", "rotationPolicy": "Always"},
            "issuerRef": {"name": issuer, "kind": "ClusterIssuer", "group": "cert-manager.io"},
        },
    })
}

#[test]
fn cert_managers_renewals_and_another_ca_fail_no_write() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    forget(cluster)?;
    let cert_manager = CertManager::start(cluster)?;
    cert_manager.ca_issuer(cluster, "first-ca")?;
    cert_manager.ca_issuer(cluster, "second-ca")?;
    // The webhook is there first, and says what it waits for.
    let [mut one, mut two] = replicas(cluster, "webhook-cert-manager")?;
    wait_for("it waits for the Secret", SOON, || {
        let (code, text) = one.health("/readyz")?;
        let said = format!("no certificate in Secret {NAMESPACE}/{SECRET}: it does not exist");
        ensure!(code == 503 && text.contains(&said), "{text}");
        Ok(())
    })?;
    cluster.apply_all(&[certificate("first-ca")])?;
    cert_manager.wait_issued(cluster, NAMESPACE, "tailnet-webhook")?;
    install_balanced(cluster, [&mut one, &mut two])?;
    let own = cluster.kubectl(&[
        "get",
        "secret",
        SECRET_NAME,
        "-n",
        NAMESPACE,
        "--ignore-not-found",
        "-o",
        "name",
    ])?;
    assert_eq!(own.success()?, "", "no CA of our own");

    let load = Load::start(cluster)?;
    load.wait_for_more(50)?;
    // Renewed by the same CA; in between the Secret does not exist.
    for _ in 0..2 {
        let before = load.leaves();
        cluster
            .kubectl(&["delete", "secret", SECRET, "-n", NAMESPACE])?
            .success()?;
        wait_new_leaves(&load, before)?;
        load.wait_for_more(50)?;
    }
    // Signed by another CA, which nobody trusts yet.
    let (before, first_ca) = (load.leaves(), secret(cluster)?["data"]["ca.crt"].clone());
    cluster.apply_all(&[certificate("second-ca")])?;
    wait_new_leaves(&load, before)?;
    let second_ca = secret(cluster)?["data"]["ca.crt"].clone();
    assert_ne!(first_ca, second_ca);
    load.wait_for_more(100)?;
    load.end("cert-manager")?;
    for webhook in [&one, &two] {
        assert_eq!(webhook.health("/readyz")?.0, 200);
        assert!(
            webhook
                .health("/metrics")?
                .1
                .contains("tailnet_webhook_certificate_rejected 0")
        );
        let log = webhook.process.log();
        assert!(!log.contains("orbidden"), "the role is enough: {log}");
    }
    // What it must not do.
    let account = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    for wrong in [
        ["create", "secrets"],
        ["list", "secrets"],
        ["update", "secrets/tailnet-webhook-tls"],
        ["get", "secrets/tailnet-webhook-ca"],
    ] {
        let can = cluster.kubectl(&["auth", "can-i", wrong[0], wrong[1], "-n", NAMESPACE, "--as", &account])?;
        assert!(!can.ok() && can.stdout.trim() == "no", "{wrong:?}: {can:?}");
    }
    Ok(())
}

/// A Secret as a person makes it with a CA of their own: the data of `kubectl create secret generic`.
fn by_hand(authority: &tailnet_e2e::pki::Authority, name: &str, names: &[&str]) -> Result<Value> {
    let subject = tailnet_e2e::pki::Subject {
        common_name: "tailnet-webhook",
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        addresses: vec!["127.0.0.1".parse()?],
        ..tailnet_e2e::pki::Subject::default()
    };
    let pair = authority.issue(name, &subject)?;
    Ok(json!({
        "tls.crt": STANDARD.encode(std::fs::read(pair.certificate)?),
        "tls.key": STANDARD.encode(std::fs::read(pair.key)?),
        "ca.crt": STANDARD.encode(authority.pem()),
    }))
}

fn put(cluster: &Cluster, data: &Value) -> Result<()> {
    let metadata = json!({"name": SECRET, "namespace": NAMESPACE});
    cluster.apply_all(&[json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})])
}

#[test]
fn a_bad_certificate_is_not_taken_and_fails_no_write() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    forget(cluster)?;
    let folder = cluster.dir().join("given");
    let authority = tailnet_e2e::pki::Authority::create(&folder, "by-hand")?;
    let sound = by_hand(&authority, "sound", &[SERVICE])?;
    put(cluster, &sound)?;
    let [mut one, mut two] = replicas(cluster, "webhook-by-hand")?;
    install_balanced(cluster, [&mut one, &mut two])?;
    let load = Load::start(cluster)?;
    load.wait_for_more(50)?;

    let other = tailnet_e2e::pki::Authority::create(&folder, "other")?;
    let next = by_hand(&authority, "next", &[SERVICE])?;
    let mut other_key = next.clone();
    other_key["tls.key"] = sound["tls.key"].clone();
    let mut other_ca = next.clone();
    other_ca["ca.crt"] = STANDARD.encode(other.pem()).into();
    let mut broken = next.clone();
    broken["tls.crt"] = STANDARD.encode("half a certificat").into();
    for (what, bad) in [
        ("does not belong", other_key),
        ("ca.crt did not sign it", other_ca),
        ("not a PEM certificate", broken),
        (SERVICE, by_hand(&authority, "other-name", &["elsewhere.example.net"])?),
    ] {
        put(cluster, &bad)?;
        wait_for(&format!("both say {what:?}"), SOON, || {
            for webhook in [&one, &two] {
                let metrics = webhook.health("/metrics")?.1;
                ensure!(metrics.contains("tailnet_webhook_certificate_rejected 1"), "{metrics}");
                let log = webhook.process.log();
                let said = log
                    .lines()
                    .any(|line| line.contains(what) && line.contains("the one before goes on"));
                ensure!(said, "{}", webhook.process.log_tail(3));
                assert!(!log.contains("PRIVATE"), "no key in the log");
            }
            Ok(())
        })?;
        let (code, text) = one.health("/readyz")?;
        assert_eq!(code, 200, "it serves: {text}");
        load.wait_for_more(30)?;
    }
    assert_eq!(load.leaves(), [1, 1]);
    put(cluster, &next)?;
    wait_new_leaves(&load, [1, 1])?;
    wait_for("the Secret is sound again", SOON, || {
        for webhook in [&one, &two] {
            ensure!(
                webhook
                    .health("/metrics")?
                    .1
                    .contains("tailnet_webhook_certificate_rejected 0"),
                "not yet"
            );
        }
        Ok(())
    })?;
    load.wait_for_more(50)?;
    load.end("bad certificates")
}

#[test]
fn a_change_from_our_own_ca_to_a_secret_and_back_fails_no_write() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    forget(cluster)?;
    let authority = tailnet_e2e::pki::Authority::create(&cluster.dir().join("given"), "change")?;
    put(cluster, &by_hand(&authority, "change-leaf", &[SERVICE])?)?;
    // As in a rolling update, one of each kind works beside the other for a while, whoever was first.
    let kubeconfig = account(cluster)?;
    let flags = [format!("--certificate-secret={SECRET}")];
    for own_first in [true, false] {
        start_over(cluster)?;
        let own = |name: &str, port| Webhook::start(cluster, name, port);
        let given = |name: &str, port| Webhook::start_as(cluster, name, port, &flags, &[], &kubeconfig);
        let name = format!("webhook-change-{own_first}");
        let (first, second) = (format!("{name}-a"), format!("{name}-b"));
        let mut one = if own_first {
            own(&first, REPLICAS[0])?
        } else {
            given(&first, REPLICAS[0])?
        };
        one.install(cluster, |_| {})?;
        one.wait_ready()?;
        let mut two = if own_first {
            given(&second, REPLICAS[1])?
        } else {
            own(&second, REPLICAS[1])?
        };
        install_balanced(cluster, [&mut one, &mut two])?;
        let load = Load::start(cluster)?;
        for round in 0..3 {
            // Each looks again and finds the other's CA beside its own.
            let label = format!("round={round}");
            for secret in [SECRET, SECRET_NAME] {
                cluster
                    .kubectl(&["label", "--overwrite", "secret", secret, "-n", NAMESPACE, &label])?
                    .success()?;
            }
            load.wait_for_more(60)?;
        }
        load.end(&format!("two kinds of certificates, own first: {own_first}"))?;
    }
    Ok(())
}

/// The objects that the chart makes with these values, of these templates.
fn rendered(cluster: &Cluster, values: &[&str], templates: &[&str]) -> Result<Vec<Value>> {
    tools::ensure(&[Tool::Helm])?;
    let chart = paths::repository().join("chart");
    let chart = chart.to_str().context("a path that is not UTF-8")?;
    let mut args = vec!["template", "tailnet-operator", chart, "--namespace", NAMESPACE];
    args.extend(values.iter().flat_map(|value| ["--set", value]));
    args.extend(templates.iter().flat_map(|template| ["--show-only", template]));
    let text = cluster.helm(&args)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(text.success()?)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

#[test]
fn the_chart_brings_a_certificate_of_cert_manager_and_the_right_to_read_it() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    forget(cluster)?;
    let values = ["webhook.certificate.source=cert-manager"];
    let of_workload = ["templates/webhook/deployment.yaml", "templates/webhook/rbac.yaml"];
    let workload = rendered(cluster, &values, &of_workload)?;
    let only = |kind: &str| workload.iter().find(|one| one["kind"] == kind).context(kind.to_owned());
    let env = &only("Deployment")?["spec"]["template"]["spec"]["containers"][0]["env"];
    let named = |entry: &&Value| entry["name"] == "CERTIFICATE_SECRET";
    let secret = env
        .as_array()
        .context("env")?
        .iter()
        .find(named)
        .context("no CERTIFICATE_SECRET")?;
    assert_eq!(secret["value"], SECRET);
    assert_eq!(
        only("Role")?["rules"],
        serde_json::to_value(rbac::namespace_rules_for(SECRET))?
    );

    let cert_manager = CertManager::start(cluster)?;
    let mut objects = rendered(cluster, &values, &["templates/webhook/certificate.yaml"])?;
    assert_eq!(objects.len(), 4, "two Issuers and two Certificates: {objects:?}");
    for object in &mut objects {
        // Here the API server calls an address and not the Service.
        if object["kind"] == "Certificate" && object["metadata"]["name"] == "tailnet-webhook" {
            object["spec"]["ipAddresses"] = json!(["127.0.0.1"]);
        }
    }
    cluster.apply_all(&objects)?;
    cert_manager.wait_issued(cluster, NAMESPACE, "tailnet-webhook")?;
    let [mut one, mut two] = replicas(cluster, "webhook-chart-certificate")?;
    install_balanced(cluster, [&mut one, &mut two])?;
    let load = Load::start(cluster)?;
    load.wait_for_more(50)?;
    load.end("the chart's Certificate")?;

    // An issuer of one's own, and a Secret of one's own.
    let issuer = "webhook.certificate.issuerRef.name=corporate";
    let objects = rendered(cluster, &[values[0], issuer], &["templates/webhook/certificate.yaml"])?;
    assert_eq!(objects.len(), 1, "{objects:?}");
    assert_eq!(objects[0]["spec"]["issuerRef"]["name"], "corporate");
    let values = [
        "webhook.certificate.source=secret",
        "webhook.certificate.secretName=mine",
    ];
    let workload = rendered(cluster, &values, &of_workload)?;
    let role = workload.iter().find(|one| one["kind"] == "Role").context("Role")?;
    assert_eq!(role["rules"], serde_json::to_value(rbac::namespace_rules_for("mine"))?);
    // And by default none of it.
    let workload = rendered(cluster, &[], &of_workload)?;
    let role = workload.iter().find(|one| one["kind"] == "Role").context("Role")?;
    assert_eq!(role["rules"], serde_json::to_value(rbac::namespace_rules())?);
    assert!(
        !workload
            .iter()
            .any(|one| one.to_string().contains("CERTIFICATE_SECRET"))
    );
    Ok(())
}
