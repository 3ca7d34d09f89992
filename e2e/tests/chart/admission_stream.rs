//! Dry-run creates without pause, right and wrong ones in turn, each of which must get its proper answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use tailnet_e2e::Cluster;

use crate::bed::{OPERATOR, TEAM};

const PAUSE: Duration = Duration::from_millis(30);
/// Fewer calls than this would say nothing about two replaced Pods.
const FEWEST: usize = 50;

#[derive(Default)]
struct Tally {
    calls: usize,
    failures: Vec<String>,
}

/// A running stream.
pub struct Stream {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Tally>>,
}

impl Stream {
    /// Starts it.
    pub fn start(cluster: &'static Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self {
            stop,
            thread: std::thread::spawn(move || calls(cluster, &stopped)),
        }
    }

    /// Ends it; an error when any call got another answer than it should.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let tally = self
            .thread
            .join()
            .map_err(|_| anyhow::anyhow!("the stream of calls panicked"))??;
        println!("  {} dry-run creates, {} failed", tally.calls, tally.failures.len());
        ensure!(
            tally.failures.is_empty(),
            "{} of {} calls failed: {}",
            tally.failures.len(),
            tally.calls,
            tally.failures.join("\n")
        );
        ensure!(tally.calls >= FEWEST, "only {} calls were made", tally.calls);
        Ok(())
    }
}

fn calls(cluster: &'static Cluster, stop: &AtomicBool) -> Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tsunaro.io", "v1alpha1", "TailnetEgress"));
        let kind = ApiResource {
            plural: "tailnetegresses".to_owned(),
            ..kind
        };
        let egresses: Api<DynamicObject> = Api::namespaced_with(cluster.client()?, OPERATOR, &kind);
        let (start, mut tally) = (Instant::now(), Tally::default());
        while !stop.load(Ordering::Relaxed) {
            let right = tally.calls.is_multiple_of(2);
            tally.calls += 1;
            if let Err(error) = call(&egresses, &kind, right).await {
                tally
                    .failures
                    .push(format!("after {:.2} s: {error:#}", start.elapsed().as_secs_f64()));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(tally)
    })
}

/// One call. A right object comes back with the default tag (the mutating webhook may be skipped by the API server, so its
/// absence is a failure too); a wrong one is denied by its rule.
async fn call(egresses: &Api<DynamicObject>, kind: &ApiResource, right: bool) -> Result<()> {
    let address = if right { "192.0.2.10" } else { "10.0.0.300" };
    let object = DynamicObject::new("streamed", kind).data(json!({"spec": {
        "tailnetRef": {"name": "demo"},
        "consumerNamespaces": [TEAM],
        "targets": [{"name": "streamed-db", "address": address, "port": 5432}],
    }}));
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match egresses.create(&dry_run, &object).await {
        Ok(back) if right => {
            let tag = &back.data["spec"]["tag"];
            ensure!(
                tag == "tag:egress-streamed",
                "a right egress came back with the tag {tag}"
            );
            Ok(())
        }
        Ok(_) => anyhow::bail!("a wrong egress was accepted"),
        Err(kube::Error::Api(status)) if !right && status.code == 422 => {
            ensure!(
                status.message.contains("TN203"),
                "denied for another reason: {}",
                status.message
            );
            Ok(())
        }
        Err(error) => Err(error).context(if right { "a right egress" } else { "a wrong egress" }),
    }
}
