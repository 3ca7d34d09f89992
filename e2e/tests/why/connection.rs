//! Set-ups in which the way from an egress to its target is what is wrong.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tailnet_e2e::wait_for;

use crate::bed::{Bed, NAMESPACE, Said, TAG};

const TEAM: &[&str] = &["tailnetegress/team-a"];
const EGRESS: &str = "TailnetEgress network/team-a does not work: its first broken link is";
const ADMIN: &str = "It is the turn of the tailnet admin.";

fn works() -> Said<'static> {
    Said {
        link: "",
        reason: "",
        sentence: "TailnetEgress network/team-a works: every link holds.",
        next: "",
    }
}

fn grant() -> Value {
    json!({"src": [TAG], "dst": ["198.51.100.0/24"], "ip": ["*"]})
}

/// Every one; each is put right before the next.
pub fn set_ups(bed: &Bed) -> Result<()> {
    bed.policy(&[TAG, "tag:router"], &[grant()])?;
    // The webhook takes an owner for granted only when the operator has seen it.
    wait_for("the egress is let in", Duration::from_secs(30), || {
        bed.egress("team-a", |_| {})
    })?;
    route(bed)?;
    policy(bed)?;
    backend(bed)?;
    names(bed)?;
    objects(bed)?;
    away(bed)
}

/// From no router to one that is gone.
fn route(bed: &Bed) -> Result<()> {
    bed.egress("team-a", |spec| spec["targets"][0]["address"] = json!("203.0.113.9"))?;
    bed.expect(
        "10 no router advertises the address",
        TEAM,
        &Said {
            link: "route",
            reason: "NotAdvertised",
            sentence: &format!("{EGRESS} route of target team-a-t (NotAdvertised): no router advertises a prefix with 203.0.113.9: advertise one on the router (tailscale set --advertise-routes=203.0.113.9/32, or the network around it). {ADMIN}"),
            next: "# on the router, *",
        },
    );
    bed.egress("team-a", |_| {})?;
    let client = bed.headscale.client()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let nodes = runtime.block_on(client.nodes())?;
    let router = nodes
        .iter()
        .find(|node| node.given_name == "depot")
        .context("the router")?;
    let exact = format!(
        "headscale nodes approve-routes --identifier {} --routes 198.51.100.0/24",
        router.id
    );
    bed.expect(
        "11 the route is not approved",
        TEAM,
        &Said {
            link: "route",
            reason: "NotApproved",
            sentence: &format!("{EGRESS} route of target team-a-t (NotApproved): router depot advertises 198.51.100.0/24, but the route is not approved: * {ADMIN}"),
            next: &exact,
        },
    );
    // The command is what it takes.
    let words: Vec<&str> = exact.split(' ').skip(1).collect();
    bed.headscale.cli(&words)?.success()?;
    bed.expect("10–11 put right", TEAM, &works());
    let depot = bed.depot.as_ref().context("the site")?;
    depot.kill_router(0)?;
    bed.expect(
        "12 the router is gone",
        TEAM,
        &Said {
            link: "route",
            reason: "NotServing",
            sentence: &format!("{EGRESS} route of target team-a-t (NotServing): router depot may serve 198.51.100.0/24, but it is offline: start the router. {ADMIN}"),
            next: "# on router depot:",
        },
    );
    depot.start_router(0)?;
    bed.expect("12 put right", TEAM, &works());
    Ok(())
}

fn policy(bed: &Bed) -> Result<()> {
    bed.policy(&[TAG, "tag:router"], &[])?;
    bed.expect(
        "13 no grant",
        TEAM,
        &Said {
            link: "grant",
            reason: "NoGrant",
            sentence: &format!("{EGRESS} grant of target team-a-t (NoGrant): node depot serves 198.51.100.20, but no rule of the policy lets {TAG} reach port 443 of it: * {ADMIN}"),
            next: "headscale policy get > policy.hujson",
        },
    );
    bed.policy(&["tag:router"], &[])?;
    bed.expect(
        "14 the tag has no owner any more",
        TEAM,
        &Said {
            link: "accepted",
            reason: "TagNotOwned",
            sentence: &format!(
                "{EGRESS} accepted (TagNotOwned): frozen, what runs keeps running unchanged; spec.tag: Invalid value: \"{TAG}\": has no owner in the live policy *[TN006]. {ADMIN}"
            ),
            next: "headscale policy get > policy.hujson",
        },
    );
    bed.policy(&[TAG, "tag:router"], &[grant()])?;
    bed.expect("13–14 put right", TEAM, &works());
    Ok(())
}

/// What only a connection tells.
fn backend(bed: &Bed) -> Result<()> {
    let probe = ["tailnetegress/team-a", "--probe"];
    bed.expect("a probe of what works", &probe, &works());
    bed.egress("team-a", |spec| {
        spec["targets"] = json!([
            {"name": "team-a-t", "address": "198.51.100.20", "port": 443},
            {"name": "closed", "address": "198.51.100.20", "port": 444},
        ]);
    })?;
    bed.expect(
        "15 nothing listens behind the router",
        &probe,
        &Said {
            link: "backend",
            reason: "DialFailed",
            sentence: &format!("{EGRESS} backend of target closed (DialFailed): the connection that was made now failed: agent tailnet-egress-team-a-*: * It is the turn of the application team."),
            next: "# on router depot:",
        },
    );
    // The other target is not touched by it.
    let one = ["tailnetegress/team-a", "--target", "team-a-t", "--probe"];
    bed.expect("15 the other target", &one, &works());
    bed.egress("team-a", |_| {})?;
    bed.expect("15 put right", TEAM, &works());
    Ok(())
}

