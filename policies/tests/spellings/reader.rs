//! The Go program beside this file, which says how Go and the C library read a text.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// What everybody made of one text; an empty field means that it was refused. See `reader/main.go`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reading {
    /// netip.ParseAddr, as it prints.
    pub addr: String,
    /// The same without zone and with IPv4 inside IPv6 as IPv4.
    pub plain: String,
    /// netip.ParsePrefix, as it prints.
    pub prefix: String,
    /// The same without host bits and with IPv4 inside IPv6 as IPv4.
    pub plain_prefix: String,
    /// net.ParseCIDR's network.
    pub cidr: String,
    /// inet_aton of the C library.
    pub aton: String,
    /// inet_pton of the C library for IPv6, as netip prints it.
    pub pton: String,
    /// The A-labels of a name, lower case (golang.org/x/net/idna).
    pub ascii: String,
}

fn built() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spellings/reader");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spellings-reader");
    let done = Command::new("go")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&binary)
        .arg(".")
        .current_dir(source)
        .env("CGO_ENABLED", "1")
        .output()
        .expect("Go is there, as for the agent");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    binary
}

/// How Go and the C library read each text, in order.
pub fn read(texts: &[String]) -> Vec<Reading> {
    let mut reader = Command::new(built())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = BufWriter::new(reader.stdin.take().unwrap());
    let output = BufReader::new(reader.stdout.take().unwrap());
    let readings: Vec<Reading> = std::thread::scope(|scope| {
        scope.spawn(move || {
            for text in texts {
                writeln!(input, "{}", serde_json::Value::from(text.as_str())).unwrap();
            }
        });
        output
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect()
    });
    assert!(reader.wait().unwrap().success());
    assert_eq!(readings.len(), texts.len());
    readings
}
