//! The pre-auth key's file. The key is in no message: neither of success nor of failure.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthKeyError {
    #[error("the pre-auth key file {path} cannot be read: {source}", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the pre-auth key file {path} is empty", path = .0.display())]
    Empty(PathBuf),
    #[error("the pre-auth key file {path} holds more than one word, so it is no key", path = .0.display())]
    NotAKey(PathBuf),
}

/// Reads the key as it is in the file now.
pub(crate) fn read(path: &Path) -> Result<String, AuthKeyError> {
    let text = fs::read_to_string(path).map_err(|source| AuthKeyError::Read {
        path: path.to_owned(),
        source,
    })?;
    let key = text.trim();
    if key.is_empty() {
        return Err(AuthKeyError::Empty(path.to_owned()));
    }
    if key.len() > 1024 || key.contains(char::is_whitespace) {
        return Err(AuthKeyError::NotAKey(path.to_owned()));
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{AuthKeyError, read};

    #[test]
    fn takes_one_word_and_never_shows_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authkey");
        assert!(matches!(read(&path), Err(AuthKeyError::Read { .. })));
        std::fs::write(&path, " \n").unwrap();
        assert!(matches!(read(&path), Err(AuthKeyError::Empty(_))));
        std::fs::write(&path, "hskey-auth-secret and more").unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(error, AuthKeyError::NotAKey(_)));
        assert!(!error.to_string().contains("secret"));
        std::fs::write(&path, "hskey-auth-secret\n").unwrap();
        assert_eq!(read(&path).unwrap(), "hskey-auth-secret");
    }
}
