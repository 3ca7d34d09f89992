//! What a webhook adds to a CREATE at a real API server: ours beside a pair in Go that allows everything, both beside the
//! same CREATE without a webhook, in interleaved rounds of one run.

mod parties;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tailnet_crds::{Kind, TailnetIngress};
use tailnet_e2e::Cluster;
use tailnet_e2e::cluster::Options;
use tailnet_e2e::progress::Progress;
use tailnet_policies::{Config, Snapshot, with_defaults};

use self::parties::Asked;
use super::report::{Row, median};

const REFERENCE: &str = "mutating and validating webhook in Go that allow everything";
/// CREATEs of one round and one party.
const CREATES: usize = 48;
/// Clients at once, in the cases with several.
const CLIENTS: usize = 16;
/// Namespace of the objects that are only there; nobody is asked about them.
const FILLED: &str = "default";
/// Objects beside which the last cases are measured.
const OBJECTS: usize = 10_000;

/// All cases.
pub fn measure(rounds: u32) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let cluster = Cluster::up(Options::api("bench-webhook"))?;
    let _parties = parties::install(&cluster)?;
    let client = {
        let _inside = runtime.enter();
        cluster.client()?
    };
    runtime.block_on(wait_called(&client))?;
    let bench = Bench {
        client,
        runtime,
        rounds,
    };
    let mut rows = bench.latencies("no other object")?;
    let progress = Progress::start(format!("making {OBJECTS} objects"));
    bench.runtime.block_on(fill(&bench.client))?;
    progress.done();
    rows.extend(bench.latencies(&format!("beside {OBJECTS} objects"))?);
    rows.extend(standing(&cluster)?);
    cluster.down()?;
    Ok(rows)
}

/// What ours and the reference need without being asked.
fn standing(cluster: &Cluster) -> Result<Vec<Row>> {
    let case = format!("standing by, {OBJECTS} objects");
    let (ours, noop) = parties::resident(cluster)?;
    let memory = Row::lower(
        case.clone(),
        "resident memory",
        "MiB",
        (vec![ours], vec![noop]),
        REFERENCE,
    );
    let ready = parties::time_to_ready(cluster)?.as_secs_f64() * 1e3;
    // Nobody else has to list the objects first: the reference is the time that the API server takes to list them once.
    let started = Instant::now();
    cluster
        .kubectl(&["get", "tailnetingresses", "--all-namespaces", "-o", "name"])?
        .success()?;
    let listing = started.elapsed().as_secs_f64() * 1e3;
    let start = Row::lower(
        case,
        "from start to ready",
        "ms",
        (vec![ready], vec![listing]),
        "kubectl get of the same objects",
    );
    Ok(vec![memory, start])
}

struct Bench {
    client: Client,
    runtime: tokio::runtime::Runtime,
    rounds: u32,
}

impl Bench {
    fn latencies(&self, beside: &str) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (defaults, all_set) in [("defaults to fill in", false), ("every default set", true)] {
            for (how, clients) in [("one client", 1), ("16 clients", CLIENTS)] {
                let case = format!("CREATE, {defaults}, {how}, {beside}");
                let progress = Progress::start(&case);
                let added = self.runtime.block_on(self.added(clients, all_set))?;
                progress.done();
                rows.push(Row::lower(case, "added latency", "ms", added, REFERENCE));
            }
        }
        Ok(rows)
    }

    /// Milliseconds that ours and the reference add to the median CREATE, per round.
    async fn added(&self, clients: usize, all_set: bool) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut ours, mut noop) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            let mut order = [Asked::Nobody, Asked::Noop, Asked::Ours];
            order.rotate_left(round as usize % 3);
            let mut medians = [f64::NAN; 3];
            for asked in order {
                medians[asked as usize] = median(&creates(&self.client, asked, clients, all_set).await?);
            }
            let [nobody, with_noop, with_ours] = medians;
            ours.push(with_ours - nobody);
            noop.push(with_noop - nobody);
        }
        Ok((ours, noop))
    }
}

/// An ingress as people write it.
fn ingress(name: &str) -> Value {
    json!({
        "apiVersion": "tsunaro.io/v1alpha1",
        "kind": "TailnetIngress",
        "metadata": {"name": name},
        "spec": {"tailnetRef": {"name": "demo"}, "allowFrom": [],
            "exposes": [{"name": "db", "port": 5432, "backend": {"service": "db", "port": 5432}}]},
    })
}

/// The same with what the webhook would fill in.
fn complete(object: &Value, asked: Asked) -> Value {
    let mut snapshot = Snapshot::closed(Config::default());
    snapshot.upsert(Kind::Tailnet, parties::tailnet());
    with_defaults(Kind::TailnetIngress, Some(asked.namespace()), object, &snapshot)
}

/// Milliseconds of each of [`CREATES`] CREATEs that all succeed; the objects are gone afterwards.
async fn creates(client: &Client, asked: Asked, clients: usize, all_set: bool) -> Result<Vec<f64>> {
    let api: Api<TailnetIngress> = Api::namespaced(client.clone(), asked.namespace());
    let took = futures::stream::iter(0..CREATES)
        .map(|number| {
            let api = api.clone();
            async move {
                let written = ingress(&format!("db-{number}"));
                let object = if all_set { complete(&written, asked) } else { written };
                let object: TailnetIngress = serde_json::from_value(object)?;
                let start = Instant::now();
                let made = api.create(&PostParams::default(), &object).await?;
                let took = start.elapsed().as_secs_f64() * 1e3;
                ensure!(
                    asked != Asked::Ours || made.spec.tag.is_some(),
                    "our webhook was not asked: {made:?}"
                );
                Ok(took)
            }
        })
        .buffer_unordered(clients)
        .collect::<Vec<Result<f64>>>()
        .await
        .into_iter()
        .collect::<Result<Vec<f64>>>()?;
    api.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    Ok(took)
}

/// Makes [`OBJECTS`] objects of which no webhook is asked, and which ours then knows.
async fn fill(client: &Client) -> Result<()> {
    let api: Api<TailnetIngress> = Api::namespaced(client.clone(), FILLED);
    futures::stream::iter(0..OBJECTS)
        .map(|number| {
            let api = api.clone();
            async move {
                let object = serde_json::from_value(ingress(&format!("other-{number}")))?;
                api.create(&PostParams::default(), &object).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(CLIENTS)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// Waits until the API server follows the configurations and our webhook knows the Tailnet.
async fn wait_called(client: &Client) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match creates(client, Asked::Ours, 1, false).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                bail!("the API server does not ask our webhook: {error}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}
