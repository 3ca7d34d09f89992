//! Licences, bans and sources of every locked dependency, by `deny.toml`. Offline, in a second, without a tool to install.
//!
//! cargo-deny reads the same file and adds the advisory database, which needs the network; where it is installed, `check` runs it too.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, Package};
use serde::Deserialize;
use spdx::{Expression, ParseMode};

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
}

/// What `deny.toml` says no to, one line each; and how many packages were looked at.
pub fn refused(deny_toml: &Path, metadata: &Metadata) -> Result<(Vec<String>, usize)> {
    let text = std::fs::read_to_string(deny_toml).with_context(|| format!("cannot read {}", deny_toml.display()))?;
    let deny: Deny =
        toml::from_str(&text).with_context(|| format!("{} is not what is expected", deny_toml.display()))?;
    let allowed = deny
        .licenses
        .allow
        .iter()
        .map(|licence| normal(licence))
        .collect::<BTreeSet<_>>();
    let members = metadata.workspace_members.iter().collect::<BTreeSet<_>>();
    let mut lines = Vec::new();
    let mut looked_at = 0;
    for package in metadata
        .packages
        .iter()
        .filter(|package| !members.contains(&package.id))
    {
        looked_at += 1;
        let name = format!("{} {}", package.name, package.version);
        if let Some(reason) = licence_fault(package, &allowed) {
            lines.push(format!("{name}: {reason}"));
        }
        if deny.bans.deny.iter().any(|ban| ban.name == package.name.as_str()) {
            lines.push(format!(
                "{name}: banned in deny.toml; `cargo tree -i {}` shows who brings it",
                package.name
            ));
        }
        if !package
            .source
            .as_ref()
            .is_some_and(cargo_metadata::Source::is_crates_io)
        {
            lines.push(format!("{name}: does not come from crates.io"));
        }
    }
    Ok((lines, looked_at))
}

fn licence_fault(package: &Package, allowed: &BTreeSet<String>) -> Option<String> {
    let Some(text) = &package.license else {
        return Some("names no licence".to_owned());
    };
    let expression = match Expression::parse_mode(text, ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("licence {text:?} cannot be read: {}", error.reason)),
    };
    if expression.evaluate(|requirement| allowed.contains(&normal(&requirement.to_string()))) {
        None
    } else {
        Some(format!("licence {text:?} is not allowed in deny.toml"))
    }
}

fn normal(licence: &str) -> String {
    licence.trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::refused;
    use crate::workspace::Workspace;

    #[test]
    fn a_licence_that_is_not_allowed_and_a_banned_crate_are_found() {
        let metadata = Workspace::find().unwrap().metadata().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let deny = folder.path().join("deny.toml");
        std::fs::write(
            &deny,
            "[licenses]\nallow = [\"Apache-2.0\"]\n[bans]\ndeny = [{ crate = \"serde\" }]\n",
        )
        .unwrap();
        let (lines, looked_at) = refused(&deny, &metadata).unwrap();
        assert!(looked_at > 100);
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("serde ") && line.contains("banned")),
            "{lines:?}"
        );
        // pulldown-cmark is MIT only, serde is dual-licensed: one alternative is enough.
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("pulldown-cmark ") && line.contains("\"MIT\" is not allowed")),
            "{lines:?}"
        );
        assert!(
            !lines
                .iter()
                .any(|line| line.starts_with("serde ") && line.contains("is not allowed")),
            "{lines:?}"
        );
    }
}
