//! Who writes a policy document: a comment line in the document itself, so that whoever reads the document knows.

use std::fmt;

/// Begin of the line.
const MARKER: &str = "// tsunaro.io/policy-owner: ";

/// The installation and the Tailnet that write a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// UID of the operator's namespace.
    pub installation: String,
    /// Name of the Tailnet there.
    pub tailnet: String,
}

impl Owner {
    /// The comment, without its slashes.
    pub(crate) fn comment(&self) -> String {
        format!("{}{}/{}", &MARKER[3..], self.installation, self.tailnet)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tailnet {} of installation {}", self.tailnet, self.installation)
    }
}

fn read(line: &str) -> Option<Owner> {
    let (installation, tailnet) = line.trim().strip_prefix(MARKER)?.split_once('/')?;
    (!installation.is_empty() && !tailnet.is_empty()).then(|| Owner {
        installation: installation.chars().take(64).collect(),
        tailnet: tailnet.chars().take(253).collect(),
    })
}

/// The owner that a document names; the first, if it names several.
pub fn owner_of(text: &str) -> Option<Owner> {
    text.lines().find_map(read)
}

/// The document without the line that names `owner`; None when it has none.
pub fn without_marker(text: &str, owner: &Owner) -> Option<String> {
    let line = text
        .split_inclusive('\n')
        .find(|line| read(line).as_ref() == Some(owner))?;
    let at = line.as_ptr() as usize - text.as_ptr() as usize;
    Some(format!("{}{}", &text[..at], &text[at + line.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_found_and_taken_out() {
        let owner = Owner {
            installation: "0b8a".to_owned(),
            tailnet: "corp".to_owned(),
        };
        let text = format!("// {}\n// x\n{{}}\n", owner.comment());
        assert_eq!(owner_of(&text), Some(owner.clone()));
        assert_eq!(without_marker(&text, &owner).as_deref(), Some("// x\n{}\n"));
        assert_eq!(owner_of("{}"), None);
        let other = Owner {
            tailnet: "lab".to_owned(),
            ..owner.clone()
        };
        assert_eq!(without_marker(&text, &other), None);
        assert_eq!(owner_of("// tsunaro.io/policy-owner: nothing\n{}"), None);
    }
}
