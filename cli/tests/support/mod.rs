//! The real binary on files of its own, told nothing by this process's environment.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `kubectl tailnet`, which knows of no cluster and no operator.
pub fn kubectl_tailnet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-tailnet"));
    command.env_remove("OPERATOR_NAMESPACE").env_remove("KUBECONFIG");
    command
}

/// A command of it in a folder, with `input` on its standard input.
pub fn run(command: &str, directory: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = kubectl_tailnet()
        .arg(command)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// `kubectl tailnet lint` in a folder.
pub fn lint(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = kubectl_tailnet();
    command.arg("lint").args(arguments).current_dir(directory);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Output as text.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A folder with these files, which may be in folders of their own.
pub fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}
