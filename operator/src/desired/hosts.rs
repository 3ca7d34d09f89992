//! The hosts file of a Tailnet: aliases of egress targets, pointing at their Services.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Key of the ConfigMap's data.
pub const DATA_KEY: &str = "hosts";

/// First lines of every file; also says to people who looks after it.
const HEADER: &str = "# Written by tailnet-operator; edits are overwritten.\n";

/// One name and where it points.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostsEntry {
    /// DNS name, canonical.
    pub name: String,
    /// Cluster addresses of the Service, at least one.
    pub addresses: Vec<IpAddr>,
}

/// The file: one line per name and address, sorted, so that equal entries give equal text whatever their order.
pub fn render(entries: &[HostsEntry]) -> String {
    let mut lines: BTreeMap<(&str, IpAddr), String> = BTreeMap::new();
    for entry in entries {
        for address in &entry.addresses {
            lines.insert((&entry.name, *address), line(*address, &entry.name));
        }
    }
    lines
        .into_values()
        .fold(HEADER.to_owned(), |text, line| text + &line + "\n")
}

fn line(address: IpAddr, name: &str) -> String {
    format!("{address} {name}")
}

/// Whether `file` points `name` at every one of `addresses`.
pub fn publishes(file: &str, name: &str, addresses: &[IpAddr]) -> bool {
    !addresses.is_empty()
        && addresses
            .iter()
            .all(|address| file.lines().any(|found| found == line(*address, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, addresses: &[&str]) -> HostsEntry {
        HostsEntry {
            name: name.to_owned(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn order_of_entries_does_not_matter_and_names_are_found_whole() {
        let entries = [
            entry("b.example", &["10.96.0.9"]),
            entry("a.example", &["fd00::1", "10.96.0.10"]),
        ];
        let mut reversed = entries.clone();
        reversed.reverse();
        let text = render(&entries);
        assert_eq!(text, render(&reversed));
        assert_eq!(
            text,
            "# Written by tailnet-operator; edits are overwritten.\n10.96.0.10 a.example\nfd00::1 a.example\n10.96.0.9 b.example\n"
        );
        assert!(publishes(&text, "a.example", &["fd00::1".parse().unwrap()]));
        assert!(!publishes(&text, "example", &["10.96.0.9".parse().unwrap()]));
        assert!(!publishes(&text, "b.example", &["10.96.0.90".parse().unwrap()]));
        assert!(!publishes(&text, "b.example", &[]));
    }
}
