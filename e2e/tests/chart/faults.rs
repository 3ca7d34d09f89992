//! What bad things get: each fault with the state that people see, and the recovery without a person.
//!
//! A fault that must not touch open connections checks the long-lived one; one that has to break it opens a new one at the end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tailnet_crds::conditions::reason;
use tailnet_e2e::wait_for;
use tailnet_headscale::ApiKey;

use crate::bed::{Bed, EGRESS, OPERATOR, SITE, SOON, TAILNET, text};
use crate::load::{Allowed, Load};
use crate::{connection, install, operations, session, webhook_down};

/// An agent asks about every 30 s whether Headscale still knows it, and then logs in again.
const REJOIN: Duration = Duration::from_secs(150);
/// What a loss of the node may take without ever being seen in the status: Headscale is read every 15 s or so.
const TOO_SHORT_TO_SEE: Duration = Duration::from_secs(20);

/// A fault: its name and its act.
pub type Fault = (&'static str, fn(&Bed) -> Result<()>);

/// All faults, in an order in which slow aftermaths (a node that vanishes after 70 s) have time.
pub const ALL: [Fault; 13] = [
    ("fault: an agent's process is killed", agent_killed),
    ("fault: the agent's node is deleted in Headscale", node_deleted),
    ("fault: Headscale is stopped", headscale_stopped),
    ("fault: the working key is expired in Headscale", working_key_expired),
    (
        "fault: the bootstrap key is wrong when it is needed",
        bootstrap_key_wrong,
    ),
    ("fault: the operator's Pod is deleted", operator_deleted),
    (
        "fault: the API server restarts while a connection is open",
        api_server_restarted,
    ),
    (
        "fault: webhook Pods are deleted one by one under load",
        webhooks_deleted,
    ),
    ("operation: the webhook is rolled under load", operations::rolled),
    (
        "operation: the webhook is scaled to 1 and back under load",
        operations::scaled,
    ),
    (
        "operation: the webhook's node is drained under load",
        operations::drained,
    ),
    ("fault: the webhook is away", webhook_down::holds),
    ("fault: the router is killed", router_killed),
];

/// Puts right what a fault that broke off may have left, so that the next one starts from a sound state.
pub fn repair(bed: &Bed) -> Result<()> {
    bed.headscale.start()?;
    bed.set_bootstrap(&bed.bootstrap)?;
    let router = bed.site.router_daemon(0)?;
    if !bed.cluster.daemons().process(router)?.is_running() {
        bed.site.start_router(0)?;
    }
    bed.expect_ready()?;
    connection::wait_query(bed)?;
    session::start(bed)
}

fn headscale_stopped(bed: &Bed) -> Result<()> {
    let nodes = online(bed)?;
    bed.headscale.stop()?;
    let unreachable = [reason::CONNECTION_REFUSED, reason::NO_ANSWER];
    let message = bed.expect(TAILNET, "Reachable", "False", &unreachable)?;
    ensure!(
        message.contains("control.example.net"),
        "the message does not say what is unreachable: {message}"
    );
    bed.expect(TAILNET, "APIKeyReady", "Unknown", &[reason::CONTROL_PLANE_UNREACHABLE])?;
    bed.expect(EGRESS, "RoutesReady", "Unknown", &[reason::CONTROL_PLANE_UNREACHABLE])?;
    connection::query(bed).context("while Headscale is stopped")?;
    session::goes_on(bed).context("while Headscale is stopped")?;
    // Admission does not need Headscale either.
    install::admission_answers(bed)?;
    bed.headscale.start()?;
    bed.expect_ready()?;
    ensure!(online(bed)? == nodes, "the outage cost the agent its node");
    connection::query(bed)?;
    session::goes_on(bed)
}

/// Ids of the egress's nodes that Headscale sees.
fn online(bed: &Bed) -> Result<Vec<String>> {
    let nodes = bed.our_nodes()?;
    Ok(nodes
        .into_iter()
        .filter(|node| node.online)
        .map(|node| node.id.as_str().to_owned())
        .collect())
}

fn expire(bed: &Bed, key: &str) -> Result<()> {
    let prefix = ApiKey::parse(key)?
        .prefix()
        .context("the working key has a prefix")?
        .to_owned();
    let client = bed.headscale.client()?;
    Ok(bed.block_on(client.expire_api_key(&prefix))?)
}

/// Waits until another working key than `old` is in use and Headscale does not have the old one any more.
fn wait_replaced(bed: &Bed, old: &str) -> Result<()> {
    wait_for("another working key is in the Secret", SOON, || {
        ensure!(bed.working_key()? != old, "still the same");
        Ok::<_, anyhow::Error>(())
    })?;
    let prefix = ApiKey::parse(old)?.prefix().context("prefix")?.to_owned();
    wait_for("the replaced key is deleted in Headscale", SOON, || {
        let client = bed.headscale.client()?;
        let keys = bed.block_on(client.api_keys())?;
        ensure!(
            keys.iter().all(|key| key.short_prefix() != prefix),
            "{prefix} is still there"
        );
        Ok::<_, anyhow::Error>(())
    })
}

fn working_key_expired(bed: &Bed) -> Result<()> {
    let old = bed.working_key()?;
    expire(bed, &old)?;
    wait_replaced(bed, &old)?;
    bed.expect_ready()?;
    connection::query(bed)?;
    session::goes_on(bed)
}

/// When Headscale was last read with success.
pub fn last_read(bed: &Bed) -> Result<String> {
    let lease = bed.get(&["-n", OPERATOR, "lease", "tailnet-facts-demo"])?;
    Ok(text(&lease["spec"]["renewTime"]))
}

fn bootstrap_key_wrong(bed: &Bed) -> Result<()> {
    let wrong = format!("hskey-api-wrongprefix0-{}", "wrong0secret".repeat(6));
    bed.set_bootstrap(&wrong)?;
    // As long as the working key works, the bootstrap key is nobody's trouble.
    let before = last_read(bed)?;
    wait_for("Headscale is read again", SOON, || {
        ensure!(last_read(bed)? != before, "last at {before}");
        Ok::<_, anyhow::Error>(())
    })?;
    bed.expect(TAILNET, "Ready", "True", &["Ready"])?;
    let old = bed.working_key()?;
    expire(bed, &old)?;
    let message = bed.expect(TAILNET, "APIKeyReady", "False", &[reason::API_KEY_REFUSED])?;
    for word in [
        "tailnet-system/headscale-bootstrap",
        "apiKey",
        "headscale apikeys create",
    ] {
        ensure!(message.contains(word), "the message does not name {word}: {message}");
    }
    ensure!(!message.contains("wrong0secret"), "the message tells the key");
    bed.expect(TAILNET, "Ready", "False", &[reason::API_KEY_REFUSED])?;
    bed.expect(EGRESS, "RoutesReady", "Unknown", &[reason::CONTROL_PLANE_UNREACHABLE])?;
    connection::query(bed).context("without a working key")?;
    session::goes_on(bed).context("without a working key")?;
    bed.set_bootstrap(&bed.bootstrap)?;
    wait_replaced(bed, &old)?;
    bed.expect_ready()?;
    connection::query(bed)?;
    session::goes_on(bed)
}

fn router_killed(bed: &Bed) -> Result<()> {
    bed.site.kill_router(0)?;
    wait_for("both targets say that their router does not serve", SOON, || {
        let states = bed.target_states()?;
        ensure!(
            states.len() == 2
                && states
                    .iter()
                    .all(|(_, state)| state == "NotServing" || state == "DialFailed"),
            "{states:?}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    let message = bed.expect(EGRESS, "RoutesReady", "False", &["NotServing", "DialFailed"])?;
    ensure!(
        message.contains(SITE) || message.contains("failed"),
        "whose turn is it? {message}"
    );
    bed.expect(EGRESS, "Ready", "False", &["NotServing", "DialFailed"])?;
    bed.site.start_router(0)?;
    connection::wait_query(bed)?;
    bed.expect_ready()?;
    session::start(bed)
}

/// Process ids (in the box) of the agents.
fn agent_processes(bed: &Bed) -> Result<Vec<String>> {
    let script = r#"for p in /proc/[0-9]*; do read -r line 2>/dev/null < "$p/comm" || continue; [ "$line" = tailnet-agent ] && echo "${p#/proc/}"; done; true"#;
    let found = bed.cluster.inside().check(None, &["sh", "-c", script])?;
    Ok(found.split_whitespace().map(str::to_owned).collect())
}

fn restarts(bed: &Bed) -> Result<i64> {
    let pods = bed.list(&["-n", OPERATOR, "pods", "-l", "tsunaro.io/owner-name=team-a"])?;
    Ok(pods
        .iter()
        .filter_map(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_i64())
        .sum())
}

fn agent_killed(bed: &Bed) -> Result<()> {
    let (mark, restarts_before, nodes) = (bed.audit_mark()?, restarts(bed)?, online(bed)?);
    let processes = agent_processes(bed)?;
    ensure!(processes.len() == 1, "there must be one agent: {processes:?}");
    bed.cluster.inside().check(None, &["kill", "-9", &processes[0]])?;
    wait_for("kubelet has restarted the agent", SOON, || {
        let now = restarts(bed)?;
        ensure!(now == restarts_before + 1, "{now} restarts, before: {restarts_before}");
        Ok::<_, anyhow::Error>(())
    })?;
    wait_for("the restarted agent is a node of its own", SOON, || {
        let now = online(bed)?;
        ensure!(
            now.iter().any(|id| !nodes.contains(id)),
            "online: {now:?}, before: {nodes:?}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    connection::wait_query(bed)?;
    bed.expect_ready()?;
    ensure!(
        bed.was_not_ready_since(mark)?,
        "the status never said that the agent was away"
    );
    session::start(bed)
}

fn node_deleted(bed: &Bed) -> Result<()> {
    let mark = bed.audit_mark()?;
    let before = online(bed)?;
    let node = bed
        .our_nodes()?
        .into_iter()
        .filter(|node| node.online)
        .max_by_key(|node| node.id.number())
        .context("the agent is not online")?;
    let client = bed.headscale.client()?;
    bed.block_on(client.delete_node(&node.id))?;
    let deleted = Instant::now();
    wait_for("the agent is a new node", REJOIN, || {
        let now = online(bed)?;
        ensure!(
            now.iter().any(|id| !before.contains(id)),
            "online: {now:?}, deleted: {}",
            node.id
        );
        Ok::<_, anyhow::Error>(())
    })?;
    let away = deleted.elapsed();
    connection::wait_query(bed)?;
    bed.expect_ready()?;
    let told = bed.was_not_ready_since(mark)?;
    println!(
        "  the agent was away for {:.1} s, told by the status: {told}",
        away.as_secs_f64()
    );
    wait_for("the status names the new node only", SOON, || {
        let nodes = bed.get(EGRESS)?["status"]["nodes"].clone();
        let list = nodes.as_array().context("nodes")?;
        ensure!(
            !list.is_empty() && list.iter().all(|listed| listed["id"] != node.id.as_str()),
            "{nodes}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    ensure!(
        told || away < TOO_SHORT_TO_SEE,
        "the egress was without a node for {:.1} s and its status said Ready all the time",
        away.as_secs_f64()
    );
    session::start(bed)
}

/// The operator acts: a new target gets its Service and is routed, and goes without a trace.
fn operator_acts(bed: &Bed) -> Result<()> {
    let target = json!({"name": "second-db", "address": "192.0.2.10", "port": 5432});
    let add = json!([{"op": "add", "path": "/spec/targets/-", "value": target}]).to_string();
    bed.kubectl(&[&["patch"], EGRESS, &["--type=json", "-p", &add]].concat())?;
    wait_for("the new target is routed", SOON, || {
        let states = bed.target_states()?;
        ensure!(
            states
                .iter()
                .any(|(name, state)| name == "second-db" && state == "Routed"),
            "{states:?}"
        );
        Ok::<_, anyhow::Error>(())
    })?;
    wait_for("the new target is reached", SOON, || {
        connection::through(bed, "second-db.tailnet-system.svc")
    })?;
    let remove = json!([
        {"op": "test", "path": "/spec/targets/2/name", "value": "second-db"},
        {"op": "remove", "path": "/spec/targets/2"},
    ])
    .to_string();
    bed.kubectl(&[&["patch"], EGRESS, &["--type=json", "-p", &remove]].concat())?;
    wait_for("the Service of the removed target is gone", SOON, || {
        let services = bed.list(&["-n", OPERATOR, "services"])?;
        ensure!(
            services
                .iter()
                .all(|service| service["metadata"]["name"] != "second-db"),
            "still there"
        );
        Ok::<_, anyhow::Error>(())
    })
}

fn operator_deleted(bed: &Bed) -> Result<()> {
    let (agents, working) = (bed.pods("tsunaro.io/owner-name=team-a")?, bed.working_key()?);
    let pods = bed.pods("app.kubernetes.io/component=operator")?;
    ensure!(pods.len() == 1, "operators: {pods:?}");
    bed.delete_pod(&pods[0])?;
    bed.wait_rolled_out("tailnet-operator")?;
    operator_acts(bed)?;
    bed.expect_ready()?;
    ensure!(
        bed.pods("tsunaro.io/owner-name=team-a")? == agents,
        "the new operator replaced the agents"
    );
    ensure!(bed.working_key()? == working, "the new operator made a new working key");
    connection::query(bed)?;
    session::goes_on(bed)
}

fn api_server_restarted(bed: &Bed) -> Result<()> {
    session::goes_on(bed)?;
    let load = Load::start(bed.cluster, Allowed::ApiServerAway);
    bed.cluster.restart_apiserver()?;
    session::goes_on(bed).context("after the API server was restarted")?;
    wait_for("admission answers again", SOON, || install::admission_answers(bed))?;
    load.wait_answers()?;
    load.stop()?;
    operator_acts(bed)?;
    bed.expect_ready()?;
    connection::query(bed)?;
    session::goes_on(bed)
}

fn webhooks_deleted(bed: &Bed) -> Result<()> {
    bed.wait_rolled_out("tailnet-webhook")?;
    let pods = bed.pods("app.kubernetes.io/component=webhook")?;
    ensure!(pods.len() == 2, "webhooks: {pods:?}");
    let load = Load::start(bed.cluster, Allowed::None);
    for pod in &pods {
        bed.delete_pod(pod)?;
        bed.wait_rolled_out("tailnet-webhook")?;
    }
    load.stop()?;
    session::goes_on(bed)
}
