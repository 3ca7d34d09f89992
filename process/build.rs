//! Puts the commit into the version string.
//!
//! `TAILNET_COMMIT` (and `TAILNET_COMMIT_DATE`) win, because an image or a source archive is built without `.git`; else git
//! is asked, and without git the commit is `unknown`. A debug build does not watch the branch: each commit would rebuild
//! every crate that depends on this one; so its commit is marked as a lower bound.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// Watches a file of the git directory. A path that does not exist would make cargo run this script on every build.
fn watch(root: &Path, name: &str) {
    if let Some(path) = git(root, &["rev-parse", "--git-path", name]) {
        let path = root.join(path);
        if path.is_file() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

fn from_git(release: bool) -> Option<String> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?)
        .parent()?
        .canonicalize()
        .ok()?;
    // A source archive unpacked inside somebody else's repository must not carry that repository's commit.
    if Path::new(&git(&root, &["rev-parse", "--show-toplevel"])?)
        .canonicalize()
        .ok()?
        != root
    {
        return None;
    }
    watch(&root, "HEAD");
    if release {
        watch(&root, "packed-refs");
        if let Some(branch) = git(&root, &["symbolic-ref", "--quiet", "HEAD"]) {
            watch(&root, &branch);
        }
    }
    let commit = git(&root, &["rev-parse", "--short=10", "HEAD"])?;
    let date = git(&root, &["show", "--no-patch", "--format=%cs", "HEAD"])?;
    Some(if release {
        format!("commit {commit}, {date}")
    } else {
        format!("commit {commit} or later, {date}, debug build")
    })
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TAILNET_COMMIT");
    println!("cargo::rerun-if-env-changed=TAILNET_COMMIT_DATE");
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = env::var("TAILNET_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = match given {
        Some(commit) => match env::var("TAILNET_COMMIT_DATE").ok().filter(|date| !date.is_empty()) {
            Some(date) => format!("commit {commit}, {date}"),
            None => format!("commit {commit}"),
        },
        None => from_git(release).unwrap_or_else(|| "commit unknown".to_owned()),
    };
    println!("cargo::rustc-env=TAILNET_VERSION_COMMIT={commit}");
}
