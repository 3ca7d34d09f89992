//! `--probe`: a connection to every target, made by the agents now.
//!
//! The agent already listens on a port per target, and connects to that target and nothing else when somebody connects there.
//! So a port-forward to that port is a probe: no endpoint is needed that could be told where to connect. What became of the
//! dial is in the agent's status document, which is read the same way. No NetworkPolicy is asked on this way, so that the
//! consumers' right to connect is not part of the answer.

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use tailnet_crds::agent::{AgentConfig, AgentStatus, DialResult, FORMAT_VERSION};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Port of the agents' health endpoint.
const HEALTH_PORT: u16 = 9402;
/// Longest wait for one answer of an agent.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest wait for the dials of one agent: its own limit is 10 s.
const DIALS: Duration = Duration::from_secs(13);
/// Pause between two looks at the status.
const PAUSE: Duration = Duration::from_millis(200);
/// Most bytes of a status document.
const LARGEST: usize = 1 << 20;

/// What a probe found.
#[derive(Debug, Default)]
pub struct Probe {
    /// Every agent that was asked, by the name of its Pod.
    pub agents: BTreeMap<String, Agent>,
}

/// One agent.
#[derive(Debug)]
pub struct Agent {
    /// What it says of itself, or why it could not be asked.
    pub status: Result<AgentStatus, ProbeError>,
    /// What became of the dial, by target.
    pub dials: BTreeMap<String, Result<DialResult, ProbeError>>,
}

/// Why nothing was found out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProbeError {
    /// No port-forward.
    #[error("no port-forward to Pod {pod}: {said}; it needs the right to create and get pods/portforward")]
    Forward {
        /// The Pod.
        pod: String,
        /// The client's words.
        said: String,
    },
    /// The agent did not answer.
    #[error("agent {pod} does not answer on its status port: {said}")]
    Status {
        /// The Pod.
        pod: String,
        /// What went wrong.
        said: String,
    },
    /// The agent is of another version.
    #[error("agent {pod} reports format {found}, this plugin reads {FORMAT_VERSION}")]
    Format {
        /// The Pod.
        pod: String,
        /// What it reports.
        found: u32,
    },
    /// The target has no port in the configuration.
    #[error("agent {pod} has not loaded the target yet")]
    NotLoaded {
        /// The Pod.
        pod: String,
    },
    /// Nothing came of the dial in time.
    #[error("agent {pod} has not told the end of a dial within {} s", DIALS.as_secs())]
    NoEnd {
        /// The Pod.
        pod: String,
    },
}

/// Probes `targets` through the agents in `running`, all at once.
pub async fn run(pods: &Api<Pod>, running: Vec<String>, config: Option<&AgentConfig>, targets: &[String]) -> Probe {
    let asked = running.into_iter().map(|pod| async move {
        let agent = one(pods, &pod, config, targets).await;
        (pod, agent)
    });
    Probe {
        agents: futures::future::join_all(asked).await.into_iter().collect(),
    }
}

