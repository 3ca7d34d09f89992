//! `GOMEMLIMIT` of an agent from its container's memory limit: Go's tailnet stack takes gigabytes under load unless told.

use k8s_openapi::api::core::v1::ResourceRequirements;
use tailnet_policies::quantities::Quantity;

const MIB: u64 = 1024 * 1024;
/// Used where the container has no memory limit.
const UNLIMITED: u64 = 256 * MIB;
/// Below this the garbage collector eats the processor.
const LEAST: u64 = 192 * MIB;

/// Two thirds of the container's limit, at least 192 MiB, but never above nine tenths of the limit; as Go reads it, e.g.
/// `256MiB`.
pub fn go_memory_limit(resources: &ResourceRequirements) -> String {
    let limit = resources
        .limits
        .as_ref()
        .and_then(|limits| limits.get("memory"))
        .and_then(|limit| Quantity::parse(&limit.0)?.whole_units());
    let bytes = match limit {
        Some(limit) => (limit / 3 * 2).max(LEAST).min(limit / 10 * 9),
        None => UNLIMITED,
    };
    format!("{}MiB", (bytes / MIB).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource;
    use std::collections::BTreeMap;

    fn limit(memory: &str) -> String {
        go_memory_limit(&ResourceRequirements {
            limits: Some(BTreeMap::from([(
                "memory".to_owned(),
                resource::Quantity(memory.to_owned()),
            )])),
            ..ResourceRequirements::default()
        })
    }

    #[test]
    fn follows_the_container_limit() {
        assert_eq!(limit("384Mi"), "256MiB");
        assert_eq!(limit("1Gi"), "682MiB");
        assert_eq!(limit("256Mi"), "192MiB");
        assert_eq!(limit("128Mi"), "115MiB");
        assert_eq!(limit("what"), "256MiB");
        assert_eq!(go_memory_limit(&ResourceRequirements::default()), "256MiB");
    }
}
