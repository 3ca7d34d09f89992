//! The Go servers and command-line tools: pinned as Go modules in `e2e/tools`, built once into the cache.
//!
//! Only the binaries are kept. Go's own build and module caches (25 GB after everything) live in a temporary folder that is removed afterwards.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};

use crate::paths;
use crate::progress::Progress;

/// A program that the harness builds from a pinned Go module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Tool {
    KubeApiserver,
    Kubectl,
    Etcd,
    Headscale,
    KubeControllerManager,
    KubeScheduler,
    Kubelet,
    KubeProxy,
    Tailscaled,
    Tailscale,
    KubeRouter,
    Helm,
    Coredns,
    CertManager,
}

/// How one program is built.
struct Recipe {
    /// Folder below `e2e/tools`.
    folder: &'static str,
    /// Module whose version is the program's version.
    module: &'static str,
    /// File name of the program.
    binary: &'static str,
    /// Main package.
    package: &'static str,
    /// Linker flag pairs; `{v}` is the version.
    stamp: &'static [&'static str],
    /// A folder of the module that is copied beside the program: manifests, which are not in it.
    files: Option<&'static str>,
}

const KUBERNETES: &[&str] = &[
    "k8s.io/component-base/version.gitVersion={v}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
];

const fn kubernetes(binary: &'static str, package: &'static str) -> Recipe {
    Recipe {
        folder: "kubernetes",
        module: "k8s.io/kubernetes",
        binary,
        package,
        stamp: KUBERNETES,
        files: None,
    }
}

impl Tool {
    /// Everything, in the order of building (the first four make the API tier).
    pub const ALL: [Self; 14] = {
        let mut all = [Self::CertManager; 14];
        let (mut index, ours) = (0, Self::CLUSTER);
        while index < ours.len() {
            all[index] = ours[index];
            index += 1;
        }
        all
    };

    /// What a whole cluster with sites and our chart needs: all but what single tests add.
    pub const CLUSTER: [Self; 13] = [
        Self::KubeApiserver,
        Self::Kubectl,
        Self::Etcd,
        Self::Headscale,
        Self::KubeControllerManager,
        Self::KubeScheduler,
        Self::Kubelet,
        Self::KubeProxy,
        Self::Tailscaled,
        Self::Tailscale,
        Self::KubeRouter,
        Self::Helm,
        Self::Coredns,
    ];

    const fn recipe(self) -> Recipe {
        match self {
            Self::KubeApiserver => kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            Self::Kubectl => kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            Self::KubeControllerManager => kubernetes(
                "kube-controller-manager",
                "k8s.io/kubernetes/cmd/kube-controller-manager",
            ),
            Self::KubeScheduler => kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            Self::Kubelet => kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            Self::KubeProxy => kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
            Self::Etcd => Recipe {
                folder: "etcd",
                module: "go.etcd.io/etcd/server/v3",
                binary: "etcd",
                package: "go.etcd.io/etcd/server/v3",
                stamp: &[],
                files: None,
            },
            Self::Headscale => Recipe {
                folder: "headscale",
                module: "github.com/juanfont/headscale",
                binary: "headscale",
                package: "github.com/juanfont/headscale/cmd/headscale",
                stamp: &["github.com/juanfont/headscale/hscontrol/types.Version={v}"],
                files: None,
            },
            Self::Tailscaled => Recipe {
                folder: "tailscale",
                module: "tailscale.com",
                binary: "tailscaled",
                package: "tailscale.com/cmd/tailscaled",
                stamp: &[],
                files: None,
            },
            Self::Tailscale => Recipe {
                folder: "tailscale",
                module: "tailscale.com",
                binary: "tailscale",
                package: "tailscale.com/cmd/tailscale",
                stamp: &[],
                files: None,
            },
            Self::KubeRouter => Recipe {
                folder: "kube-router",
                module: "github.com/cloudnativelabs/kube-router/v2",
                binary: "kube-router",
                package: "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
                stamp: &[],
                files: None,
            },
            Self::Helm => Recipe {
                folder: "helm",
                module: "helm.sh/helm/v4",
                binary: "helm",
                package: "helm.sh/helm/v4/cmd/helm",
                stamp: &["helm.sh/helm/v4/internal/version.version={v}"],
                files: None,
            },
            Self::Coredns => Recipe {
                folder: "coredns",
                module: "github.com/coredns/coredns",
                binary: "coredns",
                package: "github.com/coredns/coredns",
                stamp: &[],
                files: None,
            },
            Self::CertManager => Recipe {
                folder: "cert-manager",
                module: "github.com/cert-manager/cert-manager",
                binary: "cert-manager",
                package: "tools/cert-manager",
                stamp: &[],
                files: Some("deploy/crds"),
            },
        }
    }

