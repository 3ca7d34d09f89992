//! What concerns the Go runtime of the whole process, not one node.

use crate::error::Error;
use crate::ffi;

/// Sets the soft limit of the Go heap in bytes, as `GOMEMLIMIT` would. Without a limit the heap grows to more than 1 GiB under
/// a few fast streams; near the limit the collector costs throughput, so give at least 192 MiB where that is possible.
///
/// # Errors
/// When the Go side panics.
pub fn set_memory_limit(bytes: u64) -> Result<(), Error> {
    ffi::memory_limit(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Version of the module tailscale.com that is built in, such as `v1.102.5`.
///
/// # Errors
/// When the Go side panics.
pub fn client_version() -> Result<String, Error> {
    ffi::version()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_built_in_version_is_the_one_of_go_mod() {
        let version = super::client_version().unwrap();
        let go_mod = include_str!("../go/go.mod");
        assert!(go_mod.contains(&format!("tailscale.com {version}\n")), "{version}");
    }
}
