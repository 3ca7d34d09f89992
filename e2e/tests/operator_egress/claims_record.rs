//! The claims record: put back when somebody touches it, with every holder as before, and in several ConfigMaps when there
//! is much of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tailnet_crds::names::tailnet::claims_part_config_map;
use tailnet_crds::{TailnetEgress, TailnetSite};
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};
use tailnet_policies::claim_parts::{self, PART_BYTES};
use tailnet_policies::claims::{Claim, Claims};

use crate::checks::{SOON, wait_complete, wait_condition};
use crate::operating::{Kube, NAMESPACE, Operator, TAILNET, USER, apply, cluster, condition, egress, start_over};

/// The text of part `index`; None when there is no such ConfigMap.
fn part(kube: &Kube, index: usize) -> Result<Option<String>> {
    let found: Option<ConfigMap> = kube.find(&claims_part_config_map(TAILNET, index))?;
    let Some(found) = found else { return Ok(None) };
    ensure!(
        found.labels().get("app.kubernetes.io/managed-by").map(String::as_str) == Some("tailnet-operator"),
        "part {index} lost its labels: {:?}",
        found.labels()
    );
    let text = found.data.and_then(|mut data| data.remove("claims"));
    text.with_context(|| format!("part {index} has no claims")).map(Some)
}

fn claims(kube: &Kube, index: usize) -> Result<Claims> {
    let text = part(kube, index)?.with_context(|| format!("there is no part {index}"))?;
    Ok(Claims::from_json(&text)?)
}

/// Waits until part `index` has exactly this text again.
fn wait_back(kube: &Kube, what: &str, index: usize, text: &str) -> Result<()> {
    wait_for(&format!("the record is back after it was {what}"), SOON, || {
        let now = part(kube, index)?.context("it is not there")?;
        ensure!(now == text, "{now}");
        Ok(())
    })
}

/// What `Accepted` was in every status that the operator wrote for egress `name` after `since` lines of the audit log.
fn verdicts(cluster: &Cluster, since: usize, name: &str) -> Result<Vec<Value>> {
    let mut verdicts = Vec::new();
    for event in cluster.audit_log()?.iter().skip(since) {
        if event["user"]["username"] != USER || event["objectRef"]["name"] != name {
            continue;
        }
        // A JSON patch with the whole status.
        let operations = event["requestObject"].as_array().cloned().unwrap_or_default();
        let statuses = operations.iter().filter(|operation| operation["path"] == "/status");
        for conditions in statuses.filter_map(|operation| operation["value"]["conditions"].as_array()) {
            verdicts.extend(
                conditions
                    .iter()
                    .filter(|c| c["type"] == "Accepted")
                    .map(|c| c["status"].clone()),
            );
        }
    }
    Ok(verdicts)
}

#[test]
fn a_record_that_somebody_touches_is_put_back() -> Result<()> {
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-record")?;
    let target = [("shared-db", "192.0.2.10", 5432)];
    apply(cluster, &[egress("holder", &target)])?;
    wait_complete(&kube, "holder")?;
    // The rival would win by name and by any other order than who came first.
    apply(cluster, &[egress("a-rival", &target)])?;
    wait_condition(&kube, "a-rival", "Accepted", "False", "HeldByOther")?;
    // A status can be read before its line is in the log.
    wait_for("the audit log shows the verdicts", SOON, || {
        for name in ["holder", "a-rival"] {
            ensure!(!verdicts(cluster, 0, name)?.is_empty(), "none of {name}");
        }
        Ok(())
    })?;

    let name = claims_part_config_map(TAILNET, 0);
    let text = part(&kube, 0)?.context("no record")?;
    let rival = kube.get::<TailnetEgress>("a-rival")?;
    let mut turned = claims(&kube, 0)?;
    let held = turned
        .claims
        .get_mut("service:shared-db")
        .context("service:shared-db")?;
    assert_eq!(held.name, "holder");
    (held.name, held.uid) = ("a-rival".to_owned(), rival.uid());
    let turned = turned.to_json()?;
    let since = cluster.audit_log()?.len();
    let deployment: Deployment = kube.get("tailnet-egress-holder")?;
    let touches = [
        ("deleted", None),
        ("given to another holder", Some(json!({"data": {"claims": turned}}))),
        ("emptied", Some(json!({"data": null}))),
        ("overwritten", Some(json!({"data": {"claims": "nothing to read"}}))),
        ("stripped of its labels", Some(json!({"metadata": {"labels": null}}))),
    ];
    for (what, patch) in touches {
        match patch {
            None => kube.delete::<ConfigMap>(&name)?,
            Some(patch) => {
                let api = kube.api::<ConfigMap>();
                kube.block_on(api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)))?;
            }
        }
        wait_back(&kube, what, 0, &text)?;
    }

    // Nobody changed hands meanwhile.
    let written = |name: &str| verdicts(cluster, since, name);
    assert!(
        written("holder")?.iter().all(|status| status == "True"),
        "{:?}",
        written("holder")?
    );
    assert!(
        written("a-rival")?.iter().all(|status| status == "False"),
        "{:?}",
        written("a-rival")?
    );
    let accepted = |name: &str| -> Result<_> {
        let (status, ..) = condition(&kube.get::<TailnetEgress>(name)?, "Accepted").context("Accepted")?;
        Ok(status)
    };
    assert_eq!(
        (accepted("holder")?.as_str(), accepted("a-rival")?.as_str()),
        ("True", "False")
    );
    let after: Deployment = kube.get("tailnet-egress-holder")?;
    assert_eq!(
        (after.uid(), after.metadata.generation),
        (deployment.uid(), deployment.metadata.generation)
    );
    assert!(kube.find::<Deployment>("tailnet-egress-a-rival")?.is_none());
    operator.stop()
}

