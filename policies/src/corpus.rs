//! Ordinary set-ups in `corpus/`: none is ever refused, in whatever order its objects come.
//!
//! A file is one set-up that works by itself, and all files together fit one cluster. Lines of comment say what is to be
//! seen: `# warns: TN208 TN406` names the rules that warn about it (and help by that), `# order: fixed` that its objects come
//! in the order of the file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tailnet_crds::Kind;

use crate::cases::{CaseError, kind_of};

/// One set-up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The file's name without `.yaml`.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Its objects in the file's order.
    pub objects: Vec<(Kind, Value)>,
    /// Rules that warn about one of its objects when all are there.
    pub warns: BTreeSet<String>,
    /// Whether its objects come in this order only.
    pub fixed_order: bool,
}

/// The folder with the set-ups of this crate.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// All set-ups, by name.
///
/// # Errors
/// When a file cannot be read, is not YAML, or has an object of a foreign kind.
pub fn load() -> Result<Vec<Setup>, CaseError> {
    let directory = directory();
    let read = |path: &Path| {
        let path = path.to_owned();
        move |source| CaseError::Read { path, source }
    };
    let mut setups = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(read(&directory))? {
        let path = entry.map_err(read(&directory))?.path();
        let text = std::fs::read_to_string(&path).map_err(read(&path))?;
        setups.push(setup(path, &text)?);
    }
    setups.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(setups)
}

fn setup(path: PathBuf, text: &str) -> Result<Setup, CaseError> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| CaseError::Yaml {
        path: path.clone(),
        problem: error.to_string(),
    })?;
    let objects: Option<Vec<_>> = documents
        .into_iter()
        .map(|object| Some((kind_of(&object)?, object)))
        .collect();
    let objects = objects.ok_or_else(|| CaseError::Format {
        path: path.clone(),
        problem: "an object is of none of our kinds",
    })?;
    let comments = |word: &str| {
        text.lines()
            .filter_map(|line| line.strip_prefix("# ")?.strip_prefix(word))
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect::<BTreeSet<String>>()
    };
    Ok(Setup {
        name: path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default(),
        objects,
        warns: comments("warns:"),
        fixed_order: comments("order:").contains("fixed"),
        path,
    })
}
