//! The images that a node has from its start: pause, the tests' toolbox, CoreDNS. Made from programs of this machine, kept in the cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::oci::{self, Content, Image};
use crate::prerequisites::find_program;
use crate::progress::Progress;
use crate::site::postgres;
use crate::tools::Tool;
use crate::{command, paths};

/// Holds a Pod's namespaces.
pub const PAUSE: &str = "docker.io/tsunaro/pause:1";
/// What tests run in Pods: `/testbox` (see `e2e/images/testbox.rs`), `sh`, `sleep`, `cat`, `curl`, `psql`. Runs as uid 65532 with a read-only root.
pub const TESTBOX: &str = "docker.io/tsunaro/testbox:1";
/// The cluster's DNS server.
pub const COREDNS: &str = "docker.io/tsunaro/coredns:1";

/// Variable that names the archive of our own image for tests; `cargo xtask test` sets it.
const OURS_VARIABLE: &str = "TAILNET_IMAGE_ARCHIVE";

const SOURCE: &str = include_str!("../images/testbox.rs");

/// The archive of our own image: what `cargo xtask test` names, else what `cargo xtask image --dev` has left beside the running program.
///
/// # Errors
/// When there is none, with the ways to make it.
pub fn ours() -> Result<PathBuf> {
    let archive = match std::env::var_os(OURS_VARIABLE) {
        Some(archive) => PathBuf::from(archive),
        None => {
            // target/debug/deps/TEST
            let program = std::env::current_exe()?;
            let target = program
                .ancestors()
                .nth(3)
                .context("a test program lies in a target folder")?;
            target.join("oci/tailnet-operator-dev.oci.tar")
        }
    };
    ensure!(
        archive.is_file(),
        "there is no image archive {}: run this test by `cargo xtask test`, which makes it and sets {OURS_VARIABLE}, or run `cargo xtask image --dev` first",
        archive.display()
    );
    Ok(archive)
}

/// Compiles the toolbox program: static, so that it runs in an empty image.
fn testbox() -> Result<PathBuf> {
    let folder = paths::cache()?.join("images");
    let program = folder.join(format!("testbox-{}", &oci::sha256(SOURCE.as_bytes())[..16]));
    if program.is_file() {
        return Ok(program);
    }
    std::fs::create_dir_all(&folder)?;
    let progress = Progress::start("compiling the tests' toolbox (once per machine)");
    let work = tempfile::Builder::new().prefix("testbox-").tempdir_in(&folder)?;
    let (source, out) = (work.path().join("testbox.rs"), work.path().join("testbox"));
    std::fs::write(&source, SOURCE)?;
    let mut rustc = Command::new("rustc");
    rustc
        .args([
            "--edition=2024",
            "-Copt-level=s",
            "-Cpanic=abort",
            "-Cstrip=symbols",
            "-Ctarget-feature=+crt-static",
            "-o",
        ])
        .arg(&out)
        .arg(&source);
    command::output(&mut rustc, "", Duration::from_secs(300))?
        .success()
        .context("compiling e2e/images/testbox.rs")?;
    std::fs::rename(&out, &program)?;
    progress.done();
    Ok(program)
}

/// The shared libraries that `program` needs, by ldd.
pub fn libraries(program: &Path) -> Result<Vec<String>> {
    let listed = command::run("ldd", &[&program.display().to_string()])?;
    let mut found = Vec::new();
    for line in listed.lines() {
        ensure!(!line.contains("not found"), "{}: {}", program.display(), line.trim());
        let path = line.split_once("=>").map_or(line, |(_, path)| path).trim();
        if path.starts_with('/') {
            found.push(path.split_whitespace().next().unwrap_or_default().to_owned());
        }
    }
    Ok(found)
}

fn testbox_image() -> Result<Image> {
    let mut files = BTreeMap::new();
    for (name, program) in [
        ("/bin/sh", find_program("dash")),
        ("/bin/sleep", find_program("sleep")),
        ("/bin/cat", find_program("cat")),
        ("/bin/ls", find_program("ls")),
        ("/bin/id", find_program("id")),
        ("/bin/getent", find_program("getent")),
        ("/bin/curl", find_program("curl")),
        ("/bin/psql", postgres::programs().ok().map(|folder| folder.join("psql"))),
    ] {
        let program = program.with_context(|| format!("no {name} on this machine to put into the tests' toolbox"))?;
        for library in libraries(&program)? {
            files.insert(library.clone(), Content::Copy(library.into()));
        }
        files.insert(name.to_owned(), Content::Copy(program));
    }
    files.insert("/testbox".to_owned(), Content::Copy(testbox()?));
    files.insert(
        "/etc/passwd".to_owned(),
        Content::Text("root:x:0:0::/:/bin/sh\nnobody:x:65532:65532::/tmp:/bin/sh\n".to_owned()),
    );
    files.insert(
        "/etc/group".to_owned(),
        Content::Text("root:x:0:\nnobody:x:65532:\n".to_owned()),
    );
    files.insert(
        "/etc/nsswitch.conf".to_owned(),
        Content::Text("hosts: files dns\n".to_owned()),
    );
    files.insert("/tmp".to_owned(), Content::Folder(0o1777));
    Ok(Image {
        name: TESTBOX.to_owned(),
        entrypoint: vec!["/testbox".to_owned()],
        arguments: vec!["pause".to_owned()],
        env: vec!["PATH=/bin:/".to_owned(), "HOME=/tmp".to_owned()],
        user: "65532:65532".to_owned(),
        files,
    })
}

fn single_program(name: &str, path: &str, program: PathBuf, args: &[&str]) -> Image {
    Image {
        name: name.to_owned(),
        entrypoint: vec![path.to_owned()],
        arguments: args.iter().map(|arg| (*arg).to_owned()).collect(),
        user: "65532:65532".to_owned(),
        files: BTreeMap::from([(path.to_owned(), Content::Copy(program))]),
        ..Image::default()
    }
}

/// A name for what `image` is made of: changes when one of its files does.
fn key(image: &Image) -> Result<String> {
    let mut text = format!(
        "2 {} {:?} {:?} {:?} {}\n",
        image.name, image.entrypoint, image.arguments, image.env, image.user
    );
    for (name, content) in &image.files {
        use std::fmt::Write;
        match content {
            Content::Copy(from) => {
                let meta = from
                    .metadata()
                    .with_context(|| format!("cannot read {}", from.display()))?;
                writeln!(text, "{name} {} {} {:?}", from.display(), meta.len(), meta.modified()?)?;
            }
            other => writeln!(text, "{name} {other:?}")?,
        }
    }
    Ok(oci::sha256(text.as_bytes())[..16].to_owned())
}

fn cached(image: &Image) -> Result<PathBuf> {
    let stem = image.name.rsplit('/').next().unwrap_or_default().replace(':', "-");
    let folder = paths::cache()?.join("images");
    let archive = folder.join(format!("{stem}-{}.tar", key(image)?));
    if !archive.is_file() {
        let progress = Progress::start(format!("writing image {}", image.name));
        oci::write(image, &archive)?;
        progress.done();
    }
    Ok(archive)
}

/// Archives of all images that a node has from its start.
///
/// # Errors
/// When a program is missing or a file cannot be written.
pub fn node_images() -> Result<Vec<PathBuf>> {
    [
        single_program(PAUSE, "/pause", testbox()?, &["pause"]),
        single_program(COREDNS, "/coredns", Tool::Coredns.built()?, &[]),
        testbox_image()?,
    ]
    .iter()
    .map(cached)
    .collect()
}
