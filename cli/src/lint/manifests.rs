//! From paths to objects of ours with their places.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_saphyr::Spanned;
use tailnet_crds::names::label;
use tailnet_crds::{API_VERSION, GROUP, Kind, Scope};

use super::locate::Node;
use tailnet_policies::base;

use super::policies::PolicyText;

/// One object of ours in a file.
#[derive(Debug)]
pub struct Manifest {
    /// The file as it was named, `-` for standard input.
    pub file: String,
    /// First line of the object.
    pub line: u64,
    /// Lines by path.
    pub lines: HashMap<String, u64>,
    /// Its kind.
    pub kind: Kind,
    /// The object, with a namespace where the kind has one.
    pub object: Value,
}

/// A ConfigMap with the people's part of a policy.
#[derive(Debug)]
pub struct BaseText {
    /// The file as it was named.
    pub file: String,
    /// First line of the ConfigMap.
    pub line: u64,
    /// Lines by path.
    pub lines: HashMap<String, u64>,
    /// The ConfigMap, with a namespace.
    pub object: Value,
}

/// What files hold.
#[derive(Debug, Default)]
pub struct Found {
    /// Objects of ours.
    pub manifests: Vec<Manifest>,
    /// The organisation's policies.
    pub policies: Vec<PolicyText>,
    /// ConfigMaps with the people's part of a policy.
    pub base_documents: Vec<BaseText>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// What people should know of what was passed over.
    pub notes: Vec<String>,
}

/// Why a path cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The system refuses.
    #[error("{path}: {source}")]
    Read {
        /// The path.
        path: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// A directory cannot be walked.
    #[error("{0}")]
    Walk(#[from] walkdir::Error),
    /// No YAML and no JSON.
    #[error("{path}: {problem}")]
    Yaml {
        /// The file, with the line where it is known.
        path: String,
        /// The parser's words.
        problem: String,
    },
    /// A template, which only its tool can make YAML of.
    #[error(
        "{path}: this is a template and not YAML: lint what it gives (helm template RELEASE CHART | kubectl tailnet lint -)"
    )]
    Template {
        /// The file, with the line where it is known.
        path: String,
    },
    /// Our API group, but nothing that we know.
    #[error(
        "{path}:{line}: {api_version} {kind} is not a kind that this version knows{}",
        hint(kind, api_version)
    )]
    UnknownKind {
        /// The file.
        path: String,
        /// First line of the object.
        line: u64,
        /// `apiVersion` of the object.
        api_version: String,
        /// `kind` of the object.
        kind: String,
    },
}

/// What was meant by a kind or version that we do not know.
fn hint(kind: &str, api_version: &str) -> String {
    if kind.parse::<Kind>().is_ok() && api_version != API_VERSION {
        return format!("; it knows {API_VERSION}");
    }
    match nearest(kind, Kind::ALL.map(Kind::as_str)) {
        Some(near) => format!(": did you mean {near}?"),
        None => format!("; it knows {}", Kind::ALL.map(Kind::as_str).join(", ")),
    }
}

/// The nearest of some words, when it is near enough to be meant.
fn nearest<'n>(word: &str, words: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let distance = |known: &str| strsim::damerau_levenshtein(&word.to_lowercase(), &known.to_lowercase());
    words
        .into_iter()
        .map(|known| (distance(known), known))
        .min()
        .filter(|(distance, _)| *distance <= 3)
        .map(|(_, known)| known)
}

