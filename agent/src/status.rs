//! `GET /status`: what the operator reads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use futures::future::join_all;
use tailnet_crds::agent::{AgentStatus, AgentTarget, FORMAT_VERSION};
use tokio::sync::watch;

use crate::args::Mode;
use crate::config_file::ConfigState;
use crate::egress::Targets;
use crate::ingress::Exposes;
use crate::membership::Membership;
use crate::target::Target;
use crate::usage::MESSAGE_MAX;

/// How long the name of a target may take to resolve.
const RESOLVE: Duration = Duration::from_secs(2);

/// Where the status is taken from.
#[derive(Clone, Debug)]
pub struct StatusSource {
    /// What this agent does.
    pub mode: Mode,
    /// The node.
    pub membership: Membership,
    /// The configuration.
    pub config: watch::Receiver<ConfigState>,
    /// The targets of an egress.
    pub targets: Targets,
    /// The exposes of an ingress.
    pub exposes: Exposes,
}

/// The route `/status`.
pub fn router(source: StatusSource) -> Router {
    Router::new()
        .route(
            "/status",
            get(|State(source): State<StatusSource>| async move { Json(source.status().await) }),
        )
        .with_state(source)
}

impl StatusSource {
    /// The status now. Takes at most about two seconds, when names do not resolve.
    pub async fn status(&self) -> AgentStatus {
        let config = self.config.borrow().clone();
        let targets = self.targets.all();
        AgentStatus {
            version: FORMAT_VERSION,
            mode: self.mode.as_str().to_owned(),
            node: self.membership.agent_node(),
            config_sha256: config.loaded.map(|loaded| loaded.sha256.clone()).unwrap_or_default(),
            config_error: config.error,
            login_error: self.membership.login_error(),
            targets: join_all(targets.iter().map(|target| self.target(target))).await,
            exposes: self.exposes.status(),
            certificate: self.exposes.certificate(),
        }
    }

    async fn target(&self, target: &Target) -> AgentTarget {
        let (router, route_error) = match self.membership.node() {
            Some(node) => match node.route(&target.spec().address, RESOLVE).await {
                Ok(route) => (route.routed.then_some(route.peer), None),
                // The node is being replaced, which says nothing about the target.
                Err(tsnet::Error::Closed) => (None, None),
                Err(error) => {
                    tracing::debug!(%error, target_name = target.name, "asking for the route");
                    (None, Some(error.to_string().chars().take(MESSAGE_MAX).collect()))
                }
            },
            None => (None, None),
        };
        AgentTarget {
            name: target.name.clone(),
            listening: target.listening.load(Ordering::Relaxed),
            routed: router.is_some(),
            router,
            route_error,
            last_dial: target.usage.last_dial(),
            open_connections: target.usage.open(),
            total_connections: target.usage.total(),
        }
    }
}
