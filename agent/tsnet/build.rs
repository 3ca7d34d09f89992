//! Builds the Go half (`go/`) as a C archive and links it.
//!
//! Needs Go of at least the version in `go/go.mod`. `GO` names another binary than `go`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("\n{text}\n");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let source = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("go");
    let out = PathBuf::from(variable("OUT_DIR")?);
    for file in inputs(&source)? {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    for name in ["GO", "CC", "CGO_CFLAGS", "CGO_LDFLAGS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let tags = fs::read_to_string(source.join("tags.txt")).map_err(|e| format!("reading tags.txt: {e}"))?;
    let tags = tags.split_whitespace().collect::<Vec<_>>().join(",");
    let version = client_version(&source)?;
    let go = env::var("GO").unwrap_or_else(|_| "go".to_owned());
    let status = Command::new(&go)
        .current_dir(&source)
        .args(["build", "-buildmode=c-archive", "-trimpath", "-buildvcs=false"])
        // A C archive carries no build information, from which the client would take the version that it reports.
        .arg(format!(
            "-ldflags=-s -w -X tailscale.com/version.shortStamp={version} -X tailscale.com/version.longStamp={version}"
        ))
        .args(["-tags", &tags])
        .arg("-o")
        .arg(out.join("libtsnetgo.a"))
        .arg(".")
        .env("CGO_ENABLED", "1")
        .env("GOOS", "linux")
        .env("GOARCH", go_arch(&variable("CARGO_CFG_TARGET_ARCH")?)?)
        // go.mod and go.sum decide; a build never changes them, and never fetches another toolchain.
        .env("GOFLAGS", "-mod=readonly")
        .env("GOTOOLCHAIN", "local")
        .status()
        .map_err(|e| {
            format!(
                "the crate `tsnet` needs Go (see go/go.mod for the version) to build the tailnet client, but `{go}` could not be \
                 started: {e}. Install Go from https://go.dev/dl or your distribution, or set GO to its path."
            )
        })?;
    if !status.success() {
        return Err(format!(
            "`{go} build` of the tailnet client failed ({status}); its messages are above"
        ));
    }
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=tsnetgo");
    Ok(())
}

/// Every file that the archive is made of; not the folder itself, whose time stamp changes without them.
fn inputs(source: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files: Vec<PathBuf> = ["go.mod", "go.sum", "tags.txt"]
        .iter()
        .map(|name| source.join(name))
        .collect();
    let entries = fs::read_dir(source).map_err(|e| format!("reading {}: {e}", source.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| format!("reading {}: {e}", source.display()))?.path();
        if path.extension().is_some_and(|ext| ext == "go") {
            files.push(path);
        }
    }
    Ok(files)
}

/// The version of tailscale.com in go.mod, without its `v`.
fn client_version(source: &Path) -> Result<String, String> {
    let text = fs::read_to_string(source.join("go.mod")).map_err(|e| format!("reading go.mod: {e}"))?;
    let version = text.lines().find_map(|line| {
        line.trim()
            .trim_start_matches("require ")
            .strip_prefix("tailscale.com v")
    });
    version
        .map(str::to_owned)
        .ok_or_else(|| "go.mod does not require tailscale.com".to_owned())
}

fn go_arch(rust: &str) -> Result<&'static str, String> {
    match rust {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => Err(format!(
            "the tailnet client is built for x86_64 and aarch64, not for {other}"
        )),
    }
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}
