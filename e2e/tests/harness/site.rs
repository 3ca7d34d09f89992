//! A site: only the tailnet leads to its hosts.

use std::time::Duration;

use tailnet_e2e::site::{ECHO, HTTPS_NAME, POSTGRES, PeerSpec, postgres};
use tailnet_e2e::{Cluster, Peer, Site, SiteSpec, wait_for};

const POLICY: &str = r#"{
  // Everybody may talk to everybody; what tag:router advertises of the site's networks is approved.
  "tagOwners": {"tag:router": [], "tag:peer": []},
  "grants": [{"src": ["*"], "dst": ["*"], "ip": ["*"]}],
  "autoApprovers": {"routes": {"192.0.2.0/24": ["tag:router"], "198.51.100.0/24": ["tag:router"]}},
}"#;

fn psql() -> String {
    postgres::programs().unwrap().join("psql").display().to_string()
}

fn select(peer: &Peer<'_>) -> anyhow::Result<String> {
    let url = format!(
        "postgresql://{}:{}@{POSTGRES}/{}?connect_timeout=5",
        postgres::USER,
        postgres::PASSWORD,
        postgres::DATABASE
    );
    peer.run(&[&psql(), &url, "-Atc", postgres::QUERY.0])?
        .success()
        .map(str::to_owned)
}

fn echo(peer: &Peer<'_>) -> anyhow::Result<String> {
    let (host, port) = ECHO.split_once(':').unwrap();
    let script = format!("exec 3<>/dev/tcp/{host}/{port}; echo hello >&3; head -1 <&3");
    peer.run(&["timeout", "4", "bash", "-c", &script])?
        .success()
        .map(str::to_owned)
}

fn https(peer: &Peer<'_>, site: &Site<'_>, more: &[&str]) -> anyhow::Result<serde_json::Value> {
    let ca = site.dir().join("site-ca.crt").display().to_string();
    let (url, resolve) = (
        format!("https://{HTTPS_NAME}/orders?x=1"),
        format!("{HTTPS_NAME}:443:198.51.100.20"),
    );
    let mut argv = vec!["curl", "-sS", "--max-time", "5", "--cacert", &ca, &url];
    if more.is_empty() {
        argv.extend(["--resolve", &resolve]);
    }
    argv.extend(more);
    Ok(serde_json::from_str(peer.run(&argv)?.success()?)?)
}

