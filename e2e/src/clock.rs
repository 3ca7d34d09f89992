//! Programs whose clock is wrong, as on a node without NTP.

use anyhow::Result;

use crate::prerequisites::{self, Need};

/// Debian's libfaketime for programs with threads.
pub const LIBRARY: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"
} else {
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
};

/// Environment of a program that is linked with the C library and shall see the time shifted by `days`; its monotonic clock
/// stays true, as on a machine whose clock is wrong.
///
/// # Errors
/// When libfaketime cannot be installed.
pub fn shifted(days: i32) -> Result<Vec<(&'static str, String)>> {
    prerequisites::ensure_present(&[Need::Clock])?;
    Ok(vec![
        ("LD_PRELOAD", LIBRARY.to_owned()),
        ("FAKETIME", format!("{days:+}d")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ])
}
