//! What the running agents say about themselves: `GET http://<pod>:9402/status`, read every few seconds and when asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use rand::RngExt;
use tailnet_crds::agent::{AgentStatus, FORMAT_VERSION};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::desired::tailnet_egress::HEALTH_PORT;
use crate::ownership::{labelled_egress, labelled_ingress};

/// Deadline of one read.
const DEADLINE: Duration = Duration::from_secs(3);
/// Largest status document that is read: 128 targets take far less.
const LARGEST: usize = 1024 * 1024;
/// Reads at once.
const CONCURRENCY: usize = 16;
/// Shortest time between two rounds, however often somebody asks.
const SHORTEST: Duration = Duration::from_secs(1);

/// What is known of one Pod's agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// It answered.
    Status(Box<AgentStatus>),
    /// It did not, and why.
    Failed(String),
}

/// Reads that may fail in a row before an agent's last word is given up: a lost packet is no news.
const PATIENCE: u32 = 3;

/// Latest observation per Pod UID.
#[derive(Default)]
pub struct Agents {
    seen: Mutex<HashMap<String, Seen>>,
    wake: Notify,
}

struct Seen {
    observation: Observation,
    /// Failed reads in a row.
    failures: u32,
}

impl Agents {
    /// The latest observation of a Pod; None before the first.
    pub fn of(&self, pod_uid: &str) -> Option<Observation> {
        self.seen.lock().get(pod_uid).map(|seen| seen.observation.clone())
    }

    /// Asks for a round now: something changed that agents will report soon.
    pub fn look_soon(&self) {
        self.wake.notify_one();
    }
}

/// Starts the rounds. They run on standbys too: a new leader knows its agents at once.
pub(crate) fn spawn(context: &Arc<Context>, parts: &mut JoinSet<&'static str>, stop: &CancellationToken) {
    let context = Arc::clone(context);
    let stop = stop.clone();
    parts.spawn(async move {
        let http = match client() {
            Ok(http) => http,
            Err(error) => {
                tracing::error!(%error, "cannot build the HTTP client for the agents");
                return "agent polls";
            }
        };
        loop {
            round(&context, &http).await;
            let pause = context
                .settings
                .agent_poll()
                .mul_f64(rand::rng().random_range(0.9..1.1));
            tokio::select! {
                () = stop.cancelled() => return "agent polls",
                () = tokio::time::sleep(pause) => {}
                () = async {
                    tokio::time::sleep(SHORTEST).await;
                    context.agents.wake.notified().await;
                } => {}
            }
        }
    });
}

fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .timeout(DEADLINE)
        // Agents are reached at their Pod addresses; a proxy of the environment knows nothing of them.
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

