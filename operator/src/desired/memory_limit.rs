//! `GOMEMLIMIT` of an agent from its container's memory limit: Go's tailnet stack takes gigabytes under load unless told.

use k8s_openapi::api::core::v1::ResourceRequirements;

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
        .and_then(|limit| bytes(&limit.0));
    let bytes = match limit {
        Some(limit) => (limit / 3 * 2).max(LEAST).min(limit / 10 * 9),
        None => UNLIMITED,
    };
    format!("{}MiB", (bytes / MIB).max(1))
}

/// Bytes of a Kubernetes quantity; None for what is not one.
pub fn bytes(quantity: &str) -> Option<u64> {
    let milli = milli(quantity)?;
    u64::try_from(milli / 1000).ok()
}

/// A quantity in thousandths of its unit, so that `500m` and `0.5`, `1Gi` and `1024Mi` compare equal.
pub fn milli(quantity: &str) -> Option<i128> {
    let split = quantity
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.len() > 9 || whole.len() > 18 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let unit: i128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_i128.pow(2),
        "G" => 1000 * 1000_i128.pow(3),
        "T" => 1000 * 1000_i128.pow(4),
        "Ki" => 1000 * 1024,
        "Mi" => 1000 * 1024_i128.pow(2),
        "Gi" => 1000 * 1024_i128.pow(3),
        "Ti" => 1000 * 1024_i128.pow(4),
        _ => return None,
    };
    digits.checked_mul(unit).map(|product| product / scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use std::collections::BTreeMap;

    fn limit(memory: &str) -> String {
        go_memory_limit(&ResourceRequirements {
            limits: Some(BTreeMap::from([("memory".to_owned(), Quantity(memory.to_owned()))])),
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

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        assert_eq!(milli("500m"), milli("0.5"));
        assert_eq!(milli("1Gi"), milli("1024Mi"));
        assert_eq!(milli("1.5k"), milli("1500"));
        assert_eq!(bytes("1M"), Some(1_000_000));
        for wrong in ["", "Mi", "1x", "1e3", "-", "."] {
            assert_eq!(milli(wrong), None, "{wrong}");
        }
    }
}
