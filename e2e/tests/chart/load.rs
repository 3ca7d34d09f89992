//! Calls without pause that each must get its proper answer: dry-run creates, right and wrong ones in turn, and writers that
//! make, change and remove objects for real.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use tailnet_crds::Kind;
use tailnet_e2e::{Cluster, wait_for};

use crate::bed::{OPERATOR, SOON, TEAM};

const PAUSE: Duration = Duration::from_millis(30);
/// Fewer calls than this of one thread would say nothing about two replaced Pods.
const FEWEST: usize = 50;
/// Threads that write for real.
const WRITERS: usize = 2;

/// Whose failures are allowed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Nobody's.
    None,
    /// The API server's own: it is away for a while. What it says about a webhook is never allowed.
    ApiServerAway,
}

struct Tally {
    /// Shared with who waits for answers.
    answered: Arc<AtomicUsize>,
    calls: usize,
    /// Failures that are allowed.
    away: usize,
    failures: Vec<String>,
}

impl Tally {
    fn new(answered: Arc<AtomicUsize>) -> Self {
        Self {
            answered,
            calls: 0,
            away: 0,
            failures: Vec::new(),
        }
    }
}

struct Thread {
    name: String,
    answered: Arc<AtomicUsize>,
    handle: JoinHandle<Result<Tally>>,
}

/// The running load.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

impl Load {
    /// Starts it.
    pub fn start(cluster: &'static Cluster, allowed: Allowed) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |name: String, writer: Option<usize>| {
            let (stopped, answered) = (Arc::clone(&stop), Arc::new(AtomicUsize::new(0)));
            let tally = Tally::new(Arc::clone(&answered));
            let handle = std::thread::spawn(move || match writer {
                None => dry_runs(cluster, &stopped, allowed, tally),
                Some(writer) => writes(cluster, &stopped, allowed, tally, writer),
            });
            Thread { name, answered, handle }
        };
        let mut threads = vec![thread("dry-run creates".to_owned(), None)];
        threads.extend((0..WRITERS).map(|writer| thread(format!("writes of writer {writer}"), Some(writer))));
        Self { stop, threads }
    }

    /// Waits until every thread has got enough further answers to say something.
    pub fn wait_answers(&self) -> Result<()> {
        let answers = || {
            self.threads
                .iter()
                .map(|thread| thread.answered.load(Ordering::Relaxed))
        };
        let before: Vec<_> = answers().collect();
        wait_for("every thread of the load gets answers", SOON, || {
            let more: Vec<_> = answers().zip(&before).map(|(now, before)| now - before).collect();
            ensure!(more.iter().all(|more| *more >= FEWEST), "{more:?}");
            Ok::<_, anyhow::Error>(())
        })
    }

    /// Ends it; an error when any call got another answer than it should.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let mut wrong = Vec::new();
        for Thread { name, handle, .. } in self.threads {
            let tally = handle.join().map_err(|_| anyhow::anyhow!("{name} panicked"))??;
            println!(
                "  {} {name}, {} failed, {} met no API server",
                tally.calls,
                tally.failures.len(),
                tally.away
            );
            if !tally.failures.is_empty() {
                wrong.push(format!(
                    "{} of {} {name}: {}",
                    tally.failures.len(),
                    tally.calls,
                    tally.failures.join("\n")
                ));
            }
            let answered = tally.calls - tally.away;
            if answered < FEWEST {
                wrong.push(format!("only {answered} {name} got an answer"));
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}

fn resource(kind: Kind) -> ApiResource {
    let erased = ApiResource::from_gvk(&GroupVersionKind::gvk(
        tailnet_crds::GROUP,
        tailnet_crds::VERSION,
        kind.as_str(),
    ));
    ApiResource {
        plural: kind.plural().to_owned(),
        ..erased
    }
}

/// Counts a call. Whether it failed.
fn count(tally: &mut Tally, start: Instant, allowed: Allowed, done: Result<()>) -> bool {
    tally.calls += 1;
    let Err(error) = done else {
        tally.answered.fetch_add(1, Ordering::Relaxed);
        return false;
    };
    if allowed == Allowed::ApiServerAway && is_away(&error) {
        tally.away += 1;
    } else {
        tally
            .failures
            .push(format!("after {:.2} s: {error:#}", start.elapsed().as_secs_f64()));
    }
    true
}

/// Whether the API server itself could not be talked to, or was on its way up or down.
fn is_away(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => {
            let starting = status.message.contains("not yet ready to handle request");
            // 404: what was to be changed or removed was never made.
            (status.code >= 500 || status.code == 404 || starting) && !status.message.contains("webhook")
        }
        Some(_) => true,
        // A wrong answer is a wrong answer.
        None => false,
    }
}

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(future)
}