async fn round(context: &Context, http: &reqwest::Client) {
    let mut pods: Vec<Arc<Pod>> = context.stores.pods.state();
    pods.retain(|pod| is_agent(context, pod));
    let answers: Vec<(Arc<Pod>, String, Observation)> = futures::stream::iter(pods)
        .filter_map(|pod| async move {
            let uid = pod.uid()?;
            let address = pollable(&pod)?;
            Some((pod, uid, address))
        })
        .map(|(pod, uid, address)| async move {
            let observation = match read(http, &address).await {
                Ok(status) => Observation::Status(Box::new(status)),
                Err(reason) => Observation::Failed(reason),
            };
            (pod, uid, observation)
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut seen = context.agents.seen.lock();
    let mut next = HashMap::with_capacity(answers.len());
    for (pod, uid, observation) in answers {
        context.metrics.polled(matches!(observation, Observation::Status(_)));
        let before = seen.remove(&uid);
        let differs = before
            .as_ref()
            .is_none_or(|before| without_counters(&before.observation) != without_counters(&observation));
        let now = combined(before, observation);
        if differs && let Some(egress) = labelled_egress(pod.as_ref()) {
            context.queues.egress.push(egress);
        }
        if differs && let Some(ingress) = labelled_ingress(pod.as_ref()) {
            if let Some(ingress) = context.stores.ingresses.get(&ingress) {
                context
                    .queues
                    .names
                    .push(ObjectRef::new(&ingress.spec.tailnet_ref.name));
            }
            context.queues.ingress.push(ingress);
        }
        next.insert(uid, now);
    }
    *seen = next;
}

/// Whether a Pod can be an agent of an object that exists. Labels are anybody's to set: without this, whoever may create Pods
/// could have the operator ask as many addresses as he likes.
fn is_agent(context: &Context, pod: &Pod) -> bool {
    let namespace = pod.namespace();
    if labelled_egress(pod).is_some() {
        return namespace.as_deref() == Some(context.namespace());
    }
    labelled_ingress(pod)
        .is_some_and(|ingress| ingress.namespace == namespace && context.stores.ingresses.get(&ingress).is_some())
}

/// The newest observation, except that an agent's word outlives the first failed reads.
fn combined(before: Option<Seen>, observation: Observation) -> Seen {
    match (before, observation) {
        (_, observation @ Observation::Status(_)) => Seen {
            observation,
            failures: 0,
        },
        (Some(before), Observation::Failed(_))
            if matches!(before.observation, Observation::Status(_)) && before.failures + 1 < PATIENCE =>
        {
            Seen {
                failures: before.failures + 1,
                ..before
            }
        }
        (before, observation) => Seen {
            observation,
            failures: before.map_or(1, |before| before.failures + 1),
        },
    }
}

/// The address of a Pod whose agent can answer.
fn pollable(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    status.pod_ip.clone().filter(|address| !address.is_empty())
}

async fn read(http: &reqwest::Client, address: &str) -> Result<AgentStatus, String> {
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    };
    let url = format!("http://{host}:{HEALTH_PORT}/status");
    let mut answer = http
        .get(&url)
        .send()
        .await
        .map_err(|error| bounded(&error.without_url().to_string()))?;
    if !answer.status().is_success() {
        return Err(format!("answered {}", answer.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer
        .chunk()
        .await
        .map_err(|error| bounded(&error.without_url().to_string()))?
    {
        body.extend_from_slice(&chunk);
        if body.len() > LARGEST {
            return Err(format!("answered more than {LARGEST} bytes"));
        }
    }
    let status: AgentStatus =
        serde_json::from_slice(&body).map_err(|error| format!("answered something else than a status: {error}"))?;
    if status.version != FORMAT_VERSION {
        return Err(format!(
            "reports format {}, this operator reads {FORMAT_VERSION}",
            status.version
        ));
    }
    Ok(status)
}

fn bounded(text: &str) -> String {
    text.chars().take(200).collect()
}

/// The observation without what changes with every connection, so that traffic alone wakes nobody.
fn without_counters(observation: &Observation) -> Observation {
    match observation {
        Observation::Failed(reason) => Observation::Failed(reason.clone()),
        Observation::Status(status) => {
            let mut status = status.clone();
            for target in &mut status.targets {
                target.open_connections = 0;
                target.total_connections = 0;
                if let Some(dial) = &mut target.last_dial {
                    dial.at.clear();
                }
            }
            for expose in &mut status.exposes {
                expose.open_connections = 0;
                expose.total_connections = 0;
                if let Some(dial) = &mut expose.last_dial {
                    dial.at.clear();
                }
            }
            Observation::Status(status)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailnet_crds::agent::{AgentTarget, DialResult};

    fn status(ok: bool, connections: u64, at: &str) -> Observation {
        Observation::Status(Box::new(AgentStatus {
            version: FORMAT_VERSION,
            targets: vec![AgentTarget {
                name: "db".to_owned(),
                open_connections: connections,
                total_connections: connections,
                last_dial: Some(DialResult {
                    at: at.to_owned(),
                    ok,
                    ..DialResult::default()
                }),
                ..AgentTarget::default()
            }],
            ..AgentStatus::default()
        }))
    }

    #[test]
    fn a_lost_answer_is_no_news_but_silence_is() {
        let mut seen = combined(None, status(true, 1, "a"));
        for _ in 1..PATIENCE {
            seen = combined(Some(seen), Observation::Failed("timeout".to_owned()));
            assert!(matches!(seen.observation, Observation::Status(_)));
        }
        seen = combined(Some(seen), Observation::Failed("timeout".to_owned()));
        assert_eq!(seen.observation, Observation::Failed("timeout".to_owned()));
        seen = combined(Some(seen), status(true, 2, "b"));
        assert_eq!(seen.failures, 0);
    }

    #[test]
    fn traffic_is_no_news_but_a_failed_dial_is() {
        assert_eq!(
            without_counters(&status(true, 1, "a")),
            without_counters(&status(true, 9, "b"))
        );
        assert_ne!(
            without_counters(&status(true, 1, "a")),
            without_counters(&status(false, 1, "a"))
        );
    }
}
