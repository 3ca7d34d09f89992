//! Which prefixes overlap a prefix, in time that depends on the answer and not on how many there are.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

/// Values by prefix, both address families. Host bits are ignored.
#[derive(Clone, Debug)]
pub struct PrefixIndex<T> {
    v4: PrefixMap<Ipv4Net, Vec<T>>,
    v6: PrefixMap<Ipv6Net, Vec<T>>,
}

impl<T> Default for PrefixIndex<T> {
    fn default() -> Self {
        Self {
            v4: PrefixMap::new(),
            v6: PrefixMap::new(),
        }
    }
}

impl<T: PartialEq> PrefixIndex<T> {
    /// Adds a value.
    pub fn insert(&mut self, prefix: IpNet, value: T) {
        match prefix.trunc() {
            IpNet::V4(prefix) => self.v4.entry(prefix).or_default().push(value),
            IpNet::V6(prefix) => self.v6.entry(prefix).or_default().push(value),
        }
    }

    /// Removes one equal value.
    pub fn remove(&mut self, prefix: IpNet, value: &T) {
        fn take<T: PartialEq>(values: Option<&mut Vec<T>>, value: &T) -> bool {
            let Some(values) = values else { return false };
            if let Some(at) = values.iter().position(|v| v == value) {
                values.swap_remove(at);
            }
            values.is_empty()
        }
        match prefix.trunc() {
            IpNet::V4(prefix) => {
                if take(self.v4.get_mut(&prefix), value) {
                    self.v4.remove(&prefix);
                }
            }
            IpNet::V6(prefix) => {
                if take(self.v6.get_mut(&prefix), value) {
                    self.v6.remove(&prefix);
                }
            }
        }
    }

    /// Everything whose prefix contains, equals or lies in this one.
    pub fn overlapping(&self, prefix: IpNet) -> Vec<(IpNet, &T)> {
        let mut found = Vec::new();
        match prefix.trunc() {
            IpNet::V4(prefix) => {
                // `cover` ends with the prefix itself, `children` begins with it.
                let outer = self.v4.cover(&prefix).filter(|(p, _)| **p != prefix);
                for (p, values) in outer.chain(self.v4.children(&prefix)) {
                    found.extend(values.iter().map(|value| (IpNet::V4(*p), value)));
                }
            }
            IpNet::V6(prefix) => {
                let outer = self.v6.cover(&prefix).filter(|(p, _)| **p != prefix);
                for (p, values) in outer.chain(self.v6.children(&prefix)) {
                    found.extend(values.iter().map(|value| (IpNet::V6(*p), value)));
                }
            }
        }
        found
    }
}

/// Whether two prefixes share an address.
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn overlapping_finds_outer_equal_and_inner_prefixes_of_one_family() {
        let mut index = PrefixIndex::default();
        for (at, prefix) in [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.0/24",
            "10.2.0.0/16",
            "fd00::/8",
            "0.0.0.0/0",
        ]
        .iter()
        .enumerate()
        {
            index.insert(net(prefix), at);
        }
        index.insert(net("10.1.0.0/16"), 9);
        let mut found: Vec<_> = index
            .overlapping(net("10.1.0.0/16"))
            .into_iter()
            .map(|(_, v)| *v)
            .collect();
        found.sort();
        assert_eq!(found, [0, 1, 2, 5, 9]);
        assert_eq!(index.overlapping(net("fd00:1::/32")), [(net("fd00::/8"), &4)]);
        index.remove(net("10.1.0.0/16"), &1);
        index.remove(net("10.0.0.0/8"), &0);
        index.remove(net("10.0.0.0/8"), &0);
        let mut found: Vec<_> = index
            .overlapping(net("10.1.0.0/16"))
            .into_iter()
            .map(|(_, v)| *v)
            .collect();
        found.sort();
        assert_eq!(found, [2, 5, 9]);
    }

    #[test]
    fn families_never_overlap() {
        assert!(!overlap(&net("0.0.0.0/0"), &net("::/0")));
        assert!(overlap(&net("10.0.0.0/8"), &net("10.1.0.0/16")));
        assert!(!overlap(&net("10.0.0.0/16"), &net("10.1.0.0/16")));
    }
}