fn names(bed: &Bed) -> Result<()> {
    bed.egress("team-a", |spec| {
        spec["targets"][0]["aliases"] = json!(["api.site.example.net"])
    })?;
    bed.expect(
        "16 an alias, and no hosts file",
        TEAM,
        &Said {
            link: "dns",
            reason: "NoHostsConfigMap",
            sentence: &format!("{EGRESS} dns (NoHostsConfigMap): aliases are published nowhere: set spec.dns.hostsConfigMap of Tailnet demo. It is the turn of the platform team."),
            next: "kubectl * patch tailnet demo --type=merge -p '{\"spec\":{\"dns\":{\"hostsConfigMap\":\"tailnet-hosts\"}}}'",
        },
    );
    bed.expect_doctor(
        "DNS",
        "warn",
        "not wired: no resolver runs in namespace network, *api.site.example.net",
    );
    bed.apply(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "foreign", "namespace": NAMESPACE}}),
    )?;
    bed.tailnet(|spec| spec["dns"] = json!({"hostsConfigMap": "foreign"}))?;
    bed.expect(
        "17 the hosts file is somebody else's",
        TEAM,
        &Said {
            link: "dns",
            reason: "HostsNotOurs",
            sentence: &format!(
                "{EGRESS} dns (HostsNotOurs): ConfigMap foreign is not ours * It is the turn of the platform team."
            ),
            next: "kubectl * -n network get configmap foreign -o yaml",
        },
    );
    bed.tailnet(|spec| spec["dns"] = json!({"hostsConfigMap": "tailnet-hosts"}))?;
    bed.expect("16–17 put right", TEAM, &works());
    Ok(())
}

/// What the cluster does not give.
fn objects(bed: &Bed) -> Result<()> {
    let tags = [TAG, "tag:router", "tag:egress-pending", "tag:egress-taken"];
    bed.policy(&tags, &[grant()])?;
    wait_for(
        "an egress that no node can run is let in",
        Duration::from_secs(30),
        || {
            bed.egress("pending", |spec| {
                spec["agent"] = json!({"nodeSelector": {"no-such-label": "x"}})
            })
        },
    )?;
    bed.expect(
        "18 no node for the agent",
        &["tailnetegress/pending"],
        &Said {
            link: "node",
            reason: "Unavailable",
            sentence: "TailnetEgress network/pending does not work: its first broken link is node (Unavailable): 0 of 1 agents are available; * It is the turn of the platform team.",
            next: "kubectl * -n network describe pods -l tsunaro.io/owner-kind=TailnetEgress,tsunaro.io/owner-name=pending",
        },
    );
    bed.expect_doctor("objects", "warn", "1 of 2 are ready");
    bed.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tailnet-egress-taken-config", "namespace": NAMESPACE}}))?;
    bed.egress("taken", |_| {})?;
    bed.expect(
        "19 somebody has the name of a child",
        &["tailnetegress/taken"],
        &Said {
            link: "node",
            reason: "ChildNotOurs",
            sentence: "TailnetEgress network/taken does not work: its first broken link is node (ChildNotOurs): *tailnet-egress-taken-config* It is the turn of the platform team.",
            next: "kubectl * -n network get deployments,services,configmaps,secrets,networkpolicies -L tsunaro.io/owner-name",
        },
    );
    bed.delete(&["tailnetegress", "pending", "taken"])?;
    bed.egress("elsewhere", |spec| {
        spec["tailnetRef"]["name"] = json!("no-such-tailnet");
    })?;
    bed.expect(
        "20 no such Tailnet",
        &["tailnetegress/elsewhere"],
        &Said {
            link: "accepted",
            reason: "TailnetNotFound",
            sentence: "TailnetEgress network/elsewhere does not work: its first broken link is accepted (TailnetNotFound): *no-such-tailnet* It is the turn of the application team.",
            next: "kubectl * get tailnets",
        },
    );
    bed.delete(&["tailnetegress", "elsewhere"])
}

/// Headscale is away: what depends on it is not blamed.
fn away(bed: &Bed) -> Result<()> {
    bed.headscale.kill()?;
    bed.expect(
        "21 Headscale is down",
        TEAM,
        &Said {
            link: "tailnet",
            reason: "ConnectionRefused",
            sentence: &format!("{EGRESS} tailnet (ConnectionRefused): Tailnet demo: Reachable: * {ADMIN}"),
            next: "curl --fail --max-time 10 https://control.example.net/health",
        },
    );
    bed.headscale.start()?;
    bed.expect("21 put right", TEAM, &works());
    Ok(())
}