#[test]
fn a_router_carries_bytes_between_a_peer_and_the_hosts() {
    let cluster = Cluster::shared();
    let headscale = cluster.headscale().unwrap();
    headscale.set_policy(POLICY).unwrap();
    let start = std::time::Instant::now();
    let mut site = cluster.site(SiteSpec::new("warehouse")).unwrap();
    println!("site: up in {:.2} s", start.elapsed().as_secs_f64());
    let start = std::time::Instant::now();
    let peer = cluster.peer(PeerSpec::new("laptop")).unwrap();
    println!("peer: up in {:.2} s", start.elapsed().as_secs_f64());

    // Neither the box nor the peer without the tailnet has a way.
    for netns in [None, Some(peer.netns())] {
        let route = cluster
            .inside()
            .run_in(netns, &["ip", "route", "get", "192.0.2.10"])
            .unwrap();
        assert!(
            route.success().is_err() || route.stdout.contains("tailscale0"),
            "{}",
            route.stdout
        );
    }
    wait_for("the peer reads the database", Duration::from_secs(30), || {
        select(&peer).map(|rows| assert_eq!(rows, postgres::QUERY.1))
    })
    .unwrap();
    assert_eq!(echo(&peer).unwrap(), "hello");
    let seen = https(&peer, &site, &[]).unwrap();
    assert_eq!(
        (&seen["sni"], &seen["host"], &seen["path"]),
        (&HTTPS_NAME.into(), &HTTPS_NAME.into(), &"/orders?x=1".into())
    );
    assert!(
        seen["peer"].as_str().unwrap().starts_with("198.51.100.1:"),
        "the host sees the router, not a short cut: {seen}"
    );

    // A userspace peer has no interface: its programs go through its proxy.
    let tablet = cluster
        .peer(PeerSpec {
            kernel: false,
            ..PeerSpec::new("tablet")
        })
        .unwrap();
    let (proxy, connect) = (tablet.socks().unwrap(), format!("{HTTPS_NAME}:443:198.51.100.20:443"));
    let through = ["--proxy", proxy.as_str(), "--connect-to", connect.as_str()];
    let seen = wait_for("the userspace peer is answered", Duration::from_secs(30), || {
        https(&tablet, &site, &through)
    })
    .unwrap();
    assert!(seen["peer"].as_str().unwrap().starts_with("198.51.100.1:"), "{seen}");
    assert!(
        https(&tablet, &site, &["--connect-to", &connect]).is_err(),
        "without the proxy there is no way"
    );
    let status = tablet.status().unwrap();
    drop(tablet);
    let id = status["Self"]["ID"].as_str().unwrap().to_owned();
    wait_for(
        "Headscale has forgotten the peer that logged out",
        Duration::from_secs(15),
        || {
            let listed = headscale.cli(&["nodes", "list", "-o", "json"])?;
            if listed.success()?.contains("\"tablet\"") {
                Err(anyhow::anyhow!("node {id} is still there"))
            } else {
                Ok(())
            }
        },
    )
    .unwrap();

    // Without the router nothing arrives; with it everything does again, under the old identity.
    let address = site.router_address(0).unwrap();
    site.kill_router(0).unwrap();
    assert!(echo(&peer).is_err());
    site.start_router(0).unwrap();
    assert_eq!(site.router_address(0).unwrap(), address);
    wait_for("bytes arrive again", Duration::from_secs(60), || echo(&peer)).unwrap();

    // A withdrawn route is gone, and comes back.
    site.advertise(0, &["198.51.100.0/24"]).unwrap();
    wait_for("the withdrawn route is gone", Duration::from_secs(30), || {
        if echo(&peer).is_err() {
            Ok(())
        } else {
            Err("bytes still arrive")
        }
    })
    .unwrap();
    site.advertise(0, &tailnet_e2e::site::ROUTES).unwrap();
    wait_for("the route is back", Duration::from_secs(30), || echo(&peer)).unwrap();

    // A standby takes over.
    let standby = site.add_router().unwrap();
    site.kill_router(0).unwrap();
    let seen = wait_for("the standby has taken over", Duration::from_secs(60), || {
        https(&peer, &site, &[])
    })
    .unwrap();
    assert!(
        seen["peer"]
            .as_str()
            .unwrap()
            .starts_with(&format!("198.51.100.{}:", standby + 1)),
        "{seen}"
    );
}

#[test]
fn a_dropped_site_leaves_nothing_in_the_box() {
    let cluster = Cluster::shared();
    cluster.headscale().unwrap().set_policy(POLICY).unwrap();
    let traces = || {
        cluster
            .inside()
            .check(None, &["sh", "-c", "ip netns list; ip -brief link"])
    };
    let lonely = SiteSpec {
        postgres: false,
        https: false,
        echo: false,
        routes: vec!["203.0.113.0/24".to_owned()],
        ..SiteSpec::new("depot")
    };
    let site = cluster.site(lonely).unwrap();
    site.restart_router(0).unwrap();
    // A router that runs is left alone, its socket too.
    site.start_router(0).unwrap();
    assert!(
        site.tailscale(0, &["status", "--json"])
            .unwrap()
            .success()
            .unwrap()
            .contains("\"Online\": true")
    );
    let netns = site.router_netns(0).unwrap();
    assert!(traces().unwrap().contains(&netns));
    let daemon = site.router_daemon(0).unwrap().to_owned();
    drop(site);
    assert!(!traces().unwrap().contains(&netns));
    assert!(!cluster.daemons().names().contains(&daemon));
}
