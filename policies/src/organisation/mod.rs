//! Policies of the organisation in CEL: what no rule of ours can know, such as which teams own sites.
//!
//! A ConfigMap of the operator namespace with the label `tsunaro.io/admission-policy: "true"` is one [`Policy`]. Every key
//! of its `data` holds YAML documents in the shape of a ValidatingAdmissionPolicy's spec (`document`). Its validations are
//! counted through, and number `n` of policy `p` speaks as `ORG/p/n`. What cannot be decided (an error, a limit, a policy
//! that does not compile) is a finding of TN009.
//!
//! An expression is checked when it is compiled (`expression`: names, functions, fields of the kinds, sizes) and metered
//! while it runs (`meter`), so that no policy can hold up admission: it ends itself at its limit.

mod admission;
mod document;
mod expression;
mod functions;
mod meter;
mod run;
mod scope;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use admission::{data_of, evaluate_config_map, is_labelled};
pub use document::{MAX_EXPRESSION_CHARS, MAX_MESSAGE_CHARS, MAX_VALIDATIONS, MAX_VARIABLES};
pub(crate) use meter::Clock;
pub use meter::{MAX_SIZE, MAX_STEPS, MAX_TIME, MAX_TIME_OF_ALL};
pub(crate) use run::run;
pub(crate) use scope::{Subject, as_stored};

use document::Document;

/// One policy: all documents of one ConfigMap, compiled.
#[derive(Debug)]
pub struct Policy {
    name: String,
    documents: Vec<Document>,
}

/// What is wrong with a policy's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Key of the ConfigMap's `data`.
    pub key: String,
    /// Which document of that key, counted from 1, where there are several.
    pub document: Option<usize>,
    /// Path inside the document, such as `validations[0].expression`; empty for the document itself.
    pub path: String,
    /// Line inside the key's text, counted from 1, where it is known.
    pub line: Option<u64>,
    /// Line and column inside the expression, counted from 1, where they are known.
    pub position: Option<(usize, usize)>,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    /// `data[owner.yaml]: validations[0].expression:1:8: …`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.field())?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Problem {
    /// Where it is, as a path into the ConfigMap.
    pub fn field(&self) -> String {
        let mut field = format!("data[{}]", self.key);
        if let Some(document) = self.document {
            field.push_str(&format!(": document {document}"));
        }
        if !self.path.is_empty() {
            field.push_str(&format!(": {}", self.path));
        }
        field
    }
}

impl Policy {
    /// Compiles the data of the ConfigMap `name`.
    ///
    /// # Errors
    /// Everything that is wrong with the text, in its order.
    pub fn compile(name: &str, data: &BTreeMap<String, String>) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut documents = Vec::new();
        for (key, text) in data {
            document::read(key, text, &mut documents, &mut problems);
        }
        let validations: usize = documents.iter().map(|document| document.validations.len()).sum();
        if validations == 0 && problems.is_empty() {
            problems.push(Problem {
                key: data.keys().next().cloned().unwrap_or_else(|| "policy.yaml".to_owned()),
                document: None,
                path: "validations".to_owned(),
                line: None,
                position: None,
                message: "there is no validation: add one, or take the label off the ConfigMap".to_owned(),
            });
        }
        if problems.is_empty() {
            Ok(Self {
                name: name.to_owned(),
                documents,
            })
        } else {
            Err(problems)
        }
    }

    /// Name of the ConfigMap.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of validations.
    pub fn validations(&self) -> usize {
        self.documents.iter().map(|document| document.validations.len()).sum()
    }
}

/// A policy as it stands in the snapshot: compiled, or the first reason why it cannot be.
///
/// The second is no way to switch a policy off: it refuses whatever the policy could have been about.
pub type Standing = Result<Policy, String>;

/// [`Policy::compile`] for the snapshot.
pub fn standing(name: &str, data: &BTreeMap<String, String>) -> Standing {
    Policy::compile(name, data).map_err(|problems| match problems.first() {
        Some(first) if problems.len() > 1 => format!("{first} (and {} more)", problems.len() - 1),
        Some(first) => first.to_string(),
        None => "it does not compile".to_owned(),
    })
}

/// The policies in force, by name.
pub(crate) type Policies = BTreeMap<String, Arc<Standing>>;
