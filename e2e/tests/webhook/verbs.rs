//! Every way to write an object: a wrong change is refused by each of them, a right one is not, and what no rule is about is
//! never in the way.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tailnet_crds::{API_VERSION, Kind};
use tailnet_e2e::{Cluster, Output, one_at_a_time};

use crate::installed::{NAMESPACE, Webhook, clear, cluster, egress, except, item, site, tailnet};
use crate::{start_over, wait_known, wait_refused};

/// Whose requests no webhook sees.
const BYPASS: &str = "bypass";

fn patch(cluster: &Cluster, kind: &str, name: &str, r#type: &str, patch: &Value, dry_run: bool) -> Result<Output> {
    let text = patch.to_string();
    let mut args = vec!["patch", kind, name, "--type", r#type, "-p", &text];
    if dry_run {
        args.push("--dry-run=server");
    }
    cluster.kubectl(&args)
}

#[test]
fn a_wrong_change_is_refused_by_every_verb_and_a_right_one_by_none() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let _webhook = Webhook::installed(cluster, "webhook-verbs", 9443)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    ensure!(
        caller
            .create(&site("other", &["198.51.100.0/24"], "corp"), false)?
            .status
            == 201
    );
    let held = |text: &str| text.contains("[TN403]") && text.contains("TailnetSite other");
    let right = |n: u8| site("mine", &[&format!("192.0.2.{n}/32")], "corp");
    let wrong = site("mine", &["198.51.100.128/25"], "corp");
    let prefixes = |object: &Value| json!({"spec": {"prefixes": object["spec"]["prefixes"]}});
    wait_refused(&caller, &wrong, "TN403")?;
    let stored = || -> Result<Value> { Ok(caller.get(&wrong)?.body["spec"]["prefixes"].clone()) };

    // create: by POST, with a generated name, by both kinds of apply; each first as a dry run
    for dry_run in [true, false] {
        let said = caller.create(&wrong, dry_run)?;
        ensure!(said.status == 422 && held(said.message()), "{said:?}");
        let mut generated = wrong.clone();
        generated["metadata"] = json!({"generateName": "mine-"});
        let said = caller.create(&generated, dry_run)?;
        ensure!(said.status == 422 && held(said.message()), "{said:?}");
    }
    for flags in [
        &["apply", "-f", "-"][..],
        &["apply", "--server-side", "-f", "-"],
        &["create", "-f", "-"],
    ] {
        for dry in [&["--dry-run=server"][..], &[]] {
            let args: Vec<&str> = flags.iter().chain(dry).copied().collect();
            let text = cluster.kubectl_with_input(&args, &wrong.to_string())?;
            ensure!(held(text.failure()?), "{args:?}: {text:?}");
        }
    }
    ensure!(caller.get(&wrong)?.status == 404, "something wrong was stored");
    ensure!(caller.create(&right(1), true)?.status == 201 && caller.get(&wrong)?.status == 404);
    ensure!(caller.create(&right(1), false)?.status == 201);

    // change: by PUT, by the three patches, by both applies
    for dry_run in [true, false] {
        let said = caller.update_as(&wrong, dry_run, None)?;
        ensure!(said.status == 422 && held(said.message()), "{said:?}");
        let json_patch = json!([{"op": "replace", "path": "/spec/prefixes/0", "value": "198.51.100.128/25"}]);
        for (r#type, change) in [("merge", prefixes(&wrong)), ("json", json_patch)] {
            let said = patch(cluster, "tailnetsite", "mine", r#type, &change, dry_run)?;
            ensure!(held(said.failure()?), "{type}: {said:?}");
        }
        let dry: &[&str] = if dry_run { &["--dry-run=server"] } else { &[] };
        for flags in [
            &["apply", "-f", "-"][..],
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            &["replace", "-f", "-"],
        ] {
            let args: Vec<&str> = flags.iter().chain(dry).copied().collect();
            let said = cluster.kubectl_with_input(&args, &wrong.to_string())?;
            ensure!(held(said.failure()?), "{args:?}: {said:?}");
        }
        ensure!(stored()? == json!(["192.0.2.1/32"]), "a refused change was stored");
    }
    ensure!(caller.update_as(&right(2), false, None)?.status == 200);
    let json_patch = json!([{"op": "add", "path": "/spec/prefixes/-", "value": "192.0.2.3/32"}]);
    patch(cluster, "tailnetsite", "mine", "json", &json_patch, false)?.success()?;
    ensure!(stored()? == json!(["192.0.2.2/32", "192.0.2.3/32"]));
    patch(cluster, "tailnetsite", "mine", "merge", &prefixes(&right(4)), true)?.success()?;
    ensure!(
        stored()? == json!(["192.0.2.2/32", "192.0.2.3/32"]),
        "a dry run was stored"
    );
    patch(cluster, "tailnetsite", "mine", "merge", &prefixes(&right(4)), false)?.success()?;
    for flags in [
        &["apply", "--server-side", "--force-conflicts", "-f", "-"][..],
        &["replace", "-f", "-"],
    ] {
        cluster.kubectl_with_input(flags, &right(5).to_string())?.success()?;
    }
    ensure!(stored()? == json!(["192.0.2.5/32"]));

    // No kind has a scale subresource that could go past the rules.
    for kind in Kind::ALL {
        let resources = caller
            .ask(Method::GET, &format!("/apis/{API_VERSION}"), None, None)?
            .body;
        let names = resources["resources"].as_array().cloned().unwrap_or_default();
        let scale = format!("{}/scale", kind.plural());
        ensure!(names.iter().all(|resource| resource["name"] != scale), "{scale} exists");
    }
    clear(cluster)
}

#[test]
fn what_no_rule_is_about_is_never_in_the_way() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let caller = start_over(cluster)?;
    let webhook = Webhook::start(cluster, "webhook-old-faults", 9443)?;
    webhook.install(cluster, except(BYPASS))?;
    webhook.wait_ready()?;
    webhook.wait_called(cluster)?;
    cluster.apply(&tailnet("corp").to_string())?;
    wait_known(&caller, "corp")?;
    // Objects from before the rules, each with a fault that a create would be refused for.
    let groups = ["system:masters".to_owned()];
    let mut elsewhere = egress("elsewhere", "corp");
    elsewhere["metadata"]["namespace"] = json!("default");
    let reserved = site("reserved", &["10.96.0.0/16"], "corp");
    for object in [&elsewhere, &reserved] {
        let said = caller.create_as(object, false, Some((BYPASS, &groups)))?;
        ensure!(said.status == 201, "{said:?}");
        let mut again = object.clone();
        again["metadata"]["name"] = json!("again");
        let said = caller.create(&again, true)?;
        ensure!(said.status == 422, "the fault is one: {said:?}");
    }
    for object in [&elsewhere, &reserved] {
        let path = item(object)?;
        let change = |path: &str, change: Value| caller.ask(Method::PATCH, path, Some(&change), None);
        for metadata in [
            json!({"labels": {"team": "a"}}),
            json!({"annotations": {"note": "b"}}),
            json!({"finalizers": ["example.net/kept"]}),
            json!({"ownerReferences": []}),
        ] {
            let said = change(&path, json!({"metadata": metadata}))?;
            ensure!(said.status == 200, "{said:?}");
        }
        let said = change(&format!("{path}/status"), json!({"status": {"conditions": []}}))?;
        ensure!(said.status == 200 && said.warnings.is_empty(), "{said:?}");
        // Its own fault is a warning while something else changes, and another copy of it is refused.
        let said = match object["kind"].as_str() {
            Some("TailnetSite") => change(&path, json!({"spec": {"owner": "somebody"}}))?,
            _ => change(&path, json!({"spec": {"replicas": 2}}))?,
        };
        ensure!(
            said.status == 200 && said.warnings.iter().any(|text| text.contains("[TN")),
            "{said:?}"
        );
    }
    let said = caller.ask(
        Method::PATCH,
        &item(&reserved)?,
        Some(&json!({"spec": {"prefixes": ["10.96.0.0/16", "10.97.0.0/16"]}})),
        None,
    )?;
    ensure!(
        said.status == 422 && said.message().contains("10.97.0.0/16"),
        "{said:?}"
    );

    // Going: its spec is frozen, everything else may change, and the finalizer may always go.
    for object in [&elsewhere, &reserved] {
        let path = item(object)?;
        let change = |change: Value| caller.ask(Method::PATCH, &path, Some(&change), None);
        ensure!(caller.delete(object)?.status == 200);
        let said = match object["kind"].as_str() {
            Some("TailnetSite") => change(json!({"spec": {"prefixes": ["192.0.2.0/24"]}}))?,
            _ => change(json!({"spec": {"replicas": 3}}))?,
        };
        ensure!(said.status == 422 && said.message().contains("[TN015]"), "{said:?}");
        ensure!(change(json!({"metadata": {"labels": {"team": null}}}))?.status == 200);
        ensure!(change(json!({"metadata": {"finalizers": null}}))?.status == 200);
        ensure!(caller.get(object)?.status == 404);
    }

    // Collections, and namespaces with what is in them.
    for name in ["one", "two"] {
        ensure!(caller.create(&egress(name, "corp"), false)?.status == 201);
    }
    let all = format!("/apis/{API_VERSION}/namespaces/{NAMESPACE}/tailnetegresses");
    ensure!(caller.ask(Method::DELETE, &all, None, None)?.status == 200);
    ensure!(caller.get(&egress("one", "corp"))?.status == 404);
    clear(cluster)
}
