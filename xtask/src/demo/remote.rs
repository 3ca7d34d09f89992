//! The far side: Headscale's access policy, the remote site, and the approval of its routes. Set by the demo itself, through Headscale.

use anyhow::{Context, Result, ensure};
use tailnet_e2e::cluster::Cluster;
use tailnet_e2e::site::{self, Site, SiteSpec};

use super::account::{Account, command, says};

/// Name of the site and of its router's node.
const SITE: &str = "branch";

/// What the people who own the tailnet have said. Nothing approves routes here: the demo does that by hand, to show it.
const POLICY: &str = r#"{
  "tagOwners": {
    "tag:router": [],
    "tag:egress-team-a": []
  },
  "grants": [
    {"src": ["tag:egress-team-a"], "dst": ["192.0.2.10/32"], "ip": ["tcp:5432"]},
    {"src": ["tag:egress-team-a"], "dst": ["198.51.100.20/32"], "ip": ["tcp:443"]}
  ]
}"#;

/// Two steps: the policy, then the site.
pub fn policy_and_site<'a>(cluster: &'a Cluster, account: &mut Account) -> Result<Site<'a>> {
    account.step(
        "Headscale's access policy: the agent of team-a may use two ports behind the router",
        || {
            command("headscale policy set --file policy.hujson");
            cluster.headscale()?.set_policy(POLICY)?;
            says(POLICY);
            Ok(())
        },
    )?;
    account.step(
        "A remote site: a router with real tailscaled, and behind it PostgreSQL and an HTTPS API",
        || {
            let site = cluster.site(SiteSpec {
                echo: false,
                ..SiteSpec::new(SITE)
            })?;
            says(&format!("router {SITE} advertises {}", site::ROUTES.join(" and ")));
            says(&format!(
                "PostgreSQL at {}, https://{} at {}; nothing but the tailnet leads there",
                site::POSTGRES,
                site::HTTPS_NAME,
                site::HTTPS
            ));
            Ok(site)
        },
    )
}

/// Approves what the router advertises.
pub fn approve(cluster: &Cluster) -> Result<()> {
    let client = cluster.headscale()?.client()?;
    let router = tokio::runtime::Runtime::new()?.block_on(async move {
        let nodes = client.nodes().await?;
        let router = nodes
            .into_iter()
            .find(|node| node.given_name == SITE)
            .context("the router is not in Headscale")?;
        let approved = client.approve_routes(&router.id, &router.available_routes).await?;
        anyhow::Ok(approved)
    })?;
    let mut routes = router.approved_routes;
    routes.sort();
    command(&format!(
        "headscale nodes approve-routes --identifier {} --routes {}",
        router.id,
        routes.join(",")
    ));
    ensure!(
        site::ROUTES
            .iter()
            .all(|route| routes.iter().any(|approved| approved == route)),
        "approved are only {routes:?}"
    );
    says(&format!("approved: {}", routes.join(", ")));
    Ok(())
}
