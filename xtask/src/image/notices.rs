//! Licences of everything that is linked into the image's binaries: Rust crates from Cargo's metadata, Go modules from Go's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::{DependencyKind, Metadata, PackageId};
use serde::Deserialize;

use super::context::BINARIES;
use crate::command::output;
use crate::workspace::Workspace;

/// A component, e.g. `serde 1.0.228 (MIT OR Apache-2.0)`, and the folder that holds its licence files.
struct Component {
    name: String,
    folder: PathBuf,
    /// Licence named in its metadata, when it brings no file.
    declared: Option<String>,
}

/// The whole notice text: a list of the components, then every licence text once with the components it belongs to.
pub fn text(workspace: &Workspace) -> Result<String> {
    let mut components = rust_components(&workspace.metadata()?)?;
    components.extend(go_components(&workspace.root.join("agent/tsnet/go"))?);
    components.sort_by(|a, b| a.name.cmp(&b.name));
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut list = String::from("This image contains the following third-party components.\n\n");
    for component in &components {
        let _ = writeln!(list, "  {}", component.name);
        let files = licence_files(&component.folder)?;
        ensure!(
            !files.is_empty() || component.declared.is_some(),
            "{} has neither a licence file in {} nor a declared licence: it cannot be shipped",
            component.name,
            component.folder.display()
        );
        for file in files {
            let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            texts
                .entry(String::from_utf8_lossy(&text).trim().replace("\r\n", "\n"))
                .or_default()
                .push(&component.name);
        }
    }
    for (text, names) in texts {
        let _ = write!(list, "\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join("\n"));
    }
    Ok(list)
}

/// Crates that are linked into the binaries: everything reachable by normal dependencies.
fn rust_components(metadata: &Metadata) -> Result<Vec<Component>> {
    let resolve = metadata
        .resolve
        .as_ref()
        .context("cargo metadata gave no dependency graph")?;
    let nodes = resolve
        .nodes
        .iter()
        .map(|node| (&node.id, node))
        .collect::<BTreeMap<_, _>>();
    let packages = metadata
        .packages
        .iter()
        .map(|package| (&package.id, package))
        .collect::<BTreeMap<_, _>>();
    let mut queue = metadata
        .packages
        .iter()
        .filter(|package| BINARIES.iter().any(|(name, _)| package.name.as_str() == *name))
        .map(|package| &package.id)
        .collect::<VecDeque<_>>();
    let mut seen: BTreeSet<&PackageId> = queue.iter().copied().collect();
    while let Some(id) = queue.pop_front() {
        for dependency in nodes.get(id).map(|node| node.deps.as_slice()).unwrap_or_default() {
            if dependency
                .dep_kinds
                .iter()
                .any(|kind| kind.kind == DependencyKind::Normal)
                && seen.insert(&dependency.pkg)
            {
                queue.push_back(&dependency.pkg);
            }
        }
    }
    let components = seen
        .into_iter()
        .filter_map(|id| packages.get(id))
        .filter(|package| !metadata.workspace_members.contains(&package.id))
        .map(|package| Component {
            name: format!(
                "{} {} ({})",
                package.name,
                package.version,
                package.license.as_deref().unwrap_or("see its file")
            ),
            folder: package
                .manifest_path
                .parent()
                .map(|folder| folder.as_std_path().to_path_buf())
                .unwrap_or_default(),
            declared: package.license.clone(),
        })
        .collect();
    Ok(components)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GoPackage {
    module: Option<GoModule>,
    #[serde(default)]
    standard: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GoModule {
    path: String,
    version: Option<String>,
    dir: Option<PathBuf>,
    #[serde(default)]
    main: bool,
}

/// Modules that are linked into the agent's Go part, and Go's own runtime.
fn go_components(module: &Path) -> Result<Vec<Component>> {
    ensure!(module.join("go.mod").is_file(), "{} has no go.mod", module.display());
    let tags = fs::read_to_string(module.join("tags.txt")).unwrap_or_default();
    let mut command = Command::new("go");
    command
        .current_dir(module)
        .args(["list", "-mod=readonly", "-deps", "-json=Module,Standard"]);
    if !tags.trim().is_empty() {
        command
            .arg("-tags")
            .arg(tags.split_whitespace().collect::<Vec<_>>().join(","));
    }
    let text = output(command.arg("./..."))?;
    let mut found = BTreeMap::new();
    for package in serde_json::Deserializer::from_str(&text).into_iter::<GoPackage>() {
        let package = package.context("go list gave something else than JSON")?;
        let Some(go_module) = package.module.filter(|go_module| !package.standard && !go_module.main) else {
            continue;
        };
        let name = format!(
            "{} {} (Go)",
            go_module.path,
            go_module.version.as_deref().unwrap_or_default()
        );
        let folder = go_module.dir.with_context(|| format!("Go has not downloaded {name}"))?;
        found.insert(
            name.clone(),
            Component {
                name,
                folder,
                declared: None,
            },
        );
    }
    let root = output(Command::new("go").args(["env", "GOROOT", "GOVERSION"]))?;
    let mut lines = root.lines();
    let (folder, version) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let name = format!("Go runtime and standard library {version}");
    found.insert(
        name.clone(),
        Component {
            name,
            folder: PathBuf::from(folder),
            declared: Some("BSD-3-Clause".to_owned()),
        },
    );
    Ok(found.into_values().collect())
}

/// Files at the top of a component's folder that hold licence terms.
fn licence_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        let terms = [
            "LICENSE",
            "LICENCE",
            "COPYING",
            "NOTICE",
            "COPYRIGHT",
            "UNLICENSE",
            "PATENTS",
        ]
        .iter()
        .any(|start| name.starts_with(start));
        if terms && entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}