/// Reads every path; errors do not stop the others. `namespace` is given to objects that name none.
pub fn read(paths: &[PathBuf], namespace: &str) -> (Found, Vec<ManifestError>) {
    let (mut found, mut errors) = (Found::default(), Vec::new());
    for path in paths {
        if path == Path::new("-") {
            let mut text = String::new();
            match std::io::stdin().read_to_string(&mut text) {
                Ok(_) => parse("-", &text, namespace, &mut found, &mut errors),
                Err(source) => errors.push(ManifestError::Read {
                    path: "-".into(),
                    source,
                }),
            }
            continue;
        }
        for file in files(path, &mut errors) {
            let name = file.display().to_string();
            if file != *path && is_chart_template(&file) {
                let chart = file.parent().and_then(Path::parent).unwrap_or(&file).display();
                let note =
                    format!("templates of the chart in {chart} are passed over: lint the output of helm template");
                if !found.notes.contains(&note) {
                    found.notes.push(note);
                }
                continue;
            }
            match std::fs::read_to_string(&file) {
                Ok(text) => parse(&name, &text, namespace, &mut found, &mut errors),
                Err(source) => errors.push(ManifestError::Read { path: name, source }),
            }
        }
    }
    (found, errors)
}

/// Whether a file that was met on the way stands among the templates of a Helm chart.
fn is_chart_template(file: &Path) -> bool {
    file.ancestors().skip(1).any(|folder| {
        folder.file_name().is_some_and(|name| name == "templates")
            && folder.parent().is_some_and(|chart| chart.join("Chart.yaml").is_file())
    })
}

/// The file itself, or the manifests below a directory by name; hidden directories (`.git`) are passed over.
pub fn files(path: &Path, errors: &mut Vec<ManifestError>) -> Vec<PathBuf> {
    let hidden = |entry: &walkdir::DirEntry| entry.depth() > 0 && entry.file_name().to_string_lossy().starts_with('.');
    let mut files = Vec::new();
    for entry in walkdir::WalkDir::new(path)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| !hidden(entry))
    {
        match entry {
            Ok(entry) if entry.file_type().is_dir() => {}
            Ok(entry) => {
                let named = entry.depth() == 0;
                let extension = entry
                    .path()
                    .extension()
                    .and_then(|extension| extension.to_str())
                    .unwrap_or_default();
                if named || ["yaml", "yml", "json"].contains(&extension) {
                    files.push(entry.into_path());
                }
            }
            Err(error) => errors.push(error.into()),
        }
    }
    files
}

/// Reads the documents of a text.
pub fn parse(file: &str, text: &str, namespace: &str, found: &mut Found, errors: &mut Vec<ManifestError>) {
    // Files of others need not even be YAML (chart templates beside manifests).
    if !text.contains(GROUP) && !text.contains("Tailnet") && !text.contains("Namespace") {
        return;
    }
    let documents: Vec<Spanned<Node>> = match serde_saphyr::from_multiple(text) {
        Ok(documents) => documents,
        // Nothing of ours in it: whatever it is, others will say so.
        Err(_) if !text.contains(GROUP) => return,
        Err(error) => {
            let place = error
                .location()
                .map_or_else(|| file.to_owned(), |at| format!("{file}:{}", at.line()));
            if text.contains("{{") {
                errors.push(ManifestError::Template { path: place });
                return;
            }
            let text = error.without_snippet().to_string();
            let problem = text.lines().next().unwrap_or("is neither YAML nor JSON").to_owned();
            errors.push(ManifestError::Yaml { path: place, problem });
            return;
        }
    };
    let source = Source { file, text, namespace };
    for document in documents {
        let line = document.referenced.line();
        let mut lines = HashMap::new();
        let object = document.value.into_value("", &mut lines);
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        // `kubectl get -o yaml` gives a List; a client may write TailnetSiteList, whose items need not say what they are.
        let of = kind.strip_suffix("List").filter(|_| object["items"].is_array());
        let Some(of) = of.map(str::to_owned) else {
            source.add(line, lines, object, found, errors);
            continue;
        };
        let api_version = object.get("apiVersion").cloned().unwrap_or_default();
        let items = object["items"].as_array().cloned().unwrap_or_default();
        for (at, mut item) in items.into_iter().enumerate() {
            let prefix = format!("items[{at}]");
            let line = lines.get(&prefix).copied().unwrap_or(line);
            let below = lines.iter().filter_map(|(path, line)| {
                let path = path.strip_prefix(&prefix)?.strip_prefix('.')?;
                Some((path.to_owned(), *line))
            });
            let below = below.collect();
            if let Some(fields) = item.as_object_mut().filter(|_| !of.is_empty()) {
                fields.entry("kind").or_insert_with(|| of.clone().into());
                fields.entry("apiVersion").or_insert_with(|| api_version.clone());
            }
            source.add(line, below, item, found, errors);
        }
    }
}