    /// The pinned version, read from the tool's `go.mod`, with its leading `v`.
    ///
    /// # Errors
    /// When the file is missing or does not require the module.
    pub fn version(self) -> Result<String> {
        let recipe = self.recipe();
        let file = paths::tool_modules().join(recipe.folder).join("go.mod");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        required_version(&text, recipe.module)
            .with_context(|| format!("{} does not require {}", file.display(), recipe.module))
    }

    /// Where the program is, or will be once built.
    ///
    /// # Errors
    /// See [`Tool::version`].
    pub fn path(self) -> Result<PathBuf> {
        let recipe = self.recipe();
        Ok(paths::cache()?
            .join("tools")
            .join(format!("{}-{}", recipe.folder, self.version()?))
            .join(recipe.binary))
    }

    /// The folder of the module that was copied beside the program.
    ///
    /// # Errors
    /// When the tool has none, or is not built.
    pub fn files(self) -> Result<PathBuf> {
        let folder = self
            .recipe()
            .files
            .with_context(|| format!("{self:?} has no files beside its program"))?;
        Ok(self.built()?.with_file_name(last_part(folder)))
    }

    /// The path of the built and verified program.
    ///
    /// # Errors
    /// When it is not built, with the way to build it.
    pub fn built(self) -> Result<PathBuf> {
        let path = self.path()?;
        ensure!(
            path.is_file(),
            "{} is not built; `cargo xtask cluster up` or tools::ensure builds it",
            path.display()
        );
        Ok(path)
    }
}

/// The version that a `go.mod` requires of `module`, in a block or on one line.
fn required_version(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line
            .trim()
            .strip_prefix("require ")
            .unwrap_or(line.trim())
            .split_whitespace();
        (words.next()? == module)
            .then(|| words.next().map(str::to_owned))
            .flatten()
            .filter(|version| version.starts_with('v'))
    })
}

fn last_part(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap_or(folder)
}

/// Copies the files of `from`, without its folders, to `to`.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Linker flags that strip the program and stamp its version.
fn linker_flags(recipe: &Recipe, version: &str) -> String {
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut flags = String::from("-s -w");
    for pair in recipe.stamp {
        flags.push_str(" -X ");
        flags.push_str(
            &pair
                .replace("{v}", version)
                .replace("{major}", major)
                .replace("{minor}", minor),
        );
    }
    flags
}

/// Checks with `go version -m` that `binary` was built from the pinned version of its module.
fn verify(recipe: &Recipe, version: &str, binary: &Path) -> Result<()> {
    let shown = crate::command::output(
        Command::new("go").args(["version", "-m"]).arg(binary),
        "",
        Duration::from_secs(60),
    )?;
    let text = shown
        .success()
        .with_context(|| format!("go version -m {}", binary.display()))?;
    let right = text.lines().any(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("mod" | "dep"))
            && words.next() == Some(recipe.module)
            && words.next() == Some(version)
    });
    ensure!(
        right,
        "{} was not built from {} {version}; remove it and run again",
        binary.display(),
        recipe.module
    );
    Ok(())
}

/// Go's caches during a build; removed when dropped.
struct GoCaches(PathBuf);

impl Drop for GoCaches {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!(
                "Go's build cache stays behind in {}: {error}; remove it by hand",
                self.0.display()
            );
        }
    }
}