async fn one(pods: &Api<Pod>, pod: &str, config: Option<&AgentConfig>, targets: &[String]) -> Agent {
    let none = |error: ProbeError| Agent {
        status: Err(error),
        dials: BTreeMap::new(),
    };
    let mut asking = match Asking::start(pods, pod).await {
        Ok(asking) => asking,
        Err(error) => return none(error),
    };
    let before = match asking.status().await {
        Ok(status) => status,
        Err(error) => return none(error),
    };
    let mut dials = BTreeMap::new();
    let mut ports = BTreeMap::new();
    for target in targets {
        let port = config.and_then(|config| config.targets.iter().find(|known| known.name == *target));
        match port.filter(|_| {
            before
                .targets
                .iter()
                .any(|known| known.name == *target && known.listening)
        }) {
            Some(known) => drop(ports.insert(target.as_str(), known.listen_port)),
            None => drop(dials.insert(target.clone(), Err(ProbeError::NotLoaded { pod: pod.to_owned() }))),
        }
    }
    if ports.is_empty() {
        return Agent {
            status: Ok(before),
            dials,
        };
    }
    let numbers: Vec<u16> = ports.values().copied().collect();
    // Held until the end: a connection that is given up does not say what would have become of it.
    let held = match timeout(ANSWER, pods.portforward(pod, &numbers)).await {
        Ok(Ok(held)) => held,
        Ok(Err(error)) => return none(forward(pod, &error)),
        Err(_) => return none(forward(pod, &"no answer in time")),
    };
    let deadline = Instant::now() + DIALS;
    let mut latest = before.clone();
    loop {
        for name in ports.keys() {
            let at = |status: &AgentStatus| {
                let target = status.targets.iter().find(|target| target.name == *name)?;
                target.last_dial.clone()
            };
            let (was, is) = (at(&before), at(&latest));
            if let Some(dial) = is.filter(|is| was.as_ref().is_none_or(|was| was.at != is.at)) {
                dials.insert((*name).to_owned(), Ok(dial));
            }
        }
        if ports.keys().all(|name| dials.contains_key(*name)) || Instant::now() >= deadline {
            break;
        }
        sleep(PAUSE).await;
        match timeout_at(deadline, asking.status()).await {
            Ok(Ok(status)) => latest = status,
            Ok(Err(error)) => {
                for name in ports.keys() {
                    dials.entry((*name).to_owned()).or_insert_with(|| Err(error.clone()));
                }
            }
            Err(_) => break,
        }
    }
    held.abort();
    for name in ports.keys() {
        let no_end = || Err(ProbeError::NoEnd { pod: pod.to_owned() });
        dials.entry((*name).to_owned()).or_insert_with(no_end);
    }
    Agent {
        status: Ok(latest),
        dials,
    }
}

fn forward(pod: &str, source: &dyn std::fmt::Display) -> ProbeError {
    ProbeError::Forward {
        pod: pod.to_owned(),
        said: source.to_string(),
    }
}

/// A connection to the agent's health endpoint.
struct Asking<'a> {
    pod: &'a str,
    send: SendRequest<Empty<Bytes>>,
}

impl<'a> Asking<'a> {
    async fn start(pods: &Api<Pod>, pod: &'a str) -> Result<Self, ProbeError> {
        let mut forwarder = match timeout(ANSWER, pods.portforward(pod, &[HEALTH_PORT])).await {
            Ok(Ok(forwarder)) => forwarder,
            Ok(Err(error)) => return Err(forward(pod, &error)),
            Err(_) => return Err(forward(pod, &"no answer in time")),
        };
        let stream = forwarder
            .take_stream(HEALTH_PORT)
            .ok_or_else(|| forward(pod, &"no stream"))?;
        let shaken = timeout(ANSWER, handshake(TokioIo::new(stream))).await;
        let (send, connection) = match shaken {
            Ok(Ok(pair)) => pair,
            Ok(Err(error)) => return Err(silent(pod, &error)),
            Err(_) => return Err(silent(pod, &"no answer in time")),
        };
        tokio::spawn(async move {
            // Its end is told by the requests that fail.
            let _ = connection.await;
            drop(forwarder);
        });
        Ok(Self { pod, send })
    }

    async fn status(&mut self) -> Result<AgentStatus, ProbeError> {
        match timeout(ANSWER, self.get()).await {
            Ok(Ok(status)) if status.version == FORMAT_VERSION => Ok(status),
            Ok(Ok(status)) => Err(ProbeError::Format {
                pod: self.pod.to_owned(),
                found: status.version,
            }),
            Ok(Err(error)) => Err(silent(self.pod, &error)),
            Err(_) => Err(silent(self.pod, &"no answer in time")),
        }
    }

    async fn get(&mut self) -> Result<AgentStatus, Box<dyn std::error::Error + Send + Sync>> {
        let request = http::Request::get("/status")
            .header("host", "agent")
            .body(Empty::new())?;
        self.send.ready().await?;
        let answer = self.send.send_request(request).await?;
        if !answer.status().is_success() {
            return Err(format!("it answered {}", answer.status()).into());
        }
        let body = Limited::new(answer.into_body(), LARGEST).collect().await?.to_bytes();
        Ok(serde_json::from_slice(&body)?)
    }
}

fn silent(pod: &str, source: &dyn std::fmt::Display) -> ProbeError {
    ProbeError::Status {
        pod: pod.to_owned(),
        said: source.to_string(),
    }
}