/// Gives an object that names no namespace this one.
fn in_namespace(object: &mut Value, namespace: &str) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && !metadata.contains_key("namespace")
    {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
}

/// One text.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
    namespace: &'a str,
}

impl Source<'_> {
    fn add(
        &self,
        line: u64,
        lines: HashMap<String, u64>,
        mut object: Value,
        found: &mut Found,
        errors: &mut Vec<ManifestError>,
    ) {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        // The first line of an object is that of its first field, not of the `---` or a comment before it.
        let line = lines.values().copied().min().unwrap_or(line);
        let file = self.file.to_owned();
        let group = api_version.split('/').next().unwrap_or_default();
        match (api_version.as_str(), kind.as_str()) {
            ("v1", "Namespace") => {
                if let Some(name) = object.pointer("/metadata/name").and_then(Value::as_str) {
                    found
                        .namespaces
                        .insert(name.to_owned(), texts(object.pointer("/metadata/labels")));
                }
                return;
            }
            ("v1", "ConfigMap") => {
                found.policies.extend(self.policy(line, &lines, &object));
                if object.pointer("/data").and_then(|data| data.get(base::KEY)).is_some() {
                    in_namespace(&mut object, self.namespace);
                    found.base_documents.push(BaseText {
                        file,
                        line,
                        lines,
                        object,
                    });
                }
                return;
            }
            _ => {}
        }
        let parsed = kind.parse::<Kind>();
        if group != GROUP {
            if parsed.is_ok() && !group.is_empty() && nearest(group, [GROUP]).is_some() {
                found.notes.push(format!(
                    "{file}:{line}: {kind} of {api_version} is passed over: did you mean {API_VERSION}?"
                ));
            }
            return;
        }
        let Ok(kind) = parsed else {
            errors.push(ManifestError::UnknownKind {
                path: file,
                line,
                api_version,
                kind,
            });
            return;
        };
        if api_version != API_VERSION {
            errors.push(ManifestError::UnknownKind {
                path: file,
                line,
                api_version,
                kind: kind.to_string(),
            });
            return;
        }
        if kind.scope() == Scope::Namespaced {
            in_namespace(&mut object, self.namespace);
        }
        found.manifests.push(Manifest {
            file,
            line,
            lines,
            kind,
            object,
        });
    }

    /// A ConfigMap with an organisation's policy.
    fn policy(&self, line: u64, lines: &HashMap<String, u64>, object: &Value) -> Option<PolicyText> {
        let labels = texts(object.pointer("/metadata/labels"));
        if labels.get(label::ADMISSION_POLICY).map(String::as_str) != Some("true") {
            return None;
        }
        let metadata = |key: &str| object.get("metadata")?.get(key)?.as_str();
        let data = texts(object.get("data"));
        let start = |key: &String| {
            let path = if key.contains(['.', '/']) {
                format!("data[{key}]")
            } else {
                format!("data.{key}")
            };
            let at = *lines.get(&path)?;
            let row = usize::try_from(at).ok()?.checked_sub(1)?;
            // The text of a block begins below its key.
            let block = self.text.lines().nth(row)?.trim_end().ends_with(['|', '>', '-', '+']);
            Some((key.clone(), at + u64::from(block)))
        };
        Some(PolicyText {
            file: self.file.to_owned(),
            line,
            namespace: Some(metadata("namespace").unwrap_or(self.namespace).to_owned()),
            name: metadata("name").unwrap_or_default().to_owned(),
            starts: data.keys().filter_map(start).collect(),
            data,
        })
    }
}

/// A map of texts.
fn texts(value: Option<&Value>) -> BTreeMap<String, String> {
    let fields = value.and_then(Value::as_object);
    fields
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}