/// Prefixes of site `number`: as many as a site may have, in as long a text as an address has.
fn prefixes(number: u16) -> Vec<String> {
    (0..128)
        .map(|prefix| {
            let address = Ipv6Addr::new(
                0x2001,
                0xdb8,
                0x1000 + number,
                0x1000 + prefix,
                0xaaaa,
                0xbbbb,
                0xcccc,
                0xdddd,
            );
            format!("{address}/128")
        })
        .collect()
}

/// Name of site `number`, as long as a name may be: it is in every claim.
fn site_name(number: u16) -> String {
    let label = "x".repeat(60);
    format!("site-{number:02}.{}", [label.as_str(); 4].join("."))
}

fn sites(kube: &Kube) -> Result<Vec<TailnetSite>> {
    let api: Api<TailnetSite> = kube.cluster_api();
    Ok(kube.block_on(api.list(&ListParams::default()))?.items)
}

#[test]
fn a_record_that_outgrows_one_config_map() -> Result<()> {
    const SITES: u16 = 18;
    let _turn = one_at_a_time();
    let cluster = cluster();
    let kube = start_over(cluster)?;
    let operator = Operator::start(cluster, "operator-large-record")?;
    let wanted: Vec<Value> = (0..SITES)
        .map(|number| {
            json!({
                "apiVersion": tailnet_crds::API_VERSION, "kind": "TailnetSite", "metadata": {"name": site_name(number)},
                "spec": {"tailnetRef": {"name": TAILNET}, "prefixes": prefixes(number)},
            })
        })
        .collect();
    apply(cluster, &wanted)?;
    let expected: BTreeMap<String, String> = (0..SITES)
        .flat_map(|number| {
            prefixes(number)
                .into_iter()
                .map(move |prefix| (format!("prefix:{prefix}"), site_name(number)))
        })
        .collect();
    let holders = |claims: &Claims| -> BTreeMap<String, String> {
        claims
            .claims
            .iter()
            .map(|(key, claim)| (key.clone(), claim.name.clone()))
            .collect()
    };
    let (first, second) = wait_for("every claim is in one of two parts", SOON, || {
        let parts = (claims(&kube, 0)?, claims(&kube, 1)?);
        let found = holders(&claim_parts::merged([&parts.0, &parts.1]));
        ensure!(found.len() == expected.len(), "{} of {}", found.len(), expected.len());
        ensure!(found == expected, "the holders are not who asked");
        Ok::<_, anyhow::Error>(parts)
    })?;
    for (index, claims) in [(0, &first), (1, &second)] {
        let size = claims.to_json()?.len();
        assert!(size <= PART_BYTES, "part {index} has {size} bytes");
    }
    assert!(first.claims.keys().all(|key| !second.claims.contains_key(key)));
    assert!(part(&kube, 2)?.is_none());
    wait_for("every site is accepted", SOON, || {
        for site in sites(&kube)? {
            let accepted = condition(&site, "Accepted");
            ensure!(
                accepted.as_ref().is_some_and(|(status, ..)| status == "True"),
                "{accepted:?}"
            );
        }
        Ok(())
    })?;

    // The second part is as much of the record as the first.
    let text = part(&kube, 1)?.context("no part 1")?;
    kube.delete::<ConfigMap>(&claims_part_config_map(TAILNET, 1))?;
    wait_back(&kube, "deleted", 1, &text)?;

    // With its last claim a part goes; what is left has not moved, and holds since when it held.
    let leaving: BTreeSet<&str> = second.claims.values().map(|claim| claim.name.as_str()).collect();
    let mut args = vec!["delete", "tailnetsite", "--wait=true", "--timeout=30s"];
    args.extend(&leaving);
    cluster.kubectl(&args)?.success()?;
    let left: BTreeMap<&String, &Claim> = first
        .claims
        .iter()
        .filter(|(_, claim)| !leaving.contains(claim.name.as_str()))
        .collect();
    assert!(!left.is_empty());
    wait_for("the superfluous part is gone", SOON, || {
        ensure!(part(&kube, 1)?.is_none(), "part 1 is there");
        let now = claims(&kube, 0)?;
        let now: BTreeMap<&String, &Claim> = now.claims.iter().collect();
        ensure!(now == left, "{} claims instead of {}", now.len(), left.len());
        Ok(())
    })?;
    let listed = cluster.kubectl(&["get", "configmap", "-n", NAMESPACE, "-o", "name"])?;
    assert!(!listed.success()?.contains("more-claims"), "{}", listed.success()?);
    operator.stop()
}