fn build(recipe: &Recipe, version: &str, binary: &Path, caches: &GoCaches) -> Result<()> {
    let folder = binary.parent().context("a tool's path has a folder")?;
    fs::create_dir_all(folder)?;
    let unfinished = folder.join(format!("{}.tmp", recipe.binary));
    let log = folder.join(format!("{}.log", recipe.binary));
    let mut command = Command::new("go");
    command
        .current_dir(paths::tool_modules().join(recipe.folder))
        .args(["build", "-trimpath", "-ldflags", &linker_flags(recipe, version), "-o"])
        .arg(&unfinished)
        .arg(recipe.package)
        .env("GOFLAGS", "-mod=readonly -modcacherw")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOMODCACHE", caches.0.join("mod"))
        .env("GOCACHE", caches.0.join("build"))
        .env("GOTMPDIR", &caches.0);
    let done = crate::command::output(&mut command, "", Duration::from_secs(45 * 60))
        .context("is Go installed? (https://go.dev/dl)")?;
    fs::write(&log, format!("{}{}", done.stdout, done.stderr))?;
    if let Err(error) = done.success() {
        bail!(
            "building {} {version} failed (log: {}): {error}",
            recipe.binary,
            log.display()
        );
    }
    verify(recipe, version, &unfinished)?;
    if let Some(files) = recipe.files {
        let module = caches.0.join("mod").join(format!("{}@{version}", recipe.module));
        copy_files(&module.join(files), &folder.join(last_part(files)))?;
    }
    fs::rename(&unfinished, binary)?;
    fs::remove_file(&log)?;
    Ok(())
}

/// A file beside the program that says which build of it was verified, so that it is checked once and not at every start.
fn stamp(binary: &Path) -> PathBuf {
    binary.with_file_name(format!(
        "{}.verified",
        binary.file_name().unwrap_or_default().to_string_lossy()
    ))
}

fn is_verified(binary: &Path, version: &str) -> bool {
    let Ok(size) = binary.metadata().map(|meta| meta.len()) else {
        return false;
    };
    fs::read_to_string(stamp(binary)).is_ok_and(|text| text == format!("{version} {size}"))
}

/// Builds what is missing of `tools`, showing what is built and for how long; a second caller waits for the first.
///
/// # Errors
/// When Go is missing, a build fails, or a program in the cache is of another version.
pub fn ensure(tools: &[Tool]) -> Result<()> {
    let mut wanted = Vec::new();
    for tool in tools {
        let (version, path) = (tool.version()?, tool.path()?);
        if !is_verified(&path, &version) {
            wanted.push((tool.recipe(), version, path));
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let cache = paths::cache()?;
    fs::create_dir_all(cache.join("tools"))?;
    let lock = File::create(cache.join("tools/.lock"))?;
    let lock = match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((lock, _)) => {
            let waiting = Progress::start("waiting for another process that builds the servers");
            let lock = Flock::lock(lock, FlockArg::LockExclusive)
                .map_err(|(_, error)| error)
                .context("cannot lock the tool cache")?;
            waiting.done();
            lock
        }
    };
    let folder = cache.join("tmp").join(format!("go-{}", std::process::id()));
    let missing = wanted.iter().filter(|(_, _, path)| !path.is_file()).count();
    let mut number = 0;
    let mut caches = None;
    for (recipe, version, path) in &wanted {
        if !path.is_file() {
            number += 1;
            let caches = match &mut caches {
                Some(caches) => caches,
                empty => {
                    fs::create_dir_all(&folder)?;
                    empty.insert(GoCaches(folder.clone()))
                }
            };
            let progress = Progress::start(format!(
                "building {} {version} ({number} of {missing}, once per machine)",
                recipe.binary
            ));
            build(recipe, version, path, caches)?;
            progress.done();
        }
        verify(recipe, version, path)?;
        fs::write(stamp(path), format!("{version} {}", path.metadata()?.len()))?;
    }
    drop(lock);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_pinned() {
        for tool in Tool::ALL {
            assert!(tool.version().unwrap().starts_with('v'), "{tool:?}");
        }
        assert_eq!(Tool::Headscale.version().unwrap(), "v0.29.3");
    }

    #[test]
    fn version_is_read_from_both_forms() {
        assert_eq!(
            required_version("module a\nrequire b/c v1.2.3\n", "b/c").as_deref(),
            Some("v1.2.3")
        );
        assert_eq!(
            required_version("require (\n\tx/y v0.1.0 // indirect\n\tb/c v1.2.3\n)\n", "b/c").as_deref(),
            Some("v1.2.3")
        );
        assert_eq!(required_version("replace b/c => b/c v9.0.0\n", "b/c"), None);
    }

    #[test]
    fn kubernetes_is_stamped_with_its_version() {
        let flags = linker_flags(&Tool::Kubelet.recipe(), "v1.37.2");
        assert!(
            flags.contains("version.gitVersion=v1.37.2")
                && flags.contains("gitMajor=1")
                && flags.contains("gitMinor=37"),
            "{flags}"
        );
    }
}
