//! Writes an image archive (OCI layout in a tar) without any daemon: one layer of given files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What an image consists of.
#[derive(Debug, Default)]
pub struct Image {
    /// Canonical name, `docker.io/tsunaro/pause:1`.
    pub name: String,
    /// Program.
    pub entrypoint: Vec<String>,
    /// Arguments, which a Pod's `args` replace.
    pub arguments: Vec<String>,
    /// `KEY=value`.
    pub env: Vec<String>,
    /// `uid:gid`.
    pub user: String,
    /// Path in the image (absolute) to its content.
    pub files: BTreeMap<String, Content>,
}

/// Content of one path.
#[derive(Debug)]
pub enum Content {
    /// A copy of a file of this machine, with its permissions; symbolic links are followed.
    Copy(PathBuf),
    /// This text, readable by everybody.
    Text(String),
    /// A folder with these permissions.
    Folder(u32),
    /// A symbolic link to this path.
    Link(String),
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    // Always the same, so that the same files give the same image.
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn write_layer(image: &Image, path: &Path) -> Result<()> {
    let mut layer = tar::Builder::new(std::io::BufWriter::new(File::create(path)?));
    let mut folders = std::collections::BTreeSet::new();
    for (name, content) in &image.files {
        let relative = name.trim_start_matches('/');
        let mut parents: Vec<_> = Path::new(relative)
            .ancestors()
            .skip(1)
            .filter(|parent| !parent.as_os_str().is_empty())
            .collect();
        parents.reverse();
        for parent in parents {
            if folders.insert(parent.to_owned()) && !image.files.contains_key(&format!("/{}", parent.display())) {
                layer.append_data(
                    &mut header(tar::EntryType::Directory, 0o755, 0),
                    parent,
                    std::io::empty(),
                )?;
            }
        }
        match content {
            Content::Copy(from) => {
                use std::os::unix::fs::PermissionsExt;
                let mut file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
                let meta = file.metadata()?;
                let mode = if meta.permissions().mode() & 0o111 == 0 {
                    0o644
                } else {
                    0o755
                };
                layer.append_data(
                    &mut header(tar::EntryType::Regular, mode, meta.len()),
                    relative,
                    &mut file,
                )?;
            }
            Content::Text(text) => {
                layer.append_data(
                    &mut header(tar::EntryType::Regular, 0o644, text.len() as u64),
                    relative,
                    text.as_bytes(),
                )?;
            }
            Content::Folder(mode) => {
                folders.insert(PathBuf::from(relative));
                layer.append_data(
                    &mut header(tar::EntryType::Directory, *mode, 0),
                    relative,
                    std::io::empty(),
                )?;
            }
            Content::Link(to) => layer.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), relative, to)?,
        }
    }
    layer.into_inner()?.flush()?;
    Ok(())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// When it cannot be read.
pub fn file_sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..count]);
    }
}

/// SHA-256 of bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Writes `image` as an archive that `ctr images import` takes, whole or not at all.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write(image: &Image, archive: &Path) -> Result<()> {
    let folder = archive.parent().context("an archive has a folder")?;
    std::fs::create_dir_all(folder)?;
    let unfinished = tempfile::Builder::new().prefix("image-").tempdir_in(folder)?;
    let layer = unfinished.path().join("layer.tar");
    write_layer(image, &layer)?;
    let layer_digest = file_sha256(&layer)?;
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let config = serde_json::to_vec(&json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": image.entrypoint, "Cmd": image.arguments, "Env": image.env, "User": image.user, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
    }))?;
    let describe = |media: &str, digest: &str, size: u64| json!({"mediaType": media, "digest": format!("sha256:{digest}"), "size": size});
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": describe("application/vnd.oci.image.config.v1+json", &sha256(&config), config.len() as u64),
        "layers": [describe("application/vnd.oci.image.layer.v1.tar", &layer_digest, layer.metadata()?.len())],
    }))?;
    let mut entry: Value = describe(
        "application/vnd.oci.image.manifest.v1+json",
        &sha256(&manifest),
        manifest.len() as u64,
    );
    let tag = image.name.rsplit(':').next().unwrap_or_default();
    entry["annotations"] = json!({"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": tag});
    let index = serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": [entry]}))?;

    let whole = unfinished.path().join("archive.tar");
    let mut out = tar::Builder::new(std::io::BufWriter::new(File::create(&whole)?));
    let mut bytes = |name: String, content: &[u8]| {
        out.append_data(
            &mut header(tar::EntryType::Regular, 0o644, content.len() as u64),
            name,
            content,
        )
    };
    bytes("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    bytes("index.json".to_owned(), &index)?;
    bytes(format!("blobs/sha256/{}", sha256(&manifest)), &manifest)?;
    bytes(format!("blobs/sha256/{}", sha256(&config)), &config)?;
    let mut file = File::open(&layer)?;
    let size = file.metadata()?.len();
    out.append_data(
        &mut header(tar::EntryType::Regular, 0o644, size),
        format!("blobs/sha256/{layer_digest}"),
        &mut file,
    )?;
    out.into_inner()?.flush()?;
    std::fs::rename(&whole, archive).with_context(|| format!("cannot write {}", archive.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_what_the_layout_asks_for() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("x.tar");
        let files = [
            ("/etc/motd".to_owned(), Content::Text("hello".into())),
            ("/tmp".to_owned(), Content::Folder(0o1777)),
        ];
        let image = Image {
            name: "docker.io/tsunaro/x:1".into(),
            files: files.into(),
            ..Image::default()
        };
        write(&image, &archive).unwrap();
        let mut seen = BTreeMap::new();
        for entry in tar::Archive::new(File::open(&archive).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            let name = entry.path().unwrap().display().to_string();
            entry.read_to_end(&mut content).unwrap();
            if let Some(digest) = name.strip_prefix("blobs/sha256/") {
                assert_eq!(sha256(&content), digest, "a blob is named after its content");
            }
            seen.insert(name, content);
        }
        let index: Value = serde_json::from_slice(&seen["index.json"]).unwrap();
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "docker.io/tsunaro/x:1"
        );
        let manifest = index["manifests"][0]["digest"].as_str().unwrap().replace(':', "/");
        let manifest: Value = serde_json::from_slice(&seen[&format!("blobs/{manifest}")]).unwrap();
        assert!(seen.contains_key(&format!(
            "blobs/{}",
            manifest["layers"][0]["digest"].as_str().unwrap().replace(':', "/")
        )));
        // The same files give the same image.
        let before = std::fs::read(&archive).unwrap();
        write(&image, &archive).unwrap();
        assert_eq!(before, std::fs::read(&archive).unwrap());
    }
}
