//! Bringing a cluster up, step by step.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::daemons::Daemons;
use super::owner::{self, Owner};
use super::{Cluster, Options, RECORD, Record, Tier, control_plane, dns, node};
use crate::boxed::client::Starter;
use crate::boxed::init;
use crate::boxed::slot::write_whole;
use crate::headscale::{self, Headscale};
use crate::prerequisites::{self, Need};
use crate::tools::{self, Tool};
use crate::{images, kept_logs, tls};

/// The servers that a cluster needs.
fn needed(options: &Options) -> Vec<Tool> {
    let mut tools = vec![Tool::KubeApiserver, Tool::Kubectl, Tool::Etcd];
    if options.headscale {
        tools.push(Tool::Headscale);
    }
    if options.controllers || options.tier == Tier::Full {
        tools.push(Tool::KubeControllerManager);
    }
    if options.tier == Tier::Full {
        tools.extend([
            Tool::KubeScheduler,
            Tool::Kubelet,
            Tool::KubeProxy,
            Tool::KubeRouter,
            Tool::Coredns,
        ]);
    }
    tools
}

struct Clock {
    start: Instant,
    laps: Vec<(String, u64)>,
}

impl Clock {
    fn lap(&mut self, step: &str) {
        self.laps.push((
            step.to_owned(),
            u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
        ));
    }
}

pub(super) fn up(options: Options) -> Result<Cluster> {
    let mut needs = vec![Need::Api];
    if options.tier == Tier::Full {
        needs.push(Need::Node);
    }
    prerequisites::ensure_present(&needs)?;
    tools::ensure(&needed(&options))?;
    let archives = if options.tier == Tier::Full {
        images::node_images()?
    } else {
        Vec::new()
    };
    tls::install_provider();

    let clock = Clock {
        start: Instant::now(),
        laps: Vec::new(),
    };
    let (state, owner) = owner::make_box(&options)?;
    let daemons = match Daemons::new(Starter::inside(&state.dir), state.dir.join("daemons")) {
        Ok(daemons) => daemons,
        Err(error) => return Err(give_up(owner, &state, error)),
    };
    let record = Record {
        tier: options.tier,
        headscale: options.headscale,
        timings: Vec::new(),
    };
    let mut cluster = Cluster {
        state,
        record,
        daemons,
        owner,
    };
    match fill(&mut cluster, &options, &archives, clock) {
        Ok(()) => Ok(cluster),
        Err(error) => {
            let logs = kept_logs::keep(cluster.dir(), &format!("{}-up", cluster.name()));
            let error = match logs {
                Ok(folder) => error.context(format!(
                    "cluster {} did not come up; logs are in {}",
                    cluster.name(),
                    folder.display()
                )),
                Err(_) => error.context(format!("cluster {} did not come up", cluster.name())),
            };
            let owner = cluster.owner.take();
            Err(give_up(owner, &cluster.state, error))
        }
    }
}

/// Removes a half-made box.
fn give_up(owner: Option<Owner>, state: &crate::boxed::slot::BoxState, error: anyhow::Error) -> anyhow::Error {
    let ended = match owner {
        Some(mut owner) => owner.end(),
        None => owner::end_foreign(state),
    };
    match ended {
        Ok(()) => error,
        Err(second) => error.context(format!("and its box could not be removed: {second:#}")),
    }
}

fn fill(cluster: &mut Cluster, options: &Options, archives: &[std::path::PathBuf], mut clock: Clock) -> Result<()> {
    let state = cluster.state.clone();
    let daemons = cluster.daemons.clone();
    clock.lap("box");
    let full = options.tier == Tier::Full;
    let address = state.node_address();
    let resolver = if full { control_plane::DNS } else { "127.0.0.1" };
    init::write_names(
        &state.dir,
        &format!(
            "127.0.0.1 localhost\n{address} {} {}\n",
            control_plane::NODE,
            headscale::HOST
        ),
        resolver,
    )?;
    if full {
        node::start_containerd(&state, &daemons)?;
    }
    control_plane::write_credentials(&state)?;
    control_plane::start_api(&state, &daemons)?;
    let headscale = options
        .headscale
        .then(|| Headscale::begin(&state, &daemons))
        .transpose()?;
    clock.lap("processes started");
    // Images are unpacked while the API server starts.
    let importing = full.then(|| {
        let (state, archives) = (state.clone(), archives.to_vec());
        std::thread::spawn(move || node::import_at_start(&state, &archives))
    });
    if let Some(headscale) = &headscale {
        headscale.finish()?;
        clock.lap("Headscale ready");
    }
    cluster
        .wait_api_ready(Duration::from_secs(60))
        .with_context(|| tail(&daemons, "kube-apiserver"))?;
    clock.lap("API server ready");
    if full || options.controllers {
        control_plane::start_controllers(&state, &daemons)?;
    }
    if full {
        control_plane::start_scheduler(&state, &daemons)?;
        dns::apply(cluster)?;
        if let Some(importing) = importing {
            importing
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("importing images panicked")))?;
            clock.lap("images imported");
        }
        node::start(&state, &daemons)?;
        node::wait_ready(cluster, Duration::from_secs(60)).with_context(|| tail(&daemons, "kubelet"))?;
        node::start_policies(&state, &daemons)?;
        clock.lap("node ready");
    }
    if full || options.controllers {
        node::wait_default_service_account(cluster, Duration::from_secs(30))
            .with_context(|| tail(&daemons, "kube-controller-manager"))?;
        clock.lap("default ServiceAccount");
    }
    if full {
        dns::wait_ready(cluster, Duration::from_secs(60)).with_context(|| tail(&daemons, "kubelet"))?;
        clock.lap("DNS ready");
    }
    all_running(&daemons)?;
    cluster.record.timings = clock.laps;
    write_whole(
        &cluster.state.dir.join(RECORD),
        &serde_json::to_string_pretty(&cluster.record)?,
    )
}

/// A daemon that ended at once would show later, as something else.
fn all_running(daemons: &Daemons) -> Result<()> {
    for name in daemons.names() {
        if let Some(exit) = daemons.process(&name)?.try_wait()? {
            bail!("{name} ended: {exit}; {}", tail(daemons, &name));
        }
    }
    Ok(())
}

fn tail(daemons: &Daemons, name: &str) -> String {
    let log = daemons
        .process(name)
        .map(|process| process.log_tail(15))
        .unwrap_or_default();
    format!("end of {name}'s log:\n{log}")
}
