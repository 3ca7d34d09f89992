//! As much of CoreDNS' Corefile as tells which zones go where.

/// A server block: its zones, in lower case without port and last dot, and its lines.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    pub zones: Vec<String>,
    pub lines: Vec<String>,
}

/// The server blocks of a Corefile.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut depth = 0_usize;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if depth == 0 {
            let zones = line
                .trim_end_matches('{')
                .split([' ', ',', '\t'])
                .filter(|zone| !zone.is_empty());
            blocks.push(Block {
                zones: zones.map(zone).collect(),
                lines: Vec::new(),
            });
        } else if let Some(block) = blocks.last_mut() {
            block.lines.push(line.to_owned());
        }
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
    }
    blocks
}

fn zone(written: &str) -> String {
    let name = written.rsplit_once("://").map_or(written, |(_, rest)| rest);
    let name = name.split(':').next().unwrap_or_default();
    if name == "." {
        name.to_owned()
    } else {
        name.trim_end_matches('.').to_ascii_lowercase()
    }
}

/// The block that answers `name`: the one with the longest zone around it.
pub fn block_of<'a>(blocks: &'a [Block], name: &str) -> Option<&'a Block> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let covers = |zone: &String| zone == "." || name == *zone || name.ends_with(&format!(".{zone}"));
    let length = |zone: &String| if zone == "." { 0 } else { zone.len() };
    blocks
        .iter()
        .filter_map(|block| Some((block.zones.iter().filter(|zone| covers(zone)).map(length).max()?, block)))
        .max_by_key(|(length, _)| *length)
        .map(|(_, block)| block)
}

#[cfg(test)]
mod tests {
    use super::{block_of, blocks};

    #[test]
    fn the_longest_zone_answers() {
        let text = "site.example.net:53 {\n    errors\n    forward . 10.96.0.53 # ours\n}\n.:53 {\n    kubernetes cluster.local {\n        ttl 30\n    }\n    forward . /etc/resolv.conf\n}\n";
        let blocks = blocks(text);
        assert_eq!(blocks.len(), 2);
        let lines = |name: &str| block_of(&blocks, name).unwrap().lines.join("|");
        assert!(lines("api.Site.example.net.").contains("forward . 10.96.0.53"));
        assert!(lines("site.example.net").contains("10.96.0.53"));
        assert!(lines("offsite.example.net").contains("/etc/resolv.conf"));
    }
}
