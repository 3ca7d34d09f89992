//! The start of every metrics registry.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::version;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// A registry whose metrics carry `prefix` (e.g. `tailnet_webhook`), with `<prefix>_build_info{version="…"} 1` in it.
pub fn registry(prefix: &str) -> Registry {
    let mut registry = Registry::with_prefix(prefix);
    let build = Family::<Build, Gauge>::default();
    build.get_or_create(&Build { version: version() }).set(1);
    registry.register("build_info", "Version and commit of this process; always 1", build);
    registry
}
