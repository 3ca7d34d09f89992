//! Sites: what routers advertise, what is approved, who holds a prefix.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailnet_e2e::tools::Tool;
use tailnet_e2e::{Process, wait_for};

use crate::access_policy::{Open, expect, own};
use crate::bed::{Bed, join};

const PATIENCE: Duration = Duration::from_secs(90);

fn site(bed: &Bed, name: &str, prefixes: &[&str]) -> Result<()> {
    bed.apply(&json!({"apiVersion": "tsunaro.io/v1alpha1", "kind": "TailnetSite", "metadata": {"name": format!("{}-{name}", bed.tailnet)},
        "spec": {"tailnetRef": {"name": bed.tailnet}, "prefixes": prefixes, "advertisedBy": ["tag:router"], "owner": "ops"}}))
}

/// Waits for a condition of a site; gives the message.
fn site_is(bed: &Bed, name: &str, r#type: &str, status: &str, reason: &str) -> Result<String> {
    let name = format!("{}-{name}", bed.tailnet);
    wait_for(&format!("{type} of {name} is {status}/{reason}"), PATIENCE, || {
        let seen = bed.condition(&["tailnetsite", &name], r#type)?;
        ensure!(seen.0 == status && seen.1 == reason, "{seen:?}");
        Ok::<_, anyhow::Error>(seen.2)
    })
}

fn prefixes(bed: &Bed, name: &str) -> Result<Value> {
    Ok(bed.get(&["tailnetsite", &format!("{}-{name}", bed.tailnet)])?["status"]["prefixes"].clone())
}

/// A router in user space that advertises `routes`.
fn router(bed: &Bed, name: &str, routes: &str) -> Result<Process> {
    let key = bed.headscale.preauth_key(&["tag:router"], true, true)?;
    let node = join(bed, name, &key)?;
    let tailscale = Tool::Tailscale.built()?.display().to_string();
    let socket = bed.cluster.dir().join(name).join("sock").display().to_string();
    let argv = [
        tailscale.as_str(),
        "--socket",
        &socket,
        "set",
        &format!("--advertise-routes={routes}"),
    ];
    bed.cluster.inside().run(&argv)?.success()?;
    Ok(node)
}

struct Sites<'b>(&'b Bed, &'static [&'static str]);

impl Drop for Sites<'_> {
    fn drop(&mut self) {
        for name in self.1 {
            let name = format!("{}-{name}", self.0.tailnet);
            let _ = self
                .0
                .cluster
                .kubectl(&["delete", "tailnetsite", &name, "--ignore-not-found", "--wait=false"]);
        }
    }
}

#[test]
fn from_not_advertised_to_ready() -> Result<()> {
    let bed = Bed::new("sites_ready")?;
    bed.bootstrap(&bed.headscale.admin_key()?)?;
    let _open = Open::begin(&bed, "{ \"tagOwners\": { \"tag:router\": [] }, \"grants\": [] }")?;
    let _sites = Sites(&bed, &["lab", "twin"]);
    bed.tailnet(|_| {})?;
    let operator = bed.operator(&[])?;
    bed.ready()?;

    // Others write the policy: what is missing is said as text to paste.
    site(&bed, "lab", &["10.77.0.0/16", "10.78.0.0/24"])?;
    let message = site_is(&bed, "lab", "Advertised", "False", "NotAdvertised")?;
    assert!(
        message.contains("no node with tag:router advertises 10.77.0.0/16, 10.78.0.0/24"),
        "{message}"
    );
    let first = router(&bed, "site-rt", "10.77.0.0/16,10.78.0.0/24")?;
    site_is(&bed, "lab", "Advertised", "True", "Advertised")?;
    let message = site_is(&bed, "lab", "Approved", "False", "NotApproved")?;
    assert!(
        message.contains("\"10.77.0.0/16\": [\"tag:router\"]") && message.contains("site-rt"),
        "{message}"
    );
    site_is(&bed, "lab", "Ready", "False", "NotApproved")?;

    // Now this installation writes it.
    bed.apply(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "base", "namespace": bed.ns()},
        "data": {"policy.hujson": "{ \"groups\": { \"group:ops\": [\"ann@\"] }, \"grants\": [] }"}}),
    )?;
    own(&bed, "Apply", |_| {})?;
    expect(&bed, "True", "Applied")?;
    site_is(&bed, "lab", "Ready", "True", "Ready")?;
    let seen = prefixes(&bed, "lab")?;
    assert_eq!(
        seen[0],
        json!({"prefix": "10.77.0.0/16", "advertised": true, "approved": true, "serving": true, "routers": ["site-rt"]})
    );

    // A person's un-approval stays until the next write; then it is told that it came back.
    let node = bed
        .block(bed.admin.nodes())?
        .into_iter()
        .find(|node| node.given_name == "site-rt")
        .context("the router")?;
    bed.block(bed.admin.approve_routes(&node.id, &["10.78.0.0/24".to_owned()]))?;
    site_is(&bed, "lab", "Approved", "False", "NotApproved")?;
    bed.egress("site-egress")?;
    site_is(&bed, "lab", "Approved", "True", "Approved")?;
    wait_for("the Event", PATIENCE, || {
        let events = bed.get(&["events.events.k8s.io"])?.to_string();
        ensure!(
            events.contains("RouteApprovedAgain") && events.contains("take the prefix out"),
            "{events}"
        );
        Ok::<_, anyhow::Error>(())
    })?;

    // The older site keeps its prefixes; when it goes, the next one has them.
    site(&bed, "twin", &["10.77.8.0/24"])?;
    let message = site_is(&bed, "twin", "Accepted", "False", "HeldByOther")?;
    assert!(message.contains("TN403") && message.contains("-lab"), "{message}");
    assert_eq!(prefixes(&bed, "twin")?, Value::Null);
    bed.delete(&["tailnetsite", &format!("{}-lab", bed.tailnet)])?;
    site_is(&bed, "twin", "Accepted", "True", "Valid")?;
    site_is(&bed, "twin", "Advertised", "False", "NotAdvertised")?;

    // The router goes.
    site(&bed, "twin", &["10.77.0.0/16"])?;
    site_is(&bed, "twin", "Ready", "True", "Ready")?;
    drop(first);
    let message = site_is(&bed, "twin", "Ready", "False", "NotServing")?;
    assert!(message.contains("site-rt"), "{message}");
    operator.terminate(Duration::from_secs(20))?;
    Ok(())
}
