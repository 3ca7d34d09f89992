//! One expose: where its connections go, and what became of them. Lives on while connections of it are open.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailnet_crds::agent::{AgentExpose, BackendAddress, IngressExpose};
use tsnet::DialError;

use super::http::upstream::Upstreams;
use crate::limits::Limit;
use crate::usage::{MESSAGE_MAX, Usage};

/// What a connection was allowed by: it ends when no expose of the configuration gives this any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// From a port of the node to a backend.
    Backend { port: u16, backend: SocketAddr },
    /// To a name on a port of the node.
    Name { port: u16, name: String },
}

/// Every way of `exposes`.
pub(crate) fn ways(exposes: &[IngressExpose]) -> Vec<Way> {
    let backends = exposes.iter().filter_map(|expose| {
        Some(Way::Backend {
            port: expose.port,
            backend: address(expose.backend.as_ref()?)?,
        })
    });
    let names = exposes.iter().flat_map(|expose| {
        let names = expose.http.iter().flat_map(|http| &http.names);
        names.map(|name| Way::Name {
            port: expose.port,
            name: name.clone(),
        })
    });
    backends.chain(names).collect()
}

#[derive(Debug)]
pub(crate) struct Expose {
    /// The name never changes; everything else may, and the counters are kept.
    pub(crate) name: String,
    spec: Mutex<IngressExpose>,
    listening: AtomicBool,
    error: Mutex<Option<String>>,
    pub(crate) usage: Arc<Usage>,
    /// Connections to the backend of an http expose.
    pub(crate) upstreams: Upstreams,
}

impl Expose {
    pub(crate) fn new(spec: IngressExpose, limit: Limit, dial_timeout: Duration) -> Expose {
        Expose {
            name: spec.name.clone(),
            usage: Arc::new(Usage::new(spec.name.clone(), limit)),
            spec: Mutex::new(spec),
            listening: AtomicBool::new(false),
            error: Mutex::new(None),
            upstreams: Upstreams::new(dial_timeout),
        }
    }

    pub(crate) fn spec(&self) -> IngressExpose {
        self.spec.lock().clone()
    }

    pub(crate) fn port(&self) -> u16 {
        self.spec.lock().port
    }

    /// Where a connection that is accepted now goes; None while the Service has no address.
    pub(crate) fn backend(&self) -> Option<SocketAddr> {
        self.spec.lock().backend.as_ref().and_then(address)
    }

    /// Another backend has not been dialled yet, whatever became of the last dial.
    pub(crate) fn set_spec(&self, spec: IngressExpose) {
        let mut current = self.spec.lock();
        if current.backend != spec.backend {
            self.usage.forget_dial();
        }
        *current = spec;
    }

    /// Whether peers can connect, or why not.
    pub(crate) fn set_listening(&self, state: Result<(), String>) {
        self.listening.store(state.is_ok(), Ordering::Relaxed);
        *self.error.lock() = state.err();
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// What became of a dial to `backend`; news only while the expose still leads there.
    pub(crate) fn dialed(&self, backend: SocketAddr, result: Result<(), &DialError>) {
        let spec = self.spec.lock();
        if spec.backend.as_ref().and_then(address) == Some(backend) {
            self.usage.dialed(result);
        }
    }

    pub(crate) fn status(&self) -> AgentExpose {
        AgentExpose {
            name: self.name.clone(),
            listening: self.listening.load(Ordering::Relaxed),
            error: self.error().map(|error| error.chars().take(MESSAGE_MAX).collect()),
            last_dial: self.usage.last_dial(),
            open_connections: self.usage.open(),
            total_connections: self.usage.total(),
        }
    }
}

/// The socket address; the configuration's check lets nothing else through.
pub(crate) fn address(backend: &BackendAddress) -> Option<SocketAddr> {
    Some(SocketAddr::new(backend.address.parse::<IpAddr>().ok()?, backend.port))
}
