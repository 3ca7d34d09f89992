//! Listen ports of egress targets: stable for the life of a target, never given to another one while an old agent
//! configuration may still be in force.

use std::collections::{BTreeMap, BTreeSet};

/// First port.
pub const FIRST: u16 = 10_000;
/// Last port.
pub const LAST: u16 = 19_999;

/// What is remembered between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMemory {
    /// Port by target name.
    pub ports: BTreeMap<String, u16>,
    /// Next port to hand out; every port between the highest in use and this one may still be in some agent's old
    /// configuration.
    pub next: u16,
}

impl Default for PortMemory {
    fn default() -> Self {
        Self {
            ports: BTreeMap::new(),
            next: FIRST,
        }
    }
}

/// Ports for `targets` (unique names, at most 128): known targets keep theirs, new ones take the next free one, going
/// round at the end of the range.
pub fn assign<'a>(memory: &PortMemory, targets: impl IntoIterator<Item = &'a str>) -> PortMemory {
    let mut used: BTreeSet<u16> = BTreeSet::new();
    let mut ports: BTreeMap<String, u16> = BTreeMap::new();
    let mut fresh = Vec::new();
    for name in targets {
        match memory.ports.get(name) {
            Some(port) if (FIRST..=LAST).contains(port) && used.insert(*port) => {
                ports.insert(name.to_owned(), *port);
            }
            _ => fresh.push(name),
        }
    }
    let mut next = if (FIRST..=LAST).contains(&memory.next) {
        memory.next
    } else {
        FIRST
    };
    for name in fresh {
        // 10,000 ports for at most 128 targets: this ends.
        while used.contains(&next) {
            next = following(next);
        }
        used.insert(next);
        ports.insert(name.to_owned(), next);
        next = following(next);
    }
    PortMemory { ports, next }
}

fn following(port: u16) -> u16 {
    if port >= LAST { FIRST } else { port + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(memory: &PortMemory, name: &str) -> u16 {
        memory.ports[name]
    }

    #[test]
    fn targets_keep_their_ports_whatever_is_added_or_removed() {
        let one = assign(&PortMemory::default(), ["b", "a"]);
        assert_eq!((port(&one, "b"), port(&one, "a"), one.next), (10_000, 10_001, 10_002));
        let two = assign(&one, ["new", "a"]);
        assert_eq!((port(&two, "a"), port(&two, "new")), (10_001, 10_002));
        let three = assign(&two, ["a", "b", "new"]);
        assert_eq!((port(&three, "a"), port(&three, "new")), (10_001, 10_002));
        assert_eq!(
            port(&three, "b"),
            10_003,
            "the port that b once had is not given out again at once"
        );
    }

    #[test]
    fn the_range_goes_round_and_skips_what_is_in_use() {
        let memory = PortMemory {
            ports: BTreeMap::from([("old".to_owned(), FIRST)]),
            next: LAST,
        };
        let next = assign(&memory, ["old", "x", "y"]);
        assert_eq!(
            (port(&next, "x"), port(&next, "y"), next.next),
            (LAST, FIRST + 1, FIRST + 2)
        );
    }

    #[test]
    fn a_damaged_memory_gives_valid_and_distinct_ports() {
        let memory = PortMemory {
            ports: BTreeMap::from([("a".to_owned(), 80), ("b".to_owned(), 10_005), ("c".to_owned(), 10_005)]),
            next: 0,
        };
        let next = assign(&memory, ["a", "b", "c"]);
        let ports: BTreeSet<u16> = next.ports.values().copied().collect();
        assert_eq!(ports.len(), 3);
        assert!(ports.iter().all(|port| (FIRST..=LAST).contains(port)));
        assert_eq!(port(&next, "b"), 10_005);
    }
}
