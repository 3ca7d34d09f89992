//! `cargo xtask gen`: everything in the repository that is made from code. The same map serves writing and checking, so that
//! a check needs no copy of the checkout.

mod chart;
mod flags;
pub mod metrics;
mod values;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// Folders that hold nothing but generated files: what we do not make there is removed.
const OWNED: [&str; 3] = ["crds/yaml", "chart/templates/crds", "docs/reference"];

/// Paths relative to the checkout, and their text.
type Files = BTreeMap<PathBuf, String>;

/// Makes every generated file, in memory.
fn all(workspace: &Workspace) -> Result<Files> {
    let mut files = Files::new();
    let mut add = |path: &str, text: String| files.insert(PathBuf::from(path), text);
    for (name, text) in tailnet_crds::crd_yaml() {
        add(&format!("chart/templates/crds/{name}"), chart::crd(&text)?);
        add(&format!("crds/yaml/{name}"), text);
    }
    add("chart/templates/operator/rbac.yaml", chart::operator_rbac()?);
    add("chart/templates/operator/status-policy.yaml", chart::status_policy()?);
    add("chart/templates/webhook/rbac.yaml", chart::webhook_rbac()?);
    add(
        "chart/templates/webhook/configuration.yaml",
        chart::webhook_configuration()?,
    );
    add("chart/values.schema.json", values::schema()?);
    let values_yaml =
        fs::read_to_string(workspace.root.join("chart/values.yaml")).context("cannot read chart/values.yaml")?;
    add("docs/reference/values.md", values::reference(&values_yaml)?);
    add("docs/reference/rules.md", tailnet_policies::table::reference_md());
    add("docs/reference/crds.md", tailnet_crds::reference_md());
    add("docs/reference/conditions.md", tailnet_crds::conditions_md());
    add("docs/reference/metrics.md", metrics::reference()?);
    add("docs/reference/audit.md", tailnet_crds::audit::audit_md()?);
    add("docs/reference/audit.schema.json", tailnet_crds::audit::audit_schema()?);
    add("docs/reference/flags.md", flags::reference(workspace)?);
    Ok(files)
}

/// Generated-looking files that no generator makes any more.
fn stale(root: &Path, files: &Files) -> Result<Vec<PathBuf>> {
    let mut stale = Vec::new();
    for folder in OWNED {
        let folder = root.join(folder);
        if !folder.exists() {
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            let relative = path.strip_prefix(root)?.to_path_buf();
            if path.is_file() && !files.contains_key(&relative) {
                stale.push(relative);
            }
        }
    }
    Ok(stale)
}

/// Writes what differs and removes what is stale; says what it did.
pub fn write(workspace: &Workspace) -> Result<()> {
    let files = all(workspace)?;
    let mut changed = 0;
    for (relative, text) in &files {
        let path = workspace.root.join(relative);
        if fs::read_to_string(&path).is_ok_and(|old| old == *text) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", relative.display());
        changed += 1;
    }
    for relative in stale(&workspace.root, &files)? {
        fs::remove_file(workspace.root.join(&relative))?;
        println!("removed {}", relative.display());
        changed += 1;
    }
    println!("{} generated files, {changed} changed", files.len());
    Ok(())
}

/// What `write` would change, as readable differences; empty when everything is up to date.
pub fn differences(workspace: &Workspace) -> Result<Vec<String>> {
    let files = all(workspace)?;
    let mut differences = Vec::new();
    for (relative, text) in &files {
        let old = fs::read_to_string(workspace.root.join(relative)).unwrap_or_default();
        if old != *text {
            let diff = similar::TextDiff::from_lines(&old, text);
            let shown = diff
                .unified_diff()
                .context_radius(1)
                .header("in the repository", "generated")
                .to_string();
            let mut lines = shown.lines().take(20).collect::<Vec<_>>();
            if shown.lines().count() > lines.len() {
                lines.push("…");
            }
            differences.push(format!("{}\n{}", relative.display(), lines.join("\n")));
        }
    }
    differences.extend(
        stale(&workspace.root, &files)?
            .into_iter()
            .map(|path| format!("{}: nothing generates it", path.display())),
    );
    Ok(differences)
}
