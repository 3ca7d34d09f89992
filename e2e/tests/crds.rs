//! The CRDs on a real API server: accepted within its cost budget, good for `kubectl`, and refusing what they should with
//! the texts that the table of rules has.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(
    clippy::await_holding_lock,
    reason = "each test has a runtime and a thread of its own, so that waiting for the guard stops no task"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tailnet_crds::crd::with_defaults;
use tailnet_crds::{GROUP, Kind, Scope, VERSION, crd_yaml};
use tailnet_e2e::Cluster;

include!("../../crds/tests/crds/cel_cases.rs");

/// The shared cluster with our CRDs and the namespaces of the fixtures. One test at a time stores fixtures.
fn cluster() -> (&'static Cluster, MutexGuard<'static, ()>) {
    static INSTALLED: LazyLock<Mutex<()>> = LazyLock::new(|| {
        let cluster = Cluster::shared_api();
        cluster.apply(&all_crds()).unwrap();
        cluster
            .kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"])
            .unwrap()
            .success()
            .unwrap();
        for namespace in ["tailnet-system", "team-a"] {
            cluster
                .kubectl(&["create", "namespace", namespace])
                .unwrap()
                .success()
                .unwrap();
        }
        Mutex::new(())
    });
    (
        Cluster::shared_api(),
        INSTALLED.lock().unwrap_or_else(PoisonError::into_inner),
    )
}

fn all_crds() -> String {
    crd_yaml()
        .into_iter()
        .map(|(_, text)| text)
        .collect::<Vec<_>>()
        .join("---\n")
}

fn seeds_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/seeds")
}

fn seed(kind: Kind) -> Value {
    std::fs::read_dir(seeds_folder())
        .unwrap()
        .map(|entry| serde_saphyr::from_str::<Value>(&std::fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap())
        .find(|object| object["kind"] == kind.as_str())
        .unwrap()
}

fn api(cluster: &Cluster, kind: Kind, object: &Value) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind.as_str()), kind.plural());
    let client = cluster.client().unwrap();
    match kind.scope() {
        Scope::Cluster => Api::all_with(client, &resource),
        Scope::Namespaced => Api::namespaced_with(client, object["metadata"]["namespace"].as_str().unwrap(), &resource),
    }
}

fn typed(object: &Value) -> DynamicObject {
    serde_json::from_value(object.clone()).unwrap()
}

