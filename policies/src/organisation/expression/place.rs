//! Where in the object, or in another name, a value of an expression comes from.

use tailnet_crds::Kind;
use tailnet_crds::structural::{Step, unknown_step};

use super::super::scope::Name;

/// Where in the names a value comes from.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) root: Name,
    pub(super) path: Vec<Step>,
}

impl Place {
    pub(super) fn field(mut self, name: &str) -> Self {
        self.path.push(Step::Field(name.to_owned()));
        self
    }

    pub(super) fn entry(mut self) -> Self {
        self.path.push(Step::Entry);
        self
    }

    /// The names that there are instead, where nothing of that name can be there.
    pub(super) fn unknown(&self, kinds: &[Kind]) -> Option<Vec<String>> {
        let path = match (self.root, self.path.first()) {
            // A list of objects.
            (Name::Others, Some(Step::Entry)) => &self.path[1..],
            _ => &self.path[..],
        };
        if path.is_empty() {
            return None;
        }
        let fixed = |names: &[&str]| {
            let Some(Step::Field(name)) = path.first() else {
                return None;
            };
            (!names.contains(&name.as_str())).then(|| names.iter().map(|name| (*name).to_owned()).collect())
        };
        match self.root {
            Name::Request => fixed(&["operation", "kind", "name", "namespace", "dryRun", "userInfo"]),
            Name::NamespaceObject => fixed(&["metadata"]),
            Name::Tailnet => in_schema(&[Kind::Tailnet], path),
            Name::Object | Name::OldObject | Name::Others => in_schema(kinds, path),
        }
    }
}

/// The names that there are instead of the last step, where no kind has it.
fn in_schema(kinds: &[Kind], path: &[Step]) -> Option<Vec<String>> {
    if path.first() == Some(&Step::Field("status".to_owned())) {
        return Some(vec!["metadata".to_owned(), "spec".to_owned()]);
    }
    let mut names = Vec::new();
    for kind in kinds {
        match unknown_step(*kind, path) {
            None => return None,
            // What is wrong further up has been said there.
            Some((at, known)) if at + 1 == path.len() => names.extend(known),
            Some(_) => {}
        }
    }
    names.sort();
    names.dedup();
    Some(names)
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.root.as_str())?;
        f.write_str(&path_text(&self.path, "."))
    }
}

/// A path as text: `spec.targets[]`, each field after `dot`.
pub(crate) fn path_text(path: &[Step], dot: &str) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) => {
                text.push_str(dot);
                text.push_str(name);
            }
            Step::Entry => text.push_str("[]"),
        }
    }
    text
}
