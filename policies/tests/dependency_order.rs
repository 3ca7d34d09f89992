//! The order of the workspace's crates: `crds ← policies ← {webhook, operator, cli}`; `headscale ← {operator, policies,
//! cli}`; the agent knows the formats, the process plumbing and its node only.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What each crate may depend on, among our own.
const ALLOWED: &[(&str, &[&str])] = &[
    ("tailnet-crds", &[]),
    ("tailnet-process", &[]),
    ("tailnet-headscale", &[]),
    ("tsnet", &[]),
    ("tailnet-policies", &["tailnet-crds", "tailnet-headscale"]),
    (
        "tailnet-webhook",
        &["tailnet-crds", "tailnet-policies", "tailnet-process"],
    ),
    (
        "tailnet-operator",
        &[
            "tailnet-crds",
            "tailnet-policies",
            "tailnet-headscale",
            "tailnet-process",
        ],
    ),
    ("tailnet-agent", &["tailnet-crds", "tailnet-process", "tsnet"]),
    (
        "kubectl-tailnet",
        &[
            "tailnet-crds",
            "tailnet-policies",
            "tailnet-headscale",
            "tailnet-process",
        ],
    ),
];
/// Crates that may depend on everything: they test and generate.
const TOOLS: &[&str] = &["tailnet-e2e", "xtask"];

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()
        .unwrap();
    let ours: BTreeSet<String> = metadata
        .packages
        .iter()
        .map(|package| package.name.to_string())
        .collect();
    metadata
        .packages
        .iter()
        .map(|package| {
            let of = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind != cargo_metadata::DependencyKind::Development);
            let names = of
                .map(|dependency| dependency.name.clone())
                .filter(|name| ours.contains(name));
            (package.name.to_string(), names.collect())
        })
        .collect()
}

#[test]
fn every_crate_depends_only_on_what_stands_below_it() {
    for (package, dependencies) in dependencies() {
        if TOOLS.contains(&package.as_str()) {
            continue;
        }
        let allowed = ALLOWED
            .iter()
            .find(|(name, _)| *name == package)
            .unwrap_or_else(|| panic!("{package} is new: give it a place in this test and in the design"))
            .1;
        for dependency in dependencies {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{package} must not depend on {dependency}"
            );
        }
    }
}

#[test]
fn the_order_is_of_crates_that_exist() {
    let packages = dependencies();
    for (package, allowed) in ALLOWED {
        for name in allowed.iter().chain([package]) {
            assert!(packages.contains_key(*name), "{name} is not in the workspace");
        }
    }
}