/// `field: message` of every cause of a refusal; nothing when it was accepted.
fn refusals(result: Result<DynamicObject, kube::Error>) -> BTreeSet<String> {
    let status = match result {
        Ok(_) => return BTreeSet::new(),
        Err(kube::Error::Api(status)) => status,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(
        (status.code, status.reason.as_str()),
        (422, "Invalid"),
        "{}",
        status.message
    );
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    causes
        .iter()
        // Said by the API server in passing when the schema itself is not kept.
        .filter(|cause| !cause.message.contains("some validation rules were not checked"))
        .map(|cause| {
            let field = cause.field.trim_start_matches('.').replace("<nil>", "");
            // `Invalid value: "10.0.0.300": is not …`, `Forbidden: is immutable …`, `Invalid value: names a prefix twice`
            let text = cause
                .message
                .split_once(": ")
                .map_or(cause.message.as_str(), |(_, text)| text);
            let text = match text.strip_prefix('"').and_then(|quoted| quoted.split_once("\": ")) {
                Some((_, text)) => text,
                None => text,
            };
            format!("{field}: {text}")
        })
        .collect()
}

fn set(wanted: &[&str]) -> BTreeSet<String> {
    wanted.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn they_are_accepted_and_applying_them_again_changes_nothing() {
    let (cluster, _guard) = cluster();
    for kind in Kind::ALL {
        let conditions = format!("jsonpath={{.status.conditions[?(@.status=={:?})].type}}", "True");
        let crd = cluster
            .kubectl(&["get", "crd", &kind.crd_name(), "-o", &conditions])
            .unwrap();
        let text = crd.success().unwrap();
        assert!(
            text.contains("Established") && text.contains("NamesAccepted"),
            "{kind}: {text}"
        );
        assert!(!text.contains("NonStructuralSchema"), "{kind}: {text}");
    }
    let again = cluster.apply(&all_crds()).unwrap();
    assert_eq!(
        again.lines().filter(|line| line.ends_with(" unchanged")).count(),
        Kind::ALL.len(),
        "{again}"
    );
}

#[test]
fn every_seed_applies_and_applying_it_again_changes_nothing() {
    let (cluster, _guard) = cluster();
    let folder = seeds_folder();
    let apply = |extra: &[&str]| {
        let args: Vec<&str> = ["apply", "-f", folder.to_str().unwrap()]
            .iter()
            .chain(extra)
            .copied()
            .collect();
        cluster.kubectl(&args).unwrap().success().unwrap().to_owned()
    };
    apply(&[]);
    let again = apply(&[]);
    assert_eq!(
        again.lines().filter(|line| line.ends_with(" unchanged")).count(),
        Kind::ALL.len(),
        "{again}"
    );
    let dry = apply(&["--dry-run=server"]);
    assert_eq!(
        dry.lines()
            .filter(|line| line.ends_with(" unchanged (server dry run)"))
            .count(),
        Kind::ALL.len(),
        "{dry}"
    );
    apply(&["--server-side", "--force-conflicts"]);

    // What was written is what is stored, with the documented defaults.
    for kind in Kind::ALL {
        let seed = seed(kind);
        let (name, namespace) = (
            seed["metadata"]["name"].as_str().unwrap(),
            seed["metadata"]["namespace"].as_str(),
        );
        let args = [
            "get",
            kind.plural(),
            name,
            "-n",
            namespace.unwrap_or("default"),
            "-o",
            "json",
        ];
        let stored: Value = serde_json::from_str(cluster.kubectl(&args).unwrap().success().unwrap()).unwrap();
        assert_eq!(stored["spec"], with_defaults(kind, &seed)["spec"], "{kind}");
    }

    // Names, short names, the category and the columns of the seeds.
    let get = |args: &[&str]| {
        cluster
            .kubectl(&[&["get"], args].concat())
            .unwrap()
            .success()
            .unwrap()
            .to_owned()
    };
    let columns = |text: &str| {
        text.lines()
            .next()
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let words = |text: &str| {
        text.lines()
            .nth(1)
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let gateway = get(&["tailnetgateway", "prod-1-gw"]);
    assert_eq!(columns(&gateway), ["NAME", "HOSTNAME", "SUSPENDED", "READY"]);
    assert_eq!(words(&gateway), ["prod-1-gw", "prod-1-gw", "false"]);
    assert!(columns(&get(&["tailnet", "demo"])).contains(&"READY".to_owned()));
    assert!(columns(&get(&["tailnetsite", "prod-1-lan"])).contains(&"READY".to_owned()));
    assert!(get(&["tailnet,tailnetegress,tailnetingress", "-A"]).contains("tailnetingress.tsunaro.io/portal"));
    assert!(get(&["tsunaro", "-A"]).contains("tailnetsite.tsunaro.io/prod-1-lan"));
    for kind in Kind::ALL {
        let name = get(&[kind.short_name(), "-A", "-o", "name"]);
        assert!(name.contains(&format!(".{GROUP}/")), "{kind}: {name}");
    }
    let set_condition = r#"{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"","lastTransitionTime":"2026-11-30T12:00:00Z"}]}}"#;
    for (kind, name, shown) in [
        ("tailnetsite", "prod-1-lan", "Ready"),
        ("tailnetgateway", "prod-1-gw", "True"),
    ] {
        let patch = [
            "patch",
            kind,
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            set_condition,
        ];
        cluster.kubectl(&patch).unwrap().success().unwrap();
        assert!(words(&get(&[kind, name])).contains(&shown.to_owned()), "{kind}");
    }
    cluster
        .kubectl(&["delete", "-f", folder.to_str().unwrap()])
        .unwrap()
        .success()
        .unwrap();
}

#[test]
fn explain_knows_every_field() {
    let (cluster, _guard) = cluster();
    for (path, text) in [
        (
            "tailnet.spec.policy.ingressSourceAllowlist",
            "The only sources that a TailnetIngress may name.",
        ),
        (
            "tailnetegress.spec.targets.address",
            "IPv4 or IPv6 address, or DNS name.",
        ),
        (
            "tailnetingress.spec.exposes.timeouts.request",
            "From the first byte of the request",
        ),
        ("tailnetsite.status.prefixes.routers", "Nodes that advertise it"),
        (
            "tailnetgateway.spec.service.tailnetLBCIDR",
            "The whole LoadBalancer pool",
        ),
    ] {
        let explained = cluster.kubectl(&["explain", path]).unwrap();
        // kubectl breaks lines.
        let explained = explained
            .success()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(explained.contains(text), "{path}: {explained}");
    }
}

#[tokio::test]
async fn cel_refuses_what_it_should_with_the_text_of_the_table() {
    let (cluster, _guard) = cluster();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for (kind, changes, wanted) in cases() {
        let object = with(seed(kind), &changes);
        let got = refusals(api(cluster, kind, &object).create(&dry_run, &typed(&object)).await);
        assert_eq!(got, set(&wanted), "{kind} with {changes:?}");
    }
}

#[tokio::test]
async fn what_is_fixed_stays() {
    let (cluster, _guard) = cluster();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for (kind, old, new, wanted) in updates() {
        let (old, new) = (with(seed(kind), &old), with(seed(kind), &new));
        let api = api(cluster, kind, &old);
        let name = old["metadata"]["name"].as_str().unwrap();
        let mut stored = api.create(&PostParams::default(), &typed(&old)).await.unwrap();
        if let Some(status) = old.get("status") {
            let patch = Patch::Merge(json!({ "status": status }));
            stored = api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        }
        let mut new = typed(&new);
        new.metadata.resource_version = stored.metadata.resource_version.clone();
        assert_eq!(
            refusals(api.replace(name, &dry_run, &new).await),
            set(&wanted),
            "{kind}"
        );
        // An unchanged object passes.
        assert_eq!(
            refusals(api.replace(name, &dry_run, &stored).await),
            BTreeSet::new(),
            "{kind}"
        );
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn tailnet_ref_cannot_be_removed_or_swapped_in_two_steps() {
    let (cluster, _guard) = cluster();
    for kind in [
        Kind::TailnetEgress,
        Kind::TailnetIngress,
        Kind::TailnetSite,
        Kind::TailnetGateway,
    ] {
        let object = seed(kind);
        let api = api(cluster, kind, &object);
        let name = object["metadata"]["name"].as_str().unwrap();
        api.create(&PostParams::default(), &typed(&object)).await.unwrap();
        for patch in [
            json!({ "spec": { "tailnetRef": null } }),
            json!({ "spec": { "tailnetRef": { "name": null } } }),
            json!({ "spec": null }),
        ] {
            let refused = refusals(api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await);
            assert_eq!(refused.len(), 1, "{kind} {patch}: {refused:?}");
            assert!(
                refused
                    .iter()
                    .all(|text| text.contains("Required value") || text.starts_with("spec")),
                "{refused:?}"
            );
        }
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// A status, a label or a finalizer can always be written, also on an object that a later rule would refuse.
#[tokio::test]
async fn an_old_object_that_a_rule_would_refuse_can_still_be_labelled() {
    let (cluster, _guard) = cluster();
    // The rule is taken out, the object is stored, the rule comes back: as with an upgrade.
    let mut crd = tailnet_crds::crd::crd_value(Kind::TailnetEgress).clone();
    let address = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/targets/items/properties/address";
    crd.pointer_mut(address)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove("x-kubernetes-validations");
    cluster.apply(&crd.to_string()).unwrap();
    let object = with(
        seed(Kind::TailnetEgress),
        &[("/spec/targets/0/address", json!("010.0.0.3"))],
    );
    let api = api(cluster, Kind::TailnetEgress, &object);
    let name = object["metadata"]["name"].as_str().unwrap();
    tailnet_e2e::wait_for_async("the object is stored", std::time::Duration::from_secs(20), async || {
        api.create(&PostParams::default(), &typed(&object)).await.map(drop)
    })
    .await
    .unwrap();
    cluster.apply(&all_crds()).unwrap();
    let other = with(object.clone(), &[("/metadata/name", json!("other"))]);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    tailnet_e2e::wait_for_async("the rule is back", std::time::Duration::from_secs(20), async || {
        anyhow::ensure!(
            api.create(&dry_run, &typed(&other)).await.is_err(),
            "the object is taken"
        );
        Ok(())
    })
    .await
    .unwrap();
    let label = json!({ "metadata": { "labels": { "a": "b" }, "finalizers": ["example.net/x"] } });
    api.patch(name, &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    let status = json!({ "status": { "targets": [] } });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    let free = json!({ "metadata": { "finalizers": null } });
    api.patch(name, &PatchParams::default(), &Patch::Merge(&free))
        .await
        .unwrap();
    api.delete(name, &DeleteParams::default()).await.unwrap();
}
