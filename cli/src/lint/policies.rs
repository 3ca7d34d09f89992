//! The organisation's policies in files: ConfigMaps with the label, or bare documents.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use tailnet_policies::organisation::Problem;

use super::manifests::{self, Found, ManifestError};
use super::output::Line;

/// One policy, not yet compiled.
#[derive(Debug)]
pub struct PolicyText {
    /// The file as it was named.
    pub file: String,
    /// First line of the ConfigMap.
    pub line: u64,
    /// Namespace of the ConfigMap; None for bare documents.
    pub namespace: Option<String>,
    /// Name of the ConfigMap, or of the file.
    pub name: String,
    /// Texts by key.
    pub data: BTreeMap<String, String>,
    /// Line in the file on which each key's text begins.
    pub starts: HashMap<String, u64>,
}

impl PolicyText {
    /// A problem as a finding.
    pub fn line_of(&self, problem: &Problem) -> Line {
        let start = self.starts.get(&problem.key).copied();
        let line = start.map_or(self.line, |start| start + problem.line.unwrap_or(1).max(1) - 1);
        let position = problem
            .position
            .map_or_else(String::new, |(line, column)| format!("{line}:{column}: "));
        Line {
            file: self.file.clone(),
            line,
            kind: "ConfigMap",
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            rule: "TN009".to_owned(),
            severity: super::DENY,
            field: problem.field(),
            message: format!("Invalid value: {position}{} [TN009]", problem.message),
        }
    }
}

/// Reads the policies below some paths.
pub fn read(paths: &[PathBuf], namespace: &str) -> (Vec<PolicyText>, Vec<ManifestError>) {
    let (mut policies, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        for file in manifests::files(path, &mut errors) {
            let name = file.display().to_string();
            let text = match std::fs::read_to_string(&file) {
                Ok(text) => text,
                Err(source) => {
                    errors.push(ManifestError::Read { path: name, source });
                    continue;
                }
            };
            if is_bare(&text) {
                policies.push(bare(&file, name, text));
                continue;
            }
            let mut found = Found::default();
            manifests::parse(&name, &text, namespace, &mut found, &mut errors);
            policies.append(&mut found.policies);
        }
    }
    (policies, errors)
}

/// Whether a text is a policy itself: no Kubernetes object, or one that has the shape of a policy.
fn is_bare(text: &str) -> bool {
    let field = |name: &str| text.lines().any(|line| line.starts_with(name));
    (!field("kind:") || field("kind: ValidatingAdmissionPolicy")) && !text.trim_start().starts_with('{')
}

fn bare(file: &Path, shown: String, text: String) -> PolicyText {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let key = file
        .file_name()
        .map_or_else(|| "policy.yaml".to_owned(), |name| name.to_string_lossy().into_owned());
    PolicyText {
        file: shown,
        line: 1,
        namespace: None,
        name: stem.unwrap_or_else(|| "policy".to_owned()),
        starts: HashMap::from([(key.clone(), 1)]),
        data: BTreeMap::from([(key, text)]),
    }
}
