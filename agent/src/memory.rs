//! The memory limit of the tailnet client, from the container's.

use std::fs;

const MIB: u64 = 1 << 20;
/// Below this the collector costs a good part of the throughput.
const COMFORT: u64 = 192 * MIB;
/// The limit on a machine that sets none.
const UNLIMITED: u64 = 512 * MIB;

/// Where the kernel tells the limit: cgroup v2, then v1.
const LIMIT_FILES: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// The memory limit of this container in bytes; `None` when there is none.
pub fn container_limit() -> Option<u64> {
    LIMIT_FILES
        .iter()
        .find_map(|path| parse_limit(&fs::read_to_string(path).ok()?))
}

/// The client's share: 65 %, at least 192 MiB, but never more than 80 % of what there is; 512 MiB without a limit.
pub fn client_limit(container: Option<u64>) -> u64 {
    let Some(container) = container else { return UNLIMITED };
    let share = |percent: u64| container / 100 * percent;
    share(65).max(COMFORT.min(share(80)))
}

/// Resident memory of this process in bytes.
pub fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: sysconf has no preconditions.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(pages * page)
}

fn parse_limit(text: &str) -> Option<u64> {
    let bytes: u64 = text.trim().parse().ok()?; // "max" is no limit
    // v1 writes a number near the largest one for "no limit".
    (bytes < 1 << 60).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{MIB, client_limit, parse_limit, resident};

    #[test]
    fn reads_both_ways_of_saying_no_limit() {
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("9223372036854771712\n"), None);
        assert_eq!(parse_limit("268435456\n"), Some(256 * MIB));
    }

    #[test]
    fn leaves_room_for_the_rest() {
        assert_eq!(client_limit(None), 512 * MIB);
        assert_eq!(client_limit(Some(1000 * MIB)), 650 * MIB);
        assert_eq!(client_limit(Some(256 * MIB)), 192 * MIB);
        let small = client_limit(Some(128 * MIB));
        assert!((102 * MIB..=103 * MIB).contains(&small), "{small}");
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident().unwrap() > MIB);
    }
}
