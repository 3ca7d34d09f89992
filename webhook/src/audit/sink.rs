//! A file that a log rotation may move away.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Appends to whatever file has the path now. Before each write it looks whether that still is the open one: a stat costs
/// less than the JSON of the line.
pub struct RotatedFile {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
}

impl RotatedFile {
    /// `file` is `path`, opened for appending.
    pub fn new(path: PathBuf, file: File) -> io::Result<Self> {
        let identity = identity(&file.metadata()?);
        Ok(Self { path, file, identity })
    }

    fn follow(&mut self) -> io::Result<()> {
        let same = match std::fs::metadata(&self.path) {
            Ok(metadata) => identity(&metadata) == self.identity,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            // Nothing is known of another file: this one goes on.
            Err(_) => true,
        };
        if !same {
            let file = OpenOptions::new().append(true).create(true).open(&self.path)?;
            self.identity = identity(&file.metadata()?);
            self.file = file;
        }
        Ok(())
    }
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Write for RotatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Half a rotation (moved, and the folder not writable): better into the moved file than nowhere.
        let _ = self.follow();
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::RotatedFile;
    use std::fs::{OpenOptions, read_to_string, rename, write};
    use std::io::Write;

    #[test]
    fn a_file_that_was_moved_or_truncated_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        let file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut rotated = RotatedFile::new(path.clone(), file).unwrap();
        rotated.write_all(b"one\n").unwrap();
        rename(&path, &moved).unwrap();
        rotated.write_all(b"two\n").unwrap();
        assert_eq!(read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(read_to_string(&path).unwrap(), "two\n");
        // Copy and truncate: the same file, written at its new end.
        write(&path, "").unwrap();
        rotated.write_all(b"three\n").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "three\n");
    }
}
