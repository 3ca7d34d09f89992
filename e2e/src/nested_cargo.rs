//! Cargo, called from a program that Cargo runs.

use std::process::Command;

/// `cargo` without the variables that an outer Cargo sets for the package it runs.
///
/// ring's build script asks to be run again whenever `CARGO_MANIFEST_DIR` or `CARGO_PKG_*` change. With the outer package's values of them, each
/// nesting (xtask, a test binary, a person's shell) would build ring and everything above it anew, in turn.
pub fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_outer_package) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Whether Cargo sets this variable for one package (and not a person for all of Cargo, as `CARGO_HOME` or `CARGO_TARGET_DIR`).
fn is_of_outer_package(name: &str) -> bool {
    matches!(
        name,
        "CARGO"
            | "CARGO_MANIFEST_DIR"
            | "CARGO_MANIFEST_PATH"
            | "CARGO_MANIFEST_LINKS"
            | "CARGO_PRIMARY_PACKAGE"
            | "CARGO_CRATE_NAME"
            | "CARGO_BIN_NAME"
            | "OUT_DIR"
    ) || ["CARGO_PKG_", "CARGO_BIN_EXE_", "CARGO_CFG_", "CARGO_FEATURE_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outer_packages_variables_go_and_a_persons_stay() {
        for name in [
            "CARGO_MANIFEST_DIR",
            "CARGO_PKG_NAME",
            "CARGO_PKG_VERSION_MAJOR",
            "OUT_DIR",
        ] {
            assert!(is_of_outer_package(name), "{name}");
        }
        for name in [
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_JOBS",
            "CARGO_TERM_COLOR",
            "PATH",
        ] {
            assert!(!is_of_outer_package(name), "{name}");
        }
        let removed: Vec<_> = cargo()
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert!(
            removed.iter().any(|name| name == "CARGO_MANIFEST_DIR"),
            "this test runs under Cargo: {removed:?}"
        );
    }
}