fn dry_runs(cluster: &'static Cluster, stop: &AtomicBool, allowed: Allowed, mut tally: Tally) -> Result<Tally> {
    block_on(async {
        let kind = resource(Kind::TailnetEgress);
        let egresses: Api<DynamicObject> = Api::namespaced_with(cluster.client()?, OPERATOR, &kind);
        let start = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let right = tally.calls.is_multiple_of(2);
            count(&mut tally, start, allowed, dry_run(&egresses, &kind, right).await);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(tally)
    })
}

/// One call. A right object comes back with the default tag (the mutating webhook may be skipped by the API server, so its
/// absence is a failure too); a wrong one is denied by its rule.
async fn dry_run(egresses: &Api<DynamicObject>, kind: &ApiResource, right: bool) -> Result<()> {
    // That localhost is no target is not in the schema: only the webhook says it.
    let address = if right { "192.0.2.10" } else { "localhost" };
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

/// Makes a site, changes its spec, labels it, removes it, and so on. Sites, because nothing is made for them.
fn writes(
    cluster: &'static Cluster,
    stop: &AtomicBool,
    allowed: Allowed,
    mut tally: Tally,
    writer: usize,
) -> Result<Tally> {
    block_on(async {
        let kind = resource(Kind::TailnetSite);
        let sites: Api<DynamicObject> = Api::all_with(cluster.client()?, &kind);
        let start = Instant::now();
        let mut number = 0_usize;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            // The name says when, so that two loads never meet.
            let name = format!("load-{writer}-{}-{number}", jiff::Timestamp::now().as_millisecond());
            let prefix = format!("10.{}.{}.{}/32", 120 + writer, number / 256 % 256, number % 256);
            let site = DynamicObject::new(&name, &kind)
                .data(json!({"spec": {"tailnetRef": {"name": "demo"}, "prefixes": [prefix]}}));
            let made = sites.create(&PostParams::default(), &site).await;
            let failed = count(&mut tally, start, allowed, done(made, "create"));
            tokio::time::sleep(PAUSE).await;
            if failed {
                continue;
            }
            for (what, patch) in [
                ("patch of the spec", json!({"spec": {"description": "under load"}})),
                ("label", json!({"metadata": {"labels": {"load": "yes"}}})),
            ] {
                let patched = sites.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
                count(&mut tally, start, allowed, done(patched, what));
                tokio::time::sleep(PAUSE).await;
            }
            let gone = sites.delete(&name, &DeleteParams::default()).await;
            count(&mut tally, start, allowed, done(gone, "delete"));
            tokio::time::sleep(PAUSE).await;
        }
        clear(&sites, writer).await?;
        Ok(tally)
    })
}

fn done<T>(result: kube::Result<T>, what: &'static str) -> Result<()> {
    result.map(drop).context(what)
}

/// Removes what calls without an answer may have left.
async fn clear(sites: &Api<DynamicObject>, writer: usize) -> Result<()> {
    let prefix = format!("load-{writer}-");
    tailnet_e2e::wait_for_async("nothing of the load is left", SOON, || async {
        let left = sites.list(&ListParams::default()).await?;
        let left: Vec<_> = left.items.iter().map(ResourceExt::name_any).collect();
        let ours: Vec<_> = left.iter().filter(|name| name.starts_with(&prefix)).collect();
        for name in &ours {
            sites.delete(name, &DeleteParams::default()).await?;
        }
        ensure!(ours.is_empty(), "{ours:?}");
        Ok::<_, anyhow::Error>(())
    })
    .await
}
